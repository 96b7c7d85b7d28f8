//! The path to a node: round-trip time, retransmission timeout and window.

use std::time::Duration;

use tare_sim::Instant;

/// The bounds of a path's estimates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) timeout_initial_ns: u64,
    pub(super) timeout_min_ns: u64,
    pub(super) timeout_max_ns: u64,
    /// Time in queues that the window aims at.
    pub(super) queueing_ns: u64,
    pub(super) window_max: u64,
    /// Bytes of a full datagram.
    pub(super) datagram: u64,
}

impl Bounds {
    fn window_initial(&self) -> u64 {
        (self.datagram * WINDOW_INITIAL_DATAGRAMS).min(self.window_max)
    }
}

/// Estimates of one path, from attempts that were answered and attempts that were not.
///
/// The retransmission timeout is that of RFC 6298. Since each attempt has a number of its own, an
/// answer to a retransmission is a sample like any other (Karn's algorithm is not needed), and the
/// timeout grows per message, not for the path.
///
/// The window counts bytes in both directions. It grows as that of TCP does while round trips are
/// shorter than the least one and the queueing time aimed at; else it shrinks in proportion to the
/// excess, at most by half and once per round trip (the rule of Swift, Kumar et al. 2020, section
/// 3.1, with the same constants). Delay alone never takes it below its initial size: on a machine
/// whose processors are all busy, round trips are as long as the scheduler makes them, whatever the
/// window.
///
/// Loss halves it, once for all that was sent before. A node that did not run for a while looks
/// like loss until it answers: then the window is what it was (as by the Eifel algorithm, RFC
/// 4015).
#[derive(Debug)]
pub(super) struct Path {
    bounds: Bounds,
    smoothed_ns: u64,
    variation_ns: u64,
    /// Least round trip of the present and the previous period: routes change.
    least_ns: [u64; 2],
    period_end: Instant,
    window: u64,
    slow_start: bool,
    /// The time when it shrank last: what was sent before is no reason to do so again.
    shrunk: Instant,
    /// The window before attempts were taken for lost; 0 if they were, or none was.
    before_loss: u64,
}

const PERIOD: Duration = Duration::from_secs(10);
const WINDOW_INITIAL_DATAGRAMS: u64 = 16;

impl Path {
    pub(super) fn new(bounds: Bounds) -> Path {
        Path {
            bounds,
            smoothed_ns: 0,
            variation_ns: 0,
            least_ns: [u64::MAX; 2],
            period_end: Instant::ZERO,
            window: bounds.window_initial(),
            slow_start: true,
            shrunk: Instant::ZERO,
            before_loss: 0,
        }
    }

    /// Bytes that may be outstanding; at least those of a datagram.
    #[inline]
    pub(super) fn window(&self) -> u64 {
        self.window
    }

    /// The time after which an attempt is taken for lost, `earlier` being the attempts before it.
    pub(super) fn timeout(&self, earlier: u32) -> Duration {
        Duration::from_nanos(self.timeout_ns(earlier))
    }

    /// The same in nanoseconds.
    #[inline]
    pub(super) fn timeout_ns(&self, earlier: u32) -> u64 {
        let bounds = &self.bounds;
        let first = match self.smoothed_ns {
            0 => bounds.timeout_initial_ns,
            smoothed => smoothed + 4 * self.variation_ns,
        };
        let least = bounds.timeout_min_ns.min(bounds.timeout_max_ns);
        let first = first.max(least).saturating_mul(1 << earlier.min(10));
        first.min(bounds.timeout_max_ns)
    }

    /// The time after which an attempt is taken for lost if one that was sent later is answered, in
    /// nanoseconds.
    #[inline]
    pub(super) fn round_trip_ns(&self) -> u64 {
        self.smoothed_ns + 4 * self.variation_ns
    }

    /// Takes the round trip of an attempt of `bytes` in both directions, while `outstanding` bytes
    /// were, that included.
    #[inline]
    pub(super) fn answered(&mut self, now: Instant, rtt_ns: u64, bytes: u64, outstanding: u64) {
        let rtt = rtt_ns.max(1);
        if self.smoothed_ns == 0 {
            (self.smoothed_ns, self.variation_ns) = (rtt, rtt / 2);
        } else {
            let deviation = self.smoothed_ns.abs_diff(rtt);
            self.variation_ns = self.variation_ns - self.variation_ns / 4 + deviation / 4;
            self.smoothed_ns = self.smoothed_ns - self.smoothed_ns / 8 + rtt / 8;
        }
        if now >= self.period_end {
            self.least_ns = [u64::MAX, self.least_ns[0]];
            self.period_end = now + PERIOD;
        }
        self.least_ns[0] = self.least_ns[0].min(rtt);
        let least = self.least_ns[0].min(self.least_ns[1]);
        let target = least + self.bounds.queueing_ns;
        if rtt > target {
            let excess = 0.8 * (rtt - target) as f64 / rtt as f64;
            let sent = Instant::from_nanos(now.as_nanos().saturating_sub(rtt_ns));
            let least = self.bounds.window_initial().min(self.window);
            self.shrink(now, sent, 1.0 - excess.min(0.5), least);
        } else if outstanding * 2 >= self.window {
            // A window that is not used proves nothing about the path.
            let more = match self.slow_start {
                true => bytes,
                false => (self.bounds.datagram * bytes / self.window).max(1),
            };
            self.window = (self.window + more).min(self.bounds.window_max);
        }
    }

