//! From measured comparisons to a verdict.
//!
//! A claim is the conjunction of its comparisons. Two hypotheses are tested of it:
//!
//! - *The claim is false.* It is rejected only where every comparison rejects its own half, so p
//!   is the largest of theirs (intersection–union: Berger, "Multiparameter hypothesis testing and
//!   acceptance sampling", Technometrics, 1982). No correction for their number is needed.
//!   Rejecting it says `reproduced`.
//! - *The claim is true.* Then no comparison lies beyond its threshold, every bet that one does is
//!   fair or worse, and so is the mean of all of them. Rejecting it says `not-reproduced`.
//!
//! Exactly one of the two is true of every claim.

use super::comparison::{Comparison, Measured};
use super::family::{Ruling, Side};
use super::words;
use crate::result::{ClaimResult, Verdict};
use crate::unit::significant;

/// More rounds than this are no advice.
const MANY_ROUNDS: f64 = 1_000.0;

/// Evidence of this much, before any correction, is enough for a verdict on a figure however close
/// to its threshold.
///
/// α bounds how often chance gives a verdict, but a verdict in the wrong direction is worse than
/// any other. With α = 0.05 alone a true slow-down of 1 % in 3 % noise was called a speed-up in 1
/// of 1,000 runs, and with evidence of 1,000 to 1 in 1 of 20,000 (fourteen lucky rounds in a row).
/// Asking for 2,000 to 1 of every verdict would cost a lone claim six rounds, so it is asked only
/// where the figure is not clearly beyond its threshold.
pub(super) const STRONG: f64 = 2_000.0;

/// Evidence of this much is enough that a figure lies clearly beyond its threshold, and then its
/// 95 % interval does too.
const ORDINARY: f64 = 40.0;

/// A claim's two tests, before correction.
pub(super) struct Test {
    comparisons: Vec<Comparison>,
    measured: Vec<Measured>,
    /// The p of "the claim is false" after each round.
    pub(super) claim: Vec<f64>,
    /// The p of "the claim is true" after each round.
    pub(super) other: Vec<f64>,
    /// Whether the evidence for the claim is enough by itself after each round: [`STRONG`], or
    /// [`ORDINARY`] that it holds clearly.
    pub(super) claim_enough: Vec<bool>,
    /// The same against the claim.
    pub(super) other_enough: Vec<bool>,
    /// How many more rounds the experiment may run.
    left: u32,
}

impl Test {
    /// Measures and tests `comparisons`, at least one, of an experiment with `left` rounds to go.
    pub(super) fn new(comparisons: Vec<Comparison>, left: u32) -> Self {
        let measured: Vec<Measured> = comparisons.iter().map(Comparison::measure).collect();
        let rounds = comparisons[0].rounds.len();
        let (mut highest, mut clear_highest) = (1f64, 1f64);
        let mut claim = Vec::with_capacity(rounds);
        let mut other = Vec::with_capacity(rounds);
        let mut claim_enough = Vec::with_capacity(rounds);
        let mut other_enough = Vec::with_capacity(rounds);
        let mean = |path: &dyn Fn(&Measured) -> f64| {
            measured.iter().map(path).sum::<f64>() / measured.len() as f64
        };
        for round in 0..rounds {
            let least = measured.iter().map(|one| one.claim_path[round]);
            claim.push(1.0 / least.fold(f64::INFINITY, f64::min));
            highest = highest.max(mean(&|one| one.other_path[round]));
            other.push(1.0 / highest);
            clear_highest = clear_highest.max(mean(&|one| one.clear_other_path[round]));
            claim_enough.push(measured.iter().all(|one| {
                one.claim_path[round] >= STRONG || one.clear_claim_path[round] >= ORDINARY
            }));
            other_enough.push(highest >= STRONG || clear_highest >= ORDINARY);
        }
        Test {
            comparisons,
            measured,
            claim,
            other,
            claim_enough,
            other_enough,
            left,
        }
    }

    /// The index of the comparison whose figure stands for the claim.
    fn shown(&self, decided: Option<Side>) -> usize {
        let least = |key: &dyn Fn(&Measured) -> f64| {
            let keys: Vec<f64> = self.measured.iter().map(key).collect();
            (0..keys.len()).min_by(|&a, &b| keys[a].total_cmp(&keys[b]))
        };
        let closest = least(&|one| one.margin).unwrap_or(0);
        match decided {
            Some(Side::Claim) => closest,
            Some(Side::Other) => least(&|one| -one.other.highest()).unwrap_or(0),
            // Of an open claim the one that keeps it open.
            None if self.measured[closest].margin < 0.0 => closest,
            None => least(&|one| one.claim.highest()).unwrap_or(0),
        }
    }

