//! A limit of time that forgives the stretches in which this process did not run.

use std::time::{Duration, Instant};

/// The time that is left to wait for something.
///
/// A stretch in which this process did not run either (Ctrl-Z) is not the trial's fault and counts
/// for no more than [`Patience::STRETCH_MAX`].
pub(super) struct Patience {
    left: Duration,
    since: Instant,
}

impl Patience {
    const STRETCH_MAX: Duration = Duration::from_millis(500);

    pub(super) fn new(left: Duration) -> Patience {
        Patience {
            left,
            since: Instant::now(),
        }
    }

    pub(super) fn left(&mut self) -> Duration {
        let now = Instant::now();
        let passed = (now - self.since).min(Self::STRETCH_MAX);
        self.since = now;
        self.left = self.left.saturating_sub(passed);
        self.left
    }

    /// From now on. A stretch before now is not taken from `most`.
    pub(super) fn at_most(&mut self, most: Duration) {
        self.left = self.left().min(most);
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
}
