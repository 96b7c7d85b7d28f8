//! A message as the kernels see it: in registers, byte-reversed if it is hashed.

use super::bulk::Last;
use super::ghash::{self, Sum};
use super::lanes::{Lanes, Pair, Quad, Single};
use super::once;
use crate::columns::{words, Unaligned};
use crate::kernel::{AAD_SERIAL_MAX, AAD_SHORT_MAX};
use crate::schedule::{power_max, Block, Schedule};
use crate::Nonce;
use core::arch::x86_64::*;

/// The values that all parts of a message share.
#[derive(Clone, Copy)]
pub(super) struct Message<'k> {
    pub(super) schedule: &'k Schedule,
    /// The nonce with a zero counter.
    pub(super) nonce: __m128i,
    /// The same in memory.
    pub(super) nonce_at: &'k Nonce,
    /// The block of lengths, byte-reversed.
    pub(super) lengths: __m128i,
    /// The length of the data in bytes, and of the additional data.
    pub(super) data_len: u64,
    pub(super) aad_len: usize,
}

impl<'k> Message<'k> {
    /// A message of `data_len` bytes with `aad_len` bytes of additional data.
    #[inline(always)]
    pub(super) unsafe fn new(
        schedule: &'k Schedule,
        nonce: &'k Nonce,
        aad_len: usize,
        data_len: u64,
    ) -> Self {
        // SAFETY: SSE2 is part of x86-64.
        unsafe {
            Self {
                schedule,
                nonce: load_nonce(nonce),
                nonce_at: nonce,
                lengths: _mm_set_epi64x((aad_len as i64) << 3, (data_len as i64) << 3),
                data_len,
                aad_len,
            }
        }
    }

    /// The words of the block of lengths, byte-reversed.
    #[inline(always)]
    pub(super) fn bits(&self) -> [u64; 2] {
        [self.data_len << 3, (self.aad_len as u64) << 3]
    }
}

/// Additional data, and what of it is hashed.
#[derive(Clone, Copy)]
pub(super) enum Additional<'a> {
    /// Up to [`AAD_SHORT_MAX`] bytes.
    Short(&'a [u8]),
    /// Any number of bytes.
    Any(&'a [u8]),
    /// The last block with the state before it, byte-reversed.
    Hashed(__m128i),
}

impl Additional<'_> {
    /// The last block with the state before it, byte-reversed.
    #[inline(always)]
    pub(super) unsafe fn block<V: Lanes>(self, schedule: &Schedule) -> __m128i {
        // SAFETY: under the contract of Lanes.
        unsafe {
            match self {
                Self::Short(aad) => load_partial(aad),
                Self::Any(aad) => hash_additional::<V>(schedule, aad),
                Self::Hashed(block) => block,
            }
        }
    }

    /// The same, and the block of lengths after it, byte-reversed both.
    ///
    /// The usual 12 bytes go from memory to their lane, both lengths from one register for
    /// integers, and one shuffle reverses and spreads them.
    #[inline(always)]
    pub(super) unsafe fn ends(self, message: Message<'_>) -> __m256i {
        // SAFETY: under the contract of Lanes; `aad` has the bytes that are loaded.
        unsafe {
            let aad = match self {
                Self::Short(aad) => aad,
                _ => {
                    let block = self.block::<Quad>(message.schedule);
                    return _mm256_set_m128i(message.lengths, block);
                }
            };
            let block = load_short(aad);
            let lengths = once::two_times_eight(message.data_len, aad.len());
            let both = _mm256_blend_epi32::<0xf0>(
                _mm256_zextsi128_si256(block),
                _mm256_set1_epi64x(lengths as i64),
            );
            _mm256_shuffle_epi8(both, Pair::load_private(ENDS_ORDER.as_ptr()).0)
        }
    }
}

