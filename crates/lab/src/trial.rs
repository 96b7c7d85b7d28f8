//! One trial: a child process, watched from its start to its last trace.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use std::os::unix::process::{CommandExt, ExitStatusExt};

use rustix::event::{poll, PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{kill_process_group, pidfd_open, Pid, PidfdFlags, Signal};

use crate::descendants::{Descendants, MARK};
use crate::driver::Invocation;
use crate::experiment::Metric;
use crate::extract::{Stream, OUTPUT_MAX};
use crate::protocol::{measurable, Conversation, Findings, Heard, LINE_MAX};
use crate::sample::{Outcome, OPERATIONS};
use crate::unit::Unit;
use crate::usage::{self, Usage, METRICS};

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
/// A trial is over when its process is, whoever still holds its output. Whatever happens, none of
/// its processes is left behind, in its group or out of it; for that, this process becomes a
/// subreaper (`PR_SET_CHILD_SUBREAPER`) and should start no other programs in groups of their own
/// meanwhile.
///
/// # Errors
/// The process could not be started.
pub fn run(
    invocation: &Invocation,
    metrics: &[Metric],
    interrupted: &dyn Fn() -> bool,
    progress: &mut dyn FnMut(f64),
) -> io::Result<Finished> {
    let descendants = Descendants::expected()?;
    let mut finished = match step(
        "prepare",
        &invocation.prepare,
        invocation,
        &descendants,
        interrupted,
    ) {
        Some(unprepared) => unprepared,
        None => measure(invocation, metrics, &descendants, interrupted, progress)?,
    };
    // An interrupted trial is tidied up too, but is not waited for.
    let patience = match finished.outcome {
        Some(_) => invocation.limit,
        None => invocation.limit.min(EXIT_GRACE),
    };
    let tidy = Invocation {
        limit: patience,
        ..invocation.clone()
    };
    let untidy = step("cleanup", &invocation.cleanup, &tidy, &descendants, &|| {
        false
    });
    if let (Some(untidy), Some(Outcome::Done { .. })) = (untidy, &finished.outcome) {
        finished.outcome = untidy.outcome;
        finished.log.extend(untidy.log);
        finished.errors = untidy.errors;
    }
    Ok(finished)
}

/// Runs the program itself.
fn measure(
    invocation: &Invocation,
    metrics: &[Metric],
    descendants: &Descendants,
    interrupted: &dyn Fn() -> bool,
    progress: &mut dyn FnMut(f64),
) -> io::Result<Finished> {
    let taken_from = |stream| {
        let mut places = metrics.iter().filter_map(|metric| metric.from.as_ref());
        places.any(|extract| extract.stream == stream)
    };
    let began = Instant::now();
    let mut child = Group::start(invocation, descendants)?;
    let stdout = Arc::new(Captured {
        keep: taken_from(Stream::Stdout),
        ..Captured::default()
    });
    let events = child.listen(invocation.speaks_protocol, &stdout)?;
    let mut watch = Watch {
        keep_errors: taken_from(Stream::Stderr),
        ..Watch::default()
    };
    watch.follow(&child, &events, invocation.limit, interrupted, progress);
    let (status, usage) = child.stop()?;
    let elapsed = began.elapsed();
    if stdout.keep {
        keep_end(&mut watch.output, &stdout.text());
    }
    let overhead = match (watch.spoke_from, watch.spoke_until) {
        (Some(from), Some(until)) => Some(elapsed.saturating_sub(until - from)),
        _ => None,
    };
    let (log, errors) = (watch.log(), end_of(&watch.errors).to_vec());
    let outcome = match (watch.hindrance(invocation.limit), watch.exited) {
        (Some(hindrance), _) => hindrance,
        (None, exited) => {
            let seen = Seen {
                time: exited.map_or(elapsed, |at| at - began),
                usage,
                stdout: &stdout,
                stderr: &std::mem::take(&mut watch.errors),
            };
            Some(if invocation.speaks_protocol {
                watch.findings(metrics, status, &seen)
            } else {
                whole_process(metrics, status, &seen)
            })
        }
    };
    Ok(Finished {
        outcome,
        elapsed,
        overhead,
        log,
        errors,
    })
}

/// Runs `prepare` or `cleanup`; `None` where it succeeded, or there is none.
fn step(
    name: &str,
    words: &[OsString],
    invocation: &Invocation,
    descendants: &Descendants,
    interrupted: &dyn Fn() -> bool,
) -> Option<Finished> {
    let (program, arguments) = words.split_first()?;
    let step = Invocation {
        program: program.into(),
        arguments: arguments.to_vec(),
        ..invocation.clone()
    };
    let began = Instant::now();
    let mut watch = Watch {
        leave_group: true,
        ..Watch::default()
    };
    let ended = Group::start(&step, descendants).and_then(|mut child| {
        let events = child.listen(false, &Arc::default())?;
        watch.follow(&child, &events, step.limit, interrupted, &mut |_| {});
        match watch.exited {
            Some(_) => child.reap(),
            None => child.stop(),
        }
    });
    let outcome = match (ended, watch.hindrance(step.limit)) {
        (Err(error), _) => {
            let program = step.program.display();
            Some(failed(format!(
                "{name}: {program} could not be started: {error}"
            )))
        }
        (_, Some(Some(Outcome::Failed { reason }))) => Some(failed(format!("{name}: {reason}"))),
        (_, Some(outcome)) => outcome,
        (Ok((status, _)), None) if status.success() => return None,
        (Ok((status, _)), None) => Some(failed(format!("{name}: {}", describe(status)))),
    };
    Some(Finished {
        outcome,
        elapsed: began.elapsed(),
        overhead: None,
        log: watch.log(),
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
    /// Whether `errors` is searched for a metric, and so kept from its start and waited for.
    keep_errors: bool,
    /// Whether the group outlives its first process, whose output is then not waited for.
    leave_group: bool,
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
                Ok(Event::ErrorOutput(bytes)) if self.keep_errors => {
                    // One byte too many tells that there was more.
                    let room = (OUTPUT_MAX + 1).saturating_sub(self.errors.len());
                    self.errors
                        .extend_from_slice(&bytes[..bytes.len().min(room)]);
                }
                Ok(Event::ErrorOutput(bytes)) => keep_end(&mut self.errors, &bytes),
                Ok(Event::Exited(at)) => {
                    self.exited = Some(at);
                    if !self.leave_group {
                        child.kill();
                    }
                    patience.at_most(DRAIN_MAX);
                }
                // Its standard error alone is not waited for.
                Err(RecvTimeoutError::Timeout)
                    if self.exited.is_some()
                        && (self.leave_group || self.output_closed)
                        && !self.keep_errors =>
                {
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

    /// Why the trial did not come to its end: `Some(None)` where it was interrupted and must run
    /// again, `None` where it did.
    fn hindrance(&mut self, limit: Duration) -> Option<Option<Outcome>> {
        let limit = limit.as_secs_f64();
        let reason = match self.violation.take() {
            Some(violation) => violation,
            None if self.exited.is_some() => return None,
            None if self.interrupted => return Some(None),
            None if self.spoke_until.is_some() => format!(
                "it did not exit within {} s of its last message, or its limit of {limit} s",
                EXIT_GRACE.as_secs()
            ),
            None if self.output_closed => {
                format!("it closed its output but did not exit within its limit of {limit} s")
            }
            None => format!("it did not end within its limit of {limit} s"),
        };
        Some(Some(failed(reason)))
    }

    fn findings(&mut self, metrics: &[Metric], status: ExitStatus, seen: &Seen<'_>) -> Outcome {
        let conversation = std::mem::take(&mut self.conversation);
        let (said, seen_only): (Vec<Metric>, Vec<Metric>) =
            metrics.iter().cloned().partition(|metric| {
                metric.from.is_none()
                    && (conversation.has_sample_of(&metric.name)
                        || seen.usage.value(&metric.name).is_none())
            });
        match conversation.finish(&said) {
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
                mut values,
                mut samples,
                counters,
            }) => match seen.measure(&seen_only, &mut values, &mut samples) {
                Ok(()) => Outcome::Done {
                    values,
                    samples,
                    counters,
                },
                Err(reason) => failed(reason),
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

/// What a program shows without saying it by the protocol.
struct Seen<'a> {
    /// From its start to its exit.
    time: Duration,
    usage: Usage,
    stdout: &'a Captured,
    stderr: &'a [u8],
}

impl Seen<'_> {
    /// Adds the values of metrics that are taken from outside the protocol.
    fn measure(
        &self,
        metrics: &[Metric],
        values: &mut BTreeMap<String, f64>,
        samples: &mut BTreeMap<String, Vec<f64>>,
    ) -> Result<(), String> {
        let mut unknown = None;
        for metric in metrics {
            // What the kernel cannot tell is missing, and the trial's other metrics are good.
            if let (None, Some(Err(why))) = (&metric.from, self.usage.value(&metric.name)) {
                unknown = Some(why);
                continue;
            }
            let of_metric = self
                .samples(metric)
                .map_err(|what| format!("metric \"{}\": {what}", metric.name))?;
            let value = metric.statistic.of(&of_metric).ok_or("no sample")?;
            values.insert(metric.name.clone(), value);
            samples.insert(metric.name.clone(), of_metric);
        }
        match unknown {
            Some(why) if values.is_empty() => Err(why),
            _ => Ok(()),
        }
    }

    fn samples(&self, metric: &Metric) -> Result<Vec<f64>, String> {
        let found = match &metric.from {
            Some(extract) if extract.stream == Stream::Stdout => {
                extract.samples(&self.stdout.text(), metric.unit)?
            }
            Some(extract) => extract.samples(self.stderr, metric.unit)?,
            None => {
                let (unit, value) = self.measured(&metric.name)?;
                let converted = unit.convert(value, metric.unit);
                vec![converted.map_err(|error| error.to_string())?]
            }
        };
        found.into_iter().map(measurable).collect()
    }

    fn measured(&self, name: &str) -> Result<(Unit, f64), String> {
        if name == TIME {
            return Ok((Unit::Seconds, self.time.as_secs_f64()));
        }
        let unit = METRICS.iter().find(|(known, _)| *known == name);
        match (unit, self.usage.value(name)) {
            (Some((_, unit)), Some(value)) => Ok((*unit, value?)),
            _ => Err(format!(
                "a program that does not speak the protocol has \"{TIME}\", what it used of the \
                 machine (\"cpu_time\", …), and metrics that are taken from its output"
            )),
        }
    }
}

fn whole_process(metrics: &[Metric], status: ExitStatus, seen: &Seen<'_>) -> Outcome {
    if !status.success() {
        return failed(describe(status));
    }
    let (mut values, mut samples) = (BTreeMap::new(), BTreeMap::new());
    if let Err(reason) = seen.measure(metrics, &mut values, &mut samples) {
        return failed(reason);
    }
    Outcome::Done {
        values,
        samples,
        counters: [
            (OPERATIONS.to_owned(), 1),
            (
                STDOUT_BYTES.to_owned(),
                seen.stdout.bytes.load(Ordering::Relaxed),
            ),
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

/// What a program without the protocol wrote to its standard output.
#[derive(Default)]
struct Captured {
    bytes: AtomicU64,
    /// Whether the text is kept too, as far as it is searched.
    keep: bool,
    text: Mutex<Vec<u8>>,
}

impl Captured {
    fn text(&self) -> MutexGuard<'_, Vec<u8>> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, mut stdout: impl Read) {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(n @ 1..) = stdout.read(&mut buffer) {
            self.bytes.fetch_add(n as u64, Ordering::Relaxed);
            if self.keep {
                let mut text = self.text();
                // One byte too many tells that there was more.
                let room = (OUTPUT_MAX + 1).saturating_sub(text.len());
                text.extend_from_slice(&buffer[..n.min(room)]);
            }
        }
    }
}

/// A child in a process group of its own, ended with everything in it.
struct Group {
    /// `None` once it is reaped.
    child: Option<Child>,
    id: Pid,
    memory_floor: Option<u64>,
}

impl Group {
    fn start(invocation: &Invocation, descendants: &Descendants) -> io::Result<Group> {
        let mut command = Command::new(&invocation.program);
        command
            .args(&invocation.arguments)
            .envs(&invocation.environment)
            .env(MARK, descendants.mark())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        if let Some(directory) = &invocation.directory {
            command.current_dir(directory);
        }
        let memory_floor = usage::memory_floor();
        let child = command.spawn()?;
        let id = Pid::from_child(&child);
        descendants.led_by(id);
        Ok(Group {
            child: Some(child),
            id,
            memory_floor,
        })
    }

    /// Everything that happens to the child, as it happens. The channel closes when the child is
    /// gone and nobody holds its output.
    fn listen(
        &mut self,
        speaks_protocol: bool,
        captured: &Arc<Captured>,
    ) -> io::Result<Receiver<Event>> {
        // Bounded, so that a child that floods its output waits instead of filling memory.
        let (sender, receiver) = mpsc::sync_channel(256);
        let process = pidfd_open(self.id, PidfdFlags::empty())?;
        let Some(child) = &mut self.child else {
            return Ok(receiver);
        };
        if let Some(stdout) = child.stdout.take() {
            let (sender, captured) = (sender.clone(), Arc::clone(captured));
            thread::spawn(move || {
                if speaks_protocol {
                    read_lines(stdout, &sender);
                } else {
                    captured.read(stdout);
                    let _ = sender.send(Event::OutputClosed);
                }
            });
        }
        if let Some(mut stderr) = child.stderr.take() {
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
    fn stop(&mut self) -> io::Result<(ExitStatus, Usage)> {
        self.kill();
        self.reap()
    }

    fn reap(&mut self) -> io::Result<(ExitStatus, Usage)> {
        let child = self.child.take().ok_or(io::ErrorKind::InvalidInput)?;
        usage::reap(child, self.memory_floor)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.child.is_some() {
            let _ = self.stop();
        }
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
