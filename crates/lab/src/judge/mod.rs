//! From records to verdicts: every figure, the noise floor, and the verdict on each claim.
//!
//! `docs/src/instrument.md` says how far the verdicts can be trusted, with measured rates.

mod cells;
mod claims;
mod comparison;
mod evidence;
mod exact;
mod trials;
mod verdict;
mod words;
mod zero;

use std::collections::BTreeMap;

use crate::experiment::{Bound, Claim, ClaimKind, Experiment, Standing};
use crate::result::{self, ClaimResult, ExperimentResult, Family, Verdict};
use crate::sample::TrialRecord;
use crate::unit::Unit;
use evidence::Evidence;
use trials::{Cell, Obstacle, Trials};
use verdict::Test;
pub use words::criterion;

/// The options of the judge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judging {
    /// The chance of a false verdict, of each of the two kinds, that the claims of a suite may
    /// take together, and its targets likewise.
    pub alpha: f64,
}

impl Default for Judging {
    /// Judging at α = 0.05.
    fn default() -> Self {
        Judging { alpha: 0.05 }
    }
}

/// A run, judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// One result per experiment, in their order.
    pub experiments: Vec<ExperimentResult>,
    /// The families that were corrected together, by suite.
    pub families: Vec<Family>,
    /// The ids of the claims and targets that were tested on a figure alone.
    pub assuming_independent_rounds: Vec<String>,
}

/// Judges the `records` of one run against its `experiments`, whose order the results keep.
///
/// A run need not be complete, and may be judged after every round: a claim that is decided stays
/// decided, whatever records come later. Records of experiments or cells that are not in
/// `experiments` are left out; of two records of one trial the later counts. The correction covers
/// all claims of a suite, so a run is judged in one call.
pub fn judge(experiments: &[Experiment], records: &[TrialRecord], options: &Judging) -> Judged {
    let sorted = trials::sort(experiments, records);
    let mut results = Vec::new();
    let mut families: BTreeMap<(&str, Standing), Members> = BTreeMap::new();
    let mut alone = Vec::new();
    for (place, (experiment, trials)) in experiments.iter().zip(&sorted).enumerate() {
        let mut claims = Vec::new();
        for claim in &experiment.claims {
            let mut result = unjudged(experiment, claim);
            let family = families.entry((suite(experiment), claim.standing));
            let members = family.or_default();
            match examine(experiment, claim, trials, &mut result) {
                Examined::Test(test) => {
                    if matches!(claim.kind, ClaimKind::Value { .. }) {
                        alone.push(result.id.clone());
                    }
                    members.size += 1;
                    members.tests.push((place, claims.len(), test));
                }
                // It will have a test when its cells have run. Counted from the start, it cannot
                // make the correction stronger, and so undo a decision, half-way through a run.
                Examined::Untested if has_p(experiment, claim) => members.size += 1,
                Examined::Untested | Examined::Never => {}
            }
            claims.push(result);
        }
        results.push(ExperimentResult {
            id: experiment.id.clone(),
            title: experiment.title.clone(),
            source: experiment.source.clone(),
            axes: experiment.axes.clone(),
            parts: experiment.parts.clone(),
            published: experiment.published.clone(),
            noise: cells::noise(experiment, trials),
            cells: cells::figures(experiment, trials),
            failures: cells::failures(experiment, trials),
            rounds: u32::try_from(trials.rounds).unwrap_or(u32::MAX),
            exact: experiment.exact,
            claims,
            targets: Vec::new(),
        });
    }
    for members in families.values() {
        let tests = members.tests.iter().map(|(_, _, test)| &test.evidence);
        let tests: Vec<&Evidence> = tests.collect();
        let rulings = evidence::rule(&tests, members.size, options.alpha);
        for ((experiment, claim, test), ruling) in members.tests.iter().zip(&rulings) {
            test.decide(ruling, &mut results[*experiment].claims[*claim]);
        }
    }
    for (experiment, result) in experiments.iter().zip(&mut results) {
        set_targets_apart(experiment, result);
    }
    let tested = families.into_iter().filter(|(_, members)| members.size > 0);
    let families = tested.map(|((suite, standing), members)| Family {
        suite: suite.to_owned(),
        standing,
        tests: members.size,
        alpha: options.alpha,
    });
    Judged {
        families: families.collect(),
        experiments: results,
        assuming_independent_rounds: alone,
    }
}

/// The claims, or the targets, of one suite.
#[derive(Default)]
struct Members {
    /// The number of them that are tested, now or later.
    size: usize,
    /// The tests so far, with the places of the experiment and of the claim.
    tests: Vec<(usize, usize, Test)>,
}

/// The part of an experiment's id before the slash.
fn suite(experiment: &Experiment) -> &str {
    experiment.id.split('/').next().unwrap_or_default()
}

