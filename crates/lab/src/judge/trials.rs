//! The records of one experiment, put where the judge looks for them: by cell, then by round.

use std::collections::HashMap;

use super::words;
use crate::experiment::{Experiment, Metric, IMPORTED, ROUNDS_MAX};
use crate::result::Failures;
use crate::sample::{is_measurable, Outcome, TrialRecord, OPERATIONS};
use crate::stats::{median, Round};
use crate::value::Point;

/// The trials of one experiment.
pub(super) struct Trials<'a> {
    /// The cells, in the experiment's order.
    pub(super) cells: Vec<Cell<'a>>,
    /// Rounds that have run, or begun to.
    pub(super) rounds: usize,
}

/// The trials of one cell.
pub(super) struct Cell<'a> {
    /// Its point in the matrix.
    pub(super) at: Point,
    /// The trial of each round; `None` if it has not run.
    pub(super) rounds: Vec<Option<&'a TrialRecord>>,
    /// The second trial of each round; empty unless this is the baseline.
    pub(super) again: Vec<Option<&'a TrialRecord>>,
    /// The result of a trial that succeeded without a value. A log need not have every figure, so
    /// one that lacks it is no round of that figure; a trial that was to measure it has failed.
    without_value: Round,
}

/// The reason for which a cell cannot take part in a claim.
pub(super) enum Obstacle {
    /// This machine cannot run it, or what it ran may not be compared.
    NotTestable(String),
    /// It ran, and gave nothing that carries a verdict.
    Inconclusive(String),
    /// It has not run yet.
    NotYet(String),
}

/// The number of cells up to which a record's is looked for among their points.
const FEW_CELLS: usize = 8;

/// Sorts `records` by experiment, cell and round. Where a trial was recorded twice (in a run that
/// was resumed) the later record counts; records of cells that the experiment lacks and of rounds
/// beyond what any run has are left out.
pub(super) fn sort<'a>(experiments: &[Experiment], records: &'a [TrialRecord]) -> Vec<Trials<'a>> {
    let mut places: HashMap<&str, (usize, HashMap<String, usize>)> = HashMap::new();
    let mut sorted = Vec::new();
    for (experiment, of) in experiments.iter().enumerate() {
        let mut cells = Vec::new();
        let mut by_name = HashMap::new();
        for (cell, at) in of.points().into_iter().enumerate() {
            by_name.insert(at.to_string(), cell);
            cells.push(Cell {
                at,
                rounds: Vec::new(),
                again: Vec::new(),
                without_value: match of.driver.as_str() {
                    IMPORTED => Round::Missing,
                    _ => Round::Failed,
                },
            });
        }
        places.insert(&of.id, (experiment, by_name));
        sorted.push(Trials { cells, rounds: 0 });
    }
    for record in records.iter().filter(|record| record.round < ROUNDS_MAX) {
        let Some((experiment, by_name)) = places.get(record.experiment.as_str()) else {
            continue;
        };
        let trials = &mut sorted[*experiment];
        // A few points are compared in less time than a name is written.
        let cells = trials.cells.iter();
        let few = cells.len() <= FEW_CELLS && cells.len() == by_name.len();
        let equal = || cells.enumerate().find(|(_, cell)| cell.at == record.at);
        let named = || by_name.get(&record.at.to_string()).copied();
        let found = few.then(equal).flatten().map(|(cell, _)| cell);
        let Some(cell) = found.or_else(named) else {
            continue;
        };
        let round = record.round as usize;
        // What this machine lacks is recorded in a round too, and nothing has run.
        if !matches!(record.outcome, Outcome::NotTestable { .. }) {
            trials.rounds = trials.rounds.max(round + 1);
        }
        let cell = &mut trials.cells[cell];
        let rounds = if record.again {
            &mut cell.again
        } else {
            &mut cell.rounds
        };
        if rounds.len() <= round {
            rounds.resize(round + 1, None);
        }
        rounds[round] = Some(record);
    }
    for trials in &mut sorted {
        let lengths = trials.cells.iter().map(|cell| cell.rounds.len());
        let length = lengths.max().unwrap_or(0).max(trials.rounds);
        for cell in &mut trials.cells {
            cell.rounds.resize(length, None);
            if !cell.again.is_empty() {
                cell.again.resize(length, None);
            }
        }
    }
    sorted
}

impl<'a> Cell<'a> {
    /// Returns the metric's figure in each round. A trial that ran and gave no measurable number
    /// has failed, whatever it says of itself; a log that lacks the figure has not.
    pub(super) fn figures(&self, metric: &str) -> Vec<Round> {
        self.figures_of(&self.rounds, metric)
    }

    /// As [`Cell::figures`], of the baseline's second trials.
    pub(super) fn figures_again(&self, metric: &str) -> Vec<Round> {
        self.figures_of(&self.again, metric)
    }

    fn figures_of(&self, rounds: &[Option<&TrialRecord>], metric: &str) -> Vec<Round> {
        let of = |record: &Option<&TrialRecord>| match record {
            Some(record) => self.figure(&record.outcome, metric),
            None => Round::Missing,
        };
        rounds.iter().map(of).collect()
    }

