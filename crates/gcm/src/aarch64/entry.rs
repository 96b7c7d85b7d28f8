//! The ways into the kernel: functions that enable its instructions around the generic code, and
//! the tables of them.

use super::end::end;
use super::message::{hash_additional, length_block, Counter, Data};
use super::once::{private, put};
use super::steps::{self, STEP_LEN};
use super::{expand, ghash};
use crate::kernel::{Kernel, Progress};
use crate::schedule::{Block, Schedule, Shape};
use crate::{Nonce, Path};
use core::arch::aarch64::*;
use zeroize::zeroize_stack;

/// Bytes of stack that the functions here use at most: 368 in a release build of Rust 1.95, and no
/// test looks at the machine code. Kernels keep secrets in registers, but the compiler may spill
/// some, and all of what a function has used lies right below its caller's own stack. Builds with
/// checks may keep more there.
const STACK: usize = if cfg!(debug_assertions) {
    16 * 1024
} else {
    1024
};

/// Wipes what a function that the caller has just called has used of the stack.
#[inline(always)]
fn wipe_stack() {
    zeroize_stack::<STACK>();
}

#[target_feature(enable = "neon,aes")]
unsafe fn fill(schedule: &mut Schedule, key: &[u8]) {
    expand::fill(schedule, key);
    wipe_stack();
}

#[target_feature(enable = "neon,aes")]
unsafe fn whole<const ROUNDS: usize, const SEAL: bool>(
    schedule: &Schedule,
    nonce: &Nonce,
    aad: &[u8],
    src: *const u8,
    dst: *mut u8,
    len: usize,
) -> u128 {
    let data = Data { src, dst, len };
    // SAFETY: the caller's contract.
    let tag = unsafe { message::<ROUNDS, SEAL>(schedule, nonce, aad, data) };
    wipe_stack();
    tag
}

/// A whole message. Not inlined, so that all it uses of the stack is below its caller, who wipes
/// it.
#[inline(never)]
#[target_feature(enable = "neon,aes")]
unsafe fn message<const ROUNDS: usize, const SEAL: bool>(
    schedule: &Schedule,
    nonce: &Nonce,
    aad: &[u8],
    data: Data,
) -> u128 {
    // SAFETY: the caller's contract; steps and rest add up to `len`. The sum allows for the blocks
    // that are left, and that of lengths.
    unsafe {
        let Data { src, dst, len } = data;
        let additional = hash_additional(schedule, aad);
        let mut counter = Counter::new(nonce.as_bytes(), 2);
        // One step alone is worked on with J0, at once.
        let count = if len > STEP_LEN { len / STEP_LEN } else { 0 };
        let rest = len - count * STEP_LEN;
        let after = rest.div_ceil(16) + 1;
        let sum = if count == 0 {
            let mut sum = ghash::Sum::zero();
            sum.add(additional, private(schedule.powers_from(after + 1), 0));
            sum
        } else {
            let state = ghash::multiply(additional, private(schedule.powers_from(1), 0));
            let last = steps::run::<ROUNDS, SEAL>(schedule, &mut counter, state, src, dst, count);
            steps::hash(schedule, &last, after)
        };
        let lengths = length_block(aad.len(), len as u64);
        let rest = Data {
            src: src.add(len - rest),
            dst: dst.add(len - rest),
            len: rest,
        };
        end::<ROUNDS, SEAL>(schedule, counter, lengths, sum, rest)
    }
}

/// Begins a message that comes in pieces.
#[target_feature(enable = "neon,aes")]
unsafe fn begin(schedule: &Schedule, nonce: &Nonce, aad: &[u8]) -> Progress {
    let mut progress = Progress {
        nonce: nonce.copy(),
        aad_len: aad.len(),
        data_len: 0,
        hash: Block::ZERO,
        // Made at the end.
        tag_mask: Block::ZERO,
    };
    // SAFETY: the caller's contract.
    put(&mut progress.hash, unsafe {
        hash_additional(schedule, aad)
    });
    progress
}

