//! The congestion window: CUBIC (RFC 9438) or NewReno (RFC 5681).

use std::time::Duration;

use tare_sim::Instant;

/// The growth of the congestion window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// CUBIC (RFC 9438).
    #[default]
    Cubic,
    /// One segment per round trip (RFC 5681).
    NewReno,
}

/// CUBIC's constant C, in segments per cubic second (RFC 9438, 5.1).
const C: f64 = 0.4;
/// The share of the window that CUBIC keeps (RFC 9438, 4.6).
const BETA: f64 = 0.7;
/// The share that NewReno keeps.
const BETA_RENO: f64 = 0.5;
/// Growth of the window that competes with Reno (RFC 9438, 4.3), segments per round trip.
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// The segments of the initial window (RFC 6928).
const INITIAL: u64 = 10;
/// The most that a window grows to, in bytes: scaled windows end there.
const MAX: f64 = (1u64 << 30) as f64;

/// Measurements of a round trip that HyStart++ compares, the bounds of the delay that ends slow
/// start, and the share of slow start's growth in the rounds after that (RFC 9406, 4.3).
const SAMPLES: u32 = 8;
const DELAY_MIN: Duration = Duration::from_millis(4);
const DELAY_MAX: Duration = Duration::from_millis(16);
const CONSERVATIVE: f64 = 0.25;
const CONSERVATIVE_ROUNDS: u32 = 5;

/// Slow start that ends when the round-trip time grows (HyStart++, RFC 9406), before a queue on the
/// path is full and drops a large part of a window.
#[derive(Clone, Debug)]
struct SlowStart {
    /// The position whose acknowledgment ends the round.
    round_end: u64,
    /// The least round-trip times of the last round and of this one.
    last: Duration,
    current: Duration,
    samples: u32,
    /// In conservative slow start: the least time when it began, and rounds since.
    conservative: Option<(Duration, u32)>,
}

impl SlowStart {
    fn new() -> SlowStart {
        SlowStart {
            round_end: 0,
            last: Duration::MAX,
            current: Duration::MAX,
            samples: 0,
            conservative: None,
        }
    }

    /// Begins a new round at the end of one. Returns true if slow start is over.
    fn end_round(&mut self, acknowledged: u64, next: u64) -> bool {
        if acknowledged < self.round_end {
            return false;
        }
        self.round_end = next;
        self.last = std::mem::replace(&mut self.current, Duration::MAX);
        self.samples = 0;
        match &mut self.conservative {
            Some((_, rounds)) => {
                *rounds += 1;
                *rounds >= CONSERVATIVE_ROUNDS
            }
            None => false,
        }
    }

    /// Takes a measured round-trip time.
    fn measure(&mut self, rtt: Duration) {
        self.current = self.current.min(rtt);
        self.samples += 1;
        if self.samples < SAMPLES || self.last == Duration::MAX {
            return;
        }
        match self.conservative {
            None => {
                let threshold = (self.last / 8).clamp(DELAY_MIN, DELAY_MAX);
                if self.current >= self.last + threshold {
                    self.conservative = Some((self.current, 0));
                }
            }
            // The delay was that of a moment.
            Some((base, _)) if self.current < base => self.conservative = None,
            Some(_) => {}
        }
    }
}

/// The window of one connection, in bytes.
#[derive(Clone, Debug)]
pub(crate) struct Congestion {
    slow_start: SlowStart,
    algorithm: Algorithm,
    mss: f64,
    window: f64,
    threshold: f64,
    /// The window before the latest reduction.
    w_max: f64,
    /// CUBIC's epoch: its start, the time to reach `w_max` again in seconds, and the window that
    /// Reno would have.
    epoch: Option<(Instant, f64, f64)>,
    /// The last acknowledgment, so that time in which the window was not used does not count.
    last: Instant,
}

impl Congestion {
    pub(crate) fn new(algorithm: Algorithm, mss: usize) -> Congestion {
        let mss = mss as f64;
        // RFC 6928, 2: min (10·MSS, max (2·MSS, 14600)).
        let window = (INITIAL as f64 * mss).min((2.0 * mss).max(14_600.0));
        Congestion {
            slow_start: SlowStart::new(),
            algorithm,
            mss,
            window,
            threshold: f64::INFINITY,
            w_max: 0.0,
            epoch: None,
            last: Instant::ZERO,
        }
    }

    /// Returns the window in bytes.
    pub(crate) fn window(&self) -> u64 {
        self.window as u64
    }

