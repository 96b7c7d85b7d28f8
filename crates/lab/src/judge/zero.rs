//! Counts that must be zero: exact, without a p.

use super::claims::chosen;
use super::trials::{Obstacle, Trials};
use super::words;
use crate::result::Verdict;
use crate::sample::Outcome;
use crate::value::Selector;

/// The counts over all trials of a claim's cells.
pub(super) struct Counted {
    /// The number of events; `None` if no trial counted them.
    pub(super) happened: Option<u64>,
    /// Rounds with a trial that counted.
    pub(super) rounds: usize,
    /// The verdict.
    pub(super) verdict: Verdict,
    /// The reason for it.
    pub(super) reason: String,
}

/// Sums `counter` over every trial of the cells, second runs of the baseline included.
///
/// One event refutes the claim, whatever else went wrong. None confirms it only where every
/// trial counted, and had something to count: `out_of` is above 0. With `where_testable` that is
/// said of the cells that this machine can run, and the reason names how many it cannot.
///
/// # Errors
/// A cell that this machine cannot run, where no other says enough.
pub(super) fn count(
    trials: &Trials<'_>,
    counter: &str,
    within: &Selector,
    out_of: &str,
    where_testable: bool,
) -> Result<Counted, Obstacle> {
    let mut happened = 0u64;
    let mut chances = 0u64;
    let mut counted = 0usize;
    let mut silent = 0usize;
    let mut failed = 0usize;
    let mut rounds = 0usize;
    let mut obstacle = None;
    let mut waiting = None;
    let mut left_out = 0usize;
    let mut cells = 0usize;
    for cell in chosen(trials, within) {
        cells += 1;
        let untestable = cell.not_testable();
        if where_testable && untestable.is_some() {
            left_out += 1;
            obstacle = obstacle.or(untestable);
            continue;
        }
        obstacle = obstacle.or(untestable);
        waiting = waiting.or_else(|| (cell.ran() == 0).then(|| cell.name()));
        for record in cell.records() {
            let Outcome::Done { counters, .. } = &record.outcome else {
                failed += 1;
                continue;
            };
            match (counters.get(counter), counters.get(out_of)) {
                (Some(events), Some(of)) => {
                    happened = happened.saturating_add(*events);
                    chances = chances.saturating_add(*of);
                    counted += 1;
                }
                (Some(events), None) => {
                    happened = happened.saturating_add(*events);
                    silent += 1;
                }
                _ => silent += 1,
            }
        }
        rounds = rounds.max(cell.ran() - cell.failed());
    }
    let is_enough = happened > 0 || where_testable && left_out < cells;
    let without = match obstacle {
        Some(obstacle) if !is_enough => return Err(obstacle),
        Some(Obstacle::NotTestable(why)) if left_out > 0 => {
            let left_out = words::count(left_out, "cell");
            format!("; {left_out} cannot run here: {why}")
        }
        _ => String::new(),
    };
    let (verdict, reason) = if happened > 0 {
        (
            Verdict::NotReproduced,
            format!("{counter} was {happened} of {chances} {out_of}"),
        )
    } else if let Some(cell) = waiting {
        return Err(Obstacle::NotYet(format!("no trial of {cell} has run")));
    } else if counted == 0 && silent == 0 {
        (Verdict::Inconclusive, "every trial failed".to_owned())
    } else if silent > 0 {
        let trials = words::count(silent, "trial");
        (
            Verdict::Inconclusive,
            format!("{trials} did not report {counter} and {out_of}"),
        )
    } else if chances == 0 {
        (
            Verdict::Inconclusive,
            format!("nothing was counted: {out_of} is 0"),
        )
    } else if failed > 0 {
        let failed = words::count(failed, "trial");
        (
            Verdict::Inconclusive,
            format!(
                "0 of {chances} {out_of}, but {failed} failed, and what they would have counted \
                 is unknown"
            ),
        )
    } else {
        (
            Verdict::Reproduced,
            format!("0 of {chances} {out_of}{without}"),
        )
    };
    Ok(Counted {
        happened: (counted + silent > 0 && (silent == 0 || happened > 0)).then_some(happened),
        rounds,
        verdict,
        reason,
    })
}