/// Reverses the bytes of the first block, and of the second spreads the first two words of four
/// bytes.
static ENDS_ORDER: [Block; 2] = {
    let mut order = [Block::ZERO; 2];
    let mut i = 0;
    while i < 16 {
        order[0].0[i] = 15 - i as u8;
        order[1].0[i] = match i {
            0..4 => i as u8,
            8..12 => i as u8 - 4,
            _ => 0x80,
        };
        i += 1;
    }
    order
};

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
    /// On registers of two blocks what is added to the hash of the end, whose blocks it allows for;
    /// on those of four the sum that the last step belongs to.
    pub(super) sum: Sum<V>,
    /// On registers of four blocks the last step, unless `state` covers it.
    pub(super) last: Option<Last<V>>,
    /// On registers of four blocks the block of lengths, byte-reversed. In memory: a register that
    /// is held over the steps costs one of theirs.
    pub(super) lengths: *const Block,
    /// On registers of one block the last step, which is still to be hashed.
    pub(super) left: Option<*const Block>,
}

/// A word, and a zero after it. Not by an intrinsic that loads: it is a call in some debug builds.
#[inline(always)]
fn first_word(word: u64) -> __m128i {
    // SAFETY: both are 16 bytes of plain data.
    unsafe { core::mem::transmute([word, 0]) }
}

/// Loads a nonce, with a zero counter.
#[inline(always)]
pub(super) unsafe fn load_nonce(nonce: &Nonce) -> __m128i {
    let words = nonce.words().as_ptr();
    // SAFETY: 8 bytes and 4 of the 16. The words may just have been stored, so each has a load of
    // its own.
    unsafe { _mm_insert_epi32::<2>(first_word(*words), *words.add(1).cast::<i32>()) }
}

/// Loads up to 16 bytes of private memory, zero-padded.
///
/// A masked load would be shorter, but it would wait for stores in flight to the bytes that its
/// mask leaves out: headers and tags are often stored next to additional data just before.
#[inline(always)]
unsafe fn load_short(bytes: &[u8]) -> __m128i {
    // SAFETY: SSE4.1 is part of every path; loads are within the slice.
    unsafe {
        if bytes.len() == 12 {
            // ESP with extended sequence numbers, and TLS.
            let low = (*bytes.as_ptr().cast::<Unaligned<u64>>()).0;
            let high = (*bytes.as_ptr().add(8).cast::<Unaligned<i32>>()).0;
            return _mm_insert_epi32::<2>(first_word(low), high);
        }
        let [low, high] = words(bytes);
        _mm_set_epi64x(high as i64, low as i64)
    }
}

/// [`load_short`], byte-reversed.
#[inline(always)]
unsafe fn load_partial(bytes: &[u8]) -> __m128i {
    // SAFETY: SSSE3 is part of every path.
    unsafe { _mm_shuffle_epi8(load_short(bytes), ghash::byte_reversal()) }
}

/// Hashes all additional data but for the multiplication that follows its last block.
#[inline(always)]
pub(super) unsafe fn hash_additional<V: Lanes>(schedule: &Schedule, aad: &[u8]) -> __m128i {
    // SAFETY: under the contract of Lanes.
    unsafe {
        if aad.len() <= AAD_SHORT_MAX {
            return load_partial(aad);
        }
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
unsafe fn hash_serial(schedule: &Schedule, mut aad: &[u8]) -> __m128i {
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

/// Hashes whole blocks, up to [`power_max`] of them before a reduction.
///
/// Two loops rather than unrolled registers, for this is a part of many kernels.
#[inline(always)]
unsafe fn hash_together<V: Lanes>(schedule: &Schedule, blocks: &[u8]) -> __m128i {
    // SAFETY: under the contract of Lanes; loads are within `blocks` and the schedule, where round
    // keys follow the powers. Those are multiplied by zero.
    unsafe {
        let reversal = V::splat(ghash::byte_reversal());
        let mut state = _mm_setzero_si128();
        for blocks in blocks.chunks(16 * power_max(V::COUNT)) {
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

/// Returns the bytes of a register as a number.
#[inline(always)]
pub(super) unsafe fn to_u128(v: __m128i) -> u128 {
    // SAFETY: both are 16 bytes of plain data.
    unsafe { core::mem::transmute(v) }
}