    /// Sets the segment size, because the path's has become known or smaller.
    pub(crate) fn set_mss(&mut self, mss: usize) {
        self.mss = mss as f64;
        self.window = self.window.max(self.mss);
    }

    /// Takes a measured round-trip time.
    pub(crate) fn measured(&mut self, rtt: Duration) {
        if self.window < self.threshold {
            self.slow_start.measure(rtt);
        }
    }

    /// All below `acknowledged` has arrived, `next` is the next position to be sent: rounds of slow
    /// start end here.
    pub(crate) fn advance(&mut self, acknowledged: u64, next: u64) {
        if self.window < self.threshold && self.slow_start.end_round(acknowledged, next) {
            self.threshold = self.window;
        }
    }

    /// Lets the window grow after `bytes` were acknowledged, if it was what limited the sender.
    pub(crate) fn acknowledged(&mut self, now: Instant, bytes: u64, rtt: Duration, is_limit: bool) {
        let idle = now.since(std::mem::replace(&mut self.last, now));
        if !is_limit {
            // RFC 9438, 5.8: the time in which the application was the limit is not counted.
            if let Some(epoch) = &mut self.epoch {
                epoch.0 += idle;
            }
            return;
        }
        let bytes = bytes as f64;
        if self.window < self.threshold {
            let is_conservative = self.slow_start.conservative.is_some();
            let share = if is_conservative { CONSERVATIVE } else { 1.0 };
            self.window = (self.window + share * bytes).min(self.threshold).min(MAX);
            return;
        }
        self.window = match self.algorithm {
            Algorithm::NewReno => self.window + self.mss * bytes / self.window,
            Algorithm::Cubic => self.cubic(now, bytes, rtt),
        }
        .min(MAX);
    }

    /// Returns the window after `bytes` were acknowledged (RFC 9438, 4.2 to 4.5).
    fn cubic(&mut self, now: Instant, bytes: f64, rtt: Duration) -> f64 {
        let window = self.window / self.mss;
        let acked = bytes / self.mss;
        self.w_max = self.w_max.max(self.window);
        let w_max = self.w_max / self.mss;
        let epoch = self
            .epoch
            .get_or_insert_with(|| (now, ((w_max - window) / C).cbrt(), window));
        let alpha = if epoch.2 < w_max { ALPHA } else { 1.0 };
        epoch.2 += alpha * acked / window;
        let at = |time: Duration| C * (time.as_secs_f64() - epoch.1).powi(3) + w_max;
        let elapsed = now.since(epoch.0);
        let next = if at(elapsed) < epoch.2 {
            epoch.2.max(window)
        } else {
            let target = at(elapsed + rtt).clamp(window, 1.5 * window);
            window + (target - window) / window * acked
        };
        next.min(1.5 * window) * self.mss
    }

    /// Reduces the window after a loss that was found by acknowledgments; `flight` bytes were on
    /// their way.
    pub(crate) fn lost(&mut self, flight: u64) {
        let window = self.window.min(flight as f64).max(self.mss);
        self.epoch = None;
        // RFC 9438, 4.7: fast convergence.
        self.w_max = if self.window < self.w_max {
            self.window * (1.0 + BETA) / 2.0
        } else {
            self.window
        };
        let beta = match self.algorithm {
            Algorithm::Cubic => BETA,
            Algorithm::NewReno => BETA_RENO,
        };
        self.threshold = (window * beta).max(2.0 * self.mss);
        self.window = self.threshold;
    }

    /// Starts again with one segment after a timeout. The threshold is that of the first timeout of
    /// a series (RFC 5681, 3.1).
    pub(crate) fn timed_out(&mut self, flight: u64, is_first: bool) {
        if is_first {
            self.lost(flight);
        }
        self.window = self.mss;
    }

