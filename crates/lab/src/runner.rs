//! Runs a plan, round after round: each trial is recorded as soon as it ends, each round is judged.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use crate::driver::{Drivers, Missing};
use crate::experiment::Experiment;
use crate::leftovers;
use crate::placement::Local;
use crate::plan::{Done, Trial};
use crate::result::ExperimentResult;
use crate::sample::{Outcome, TrialRecord};
use crate::schedule::{self, Schedule};
use crate::store::{RunDirectory, StoreError};
use crate::text::clean;
use crate::trial::{self, Finished};
use crate::value::Point;

/// The interval at which results are shown within a round, which decides nothing before its end. In
/// a long run less often, so that judging takes a twentieth of the time at most.
const SHOW_EVERY: Duration = Duration::from_secs(1);

/// The number of lines of standard error that the record of a failed trial keeps.
const LAST_LINES: usize = 5;

/// The number of characters that are kept of each of them.
const LINE_MAX: usize = 200;

/// An observer of a run.
pub trait Observer {
    /// A trial begins.
    fn begins(&mut self, experiment: &str, trial: &Trial);

    /// The running trial is this far, from 0 to 1.
    fn progress(&mut self, done: f64);

    /// A trial has ended and is recorded.
    fn ended(&mut self, record: &TrialRecord);

    /// The state before the first round, now and then within each, and after it: what the records
    /// so far come to, which experiments run this or another round, and the time taken so far.
    fn judged(&mut self, results: &[ExperimentResult], next: &Schedule, elapsed: Duration);
}

/// The way in which a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every experiment has what it needs, or its last round, or no time for another.
    Complete,
    /// It was interrupted; its records are valid, and the run can be resumed.
    Interrupted,
}

/// Runs what remains of a plan. In each round all experiments that are still open run their cells;
/// after it they are judged, and those whose claims are all decided are closed. A failed trial is
/// recorded and the run goes on.
///
/// What the machine cannot run is found out before the first trial and holds for all of the run:
/// later, a cell would have fewer rounds than those beside it. A run that was stopped before its
/// first trial finds it out anew.
///
/// # Errors
/// The run directory could not be written.
pub fn run(
    directory: &mut RunDirectory,
    drivers: &Drivers,
    interrupted: &dyn Fn() -> bool,
    observer: &mut dyn Observer,
) -> Result<Ended, StoreError> {
    leftovers::clear();
    let records = directory.records();
    if !records.is_empty() && !records.iter().any(schedule::ran) {
        directory.clear()?;
    }
    let mut run = Run {
        elapsed_before: schedule::elapsed(directory.records()),
        began: Instant::now(),
        untestable: HashSet::new(),
        judged: Instant::now(),
        judging: Duration::ZERO,
        directory,
        drivers,
        interrupted,
        observer,
    };
    run.set_aside_untestable()?;
    let mut next = Schedule::new(run.directory.plan(), run.directory.records());
    let results = run.judge();
    run.observer.judged(&results, &next, run.elapsed());
    // Of the round in which the run was stopped, a part may be recorded.
    let mut trials = run.directory.remaining(&next);
    while !next.is_complete() {
        for round in trials.drain(..) {
            if run.round_of_an_experiment(round, &mut next)? == Ended::Interrupted {
                return Ok(Ended::Interrupted);
            }
            if run.judged.elapsed() > SHOW_EVERY.max(run.judging * 20) {
                let results = run.judge();
                run.observer.judged(&results, &next, run.elapsed());
            }
        }
        let results = run.judge();
        next.advance(run.directory.plan(), &results);
        next.pass_by(run.directory.plan(), run.directory.records());
        run.observer.judged(&results, &next, run.elapsed());
        trials = run.directory.remaining(&next);
    }
    Ok(Ended::Complete)
}

/// A run under way.
struct Run<'a> {
    directory: &'a mut RunDirectory,
    drivers: &'a Drivers,
    interrupted: &'a dyn Fn() -> bool,
    observer: &'a mut dyn Observer,
    began: Instant,
    /// The time of the run's earlier parts.
    elapsed_before: Duration,
    /// Cells that said themselves that the machine lacks something.
    untestable: HashSet<(usize, String)>,
    /// The time of the last judgement, and how long it took.
    judged: Instant,
    judging: Duration,
}

