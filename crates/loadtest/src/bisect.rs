//! The highest rate that passes, by halving.

use serde::Serialize;

use crate::Rate;

/// The outcome of a trial for the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The rate passed.
    Passed,
    /// It failed and is tried again; so many tries remain after that one.
    Retry {
        /// Tries that remain.
        remaining: u32,
    },
    /// It failed for the last time.
    Failed,
}

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Limit {
    /// The highest rate that passed, twice; 0 where none did.
    #[serde(rename = "passed_bits_per_second")]
    pub passed: Rate,
    /// The lowest rate above it that failed; `None` if the highest that was to be tested passed.
    #[serde(rename = "failed_bits_per_second")]
    pub failed: Option<Rate>,
}

/// A binary search for the highest rate that passes. Its first step is half of the maximum, and
/// steps halve until they are the precision.
///
/// The maximum itself is tested where nothing below it failed. What would be the answer is tested
/// again; if it fails, the search goes on below. So the answer has passed twice, and the rate one
/// step above it has failed, also on a device that loses at some rate and not at a higher one.
#[derive(Clone, Debug)]
pub struct Bisection {
    precision: u64,
    max: u64,
    retries: u32,
    /// Rates that passed, lowest first, each below `failed`.
    passed: Vec<u64>,
    /// The lowest rate that failed.
    failed: Option<u64>,
    /// The rate that passed again.
    confirmed: Option<u64>,
    /// Failures in a row of `current`.
    failures: u32,
    current: Option<u64>,
}

impl Bisection {
    /// A search up to `max`, in steps of `precision` (at least one bit per second). A rate that
    /// fails is tried again `retries` times.
    pub fn new(max: Rate, precision: Rate, retries: u32) -> Bisection {
        let mut bisection = Bisection {
            precision: precision.bits().clamp(1, max.bits().max(1)),
            max: max.bits(),
            retries,
            passed: Vec::new(),
            failed: None,
            confirmed: None,
            failures: 0,
            current: None,
        };
        bisection.choose();
        bisection
    }

    /// The rate to be tested next; none when the search is over.
    pub fn next_rate(&self) -> Option<Rate> {
        self.current.map(Rate::from_bits)
    }

    /// Enters whether the rate of [`Bisection::next_rate`] passed.
    pub fn record(&mut self, passed: bool) -> Step {
        let Some(rate) = self.current else {
            return Step::Failed;
        };
        if passed {
            if self.passed.last() == Some(&rate) {
                self.confirmed = Some(rate);
            } else {
                self.passed.push(rate);
            }
        } else {
            self.failures += 1;
            if self.failures <= self.retries {
                return Step::Retry {
                    remaining: self.retries - self.failures,
                };
            }
            self.failed = Some(rate);
            self.passed.retain(|&lower| lower < rate);
        }
        self.failures = 0;
        self.choose();
        if passed {
            Step::Passed
        } else {
            Step::Failed
        }
    }

    /// The result, as far as the search has come.
    pub fn limit(&self) -> Limit {
        Limit {
            passed: Rate::from_bits(self.low()),
            failed: self.failed.map(Rate::from_bits),
        }
    }

    /// The number of rates that a search usually tests, to estimate its progress.
    pub fn rates_expected(&self) -> u32 {
        (self.max / self.precision).max(1).ilog2() + 2
    }

    fn low(&self) -> u64 {
        self.passed.last().copied().unwrap_or(0)
    }

