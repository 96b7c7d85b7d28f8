//! The limit of the retries of one value.
//!
//! RDRAND of a sound processor practically always delivers, and ten attempts (Intel's guide) are
//! plenty. RDSEED regularly runs out of entropy: on AMD Zen 5 it has about 80 values in store and
//! then gives 39,000 per second to all the processors of a socket together; one value alone was
//! seen to take 220 attempts. A number of attempts means little there, since an attempt takes
//! 0.2 µs on one make and 0.9 µs on another, and a value 25 µs alone and 1.6 ms where 64 threads
//! compete for it. Hence the limit of RDSEED is in time too, and grows with the number of threads
//! that wait.

use core::time::Duration;

use crate::processor::Instruction;

/// The limit of the retries of one value: an [underflow](crate::Error::Underflow) is reported when
/// the attempts *and* the time are used up.
///
/// The time is for a thread that waits alone. Threads of this process that wait at the same time
/// share the output of the hardware, and each waits that many times as long (at most as many as
/// there are processors). Time in which a thread does not get a processor does not count.
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

    /// Returns the default of an instruction.
    #[must_use]
    pub const fn of(instruction: Instruction) -> Self {
        match instruction {
            Instruction::Rdrand => Self::RDRAND,
            Instruction::Rdseed => Self::RDSEED,
        }
    }

    /// Returns a limit of exactly this many attempts, however long they take; 0 counts as 1.
    #[inline]
    #[must_use]
    pub const fn new(attempts: u32) -> Self {
        RetryLimit {
            attempts: if attempts == 0 { 1 } else { attempts },
            time_us: 0,
        }
    }

    /// Returns this number of attempts with at least this time for each of the threads that wait:
    /// whole microseconds, 71 minutes at most. Without a clock (no `std`, not x86) only the
    /// attempts count.
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

    /// The least number of attempts.
    #[must_use]
    pub const fn attempts(self) -> u32 {
        self.attempts
    }

    /// The least time that a thread waits when no other one waits; zero if only attempts count.
    #[must_use]
    pub const fn time(self) -> Duration {
        Duration::from_micros(self.time_us as u64)
    }

    /// Returns the larger number of attempts and the longer time of two limits.
    pub(crate) fn max(self, other: Self) -> Self {
        RetryLimit {
            attempts: self.attempts.max(other.attempts),
            time_us: self.time_us.max(other.time_us),
        }
    }
}
