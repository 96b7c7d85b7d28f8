//! The end of a message on 512-bit registers, which for up to 255 bytes is all of it.
//!
//! One pass holds everything in place: the lane of the first register in which GHASH wants the additional data
//! is the lane in which counter mode has the block for the tag (J0), and the block of lengths follows the
//! last block of data. So AES runs once over [J0, C1, C2, …], and one sum of products, reduced once, covers
//! additional data, ciphertext and lengths. Data therefore sits 16 bytes further up than in memory; masks
//! keep every access to the bytes that exist, each once.

use super::bulk::counter_order;
use super::ghash::{self, Sum};
use super::lanes::{Lanes, Quad};
use super::once;
use super::schedule::Schedule;
use core::arch::x86_64::*;

/// What the hash holds before the end of a message.
#[derive(Clone, Copy)]
pub(super) enum Before {
    /// No ciphertext yet: the last block of additional data, plus the state before it.
    Additional(__m128i),
    /// The state after all ciphertext so far.
    State(__m128i),
}

/// Seals or opens the last `len` ≤ 255 bytes and returns the tag.
///
/// `nonce` has a zero counter; `first` is the counter of the first block; `lengths` is the block of lengths,
/// byte-reversed.
///
/// # Safety
/// The processor must have the 512-bit path's instructions; `len` bytes must be readable at `src` and
/// writable at `dst`, which either are the same or do not overlap.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn finish<const ROUNDS: usize, const SEAL: bool>(
    schedule: &Schedule,
    nonce: __m128i,
    first: u32,
    before: Before,
    lengths: __m128i,
    src: *const u8,
    dst: *mut u8,
    len: usize,
) -> __m128i {
    // SAFETY: the number of registers passed is ⌈(len + 16) / 64⌉, as `run` demands.
    unsafe {
        macro_rules! run {
            ($registers:literal) => {
                run::<ROUNDS, SEAL, $registers>(schedule, nonce, first, before, lengths, src, dst, len)
            };
        }
        match (len + 16).div_ceil(64) {
            0 | 1 => run!(1),
            2 => run!(2),
            3 => run!(3),
            4 => run!(4),
            _ => run!(5),
        }
    }
}

/// # Safety
/// As for `finish`; `R` must be ⌈(len + 16) / 64⌉.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn run<const ROUNDS: usize, const SEAL: bool, const R: usize>(
    schedule: &Schedule,
    nonce: __m128i,
    first: u32,
    before: Before,
    lengths: __m128i,
    src: *const u8,
    dst: *mut u8,
    len: usize,
) -> __m128i {
    // SAFETY: masks limit all accesses to the `len` bytes; register i starts 16 bytes before byte 64·i,
    // an address that is computed without claiming that it exists.
    unsafe {
        let reversal = Quad::splat(ghash::byte_reversal());
        let keys = schedule.round_keys.as_ptr();

        // Counters: 1 (J0) in the first lane, then `first`, `first` + 1, …
        let lanes = _mm512_add_epi32(
            _mm512_maskz_set1_epi32(0x8880, first.wrapping_sub(2) as i32),
            Quad::lane_numbers().0,
        );
        let base = Quad(_mm512_add_epi32(Quad::splat(nonce).0, lanes));
        let order = Quad::splat(counter_order());
        let first_key = Quad::splat_from(keys);
        let mut state = [Quad::zero(); R];
        for (i, s) in state.iter_mut().enumerate() {
            let mut counter = base;
            if i > 0 {
                // Lane 0 of later registers holds data, so it too counts from `first`.
                let to_first = _mm_set_epi32(first.wrapping_sub(2) as i32, 0, 0, 0);
                counter = Quad(_mm512_add_epi32(
                    _mm512_add_epi32(base.0, _mm512_zextsi128_si512(to_first)),
                    Quad::splat(_mm_set_epi32(4 * i as i32, 0, 0, 0)).0,
                ));
            }
            *s = counter.permute(order).xor(first_key);
        }

        // Bytes present in the first and in the last register.
        let ends = len + 16 - 64 * (R - 1);
        let in_last = _bzhi_u64(u64::MAX, ends as u32) & if R == 1 { !0xffff } else { u64::MAX };
        let mask = |i: usize| match i {
            _ if i == R - 1 => in_last,
            0 => !0xffff,
            _ => u64::MAX,
        };
        let mut input = [Quad::zero(); R];
        for (i, x) in input.iter_mut().enumerate() {
            let p = src.wrapping_add(64 * i).wrapping_sub(16);
            x.0 = if i == 0 || i == R - 1 { once::load_512_masked(p, mask(i)) } else { once::load_512::<0>(p) };
        }

        macro_rules! rounds {
            ($($r:literal)*) => {$(
                if $r < ROUNDS {
                    let key = Quad::splat_from(keys.add($r));
                    for s in &mut state {
                        *s = s.aes(key);
                    }
                }
            )*};
        }
        rounds!(1 2 3 4 5 6 7 8 9 10 11 12 13);
        let last_key = Quad::splat_from(keys.add(ROUNDS));
        let mut output = [Quad::zero(); R];
        for i in 0..R {
            output[i] = state[i].aes_last(last_key.xor(input[i]));
        }
        for (i, o) in output.iter().enumerate() {
            let p = dst.wrapping_add(64 * i).wrapping_sub(16);
            if i == 0 || i == R - 1 {
                once::store_512_masked(p, o.0, mask(i));
            } else {
                once::store_512::<0>(p, o.0);
            }
        }
        // Nothing was loaded into lane 0 of the first register, so this is the encryption of J0.
        let tag_mask = output[0].first_lane();

        let hashed = if SEAL { output } else { input };
        let mut blocks = [Quad::zero(); R];
        for i in 0..R {
            let mut block = hashed[i];
            // What counter mode made of bytes that do not exist is not hashed; loads left zeros there.
            if SEAL && (i == 0 || i == R - 1) {
                block.0 = _mm512_maskz_mov_epi8(mask(i), block.0);
            }
            blocks[i] = block.permute(reversal);
        }
        let data_blocks = len.div_ceil(16);
        let lane = (data_blocks + 1) % 4;
        let mut sum = Sum::zero();
        if lane == 0 {
            // The data fills the last register: the lengths take the first lane of one more.
            sum = Sum::of(Quad::in_first_lane(lengths), Quad::load_private(schedule.powers_from(1)));
        } else {
            let last = &mut blocks[R - 1].0;
            *last = _mm512_mask_broadcast_i32x4(*last, 0xf << (4 * lane), lengths);
        }
        blocks[0].0 = match before {
            Before::Additional(b) => _mm512_xor_si512(blocks[0].0, _mm512_zextsi128_si512(b)),
            Before::State(b) => _mm512_xor_si512(blocks[0].0, _mm512_maskz_broadcast_i32x4(0xf0, b)),
        };
        let powers = schedule.powers_from(data_blocks + 2);
        for (i, b) in blocks.iter().enumerate() {
            sum.add(*b, Quad::load_private(powers.add(4 * i)));
        }
        let hash = sum.reduce().sum_of_lanes();
        _mm_xor_si128(_mm_shuffle_epi8(hash, ghash::byte_reversal()), tag_mask)
    }
}
