//! One generator a thread: no lock, no limit on the number of threads.

mod slot;

use std::sync::OnceLock;

use tare_rdrand::instruction::RdrandInstruction;
use tare_rdrand::{Error, Rdrand, RetryLimit, Source};

/// What a C limit means: exactly that many attempts, a negative one the default, 0 and 1 a single
/// attempt.
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
    // SAFETY: no `work` of this library comes back here or runs code of others, so this is the
    // only reference.
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

/// This thread's generator if there is one already; the number of attempts is that of the call
/// before.
///
/// # Safety
/// The reference is the only one at a time, and does not leave the thread.
#[inline(always)]
pub(crate) unsafe fn ready_generator<'a>() -> Option<&'a mut Rdrand> {
    // SAFETY: the same promise.
    unsafe { slot::of_this_thread() }.generator()
}

/// Where one attempt is made before the generator is at hand, see [`attempt_and_generator`].
static INSTRUCTION: OnceLock<RdrandInstruction> = OnceLock::new();

/// One attempt, and then this thread's generator; `None` if there is none or if no thread has
/// one yet.
///
/// The order is what makes a single number cheap. The instruction starts when all before it is
/// done, and nothing after it starts before it is done. To find the generator and then read it
/// is one long wait for memory; on the two sides of the instruction, its halves belong to two
/// calls and pass at the same time.
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
