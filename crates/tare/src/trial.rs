//! The child's side of a trial: the protocol on standard output, the work in a driver.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context as _;
use rustix::process::Signal;
use tare_lab::driver::Missing;
use tare_lab::figures::Figures;
use tare_lab::protocol::{Message, PROTOCOL};
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
pub(crate) struct ProtocolWriter(io::StdoutLock<'static>);

impl ProtocolWriter {
    fn write(&mut self, message: &Message) -> io::Result<()> {
        serde_json::to_writer(&mut self.0, message)?;
        self.0.write_all(b"\n")?;
        self.0.flush()
    }

    /// The warm-up is over.
    pub(crate) fn start(&mut self) -> io::Result<()> {
        self.write(&Message::Start {})
    }

    /// The figures of the trial: a sample of each metric, and the counters.
    pub(crate) fn figures<F: Figures>(&mut self, figures: &F) -> io::Result<()> {
        for (metric, value) in F::metrics().into_iter().zip(figures.values()) {
            let Some(value) = value else { continue };
            self.write(&Message::Sample {
                metric: metric.name.to_owned(),
                value,
                unit: metric.unit,
                statistic: None,
            })?;
        }
        let counters = F::counters().into_iter().zip(figures.counts());
        let counters = counters.map(|(counter, count)| (counter.name.to_owned(), count));
        self.write(&Message::Counters {
            counters: counters.collect(),
        })
    }
}

/// Runs one trial and reports it.
pub(crate) fn trial(arguments: &cli::Trial) -> anyhow::Result<ExitCode> {
    // The run that started this trial may be killed; the trial must not outlive it.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let parameters: Parameters = serde_json::from_str(&arguments.parameters)
        .context("PARAMETERS: expected a JSON object of numbers, booleans and text")?;
    let mut writer = ProtocolWriter(io::stdout().lock());
    writer.write(&Message::Version {
        protocol: PROTOCOL,
        program: format!("tare {}", env!("CARGO_PKG_VERSION")),
    })?;
    let last = match systems::run_trial(&arguments.driver, &parameters, &mut writer) {
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
    writer.write(&last)?;
    Ok(ExitCode::SUCCESS)
}
