//! The retransmission timeout (RFC 6298).

use std::time::Duration;

/// The longest timeout (RFC 6298, 2.5: at least 60 seconds).
const MAX: Duration = Duration::from_secs(60);
/// The timeout before the first measurement (RFC 6298, 2.1).
const INITIAL: Duration = Duration::from_secs(1);

/// Round-trip time, its variation, and the timeout that follows from them.
#[derive(Clone, Debug)]
pub(crate) struct Rtt {
    /// Smoothed round-trip time and its variation; `None` before the first measurement.
    measured: Option<(Duration, Duration)>,
    min: Duration,
    /// The timeout doubles with each of these.
    backoff: u32,
}

impl Rtt {
    /// Creates an estimator whose timeouts are at least `min`.
    pub(crate) fn new(min: Duration) -> Rtt {
        Rtt {
            measured: None,
            min,
            backoff: 0,
        }
    }

    /// Takes a round-trip time of a segment that was sent once (Karn's algorithm).
    pub(crate) fn measure(&mut self, time: Duration) {
        let time = time.min(MAX);
        self.measured = Some(match self.measured {
            None => (time, time / 2),
            Some((smoothed, variation)) => (
                smoothed * 7 / 8 + time / 8,
                variation * 3 / 4 + smoothed.abs_diff(time) / 4,
            ),
        });
        self.backoff = 0;
    }

    /// Returns the smoothed round-trip time.
    pub(crate) fn smoothed(&self) -> Option<Duration> {
        self.measured.map(|(smoothed, _)| smoothed)
    }

    /// Returns the timeout.
    pub(crate) fn timeout(&self) -> Duration {
        let timeout = match self.measured {
            None => INITIAL,
            Some((smoothed, variation)) => smoothed + (variation * 4).max(Duration::from_millis(1)),
        };
        (timeout.max(self.min) * 2u32.pow(self.backoff)).min(MAX)
    }

    /// Doubles the timeout, up to a minute.
    pub(crate) fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(10);
    }

    /// Ends the doubling without a measurement: the peer's window has opened.
    pub(crate) fn end_back_off(&mut self) {
        self.backoff = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_timeout_follows_rfc_6298() {
        let mut rtt = Rtt::new(ms(1));
        assert_eq!(rtt.timeout(), ms(1000));
        rtt.measure(ms(100));
        assert_eq!(rtt.timeout(), ms(100 + 4 * 50));
        rtt.measure(ms(180));
        // RTTVAR = 3/4 · 50 + 1/4 · 80, SRTT = 7/8 · 100 + 1/8 · 180.
        assert_eq!(rtt.timeout(), Duration::from_micros(110_000 + 4 * 57_500));
        rtt.back_off();
        rtt.back_off();
        assert_eq!(rtt.timeout(), Duration::from_micros(4 * 340_000));
        (0..40).for_each(|_| rtt.back_off());
        assert_eq!(rtt.timeout(), MAX);
        rtt.end_back_off();
        assert_eq!(rtt.timeout(), Duration::from_micros(340_000));
    }

    #[test]
    fn the_timeout_has_a_least_value() {
        let mut rtt = Rtt::new(ms(200));
        (0..20).for_each(|_| rtt.measure(Duration::from_micros(30)));
        assert_eq!(rtt.timeout(), ms(200));
    }
}
