//! One trial: its processes, watched from their start until nothing of them is left.
//!
//! A trial of one process is over when that process is, even if something else still holds its
//! output. A trial of several roles passes the barriers that [`crate::protocol`] describes; each
//! role must answer each of the lab's commands within its own limit, and where one fails, the
//! others are ended and the trial has failed.

mod listen;
mod outcome;
mod patience;
mod processes;
mod watch;

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::time::{Duration, Instant};

use outcome::{describe, failed};
use processes::Processes;
use watch::Listening;

use crate::driver::{Invocation, Part};
use crate::experiment::Metric;
use crate::extract::Stream;
use crate::placement::Placement;
use crate::sample::Outcome;
use crate::usage::PEAK_MEMORY;

/// The counter of bytes that a program without the protocol wrote to its standard output.
pub const STDOUT_BYTES: &str = "stdout_bytes";

/// The metric of a program without the protocol: its wall-clock time.
pub const TIME: &str = "time";

/// The time that the cleanup of an interrupted trial may take.
const TIDY_MAX: Duration = Duration::from_secs(2);

/// A finished trial.
#[derive(Debug)]
pub struct Finished {
    /// The outcome; `None` if the run was interrupted and the trial must run again.
    pub outcome: Option<Outcome>,
    /// From before the first process was started until every process was gone.
    pub elapsed: Duration,
    /// The part of `elapsed` in which the process that measures did not yet, or no longer, speak;
    /// `None` for a program without the protocol.
    pub overhead: Option<Duration>,
    /// Notes of the processes for the record.
    pub notes: BTreeMap<String, serde_json::Value>,
    /// The end of what each process printed, for the log of a failed trial.
    pub log: Vec<u8>,
    /// The end of the standard error of the role that failed, or else of the one that measures.
    pub errors: Vec<u8>,
}

impl Finished {
    /// A trial that failed before a process was started.
    pub(crate) fn failed(reason: String) -> Finished {
        Finished {
            outcome: Some(failed(reason)),
            elapsed: Duration::ZERO,
            overhead: None,
            notes: BTreeMap::new(),
            log: Vec::new(),
            errors: Vec::new(),
        }
    }
}

/// Runs one trial to its end, or to a limit, or until `interrupted`. The first part measures. When
/// this returns, none of the trial's processes is left.
pub fn run(
    mut placement: impl Placement,
    parts: &[Part],
    metrics: &[Metric],
    interrupted: &dyn Fn() -> bool,
    progress: &mut dyn FnMut(f64),
) -> Finished {
    if let Err(reason) = check(parts) {
        return Finished::failed(reason);
    }
    let placement = &mut placement;
    let several = parts.len() > 1;
    let name = |part: &Part, step: &str| match several {
        true => format!("{}: {step}", part.role.name),
        false => step.to_owned(),
    };
    let unprepared = parts.iter().find_map(|part| {
        let words = &part.invocation.prepare;
        step(&name(part, "prepare"), words, part, placement, interrupted)
    });
    let mut finished =
        unprepared.unwrap_or_else(|| measure(placement, parts, metrics, interrupted, progress));
    for part in parts.iter().rev() {
        let limit = part.invocation.limit;
        let tidy = Part {
            role: part.role.clone(),
            invocation: Invocation {
                // An interrupted trial is tidied up too, but is not waited for.
                limit: match finished.outcome {
                    Some(_) => limit,
                    None => limit.min(TIDY_MAX),
                },
                ..part.invocation.clone()
            },
        };
        let words = &part.invocation.cleanup;
        let untidy = step(&name(part, "cleanup"), words, &tidy, placement, &|| false);
        if let (Some(untidy), Some(Outcome::Done { .. })) = (untidy, &finished.outcome) {
            finished.outcome = untidy.outcome;
            finished.log.extend(untidy.log);
            finished.errors = untidy.errors;
        }
    }
    finished
}

