//! The records of one experiment, put where the judge looks for them: by cell, then by round.

use std::collections::HashMap;

use crate::experiment::{Experiment, Metric};
use crate::plan::ROUNDS_MAX;
use crate::sample::{is_measurable, Outcome, TrialRecord, OPERATIONS};
use crate::stats::median;
use crate::value::Point;

/// The trials of one experiment.
pub(super) struct Trials<'a> {
    /// The cells, in the experiment's order.
    pub(super) cells: Vec<Cell<'a>>,
}

/// The trials of one cell.
pub(super) struct Cell<'a> {
    /// Where it stands.
    pub(super) at: Point,
    /// The trial of each round; `None` where it has not run.
    pub(super) rounds: Vec<Option<&'a Outcome>>,
    /// The second trial of each round; empty unless this is the baseline.
    pub(super) again: Vec<Option<&'a Outcome>>,
}

/// Why a cell cannot take part in a claim.
pub(super) enum Obstacle {
    /// This machine cannot run it, or what it ran may not be compared.
    NotTestable(String),
    /// It could run, but gave nothing that carries a verdict.
    Inconclusive(String),
}

/// Sorts `records` by experiment, cell and round. Where a trial was recorded twice (in a run that
/// was resumed) the later record counts; records of cells that the experiment lacks and of rounds
/// beyond what any run has are left out.
pub(super) fn sort<'a>(
    experiments: &[Experiment],
    records: &'a [TrialRecord],
    rounds: u32,
) -> Vec<Trials<'a>> {
    let records = || records.iter().filter(|record| record.round < ROUNDS_MAX);
    let length = records()
        .map(|record| record.round as usize + 1)
        .max()
        .unwrap_or(0)
        .max(rounds as usize);
    let mut places: HashMap<(&str, String), (usize, usize)> = HashMap::new();
    let mut sorted = Vec::new();
    for (experiment, of) in experiments.iter().enumerate() {
        let mut cells = Vec::new();
        for (cell, at) in of.points().into_iter().enumerate() {
            places.insert((&of.id, at.to_string()), (experiment, cell));
            cells.push(Cell {
                at,
                rounds: vec![None; length],
                again: Vec::new(),
            });
        }
        sorted.push(Trials { cells });
    }
    for record in records() {
        let key = (record.experiment.as_str(), record.at.to_string());
        let Some(&(experiment, cell)) = places.get(&key) else {
            continue;
        };
        let cell = &mut sorted[experiment].cells[cell];
        let rounds = if record.again {
            cell.again.resize(length, None);
            &mut cell.again
        } else {
            &mut cell.rounds
        };
        rounds[record.round as usize] = Some(&record.outcome);
    }
    sorted
}

impl<'a> Cell<'a> {
    /// The metric's value of each round; `None` without a trial, or with one that failed or gave
    /// no measurable number.
    pub(super) fn values(&self, metric: &str) -> Vec<Option<f64>> {
        values(&self.rounds, metric)
    }

    /// As [`Cell::values`], of the baseline's second trials.
    pub(super) fn values_again(&self, metric: &str) -> Vec<Option<f64>> {
        values(&self.again, metric)
    }

    /// Every trial of the cell, second ones included.
    pub(super) fn outcomes(&self) -> impl Iterator<Item = &'a Outcome> + '_ {
        self.rounds.iter().chain(&self.again).copied().flatten()
    }

    /// How many of the cell's own trials failed.
    pub(super) fn failed(&self) -> usize {
        self.rounds
            .iter()
            .flatten()
            .filter(|outcome| matches!(outcome, Outcome::Failed { .. }))
            .count()
    }

    /// Work an operation, the median over trials; `None` where the counters do not say.
    pub(super) fn work_per_operation(&self, work: &str) -> Option<f64> {
        let each: Vec<f64> = self.work_by_round(work).into_iter().flatten().collect();
        median(&each)
    }

    /// Work an operation of each round; `None` where the counters do not say.
    pub(super) fn work_by_round(&self, work: &str) -> Vec<Option<f64>> {
        let of = |outcome: &Outcome| {
            let Outcome::Done { counters, .. } = outcome else {
                return None;
            };
            let operations = *counters.get(OPERATIONS)?;
            let work = *counters.get(work)?;
            (operations > 0).then(|| work as f64 / operations as f64)
        };
        self.rounds
            .iter()
            .map(|outcome| outcome.and_then(of))
            .collect()
    }

    /// What keeps the cell from having a figure for `metric`, if anything does.
    pub(super) fn obstacle(&self, metric: &Metric) -> Option<Obstacle> {
        if let Some(obstacle) = self.not_testable() {
            return Some(obstacle);
        }
        if self.values(&metric.name).iter().any(Option::is_some) {
            return None;
        }
        let at = self.name();
        let reason = match self.rounds.iter().flatten().next() {
            None => format!("no trial of {at} has run"),
            Some(Outcome::Failed { reason }) if self.failed() == self.ran() => {
                format!("every trial of {at} failed: {reason}")
            }
            Some(_) => format!("no trial of {at} gave a value for {}", metric.name),
        };
        Some(Obstacle::Inconclusive(reason))
    }

    /// What this machine lacks for the cell, if anything.
    pub(super) fn not_testable(&self) -> Option<Obstacle> {
        self.outcomes().find_map(|outcome| match outcome {
            Outcome::NotTestable { reason, remedy } => Some(Obstacle::NotTestable(match remedy {
                Some(remedy) => format!("{reason}; {remedy}"),
                None => reason.clone(),
            })),
            _ => None,
        })
    }

    /// How many of the cell's own trials have run, well or not.
    pub(super) fn ran(&self) -> usize {
        self.rounds.iter().flatten().count()
    }

    /// The cell in words.
    pub(super) fn name(&self) -> String {
        match self.at.beside() {
            Some(peer) => peer.to_owned(),
            None if self.at.0.is_empty() => "the only cell".to_owned(),
            None => self.at.to_string(),
        }
    }
}

fn values(rounds: &[Option<&Outcome>], metric: &str) -> Vec<Option<f64>> {
    rounds
        .iter()
        .map(|outcome| match outcome {
            Some(Outcome::Done { values, .. }) => values
                .get(metric)
                .copied()
                .filter(|value| is_measurable(*value)),
            _ => None,
        })
        .collect()
}
