//! The long middle of a message: whole steps of eight blocks, encryption and hashing woven
//! together.
//!
//! Hashing runs one step behind encryption in both directions, with one reduction per step. It
//! always works on the register that was loaded (open) or that is about to be stored (seal), never
//! on what memory holds.

use super::cipher::{add_product, key, round};
use super::ghash::{reversed, Sum};
use super::message::Counter;
use super::once::{self, fresh, from_words, private};
use crate::schedule::{Block, Schedule};
use core::arch::aarch64::*;

/// Blocks in a step.
pub(super) const BLOCKS: usize = 8;

/// Bytes in a step.
pub(super) const STEP_LEN: usize = 16 * BLOCKS;

/// The ciphertext of a step that is still to be hashed, byte-reversed. The state of the hash
/// before it is added to its first block.
pub(super) type Pending = [uint8x16_t; BLOCKS];

/// Encrypts or decrypts one step and returns its ciphertext, if `KEEP`, and when `HASH` the sum of
/// products of what was pending before.
///
/// # Safety
/// The processor must have AES and PMULL; a step must be readable at `src` and writable at `dst`.
#[inline]
#[target_feature(enable = "neon,aes")]
unsafe fn step<const ROUNDS: usize, const SEAL: bool, const HASH: bool, const KEEP: bool>(
    schedule: &Schedule,
    counter: &mut Counter,
    mut pending: Pending,
    src: *const u8,
    dst: *mut u8,
) -> (Pending, Sum) {
    // SAFETY: the caller's contract; there are 15 round keys, and a power for each block.
    unsafe {
        let keys = fresh(schedule.round_keys.as_ptr());
        let powers = fresh(schedule.powers_from(BLOCKS));
        let mut sum = Sum::zero();
        let mut state = [from_words(0, 0); BLOCKS];
        for s in &mut state {
            *s = counter.next();
        }
        macro_rules! rounds {
            ($($r:literal)*) => {$(
                if $r + 1 < ROUNDS {
                    let key = key::<$r>(keys);
                    for s in &mut state {
                        *s = round(*s, key);
                    }
                    // One product in each round, so that the multiplier and the cipher both have
                    // work all the time.
                    if HASH && $r < BLOCKS {
                        add_product::<{ $r % BLOCKS }>(&mut sum, pending[$r % BLOCKS], powers);
                    }
                }
            )*};
        }
        rounds!(0 1 2 3 4 5 6 7 8 9 10 11 12);
        let (key, last_key) = (private(keys, ROUNDS - 1), private(keys, ROUNDS));
        macro_rules! blocks {
            ($($i:literal)*) => {$(
                let input = once::load(src.add(16 * $i));
                let output = veorq_u8(vaeseq_u8(state[$i], key), veorq_u8(last_key, input));
                once::store(dst.add(16 * $i), output);
                if KEEP {
                    pending[$i] = reversed(if SEAL { output } else { input });
                }
            )*};
        }
        blocks!(0 1 2 3 4 5 6 7);
        (pending, sum)
    }
}

/// Seals or opens `count` ≥ 1 steps; returns the last one, which is still to be hashed.
///
/// `state` is that of the hash before them, byte-reversed. Not inlined: calls for whole messages
/// and for those in pieces share it.
///
/// # Safety
/// The processor must have AES and PMULL, and the schedule been filled for them; `count` steps must
/// be readable at `src` and writable at `dst`, which either are the same or do not overlap.
#[inline(never)]
#[target_feature(enable = "neon,aes")]
pub(super) unsafe fn run<const ROUNDS: usize, const SEAL: bool>(
    schedule: &Schedule,
    counter: &mut Counter,
    state: uint8x16_t,
    mut src: *const u8,
    mut dst: *mut u8,
    count: usize,
) -> Pending {
    // SAFETY: the caller's contract.
    unsafe {
        let mut next = *counter;
        let none = [from_words(0, 0); BLOCKS];
        let (mut pending, _) =
            step::<ROUNDS, SEAL, false, true>(schedule, &mut next, none, src, dst);
        pending[0] = veorq_u8(pending[0], state);
        for _ in 1..count {
            src = src.add(STEP_LEN);
            dst = dst.add(STEP_LEN);
            let sum;
            (pending, sum) =
                step::<ROUNDS, SEAL, true, true>(schedule, &mut next, pending, src, dst);
            pending[0] = veorq_u8(pending[0], sum.reduced());
        }
        *counter = next;
        pending
    }
}

/// The sum of products of a step with `after` blocks to follow, of which the powers must be there.
///
/// # Safety
/// The processor must have AES and PMULL.
#[inline]
#[target_feature(enable = "neon,aes")]
pub(super) unsafe fn hash(schedule: &Schedule, pending: &Pending, after: usize) -> Sum {
    // SAFETY: the caller's contract; there is a power for each block.
    unsafe {
        let powers: *const Block = fresh(schedule.powers_from(BLOCKS + after));
        let mut sum = Sum::zero();
        for (i, x) in pending.iter().enumerate() {
            sum.add(*x, private(powers, i));
        }
        sum
    }
}

/// Hashes `count` steps of ciphertext and returns the state after them: the first of two readings,
/// see `Key::open_reading_twice`.
///
/// # Safety
/// As for [`run`]; nothing is stored.
#[inline]
#[target_feature(enable = "neon,aes")]
pub(super) unsafe fn hash_alone(
    schedule: &Schedule,
    mut state: uint8x16_t,
    src: *const u8,
    count: usize,
) -> uint8x16_t {
    for at in (0..count).map(|step| step * STEP_LEN) {
        // SAFETY: the caller's contract.
        unsafe {
            let mut blocks = [state; BLOCKS];
            for (i, block) in blocks.iter_mut().enumerate() {
                *block = reversed(once::load(src.add(at + 16 * i)));
            }
            blocks[0] = veorq_u8(blocks[0], state);
            state = hash(schedule, &blocks, 0).reduced();
        }
    }
    state
}

/// Decrypts `count` steps without hashing them: the second of two readings.
///
/// # Safety
/// As for [`run`].
#[inline]
#[target_feature(enable = "neon,aes")]
pub(super) unsafe fn decrypt_alone<const ROUNDS: usize>(
    schedule: &Schedule,
    counter: &mut Counter,
    src: *const u8,
    dst: *mut u8,
    count: usize,
) {
    let none = [from_words(0, 0); BLOCKS];
    for at in (0..count).map(|step| step * STEP_LEN) {
        // SAFETY: the caller's contract.
        unsafe {
            let (src, dst) = (src.add(at), dst.add(at));
            step::<ROUNDS, false, false, false>(schedule, counter, none, src, dst);
        }
    }
}
