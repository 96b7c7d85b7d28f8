//! Short messages and the end of long ones on registers of one block: up to 128 bytes, in
//! registers.
//!
//! There is code for each number of blocks: J0 and the data are encrypted together, each block is
//! loaded, stored and hashed by itself, and what is not a whole block is put together from pieces
//! in a register. Private memory holds the mask of the tag, and no data. Products that need no
//! ciphertext of these blocks, those of additional data, of lengths and of the step before, stand
//! between the rounds of AES, each in a round of its own: left to the compiler, they came behind
//! all rounds, and what it had loaded for them too early went to the stack and back.

use super::bulk::NUMBERS;
use super::ghash::{self, Sum};
use super::lanes::Lanes;
use super::message::{Data, Message};
use super::once;
use crate::schedule::Block;
use core::arch::x86_64::*;

/// The beginning of what is worked on.
#[derive(Clone, Copy)]
pub(super) enum Start {
    /// That of a message: the last block of additional data, plus the state before it.
    Message(__m128i),
    /// Later.
    Later {
        /// That of the first block: a multiple of 8.
        counter: u32,
        /// The encryption of J0.
        tag_mask: __m128i,
        /// The state of the hash.
        state: __m128i,
        /// Eight blocks before the data that are still to be hashed.
        left: Option<*const Block>,
    },
}

/// The longest message that is worked on at once, in bytes.
pub(super) const SHORT_MAX: usize = 128;

/// Seals or opens up to [`SHORT_MAX`] bytes and returns the tag.
///
/// # Safety
/// The processor must have what `V` needs, registers of one block; the data must be readable at its
/// source and writable at its destination, which either are the same or do not overlap.
#[inline(always)]
pub(super) unsafe fn finish<V: Lanes, const ROUNDS: usize, const SEAL: bool>(
    message: Message<'_>,
    start: Start,
    data: Data,
) -> __m128i {
    const { assert!(V::COUNT == 1) };
    // SAFETY: each case is that of ⌈len/16⌉ blocks.
    unsafe {
        macro_rules! run {
            ($blocks:literal) => {
                run::<V, ROUNDS, SEAL, $blocks>(message, start, data)
            };
        }
        match data.len.div_ceil(16) {
            0 => run!(0),
            1 => run!(1),
            2 => run!(2),
            3 => run!(3),
            4 => run!(4),
            5 => run!(5),
            6 => run!(6),
            7 => run!(7),
            _ => run!(8),
        }
    }
}

/// Blocks of a step that are still to be hashed.
const LEFT: usize = 8;

/// Bytes of ones, 16 of them, and then of zeros: from its byte number n on, a mask for the first
/// 16 - n bytes of a block.
static EXIST: [Block; 2] = [Block([0xff; 16]), Block::ZERO];

