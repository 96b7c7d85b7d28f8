//! One generator a thread: no lock, no limit on the number of threads.

use std::cell::UnsafeCell;

use tare_rdrand::{Error, Rdrand, RDRAND_ATTEMPTS};

thread_local! {
    // Without a destructor, so that it can be used for as long as the thread runs, also by
    // destructors of other libraries.
    static GENERATOR: UnsafeCell<Option<std::mem::ManuallyDrop<Rdrand>>> =
        const { UnsafeCell::new(None) };
}

/// What a C limit means: a negative one the default, 0 and 1 a single attempt.
pub(crate) fn attempts(retry_limit: i32) -> u32 {
    u32::try_from(retry_limit).map_or(RDRAND_ATTEMPTS, |limit| limit.max(1))
}

/// Runs `work` with this thread's generator, which is made and tested at first use and anew
/// after a health test failed.
#[inline(always)]
pub(crate) fn with_generator<T>(
    retry_limit: i32,
    work: impl FnOnce(&mut Rdrand) -> Result<T, Error>,
) -> Result<T, Error> {
    let slot = GENERATOR.with(UnsafeCell::get);
    // SAFETY: the slot belongs to this thread and lives as long as it, and no `work` of this
    // library comes back here or runs code of others, so this is the only reference.
    let slot = unsafe { &mut *slot };
    let generator = match slot {
        Some(generator) => generator,
        None => make(slot)?,
    };
    generator.set_attempts(attempts(retry_limit));
    let result = work(generator);
    if let Err(Error::Health { .. }) = result {
        *slot = None;
    }
    result
}

#[cold]
fn make(
    slot: &mut Option<std::mem::ManuallyDrop<Rdrand>>,
) -> Result<&mut std::mem::ManuallyDrop<Rdrand>, Error> {
    Ok(slot.insert(std::mem::ManuallyDrop::new(Rdrand::new()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_counts_attempts_and_a_negative_one_means_ten() {
        assert_eq!(
            [-1, i32::MIN, 0, 1, 2, i32::MAX].map(attempts),
            [10, 10, 1, 1, 2, 2147483647]
        );
    }
}
