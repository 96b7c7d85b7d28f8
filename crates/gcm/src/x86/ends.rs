//! Short messages and the ends of long ones, by the registers that they are worked on with.

use super::finish128::{self, Start};
use super::ghash::Sum;
use super::lanes::{Lanes, Pair, Quad, Single};
use super::message::{Before, Begun, Data, Message, Stage};
use super::{finish, finish512};
use core::arch::x86_64::__m128i;

/// The parts of a message that are shorter than a step.
///
/// # Safety
/// As for [`Lanes`].
pub(super) unsafe trait Ends: Lanes {
    /// Seals or opens a message that is worked on without a head and returns its tag.
    /// `additional` is the last block of additional data with the state before it.
    unsafe fn short<const ROUNDS: usize, const SEAL: bool>(
        message: Message<'_>,
        additional: __m128i,
        data: Data,
    ) -> __m128i;

    /// Seals or opens what is left after the last whole step and returns the tag. `counter` is that
    /// of the first block.
    unsafe fn tail<const ROUNDS: usize, const SEAL: bool>(
        message: Message<'_>,
        counter: u32,
        begun: Begun<Self>,
        data: Data,
    ) -> __m128i;
}

// SAFETY: hands its arguments and its contract on.
unsafe impl Ends for Quad {
    #[inline(always)]
    unsafe fn short<const ROUNDS: usize, const SEAL: bool>(
        message: Message<'_>,
        additional: __m128i,
        data: Data,
    ) -> __m128i {
        // SAFETY: the caller's contract.
        unsafe { finish512::short::<ROUNDS, SEAL>(message, additional, data) }
    }

    #[inline(always)]
    unsafe fn tail<const ROUNDS: usize, const SEAL: bool>(
        message: Message<'_>,
        counter: u32,
        begun: Begun<Self>,
        data: Data,
    ) -> __m128i {
        // SAFETY: the caller's contract.
        unsafe { finish512::tail::<ROUNDS, SEAL>(message, counter, begun, data) }
    }
}

// SAFETY: hands its arguments and its contract on.
unsafe impl Ends for Pair {
    #[inline(always)]
    unsafe fn short<const ROUNDS: usize, const SEAL: bool>(
        message: Message<'_>,
        additional: __m128i,
        data: Data,
    ) -> __m128i {
        let before = Before::Additional(additional);
        // SAFETY: the caller's contract.
        unsafe {
            let stage = &mut Stage::uninit();
            finish::finish::<Self, ROUNDS, SEAL>(message, 2, before, Sum::zero(), data, stage)
        }
    }

    #[inline(always)]
    unsafe fn tail<const ROUNDS: usize, const SEAL: bool>(
        message: Message<'_>,
        counter: u32,
        begun: Begun<Self>,
        data: Data,
    ) -> __m128i {
        // The mask is made anew: J0 has a place on the stage in any case.
        let before = Before::State(begun.state);
        // SAFETY: the caller's contract.
        unsafe {
            let stage = &mut *begun.stage;
            finish::finish::<Self, ROUNDS, SEAL>(message, counter, before, begun.sum, data, stage)
        }
    }
}

// SAFETY: hands its arguments and its contract on.
unsafe impl<const VEX: bool> Ends for Single<VEX> {
    #[inline(always)]
    unsafe fn short<const ROUNDS: usize, const SEAL: bool>(
        message: Message<'_>,
        additional: __m128i,
        data: Data,
    ) -> __m128i {
        let start = Start::Message(additional);
        // SAFETY: the caller's contract.
        unsafe { finish128::finish::<Self, ROUNDS, SEAL>(message, start, data) }
    }

    #[inline(always)]
    unsafe fn tail<const ROUNDS: usize, const SEAL: bool>(
        message: Message<'_>,
        counter: u32,
        begun: Begun<Self>,
        data: Data,
    ) -> __m128i {
        let start = Start::Later {
            counter,
            tag_mask: begun.tag_mask,
            state: begun.state,
            left: begun.left,
        };
        // SAFETY: the caller's contract.
        unsafe { finish128::finish::<Self, ROUNDS, SEAL>(message, start, data) }
    }
}
