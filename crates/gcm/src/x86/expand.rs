//! From a key to its schedule: AES round keys and powers of the hash key.

use super::ghash;
use super::lanes::{Lanes, Single};
use crate::schedule::{power_max, Block, Schedule, POWER_MAX, STRIDES};
use core::arch::x86_64::*;

/// Fills a schedule from a key of 16 or 32 bytes.
///
/// # Safety
/// As for [`Lanes`]; the processor must have AES-NI, PCLMULQDQ and SSSE3.
#[inline(always)]
pub(super) unsafe fn fill<V: Lanes>(schedule: &mut Schedule, key: &[u8]) {
    const { assert!(V::COUNT * V::COUNT <= power_max(V::COUNT)) };
    // SAFETY: the caller's contract; all addresses are within the schedule.
    unsafe {
        expand(schedule, key);
        let h = hash_key(schedule);
        let end = schedule.powers.as_mut_ptr().add(POWER_MAX);
        _mm_store_si128(end.sub(1).cast(), h);
        for k in 2..=V::COUNT {
            fill_power::<Single<false>>(end, k);
        }
        fill_powers::<V>(end, power_max(V::COUNT));
        if V::COUNT > 1 {
            let strides = schedule.strides.as_mut_ptr().add(STRIDES);
            for k in 1..=V::COUNT {
                *strides.sub(k) = *end.sub(k * V::COUNT);
            }
            fill_powers::<V>(strides, STRIDES);
        }
    }
}

/// Stores the first `count` powers of a block below `end`, the first of them right before it. As
/// many of them as a register has blocks are there.
///
/// # Safety
/// As for [`fill`], for `count` blocks.
#[inline(always)]
unsafe fn fill_powers<V: Lanes>(end: *mut Block, count: usize) {
    debug_assert!(count.is_multiple_of(V::COUNT));
    for k in (2 * V::COUNT..=count).step_by(V::COUNT) {
        // SAFETY: the caller's contract.
        unsafe { fill_power::<V>(end, k) }
    }
}

/// Stores the register of powers that begins with the `k`-th. Each is a product of two of about
/// half its exponent, which waits for few others.
///
/// # Safety
/// As for [`fill`], for `k` blocks below `end`.
#[inline(always)]
unsafe fn fill_power<V: Lanes>(end: *mut Block, k: usize) {
    let half = k / 2 / V::COUNT * V::COUNT;
    // SAFETY: the caller's contract.
    unsafe {
        let rest = V::load_private(end.sub(k - half));
        let product = ghash::multiply(rest, V::splat_from(end.sub(half)));
        V::store_private(end.sub(k), product);
    }
}

/// The key expansion of FIPS 197, section 5.2, four words at a time.
///
/// # Safety
/// The processor must have AES-NI and SSSE3; `key` has 16 or 32 bytes.
#[inline]
#[target_feature(enable = "aes,ssse3")]
unsafe fn expand(schedule: &mut Schedule, key: &[u8]) {
    let blocks = key.len() / 16;
    schedule.rounds = 4 * blocks + 6;
    for (block, bytes) in schedule.round_keys.iter_mut().zip(key.chunks_exact(16)) {
        block.0.copy_from_slice(bytes);
    }
    let (keys, rounds) = (schedule.round_keys.as_mut_ptr(), schedule.rounds);
    // The S-box of each byte of the last word, in all four words: the shift of the rows of equal
    // columns changes nothing. (A table would leak the key through the cache.)
    let last = _mm_set1_epi32(0x0f0e_0d0c);
    let last_rotated = _mm_set1_epi32(0x0c0f_0e0d);
    let mut round_constant = 1u32;
    // SAFETY: there are `rounds` + 1 round keys, and `blocks` of them were stored.
    unsafe {
        let mut before = _mm_load_si128(keys.add(blocks - 1).cast());
        for n in blocks..=rounds {
            let substituted = if n.is_multiple_of(blocks) {
                let constant = _mm_set1_epi32(round_constant as i32);
                // Doubling in GF(2^8); the constants are public.
                round_constant =
                    (round_constant << 1) ^ if round_constant & 0x80 != 0 { 0x11b } else { 0 };
                _mm_aesenclast_si128(_mm_shuffle_epi8(before, last_rotated), constant)
            } else {
                _mm_aesenclast_si128(_mm_shuffle_epi8(before, last), _mm_setzero_si128())
            };
            // Each word is the sum of those up to it.
            let words: __m128i = _mm_load_si128(keys.add(n - blocks).cast());
            let words = _mm_xor_si128(words, _mm_slli_si128::<4>(words));
            let words = _mm_xor_si128(words, _mm_slli_si128::<8>(words));
            before = _mm_xor_si128(words, substituted);
            _mm_store_si128(keys.add(n).cast(), before);
        }
    }
}

/// H/x.
///
/// # Safety
/// The processor must have AES-NI and SSSE3.
#[inline]
#[target_feature(enable = "aes,ssse3")]
unsafe fn hash_key(schedule: &Schedule) -> __m128i {
    // SAFETY: the features are enabled on this function.
    let h = unsafe {
        let h = encrypt(schedule, _mm_setzero_si128());
        _mm_shuffle_epi8(h, ghash::byte_reversal())
    };
    over_x(h)
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