    /// Writes the figures, the verdict and its reason into `result`, whose failures are known.
    pub(super) fn decide(&self, ruling: &Ruling, result: &mut ClaimResult) {
        let decided = ruling.decided.map(|(side, _)| side);
        let place = self.shown(decided);
        let shown = &self.measured[place];
        let side = decided.unwrap_or(if shown.margin >= 0.0 {
            Side::Claim
        } else {
            Side::Other
        });
        let (path, corrected) = match side {
            Side::Claim => (&self.claim, ruling.claim),
            Side::Other => (&self.other, ruling.other),
        };
        result.measured = shown.effect;
        result.ci95 = shown
            .effect
            .and_then(|_| self.comparisons[place].interval());
        result.n = shown.n;
        result.p = path.last().copied();
        result.p_holm = Some(corrected);
        result.decided_after = ruling.decided.map(|(_, rounds)| rounds);
        result.open = decided.is_none() && self.may_be_decided();
        let failed = words::failed(&result.failures);
        let name = &self.comparisons[place].name;
        let several = self.comparisons.len() > 1 && !name.is_empty();
        let mut reasons = Vec::new();
        result.verdict = match decided {
            Some(Side::Claim) => Verdict::Reproduced,
            Some(Side::Other) => {
                reasons.extend(several.then(|| format!("furthest off: {name}")));
                Verdict::NotReproduced
            }
            None => {
                let name = if several { name.as_str() } else { "" };
                reasons.push(self.doubt(place, name, side, ruling, result));
                Verdict::Inconclusive
            }
        };
        reasons.extend(failed.filter(|_| result.n > 0).map(|failed| match decided {
            Some(_) => format!("{failed}; the verdict stands with each of them counted against it"),
            None => format!("{failed}; each counts against either verdict"),
        }));
        result.reason = (!reasons.is_empty()).then(|| reasons.join("; "));
    }

    /// Why there is no verdict, and what would decide.
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
                Some(cell) => format!(
                    "every trial of {} failed: {}",
                    super::trials::name(&cell.at),
                    cell.reason
                ),
                None => "no round gave a figure of every cell".to_owned(),
            };
        }
        if shown.ties * 2 >= shown.n {
            return format!(
                "{} of {rounds} lie exactly on the threshold and speak for neither side",
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
            None => format!("{rounds} are too few for an interval{of}"),
            Some([low, high]) if low < threshold && threshold < high => {
                let [low, high, threshold] = [low, high, threshold].map(significant);
                format!("the interval{of}, {low} to {high}, is on both sides of {threshold}")
            }
            Some(_) => {
                let (words, p) = match side {
                    Side::Claim => ("the claim's", &self.claim),
                    Side::Other => ("the other", &self.other),
                };
                let p = p.last().copied().unwrap_or(1.0);
                let whole = format!(
                    "the whole interval{of} is on {words} side, but p = {}",
                    significant(p)
                );
                if result
                    .p_holm
                    .is_some_and(|corrected| corrected <= ruling.alpha)
                {
                    format!(
                        "{whole}, and a verdict so close to the threshold needs {}",
                        significant(1.0 / STRONG)
                    )
                } else {
                    format!(
                        "{whole} is {} after correction over {}",
                        significant(result.p_holm.unwrap_or(1.0)),
                        words::count(ruling.tests, "test")
                    )
                }
            }
        };
        match self.more(ruling) {
            Some(more) if result.open || self.left == 0 => {
                let more = words::count(more, "more round");
                format!("{why}; at this rate about {more} would decide")
            }
            Some(_) | None if !result.open && self.left > 0 => {
                let left = words::count(self.left as usize, "round");
                format!("{why}; the {left} left cannot decide any more")
            }
            _ => format!(
                "{why}; the figure is too close to the threshold to say how many rounds would \
                 decide"
            ),
        }
    }

    /// About how many more rounds like those so far would decide.
    fn more(&self, ruling: &Ruling) -> Option<usize> {
        let tests = self.measured.len() as f64;
        let rounds_of = |one: &Measured| one.n + one.failed;
        let mut claim = self.measured.iter().map(|one| {
            let rounds = rounds_of(one);
            Some(one.claim.rounds_to(ruling.claim_target, rounds)? - rounds as f64)
        });
        let claim = claim.try_fold(0.0, |most: f64, one| Some(most.max(one?)));
        let other = self.measured.iter().filter_map(|one| {
            let rounds = rounds_of(one);
            let target = ruling.other_target * tests;
            Some(one.other.rounds_to(target, rounds)? - rounds as f64)
        });
        let more = claim.into_iter().chain(other).fold(f64::INFINITY, f64::min);
        (more < MANY_ROUNDS).then(|| more.ceil().max(1.0) as usize)
    }

    /// Whether the rounds left could decide, if all of them spoke for one side and every other
    /// test of the family were decided.
    fn may_be_decided(&self) -> bool {
        let claim = |one: &Measured| one.claim.at_best_after(self.left) >= ORDINARY;
        let others = self
            .measured
            .iter()
            .map(|one| one.other.at_best_after(self.left));
        let other = others.sum::<f64>() / self.measured.len() as f64;
        self.measured.iter().all(claim) || other >= ORDINARY
    }
}
