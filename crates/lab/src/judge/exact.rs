//! Claims about deterministic trials: what holds once holds always, and a p would count
//! repetitions as evidence.

use super::comparison::Comparison;
use super::words;
use crate::result::{ClaimResult, Verdict};
use crate::stats::{median, Round};
use crate::unit::significant;

/// Writes the figure, the verdict and its reason into `result`, whose failures are known. The claim
/// holds where all `comparisons` hold in every round, and does not where some fails in every round.
pub(super) fn decide(comparisons: &[Comparison], result: &mut ClaimResult) {
    let distances: Vec<Vec<f64>> = comparisons
        .iter()
        .map(|comparison| comparison.distances().collect())
        .collect();
    let medians: Vec<Option<f64>> = distances.iter().map(|one| median(one)).collect();
    let lowest = |index: &usize| medians[*index].unwrap_or(f64::INFINITY);
    let worst = (0..comparisons.len())
        .min_by(|a, b| lowest(a).total_cmp(&lowest(b)))
        .unwrap_or(0);
    result.measured = comparisons[worst].measure().effect;
    result.open = false;
    let rounds: Vec<bool> = (0..comparisons[0].rounds.len())
        .filter_map(|round| holds(comparisons, round))
        .collect();
    result.n = rounds.len();
    let held = rounds.iter().filter(|holds| **holds).count();
    let name = &comparisons[worst].name;
    let furthest = (comparisons.len() > 1 && !name.is_empty())
        .then(|| format!("furthest from the criterion: {name}"))
        .filter(|_| held == 0);
    let spread = spread(&comparisons[worst]);
    (result.verdict, result.reason) = match words::failed(&result.failures) {
        Some(failed) => (
            Verdict::Inconclusive,
            Some(format!("declared deterministic, but {failed}")),
        ),
        None if rounds.is_empty() => {
            result.open = true;
            (Verdict::Inconclusive, Some("no round is complete".into()))
        }
        None if held == rounds.len() => (Verdict::Reproduced, spread),
        None if held == 0 => (Verdict::NotReproduced, spread.or(furthest)),
        None => (
            Verdict::Inconclusive,
            Some(format!(
                "declared deterministic, but it holds in {held} of {}",
                words::count(rounds.len(), "round")
            )),
        ),
    };
}

/// Returns whether all comparisons hold in a round; `None` if one of them lacks it.
fn holds(comparisons: &[Comparison], round: usize) -> Option<bool> {
    let mut all = true;
    for comparison in comparisons {
        match comparison.rounds[round] {
            Round::Figure(figure) => all &= comparison.distance(figure) >= 0.0,
            Round::Missing | Round::Failed => return None,
        }
    }
    Some(all)
}

/// That the rounds differ, in words, where they do.
fn spread(comparison: &Comparison) -> Option<String> {
    let figures = comparison.rounds.iter().filter_map(|round| match round {
        Round::Figure(figure) => Some(comparison.scale.show(*figure)),
        Round::Missing | Round::Failed => None,
    });
    let (low, high) = figures.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), one| {
        (low.min(one), high.max(one))
    });
    let same = high - low <= 1e-9 * high.abs().max(low.abs());
    (!same && low < high).then(|| {
        let [low, high] = [low, high].map(significant);
        format!("declared deterministic, but the rounds differ: {low} to {high}")
    })
}
