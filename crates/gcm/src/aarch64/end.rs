//! Short messages and the end of long ones: up to eight blocks, in registers.
//!
//! There is code for each number of blocks: J0 and the data are encrypted together, and all of the
//! data is loaded before any of it is stored, for source and destination of a message of up to 64
//! bytes may overlap in part (`key::check_overlap`).

use super::cipher::{key, round};
use super::ghash::{reversed, Sum};
use super::message::{Counter, Data};
use super::once::{self, fresh, from_words, private, to_words};
use super::steps::BLOCKS;
use crate::schedule::Schedule;
use core::arch::aarch64::*;

/// Seals or opens up to [`STEP_LEN`](super::steps::STEP_LEN) bytes and returns the tag.
///
/// `counter` is that of the first block, `lengths` the block of lengths, byte-reversed; `sum` has
/// the products of all blocks before, which allow for ⌈len/16⌉ blocks and one of lengths. Not
/// inlined: calls for whole messages and for those in pieces share it.
///
/// # Safety
/// The processor must have AES and PMULL, and the schedule been filled for them; the data must be
/// readable at its source and writable at its destination, which either are the same or do not
/// overlap.
#[inline(never)]
#[target_feature(enable = "neon,aes")]
pub(super) unsafe fn end<const ROUNDS: usize, const SEAL: bool>(
    schedule: &Schedule,
    counter: Counter,
    lengths: uint8x16_t,
    sum: Sum,
    data: Data,
) -> u128 {
    // SAFETY: each case is that of ⌈len/16⌉ blocks.
    unsafe {
        macro_rules! run {
            ($blocks:literal) => {
                run::<ROUNDS, SEAL, $blocks>(schedule, counter, lengths, sum, data)
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

/// # Safety
/// As for [`end`], of ⌈len/16⌉ = `N` blocks.
#[inline]
#[target_feature(enable = "neon,aes")]
unsafe fn run<const ROUNDS: usize, const SEAL: bool, const N: usize>(
    schedule: &Schedule,
    mut counter: Counter,
    lengths: uint8x16_t,
    mut sum: Sum,
    data: Data,
) -> u128 {
    const { assert!(N <= BLOCKS) };
    let Data { src, dst, len } = data;
    debug_assert_eq!(len.div_ceil(16), N);
    // SAFETY: private accesses are within the schedule; shared ones within `len` bytes, of which
    // all blocks but the last are whole.
    unsafe {
        let keys = fresh(schedule.round_keys.as_ptr());
        let powers = fresh(schedule.powers_from(N + 1));
        // By numbers that are constants: the compiler unrolls loops after it has decided what is in
        // registers.
        macro_rules! each_block {
            ($i:ident => $body:block) => { each_block!($i: 1 2 3 4 5 6 7 8 => $body) };
            ($i:ident: $($n:literal)* => $body:block) => {$(
                if $n <= N {
                    const $i: usize = $n;
                    $body
                }
            )*};
        }
        let mut state = [counter.j0(); BLOCKS + 1];
        each_block!(I => { state[I] = counter.next(); });
        macro_rules! rounds {
            ($($r:literal)*) => {$(
                if $r + 1 < ROUNDS {
                    let key = key::<$r>(keys);
                    state[0] = round(state[0], key);
                    each_block!(I => { state[I] = round(state[I], key); });
                }
            )*};
        }
        rounds!(0 1 2 3 4 5 6 7 8 9 10 11 12);
        let (key, last_key) = (private(keys, ROUNDS - 1), private(keys, ROUNDS));
        let mask = veorq_u8(vaeseq_u8(state[0], key), last_key);
        sum.add(lengths, private(powers, N));

        // The last block may be a part of one.
        let done = 16 * N.saturating_sub(1);
        let part = len - done;
        let mut input = [lengths; BLOCKS + 1];
        each_block!(I => {
            input[I] = if I < N || part == 16 {
                once::load(src.add(16 * (I - 1)))
            } else {
                once::load_part(src.add(done), part)
            };
        });
        each_block!(I => {
            let output = veorq_u8(vaeseq_u8(state[I], key), veorq_u8(last_key, input[I]));
            let mut x = if SEAL { output } else { input[I] };
            let to = dst.add(16 * (I - 1));
            if I < N || part == 16 {
                once::store(to, output);
            } else {
                once::store_part(to, part, output);
                if SEAL {
                    // Keystream in place of bytes that do not exist is not hashed.
                    x = vandq_u8(x, first_bytes(part));
                }
            }
            sum.add(reversed(x), private(powers, I - 1));
        });
        let [low, high] = to_words(veorq_u8(mask, reversed(sum.reduced())));
        u128::from(high) << 64 | u128::from(low)
    }
}

/// A mask for the first `len` bytes of a block, 1 to 16.
#[inline(always)]
fn first_bytes(len: usize) -> uint8x16_t {
    let mask = u128::MAX >> (8 * (16 - len));
    from_words(mask as u64, (mask >> 64) as u64)
}
