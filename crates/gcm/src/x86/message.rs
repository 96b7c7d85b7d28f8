//! A message as the kernels see it: in registers, byte-reversed if it is hashed.

use super::ghash::{self, Sum};
use super::lanes::{Lanes, Single};
use crate::columns::words;
use crate::kernel::AAD_SERIAL_MAX;
use crate::schedule::{Block, Schedule, POWER_MAX};
use core::arch::x86_64::*;

/// The values that all parts of a message share.
#[derive(Clone, Copy)]
pub(super) struct Message<'k> {
    pub(super) schedule: &'k Schedule,
    /// The nonce with a zero counter.
    pub(super) nonce: __m128i,
    /// The block of lengths, byte-reversed.
    pub(super) lengths: __m128i,
}

/// The bytes to be worked on.
#[derive(Clone, Copy)]
pub(super) struct Data {
    pub(super) src: *const u8,
    pub(super) dst: *mut u8,
    pub(super) len: usize,
}

/// The values that the beginning of a message computes for its end.
#[derive(Clone, Copy)]
pub(super) struct Begun<V> {
    /// The encryption of J0.
    pub(super) tag_mask: __m128i,
    /// The GHASH state, byte-reversed.
    pub(super) state: __m128i,
    /// On registers of two blocks what is added to the hash of the end, whose blocks it allows for.
    pub(super) sum: Sum<V>,
    /// On registers of one block the last step, which is still to be hashed.
    pub(super) left: Option<*const Block>,
}

/// Loads a nonce, with a zero counter.
#[inline(always)]
pub(super) unsafe fn load_nonce(nonce: &[u8; 12]) -> __m128i {
    // SAFETY: both parts are within the 12 bytes.
    unsafe {
        let low = _mm_loadl_epi64(nonce.as_ptr().cast());
        let high = nonce.as_ptr().add(8).cast::<i32>().read_unaligned();
        _mm_insert_epi32::<2>(low, high)
    }
}

/// Loads up to 16 bytes of private memory, zero-padded and byte-reversed.
///
/// A masked load would be shorter, but it would wait for stores in flight to the bytes that its
/// mask leaves out: headers and tags are often stored next to additional data just before.
#[inline(always)]
unsafe fn load_partial(bytes: &[u8]) -> __m128i {
    let [low, high] = words(bytes);
    // Reversed, the first byte is the highest.
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_set_epi64x(low.swap_bytes() as i64, high.swap_bytes() as i64) }
}

/// Hashes all additional data but for the multiplication that follows its last block.
#[inline(always)]
pub(super) unsafe fn hash_additional<V: Lanes>(schedule: &Schedule, aad: &[u8]) -> __m128i {
    // SAFETY: under the contract of Lanes.
    unsafe {
        if aad.len() <= AAD_SERIAL_MAX {
            return hash_serial(schedule, aad);
        }
        core::hint::cold_path();
        let (blocks, last) = aad.split_at((aad.len() - 1) / 16 * 16);
        _mm_xor_si128(hash_together::<V>(schedule, blocks), load_partial(last))
    }
}

/// [`hash_additional`] one block after the other: little code, and right for any length.
#[inline(always)]
pub(super) unsafe fn hash_serial(schedule: &Schedule, mut aad: &[u8]) -> __m128i {
    // SAFETY: under the contract of Lanes; blocks are within `aad`.
    unsafe {
        let mut state = _mm_setzero_si128();
        if aad.len() > 16 {
            let h = Single::<false>::load_private(schedule.powers_from(1));
            while aad.len() > 16 {
                let (block, rest) = aad.split_at(16);
                let block = load_reversed(block.as_ptr());
                state = ghash::multiply(Single::<false>(_mm_xor_si128(state, block)), h).0;
                aad = rest;
            }
        }
        _mm_xor_si128(state, load_partial(aad))
    }
}

/// Hashes whole blocks, up to [`POWER_MAX`] of them before a reduction.
///
/// Two loops rather than unrolled registers, for this is a part of many kernels.
#[inline(always)]
unsafe fn hash_together<V: Lanes>(schedule: &Schedule, blocks: &[u8]) -> __m128i {
    // SAFETY: under the contract of Lanes; loads are within `blocks` and the schedule, where round
    // keys follow the powers. Those are multiplied by zero.
    unsafe {
        let reversal = V::splat(ghash::byte_reversal());
        let mut state = _mm_setzero_si128();
        for blocks in blocks.chunks(16 * POWER_MAX) {
            let mut powers = schedule.powers_from(blocks.len() / 16);
            let mut sum = Sum::zero();
            let mut carried = V::in_first_lane(state);
            let mut registers = blocks.chunks_exact(16 * V::COUNT);
            for register in &mut registers {
                let x = V::load_private(register.as_ptr().cast()).permute(reversal);
                sum.add(x.xor(carried), V::load_private(powers));
                carried = V::zero();
                powers = powers.add(V::COUNT);
            }
            for block in registers.remainder().chunks_exact(16) {
                let x = V::in_first_lane(load_reversed(block.as_ptr()));
                sum.add(x.xor(carried), V::load_private(powers));
                carried = V::zero();
                powers = powers.add(1);
            }
            state = sum.reduce().sum_of_lanes();
        }
        state
    }
}

/// Loads a block of private memory, byte-reversed.
#[inline(always)]
unsafe fn load_reversed(block: *const u8) -> __m128i {
    // SAFETY: under the contract of Lanes; the caller's 16 bytes.
    unsafe { _mm_shuffle_epi8(_mm_loadu_si128(block.cast()), ghash::byte_reversal()) }
}

/// Returns the block of lengths in bits, byte-reversed.
#[inline(always)]
pub(super) unsafe fn length_block(aad_len: usize, data_len: u64) -> __m128i {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_set_epi64x((aad_len as i64) << 3, (data_len as i64) << 3) }
}

/// Returns the bytes of a register as a number.
#[inline(always)]
pub(super) unsafe fn to_u128(v: __m128i) -> u128 {
    // SAFETY: both are 16 bytes of plain data.
    unsafe { core::mem::transmute(v) }
}
