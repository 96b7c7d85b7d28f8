//! The evidence about a claim: a betting e-process for each of its two sides, the p that follows
//! from it, and Holm's correction of the p's of a suite.
//!
//! This module alone knows what kind of evidence there is. The others see intervals, two
//! [sides](Side), [rulings](Ruling), and the [result's evidence](result::Evidence), so that a
//! verdict of another kind, such as a Bayesian one, would be added here.
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
//!
//! A family is the published claims of one suite, or its targets: what one reader takes as one
//! statement. Holm's correction runs over the p's of each family, once for each of the two
//! questions that are asked of a claim. As every p holds after every round, so does the corrected
//! one. In a family the chance of any false `reproduced`, ever, is at most α, and so is the chance
//! of any false `not-reproduced`.

use super::comparison::{Comparison, Scale};
use super::words;
use crate::result;
use crate::stats::{confidence_sequence, holm, Bets, EProcess, Round};
use crate::unit::significant;

/// The level of every interval.
const LEVEL: f64 = 0.95;

/// More rounds than this are no advice.
const MANY_ROUNDS: f64 = 1_000.0;

/// Evidence of this much, before any correction, is needed for a verdict.
///
/// α bounds how often chance gives a verdict, but a verdict in the wrong direction is worse than
/// any other. With α = 0.05 alone (40 to 1, eight unanimous rounds) a true slow-down of 1 % in 3 %
/// noise was called a speed-up in 1 of 1,000 runs, and a program that stalls in 55 % of its calls
/// was said to take no longer in 1 of 1,000, after eight lucky rounds. This takes fourteen.
const ENOUGH: f64 = 2_000.0;

/// A side of a claim's thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The side on which the claim holds.
    Claim,
    /// The side on which it does not.
    Other,
}

/// Returns the interval of the figure in `rounds`, kept on `scale`; `None` if an end is infinite.
pub(super) fn interval(rounds: &[Round], scale: Scale, bets: Bets) -> Option<[f64; 2]> {
    scale.show_interval(confidence_sequence(rounds, bets, LEVEL))
}

/// Returns the two-sided p of "the figure is the threshold".
pub(super) fn two_sided_p(comparison: &Comparison) -> f64 {
    let tested = Tested::new(comparison);
    (2.0 * tested.claim.p().min(tested.other.p())).min(1.0)
}

/// The evidence of one comparison, round by round.
///
/// The whole path is kept, not its end alone. If the machine changes half-way, there may be enough
/// evidence for one side first and for the other later; the first decision stands. A judgement a
/// year later, from all records at once, must find the same side and the same round as one that was
/// made after every round.
struct Tested {
    /// Rounds that ran, failed ones among them.
    ran: usize,
    /// Evidence that the effect lies on the claim's side.
    claim: EProcess,
    /// Evidence that it lies on the other.
    other: EProcess,
    /// The highest of `claim` after each round.
    claim_path: Vec<f64>,
    /// `other` after each round, and not its highest: the evidence against a claim is the highest
    /// of the *mean* over its comparisons, which is not the mean of their highest.
    other_path: Vec<f64>,
}

impl Tested {
    fn new(comparison: &Comparison) -> Tested {
        let rounds = comparison.rounds.len();
        let new = || EProcess::new(comparison.bets);
        let mut tested = Tested {
            ran: 0,
            claim: new(),
            other: new(),
            claim_path: Vec::with_capacity(rounds),
            other_path: Vec::with_capacity(rounds),
        };
        for round in &comparison.rounds {
            // A program that fails where it would have been slow must not gain by it, and one that
            // fails where it would have been fast must not lose. So a failed round counts against
            // both sides: for either, it is infinitely far on the wrong side.
            let distances = match round {
                Round::Missing => None,
                Round::Failed => Some([f64::NEG_INFINITY; 2]),
                Round::Figure(figure) => {
                    let distance = comparison.distance(*figure);
                    Some([distance, -distance])
                }
            };
            if let Some([claim, other]) = distances {
                tested.ran += 1;
                tested.claim.add(claim);
                tested.other.add(other);
            }
            tested.claim_path.push(tested.claim.highest());
            tested.other_path.push(tested.other.now());
        }
        tested
    }
}

