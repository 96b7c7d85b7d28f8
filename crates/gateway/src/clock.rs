//! Time that never goes back.

use std::time::Duration;

use tare_sim::Instant;

/// Makes a monotonic time from the caller's, which may be set back: for as long as it is behind,
/// the time inside stands still, and then goes on from there.
#[derive(Default)]
pub(crate) struct MonotonicClock {
    last: Instant,
    /// The time by which the time inside is ahead of the caller's.
    ahead: Duration,
}

impl MonotonicClock {
    /// Returns the time inside for the caller's.
    pub(crate) fn inside(&mut self, now: Instant) -> Instant {
        self.ahead += self.last.since(now);
        self.last = now;
        now + self.ahead
    }

    /// Returns the last time that the caller told, as it is inside.
    pub(crate) fn last(&self) -> Instant {
        self.last + self.ahead
    }

    /// Returns the caller's time for a time inside.
    pub(crate) fn outside(&self, at: Instant) -> Instant {
        match at {
            Instant::NEVER => at,
            at => at - self.ahead,
        }
    }
}
