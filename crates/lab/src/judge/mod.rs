//! From records to verdicts: every figure, the noise floor, and what became of each claim.
//!
//! `docs/src/instrument.md` says how far the verdicts can be trusted, with measured rates.

mod cells;
mod claims;
mod comparison;
mod trials;
mod verdict;
mod words;
mod zero;

use crate::experiment::{Bound, Claim, ClaimKind, Experiment, Standing};
use crate::result::{ClaimResult, ExperimentResult, Verdict};
use crate::sample::TrialRecord;
use crate::stats::holm;
pub use crate::stats::rounds_for;
use crate::unit::Unit;
use trials::{Obstacle, Trials};
use verdict::{Corrected, Test};
pub use words::criterion;

/// How to judge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judging {
    /// The seed of every bootstrap and of random sign flips. The same records and seed give the
    /// same result.
    pub seed: u64,
    /// The chance of a false verdict, of each of the two kinds, that a whole run may take.
    pub alpha: f64,
    /// Rounds planned.
    pub rounds: u32,
}

impl Judging {
    /// Judging at α = 0.05.
    pub fn new(seed: u64, rounds: u32) -> Self {
        Judging {
            seed,
            alpha: 0.05,
            rounds,
        }
    }
}

/// Judges the `records` of one run against its `experiments`, whose order the results keep.
///
/// A run need not be complete. Records of experiments or cells that are not in `experiments` are
/// left out; of two records of one trial the later counts. The correction for the number of
/// claims covers all claims given here that could be tested, so a run is judged in one call.
pub fn judge(
    experiments: &[Experiment],
    records: &[TrialRecord],
    options: &Judging,
) -> Vec<ExperimentResult> {
    let sorted = trials::sort(experiments, records, options.rounds);
    let mut results = Vec::new();
    let mut tests: Vec<(usize, usize, Test)> = Vec::new();
    for (place, (experiment, trials)) in experiments.iter().zip(&sorted).enumerate() {
        let mut claims = Vec::new();
        for claim in &experiment.claims {
            let mut result = unjudged(experiment, claim);
            if let Some(test) = examine(experiment, claim, trials, options, &mut result) {
                tests.push((place, claims.len(), test));
            }
            claims.push(result);
        }
        results.push(ExperimentResult {
            id: experiment.id.clone(),
            title: experiment.title.clone(),
            source: experiment.source.clone(),
            axes: experiment.axes.clone(),
            published: experiment.published.clone(),
            noise: cells::noise(experiment, trials, options.seed),
            cells: cells::figures(experiment, trials, options.seed),
            rounds: options.rounds,
            exact: false,
            claims,
            targets: Vec::new(),
        });
    }
    let claim = holm(
        &tests
            .iter()
            .map(|(_, _, test)| test.claim)
            .collect::<Vec<_>>(),
    );
    let other = holm(
        &tests
            .iter()
            .map(|(_, _, test)| test.other)
            .collect::<Vec<_>>(),
    );
    for (index, (experiment, result, test)) in tests.iter().enumerate() {
        let corrected = Corrected {
            claim: claim[index],
            other: other[index],
            tests: tests.len(),
        };
        test.decide(
            &corrected,
            options,
            &mut results[*experiment].claims[*result],
        );
    }
    for (experiment, result) in experiments.iter().zip(&mut results) {
        set_targets_apart(experiment, result);
    }
    results
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

/// How many claims of `experiments` are tested with a p, and therefore share the correction:
/// all but those that count. [`rounds_for`] says how many rounds that number needs.
pub fn tests_in(experiments: &[Experiment]) -> usize {
    experiments
        .iter()
        .flat_map(|experiment| &experiment.claims)
        .filter(|claim| !matches!(claim.kind, ClaimKind::Zero { .. }))
        .count()
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
        p: None,
        p_holm: None,
        n: 0,
        failures: Vec::new(),
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

/// The claim's test where it has one; otherwise `result` is complete.
fn examine(
    experiment: &Experiment,
    claim: &Claim,
    trials: &Trials<'_>,
    options: &Judging,
    result: &mut ClaimResult,
) -> Option<Test> {
    let stopped = match &claim.kind {
        ClaimKind::Zero {
            counter,
            within,
            out_of,
        } => match zero::count(trials, counter, within, out_of) {
            Ok(counted) => {
                result.measured = counted.happened.map(|happened| happened as f64);
                result.n = counted.rounds;
                result.verdict = counted.verdict;
                result.reason = Some(counted.reason);
                return None;
            }
            Err(obstacle) => obstacle,
        },
        _ => match claims::comparisons(experiment, claim, trials) {
            Ok(made) => match Test::new(&made, &result.id, options) {
                Ok(test) => return Some(test),
                Err(reason) => Obstacle::Inconclusive(reason),
            },
            Err(obstacle) => obstacle,
        },
    };
    let (verdict, reason) = match stopped {
        Obstacle::NotTestable(reason) => (Verdict::NotTestable, reason),
        Obstacle::Inconclusive(reason) => (Verdict::Inconclusive, reason),
    };
    result.verdict = verdict;
    result.reason = Some(reason);
    None
}

/// A seed for one figure: FNV-1a over its name, so that no figure depends on which others there
/// are.
fn seed_of(seed: u64, name: &[&str]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325 ^ seed;
    for part in name {
        for byte in part.bytes().chain([0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash
}

#[cfg(test)]
mod tests;
