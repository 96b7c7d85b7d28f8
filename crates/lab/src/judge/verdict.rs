//! From measured comparisons to a verdict.
//!
//! A claim is the conjunction of its comparisons. Two hypotheses are tested of it:
//!
//! - *The claim is false.* It is rejected only where every comparison rejects its own half, so p
//!   is the largest one-sided p of them (intersection–union: Berger, "Multiparameter hypothesis
//!   testing and acceptance sampling", Technometrics, 1982). No correction for their number is
//!   needed. Rejecting it says `reproduced`.
//! - *The claim is true.* It is rejected where any comparison lies beyond its threshold, by flips
//!   of whole rounds that keep the comparisons' dependence ([`any_beyond`]). Rejecting it says
//!   `not-reproduced`.
//!
//! Exactly one of the two is true of every claim. Holm's correction runs over all claims of the
//! run, once for each of the two questions. So in a whole run the chance of any false
//! `reproduced` is at most α, and so is the chance of any false `not-reproduced`.

use super::comparison::{Comparison, Interval, Measured, Side};
use super::{seed_of, words, Judging};
use crate::result::{ClaimResult, Verdict};
use crate::stats::{any_beyond, rounds_for, smallest_p};
use crate::unit::significant;

/// A claim's two tests, before correction.
pub(super) struct Test {
    /// p of "the claim is false".
    pub(super) claim: f64,
    /// p of "the claim is true".
    pub(super) other: f64,
    /// The comparison closest to failing, or furthest beyond.
    worst: Measured,
    /// Its interval.
    interval: Interval,
    /// Its name.
    name: String,
    /// How many comparisons the claim is made of.
    comparisons: usize,
    /// Whether the interval of every comparison is on the claim's side.
    all_on_side: bool,
    /// A comparison whose interval is on both sides, if any: its words for the reason.
    undecided: Option<String>,
    /// The fewest rounds of a comparison that speak for a side.
    rounds: usize,
    /// Its rounds exactly on the threshold, which speak for neither.
    ties: usize,
}

/// What correction over the run made of a test.
pub(super) struct Corrected {
    /// Corrected p of "the claim is false".
    pub(super) claim: f64,
    /// Corrected p of "the claim is true".
    pub(super) other: f64,
    /// Claims in the correction.
    pub(super) tests: usize,
}

impl Test {
    /// Measures and tests `comparisons`, at least one; `id` seeds the resampling.
    ///
    /// # Errors
    /// In words, a comparison that has fewer than two rounds.
    pub(super) fn new(
        comparisons: &[Comparison],
        id: &str,
        options: &Judging,
    ) -> Result<Self, String> {
        let few = |comparison: &Comparison| {
            let name = &comparison.name;
            format!("{name}: fewer than two rounds have a figure, which gives no interval")
        };
        let mut measured = Vec::new();
        for comparison in comparisons {
            measured.push(comparison.measure().ok_or_else(|| few(comparison))?);
        }
        let claim = measured.iter().map(|one| one.p.above).fold(0.0, f64::max);
        let beyond: Vec<Vec<Option<f64>>> = measured
            .iter()
            .map(|one| one.distances.iter().map(|d| d.map(|d| -d)).collect())
            .collect();
        let other = any_beyond(&beyond, seed_of(options.seed, &[id, "any beyond"]));
        let worst = (0..measured.len())
            .min_by(|&a, &b| measured[a].margin.total_cmp(&measured[b].margin))
            .ok_or("nothing to compare")?;
        let fewest = measured
            .iter()
            .min_by_key(|one| one.p.rounds)
            .ok_or("nothing to compare")?;
        let (rounds, ties) = (fewest.p.rounds, fewest.n - fewest.p.rounds);

        let interval = |index: usize| {
            let comparison = &comparisons[index];
            comparison
                .interval(
                    &measured[index],
                    seed_of(options.seed, &[id, &comparison.name]),
                )
                .ok_or_else(|| few(comparison))
        };
        let of_worst = interval(worst)?;
        let mut all_on_side = of_worst.side == Side::Claim && claim <= options.alpha;
        let mut undecided = (of_worst.side == Side::Both).then_some((worst, of_worst));
        if all_on_side {
            // Only a claim whose p would do depends on the intervals of the others, and most of
            // those need no resampling.
            let open = (0..measured.len()).filter(|&i| !Comparison::plainly_holds(&measured[i]));
            for index in open {
                let one = interval(index)?;
                if one.side != Side::Claim {
                    all_on_side = false;
                    undecided = Some((index, one));
                    break;
                }
            }
        }
        Ok(Test {
            claim,
            other,
            interval: of_worst,
            name: comparisons[worst].name.clone(),
            comparisons: comparisons.len(),
            all_on_side,
            undecided: undecided.map(|(index, one)| straddles(comparisons, index, one)),
            rounds,
            ties,
            worst: measured.swap_remove(worst),
        })
    }

