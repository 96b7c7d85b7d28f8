//! Time as a number, so that protocol cores run on a real clock and on a simulated one alike.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// Whole nanoseconds; what 64 bits cannot hold is the most that they can.
pub(crate) const fn nanos(duration: Duration) -> u64 {
    let ns = duration.as_nanos();
    if ns > u64::MAX as u128 {
        u64::MAX
    } else {
        ns as u64
    }
}

/// A moment: nanoseconds since an origin of the caller's choice. 64 bits last 584 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The origin.
    pub const ZERO: Instant = Instant(0);

    /// A moment so late that it never comes.
    pub const NEVER: Instant = Instant(u64::MAX);

    /// `ns` nanoseconds after the origin.
    pub const fn from_nanos(ns: u64) -> Instant {
        Instant(ns)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Seconds since the origin.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The time since `earlier`, or zero when that is later: clocks step.
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Now on the monotonic clock of this machine, whose origin all its processes share.
    pub fn now() -> Instant {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Instant(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    /// Saturates at [`Instant::NEVER`].
    fn add(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_add(nanos(duration)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;

    /// Saturates at [`Instant::ZERO`].
    fn sub(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_sub(nanos(duration)))
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.9} s", self.as_secs_f64())
    }
}
