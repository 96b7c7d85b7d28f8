//! The process of a trial, or of one role of several, towards the lab.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, Write as _};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::{anyhow, bail, Context as _};
use serde::Serialize;
use tare_lab::driver::Missing;
use tare_lab::figures::Figures;
use tare_lab::protocol::{Command, Message, Ready, PROTOCOL};

/// The time between two checks of a role that waits for a command.
const TICK: Duration = Duration::from_millis(20);

/// The reason why a trial ended early.
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
struct ProtocolWriter(io::StdoutLock<'static>);

impl ProtocolWriter {
    fn write(&mut self, message: &Message) -> io::Result<()> {
        serde_json::to_writer(&mut self.0, message)?;
        self.0.write_all(b"\n")?;
        self.0.flush()
    }
}

/// The process of a trial, or of one role of several, towards the lab.
pub(crate) struct Agent {
    writer: ProtocolWriter,
    /// The lab's commands; `None` in a trial of one role, which is given none.
    commands: Option<Receiver<Command>>,
    is_done: bool,
}

impl Agent {
    /// Begins the conversation; with `has_role` the lab gives commands.
    pub(crate) fn new(has_role: bool) -> io::Result<Agent> {
        let mut writer = ProtocolWriter(io::stdout().lock());
        writer.write(&Message::Version {
            protocol: PROTOCOL,
            program: format!("tare {}", env!("CARGO_PKG_VERSION")),
        })?;
        Ok(Agent {
            writer,
            commands: has_role.then(read_commands),
            is_done: false,
        })
    }

    /// Tells the lab that this role is ready, with what the others must know of it. Returns what
    /// each role said, by its name, when all are ready.
    pub(crate) fn ready(&mut self, data: Ready) -> anyhow::Result<BTreeMap<String, Ready>> {
        self.writer.write(&Message::Ready { data })?;
        match self.command(|| Ok(()))? {
            Command::Start { roles } => Ok(roles),
            other => Err(unexpected(&other, "start")),
        }
    }

    /// Adds a finding to the record of the trial.
    pub(crate) fn note(&mut self, name: &str, value: &impl Serialize) -> anyhow::Result<()> {
        let (name, value) = (name.to_owned(), serde_json::to_value(value)?);
        Ok(self.writer.write(&Message::Note { name, value })?)
    }

    /// Tells the lab that the warm-up is over; of the role that measures.
    pub(crate) fn start(&mut self) -> io::Result<()> {
        self.writer.write(&Message::Start {})
    }

    /// Waits until the measurement is over; of a role that serves. Meanwhile `check` is called
    /// every [`TICK`], and its error ends the wait.
    pub(crate) fn until_stopped(
        &mut self,
        check: impl FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        match self.command(check)? {
            Command::Stop {} => Ok(()),
            other => Err(unexpected(&other, "stop")),
        }
    }

    /// Tells the lab that this role begins no more work, and waits until no role does. Without
    /// other roles, or the second time, it does nothing.
    pub(crate) fn done(&mut self) -> anyhow::Result<()> {
        if self.commands.is_none() || self.is_done {
            return Ok(());
        }
        self.is_done = true;
        self.writer.write(&Message::Done {})?;
        match self.command(|| Ok(()))? {
            Command::Drain {} => Ok(()),
            other => Err(unexpected(&other, "drain")),
        }
    }

    /// Reports the figures of the trial: a sample of each metric, and the counters.
    pub(crate) fn report<F: Figures>(&mut self, figures: &F) -> anyhow::Result<()> {
        for (metric, value) in F::metrics().into_iter().zip(figures.values()) {
            let Some(value) = value else { continue };
            self.writer.write(&Message::Sample {
                metric: metric.name.to_owned(),
                value,
                unit: metric.unit,
                statistic: None,
            })?;
        }
        self.done()?;
        let counters = F::counters().into_iter().zip(figures.counts());
        let counters = counters.map(|(counter, count)| (counter.name.to_owned(), count));
        self.writer.write(&Message::Counters {
            counters: counters.collect(),
        })?;
        Ok(())
    }

    /// Ends the conversation with the result of the trial.
    pub(crate) fn end(&mut self, result: Result<(), TrialError>) -> io::Result<()> {
        self.writer.write(&match result {
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
        })
    }

    fn command(
        &mut self,
        mut check: impl FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<Command> {
        let commands = self.commands.as_ref();
        let commands = commands.context("a trial of one role has no barriers")?;
        loop {
            match commands.recv_timeout(TICK) {
                Ok(command) => return Ok(command),
                Err(RecvTimeoutError::Timeout) => check()?,
                Err(RecvTimeoutError::Disconnected) => bail!("the lab gives no more commands"),
            }
        }
    }
}

/// Reads the lab's commands from standard input, in a thread, as reading blocks.
fn read_commands() -> Receiver<Command> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            // What is no command is from a lab with another protocol: the receiver finds the end.
            let Ok(command) = serde_json::from_str(&line) else {
                return;
            };
            if sender.send(command).is_err() {
                return;
            }
        }
    });
    receiver
}

fn unexpected(found: &Command, expected: &str) -> anyhow::Error {
    anyhow!("found the command {found:?}, expected {expected}")
}
