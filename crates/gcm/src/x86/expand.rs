//! From a key to its schedule: AES round keys and powers of the hash key.

use super::ghash;
use super::lanes::Single;
use crate::schedule::{Schedule, POWER_MAX, STRIDES};
use core::arch::x86_64::*;
use zeroize::Zeroize;

/// Fills a schedule from a key of 4 or 8 words (16 or 32 bytes), for registers of `lanes`
/// blocks.
///
/// # Safety
/// The processor must have AES-NI, PCLMULQDQ and SSSE3.
#[target_feature(enable = "aes,pclmulqdq,ssse3")]
#[inline]
pub(super) unsafe fn fill(schedule: &mut Schedule, key: &[u8], lanes: usize) {
    expand(schedule, key);
    // SAFETY: the features are enabled on this function; all addresses are within the schedule.
    unsafe {
        let h = encrypt(schedule, _mm_setzero_si128());
        let h = over_x(_mm_shuffle_epi8(h, ghash::byte_reversal()));
        // Each power is a product of two of about half its exponent, which waits for few others.
        let powers = schedule.powers.as_mut_ptr().add(POWER_MAX).cast();
        fill_powers(powers, POWER_MAX, h);
        if lanes > 1 {
            let strides = schedule.strides.as_mut_ptr().add(STRIDES).cast();
            fill_powers(strides, STRIDES, _mm_load_si128(powers.sub(lanes)));
        }
    }
}

/// Stores the first `count` powers of `p` below `end`, the first right before it.
///
/// # Safety
/// As for [`fill`], for `count` blocks.
#[inline]
#[target_feature(enable = "pclmulqdq")]
unsafe fn fill_powers(end: *mut __m128i, count: usize, p: __m128i) {
    // SAFETY: the caller's contract.
    unsafe {
        _mm_store_si128(end.sub(1), p);
        for k in 2..=count {
            let (a, b) = (end.sub(k / 2), end.sub(k - k / 2));
            let product = ghash::multiply(
                Single::<false>(_mm_load_si128(a)),
                Single(_mm_load_si128(b)),
            );
            _mm_store_si128(end.sub(k), product.0);
        }
    }
}

/// The key expansion of FIPS 197, section 5.2, a word at a time.
#[inline]
#[target_feature(enable = "aes,ssse3")]
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
#[inline]
#[target_feature(enable = "aes")]
fn substitute(word: u32) -> u32 {
    _mm_cvtsi128_si32(_mm_aeskeygenassist_si128::<0>(_mm_set1_epi32(word as i32))) as u32
}

/// One block through AES.
///
/// # Safety
/// The processor must have AES-NI.
#[inline]
#[target_feature(enable = "aes")]
unsafe fn encrypt(schedule: &Schedule, block: __m128i) -> __m128i {
    // SAFETY: round keys are aligned blocks, and `rounds` is 10 or 14.
    unsafe {
        let key = |r: usize| _mm_load_si128(schedule.round_keys[r..].as_ptr().cast());
        let mut state = _mm_xor_si128(block, key(0));
        for r in 1..schedule.rounds {
            state = _mm_aesenc_si128(state, key(r));
        }
        _mm_aesenclast_si128(state, key(schedule.rounds))
    }
}

/// The polynomial over x: reflected, that is a shift left, and the bit that falls out is x^0/x =
/// x^127 + x^6 + x + 1. No branch.
#[inline]
#[target_feature(enable = "sse2")]
fn over_x(h: __m128i) -> __m128i {
    let carry_between = _mm_slli_si128::<8>(_mm_srli_epi64::<63>(h));
    let shifted = _mm_or_si128(_mm_slli_epi64::<1>(h), carry_between);
    // All ones where the bit that falls out (the sign of the upper word) is set.
    let falls_out = _mm_srai_epi32::<31>(_mm_shuffle_epi32::<0xff>(h));
    let polynomial = _mm_set_epi64x(0xc200_0000_0000_0000_u64 as i64, 1);
    _mm_xor_si128(shifted, _mm_and_si128(falls_out, polynomial))
}