/// The evidence about one claim, before correction.
pub(super) struct Evidence {
    tested: Vec<Tested>,
    /// The p of "the claim is false" after each round.
    claim: Vec<f64>,
    /// The p of "the claim is true" after each round.
    other: Vec<f64>,
}

impl Evidence {
    /// Tests `comparisons`, at least one.
    pub(super) fn new(comparisons: &[Comparison]) -> Evidence {
        let tested: Vec<Tested> = comparisons.iter().map(Tested::new).collect();
        let rounds = comparisons[0].rounds.len();
        let mut highest = 1f64;
        let mut claim = Vec::with_capacity(rounds);
        let mut other = Vec::with_capacity(rounds);
        for round in 0..rounds {
            let least = tested.iter().map(|one| one.claim_path[round]);
            claim.push(1.0 / least.fold(f64::INFINITY, f64::min));
            let against = tested.iter().map(|one| one.other_path[round]);
            highest = highest.max(against.sum::<f64>() / tested.len() as f64);
            other.push(1.0 / highest);
        }
        Evidence {
            tested,
            claim,
            other,
        }
    }

    /// The place of the comparison with the least evidence for the claim.
    pub(super) fn weakest(&self) -> usize {
        self.least(|one| one.claim.highest())
    }

    /// The place of the comparison with the most evidence against the claim.
    pub(super) fn strongest_against(&self) -> usize {
        self.least(|one| -one.other.highest())
    }

    fn least(&self, key: impl Fn(&Tested) -> f64) -> usize {
        let keys: Vec<f64> = self.tested.iter().map(key).collect();
        let least = (0..keys.len()).min_by(|&a, &b| keys[a].total_cmp(&keys[b]));
        least.unwrap_or(0)
    }

    /// Returns true if `left` more rounds could decide, if all of them supported one side and every
    /// other test of the family were decided. Evidence that was reached is kept, whatever rounds
    /// came after it.
    pub(super) fn may_be_decided(&self, left: u32) -> bool {
        let claim =
            |one: &Tested| one.claim.highest() >= ENOUGH || one.claim.at_best_after(left) >= ENOUGH;
        let others = self.tested.iter().map(|one| one.other.at_best_after(left));
        let other = others.sum::<f64>() / self.tested.len() as f64;
        let is_reached = |path: &[f64]| path.last().is_some_and(|p| *p <= 1.0 / ENOUGH);
        self.tested.iter().all(claim) || is_reached(&self.other) || other >= ENOUGH
    }

    fn path(&self, side: Side) -> &[f64] {
        match side {
            Side::Claim => &self.claim,
            Side::Other => &self.other,
        }
    }
}

/// The result of one test after the correction over its family.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ruling {
    /// The side for which it was decided, and after how many rounds.
    pub(super) decided: Option<(Side, u32)>,
    /// The corrected p of "the claim is false", now.
    claim: f64,
    /// The corrected p of "the claim is true", now.
    other: f64,
    /// The evidence that would decide it for the claim as the others stand.
    claim_target: f64,
    /// The same against the claim.
    other_target: f64,
    /// Tests in the correction.
    tests: usize,
    /// The family's α.
    alpha: f64,
}

impl Ruling {
    /// The evidence for one side, as results show it.
    pub(super) fn shown(&self, evidence: &Evidence, side: Side) -> result::Evidence {
        let corrected = match side {
            Side::Claim => self.claim,
            Side::Other => self.other,
        };
        result::Evidence {
            p: evidence.path(side).last().copied(),
            p_holm: Some(corrected),
        }
    }