    /// Takes note of an attempt that was not answered in time.
    pub(super) fn lost(&mut self, now: Instant, sent: Instant) {
        let before = self.before_loss.max(self.window);
        if self.shrink(now, sent, 0.5, self.bounds.datagram) {
            self.before_loss = before;
        }
    }

    /// Takes note of an attempt that the node had no room for.
    pub(super) fn refused(&mut self, now: Instant, sent: Instant) {
        self.shrink(now, sent, 0.5, self.bounds.datagram);
    }

    /// Takes note of an answer to an attempt that was taken for lost, or that others were before.
    /// If it was taken for lost, it was late; those before it may have been lost.
    #[cold]
    pub(super) fn found(&mut self, was_late: bool, is_first: bool) {
        let before = std::mem::take(&mut self.before_loss);
        let window = match (was_late, is_first) {
            (true, true) => before,
            (true, false) => before / 2,
            (false, _) => 0,
        };
        self.window = self.window.max(window);
    }

    /// Multiplies the window, but not below `least`, unless it shrank since `sent`; returns true if
    /// it was multiplied.
    fn shrink(&mut self, now: Instant, sent: Instant, factor: f64, least: u64) -> bool {
        self.slow_start = false;
        let is_due = sent >= self.shrunk;
        if is_due {
            self.window = ((self.window as f64 * factor) as u64).max(least);
            self.shrunk = now;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn micros(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    fn path() -> Path {
        Path::new(Bounds {
            timeout_initial_ns: 10_000_000,
            timeout_min_ns: 200_000,
            timeout_max_ns: 100_000_000,
            queueing_ns: 50_000,
            window_max: 1 << 20,
            datagram: 1500,
        })
    }

    #[test]
    fn the_timeout_follows_rfc_6298_and_doubles_per_attempt() {
        let mut path = path();
        assert_eq!(path.timeout(0), micros(10_000));
        path.answered(Instant::ZERO, 400000, 100, 100);
        assert_eq!(path.timeout(0), micros(400 + 4 * 200));
        path.answered(Instant::ZERO, 800000, 100, 100);
        // Variation 3/4 · 200 + 1/4 · 400, mean 7/8 · 400 + 1/8 · 800.
        assert_eq!(path.timeout(0), micros(450 + 4 * 250));
        assert_eq!(path.timeout(2), micros(4 * 1450));
        assert_eq!(path.timeout(60), micros(100_000));
        (0..1000).for_each(|_| path.answered(Instant::ZERO, 10000, 100, 100));
        assert_eq!(path.timeout(0), micros(200));
    }

    #[test]
    fn the_window_grows_when_it_is_used_and_shrinks_once_per_round_trip() {
        let mut path = path();
        let start = path.window();
        let now = Instant::ZERO + PERIOD;
        path.answered(now, 100000, 1500, 1500);
        assert_eq!(path.window(), start, "most of it is unused");
        path.answered(now, 100000, 1500, start);
        assert_eq!(path.window(), start + 1500, "slow start");
        path.answered(now, 150000, 1500, start);
        assert_eq!(path.window(), start + 3000, "within the target");
        path.answered(now, 100000, 3 * start, start);
        let start = path.window();
        path.answered(now, 300000, 1500, start);
        let shrunk = path.window();
        assert!(shrunk < start && shrunk > start / 2, "{shrunk}");
        path.answered(now + micros(299), 300000, 1500, start);
        path.lost(now + micros(10_000), now - micros(1));
        assert_eq!(path.window(), shrunk, "sent before");
        path.answered(now, 100000, 1500, shrunk);
        let grown = path.window() - shrunk;
        assert!((1..200).contains(&grown), "{grown}");
        for n in 0..100 {
            let now = now + micros(10_000) * n;
            path.lost(now, now);
        }
        assert_eq!(path.window(), 1500, "one datagram is always allowed");
    }

    #[test]
    fn delay_alone_never_takes_the_window_below_its_initial_size() {
        let mut path = path();
        let start = path.window();
        path.answered(Instant::ZERO, 10_000, 1500, start);
        let mut now = Instant::ZERO;
        for _ in 0..100 {
            now += micros(9000);
            path.answered(now, 8_000_000, 1500, start);
        }
        assert_eq!(path.window(), start);
        path.lost(now, now);
        let halved = path.window();
        path.answered(now + micros(9000), 8_000_000, 1500, start);
        assert_eq!(path.window(), halved, "nor does it bring it back there");
    }

    #[test]
    fn what_was_late_and_not_lost_gives_the_window_back() {
        for (was_late, is_first, part) in [(true, true, 1), (true, false, 2), (false, false, 16)] {
            let mut path = path();
            let start = path.window();
            let mut now = Instant::ZERO + micros(1000);
            // A series of losses in one silence.
            for _ in 0..4 {
                path.lost(now, now);
                now += micros(1000);
            }
            assert_eq!(path.window(), start / 16);
            path.found(was_late, is_first);
            assert_eq!(path.window(), start / part);
            path.found(true, true);
            assert_eq!(path.window(), start / part, "once");
            path.refused(now, now);
            let refused = path.window();
            path.found(true, true);
            assert_eq!(path.window(), refused, "the node had no room");
        }
    }

    #[test]
    fn a_longer_route_becomes_the_base_after_two_periods() {
        let mut path = path();
        let mut now = Instant::ZERO;
        path.answered(now, 10000, 1500, 1500);
        for _ in 0..3 {
            now += PERIOD;
            path.answered(now, 500000, 1500, 1500);
        }
        let window = path.window();
        path.answered(now + PERIOD, 500000, 1500, window);
        assert!(path.window() > window);
    }
}
