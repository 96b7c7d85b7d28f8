//! The ends of messages of more than 256 bytes on 512-bit registers, and whole messages of two
//! halves.
//!
//! What comes before is hashed while the last blocks are encrypted, and all is reduced and added up
//! once, at the end. Masks keep every access to the bytes that exist, each once.

use super::bulk::{Last, Powers, NUMBERS};
use super::ghash::{self, Sum};
use super::lanes::{Lanes, Pair, Quad};
use super::message::{Begun, Data, Message};
use super::once::{self, Mask};
use super::short512::{load, store, wide, with_j0};
use crate::schedule::{is_one_sum, Block, Schedule};
use core::arch::x86_64::*;

/// Keeps a round of AES in its place, and after some of them adds the products of two registers of
/// an earlier part of the message. The compiler would put all rounds of a register, or all
/// products, before the others: each waits for the one before it, and together they fill the
/// processor's queue.
macro_rules! hash_between {
    ($r:literal, $state:ident, $sum:ident, $last:expr, $powers:expr) => {
        for s in &mut $state {
            *s = once::in_order_512(*s);
        }
        if let (Some(Last(blocks)), 2 | 6) = ($last, $r) {
            let i = if $r == 2 { 0 } else { 2 };
            let (p, q) = ($powers.of_register(i), $powers.of_register(i + 1));
            $sum.add2(blocks[i], p, blocks[i + 1], q);
            $sum.low = once::in_order_512($sum.low);
            $sum.middle = once::in_order_512($sum.middle);
            $sum.high = once::in_order_512($sum.high);
        }
    };
}

/// Seals or opens a whole message of a length in [`HALVES`](crate::schedule::HALVES) and returns
/// its tag: first 256 bytes and J0, then the rest, meanwhile the hash of the first.
///
/// `additional` is the last block of additional data with the state before it, `lengths` the block
/// of lengths, byte-reversed both.
///
/// # Safety
/// As for [`super::short512::short`].
#[inline(always)]
pub(super) unsafe fn halves<const ROUNDS: usize, const SEAL: bool>(
    message: Message<'_>,
    additional: __m128i,
    lengths: *const Block,
    data: Data,
) -> __m128i {
    let Data { src, dst, len } = data;
    let schedule = message.schedule;
    // SAFETY: the first half has 256 bytes, and the second four registers.
    unsafe {
        let mut input = [Quad::zero(); 4];
        for i in 0..4 {
            input[i].0 = once::load_512::<0>(src.add(64 * i));
        }
        let nonce = Quad::nonce(message.nonce_at);
        let (output, tag_mask) = with_j0::<ROUNDS, 4, false>(schedule, nonce, input);
        for i in 0..4 {
            once::store_512::<0>(dst.add(64 * i), output[i].0);
        }
        let reversal = Quad::splat(ghash::byte_reversal());
        let mut blocks = if SEAL { output } else { input };
        for b in &mut blocks {
            *b = b.permute(reversal);
        }
        let (src, dst, len) = (src.add(256), dst.add(256), len - 256);
        let data_blocks = len.div_ceil(16);
        // Those of the second half and the lengths follow.
        let powers = schedule.powers_from(16 + data_blocks + 1);
        // The block before the first one.
        let mut sum = wide(Sum::of(
            Pair::in_first_lane(additional),
            Pair::load_private(powers.sub(1)),
        ));

        let keys = once::fresh(schedule.round_keys.as_ptr());
        let first_key = Quad(once::splat_512(keys));
        let nonce = Quad::nonce(message.nonce_at);
        let numbers = once::fresh(NUMBERS.as_ptr().add(18));
        let mut state = [Quad::zero(); 4];
        for (i, s) in state.iter_mut().enumerate() {
            *s = nonce.xor3(first_key, Quad::load_private(numbers.add(4 * i)));
        }
        let (last, powers) = (Some(Last(blocks)), Powers::Consecutive(powers));
        macro_rules! rounds {
            ($($r:literal)*) => {$(
                if $r < ROUNDS {
                    let key = Quad::splat_from(keys.add($r));
                    for s in &mut state {
                        *s = s.aes(key);
                    }
                    hash_between!($r, state, sum, last, powers);
                }
            )*};
        }
        rounds!(1 2 3 4 5 6 7 8 9 10 11 12 13);
        let in_last = Mask::from(len, 192);
        let input: [Quad; 4] = load(src, in_last);
        let last_key = Quad(once::splat_512(keys.add(ROUNDS)));
        let mut output = [Quad::zero(); 4];
        for i in 0..4 {
            output[i] = state[i].aes_last(last_key.xor(input[i]));
        }
        store(dst, output, in_last);
        if SEAL {
            output[3].0 = _mm512_maskz_mov_epi8(in_last.register, output[3].0);
        }
        let mut blocks = if SEAL { output } else { input };
        for b in &mut blocks {
            *b = b.permute(reversal);
        }
        let sum = with_lengths(schedule, lengths, blocks, data_blocks, Before::Sum(sum));
        let hash = sum.reduce().sum_of_lanes();
        _mm_xor_si128(_mm_shuffle_epi8(hash, ghash::byte_reversal()), tag_mask)
    }
}