/// # Safety
/// As for [`finish`], of ⌈len/16⌉ = `N` blocks.
#[inline(always)]
unsafe fn run<V: Lanes, const ROUNDS: usize, const SEAL: bool, const N: usize>(
    message: Message<'_>,
    start: Start,
    data: Data,
) -> __m128i {
    let Message {
        schedule,
        nonce,
        lengths,
        ..
    } = message;
    let Data { src, dst, len } = data;
    // SAFETY: private accesses are within the schedule and constants; shared ones within `len`
    // bytes, of which all blocks but the last are whole.
    unsafe {
        let reversal = V::splat(ghash::byte_reversal());
        let keys = once::fresh(schedule.round_keys.as_ptr());
        let powers = once::fresh(schedule.powers_from(N + 2));
        let powers_left = once::fresh(schedule.powers_from(LEFT + N + 1));

        let (counter, first, mut carried, left) = match start {
            Start::Message(_) => (0, 1, V::zero(), None),
            Start::Later {
                counter,
                state,
                left,
                ..
            } => (counter, 0, V::splat(state), left),
        };
        let lengths = V::splat(lengths);
        let lengths = if N == 0 {
            lengths.xor(carried)
        } else {
            lengths
        };
        // In memory until it is hashed, where all registers are in use before: the state of nine
        // blocks in the cipher, the sum and a product. Otherwise one of the states would go there.
        let mut lengths_block = Block::ZERO;
        let crowded = first + N == 9;
        if crowded {
            V::store_private(&mut lengths_block, lengths);
        }
        let mut sum = Sum::zero();

        let base = V::splat(nonce)
            .with_last_words(counter.swap_bytes())
            .xor(V::splat_from(keys));
        let blocks = first + N;
        let mut state = [V::zero(); 9];
        for i in 0..blocks {
            state[i] = base.xor(V::load_private(NUMBERS.as_ptr().add(first + i)));
        }
        macro_rules! rounds {
            ($($r:literal)*) => {$(
                if $r < ROUNDS {
                    let key = V::splat_from(keys.add($r));
                    for i in 0..blocks {
                        state[i] = state[i].aes(key);
                    }
                    if let Start::Message(additional) = start {
                        if $r == 1 {
                            V::add_product::<0>(&mut sum, V::splat(additional), powers);
                        }
                        if $r == 2 {
                            let lengths = if crowded {
                                V::load_private(once::fresh(&raw const lengths_block))
                            } else {
                                lengths
                            };
                            V::add_product::<0>(&mut sum, lengths, powers.add(N + 1));
                        }
                    } else if $r == LEFT + 1 {
                        V::add_product::<0>(&mut sum, lengths, powers.add(N + 1));
                    }
                    if let Some(left) = left.filter(|_| $r <= LEFT) {
                        // The first last: the hash of the steps before it has just been added.
                        const I: usize = $r % LEFT;
                        let x = V::load_private(once::fresh(left).add(I));
                        V::add_product::<I>(&mut sum, x, powers_left);
                    }
                    // Keeps each product in its round.
                    if blocks > 0 && $r <= LEFT {
                        state[0] = V::splat(once::in_order(state[0].first_lane()));
                    }
                }
            )*};
        }
        rounds!(1 2 3 4 5 6 7 8 9 10 11 12 13);
        let last_key = V::splat_from(keys.add(ROUNDS));

        let mut tag_mask = Block::ZERO;
        let mask = match start {
            Start::Message(_) => state[0].aes_last(last_key).first_lane(),
            Start::Later { tag_mask, .. } => tag_mask,
        };
        once::put(&mut tag_mask, mask, V::VEX);

        // The last block may be a part of one.
        let done = 16 * N.saturating_sub(1);
        let part = len - done;
        let (src_last, dst_last) = (src.add(done), dst.add(done));
        let load_last = || {
            if part == 16 {
                V::load_once::<0>(src_last)
            } else {
                V::load_part_once(src_last, part)
            }
        };
        // A message of up to 64 bytes is loaded before any of it is stored: its source and
        // destination may overlap in part (`key::check_overlap`).
        let mut ahead = [V::zero(); 4];
        let is_ahead = N <= ahead.len() && first > 0;
        if is_ahead && N > 0 {
            macro_rules! load {
                ($($i:literal)*) => {$(
                    if $i + 1 < N {
                        ahead[$i] = V::load_once::<$i>(src);
                    }
                )*};
            }
            load!(0 1 2);
            ahead[N - 1] = load_last();
        }
        macro_rules! whole_blocks {
            ($($i:literal)*) => {$(
                if $i + 1 < N {
                    let input = if is_ahead { ahead[$i % 4] } else { V::load_once::<$i>(src) };
                    let output = state[first + $i].aes_last(last_key.xor(input));
                    V::store_once::<$i>(dst, output);
                    let x = if SEAL { output } else { input }.permute(reversal);
                    V::add_product::<{ $i + 1 }>(&mut sum, x.xor(carried), powers);
                    carried = V::zero();
                }
            )*};
        }
        whole_blocks!(0 1 2 3 4 5 6);
        if N > 0 {
            let input = if is_ahead {
                ahead[(N - 1) % 4]
            } else {
                load_last()
            };
            let output = state[first + N - 1].aes_last(last_key.xor(input));
            let mut x = if SEAL { output } else { input };
            if part == 16 {
                V::store_once::<0>(dst_last, output);
            } else {
                V::store_part_once(dst_last, part, output);
                if SEAL {
                    // Keystream in place of bytes that do not exist is not hashed.
                    let exist = EXIST.as_ptr().byte_add(16 - part);
                    x = output.and(V::load_private(exist));
                }
            }
            let x = x.permute(reversal).xor(carried);
            V::add_product::<N>(&mut sum, x, powers);
        }
        let hash = sum.reduce().first_lane();
        _mm_xor_si128(
            _mm_shuffle_epi8(hash, ghash::byte_reversal()),
            once::take(&mut tag_mask, V::VEX),
        )
    }
}