/// Checks what a driver says of its roles.
fn check(parts: &[Part]) -> Result<(), String> {
    if parts.is_empty() {
        return Err("the driver names no role".into());
    }
    let mut names = HashSet::new();
    for Part { role, invocation } in parts {
        if !names.insert(&role.name) {
            return Err(format!("the driver names the role \"{}\" twice", role.name));
        }
        if parts.len() > 1 && !invocation.speaks_protocol {
            return Err(format!(
                "the role \"{}\" must speak the protocol, for the trial has several roles",
                role.name
            ));
        }
    }
    Ok(())
}

/// Runs the processes themselves.
fn measure(
    placement: &mut dyn Placement,
    parts: &[Part],
    metrics: &[Metric],
    interrupted: &dyn Fn() -> bool,
    progress: &mut dyn FnMut(f64),
) -> Finished {
    let taken_from = |stream| {
        let mut places = metrics.iter().filter_map(|metric| metric.from.as_ref());
        places.any(|extract| extract.stream == stream)
    };
    let listening = Listening {
        keep_output: taken_from(Stream::Stdout),
        keep_errors: taken_from(Stream::Stderr),
        peak_memory: (metrics.iter())
            .any(|metric| metric.name == PEAK_MEMORY && metric.from.is_none()),
        leave_group: false,
    };
    let began = Instant::now();
    let mut processes = match Processes::start(placement, parts, listening) {
        Ok(processes) => processes,
        Err(reason) => return Finished::failed(reason),
    };
    processes.follow(interrupted, progress);
    let ended = processes.stop();
    let elapsed = began.elapsed();
    let measuring = &processes.watches[0];
    let overhead = match (measuring.spoke_from, measuring.spoke_until) {
        (Some(from), Some(until)) => Some(elapsed.saturating_sub(until - from)),
        _ => None,
    };
    let time = measuring.exited.map_or(elapsed, |at| at - began);
    let notes = processes.notes();
    let outcome = match ended {
        Ok(ended) => processes.outcome(metrics, &ended, time, parts[0].invocation.speaks_protocol),
        Err(reason) => Some(failed(reason)),
    };
    if matches!(outcome, Some(Outcome::Failed { .. })) {
        processes.take_last_errors();
    }
    Finished {
        outcome,
        elapsed,
        overhead,
        notes,
        log: processes.log(),
        errors: processes.errors(),
    }
}

/// Runs `prepare` or `cleanup`; `None` if it succeeded, or there is none.
fn step(
    name: &str,
    words: &[OsString],
    part: &Part,
    placement: &mut dyn Placement,
    interrupted: &dyn Fn() -> bool,
) -> Option<Finished> {
    let (program, arguments) = words.split_first()?;
    let invocation = Invocation {
        program: program.into(),
        arguments: arguments.to_vec(),
        speaks_protocol: false,
        ..part.invocation.clone()
    };
    let part = Part {
        role: part.role.clone(),
        invocation,
    };
    let listening = Listening {
        leave_group: true,
        ..Listening::default()
    };
    let began = Instant::now();
    let mut processes = match Processes::start(placement, &[part], listening) {
        Ok(processes) => processes,
        Err(reason) => return Some(Finished::failed(format!("{name}: {reason}"))),
    };
    processes.follow(interrupted, &mut |_| {});
    let ended = match processes.watches[0].exited {
        Some(_) => processes.reap(),
        None => processes.stop(),
    };
    let hindrance = processes.watches[0].hindrance(processes.step.late());
    let outcome = match (ended, hindrance) {
        _ if processes.interrupted => None,
        (_, Some(reason)) | (Err(reason), None) => Some(failed(format!("{name}: {reason}"))),
        (Ok(ended), None) if ended[0].0.success() => return None,
        (Ok(ended), None) => Some(failed(format!("{name}: {}", describe(ended[0].0)))),
    };
    if outcome.is_some() {
        processes.take_last_errors();
    }
    Some(Finished {
        outcome,
        elapsed: began.elapsed(),
        overhead: None,
        notes: BTreeMap::new(),
        log: processes.log(),
        errors: processes.errors(),
    })
}