/// Seals or opens the last bytes of a longer message, fewer than 256, and returns the tag.
///
/// `counter` is that of the first block, a multiple of 16.
///
/// # Safety
/// As for [`super::short512::short`].
#[inline(always)]
pub(super) unsafe fn tail<const ROUNDS: usize, const SEAL: bool>(
    message: Message<'_>,
    counter: u32,
    begun: Begun<Quad>,
    data: Data,
) -> __m128i {
    // SAFETY: the number of registers passed is ⌈len / 64⌉, as the function demands.
    unsafe {
        macro_rules! on {
            ($registers:literal) => {
                tail_on::<ROUNDS, SEAL, $registers>(message, counter, begun, data)
            };
        }
        let sum = match data.len {
            0 => with_lengths::<0>(
                message.schedule,
                begun.lengths,
                [],
                0,
                match begun.last {
                    Some(last) => Before::Sum(last.sum(message.schedule, 1)),
                    None => Before::Sum(state_alone(begun.state, message.schedule)),
                },
            ),
            1..=64 => on!(1),
            65..=128 => on!(2),
            129..=192 => on!(3),
            _ => on!(4),
        };
        let hash = sum.reduce().sum_of_lanes();
        _mm_xor_si128(
            _mm_shuffle_epi8(hash, ghash::byte_reversal()),
            begun.tag_mask,
        )
    }
}

/// The hash of what comes before the end of a message.
#[derive(Clone, Copy)]
enum Before {
    /// The summand of the sum over the end, whose blocks it allows for.
    Sum(Sum<Quad>),
    /// The summand of the end's first register.
    Lanes(Quad),
}

/// Returns the product of a state that the block of lengths alone follows.
#[inline(always)]
unsafe fn state_alone(state: __m128i, schedule: &Schedule) -> Sum<Quad> {
    // SAFETY: under the contract of Lanes.
    unsafe {
        let power = Pair::load_private(schedule.powers_from(1));
        wide(Sum::of(Pair::in_first_lane(state), power))
    }
}