    fn figure(&self, outcome: &Outcome, metric: &str) -> Round {
        match outcome {
            Outcome::Done { values, .. } => match values.get(metric) {
                Some(value) if is_measurable(*value) => Round::Figure(*value),
                Some(_) => Round::Failed,
                None => self.without_value,
            },
            Outcome::Failed { .. } => Round::Failed,
            Outcome::NotTestable { .. } => Round::Missing,
        }
    }

    /// Every trial of the cell, second ones included.
    pub(super) fn records(&self) -> impl Iterator<Item = &'a TrialRecord> + '_ {
        self.rounds.iter().chain(&self.again).copied().flatten()
    }

    /// Returns the number of the cell's own trials that failed.
    pub(super) fn failed(&self) -> usize {
        self.rounds
            .iter()
            .flatten()
            .filter(|record| matches!(record.outcome, Outcome::Failed { .. }))
            .count()
    }

    /// The failed trials that a claim on `metric` counts, those that gave no number for it among
    /// them; without a metric, those that a count covers. `None` if none failed.
    pub(super) fn failures(&self, metric: Option<&Metric>) -> Option<Failures> {
        match metric {
            // A claim compares the first trials alone; a count covers the second ones too.
            Some(metric) => {
                let first = self.rounds.iter().copied().flatten().collect();
                self.failures_among(first, &[metric])
            }
            None => self.all_failures(&[]),
        }
    }

    /// Every failed trial of the cell, second ones and those that gave no number for one of
    /// `metrics` among them. `None` if none failed.
    pub(super) fn all_failures(&self, metrics: &[&Metric]) -> Option<Failures> {
        self.failures_among(self.records().collect(), metrics)
    }

    fn failures_among(&self, ran: Vec<&TrialRecord>, metrics: &[&Metric]) -> Option<Failures> {
        let mut reasons: Vec<(String, usize)> = Vec::new();
        let mut last: Option<&TrialRecord> = None;
        for record in &ran {
            let mut missing = metrics
                .iter()
                .filter(|metric| self.figure(&record.outcome, &metric.name) == Round::Failed);
            let reason = match (&record.outcome, missing.next()) {
                (Outcome::Failed { reason }, _) => reason.clone(),
                (_, Some(metric)) => format!("{}{}", words::NO_VALUE, metric.name),
                (_, None) => continue,
            };
            last = Some(record);
            match reasons.iter_mut().find(|(other, _)| *other == reason) {
                Some((_, times)) => *times += 1,
                None => reasons.push((reason, 1)),
            }
        }
        let failed = reasons.iter().map(|(_, times)| times).sum();
        // Of reasons as frequent as each other the first.
        let (reason, _) = reasons.into_iter().rev().max_by_key(|(_, times)| *times)?;
        Some(Failures {
            at: self.at.clone(),
            failed,
            of: ran.len(),
            reason,
            last_lines: last.map_or_else(Vec::new, |record| record.last_lines.clone()),
            log: last.and_then(|record| record.log.clone()),
        })
    }

    /// Returns the work per operation, the median over trials; `None` if the counters do not give
    /// it.
    pub(super) fn work_per_operation(&self, work: &str) -> Option<f64> {
        let each: Vec<f64> = self.work_by_round(work).into_iter().flatten().collect();
        median(&each)
    }

    /// Returns the work per operation of each round; `None` if the counters do not give it.
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
            .map(|record| record.and_then(|record| of(&record.outcome)))
            .collect()
    }

    /// Returns the reason for which the cell has no figure for `metric`; `None` if it has one.
    pub(super) fn obstacle(&self, metric: &Metric) -> Option<Obstacle> {
        if let Some(obstacle) = self.not_testable() {
            return Some(obstacle);
        }
        let mut figures = self.figures(&metric.name).into_iter();
        if figures.any(|figure| matches!(figure, Round::Figure(_))) {
            return None;
        }
        Some(match self.failures(Some(metric)) {
            None => Obstacle::NotYet(format!("no trial of {} has run", self.name())),
            Some(Failures { reason, .. }) => {
                Obstacle::Inconclusive(words::none_gave_a_figure(&self.at, &reason))
            }
        })
    }

    /// Returns what this machine lacks for the cell; `None` if it lacks nothing.
    pub(super) fn not_testable(&self) -> Option<Obstacle> {
        self.records().find_map(|record| match &record.outcome {
            Outcome::NotTestable { reason, remedy } => Some(Obstacle::NotTestable(match remedy {
                Some(remedy) => format!("{reason}; {remedy}"),
                None => reason.clone(),
            })),
            _ => None,
        })
    }

    /// Returns the number of the cell's own trials that have run, failed ones among them.
    pub(super) fn ran(&self) -> usize {
        self.rounds.iter().flatten().count()
    }

    /// The cell in words.
    pub(super) fn name(&self) -> String {
        name(&self.at)
    }
}

/// A cell in words.
pub(super) fn name(at: &Point) -> String {
    at.in_words()
}
