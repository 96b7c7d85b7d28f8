//! Short messages, of up to 256 bytes, and the end of long ones, up to 128, on registers of two
//! blocks: in registers.
//!
//! There is code for each number of blocks. The data stays in the lanes in which it is loaded: J0
//! is encrypted in the lane that an odd number of blocks leaves, or else in a register of its own,
//! and additional data and lengths share a register of the hash, whose product needs no ciphertext.
//! What is not a whole block is put together from pieces in a register. No data goes through
//! private memory.

use super::bulk::NUMBERS;
use super::ghash::{self, Sum};
use super::lanes::{Lanes, Pair};
use super::message::{Data, Message};
use super::once;
use crate::schedule::Block;
use core::arch::asm;
use core::arch::x86_64::*;

/// The longest message that is worked on at once, in bytes.
pub(super) const SHORT_MAX: usize = 16 * BLOCKS;

/// The most blocks.
const BLOCKS: usize = 16;

/// The registers that hold them.
const REGISTERS: usize = BLOCKS / 2;

/// The beginning of what is worked on.
#[derive(Clone, Copy)]
pub(super) enum Start {
    /// The beginning of a message: the last block of additional data, plus the state before it.
    Message(__m128i),
    /// Later.
    Later {
        /// The counter of the first block: a multiple of 8.
        counter: u32,
        /// The encryption of J0.
        tag_mask: __m128i,
        /// The state of the hash.
        state: __m128i,
        /// The sum that the hash of these blocks and of the lengths is added to.
        sum: Sum<Pair>,
    },
}

/// Seals or opens a whole message of up to [`SHORT_MAX`] bytes and returns its tag. `additional` is
/// the last block of additional data with the state before it, byte-reversed.
///
/// # Safety
/// The processor must have what [`Pair`] needs; the data must be readable at its source and
/// writable at its destination, which either are the same or do not overlap.
#[inline(always)]
pub(super) unsafe fn short<const ROUNDS: usize, const SEAL: bool>(
    message: Message<'_>,
    additional: __m128i,
    data: Data,
) -> __m128i {
    let start = Start::Message(additional);
    // SAFETY: each case is that of ⌈len/16⌉ blocks.
    unsafe {
        macro_rules! run {
            ($blocks:literal) => {
                run::<ROUNDS, SEAL, $blocks>(message, start, data)
            };
        }
        match data.len.div_ceil(16) {
            0..=8 => tail::<ROUNDS, SEAL>(message, start, data),
            9 => run!(9),
            10 => run!(10),
            11 => run!(11),
            12 => run!(12),
            13 => run!(13),
            14 => run!(14),
            15 => run!(15),
            _ => run!(16),
        }
    }
}