    fn choose(&mut self) {
        let (low, high) = (self.low(), self.failed.unwrap_or(self.max));
        let middle =
            (low + (high - low) / 2 + self.precision / 2) / self.precision * self.precision;
        self.current = if low < middle && middle < high {
            Some(middle)
        } else if self.failed.is_none() && low < self.max {
            Some(self.max)
        } else {
            (low > 0 && self.confirmed != Some(low)).then_some(low)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIGA: Rate = Rate::from_bits(1_000_000_000);
    const MILLI: Rate = Rate::from_bits(1_000_000);

    fn search(
        max: Rate,
        precision: Rate,
        retries: u32,
        mut passes: impl FnMut(u64) -> bool,
    ) -> (Limit, Vec<u64>) {
        let mut bisection = Bisection::new(max, precision, retries);
        let mut tested = Vec::new();
        while let Some(rate) = bisection.next_rate() {
            tested.push(rate.bits());
            bisection.record(passes(rate.bits()));
            assert!(tested.len() < 1000, "a search ends");
        }
        (bisection.limit(), tested)
    }

    #[test]
    fn the_seeds_steps_lead_to_the_seeds_answer() {
        let (limit, tested) = search(GIGA, MILLI, 0, |rate| rate <= 609_400_000);
        let millions: Vec<u64> = tested.iter().map(|rate| rate / 1_000_000).collect();
        assert_eq!(
            millions,
            [500, 750, 625, 563, 594, 610, 602, 606, 608, 609, 609]
        );
        assert_eq!(limit.passed.bits(), 609_000_000);
        assert_eq!(limit.failed, Some(Rate::from_bits(610_000_000)));
    }

    #[test]
    fn the_top_rate_is_tested_and_can_be_the_answer() {
        let (limit, tested) = search(GIGA, MILLI, 0, |_| true);
        assert_eq!(
            limit,
            Limit {
                passed: GIGA,
                failed: None
            }
        );
        assert_eq!(
            tested.iter().filter(|&&rate| rate == GIGA.bits()).count(),
            2
        );
        let (limit, _) = search(GIGA, MILLI, 0, |rate| rate < GIGA.bits());
        assert_eq!(limit.passed.bits(), 999_000_000);
        assert_eq!(limit.failed, Some(GIGA));
    }

    #[test]
    fn a_device_that_passes_nothing_has_no_limit_above_zero() {
        let (limit, _) = search(GIGA, MILLI, 1, |_| false);
        assert_eq!(limit.passed.bits(), 0);
        assert_eq!(limit.failed, Some(MILLI));
    }

    #[test]
    fn a_failure_is_retried_as_often_as_was_said() {
        let mut bisection = Bisection::new(GIGA, MILLI, 2);
        assert_eq!(bisection.record(false), Step::Retry { remaining: 1 });
        assert_eq!(bisection.record(false), Step::Retry { remaining: 0 });
        assert_eq!(bisection.next_rate(), Some(Rate::from_bits(500_000_000)));
        assert_eq!(bisection.record(false), Step::Failed);
        assert_eq!(bisection.record(true), Step::Passed);
        assert_eq!(bisection.record(false), Step::Retry { remaining: 1 });
    }

    #[test]
    fn a_lucky_pass_is_found_out_when_it_is_tested_again() {
        // 0.75 passes once; what lasts is 0.6.
        let mut luck = 1;
        let (limit, _) = search(GIGA, MILLI, 0, |rate| {
            let lucky = rate == 750_000_000 && std::mem::take(&mut luck) > 0;
            lucky || rate <= 600_000_000
        });
        assert_eq!(limit.passed.bits(), 600_000_000);
        assert_eq!(limit.failed, Some(Rate::from_bits(601_000_000)));
    }

    proptest! {
        /// A device that is not monotone: whatever it does at each rate, it does always.
        #[test]
        fn the_answer_passed_twice_and_the_step_above_failed(
            verdicts in proptest::collection::vec(any::<bool>(), 101),
            max in 1u64..=100,
            retries in 0u32..3,
        ) {
            let passes = |rate: u64| verdicts[rate as usize];
            let (limit, tested) = search(Rate::from_bits(max), Rate::from_bits(1), retries, passes);
            let passed = limit.passed.bits();
            if passed > 0 {
                prop_assert!(passes(passed));
                prop_assert_eq!(tested.iter().filter(|&&rate| rate == passed).count(), 2);
            }
            match limit.failed {
                Some(failed) => {
                    prop_assert!(!passes(failed.bits()));
                    prop_assert_eq!(failed.bits(), passed + 1);
                }
                None => prop_assert_eq!(passed, max),
            }
        }

        /// A device that passes and fails at random: the search ends.
        #[test]
        fn a_search_ends_whatever_the_device_does(outcomes in proptest::collection::vec(any::<bool>(), 64), max in 1u64..1000) {
            let mut outcome = outcomes.iter().cycle();
            search(Rate::from_bits(max), Rate::from_bits(1), 0, |_| outcome.next() == Some(&true));
        }
    }
}
