//! The parts of a message that its steps and its end share: counters, additional data, lengths.

use super::ghash::{reversed, Sum};
use super::once::{fresh, from_words, private};
use crate::columns::words;
use crate::schedule::{power_max, Schedule};
use core::arch::aarch64::*;

/// The bytes to be worked on.
#[derive(Clone, Copy)]
pub(super) struct Data {
    pub(super) src: *const u8,
    pub(super) dst: *mut u8,
    pub(super) len: usize,
}

/// The nonce and the counter of the next block, as words in the order of the processor.
#[derive(Clone, Copy)]
pub(super) struct Counter(uint32x4_t);

impl Counter {
    #[inline(always)]
    pub(super) fn new(nonce: &[u8; 12], counter: u32) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = *nonce;
        let nonce = [[a, b, c, d], [e, f, g, h], [i, j, k, l]].map(u32::from_be_bytes);
        // SAFETY: both are 16 bytes of plain data.
        Self(unsafe {
            core::mem::transmute::<[u32; 4], uint32x4_t>([nonce[0], nonce[1], nonce[2], counter])
        })
    }

    /// The block of J0, of the same nonce.
    #[inline(always)]
    pub(super) unsafe fn j0(self) -> uint8x16_t {
        // SAFETY: NEON, as everywhere here.
        unsafe { vrev32q_u8(vreinterpretq_u8_u32(vsetq_lane_u32::<3>(1, self.0))) }
    }

    /// The next block. After the longest message the counter would be 2^32, and is not used.
    #[inline(always)]
    pub(super) unsafe fn next(&mut self) -> uint8x16_t {
        // SAFETY: as above; the addition wraps.
        unsafe {
            let block = vrev32q_u8(vreinterpretq_u8_u32(self.0));
            let one = vreinterpretq_u32_u8(from_words(0, 1 << 32));
            self.0 = vaddq_u32(self.0, one);
            block
        }
    }
}

/// Hashes all additional data but for the multiplication that follows its last block, up to
/// [`power_max`] blocks before a reduction. Returns the state, byte-reversed.
///
/// # Safety
/// The processor must have AES and PMULL, and the schedule been filled for them.
#[inline]
#[target_feature(enable = "neon,aes")]
pub(super) unsafe fn hash_additional(schedule: &Schedule, aad: &[u8]) -> uint8x16_t {
    let (blocks, last) = aad.split_at(aad.len().saturating_sub(1) / 16 * 16);
    let zero = from_words(0, 0);
    let mut state = zero;
    // SAFETY: under the caller's contract; loads are within `blocks` and the powers.
    unsafe {
        for blocks in blocks.chunks(16 * power_max(1)) {
            let powers = fresh(schedule.powers_from(blocks.len() / 16));
            let mut sum = Sum::zero();
            for (i, block) in blocks.chunks_exact(16).enumerate() {
                let x = reversed(vld1q_u8(block.as_ptr()));
                sum.add(veorq_u8(x, state), private(powers, i));
                state = zero;
            }
            state = sum.reduced();
        }
        let [low, high] = words(last);
        veorq_u8(state, from_words(high.swap_bytes(), low.swap_bytes()))
    }
}

/// Returns the block of lengths in bits, byte-reversed.
#[inline(always)]
pub(super) fn length_block(aad_len: usize, data_len: u64) -> uint8x16_t {
    from_words(data_len << 3, (aad_len as u64) << 3)
}