/// Seals or opens up to 128 bytes and returns the tag.
///
/// # Safety
/// As for [`short`].
#[inline(always)]
pub(super) unsafe fn tail<const ROUNDS: usize, const SEAL: bool>(
    message: Message<'_>,
    start: Start,
    data: Data,
) -> __m128i {
    // SAFETY: each case is that of ⌈len/16⌉ blocks.
    unsafe {
        macro_rules! run {
            ($blocks:literal) => {
                run::<ROUNDS, SEAL, $blocks>(message, start, data)
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

/// Bytes of ones, 32 of them, and then of zeros: from its byte number n on, a mask for the first
/// 32 - n bytes of a register.
static EXIST: [Block; 4] = [
    Block([0xff; 16]),
    Block([0xff; 16]),
    Block::ZERO,
    Block::ZERO,
];

/// The order that reverses the bytes of each lane.
static REVERSAL: [Block; 2] = [reversed(); 2];

const fn reversed() -> Block {
    let mut order = Block::ZERO;
    let mut i = 0;
    while i < 16 {
        order.0[i] = 15 - i as u8;
        i += 1;
    }
    order
}

/// Reverses the bytes of each lane, by an order in memory: there are 16 registers.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn reverse(mut v: Pair) -> Pair {
    // SAFETY: reads the 32 bytes of the order.
    unsafe {
        asm!("vpshufb {v}, {v}, ymmword ptr [{p}]", v = inout(ymm_reg) v.0, p = in(reg) &REVERSAL,
            options(readonly, nostack, preserves_flags));
    }
    v
}

/// Adds the product of `x` and the register at `p` to `sum`. The compiler would take more than one
/// register for it.
///
/// # Safety
/// The processor must have what [`Pair`] needs; two blocks must be readable at `p`.
#[inline]
#[target_feature(enable = "avx2,vpclmulqdq")]
unsafe fn add_product(sum: &mut Sum<Pair>, x: Pair, p: *const Block) {
    // SAFETY: reads two blocks that the caller vouches for.
    unsafe {
        asm!(
            "vpclmulqdq {t}, {x}, ymmword ptr [{p}], 0x00",
            "vpxor {low}, {low}, {t}",
            "vpclmulqdq {t}, {x}, ymmword ptr [{p}], 0x01",
            "vpxor {middle}, {middle}, {t}",
            "vpclmulqdq {t}, {x}, ymmword ptr [{p}], 0x11",
            "vpxor {high}, {high}, {t}",
            "vpclmulqdq {t}, {x}, ymmword ptr [{p}], 0x10",
            "vpxor {middle}, {middle}, {t}",
            x = in(ymm_reg) x.0, t = out(ymm_reg) _, p = in(reg) p,
            low = inout(ymm_reg) sum.low.0, middle = inout(ymm_reg) sum.middle.0,
            high = inout(ymm_reg) sum.high.0,
            options(readonly, nostack, preserves_flags)
        );
    }
}

/// # Safety
/// As for [`short`], of ⌈len/16⌉ = `N` blocks.
#[inline(always)]
unsafe fn run<const ROUNDS: usize, const SEAL: bool, const N: usize>(
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
        let keys = once::fresh(schedule.round_keys.as_ptr());
        // Of additional data, of the blocks, and of the lengths.
        let powers = once::fresh(schedule.powers_from(N + 2));
        let is_odd = N % 2 == 1;
        let registers = N.div_ceil(2);

        // Counters: those of the data, and 1 for J0.
        let (is_first, counter) = match start {
            Start::Message(_) => (true, 0),
            Start::Later { counter, .. } => (false, counter),
        };
        let numbers = NUMBERS.as_ptr().add(if is_first { 2 } else { 0 });
        let base = Pair::splat(nonce)
            .with_last_words(counter.swap_bytes())
            .xor(Pair::splat_from(keys));
        let mut state = [Pair::zero(); REGISTERS + 1];
        for i in 0..registers {
            state[i] = base.xor(Pair::load_private(numbers.add(2 * i)));
        }
        if is_first {
            let j0 = base.xor(Pair::splat_from(&raw const NUMBERS[1]));
            state[N / 2] = if is_odd {
                state[N / 2].with_upper_of(j0)
            } else {
                j0
            };
        }
        let used = registers + usize::from(is_first && !is_odd);

        // Where nearly all registers are in the cipher, what is hashed first waits in memory.
        let is_crowded = N > 8;
        let mut waiting = Block::ZERO;
        if let (Start::Message(additional), true) = (start, is_crowded) {
            once::put(&mut waiting, additional, true);
        }
        macro_rules! rounds {
            ($($r:literal)*) => {$(
                if $r < ROUNDS {
                    let key = Pair::splat_from(keys.add($r));
                    // One round after the other: the compiler would do all rounds of a register
                    // right before its result is needed, and hold the keys until the last.
                    for i in 0..used {
                        state[i] = once::in_order_256(state[i].aes(key));
                    }
                }
            )*};
        }
        rounds!(1 2 3 4 5 6 7 8 9 10 11 12 13);
        let last_key = Pair::splat_from(keys.add(ROUNDS));

        // The product that needs no ciphertext: of additional data and lengths, or of lengths.
        let last_power = powers.add(N + 1);
        let (mut sum, mut carried) = match start {
            Start::Message(mut additional) => {
                if is_crowded {
                    additional = once::take(&mut waiting, true);
                }
                let power = _mm_load_si128(last_power.cast());
                let power = Pair::of_blocks(_mm_load_si128(powers.cast()), power);
                let ends = Pair::of_blocks(additional, lengths);
                (Sum::of(ends, power), Pair::zero())
            }
            Start::Later { state, mut sum, .. } => {
                let (carried, mut last) =
                    (Pair::in_first_lane(state), Pair::in_first_lane(lengths));
                if N == 0 {
                    last = last.xor(carried);
                }
                sum.add(last, Pair::load_private(last_power));
                (sum, carried)
            }
        };
        macro_rules! hash {
            ($i:expr, $x:expr) => {
                let x = reverse($x).xor(carried);
                carried = Pair::zero();
                add_product(&mut sum, x, powers.add(1 + 2 * $i));
            };
        }

        // In memory until the end: there are 16 registers.
        let mut tag_mask = Block::ZERO;
        match start {
            Start::Message(_) if is_odd => {}
            Start::Message(_) => {
                let mask = state[N / 2].aes_last(last_key).first_lane();
                once::put(&mut tag_mask, mask, true);
            }
            Start::Later { tag_mask: mask, .. } => once::put(&mut tag_mask, mask, true),
        }
        let part = len.wrapping_sub(16 * N.saturating_sub(1));
        let is_whole = part == 16;
        macro_rules! load {
            ($i:literal) => {
                if 2 * $i + 2 < N || (2 * $i + 2 == N && is_whole) {
                    Pair::load_once::<$i>(src)
                } else if 2 * $i + 2 == N {
                    let block = Pair::load_block_once(src.add(32 * $i));
                    let rest = once::load_part_128::<true>(src.add(32 * $i + 16), part);
                    Pair::of_blocks(block, rest)
                } else if is_whole {
                    Pair::in_first_lane(Pair::load_block_once(src.add(32 * $i)))
                } else {
                    Pair::in_first_lane(once::load_part_128::<true>(src.add(32 * $i), part))
                }
            };
        }
        // A message of up to 64 bytes is loaded before any of it is stored: its source and
        // destination may overlap in part (`key::check_overlap`).
        let is_ahead = N <= 4;
        let mut input = [Pair::zero(); 2];
        macro_rules! load_ahead {
            ($($i:literal)*) => {$(
                if is_ahead && $i < registers {
                    input[$i] = load!($i);
                }
            )*};
        }
        load_ahead!(0 1);
        macro_rules! registers {
            ($($i:literal)*) => {$(
                if $i < registers {
                    let input = if is_ahead { input[$i % 2] } else { load!($i) };
                    if !SEAL {
                        hash!($i, input);
                    }
                    let mut output = state[$i].aes_last(last_key.xor(input));
                    let at = dst.add(32 * $i);
                    if 2 * $i + 2 < N || (2 * $i + 2 == N && is_whole) {
                        Pair::store_once::<0>(at, output);
                    } else if 2 * $i + 2 == N {
                        Pair::store_block_once(at, output.first_lane());
                        once::store_part_128::<true>(at.add(16), part, output.second_lane());
                        // Keystream in place of bytes that do not exist is not hashed.
                        output = output.and(Pair::load_private(EXIST.as_ptr().byte_add(16 - part)));
                    } else {
                        if is_first {
                            once::put(&mut tag_mask, output.second_lane(), true);
                        }
                        let block = output.first_lane();
                        if is_whole {
                            Pair::store_block_once(at, block);
                        } else {
                            once::store_part_128::<true>(at, part, block);
                        }
                        // Nor is what stands beside it.
                        let exist = Pair::load_private(EXIST.as_ptr().byte_add(32 - part));
                        output = output.and(exist);
                    }
                    if SEAL {
                        hash!($i, output);
                    }
                }
            )*};
        }
        registers!(0 1 2 3 4 5 6 7);
        let _ = carried;
        let hash = sum.reduce().sum_of_lanes();
        _mm_xor_si128(
            _mm_shuffle_epi8(hash, ghash::byte_reversal()),
            once::take(&mut tag_mask, true),
        )
    }
}
