//! One trial: a child process, watched from its start to its last trace.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use std::os::unix::process::{CommandExt, ExitStatusExt};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{kill_process_group, pidfd_open, Pid, PidfdFlags, Signal};

use crate::driver::Invocation;
use crate::experiment::Metric;
use crate::protocol::{Conversation, Findings, Heard, LINE_MAX};
use crate::sample::{Outcome, OPERATIONS};

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

/// The metric of a program without the protocol: its time on the wall, in seconds.
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
}

enum Event {
    Line(Vec<u8>),
    LineTooLong,
    OutputClosed { bytes: u64 },
    ErrorOutput(Vec<u8>),
}

/// Runs one trial to its end, or to its limit, or until `interrupted`.
///
/// Whatever happens, no process of the trial's group is left behind.
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
    let events = child.listen(invocation.speaks_protocol);
    let mut watch = Watch {
        conversation: Conversation::default(),
        spoke_from: None,
        spoke_until: None,
        output: Vec::new(),
        errors: Vec::new(),
        stdout_bytes: 0,
    };
    let ended = watch.follow(&events, began, invocation, interrupted, progress);
    let limit = began + invocation.limit;
    let status = match &ended {
        Ended::Over => child.wait(limit.min(Instant::now() + EXIT_GRACE), interrupted)?,
        Ended::OutputClosed => child.wait(limit, interrupted)?,
        _ => None,
    };
    let exited = began.elapsed();
    child.stop()?;
    let ended = match watch.drain(&events) {
        Some(violation) if matches!(ended, Ended::Over) => Ended::Violation(violation),
        _ => ended,
    };
    let elapsed = began.elapsed();
    let overhead = match (watch.spoke_from, watch.spoke_until) {
        (Some(from), Some(until)) => Some(elapsed.saturating_sub(until - from)),
        _ => None,
    };
    let log = watch.log();
    let outcome = match ended {
        _ if status.is_none() && interrupted() => None,
        Ended::Interrupted => None,
        Ended::Hung => Some(failed(format!(
            "it did not end within its limit of {} s",
            invocation.limit.as_secs_f64()
        ))),
        Ended::Violation(what) => Some(failed(what)),
        Ended::OutputClosed | Ended::Over => Some(match status {
            None => failed(format!(
                "it closed its output but did not exit within {} s or its limit of {} s",
                EXIT_GRACE.as_secs(),
                invocation.limit.as_secs_f64()
            )),
            Some(status) if invocation.speaks_protocol => watch.findings(metrics, status),
            Some(status) => whole_process(status, exited, watch.stdout_bytes),
        }),
    };
    Ok(Finished {
        outcome,
        elapsed,
        overhead,
        log,
    })
}

enum Ended {
    Over,
    OutputClosed,
    Hung,
    Interrupted,
    Violation(String),
}

struct Watch {
    conversation: Conversation,
    spoke_from: Option<Instant>,
    spoke_until: Option<Instant>,
    output: Vec<u8>,
    errors: Vec<u8>,
    stdout_bytes: u64,
}

impl Watch {
    fn follow(
        &mut self,
        events: &Receiver<Event>,
        began: Instant,
        invocation: &Invocation,
        interrupted: &dyn Fn() -> bool,
        progress: &mut dyn FnMut(f64),
    ) -> Ended {
        loop {
            if interrupted() {
                return Ended::Interrupted;
            }
            let Some(left) = invocation.limit.checked_sub(began.elapsed()) else {
                return Ended::Hung;
            };
            match events.recv_timeout(left.min(TICK)) {
                Ok(Event::Line(line)) => {
                    keep_end(&mut self.output, &line);
                    self.output.push(b'\n');
                    match self.conversation.hear(&line) {
                        Ok(Heard::Introduced) => self.spoke_from = Some(Instant::now()),
                        Ok(Heard::Progress(done)) => progress(done),
                        Ok(Heard::Over) => {
                            self.spoke_until = Some(Instant::now());
                            return Ended::Over;
                        }
                        Ok(Heard::Started | Heard::Noted) => {}
                        Err(violation) => return Ended::Violation(violation.0),
                    }
                }
                Ok(Event::LineTooLong) => {
                    return Ended::Violation(format!(
                        "found a line of over {LINE_MAX} bytes in its output"
                    ))
                }
                Ok(Event::OutputClosed { bytes }) => {
                    self.stdout_bytes = bytes;
                    return Ended::OutputClosed;
                }
                Ok(Event::ErrorOutput(bytes)) => keep_end(&mut self.errors, &bytes),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ended::OutputClosed,
            }
        }
    }