/// Returns the sum of the products of the end and of what comes before it.
///
/// # Safety
/// As for [`tail`]; `R` must be ⌈len / 64⌉.
#[inline(always)]
unsafe fn tail_on<const ROUNDS: usize, const SEAL: bool, const R: usize>(
    message: Message<'_>,
    counter: u32,
    begun: Begun<Quad>,
    data: Data,
) -> Sum<Quad> {
    let schedule = message.schedule;
    let Data { src, dst, len } = data;
    // SAFETY: the mask limits accesses to the `len` bytes.
    unsafe {
        let reversal = Quad::splat(ghash::byte_reversal());
        let keys = schedule.round_keys.as_ptr();
        let first_key = Quad::splat_from(keys);
        let nonce = Quad::nonce(message.nonce_at);
        let nonce = nonce.with_last_words(counter.swap_bytes());
        // Not those that the steps have in registers, which they would keep for this.
        let numbers = once::fresh(NUMBERS.as_ptr());
        let mut state = [Quad::zero(); R];
        for (i, s) in state.iter_mut().enumerate() {
            *s = nonce.xor3(first_key, Quad::load_private(numbers.add(4 * i)));
        }
        let in_last = Mask::from(len, 64 * (R - 1));
        let input: [Quad; R] = load(src, in_last);
        let data_blocks = len.div_ceil(16);
        let (mut sum, powers) = if is_one_sum(R) {
            let powers = schedule.powers_from(16 + data_blocks + 1);
            (Sum::zero(), Powers::Consecutive(powers))
        } else {
            let strides = schedule.strides_end(4).sub(4);
            (begun.sum, Powers::Strides(strides))
        };
        macro_rules! rounds {
            ($($r:literal)*) => {$(
                if $r < ROUNDS {
                    let key = Quad::splat_from(keys.add($r));
                    for s in &mut state {
                        *s = s.aes(key);
                    }
                    hash_between!($r, state, sum, begun.last, powers);
                }
            )*};
        }
        rounds!(1 2 3 4 5 6 7 8 9 10 11 12 13);
        let before = match begun.last {
            Some(_) if is_one_sum(R) => Before::Sum(sum),
            Some(_) => Before::Lanes(sum.reduce()),
            None => Before::Lanes(Quad::in_first_lane(begun.state)),
        };
        let last_key = Quad::splat_from(keys.add(ROUNDS));
        let mut output = [Quad::zero(); R];
        for i in 0..R {
            output[i] = state[i].aes_last(last_key.xor(input[i]));
        }
        store(dst, output, in_last);
        if SEAL {
            output[R - 1].0 = _mm512_maskz_mov_epi8(in_last.register, output[R - 1].0);
        }
        let mut blocks = if SEAL { output } else { input };
        for b in &mut blocks {
            *b = b.permute(reversal);
        }
        with_lengths(schedule, begun.lengths, blocks, data_blocks, before)
    }
}

/// Returns the sum of the products of `blocks`, of which the first `count` are in use, of the block
/// of lengths after them, and of what comes before them.
///
/// # Safety
/// `R` must be ⌈count / 4⌉; the processor as for [`super::short512::short`].
#[inline(always)]
unsafe fn with_lengths<const R: usize>(
    schedule: &Schedule,
    lengths: *const Block,
    mut blocks: [Quad; R],
    count: usize,
    before: Before,
) -> Sum<Quad> {
    // SAFETY: the caller's contract.
    unsafe {
        let powers = once::fresh(schedule.powers_from(count + 1));
        let lengths = _mm_load_si128(lengths.cast());
        let lane = count % 4;
        if lane > 0 {
            let last = &mut blocks[R - 1].0;
            *last = _mm512_mask_broadcast_i32x4(*last, 0xf << (4 * lane), lengths);
        }
        let mut sum = Sum::zero();
        match before {
            Before::Sum(before) => sum = before,
            // The lengths are in none of these lanes, for each of them has a block of data.
            Before::Lanes(lanes) => blocks[0] = blocks[0].xor(lanes),
        }
        for i in 0..R {
            sum.add(blocks[i], Quad::load_private(powers.add(4 * i)));
        }
        if lane == 0 {
            // The registers are full: the lengths are alone.
            let power = Pair::load_private(schedule.powers_from(1));
            let of_lengths = wide(Sum::of(Pair::in_first_lane(lengths), power));
            sum.low = sum.low.xor(of_lengths.low);
            sum.middle = sum.middle.xor(of_lengths.middle);
            sum.high = sum.high.xor(of_lengths.high);
        }
        sum
    }
}
