//! Short messages and the ends of long ones, by the registers that they are worked on with.

use super::finish128::{self, Start};
use super::ghash::Sum;
use super::lanes::{Lanes, Pair, Quad, Single};
use super::message::{to_u128, Additional, Begun, Data, Message};
use super::{finish256, finish512, once, short512};
use crate::schedule::{Block, HALVES};
use core::arch::x86_64::__m128i;

/// The parts of a message that are shorter than a step.
///
/// # Safety
/// As for [`Lanes`].
pub(super) unsafe trait Ends: Lanes {
    /// Seals or opens a message that is worked on without a head and returns its tag.
    unsafe fn short<const ROUNDS: usize, const SEAL: bool>(
        message: Message<'_>,
        additional: Additional<'_>,
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

    /// Seals or opens a whole message that is worked on in two halves, if this one is, and returns
    /// its tag. `additional` is the last block of additional data with the state before it,
    /// `lengths` the block of lengths, byte-reversed both.
    #[inline(always)]
    unsafe fn halves<const ROUNDS: usize, const SEAL: bool>(
        _message: Message<'_>,
        _additional: __m128i,
        _lengths: *const Block,
        _data: Data,
    ) -> Option<__m128i> {
        None
    }

    /// Returns a tag as a number, in the order of memory.
    #[inline(always)]
    unsafe fn tag(tag: __m128i) -> u128 {
        // SAFETY: under the contract of Lanes.
        unsafe { to_u128(tag) }
    }
}

// SAFETY: hands its arguments and its contract on.
unsafe impl Ends for Quad {
    #[inline(always)]
    unsafe fn short<const ROUNDS: usize, const SEAL: bool>(
        message: Message<'_>,
        additional: Additional<'_>,
        data: Data,
    ) -> __m128i {
        // SAFETY: the caller's contract.
        unsafe { short512::short::<ROUNDS, SEAL>(message, additional, data) }
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

    #[inline(always)]
    unsafe fn halves<const ROUNDS: usize, const SEAL: bool>(
        message: Message<'_>,
        additional: __m128i,
        lengths: *const Block,
        data: Data,
    ) -> Option<__m128i> {
        if !HALVES.contains(&data.len) {
            return None;
        }
        // SAFETY: the caller's contract.
        Some(unsafe { finish512::halves::<ROUNDS, SEAL>(message, additional, lengths, data) })
    }

    #[inline(always)]
    unsafe fn tag(tag: __m128i) -> u128 {
        // SAFETY: the caller's contract.
        let [low, high] = unsafe { once::words_of_block(tag) };
        u128::from(low) | u128::from(high) << 64
    }
}

// SAFETY: hands its arguments and its contract on.
unsafe impl Ends for Pair {
    #[inline(always)]
    unsafe fn short<const ROUNDS: usize, const SEAL: bool>(
        message: Message<'_>,
        additional: Additional<'_>,
        data: Data,
    ) -> __m128i {
        // SAFETY: the caller's contract.
        unsafe {
            let additional = additional.block::<Self>(message.schedule);
            finish256::short::<ROUNDS, SEAL>(message, additional, data)
        }
    }

    #[inline(always)]
    unsafe fn tail<const ROUNDS: usize, const SEAL: bool>(
        message: Message<'_>,
        counter: u32,
        begun: Begun<Self>,
        data: Data,
    ) -> __m128i {
        // SAFETY: the caller's contract.
        unsafe {
            // Before it is known how many blocks follow. The compiler would compute it in the code
            // for each number of them, beside all else there.
            let sum = Sum {
                low: once::in_order_256(begun.sum.low),
                middle: once::in_order_256(begun.sum.middle),
                high: once::in_order_256(begun.sum.high),
            };
            let start = finish256::Start::Later {
                counter,
                tag_mask: begun.tag_mask,
                state: begun.state,
                sum,
            };
            finish256::tail::<ROUNDS, SEAL>(message, start, data)
        }
    }
}

// SAFETY: hands its arguments and its contract on.
unsafe impl<const VEX: bool> Ends for Single<VEX> {
    #[inline(always)]
    unsafe fn short<const ROUNDS: usize, const SEAL: bool>(
        message: Message<'_>,
        additional: Additional<'_>,
        data: Data,
    ) -> __m128i {
        // SAFETY: the caller's contract.
        unsafe {
            let start = Start::Message(additional.block::<Self>(message.schedule));
            finish128::finish::<Self, ROUNDS, SEAL>(message, start, data)
        }
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
