//! The child's side of a trial: the protocol on standard output, the work in a driver.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context as _;
use rustix::process::Signal;
use tare_lab::driver::Missing;
use tare_lab::protocol::{Message, PROTOCOL};
use tare_lab::unit::Unit;
use tare_lab::value::Parameters;

use crate::{cli, systems};

/// Why a trial did not come to its end.
pub(crate) enum TrialError {
    /// The machine lacks something.
    Missing(Missing),
    /// Something broke.
    Failed(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for TrialError {
    fn from(error: E) -> Self {
        TrialError::Failed(error.into())
    }
}

/// Writes the protocol to standard output, a line at a time.
pub(crate) struct Speaker(io::StdoutLock<'static>);

impl Speaker {
    fn say(&mut self, message: &Message) -> io::Result<()> {
        serde_json::to_writer(&mut self.0, message)?;
        self.0.write_all(b"\n")?;
        self.0.flush()
    }

    /// The warm-up is over.
    pub(crate) fn start(&mut self) -> io::Result<()> {
        self.say(&Message::Start {})
    }

    /// One measurement.
    pub(crate) fn sample(&mut self, metric: &str, value: f64, unit: Unit) -> io::Result<()> {
        self.say(&Message::Sample {
            metric: metric.to_owned(),
            value,
            unit,
            statistic: None,
        })
    }

    /// Totals of work done.
    pub(crate) fn counters(&mut self, counters: &[(&str, u64)]) -> io::Result<()> {
        let counters: BTreeMap<String, u64> = counters
            .iter()
            .map(|&(name, count)| (name.to_owned(), count))
            .collect();
        self.say(&Message::Counters { counters })
    }
}

/// Runs one trial and speaks of it.
pub(crate) fn trial(arguments: &cli::Trial) -> anyhow::Result<ExitCode> {
    // The run that started this trial may be killed; the trial must not outlive it.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let parameters: Parameters = serde_json::from_str(&arguments.parameters)
        .context("PARAMETERS: expected a JSON object of numbers, booleans and text")?;
    let mut speaker = Speaker(io::stdout().lock());
    speaker.say(&Message::Version {
        protocol: PROTOCOL,
        program: format!("tare {}", env!("CARGO_PKG_VERSION")),
    })?;
    let last = match systems::run_trial(&arguments.driver, &parameters, &mut speaker) {
        Ok(()) => Message::End {},
        Err(TrialError::Missing(Missing { reason, remedy })) => Message::Error {
            message: reason,
            missing: true,
            remedy,
        },
        Err(TrialError::Failed(error)) => Message::Error {
            message: format!("{error:#}"),
            missing: false,
            remedy: None,
        },
    };
    speaker.say(&last)?;
    Ok(ExitCode::SUCCESS)
}
