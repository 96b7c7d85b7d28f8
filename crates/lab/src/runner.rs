//! Runs a plan: trial after trial, each recorded as soon as it ends.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::driver::{Drivers, Missing};
use crate::plan::Trial;
use crate::sample::{Outcome, TrialRecord};
use crate::store::{RunDirectory, StoreError};
use crate::trial;

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
        if matches!(outcome, Outcome::NotTestable { .. }) {
            untestable.insert((trial.experiment, trial.at.to_string()));
        }
        let record = record(directory, trial, outcome, began.elapsed(), overhead);
        observer.ended(&record);
        directory.append(record, &log)?;
    }
    Ok(Ended::Complete)
}

/// Records once every cell that this machine cannot run, so that no round tries it.
fn set_aside_untestable(directory: &mut RunDirectory, drivers: &Drivers) -> Result<(), StoreError> {
    let mut seen = HashSet::new();
    for trial in directory.remaining() {
        if trial.again || !seen.insert((trial.experiment, trial.at.to_string())) {
            continue;
        }
        let experiment = &directory.plan().experiments[trial.experiment];
        let checked = match drivers.get(&experiment.driver) {
            Some(driver) => {
                let parameters = experiment.parameters(&trial.at);
                driver.check(&driver.vocabulary().complete(parameters))
            }
            None => Err(Missing {
                reason: format!("this program has no driver \"{}\"", experiment.driver),
                remedy: None,
            }),
        };
        if let Err(Missing { reason, remedy }) = checked {
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
