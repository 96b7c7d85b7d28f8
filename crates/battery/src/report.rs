//! The report: one outcome per test, and one decision over all of them.

/// The judgement of a stream by one test or by the whole battery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The stream has no property that is too unlikely of an ideal source.
    Pass,
    /// Less likely of an ideal source than the family-wise false alarm rate allows.
    Fail,
    /// The stream is shorter than the test needs. Not a pass.
    TooShort,
}

impl Verdict {
    /// Returns `pass`, `fail` or `too-short`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Fail => "fail",
            Verdict::TooShort => "too-short",
        }
    }
}

/// The result of one test.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The test, with its parameter: `autocorrelation, lag 64`.
    pub test: String,
    /// The name of `value`: `z`, `chi-square (255 df)`, `longest`, …
    pub statistic: String,
    /// The statistic. `None` if the stream was too short to compute one.
    pub value: Option<f64>,
    /// The probability that an ideal source gives a statistic at least this extreme. `None` if
    /// the stream was too short.
    pub p_value: Option<f64>,
    /// The judgement, after Holm's correction over all tests.
    pub verdict: Verdict,
    /// The shortest stream, in bytes, from which this test judges.
    pub bytes_min: u64,
    /// Details for the reader: sample size, expected count, cut-off.
    pub note: String,
}

impl Outcome {
    /// Returns an outcome that [`Report::new`] has yet to judge.
    pub(crate) fn measured(
        test: impl Into<String>,
        statistic: impl Into<String>,
        value: f64,
        p_value: f64,
        note: String,
    ) -> Self {
        Outcome {
            test: test.into(),
            statistic: statistic.into(),
            value: Some(value),
            p_value: Some(p_value.clamp(0.0, 1.0)),
            verdict: Verdict::Pass,
            bytes_min: 0,
            note,
        }
    }

    /// Removes the numbers if the stream is shorter than the test's minimum.
    pub(crate) fn with_minimum(mut self, bytes_min: u64, bytes: u64) -> Self {
        self.bytes_min = bytes_min;
        if bytes < bytes_min {
            self.value = None;
            self.p_value = None;
            self.verdict = Verdict::TooShort;
        }
        self
    }
}

/// The judgement of one stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Length of the stream, in bytes.
    pub bytes: u64,
    /// The family-wise false alarm rate: the probability that an ideal source fails the report.
    pub family_alpha: f64,
    /// One entry per test, always the same tests in the same order.
    pub outcomes: Vec<Outcome>,
    /// `Fail` if any test failed; else `TooShort` if any test had too few bytes; else `Pass`.
    pub verdict: Verdict,
}

impl Report {
    /// Judges the outcomes by Holm's step-down procedure: the smallest of m p-values is compared
    /// with α/m, the next against α/(m − 1), and so on until one is above its threshold. The
    /// probability of any false alarm is at most α whatever the dependence between the tests.
    pub(crate) fn new(bytes: u64, family_alpha: f64, mut outcomes: Vec<Outcome>) -> Self {
        let mut order: Vec<(usize, f64)> = outcomes
            .iter()
            .enumerate()
            .filter_map(|(i, outcome)| Some((i, outcome.p_value?)))
            .collect();
        order.sort_by(|a, b| a.1.total_cmp(&b.1));
        let judged = order.len();
        for (rank, (i, p)) in order.into_iter().enumerate() {
            if p > family_alpha / (judged - rank) as f64 {
                break;
            }
            outcomes[i].verdict = Verdict::Fail;
        }

        let any = |verdict| outcomes.iter().any(|outcome| outcome.verdict == verdict);
        let verdict = if any(Verdict::Fail) {
            Verdict::Fail
        } else if outcomes.is_empty() || any(Verdict::TooShort) {
            Verdict::TooShort
        } else {
            Verdict::Pass
        };
        Report {
            bytes,
            family_alpha,
            outcomes,
            verdict,
        }
    }

    /// The tests that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Outcome> {
        self.with_verdict(Verdict::Fail)
    }

    /// The tests that needed a longer stream.
    pub fn too_short(&self) -> impl Iterator<Item = &Outcome> {
        self.with_verdict(Verdict::TooShort)
    }

    /// The smallest p-value times the number of tests judged, at most 1: Bonferroni's p-value of
    /// the stream as a whole. `None` if no test could judge.
    #[must_use]
    pub fn corrected_p_value(&self) -> Option<f64> {
        let judged = self.outcomes.iter().filter_map(|outcome| outcome.p_value);
        let smallest = judged.clone().min_by(f64::total_cmp)?;
        Some((smallest * judged.count() as f64).min(1.0))
    }

    fn with_verdict(&self, verdict: Verdict) -> impl Iterator<Item = &Outcome> {
        self.outcomes
            .iter()
            .filter(move |outcome| outcome.verdict == verdict)
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn outcome(p: f64) -> Outcome {
        Outcome::measured("test", "z", 0.0, p, String::new())
    }

    #[test]
    fn holm_steps_down_and_stops_at_the_first_p_above_its_threshold() {
        // Thresholds 0.0125, 0.0167, 0.025, 0.05: the third fails to step, the fourth is not asked.
        let ps = [0.04, 0.012, 0.016, 0.026];
        let report = Report::new(1, 0.05, ps.map(outcome).to_vec());
        let verdicts: Vec<_> = report.outcomes.iter().map(|o| o.verdict).collect();
        use Verdict::{Fail, Pass};
        assert_eq!(verdicts, [Pass, Fail, Fail, Pass]);
        assert_eq!(report.verdict, Fail);
        assert_eq!(report.failures().count(), 2);
    }

    #[test]
    fn a_report_with_a_test_that_was_too_short_does_not_pass() {
        let short = outcome(0.5).with_minimum(100, 99);
        assert_eq!(short.p_value, None);
        let report = Report::new(99, 1e-6, vec![outcome(0.5), short.clone()]);
        assert_eq!(report.verdict, Verdict::TooShort);
        let report = Report::new(99, 1e-6, vec![outcome(1e-9), short]);
        assert_eq!(report.verdict, Verdict::Fail);
        assert_eq!(Report::new(0, 1e-6, Vec::new()).verdict, Verdict::TooShort);
    }

    #[test]
    fn tests_without_a_p_value_do_not_dilute_the_others() {
        let short = outcome(0.5).with_minimum(100, 99);
        let report = Report::new(99, 1e-6, vec![outcome(0.9e-6), short.clone(), short]);
        assert_eq!(report.verdict, Verdict::Fail);
    }
}