    /// Says what the evidence for a side lacks, where the interval alone would give a verdict.
    pub(super) fn lack(&self, shown: &result::Evidence) -> String {
        let p = significant(shown.p.unwrap_or(1.0));
        let corrected = shown.p_holm.unwrap_or(1.0);
        if corrected <= self.alpha {
            let needed = significant(1.0 / ENOUGH);
            format!("p = {p}, and a verdict needs {needed}")
        } else {
            format!(
                "p = {p} is {} after correction over {}",
                significant(corrected),
                words::count(self.tests, "test")
            )
        }
    }

    /// About how many more rounds like those so far would decide; `None` if no number is of use.
    pub(super) fn more_rounds(&self, evidence: &Evidence) -> Option<usize> {
        let tests = evidence.tested.len() as f64;
        let mut claim = evidence
            .tested
            .iter()
            .map(|one| Some(one.claim.rounds_to(self.claim_target, one.ran)? - one.ran as f64));
        let claim = claim.try_fold(0.0, |most: f64, one| Some(most.max(one?)));
        let other = evidence.tested.iter().filter_map(|one| {
            let target = self.other_target * tests;
            Some(one.other.rounds_to(target, one.ran)? - one.ran as f64)
        });
        let more = claim.into_iter().chain(other).fold(f64::INFINITY, f64::min);
        (more < MANY_ROUNDS).then(|| more.ceil().max(1.0) as usize)
    }
}

/// Rules on the tests of a family of `size` members. A member that has no test yet counts as one
/// with a p of 1, so that the correction does not grow while a run goes on.
///
/// The rounds are gone through one by one, as they came: the first decision stays, whatever comes
/// later. ([`Comparison::stands`] says whether the verdict does.)
pub(super) fn rule(tests: &[&Evidence], size: usize, alpha: f64) -> Vec<Ruling> {
    let length = tests.iter().map(|test| test.claim.len()).max().unwrap_or(0);
    let size = size.max(tests.len());
    let corrected = |path: &dyn Fn(&Evidence) -> f64| {
        let mut p: Vec<f64> = tests.iter().map(|test| path(test)).collect();
        p.resize(size, 1.0);
        holm(&p)
    };
    let mut rulings = vec![
        Ruling {
            decided: None,
            claim: 1.0,
            other: 1.0,
            claim_target: 0.0,
            other_target: 0.0,
            tests: size,
            alpha,
        };
        tests.len()
    ];
    // An experiment that ended early keeps its last p in the correction of the later rounds: its
    // claims are members of the family as before.
    for round in 0..length {
        let claim = corrected(&|test| at(&test.claim, round));
        let other = corrected(&|test| at(&test.other, round));
        for (index, ruling) in rulings.iter_mut().enumerate() {
            (ruling.claim, ruling.other) = (claim[index], other[index]);
            if ruling.decided.is_some() {
                continue;
            }
            let rounds = round as u32 + 1;
            let enough = |path: &[f64]| at(path, round) <= 1.0 / ENOUGH;
            if ruling.claim <= alpha && enough(&tests[index].claim) {
                ruling.decided = Some((Side::Claim, rounds));
            } else if ruling.other <= alpha && enough(&tests[index].other) {
                ruling.decided = Some((Side::Other, rounds));
            }
        }
    }
    let target = |rejected: usize| (size - rejected).max(1) as f64 / alpha;
    let claim = rulings
        .iter()
        .filter(|ruling| ruling.claim <= alpha)
        .count();
    let other = rulings
        .iter()
        .filter(|ruling| ruling.other <= alpha)
        .count();
    for ruling in &mut rulings {
        ruling.claim_target = target(claim).max(ENOUGH);
        ruling.other_target = target(other).max(ENOUGH);
    }
    rulings
}

/// A path at a round; its end where the experiment ran fewer.
fn at(path: &[f64], round: usize) -> f64 {
    path.get(round).or(path.last()).copied().unwrap_or(1.0)
}