    /// Takes what the readers still hold once every writer is gone. A line after the end is a
    /// breach of the protocol, and is returned as one.
    fn drain(&mut self, events: &Receiver<Event>) -> Option<String> {
        let until = Instant::now() + DRAIN_MAX;
        let mut violation = None;
        while Instant::now() < until {
            match events.recv_timeout(TICK) {
                Ok(Event::Line(line)) => {
                    keep_end(&mut self.output, &line);
                    self.output.push(b'\n');
                    if let Err(breach) = self.conversation.hear(&line) {
                        violation.get_or_insert(breach.0);
                    }
                }
                Ok(Event::ErrorOutput(bytes)) => keep_end(&mut self.errors, &bytes),
                Ok(Event::LineTooLong | Event::OutputClosed { .. }) => {}
                Err(_) => break,
            }
        }
        violation
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

    fn log(&mut self) -> Vec<u8> {
        let mut log = std::mem::take(&mut self.output);
        if !self.errors.is_empty() {
            log.extend_from_slice(b"-- standard error --\n");
            log.append(&mut self.errors);
        }
        log
    }
}

fn whole_process(status: ExitStatus, elapsed: Duration, stdout_bytes: u64) -> Outcome {
    if !status.success() {
        return failed(describe(status));
    }
    let seconds = elapsed.as_secs_f64();
    Outcome::Done {
        values: [(TIME.to_owned(), seconds)].into(),
        samples: [(TIME.to_owned(), vec![seconds])].into(),
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

fn keep_end(log: &mut Vec<u8>, more: &[u8]) {
    log.extend_from_slice(&more[more.len().saturating_sub(LOG_MAX)..]);
    if log.len() > LOG_MAX {
        log.drain(..log.len() - LOG_MAX);
    }
}

/// A child in a process group of its own, ended with everything it started.
struct Group {
    child: Child,
    id: Pid,
    gone: bool,
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
            gone: false,
        })
    }

    fn listen(&mut self, speaks_protocol: bool) -> Receiver<Event> {
        // Bounded, so that a child that floods its output waits instead of filling memory.
        let (sender, receiver) = mpsc::sync_channel(256);
        if let Some(stdout) = self.child.stdout.take() {
            let sender = sender.clone();
            thread::spawn(move || {
                if speaks_protocol {
                    read_lines(stdout, &sender);
                } else {
                    count_bytes(stdout, &sender);
                }
            });
        }
        if let Some(mut stderr) = self.child.stderr.take() {
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
        receiver
    }

    /// Waits for the child to exit, at most until `until`. It is left unreaped until its group is
    /// gone, so that the group's id cannot pass to another process in between.
    fn wait(
        &mut self,
        until: Instant,
        interrupted: &dyn Fn() -> bool,
    ) -> io::Result<Option<ExitStatus>> {
        let process = pidfd_open(self.id, PidfdFlags::empty())?;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let tick = Timespec::try_from(left.min(TICK)).map_err(io::Error::other)?;
            let mut exit = [PollFd::new(&process, PollFlags::IN)];
            match poll(&mut exit, Some(&tick)) {
                Ok(0) if left.is_zero() || interrupted() => return Ok(None),
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => {
                    let _ = kill_process_group(self.id, Signal::KILL);
                    self.gone = true;
                    return self.child.wait().map(Some);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn stop(&mut self) -> io::Result<()> {
        if !self.gone {
            let _ = kill_process_group(self.id, Signal::KILL);
            self.child.wait()?;
            self.gone = true;
        }
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

fn read_lines(stdout: impl Read, events: &SyncSender<Event>) {
    let mut reader = BufReader::new(stdout);
    let mut bytes = 0;
    loop {
        let mut line = Vec::new();
        let limit = LINE_MAX as u64 + 1;
        match reader.by_ref().take(limit).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(n) => bytes += n as u64,
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
    let _ = events.send(Event::OutputClosed { bytes });
}

fn count_bytes(mut stdout: impl Read, events: &SyncSender<Event>) {
    let mut buffer = vec![0; 64 * 1024];
    let mut bytes = 0;
    while let Ok(n @ 1..) = stdout.read(&mut buffer) {
        bytes += n as u64;
    }
    let _ = events.send(Event::OutputClosed { bytes });
}