impl Run<'_> {
    fn elapsed(&self) -> Duration {
        // A record's time may be any number.
        self.elapsed_before.saturating_add(self.began.elapsed())
    }

    fn judge(&mut self) -> Vec<ExperimentResult> {
        let began = Instant::now();
        let plan = self.directory.plan();
        let judged = plan.judge(self.directory.records());
        self.judged = Instant::now();
        self.judging = self.judged - began;
        judged.experiments
    }

    /// Runs what remains of one round of one experiment. If there is no time to begin it, the
    /// experiment is closed: its next round would leave a gap.
    fn round_of_an_experiment(
        &mut self,
        trials: Vec<Trial>,
        next: &mut Schedule,
    ) -> Result<Ended, StoreError> {
        let (plan, records) = (self.directory.plan(), self.directory.records());
        let Some(first) = trials.first() else {
            return Ok(Ended::Complete);
        };
        let id = &plan.experiments[first.experiment].id;
        let begun = records
            .iter()
            .any(|record| record.round == next.round && record.experiment == *id);
        if !begun && !schedule::has_time(plan, records, first.experiment, next.round) {
            next.open[first.experiment] = false;
            return Ok(Ended::Complete);
        }
        for trial in trials {
            if (self.interrupted)() || self.trial(&trial)? == Ended::Interrupted {
                return Ok(Ended::Interrupted);
            }
        }
        Ok(Ended::Complete)
    }

    fn trial(&mut self, trial: &Trial) -> Result<Ended, StoreError> {
        let cell = (trial.experiment, trial.at.to_string());
        if self.untestable.contains(&cell) {
            return Ok(Ended::Complete);
        }
        let experiment = &self.directory.plan().experiments[trial.experiment];
        let Some(driver) = self.drivers.get(&experiment.driver) else {
            return Ok(Ended::Complete); // Already set aside.
        };
        self.observer.begins(&experiment.id, trial);
        let began = Instant::now();
        let parameters = driver
            .vocabulary()
            .complete(experiment.parameters(&trial.at));
        let finished = match Local::new() {
            Ok(placement) => trial::run(
                placement,
                &driver.parts(&parameters),
                &experiment.metrics,
                self.interrupted,
                &mut |done| self.observer.progress(done),
            ),
            Err(error) => {
                let reason = format!("this process cannot look after those of a trial: {error}");
                Finished::failed(reason)
            }
        };
        let Some(outcome) = finished.outcome else {
            return Ok(Ended::Interrupted);
        };
        // A cell that has been measured is testable: what it lacks now was there before.
        let measured = |record: &TrialRecord| {
            record.experiment == experiment.id
                && record.at == trial.at
                && matches!(record.outcome, Outcome::Done { .. })
        };
        let outcome = match outcome {
            Outcome::NotTestable { reason, .. }
                if self.directory.records().iter().any(measured) =>
            {
                Outcome::Failed { reason }
            }
            outcome => outcome,
        };
        if matches!(outcome, Outcome::NotTestable { .. }) {
            self.untestable.insert(cell);
        }
        let mut record = self.record(trial, outcome, began.elapsed(), finished.overhead);
        if matches!(record.outcome, Outcome::Failed { .. }) {
            record.last_lines = last_lines(&finished.errors);
        }
        record.notes = finished.notes;
        self.observer.ended(&record);
        self.directory.append(record, &finished.log)?;
        Ok(Ended::Complete)
    }

    /// Records once every cell that this machine cannot run, so that no round tries it. A cell that
    /// was tried keeps its measurements, whatever the machine has lost since then.
    fn set_aside_untestable(&mut self) -> Result<(), StoreError> {
        let plan = self.directory.plan();
        let done = Done::new(self.directory.records());
        let tried = tried(self.directory.records());
        let mut records = Vec::new();
        for place in 0..plan.experiments.len() {
            for trial in plan.trials(place, 0) {
                let cell = (plan.experiments[place].id.as_str(), trial.at.to_string());
                if trial.again || tried.contains(&cell) || done.is_untestable(plan, &trial) {
                    continue;
                }
                if let Err(Missing { reason, remedy }) = self.check(&trial) {
                    let outcome = Outcome::NotTestable { reason, remedy };
                    records.push(self.record(&trial, outcome, Duration::ZERO, None));
                }
            }
        }
        for record in records {
            self.directory.append(record, &[])?;
        }
        Ok(())
    }

    fn check(&self, trial: &Trial) -> Result<(), Missing> {
        let experiment = &self.directory.plan().experiments[trial.experiment];
        check(experiment, &trial.at, self.drivers)
    }

    fn record(
        &self,
        trial: &Trial,
        outcome: Outcome,
        elapsed: Duration,
        overhead: Option<Duration>,
    ) -> TrialRecord {
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        TrialRecord {
            experiment: self.directory.plan().experiments[trial.experiment]
                .id
                .clone(),
            round: trial.round,
            at: trial.at.clone(),
            again: trial.again,
            outcome,
            elapsed_ms: milliseconds(elapsed),
            overhead_ms: overhead.map(milliseconds),
            run_ms: milliseconds(self.elapsed()),
            last_lines: Vec::new(),
            notes: BTreeMap::new(),
            log: None,
        }
    }
}

