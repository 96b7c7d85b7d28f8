//! The clock of a simulated machine, which may be wrong.

use std::time::Duration;

use crate::time::nanos;
use crate::Instant;

const BILLION: i128 = 1_000_000_000;

/// A clock that may be ahead of the true time or behind it, and may run fast or slow. One that has
/// never been disturbed shows the true time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SkewedClock {
    /// False for one that shows the true time, which most do and which costs nothing then.
    is_disturbed: bool,
    /// When it was last disturbed, and what it showed then.
    true_ns: i128,
    shown_ns: i128,
    /// How many nanoseconds it gains in a second.
    gain: i128,
}

impl SkewedClock {
    /// The time that the clock shows at a true time. It shows no time before [`Instant::ZERO`].
    #[inline]
    pub fn at(&self, now: Instant) -> Instant {
        if !self.is_disturbed {
            return now;
        }
        let elapsed = i128::from(now.as_nanos()) - self.true_ns;
        let shown = self.shown_ns + (elapsed * (BILLION + self.gain)).div_euclid(BILLION);
        instant(shown)
    }

    /// The first true time, from `now` on, at which the clock shows `deadline` or later.
    #[inline]
    pub fn when(&self, now: Instant, deadline: Instant) -> Instant {
        if deadline == Instant::NEVER || !self.is_disturbed {
            return deadline.max(now);
        }
        let elapsed = (i128::from(deadline.as_nanos()) - self.shown_ns) * BILLION;
        let speed = BILLION + self.gain;
        let elapsed = elapsed.div_euclid(speed) + i128::from(elapsed.rem_euclid(speed) != 0);
        instant(self.true_ns + elapsed).max(now)
    }

    /// Sets the clock ahead, as an operator or NTP does.
    pub fn step_ahead(&mut self, now: Instant, by: Duration) {
        self.disturb(now, i128::from(nanos(by)));
    }

    /// Sets the clock back.
    pub fn step_back(&mut self, now: Instant, by: Duration) {
        self.disturb(now, -i128::from(nanos(by)));
    }

    /// Lets the clock gain so many nanoseconds per second from now on, or lose them if negative. A
    /// quartz is within ± 100,000 of them, which is 100 parts per million.
    ///
    /// # Panics
    /// If the clock would stand still or run backwards.
    pub fn set_gain(&mut self, now: Instant, ns_per_second: i32) {
        assert!(
            i128::from(ns_per_second) > -BILLION,
            "a clock goes forwards"
        );
        self.disturb(now, 0);
        self.gain = ns_per_second.into();
    }

    fn disturb(&mut self, now: Instant, step: i128) {
        self.shown_ns = i128::from(self.at(now).as_nanos()) + step;
        self.true_ns = now.as_nanos().into();
        self.is_disturbed = true;
    }
}

fn instant(ns: i128) -> Instant {
    Instant::from_nanos(u64::try_from(ns.max(0)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn s(seconds: u64) -> Instant {
        Instant::ZERO + SECOND * seconds as u32
    }

    #[test]
    fn a_clock_shows_what_its_steps_and_its_gain_make_of_the_time() {
        let mut clock = SkewedClock::default();
        assert_eq!(clock.at(s(5)), s(5));
        clock.step_ahead(s(10), SECOND * 100);
        assert_eq!(clock.at(s(11)), s(111));
        clock.step_back(s(11), SECOND * 50);
        assert_eq!(clock.at(s(12)), s(62));
        clock.set_gain(s(20), 1_000_000);
        assert_eq!(clock.at(s(1020)), s(1071));
        clock.step_back(s(1020), SECOND * 5000);
        assert_eq!(clock.at(s(1020)), Instant::ZERO);
    }

    proptest! {
        /// A timer set by the clock fires when the clock shows it, and not a nanosecond earlier.
        #[test]
        fn a_deadline_is_met_exactly_when_the_clock_shows_it(
            gain in -900_000_000i32..900_000_000, start in 0u64..1 << 40, step in 0u64..1 << 40,
            ahead in any::<bool>(), wait in 0u64..1 << 40,
        ) {
            let now = Instant::from_nanos(start);
            let mut clock = SkewedClock::default();
            clock.set_gain(now, gain);
            let by = Duration::from_nanos(step);
            if ahead { clock.step_ahead(now, by) } else { clock.step_back(now, by) };
            let deadline = clock.at(now) + Duration::from_nanos(wait);
            let when = clock.when(now, deadline);
            prop_assert!(when >= now && clock.at(when) >= deadline);
            if when > now {
                prop_assert!(clock.at(Instant::from_nanos(when.as_nanos() - 1)) < deadline);
            }
        }
    }
}
