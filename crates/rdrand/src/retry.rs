//! How long a value is waited for before an underflow is reported.
//!
//! RDRAND of a sound processor practically always delivers, and ten attempts (Intel's guide) are
//! plenty. RDSEED runs dry as a rule: on AMD Zen 5 it has about 80 values in store and then
//! gives 39,000 a second, to all the processors of a socket together; one value alone was seen
//! to take 220 attempts. A number of attempts says little there, since an attempt takes 0.2 µs
//! on one make and 0.9 µs on another, and a value 25 µs alone and 1.6 ms where 64 threads
//! compete for it. Hence the limit of RDSEED is in time too, and grows with the threads that wait.

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use crate::error::Instruction;
use crate::source::Source;

/// How long one value is waited for: an [underflow](crate::Error::Underflow) is reported when
/// the attempts *and* the time are used up.
///
/// The time is for a thread that waits alone. Threads of this process that wait at once share
/// what the hardware gives, and each waits that many times as long (as many as there are
/// processors, at most). Time in which a thread does not get a processor does not count.
///
/// ```
/// use core::time::Duration;
/// use tare_rdrand::RetryLimit;
///
/// let patient = RetryLimit::RDSEED.with_time(Duration::from_secs(1));
/// let exactly_five_attempts = RetryLimit::new(5);
/// # assert_eq!((patient.attempts(), exactly_five_attempts.time()), (1024, Duration::ZERO));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryLimit {
    attempts: u32,
    /// In microseconds, to keep generators small.
    time_us: u32,
}

impl RetryLimit {
    /// Ten attempts, as Intel's implementation guide recommends for RDRAND.
    pub const RDRAND: RetryLimit = RetryLimit::new(10);

    /// For RDSEED: 1,024 attempts, as other libraries make, and 50 ms. That is 2,000 times what
    /// a value takes on AMD Zen 5 alone, and 30 times what it takes where the threads of 64
    /// other processes compete, which the number of waiting threads does not show.
    pub const RDSEED: RetryLimit = RetryLimit::new(1024).with_time(Duration::from_millis(50));

    /// The default for an instruction.
    #[must_use]
    pub const fn of(instruction: Instruction) -> Self {
        match instruction {
            Instruction::Rdrand => Self::RDRAND,
            Instruction::Rdseed => Self::RDSEED,
        }
    }

    /// Exactly this many attempts, however long they take; 0 counts as 1.
    #[inline]
    #[must_use]
    pub const fn new(attempts: u32) -> Self {
        RetryLimit {
            attempts: if attempts == 0 { 1 } else { attempts },
            time_us: 0,
        }
    }

    /// The same number of attempts, and at least this time for each of the threads that wait: whole
    /// microseconds, 71 minutes at most. Without a clock (no `std`, not x86) only the attempts
    /// count.
    #[must_use]
    pub const fn with_time(self, time: Duration) -> Self {
        let time_us = time.as_micros();
        RetryLimit {
            attempts: self.attempts,
            time_us: if time_us > u32::MAX as u128 {
                u32::MAX
            } else {
                time_us as u32
            },
        }
    }

    /// Attempts that are made at least.
    #[must_use]
    pub const fn attempts(self) -> u32 {
        self.attempts
    }

    /// Time that a thread waits at least when no other one waits; zero where only attempts count.
    #[must_use]
    pub const fn time(self) -> Duration {
        Duration::from_micros(self.time_us as u64)
    }

    /// The larger number of attempts and the longer time of two limits.
    pub(crate) fn max(self, other: Self) -> Self {
        RetryLimit {
            attempts: self.attempts.max(other.attempts),
            time_us: self.time_us.max(other.time_us),
        }
    }
}

/// A value that did not come within its limit.
#[derive(Clone, Copy)]
pub(crate) struct Dry {
    pub(crate) attempts: u32,
    pub(crate) waited: Option<Duration>,
}

/// The attempts after the first.
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
        // The clock is read only after the attempts, so that what is ordinary costs nothing.
        if attempts >= limit.attempts {
            let clock = if limit.time_us > 0 {
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

/// Threads of this process that have made their attempts and are waiting on. In a child forked
/// meanwhile, threads count that it does not have: it waits longer, nothing else.
static WAITING: AtomicU32 = AtomicU32::new(0);

/// The longest time between two attempts that counts. An attempt takes a microsecond; when more
/// than this lies between two, the thread did not run, and nothing was wrong with the hardware.
const GAP_MAX: Duration = Duration::from_micros(100);

/// One of the threads that wait.
struct Wait {
    last: Duration,
    waited: Duration,
    /// The most threads that waited at once, this one included: when some of them are served
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

/// Processors that the threads of this process can use; no limit where that is not known.
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
