//! Follows one process of a trial: what it said, when it exited, what it did wrong.

use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::listen::{end_of, keep_end, keep_start, Captured, Event};
use super::patience::Patience;
use crate::driver::Part;
use crate::placement::Process;
use crate::protocol::{Command, Conversation, Heard, Position, LINE_MAX};

/// The time that a process may take to exit after its last message. Only a hang takes as long.
const EXIT_GRACE: Duration = Duration::from_secs(30);

/// The time that the rest of its output may take to arrive once it is gone. It is in a pipe then,
/// but the thread that reads it was seen not to run for half a second on a busy virtual machine.
pub(super) const DRAIN_MAX: Duration = Duration::from_secs(2);

/// One process of a trial, with what is known of it.
pub(super) struct Watch {
    pub(super) role: String,
    pub(super) process: Box<dyn Process>,
    pub(super) conversation: Conversation,
    pub(super) spoke_from: Option<Instant>,
    pub(super) spoke_until: Option<Instant>,
    pub(super) exited: Option<Instant>,
    pub(super) patience: Patience,
    pub(super) stdout: Arc<Captured>,
    pub(super) errors: Vec<u8>,
    commands: Sender<Vec<u8>>,
    limit: Duration,
    output: Vec<u8>,
    /// True if `errors` is searched for a metric, and so kept from its start and waited for.
    keep_errors: bool,
    /// True if the group outlives its first process, whose output is then not waited for.
    leave_group: bool,
    output_closed: bool,
    /// True if its output is not waited for any longer.
    given_up: bool,
    violation: Option<String>,
}

/// Settings: what is kept of a process's outputs, and what is waited for.
#[derive(Clone, Copy, Default)]
pub(super) struct Listening {
    /// True if its standard output is searched for a metric.
    pub(super) keep_output: bool,
    /// True if its standard error is.
    pub(super) keep_errors: bool,
    /// True if its peak memory is measured.
    pub(super) peak_memory: bool,
    /// True if what it started may go on when it has exited.
    pub(super) leave_group: bool,
}

impl Watch {
    /// Watches a process that was started just now.
    pub(super) fn new(
        part: &Part,
        position: Position,
        (process, commands): (Box<dyn Process>, Sender<Vec<u8>>),
        stdout: Arc<Captured>,
        listening: Listening,
    ) -> Watch {
        Watch {
            role: part.role.name.clone(),
            process,
            conversation: Conversation::new(position),
            spoke_from: None,
            spoke_until: None,
            exited: None,
            patience: Patience::new(part.invocation.limit),
            stdout,
            errors: Vec::new(),
            commands,
            limit: part.invocation.limit,
            output: Vec::new(),
            keep_errors: listening.keep_errors,
            leave_group: listening.leave_group,
            output_closed: false,
            given_up: false,
            violation: None,
        }
    }

    /// Records what the process did.
    pub(super) fn take(&mut self, event: Event, progress: &mut dyn FnMut(f64)) {
        match event {
            // A line is kept for the log before it is checked: a log that lacks the line that was
            // wrong would be of no use.
            Event::Line(line) => {
                keep_end(&mut self.output, &line);
                self.output.push(b'\n');
                self.hear(&line, progress);
            }
            Event::LineTooLong => self.break_off(format!(
                "found a line of over {LINE_MAX} bytes in its output"
            )),
            Event::OutputClosed => self.output_closed = true,
            Event::ErrorOutput(bytes) if self.keep_errors => keep_start(&mut self.errors, &bytes),
            Event::ErrorOutput(bytes) => keep_end(&mut self.errors, &bytes),
            Event::Exited(at) => {
                self.exited = Some(at);
                // What the process started may hold its output open for ever. It is ended now and
                // not after the output has closed, which it would delay.
                if !self.leave_group {
                    self.process.kill();
                }
                self.patience.at_most(DRAIN_MAX);
            }
        }
        if self.violation.is_some() && self.exited.is_none() {
            self.end();
        } else if self.spoke_until.is_some() {
            self.patience.at_most(EXIT_GRACE);
        }
    }

    fn hear(&mut self, line: &[u8], progress: &mut dyn FnMut(f64)) {
        if self.violation.is_some() {
            return;
        }
        match self.conversation.hear(line) {
            Ok(Heard::Introduced) => self.spoke_from = Some(Instant::now()),
            Ok(Heard::Progress(done)) => progress(done),
            Ok(Heard::Over) => self.spoke_until = Some(Instant::now()),
            Ok(Heard::Ready | Heard::Started | Heard::Noted | Heard::Done) => {}
            Err(violation) => self.break_off(violation.0),
        }
    }

    fn break_off(&mut self, violation: String) {
        self.violation.get_or_insert(violation);
    }

    /// Writes a command to the process, which has its whole limit to answer it.
    pub(super) fn tell(&mut self, command: &Command) {
        self.conversation.told(command);
        let mut line = serde_json::to_vec(command).expect("a command is plain data");
        line.push(b'\n');
        // It fails only where the process is gone, which is noticed by its exit.
        let _ = self.commands.send(line);
        if self.exited.is_none() {
            self.patience = Patience::new(self.limit);
        }
    }

    /// Ends the process; the rest of its output is waited for a moment.
    pub(super) fn end(&mut self) {
        self.process.kill();
        self.patience.at_most(DRAIN_MAX);
    }

    /// Takes note that the process is not waited for any longer. Returns whether that was expected:
    /// it has exited, and something else still holds its output.
    pub(super) fn give_up(&mut self) -> bool {
        self.given_up = true;
        self.exited.is_some()
    }

    /// Returns true if nothing more is expected of the process or its output.
    pub(super) fn is_gone(&self) -> bool {
        self.exited.is_some() && self.given_up
    }

    /// The same if nothing came for a while. Standard error alone is not waited for.
    pub(super) fn is_settled(&self) -> bool {
        let output_over = (self.leave_group || self.output_closed) && !self.keep_errors;
        self.is_gone() || (self.exited.is_some() && output_over)
    }

    /// Returns true if the trial cannot succeed any more because of this process.
    pub(super) fn has_failed(&self) -> bool {
        let gone = self.exited.is_some() && (self.output_closed || self.given_up);
        self.violation.is_some()
            || self.conversation.error().is_some()
            || (gone && self.spoke_until.is_none())
    }

    /// Returns the reason for which the process did not come to its end; `None` if it did, well or
    /// not. `late` says what it did not do in time.
    pub(super) fn hindrance(&self, late: &str) -> Option<String> {
        let limit = self.limit.as_secs_f64();
        match &self.violation {
            Some(violation) => Some(violation.clone()),
            None if self.exited.is_some() => None,
            None if self.spoke_until.is_some() => Some(format!(
                "it did not exit within {} s of its last message, or its limit of {limit} s",
                EXIT_GRACE.as_secs()
            )),
            None if self.output_closed => Some(format!(
                "it closed its output but did not exit within its limit of {limit} s"
            )),
            None => Some(format!("{late} within its limit of {limit} s")),
        }
    }

    /// The end of what it printed.
    pub(super) fn log(&self) -> Vec<u8> {
        let mut log = end_of(&self.output).to_vec();
        if self.stdout.keep {
            keep_end(&mut log, &self.stdout.text());
            log = end_of(&log).to_vec();
        }
        if !self.errors.is_empty() {
            log.extend_from_slice(b"-- standard error --\n");
            log.extend_from_slice(end_of(&self.errors));
        }
        log
    }

    /// Returns the number of bytes that a program without the protocol printed.
    pub(super) fn printed(&self) -> u64 {
        self.stdout.bytes.load(Ordering::Relaxed)
    }
}
