//! A limit on how often something happens.

use std::time::Duration;

use tare_sim::Instant;

use super::counters::DropReason;

/// One every `interval` on average, `burst` at once.
pub(crate) struct Rate {
    interval: Duration,
    burst: u32,
    /// When everything taken so far will have been paid for.
    paid: Instant,
}

impl Rate {
    pub(crate) fn new(interval: Duration, burst: u32) -> Rate {
        Rate {
            interval,
            burst,
            paid: Instant::ZERO,
        }
    }

    pub(crate) fn take(&mut self, now: Instant) -> Result<(), DropReason> {
        let paid = self.paid.max(now);
        if paid.since(now) >= self.interval * self.burst {
            return Err(DropReason::Rate);
        }
        self.paid = paid + self.interval;
        Ok(())
    }

    /// Undoes the last [`Rate::take`].
    pub(crate) fn give_back(&mut self) {
        self.paid = self.paid - self.interval;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let mut rate = Rate::new(Duration::from_millis(10), 5);
        let passed = (0..1000).filter(|ms| {
            rate.take(Instant::ZERO + Duration::from_millis(*ms))
                .is_ok()
        });
        assert_eq!(passed.count(), 105);
    }
}