/// Returns the cells that have a trial, by experiment and name.
fn tried(records: &[TrialRecord]) -> HashSet<(&str, String)> {
    let tried = records.iter().filter(|record| schedule::ran(record));
    tried.map(cell_of).collect()
}

fn cell_of(record: &TrialRecord) -> (&str, String) {
    (&record.experiment, record.at.to_string())
}

/// A cell that could run when its run began, and cannot any more.
#[derive(Clone, Debug, PartialEq)]
pub struct Lost {
    /// The experiment's id.
    pub experiment: String,
    /// The cell.
    pub at: Point,
    /// True if it has trials.
    pub is_tried: bool,
    /// The thing that it lacks now.
    pub missing: Missing,
}

/// Returns a cell of an open experiment that could run when the run began but cannot any more,
/// because the driver's `check` fails now. To go on would add failed trials to its measurements, or
/// record for good that it cannot run here. Before the first trial no cell is lost.
pub fn lost(directory: &RunDirectory, drivers: &Drivers) -> Option<Lost> {
    let (plan, records) = (directory.plan(), directory.records());
    if !records.iter().any(schedule::ran) {
        return None;
    }
    let tried = tried(records);
    let set_aside = records.iter().filter(|record| !schedule::ran(record));
    let set_aside: HashSet<(&str, String)> = set_aside.map(cell_of).collect();
    let open = Schedule::new(plan, records).open;
    let open = plan.experiments.iter().zip(open).filter(|(_, open)| *open);
    open.into_iter().find_map(|(experiment, _)| {
        experiment.points().into_iter().find_map(|at| {
            let cell = (experiment.id.as_str(), at.to_string());
            if set_aside.contains(&cell) {
                return None;
            }
            let missing = check(experiment, &at, drivers).err()?;
            Some(Lost {
                experiment: experiment.id.clone(),
                is_tried: tried.contains(&cell),
                at,
                missing,
            })
        })
    })
}

/// Checks that this machine can run a cell.
fn check(experiment: &Experiment, at: &Point, drivers: &Drivers) -> Result<(), Missing> {
    let driver = drivers.get(&experiment.driver).ok_or_else(|| Missing {
        reason: format!("this program has no driver \"{}\"", experiment.driver),
        remedy: None,
    })?;
    driver.check(&driver.vocabulary().complete(experiment.parameters(at)))
}

/// Returns the last lines of a trial's standard error that are not empty, each of a length that
/// fits a report, without what could drive a terminal.
fn last_lines(errors: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(errors);
    let lines = text.lines().map(str::trim_end).filter(|l| !l.is_empty());
    let mut last: Vec<String> = lines
        .rev()
        .take(LAST_LINES)
        .map(|line| match line.char_indices().nth(LINE_MAX) {
            Some((end, _)) => clean(&line[..end]) + "…",
            None => clean(line),
        })
        .collect();
    last.reverse();
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_few_short_and_harmless() {
        let long = "é".repeat(LINE_MAX + 1);
        let text = format!("first\n\n2\n3\r\n\u{1b}[2J4\n5\n{long}\n\n");
        let lines = last_lines(text.as_bytes());
        assert_eq!(lines.len(), LAST_LINES);
        assert_eq!(lines[0], "2");
        assert_eq!(lines[1], "3");
        assert!(!lines[2].contains('\u{1b}') && lines[2].ends_with("[2J4"));
        assert_eq!(lines[4], "é".repeat(LINE_MAX) + "…");
        assert!(last_lines(b"").is_empty());
    }
}
