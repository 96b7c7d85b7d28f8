//! Retries of a source that has no value, up to the limit of one value.

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use crate::processor::Instruction;
use crate::retry_limit::RetryLimit;
use crate::source::Source;

/// A value that did not come within its limit.
#[derive(Clone, Copy)]
pub(crate) struct Dry {
    pub(crate) attempts: u32,
    pub(crate) waited: Option<Duration>,
}

/// Makes the attempts after the first, until one delivers or the limit is used up.
///
/// Attempts first, then time: RDRAND, whose limit is attempts alone, never reads the clock, and
/// RDSEED reads it only after a thousand attempts without a value.
#[cold]
#[inline(never)]
pub(crate) fn retry<S: Source>(
    source: &mut S,
    underflows: &mut u64,
    limit: RetryLimit,
    mut step: impl FnMut(&mut S) -> Option<u64>,
) -> Result<u64, Dry> {
    let mut attempts = 1_u32;
    let mut wait = None;
    *underflows += 1;
    loop {
        if attempts >= limit.attempts() {
            let clock = if !limit.time().is_zero() {
                source.now()
            } else {
                None
            };
            let Some(now) = clock else {
                return Err(Dry {
                    attempts,
                    waited: None,
                });
            };
            let wait = wait.get_or_insert_with(|| Wait::start(now));
            if wait.is_over(now, limit) {
                return Err(Dry {
                    attempts,
                    waited: Some(wait.waited),
                });
            }
        }
        if matches!(S::INSTRUCTION, Instruction::Rdseed) {
            core::hint::spin_loop(); // PAUSE
        }
        match step(source) {
            Some(value) => return Ok(value),
            None => *underflows += 1,
        }
        attempts = attempts.saturating_add(1);
    }
}

/// The threads of this process that have made their attempts and still wait. A child that is forked
/// meanwhile counts threads that it does not have; it only waits longer for it.
static WAITING: AtomicU32 = AtomicU32::new(0);

/// The longest time between two attempts that counts. An attempt takes a microsecond; if more than
/// this lies between two, the thread did not run, and the hardware is not to blame. Without it, a
/// thread on a busy machine would report an underflow after being preempted once.
const GAP_MAX: Duration = Duration::from_micros(100);

/// One of the threads that wait.
struct Wait {
    last: Duration,
    waited: Duration,
    /// The most threads that waited at the same time, this one included: if some of them are served
    /// just before the limit, this one has competed with them nevertheless.
    threads: u32,
}

impl Wait {
    fn start(now: Duration) -> Self {
        WAITING.fetch_add(1, Ordering::Relaxed);
        Wait {
            last: now,
            waited: Duration::ZERO,
            threads: 1,
        }
    }

    fn is_over(&mut self, now: Duration, limit: RetryLimit) -> bool {
        self.waited += now.saturating_sub(self.last).min(GAP_MAX);
        self.last = now;
        self.threads = self.threads.max(WAITING.load(Ordering::Relaxed));
        // Threads that wait for a processor do not draw meanwhile.
        self.waited >= limit.time().saturating_mul(self.threads.min(processors()))
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns the number of processors that the threads of this process can use; the largest number
/// if unknown.
#[cfg(feature = "std")]
fn processors() -> u32 {
    use std::sync::OnceLock;

    static PROCESSORS: OnceLock<u32> = OnceLock::new();
    *PROCESSORS.get_or_init(|| {
        std::thread::available_parallelism()
            .ok()
            .and_then(|number| u32::try_from(number.get()).ok())
            .unwrap_or(u32::MAX)
    })
}

#[cfg(not(feature = "std"))]
fn processors() -> u32 {
    u32::MAX
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use crate::generator::Generator;
    use crate::scripted::ScriptedRdseed;

    #[test]
    fn the_limit_in_time_grows_with_the_threads_that_wait() {
        let limit = RetryLimit::new(1).with_time(Duration::from_millis(1));
        let waited = |others: u32| {
            let waiting: std::vec::Vec<Wait> =
                (0..others).map(|_| Wait::start(Duration::ZERO)).collect();
            let mut dry = Generator::with_source_untested(ScriptedRdseed::never());
            dry.set_retry_limit(limit);
            let error = dry.next_u64().expect_err("never");
            drop(waiting);
            let crate::Error::Underflow { waited, .. } = error else {
                panic!("{error}")
            };
            waited.expect("a limit in time")
        };
        // Tests that wait at the same time count as well, so more is right, and less is not.
        assert!(waited(0) >= limit.time());
        for others in [1, 63] {
            let share = (others + 1).min(processors());
            assert!(waited(others) >= limit.time() * share, "{others} others");
        }
    }
}