    /// Reduces the window to the initial one after the connection was idle for longer than a
    /// timeout (RFC 5681, 4.1).
    pub(crate) fn restart(&mut self) {
        let initial = Congestion::new(self.algorithm, self.mss as usize).window;
        self.window = self.window.min(initial);
        self.epoch = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1000;
    const RTT: Duration = Duration::from_millis(100);

    /// Acknowledges a window per round trip, and returns the windows in segments.
    fn rounds(congestion: &mut Congestion, from: &mut Instant, rounds: usize) -> Vec<f64> {
        (0..rounds)
            .map(|_| {
                *from += RTT;
                for _ in 0..congestion.window() / MSS {
                    congestion.acknowledged(*from, MSS, RTT, true);
                }
                congestion.window() as f64 / MSS as f64
            })
            .collect()
    }

    #[test]
    fn the_initial_window_is_that_of_rfc_6928_and_doubles_per_round() {
        for (mss, window) in [(1000, 10_000), (1460, 14_600), (9000, 18_000)] {
            assert_eq!(Congestion::new(Algorithm::Cubic, mss).window(), window);
        }
        let mut congestion = Congestion::new(Algorithm::Cubic, MSS as usize);
        assert_eq!(
            rounds(&mut congestion, &mut Instant::ZERO.clone(), 3),
            [20.0, 40.0, 80.0]
        );
    }

    #[test]
    fn cubic_keeps_seven_tenths_and_is_back_at_its_plateau_after_k_seconds() {
        let mut congestion = Congestion::new(Algorithm::Cubic, MSS as usize);
        let mut now = Instant::ZERO;
        rounds(&mut congestion, &mut now, 6);
        assert_eq!(congestion.window(), 640 * MSS);
        congestion.lost(640 * MSS);
        assert_eq!(congestion.window(), 448 * MSS);
        // K = ∛(640 · 0.3 / 0.4) = 7.83 s.
        let windows = rounds(&mut congestion, &mut now, 120);
        assert!(windows[20] < 610.0, "{}", windows[20]);
        assert!((620.0..650.0).contains(&windows[78]), "{}", windows[78]);
        assert!((windows[90] - windows[70]).abs() < 15.0);
        assert!(windows[119] > 670.0, "{}", windows[119]);
    }

    #[test]
    fn slow_start_becomes_slower_when_the_delay_grows_and_ends_five_rounds_later() {
        let mut congestion = Congestion::new(Algorithm::Cubic, MSS as usize);
        let mut windows = Vec::new();
        let mut position = 0;
        for round in 0..12 {
            let rtt = RTT + if round < 3 { Duration::ZERO } else { RTT / 5 };
            for _ in 0..congestion.window() / MSS {
                position += MSS;
                congestion.measured(rtt);
                congestion.advance(position, position + congestion.window());
                congestion.acknowledged(Instant::ZERO, MSS, rtt, true);
            }
            windows.push(congestion.window() / MSS);
        }
        assert_eq!(windows[..3], [20, 40, 80]);
        assert!((100..110).contains(&windows[3]), "{windows:?}");
        assert!((240..260).contains(&windows[7]), "{windows:?}");
        assert!(windows[11] < 280, "{windows:?}");
    }

    #[test]
    fn newreno_halves_and_grows_by_a_segment_per_round() {
        let mut congestion = Congestion::new(Algorithm::NewReno, MSS as usize);
        let mut now = Instant::ZERO;
        rounds(&mut congestion, &mut now, 4);
        congestion.lost(160 * MSS);
        let windows = rounds(&mut congestion, &mut now, 10);
        assert!((89.0..91.0).contains(&windows[9]), "{windows:?}");
    }

    #[test]
    fn small_windows_grow_at_least_as_renos_would() {
        let mut congestion = Congestion::new(Algorithm::Cubic, MSS as usize);
        let mut now = Instant::ZERO;
        congestion.lost(10 * MSS);
        let windows = rounds(&mut congestion, &mut now, 20);
        // ALPHA is 0.53; K is 1.96 s, at which Reno's window would be 17.
        assert!(windows[19] > 15.0, "{windows:?}");
    }

    #[test]
    fn a_timeout_leaves_one_segment_and_later_ones_keep_the_threshold() {
        let mut congestion = Congestion::new(Algorithm::Cubic, MSS as usize);
        let mut now = Instant::ZERO;
        rounds(&mut congestion, &mut now, 3);
        congestion.timed_out(80 * MSS, true);
        assert_eq!(congestion.window(), MSS);
        congestion.timed_out(MSS, false);
        let windows = rounds(&mut congestion, &mut now, 6);
        assert_eq!(windows[..5], [2.0, 4.0, 8.0, 16.0, 32.0]);
        assert!((55.0..58.0).contains(&windows[5]), "{windows:?}");
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow_and_shrinks_after_idling() {
        let mut congestion = Congestion::new(Algorithm::Cubic, MSS as usize);
        congestion.acknowledged(Instant::ZERO + RTT, 5 * MSS, RTT, false);
        assert_eq!(congestion.window(), 10 * MSS);
        rounds(&mut congestion, &mut Instant::ZERO.clone(), 3);
        congestion.restart();
        assert_eq!(congestion.window(), 10 * MSS);
    }
}