/// Returns true if a claim is tested with a p: counts and deterministic trials are not.
fn has_p(experiment: &Experiment, claim: &Claim) -> bool {
    !experiment.exact && !matches!(claim.kind, ClaimKind::Zero { .. })
}

/// Moves the targets out of the claims, with verdicts in their own words.
fn set_targets_apart(experiment: &Experiment, result: &mut ExperimentResult) {
    let all = std::mem::take(&mut result.claims);
    for (claim, mut judged) in experiment.claims.iter().zip(all) {
        judged.verdict = judged.verdict.of(claim.standing);
        match claim.standing {
            Standing::Claim => result.claims.push(judged),
            Standing::Target => result.targets.push(judged),
        }
    }
}

/// Everything of a claim that does not depend on the records.
fn unjudged(experiment: &Experiment, claim: &Claim) -> ClaimResult {
    ClaimResult {
        id: format!("{}/{}", experiment.id, claim.id),
        text: claim.text.clone(),
        source: claim
            .source
            .clone()
            .unwrap_or_else(|| experiment.source.clone()),
        criterion: words::criterion(claim, experiment.metric(&claim.metric)),
        metric: claim.metric.clone(),
        threshold: threshold(&claim.kind),
        unit: match &claim.kind {
            ClaimKind::Zero { .. } => Unit::Count,
            ClaimKind::Value { .. } => experiment
                .metric(&claim.metric)
                .map_or(Unit::Ratio, |metric| metric.unit),
            _ => Unit::Ratio,
        },
        published: claim.published,
        measured: None,
        ci95: None,
        evidence: result::Evidence::default(),
        n: 0,
        failures: Vec::new(),
        decided_after: None,
        open: false,
        verdict: Verdict::Inconclusive,
        reason: None,
    }
}

/// The limits of the claim's figure, in the unit of the claim's result.
fn threshold(kind: &ClaimKind) -> Bound {
    let at_most = |limit| Bound {
        at_least: None,
        at_most: Some(limit),
    };
    match kind {
        ClaimKind::Ratio { bound, .. }
        | ClaimKind::Scales { bound, .. }
        | ClaimKind::Value { bound, .. } => *bound,
        ClaimKind::Flat { at_most: limit, .. } => at_most(*limit),
        ClaimKind::Order { margin, .. } => Bound {
            at_least: Some(*margin),
            at_most: None,
        },
        ClaimKind::Zero { .. } => at_most(0.0),
    }
}

/// The result of examining a claim's records.
enum Examined {
    /// A test, whose verdict depends on its family.
    Test(Test),
    /// No test so far: the result says why.
    Untested,
    /// No test, whatever comes: this machine cannot make it.
    Never,
}

/// The claim's test where it has one; otherwise `result` is complete.
fn examine(
    experiment: &Experiment,
    claim: &Claim,
    trials: &Trials<'_>,
    result: &mut ClaimResult,
) -> Examined {
    let zero = matches!(claim.kind, ClaimKind::Zero { .. });
    let metric = experiment.metric(&claim.metric).filter(|_| !zero);
    let cells = claims::cells(experiment, claim, trials);
    let failures = cells
        .iter()
        .filter_map(|cell: &&Cell<'_>| cell.failures(metric));
    result.failures = failures.collect();
    let stopped = match &claim.kind {
        ClaimKind::Zero {
            counter,
            within,
            out_of,
            where_testable,
        } => match zero::count(trials, counter, within, out_of, *where_testable) {
            Ok(counted) => {
                result.measured = counted.happened.map(|happened| happened as f64);
                result.n = counted.rounds;
                result.verdict = counted.verdict;
                result.reason = Some(counted.reason);
                return Examined::Untested;
            }
            Err(obstacle) => obstacle,
        },
        _ => match claims::comparisons(experiment, claim, trials) {
            Ok(made) if experiment.exact => {
                exact::decide(&made, result);
                return Examined::Untested;
            }
            Ok(made) => {
                let ran = u32::try_from(trials.rounds).unwrap_or(u32::MAX);
                let left = experiment.rounds.most.saturating_sub(ran);
                return Examined::Test(Test::new(made, left));
            }
            Err(obstacle) => obstacle,
        },
    };
    let (verdict, reason) = match stopped {
        Obstacle::NotTestable(reason) => (Verdict::NotTestable, reason),
        Obstacle::Inconclusive(reason) => (Verdict::Inconclusive, reason),
        Obstacle::NotYet(reason) => {
            result.open = true;
            (Verdict::Inconclusive, reason)
        }
    };
    result.verdict = verdict;
    result.reason = Some(reason);
    match verdict {
        Verdict::NotTestable => Examined::Never,
        _ => Examined::Untested,
    }
}

#[cfg(test)]
mod tests;
