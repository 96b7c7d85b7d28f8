//! Runs a plan: trial after trial, each recorded as soon as it ends.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::driver::{Drivers, Missing};
use crate::experiment::Experiment;
use crate::plan::Trial;
use crate::sample::{Outcome, TrialRecord};
use crate::store::{RunDirectory, StoreError};
use crate::trial;
use crate::value::Point;

/// Who watches a run.
pub trait Observer {
    /// A trial begins: `done` of `total` are in.
    fn begins(&mut self, done: usize, total: usize, experiment: &str, trial: &Trial);

    /// The running trial is this far, from 0 to 1.
    fn progress(&mut self, done: f64);

    /// A trial is in.
    fn ended(&mut self, record: &TrialRecord);
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every trial is in.
    Complete,
    /// It was interrupted; what is in is valid, and the run can be resumed.
    Interrupted,
}

/// Runs what remains of a plan. A failed trial is recorded and the run goes on.
///
/// # Errors
/// The run directory could not be written.
pub fn run(
    directory: &mut RunDirectory,
    drivers: &Drivers,
    interrupted: &dyn Fn() -> bool,
    observer: &mut dyn Observer,
) -> Result<Ended, StoreError> {
    set_aside_untestable(directory, drivers)?;
    let remaining = directory.remaining();
    let total = remaining.len();
    let mut untestable = HashSet::new();
    for (done, trial) in remaining.iter().enumerate() {
        if interrupted() {
            return Ok(Ended::Interrupted);
        }
        if untestable.contains(&(trial.experiment, trial.at.to_string())) {
            continue;
        }
        let experiment = &directory.plan().experiments[trial.experiment];
        observer.begins(done, total, &experiment.id, trial);
        let Some(driver) = drivers.get(&experiment.driver) else {
            continue; // Already set aside.
        };
        let began = Instant::now();
        let parameters = driver
            .vocabulary()
            .complete(experiment.parameters(&trial.at));
        let finished = trial::run(
            &driver.invocation(&parameters),
            &experiment.metrics,
            interrupted,
            &mut |done| observer.progress(done),
        );
        let (outcome, overhead, log) = match finished {
            Ok(finished) => match finished.outcome {
                None => return Ok(Ended::Interrupted),
                Some(outcome) => (outcome, finished.overhead, finished.log),
            },
            Err(error) => {
                let program = driver.invocation(&parameters).program;
                let reason = format!("{} could not be started: {error}", program.display());
                (Outcome::Failed { reason }, None, Vec::new())
            }
        };
        // A cell that has been measured is testable: what it lacks now has gone away meanwhile.
        let measured = |record: &TrialRecord| {
            record.experiment == experiment.id
                && record.at == trial.at
                && matches!(record.outcome, Outcome::Done { .. })
        };
        let outcome = match outcome {
            Outcome::NotTestable { reason, .. } if directory.records().iter().any(measured) => {
                Outcome::Failed { reason }
            }
            outcome => outcome,
        };
        if matches!(outcome, Outcome::NotTestable { .. }) {
            untestable.insert((trial.experiment, trial.at.to_string()));
        }
        let record = record(directory, trial, outcome, began.elapsed(), overhead);
        observer.ended(&record);
        directory.append(record, &log)?;
    }
    Ok(Ended::Complete)
}

/// A cell with measurements that cannot run any more: the driver's `check` or the file it needs says
/// no since. To go on would set the whole cell aside and waste what is in.
pub fn lost(directory: &RunDirectory, drivers: &Drivers) -> Option<(TrialRecord, Missing)> {
    let plan = directory.plan();
    let mut seen = HashSet::new();
    let measured = directory.records().iter().filter(|record| {
        !matches!(record.outcome, Outcome::NotTestable { .. })
            && seen.insert((&record.experiment, record.at.to_string()))
    });
    let remaining: HashSet<(usize, String)> = directory
        .remaining()
        .iter()
        .map(|trial| (trial.experiment, trial.at.to_string()))
        .collect();
    measured.into_iter().find_map(|record| {
        let place = |experiment: &Experiment| experiment.id == record.experiment;
        let at = plan.experiments.iter().position(place)?;
        if !remaining.contains(&(at, record.at.to_string())) {
            return None;
        }
        let missing = check(&plan.experiments[at], &record.at, drivers).err()?;
        Some((record.clone(), missing))
    })
}

/// Whether this machine can run a cell.
fn check(experiment: &Experiment, at: &Point, drivers: &Drivers) -> Result<(), Missing> {
    let driver = drivers.get(&experiment.driver).ok_or_else(|| Missing {
        reason: format!("this program has no driver \"{}\"", experiment.driver),
        remedy: None,
    })?;
    driver.check(&driver.vocabulary().complete(experiment.parameters(at)))
}

/// Records once every cell that this machine cannot run, so that no round tries it.
fn set_aside_untestable(directory: &mut RunDirectory, drivers: &Drivers) -> Result<(), StoreError> {
    let mut seen = HashSet::new();
    for trial in directory.remaining() {
        if trial.again || !seen.insert((trial.experiment, trial.at.to_string())) {
            continue;
        }
        let experiment = &directory.plan().experiments[trial.experiment];
        if let Err(Missing { reason, remedy }) = check(experiment, &trial.at, drivers) {
            let outcome = Outcome::NotTestable { reason, remedy };
            let record = record(directory, &trial, outcome, Duration::ZERO, None);
            directory.append(record, &[])?;
        }
    }
    Ok(())
}

fn record(
    directory: &RunDirectory,
    trial: &Trial,
    outcome: Outcome,
    elapsed: Duration,
    overhead: Option<Duration>,
) -> TrialRecord {
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    TrialRecord {
        experiment: directory.plan().experiments[trial.experiment].id.clone(),
        round: trial.round,
        at: trial.at.clone(),
        again: trial.again,
        outcome,
        elapsed_ms: milliseconds(elapsed),
        overhead_ms: overhead.map(milliseconds),
        last_lines: Vec::new(),
        log: None,
    }
}