/// Returns the state of the hash before the next block.
///
/// # Safety
/// The processor must have AES and PMULL, and the schedule been filled for them.
#[inline]
#[target_feature(enable = "neon,aes")]
unsafe fn state(schedule: &Schedule, progress: &Progress) -> uint8x16_t {
    // SAFETY: the caller's contract; the block is there.
    unsafe {
        let state = private(&progress.hash, 0);
        if progress.is_new() {
            return ghash::multiply(state, private(schedule.powers_from(1), 0));
        }
        state
    }
}

/// Whole steps of a message that comes in pieces.
#[target_feature(enable = "neon,aes")]
unsafe fn steps<const ROUNDS: usize, const SEAL: bool>(
    schedule: &Schedule,
    progress: &mut Progress,
    src: *const u8,
    dst: *mut u8,
    count: usize,
) {
    // SAFETY: the caller's contract. There is no head, so `count` is at least 1.
    unsafe {
        let state = state(schedule, progress);
        let mut counter = Counter::new(progress.nonce.as_bytes(), progress.next_counter());
        let last = steps::run::<ROUNDS, SEAL>(schedule, &mut counter, state, src, dst, count);
        let state = steps::hash(schedule, &last, 0).reduced();
        put(&mut progress.hash, state);
        progress.data_len += (count * STEP_LEN) as u64;
    }
}

/// Whole steps of a message that is read twice: hashed the first time, decrypted the second.
#[target_feature(enable = "neon,aes")]
unsafe fn one_reading<const ROUNDS: usize, const HASH: bool>(
    schedule: &Schedule,
    progress: &mut Progress,
    src: *const u8,
    dst: *mut u8,
    count: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        if HASH {
            let state = state(schedule, progress);
            let state = steps::hash_alone(schedule, state, src, count);
            put(&mut progress.hash, state);
        } else {
            let mut counter = Counter::new(progress.nonce.as_bytes(), progress.next_counter());
            steps::decrypt_alone::<ROUNDS>(schedule, &mut counter, src, dst, count);
        }
        progress.data_len += (count * STEP_LEN) as u64;
    }
}

/// The end of a message that comes in pieces.
#[target_feature(enable = "neon,aes")]
unsafe fn finish<const ROUNDS: usize, const SEAL: bool>(
    schedule: &Schedule,
    progress: &mut Progress,
    src: *const u8,
    dst: *mut u8,
    len: usize,
) -> u128 {
    // SAFETY: the caller's contract; the state is added to what is hashed next.
    unsafe {
        let state = state(schedule, progress);
        let mut sum = ghash::Sum::zero();
        sum.add(
            state,
            private(schedule.powers_from(len.div_ceil(16) + 1), 0),
        );
        let counter = Counter::new(progress.nonce.as_bytes(), progress.next_counter());
        let lengths = length_block(progress.aad_len, progress.data_len + len as u64);
        end::<ROUNDS, SEAL>(schedule, counter, lengths, sum, Data { src, dst, len })
    }
}

const fn kernel<const ROUNDS: usize>() -> Kernel {
    Kernel {
        path: Path::Neon,
        shape: Shape {
            rounds: ROUNDS,
            lanes: 1,
            head_len: 0,
            short_max: STEP_LEN,
            step_len: STEP_LEN,
        },
        fill,
        begin,
        // One loop hashes additional data of any length.
        seal: [whole::<ROUNDS, true>; 2],
        open: [whole::<ROUNDS, false>; 2],
        seal_steps: steps::<ROUNDS, true>,
        open_steps: steps::<ROUNDS, false>,
        hash_steps: one_reading::<ROUNDS, true>,
        decrypt_steps: one_reading::<ROUNDS, false>,
        seal_finish: finish::<ROUNDS, true>,
        open_finish: finish::<ROUNDS, false>,
        batch4: None,
    }
}

pub(super) static AES_128: Kernel = kernel::<10>();
pub(super) static AES_256: Kernel = kernel::<14>();
