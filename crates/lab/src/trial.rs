//! One trial: a child process, watched from its start to its last trace.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use std::os::unix::process::{CommandExt, ExitStatusExt};

use rustix::event::{poll, PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{kill_process_group, pidfd_open, Pid, PidfdFlags, Signal};

use crate::driver::Invocation;
use crate::experiment::Metric;
use crate::protocol::{Conversation, Findings, Heard, LINE_MAX};
use crate::sample::{Outcome, OPERATIONS};
use crate::unit::Unit;

/// How much of a trial's output a log keeps, in bytes, from its end.
const LOG_MAX: usize = 64 * 1024;

/// How long a trial may take to exit after its last message.
const EXIT_GRACE: Duration = Duration::from_secs(2);

/// How long the rest of its output may take to arrive once it is gone.
const DRAIN_MAX: Duration = Duration::from_millis(500);

/// How often a wait looks whether the run was interrupted.
const TICK: Duration = Duration::from_millis(20);

/// The counter of bytes that a program without the protocol wrote to its standard output.
pub const STDOUT_BYTES: &str = "stdout_bytes";

/// The metric of a program without the protocol: its time on the wall.
pub const TIME: &str = "time";

/// A finished trial.
#[derive(Debug)]
pub struct Finished {
    /// What came of it; `None` where the run was interrupted and the trial must run again.
    pub outcome: Option<Outcome>,
    /// From before the process was started until after its last trace was gone.
    pub elapsed: Duration,
    /// The part of `elapsed` in which the process did not yet, or no longer, speak; absent for a
    /// program without the protocol.
    pub overhead: Option<Duration>,
    /// The end of what it printed, for the log of a failed trial.
    pub log: Vec<u8>,
    /// The end of its standard error.
    pub errors: Vec<u8>,
}

enum Event {
    Line(Vec<u8>),
    LineTooLong,
    OutputClosed,
    ErrorOutput(Vec<u8>),
    Exited(Instant),
}

/// Runs one trial to its end, or to its limit, or until `interrupted`.
///
/// A trial is over when its process is, whoever still holds its output. Whatever happens, no
/// process of its group is left behind.
///
/// # Errors
/// The process could not be started.
pub fn run(
    invocation: &Invocation,
    metrics: &[Metric],
    interrupted: &dyn Fn() -> bool,
    progress: &mut dyn FnMut(f64),
) -> io::Result<Finished> {
    let began = Instant::now();
    let mut child = Group::start(invocation)?;
    let stdout_bytes = Arc::new(AtomicU64::new(0));
    let events = child.listen(invocation.speaks_protocol, &stdout_bytes)?;
    let mut watch = Watch::default();
    watch.follow(&child, &events, invocation.limit, interrupted, progress);
    let status = child.stop()?;
    let elapsed = began.elapsed();
    let overhead = match (watch.spoke_from, watch.spoke_until) {
        (Some(from), Some(until)) => Some(elapsed.saturating_sub(until - from)),
        _ => None,
    };
    let log = watch.log();
    let limit = invocation.limit.as_secs_f64();
    let outcome = match (watch.violation.take(), watch.exited) {
        (None, None) if watch.interrupted => None,
        (Some(violation), _) => Some(failed(violation)),
        (None, None) if watch.spoke_until.is_some() => Some(failed(format!(
            "it did not exit within {} s of its last message, or its limit of {limit} s",
            EXIT_GRACE.as_secs()
        ))),
        (None, None) if watch.output_closed => Some(failed(format!(
            "it closed its output but did not exit within its limit of {limit} s"
        ))),
        (None, None) => Some(failed(format!(
            "it did not end within its limit of {limit} s"
        ))),
        (None, Some(_)) if invocation.speaks_protocol => Some(watch.findings(metrics, status)),
        (None, Some(exited)) => Some(whole_process(
            metrics,
            status,
            exited - began,
            stdout_bytes.load(Ordering::Relaxed),
        )),
    };
    Ok(Finished {
        outcome,
        elapsed,
        overhead,
        log,
        errors: watch.errors,
    })
}

/// What is known of a trial.
#[derive(Default)]
struct Watch {
    conversation: Conversation,
    spoke_from: Option<Instant>,
    spoke_until: Option<Instant>,
    output: Vec<u8>,
    errors: Vec<u8>,
    output_closed: bool,
    exited: Option<Instant>,
    interrupted: bool,
    violation: Option<String>,
}

impl Watch {
    /// Listens until the process and its output are gone, or nobody will wait longer.
    fn follow(
        &mut self,
        child: &Group,
        events: &Receiver<Event>,
        limit: Duration,
        interrupted: &dyn Fn() -> bool,
        progress: &mut dyn FnMut(f64),
    ) {
        let mut patience = Patience::new(limit);
        loop {
            if self.exited.is_none() && interrupted() {
                self.interrupted = true;
                return;
            }
            let left = patience.left();
            if left.is_zero() {
                return;
            }
            match events.recv_timeout(left.min(TICK)) {
                Ok(Event::Line(line)) => {
                    keep_end(&mut self.output, &line);
                    self.output.push(b'\n');
                    self.hear(&line, progress);
                }
                Ok(Event::LineTooLong) => self.break_off(format!(
                    "found a line of over {LINE_MAX} bytes in its output"
                )),
                Ok(Event::OutputClosed) => self.output_closed = true,
                Ok(Event::ErrorOutput(bytes)) => keep_end(&mut self.errors, &bytes),
                Ok(Event::Exited(at)) => {
                    self.exited = Some(at);
                    child.kill();
                    patience.at_most(DRAIN_MAX);
                }
                // Its standard error alone is not waited for.
                Err(RecvTimeoutError::Timeout) if self.exited.is_some() && self.output_closed => {
                    return
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.violation.is_some() && self.exited.is_none() {
                child.kill();
                patience.at_most(DRAIN_MAX);
            } else if self.spoke_until.is_some() {
                patience.at_most(EXIT_GRACE);
            }
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
            Ok(Heard::Started | Heard::Noted) => {}
            Err(violation) => self.break_off(violation.0),
        }
    }

    fn break_off(&mut self, violation: String) {
        self.violation.get_or_insert(violation);
    }

    fn findings(&mut self, metrics: &[Metric], status: ExitStatus) -> Outcome {
        match std::mem::take(&mut self.conversation).finish(metrics) {
            Ok(Findings::Error {
                message,
                missing: true,
                remedy,
            }) => Outcome::NotTestable {
                reason: message,
                remedy,
            },
            Ok(Findings::Error { message, .. }) => failed(message),
            _ if !status.success() => failed(describe(status)),
            Ok(Findings::Done {
                values,
                samples,
                counters,
            }) => Outcome::Done {
                values,
                samples,
                counters,
            },
            Err(violation) => failed(violation.0),
        }
    }

    fn log(&self) -> Vec<u8> {
        let mut log = end_of(&self.output).to_vec();
        if !self.errors.is_empty() {
            log.extend_from_slice(b"-- standard error --\n");
            log.extend_from_slice(end_of(&self.errors));
        }
        log
    }
}

fn whole_process(
    metrics: &[Metric],
    status: ExitStatus,
    elapsed: Duration,
    stdout_bytes: u64,
) -> Outcome {
    if !status.success() {
        return failed(describe(status));
    }
    let mut values = BTreeMap::new();
    for metric in metrics {
        if metric.name != TIME {
            return failed(format!(
                "a program without the protocol gives the metric \"{TIME}\" only, not \"{}\"",
                metric.name
            ));
        }
        match Unit::Seconds.convert(elapsed.as_secs_f64(), metric.unit) {
            Ok(value) => values.insert(TIME.to_owned(), value),
            Err(error) => return failed(format!("metric \"{TIME}\": {error}")),
        };
    }
    let samples = values
        .iter()
        .map(|(name, value)| (name.clone(), vec![*value]));
    Outcome::Done {
        samples: samples.collect(),
        values,
        counters: [
            (OPERATIONS.to_owned(), 1),
            (STDOUT_BYTES.to_owned(), stdout_bytes),
        ]
        .into(),
    }
}

fn failed(reason: String) -> Outcome {
    Outcome::Failed { reason }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it exited with status {code}"),
        (None, Some(signal)) => format!("it was ended by signal {signal}"),
        (None, None) => "it ended in an unknown way".into(),
    }
}

/// Adds to a log of which only the end matters. It is cut now and then, not at every line.
fn keep_end(log: &mut Vec<u8>, more: &[u8]) {
    log.extend_from_slice(end_of(more));
    if log.len() > 4 * LOG_MAX {
        log.drain(..log.len() - LOG_MAX);
    }
}

fn end_of(log: &[u8]) -> &[u8] {
    &log[log.len().saturating_sub(LOG_MAX)..]
}

/// How much longer a trial is waited for.
///
/// A stretch in which this process did not run either (Ctrl-Z) is not the trial's fault and counts
/// for no more than [`Patience::STRETCH_MAX`].
struct Patience {
    left: Duration,
    since: Instant,
}

impl Patience {
    const STRETCH_MAX: Duration = Duration::from_millis(500);

    fn new(left: Duration) -> Patience {
        Patience {
            left,
            since: Instant::now(),
        }
    }

    fn left(&mut self) -> Duration {
        let now = Instant::now();
        let passed = (now - self.since).min(Self::STRETCH_MAX);
        self.since = now;
        self.left = self.left.saturating_sub(passed);
        self.left
    }

    /// From now on. A stretch before now is not taken from `most`.
    fn at_most(&mut self, most: Duration) {
        self.left = self.left().min(most);
    }
}

/// A child in a process group of its own, ended with everything it started.
struct Group {
    child: Child,
    id: Pid,
    reaped: Option<ExitStatus>,
}

impl Group {
    fn start(invocation: &Invocation) -> io::Result<Group> {
        let child = Command::new(&invocation.program)
            .args(&invocation.arguments)
            .envs(&invocation.environment)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let id = Pid::from_child(&child);
        Ok(Group {
            child,
            id,
            reaped: None,
        })
    }

    /// Everything that happens to the child, as it happens. The channel closes when the child is
    /// gone and nobody holds its output.
    fn listen(
        &mut self,
        speaks_protocol: bool,
        stdout_bytes: &Arc<AtomicU64>,
    ) -> io::Result<Receiver<Event>> {
        // Bounded, so that a child that floods its output waits instead of filling memory.
        let (sender, receiver) = mpsc::sync_channel(256);
        let process = pidfd_open(self.id, PidfdFlags::empty())?;
        if let Some(stdout) = self.child.stdout.take() {
            let (sender, bytes) = (sender.clone(), Arc::clone(stdout_bytes));
            thread::spawn(move || {
                if speaks_protocol {
                    read_lines(stdout, &sender);
                } else {
                    count_bytes(stdout, &bytes);
                    let _ = sender.send(Event::OutputClosed);
                }
            });
        }
        if let Some(mut stderr) = self.child.stderr.take() {
            let sender = sender.clone();
            thread::spawn(move || {
                let mut buffer = vec![0; 8192];
                while let Ok(n @ 1..) = stderr.read(&mut buffer) {
                    if sender
                        .send(Event::ErrorOutput(buffer[..n].to_vec()))
                        .is_err()
                    {
                        return;
                    }
                }
            });
        }
        thread::spawn(move || {
            while let Err(Errno::INTR) = poll(&mut [PollFd::new(&process, PollFlags::IN)], None) {}
            let _ = sender.send(Event::Exited(Instant::now()));
        });
        Ok(receiver)
    }

    /// Ends every process of the group. The child is left unreaped, so that the group's id cannot
    /// pass to another process in between.
    fn kill(&self) {
        let _ = kill_process_group(self.id, Signal::KILL);
    }

    /// Ends the group and reaps the child; its status is its own where it had exited before.
    fn stop(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.reaped {
            return Ok(status);
        }
        self.kill();
        let status = self.child.wait()?;
        self.reaped = Some(status);
        Ok(status)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

fn read_lines(stdout: impl Read, events: &SyncSender<Event>) {
    let mut reader = BufReader::new(stdout);
    loop {
        let mut line = Vec::new();
        let limit = LINE_MAX as u64 + 1;
        match reader.by_ref().take(limit).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        let event = match line.last() {
            Some(b'\n') => {
                line.pop();
                Event::Line(line)
            }
            _ if line.len() as u64 == limit => Event::LineTooLong,
            _ => Event::Line(line),
        };
        let too_long = matches!(event, Event::LineTooLong);
        if events.send(event).is_err() || too_long {
            return;
        }
    }
    let _ = events.send(Event::OutputClosed);
}

fn count_bytes(mut stdout: impl Read, bytes: &AtomicU64) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(n @ 1..) = stdout.read(&mut buffer) {
        bytes.fetch_add(n as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_limit_begins_when_it_is_set() {
        let mut patience = Patience::new(Duration::from_secs(60));
        thread::sleep(2 * DRAIN_MAX);
        patience.at_most(DRAIN_MAX);
        assert!(patience.left() > DRAIN_MAX / 2);
    }
}
