//! From a key to its schedule: AES round keys and powers of the hash key.

use super::ghash;
use super::once::{from_words, private, put, to_words};
use crate::schedule::{power_max, Schedule, POWER_MAX};
use core::arch::aarch64::*;
use zeroize::Zeroize;

/// Fills a schedule from a key of 4 or 8 words (16 or 32 bytes).
///
/// Not inlined, so that all it uses of the stack is below its caller, who wipes it.
#[inline(never)]
#[target_feature(enable = "neon,aes")]
pub(super) fn fill(schedule: &mut Schedule, key: &[u8]) {
    expand(schedule, key);
    let h = over_x(to_words(ghash::reversed(encrypt_zero(schedule))));
    // Each power is a product of two of about half its exponent, which waits for few others.
    put(&mut schedule.powers[POWER_MAX - 1], h);
    for k in 2..=power_max(1) {
        let powers = schedule.powers.as_ptr();
        // SAFETY: both are within the powers, and have been stored.
        let (a, b) = unsafe {
            (
                private(powers, POWER_MAX - k / 2),
                private(powers, POWER_MAX - (k - k / 2)),
            )
        };
        put(&mut schedule.powers[POWER_MAX - k], ghash::multiply(a, b));
    }
}

/// The key expansion of FIPS 197, section 5.2, a word at a time.
#[inline]
#[target_feature(enable = "neon,aes")]
fn expand(schedule: &mut Schedule, key: &[u8]) {
    let words_in_key = key.len() / 4;
    schedule.rounds = words_in_key + 6;
    let mut words = [0u32; 60];
    for (word, bytes) in words.iter_mut().zip(key.chunks_exact(4)) {
        *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    let mut round_constant = 1u32;
    for i in words_in_key..4 * (schedule.rounds + 1) {
        let mut word = words[i - 1];
        if i % words_in_key == 0 {
            word = substitute(word).rotate_right(8) ^ round_constant;
            // Doubling in GF(2^8); the constants are public.
            round_constant =
                (round_constant << 1) ^ if round_constant & 0x80 != 0 { 0x11b } else { 0 };
        } else if words_in_key == 8 && i % 8 == 4 {
            word = substitute(word);
        }
        words[i] = words[i - words_in_key] ^ word;
    }
    for (block, words) in schedule.round_keys.iter_mut().zip(words.chunks_exact(4)) {
        for (bytes, word) in block.0.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }
    words.zeroize();
}

/// The AES S-box on each byte, by the instruction (a table would leak the key through the cache).
/// That moves bytes between columns, too, which here are all the same.
#[inline]
#[target_feature(enable = "neon,aes")]
fn substitute(word: u32) -> u32 {
    let columns = vreinterpretq_u8_u32(vdupq_n_u32(word));
    vgetq_lane_u32::<0>(vreinterpretq_u32_u8(vaeseq_u8(columns, from_words(0, 0))))
}

/// The encryption of the block of zeros: the hash key.
#[inline]
#[target_feature(enable = "neon,aes")]
fn encrypt_zero(schedule: &Schedule) -> uint8x16_t {
    let keys = schedule.round_keys.as_ptr();
    // SAFETY: there are 15 round keys, and `rounds` is 10 or 14.
    let key = |r: usize| unsafe { private(keys, r) };
    let mut state = from_words(0, 0);
    for r in 0..schedule.rounds - 1 {
        state = vaesmcq_u8(vaeseq_u8(state, key(r)));
    }
    let state = vaeseq_u8(state, key(schedule.rounds - 1));
    veorq_u8(state, key(schedule.rounds))
}

/// The polynomial over x: reflected, that is a shift left, and the bit that falls out is x^0/x =
/// x^127 + x^6 + x + 1. No branch.
#[inline]
fn over_x([low, high]: [u64; 2]) -> uint8x16_t {
    // All ones where the bit that falls out is set.
    let falls_out = (high.cast_signed() >> 63).cast_unsigned();
    from_words(
        (low << 1) ^ (falls_out & 1),
        (high << 1 | low >> 63) ^ (falls_out & (0xc2 << 56)),
    )
}
