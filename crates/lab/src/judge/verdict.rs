//! From measured comparisons to a verdict and the reason for it.

use super::comparison::{Comparison, Measured};
use super::evidence::{interval, Evidence, Ruling, Side};
use super::words;
use crate::result::{ClaimResult, Verdict};
use crate::unit::significant;

/// A claim that is tested: its figures, and the evidence for both sides.
pub(super) struct Test {
    comparisons: Vec<Comparison>,
    measured: Vec<Measured>,
    pub(super) evidence: Evidence,
    /// The number of further rounds that the experiment may run.
    left: u32,
}

impl Test {
    /// Measures and tests `comparisons`, at least one, of an experiment with `left` rounds to go.
    pub(super) fn new(comparisons: Vec<Comparison>, left: u32) -> Self {
        Test {
            measured: comparisons.iter().map(Comparison::measure).collect(),
            evidence: Evidence::new(&comparisons),
            comparisons,
            left,
        }
    }

    /// The index of the comparison whose figure stands for the claim.
    fn shown(&self, decided: Option<Side>) -> usize {
        let margin = |place: &usize| self.measured[*place].margin;
        let closest = (0..self.measured.len()).min_by(|a, b| margin(a).total_cmp(&margin(b)));
        let closest = closest.unwrap_or(0);
        // A claim has one figure in the report but may have many comparisons. The reader should
        // see the one that the verdict rests on: of a claim that holds the one that comes closest
        // to failing, of one that fails the one that most clearly does.
        match decided {
            Some(Side::Claim) => closest,
            Some(Side::Other) => self.evidence.strongest_against(),
            // Of an open claim the one that keeps it open.
            None if margin(&closest) < 0.0 => closest,
            None => self.evidence.weakest(),
        }
    }

    /// Writes the figures, the verdict and its reason into `result`, whose failures are known.
    pub(super) fn decide(&self, ruling: &Ruling, result: &mut ClaimResult) {
        let decided = ruling.decided.map(|(side, _)| side);
        let contradicted = decided.and_then(|side| self.contradicting(side));
        let place = contradicted.unwrap_or_else(|| self.shown(decided));
        let shown = &self.measured[place];
        let side = decided.unwrap_or(if shown.margin >= 0.0 {
            Side::Claim
        } else {
            Side::Other
        });
        result.measured = shown.effect;
        let Comparison {
            rounds,
            scale,
            bets,
            ..
        } = &self.comparisons[place];
        // An interval never grows, and so does not follow a machine that changes half-way.
        result.ci95 = shown.effect.and_then(|effect| {
            let [low, high] = interval(rounds, *scale, *bets)?;
            Some([low.min(effect), high.max(effect)])
        });
        result.n = shown.n;
        result.evidence = ruling.shown(&self.evidence, side);
        result.decided_after = ruling.decided.map(|(_, rounds)| rounds);
        result.open = decided.is_none() && self.evidence.may_be_decided(self.left);
        let failed = words::failed(&result.failures);
        let name = &self.comparisons[place].name;
        let several = self.comparisons.len() > 1 && !name.is_empty();
        let mut reasons = Vec::new();
        let stands = decided.filter(|_| contradicted.is_none());
        result.verdict = match stands {
            Some(Side::Claim) => Verdict::Reproduced,
            Some(Side::Other) => {
                reasons.extend(several.then(|| format!("furthest from the criterion: {name}")));
                Verdict::NotReproduced
            }
            None => {
                let name = if several { name.as_str() } else { "" };
                reasons.push(match ruling.decided {
                    Some((_, after)) => contradiction(name, after),
                    None => self.doubt(place, name, side, ruling, result),
                });
                Verdict::Inconclusive
            }
        };
        reasons.extend(failed.filter(|_| result.n > 0).map(|failed| match stands {
            Some(_) => format!("{failed}; the verdict stands with each of them counted against it"),
            None => format!("{failed}; each counts against either verdict"),
        }));
        result.reason = (!reasons.is_empty()).then(|| reasons.join("; "));
    }

    /// Returns the place of a comparison that the rounds as a whole put on the other side than the
    /// one it was decided for, or `None`.
    fn contradicting(&self, side: Side) -> Option<usize> {
        match side {
            Side::Claim => {
                (0..self.comparisons.len()).find(|&place| !self.comparisons[place].stands(side))
            }
            Side::Other => {
                let against = self.evidence.strongest_against();
                (!self.comparisons[against].stands(side)).then_some(against)
            }
        }
    }

    /// Returns the reason for which there is no verdict, and what would decide.
    fn doubt(
        &self,
        place: usize,
        name: &str,
        side: Side,
        ruling: &Ruling,
        result: &ClaimResult,
    ) -> String {
        let shown = &self.measured[place];
        let rounds = words::count(shown.n, "round");
        if shown.n == 0 {
            let all = result.failures.iter().find(|cell| cell.failed == cell.of);
            return match all {
                Some(cell) => words::none_gave_a_figure(&cell.at, &cell.reason),
                None => "no round gave a figure of every cell".to_owned(),
            };
        }
        if shown.ties * 2 >= shown.n {
            return format!(
                "{} of {rounds} lie exactly on the threshold and count for neither side",
                shown.ties
            );
        }
        let threshold = self.comparisons[place].threshold;
        let of = if name.is_empty() {
            String::new()
        } else {
            format!(" of {name}")
        };
        let why = match result.ci95 {
            None if shown.n == 1 => format!("{rounds} is too few for an interval{of}"),
            None => format!("{rounds} are too few for an interval{of}"),
            Some([low, high]) if low < threshold && threshold < high => {
                let [low, high, threshold] = [low, high, threshold].map(significant);
                format!("the interval{of}, {low} to {high}, contains the threshold {threshold}")
            }
            Some(_) => {
                let words = match side {
                    Side::Claim => "the claim's",
                    Side::Other => "the other",
                };
                format!(
                    "the whole interval{of} is on {words} side, but {}",
                    ruling.lack(&result.evidence)
                )
            }
        };
        match ruling.more_rounds(&self.evidence) {
            Some(more) if result.open || self.left == 0 => {
                let more = words::count(more, "more round");
                format!("{why}; at this rate about {more} would decide")
            }
            Some(_) | None if !result.open && self.left > 0 => {
                let left = words::count(self.left as usize, "round");
                format!("{why}; the {left} left can no longer decide")
            }
            _ => match self.least_more().filter(|_| result.ci95.is_none()) {
                Some(least) => {
                    let least = words::count(least as usize, "more round");
                    format!("{why}; a verdict needs at least {least}")
                }
                None => format!(
                    "{why}; the figure is too close to the threshold to say how many rounds would \
                     decide"
                ),
            },
        }
    }

    /// The fewest further rounds that could decide, if all of them supported one side.
    fn least_more(&self) -> Option<u32> {
        (1..=1_000).find(|&more| self.evidence.may_be_decided(more))
    }
}

/// The reason for which a verdict that was decided after a round does not stand.
fn contradiction(name: &str, after: u32) -> String {
    let of = if name.is_empty() {
        String::new()
    } else {
        format!(" {name}:")
    };
    let after = words::count(after as usize, "round");
    format!("contradicted:{of} decided after {after}, and the later ones do not support it, as if program or machine had changed")
}
