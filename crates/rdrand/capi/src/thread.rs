//! One generator per thread: no lock, no limit on the number of threads.

mod slot;

use std::sync::OnceLock;

use tare_rdrand::instruction::RdrandInstruction;
use tare_rdrand::{Error, Rdrand, RetryLimit, Source};

/// Returns the retry limit of a C argument: exactly that many attempts, for a negative one the
/// default, for 0 and 1 a single attempt.
pub(crate) fn retry_limit(limit: i32) -> RetryLimit {
    u32::try_from(limit).map_or(RetryLimit::RDRAND, RetryLimit::new)
}

/// Runs `work` with this thread's generator, which is made and tested at first use and anew
/// after a health test failed.
#[inline(always)]
pub(crate) fn with_generator<T>(
    limit: i32,
    work: impl FnOnce(&mut Rdrand) -> Result<T, Error>,
) -> Result<T, Error> {
    // SAFETY: no `work` of this library calls this function or code outside of the library, so this
    // is the only reference.
    let slot = unsafe { slot::of_this_thread() };
    let generator = match slot.generator() {
        Some(generator) => generator,
        None => {
            let generator = Rdrand::new()?;
            INSTRUCTION.get_or_init(|| *generator.source());
            slot.insert(generator)
        }
    };
    generator.set_retry_limit(retry_limit(limit));
    let result = work(generator);
    if let Err(Error::Health { .. }) = result {
        slot.clear();
    }
    result
}

/// Returns this thread's generator if there is one already; its retry limit is that of the call
/// before.
///
/// # Safety
/// The reference is the only one at a time, and does not leave the thread.
#[inline(always)]
pub(crate) unsafe fn ready_generator<'a>() -> Option<&'a mut Rdrand> {
    // SAFETY: the same promise.
    unsafe { slot::of_this_thread() }.generator()
}

/// The instruction, for an attempt before the generator is found, see [`attempt_and_generator`].
static INSTRUCTION: OnceLock<RdrandInstruction> = OnceLock::new();

/// Makes one attempt and then returns this thread's generator; `None` if there is none or if no
/// thread has one yet.
///
/// The order is what makes a single number cheap. The instruction starts when all instructions
/// before it are done, and none after it starts before it is done. Finding the generator and then
/// reading it is one long wait for memory. Split by the instruction, one half runs together with
/// the end of the call before, and the other with the begin of the next.
///
/// # Safety
/// As [`ready_generator`].
#[inline(always)]
pub(crate) unsafe fn attempt_and_generator<'a>() -> Option<(Option<u64>, &'a mut Rdrand)> {
    let mut instruction = *INSTRUCTION.get()?;
    // SAFETY: the same promise.
    let slot = unsafe { slot::of_this_thread() };
    let first = instruction.step_u64();
    Some((first, slot.generator()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_counts_attempts_and_a_negative_one_means_ten() {
        let attempts = [-1, i32::MIN, 0, 1, 2, i32::MAX].map(|limit| retry_limit(limit).attempts());
        assert_eq!(attempts, [10, 10, 1, 1, 2, 2147483647]);
        assert!(retry_limit(5).time().is_zero() && retry_limit(-1).time().is_zero());
    }
}
