//! A limit of time that forgives the stretches in which this process did not run.

use std::time::{Duration, Instant};

/// The time that is left to wait for something.
///
/// A stretch in which this process did not run either (Ctrl-Z, a busy machine) is not the trial's
/// fault and counts for no more than [`Patience::STRETCH_MAX`], or a tenth of a shorter limit:
/// between ten stretches the other threads of this process get to run.
pub(super) struct Patience {
    left: Duration,
    since: Instant,
    stretch_max: Duration,
}

impl Patience {
    const STRETCH_MAX: Duration = Duration::from_millis(500);

    pub(super) fn new(left: Duration) -> Patience {
        Patience {
            left,
            since: Instant::now(),
            stretch_max: Self::STRETCH_MAX,
        }
    }

    pub(super) fn left(&mut self) -> Duration {
        let now = Instant::now();
        let passed = (now - self.since).min(self.stretch_max);
        self.since = now;
        self.left = self.left.saturating_sub(passed);
        self.left
    }

    /// From now on. A stretch before now is not taken from `most`.
    pub(super) fn at_most(&mut self, most: Duration) {
        self.left = self.left().min(most);
        self.stretch_max = self.stretch_max.min(most / 10);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_limit_begins_when_it_is_set() {
        let most = Duration::from_millis(500);
        let mut patience = Patience::new(Duration::from_secs(60));
        std::thread::sleep(2 * most);
        patience.at_most(most);
        assert!(patience.left() > most / 2);
    }

    #[test]
    fn a_stretch_as_long_as_the_limit_is_a_tenth_of_it() {
        let most = Duration::from_millis(500);
        let mut patience = Patience::new(Duration::from_secs(60));
        patience.at_most(most);
        for left in [9, 8, 7] {
            std::thread::sleep(most);
            assert_eq!(patience.left(), most * left / 10);
        }
    }
}