    /// Writes the figures, the verdict and its reason into `result`.
    pub(super) fn decide(
        &self,
        corrected: &Corrected,
        options: &Judging,
        result: &mut ClaimResult,
    ) {
        let worst = &self.worst;
        let holds = worst.margin >= 0.0;
        result.measured = Some(worst.effect);
        result.ci95 = Some(self.interval.ci95);
        result.n = worst.n;
        result.p = Some(if holds { self.claim } else { self.other });
        result.p_holm = Some(if holds {
            corrected.claim
        } else {
            corrected.other
        });
        (result.verdict, result.reason) = if self.all_on_side && corrected.claim <= options.alpha {
            (Verdict::Reproduced, self.fewer_rounds(options))
        } else if self.interval.side == Side::Other && corrected.other <= options.alpha {
            let furthest = (self.comparisons > 1 && !self.name.is_empty())
                .then(|| format!("furthest off: {}", self.name));
            (Verdict::NotReproduced, furthest)
        } else {
            (Verdict::Inconclusive, Some(self.doubt(corrected, options)))
        };
    }

    /// Why there is no verdict.
    fn doubt(&self, corrected: &Corrected, options: &Judging) -> String {
        let claims = words::count(corrected.tests, "claim");
        if corrected.tests as f64 * smallest_p(self.rounds) > options.alpha {
            let enough = rounds_for(corrected.tests, options.alpha);
            if self.ties > 0 {
                return format!(
                    "{} of {} lie exactly on the threshold and speak for neither side",
                    self.ties,
                    words::count(self.ties + self.rounds, "round")
                );
            }
            let mut reason = words::reach(self.rounds);
            if let Some(fewer) = self.fewer_rounds(options) {
                reason += &format!(" ({fewer})");
            }
            reason += &format!("; with {claims} in this run {enough} rounds would do");
            if enough > options.rounds {
                reason += &format!(": --rounds {enough}");
            }
            return reason;
        }
        if let Some(undecided) = &self.undecided {
            return undecided.clone();
        }
        let (side, p, corrected_p) = if self.interval.side == Side::Claim {
            ("the claim's", self.claim, corrected.claim)
        } else {
            ("the other", self.other, corrected.other)
        };
        format!(
            "the whole interval is on {side} side, but p = {} is {} after correction over {claims}",
            significant(p),
            significant(corrected_p)
        )
    }

    /// Says so where the figure rests on fewer rounds than were planned.
    fn fewer_rounds(&self, options: &Judging) -> Option<String> {
        let figures = self.rounds + self.ties;
        (figures < options.rounds as usize).then(|| {
            let planned = words::count(options.rounds as usize, "round");
            format!("{figures} of {planned} have a figure")
        })
    }
}

/// That an interval has the threshold inside, in words.
fn straddles(comparisons: &[Comparison], index: usize, interval: Interval) -> String {
    let comparison = &comparisons[index];
    let mut name = String::new();
    if comparisons.len() > 1 && !comparison.name.is_empty() {
        name = format!(" of {}", comparison.name);
    }
    let [low, high] = interval.ci95.map(significant);
    let threshold = significant(comparison.threshold);
    format!("the interval{name}, {low} to {high}, is on both sides of {threshold}")
}
