//! The times at which requests are to be sent.

use std::ops::RangeInclusive;
use std::time::Duration;

use tare_sim::{Instant, Random};

use crate::trace::Lines;

/// The time at which the next request is sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// A closed loop: when the response to an earlier one has arrived. The server sets the rate,
    /// and a server that stops is not asked meanwhile, so latencies of a closed loop leave out what
    /// clients with a mind of their own would have waited.
    Closed,
    /// An open loop with this many requests per second, evenly spaced.
    Constant(f64),
    /// An open loop with this many requests per second on average, with the exponential gaps of
    /// clients that know nothing of each other.
    Poisson(f64),
    /// An open loop with the times of a trace.
    Trace,
}

/// The requests per second that an open loop may have.
pub const RATES: RangeInclusive<f64> = 1e-3..=1e9;

impl Pace {
    /// Requests per second; `None` for a closed loop and for a trace.
    pub fn rate(&self) -> Option<f64> {
        match self {
            Pace::Closed | Pace::Trace => None,
            Pace::Constant(rate) | Pace::Poisson(rate) => Some(*rate),
        }
    }

    /// The part of one thread of `threads`.
    pub(crate) fn schedule(
        &self,
        thread: usize,
        threads: usize,
        start: Instant,
        seed: u64,
    ) -> Option<Schedule> {
        let gap_ns = 1e9 * threads as f64 / self.rate()?;
        let random = Random::new(seed ^ !(thread as u64)).fork();
        Some(match self {
            Pace::Poisson(_) => Schedule::new(start, Gaps::Exponential(gap_ns, random)),
            _ => Schedule {
                start,
                // Evenly spaced over all threads.
                elapsed_ns: gap_ns * thread as f64 / threads as f64,
                gaps: Gaps::Even(gap_ns),
            },
        })
    }
}

/// The intended times of an open loop, without end.
#[derive(Debug)]
pub(crate) struct Schedule {
    start: Instant,
    /// From the start to the next request. A sum of doubles: in the first hour each addition is off
    /// by less than 0.3 ps, so that a million requests per second are in their places to a
    /// millisecond.
    elapsed_ns: f64,
    gaps: Gaps,
}

/// The gaps between requests.
#[derive(Debug)]
pub(crate) enum Gaps {
    /// Of this many nanoseconds.
    Even(f64),
    /// Of this many on average.
    Exponential(f64, Random),
    /// Those of these lines.
    Trace(Lines),
}

impl Schedule {
    /// Times of which the first is a gap after the start.
    pub(crate) fn new(start: Instant, gaps: Gaps) -> Schedule {
        let mut schedule = Schedule {
            start,
            elapsed_ns: 0.0,
            gaps,
        };
        schedule.advance();
        schedule
    }

    /// The next intended time.
    pub(crate) fn peek(&self) -> Instant {
        self.start + Duration::from_nanos(self.elapsed_ns as u64)
    }

    /// Goes on to the one after it.
    pub(crate) fn advance(&mut self) {
        match &mut self.gaps {
            Gaps::Even(gap_ns) => self.elapsed_ns += *gap_ns,
            Gaps::Exponential(mean_ns, random) => {
                // From just above 0 to 1, so that its logarithm is finite.
                let unit = ((random.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
                self.elapsed_ns -= unit.ln() * *mean_ns;
            }
            // Where there is no next line, there is no next request either: that says why.
            Gaps::Trace(lines) => {
                if let Ok(Some((Some(at), _))) = lines.next() {
                    self.elapsed_ns = at.as_nanos() as f64;
                }
            }
        }
    }

    /// Goes past the times before `end`, at most `most` of them; returns how many those are.
    pub(crate) fn pass(&mut self, end: Instant, most: u64) -> u64 {
        if let Gaps::Even(gap_ns) = self.gaps {
            // There may be 10^10 of them at the end of a trial.
            let left_ns = end.since(self.start).as_nanos() as f64 - self.elapsed_ns;
            let passed = ((left_ns / gap_ns).ceil() as u64).min(most);
            self.elapsed_ns += passed as f64 * gap_ns;
            return passed;
        }
        let mut passed = 0;
        while passed < most && self.peek() < end {
            self.advance();
            passed += 1;
        }
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The times before `end`, one by one.
    fn counted(schedule: &mut Schedule, end: Instant, most: u64) -> u64 {
        let mut passed = 0;
        while passed < most && schedule.peek() < end {
            schedule.advance();
            passed += 1;
        }
        passed
    }

    #[test]
    fn times_are_passed_at_once_as_one_by_one() {
        let start = Instant::from_nanos(1_000_000_000);
        let after = |ms: u64| start + Duration::from_millis(ms);
        for pace in [
            Pace::Constant(1000.0),
            Pace::Constant(333.3),
            Pace::Constant(1e-3),
            Pace::Poisson(1000.0),
        ] {
            let make = || pace.schedule(1, 3, start, 5).unwrap();
            let (mut at_once, mut one_by_one) = (make(), make());
            for (end, most) in [(0, 9), (100, 9), (100, 900), (100, 900), (2000, u64::MAX)] {
                let passed = at_once.pass(after(end), most);
                assert_eq!(
                    passed,
                    counted(&mut one_by_one, after(end), most),
                    "{pace:?}"
                );
                let apart = at_once.elapsed_ns - one_by_one.elapsed_ns;
                assert!(apart.abs() < 1e-3, "{pace:?}: {apart} ns");
            }
        }
        // A time is not before itself.
        let mut schedule = Pace::Poisson(1000.0).schedule(0, 1, start, 5).unwrap();
        assert_eq!(schedule.pass(schedule.peek(), 9), 0);
        // Ten years of a billion per second, which take no time.
        let mut schedule = Pace::Constant(1e9).schedule(0, 1, start, 5).unwrap();
        let years = start + Duration::from_secs(10 * 365 * 86_400);
        let passed = schedule.pass(years, u64::MAX);
        assert_eq!(passed, 315_360_000_000_000_000);
    }

    fn times(pace: Pace, thread: usize, threads: usize, n: usize) -> Vec<f64> {
        let start = Instant::from_nanos(1_000_000_000);
        let mut schedule = pace.schedule(thread, threads, start, 5).unwrap();
        let next = |_| {
            let at = schedule.peek().since(start).as_secs_f64();
            schedule.advance();
            at
        };
        (0..n).map(next).collect()
    }

    #[test]
    fn a_constant_rate_is_evenly_spaced_over_the_threads() {
        let mut all = times(Pace::Constant(1000.0), 0, 2, 50);
        all.extend(times(Pace::Constant(1000.0), 1, 2, 50));
        all.sort_by(f64::total_cmp);
        for (n, at) in all.iter().enumerate() {
            assert!((at - n as f64 / 1000.0).abs() < 1e-8, "{n}: {at}");
        }
    }

    #[test]
    fn poisson_arrivals_have_the_mean_and_the_deviation_of_exponential_gaps() {
        let times = times(Pace::Poisson(1000.0), 0, 1, 100_000);
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean * 1000.0 - 1.0).abs() < 0.02, "{mean}");
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.03);
    }

    #[test]
    fn a_closed_loop_has_no_schedule() {
        assert_eq!(Pace::Closed.rate(), None);
        assert!(Pace::Closed.schedule(0, 1, Instant::ZERO, 0).is_none());
    }
}
