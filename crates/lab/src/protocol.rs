//! The messages between a trial's processes and the lab: one JSON object per line.
//!
//! A trial of one process writes to its standard output, and reads nothing:
//!
//! ```text
//! {"type":"version","protocol":1,"program":"tare 0.1.0"}
//! {"type":"start"}
//! {"type":"progress","done":0.5}
//! {"type":"sample","metric":"throughput","value":212.8,"unit":"MiB/s"}
//! {"type":"counters","counters":{"bytes":16384,"operations":1}}
//! {"type":"end"}
//! ```
//!
//! A `note`, `{"type":"note","name":"guest","value":…}`, may be anywhere behind `version`.
//! `version` comes first and `start` second, when the warm-up is over. `progress`, `sample` and
//! `counters` follow in any order and number; of a counter given twice the last value counts.
//! `end`, or `error` at any place after `version`, is last, and the process exits with 0 after it.
//!
//! A trial of several roles has a process for each, and the lab holds three barriers between them.
//! Each process reads the lab's [`Command`]s from its standard input:
//!
//! | the lab waits until | and then writes |
//! |---|---|
//! | every role has written `ready` | `start` to every role, with what each said in `ready` |
//! | the role that measures has written `done` | `stop` to every other role |
//! | every other role has written `done` too | `drain` to every role |
//! | every role has written `end` and exited | |
//!
//! `done` says that the process begins no more work. `drain` therefore means that nothing new is
//! sent any more: each process counts what is still in flight, writes its last samples and
//! counters, and then `end`.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::experiment::{Metric, Statistic};
use crate::sample::{is_measurable, VALUE_MAX};
use crate::unit::Unit;

/// The version of this protocol.
pub const PROTOCOL: u32 = 1;

/// The longest line a trial may print, in bytes.
pub const LINE_MAX: usize = 64 * 1024;

/// The most samples one trial may give.
pub const SAMPLES_MAX: usize = 1 << 20;

/// The most counters one trial may give.
pub const COUNTERS_MAX: usize = 1024;

/// The most notes one process may give.
pub const NOTES_MAX: usize = 16;

/// The largest note, in bytes of JSON.
pub const NOTE_MAX: usize = 16 * 1024;

/// The largest object that a role may say it is ready with, in bytes of JSON.
pub const READY_MAX: usize = 4096;

/// The data that a role reports when it is ready, for the other roles: its address and port, for
/// example.
pub type Ready = serde_json::Map<String, serde_json::Value>;

/// One line from the lab to a process of a trial that has several roles.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Command {
    /// Every role is ready.
    Start {
        /// The data that each role reported when it was ready, by the role's name.
        roles: BTreeMap<String, Ready>,
    },
    /// The measurement is over: begin no more work, and say `done`.
    Stop {},
    /// No role begins work any more: count what is in flight, and say `end`.
    Drain {},
}

/// One line of a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Message {
    /// The first line.
    Version {
        /// [`PROTOCOL`].
        protocol: u32,
        /// The program and its own version, for the log.
        program: String,
    },
    /// The process can begin. Only of trials with several roles.
    Ready {
        /// Data for the other roles, at most [`READY_MAX`] bytes.
        data: Ready,
    },
    /// The warm-up is over.
    Start {},
    /// The progress of the measured part, from 0 to 1.
    Progress {
        /// The fraction done.
        done: f64,
    },
    /// One measurement.
    Sample {
        /// The metric's name.
        metric: String,
        /// The value, finite, and not negative unless its unit is a ratio.
        value: f64,
        /// Its unit.
        unit: Unit,
        /// Given where the trial has already reduced its operations to this statistic.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        statistic: Option<Statistic>,
    },
    /// Work done.
    Counters {
        /// Totals so far, by counter.
        counters: BTreeMap<String, u64>,
    },
    /// A finding for the record, such as evidence of what was measured.
    Note {
        /// The name of the finding.
        name: String,
        /// The finding, at most [`NOTE_MAX`] bytes.
        value: serde_json::Value,
    },
    /// The process begins no more work. Only of trials with several roles.
    Done {},
    /// The trial is complete.
    End {},
    /// The trial could not be done.
    Error {
        /// The failure, in words.
        message: String,
        /// True if the machine lacks something, rather than something having broken.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        missing: bool,
        /// The command or change that would help.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        remedy: Option<String>,
    },
}

/// The position of a process in its trial, on which the order of its messages depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The trial's only process.
    Alone,
    /// The process that measures, of several.
    Measures,
    /// Another one of several.
    Serves,
}

/// The stage of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No message has been received.
    Silent,
    /// `version` has been received.
    Introduced,
    /// `ready` has been received.
    Ready,
    /// It was told to start, and must report the end of its warm-up.
    Warming,
    /// It is measuring or serving.
    Started,
    /// It was told to stop, and must report that it is done.
    Stopping,
    /// `done` has been received.
    Done,
    /// It was told to drain, and must report its last figures.
    Draining,
    /// `end` or `error` has been received.
    Over,
}

impl Stage {
    /// Returns the messages that are expected at this stage, in words.
    fn expected(self, position: Position) -> &'static str {
        match (self, position) {
            (Stage::Silent, _) => "a version message first",
            (Stage::Introduced, Position::Alone) | (Stage::Warming, _) => "a start message",
            (Stage::Introduced, _) => "a ready message",
            (Stage::Ready, _) => "nothing before the lab's start command",
            (Stage::Started, Position::Alone) => "progress, sample, counters or end",
            (Stage::Started, Position::Measures) => "progress, sample, counters or done",
            (Stage::Started, Position::Serves) => {
                "sample or counters, and nothing else before the lab's stop command"
            }
            (Stage::Stopping, _) => "sample, counters or done",
            (Stage::Done, _) => "nothing before the lab's drain command",
            (Stage::Draining, _) => "sample, counters or end",
            (Stage::Over, _) => "nothing",
        }
    }
}

/// The conversation with one process of a trial, checked line by line as it arrives.
#[derive(Debug)]
pub struct Conversation {
    position: Position,
    stage: Stage,
    lines: usize,
    ready: Ready,
    samples: Vec<(String, f64, Unit, Option<Statistic>)>,
    counters: BTreeMap<String, u64>,
    notes: BTreeMap<String, serde_json::Value>,
    error: Option<Refusal>,
}

/// The result of a complete conversation.
#[derive(Clone, Debug, PartialEq)]
pub enum Findings {
    /// The trial reached its end.
    Done {
        /// Metric name to the trial's value, in the metric's unit.
        values: BTreeMap<String, f64>,
        /// The samples behind each value, in the metric's unit.
        samples: BTreeMap<String, Vec<f64>>,
        /// Work done.
        counters: BTreeMap<String, u64>,
    },
    /// The trial said that it could not be done.
    Error(Refusal),
}

/// The reason for which a program could not do its trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The failure, in words.
    pub message: String,
    /// True if the machine lacks something.
    pub missing: bool,
    /// The command or change that would help.
    pub remedy: Option<String>,
}

/// A violation of the protocol, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Violation {}

/// The meaning of a line for the trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Heard {
    /// The process is up and speaks.
    Introduced,
    /// It is ready.
    Ready,
    /// The measured part has begun.
    Started,
    /// It is this far, from 0 to 1.
    Progress(f64),
    /// Recorded.
    Noted,
    /// It begins no more work.
    Done,
    /// No more messages may follow.
    Over,
}

impl Conversation {
    /// A conversation in which nothing has been said.
    pub fn new(position: Position) -> Conversation {
        Conversation {
            position,
            stage: Stage::Silent,
            lines: 0,
            ready: Ready::new(),
            samples: Vec::new(),
            counters: BTreeMap::new(),
            notes: BTreeMap::new(),
            error: None,
        }
    }

    /// Takes the next line, without its newline.
    ///
    /// # Errors
    /// A [`Violation`]; the conversation is then worthless.
    pub fn hear(&mut self, line: &[u8]) -> Result<Heard, Violation> {
        self.lines += 1;
        if line.len() > LINE_MAX {
            return Err(self.violation(format!(
                "found {} bytes, expected at most {LINE_MAX}",
                line.len()
            )));
        }
        if self.stage == Stage::Over {
            return Err(self.violation(format!(
                "found {} after the end, expected nothing",
                excerpt(line)
            )));
        }
        let message: Message = serde_json::from_slice(line).map_err(|error| {
            self.violation(format!(
                "found {}, expected a message of protocol {PROTOCOL} ({error})",
                excerpt(line)
            ))
        })?;
        let unexpected = |of: &Conversation| {
            let expected = of.stage.expected(of.position);
            of.violation(format!("found {}, expected {expected}", excerpt(line)))
        };
        let (starts_at, done_at, ends_at) = match self.position {
            Position::Alone => (Stage::Introduced, None, Stage::Started),
            Position::Measures => (Stage::Warming, Some(Stage::Started), Stage::Draining),
            Position::Serves => (Stage::Warming, Some(Stage::Stopping), Stage::Draining),
        };
        match (self.stage, message) {
            (Stage::Silent, Message::Version { protocol, .. }) if protocol == PROTOCOL => {
                self.stage = Stage::Introduced;
                Ok(Heard::Introduced)
            }
            (Stage::Silent, Message::Version { protocol, program }) => Err(self.violation(
                format!("found protocol {protocol} (of {program:?}), expected {PROTOCOL}"),
            )),
            (Stage::Silent, _) => Err(unexpected(self)),
            (
                _,
                Message::Error {
                    message,
                    missing,
                    remedy,
                },
            ) => {
                self.stage = Stage::Over;
                self.error = Some(Refusal {
                    message,
                    missing,
                    remedy,
                });
                Ok(Heard::Over)
            }
            (_, Message::Note { name, value }) => {
                let length = name.len() + value.to_string().len();
                if length > NOTE_MAX {
                    return Err(self.violation(format!(
                        "found {length} bytes in a note, expected at most {NOTE_MAX}"
                    )));
                }
                self.notes.insert(name, value);
                if self.notes.len() > NOTES_MAX {
                    return Err(self.violation(format!("found more than {NOTES_MAX} notes")));
                }
                Ok(Heard::Noted)
            }
            (Stage::Introduced, Message::Ready { data }) if self.position != Position::Alone => {
                let length = serde_json::to_string(&data).map_or(usize::MAX, |json| json.len());
                if length > READY_MAX {
                    return Err(self.violation(format!(
                        "found {length} bytes of data in a ready message, expected at most {READY_MAX}"
                    )));
                }
                self.ready = data;
                self.stage = Stage::Ready;
                Ok(Heard::Ready)
            }
            (stage, Message::Start {}) if stage == starts_at => {
                self.stage = Stage::Started;
                Ok(Heard::Started)
            }
            (Stage::Started, Message::Progress { done }) if self.position != Position::Serves => {
                Ok(Heard::Progress(done.clamp(0.0, 1.0)))
            }
            (
                Stage::Started | Stage::Stopping | Stage::Draining,
                Message::Sample {
                    metric,
                    value,
                    unit,
                    statistic,
                },
            ) => {
                if !value.is_finite() {
                    return Err(self.violation(format!("found {value}, expected a finite value")));
                }
                unit.measured(value).map_err(|what| self.violation(what))?;
                if self.samples.len() == SAMPLES_MAX {
                    return Err(self.violation(format!(
                        "found more than {SAMPLES_MAX} samples; reduce them in the trial and say which statistic"
                    )));
                }
                self.samples.push((metric, value, unit, statistic));
                Ok(Heard::Noted)
            }
            (
                Stage::Started | Stage::Stopping | Stage::Draining,
                Message::Counters { counters },
            ) => {
                self.counters.extend(counters);
                if self.counters.len() > COUNTERS_MAX {
                    return Err(self.violation(format!("found more than {COUNTERS_MAX} counters")));
                }
                Ok(Heard::Noted)
            }
            (stage, Message::Done {}) if Some(stage) == done_at => {
                self.stage = Stage::Done;
                Ok(Heard::Done)
            }
            (stage, Message::End {}) if stage == ends_at => {
                self.stage = Stage::Over;
                Ok(Heard::Over)
            }
            _ => Err(unexpected(self)),
        }
    }

    /// Records a command that is written to the process. From then on the messages that
    /// answer it are expected.
    pub fn told(&mut self, command: &Command) {
        self.stage = match (command, self.position) {
            (Command::Start { .. }, Position::Measures) => Stage::Warming,
            (Command::Start { .. }, _) => Stage::Started,
            (Command::Stop {}, _) => Stage::Stopping,
            (Command::Drain {}, _) => Stage::Draining,
        };
    }

    /// Returns the data that the process reported when it was ready; empty before that.
    pub fn ready_data(&self) -> &Ready {
        &self.ready
    }

    /// Returns what the process noted for the record, by name.
    pub fn notes(&self) -> &BTreeMap<String, serde_json::Value> {
        &self.notes
    }

    /// Returns whether the process waits for a command: it is ready, or done.
    pub fn waits(&self) -> bool {
        matches!(self.stage, Stage::Ready | Stage::Done)
    }

    /// Returns the process's message that the trial could not be done, if it sent one.
    pub fn error(&self) -> Option<&Refusal> {
        self.error.as_ref()
    }

    /// Puts the conversations of a trial's roles together, that of the role that measures first.
    /// Its counters keep their names, and those of any other role become `role.counter`, so that
    /// no count of one role is taken for that of another.
    ///
    /// # Errors
    /// Two roles have samples of one metric, or a counter of one name.
    pub fn join(of_roles: Vec<(String, Conversation)>) -> Result<Conversation, Violation> {
        let mut joined = Conversation::new(Position::Measures);
        joined.stage = Stage::Over;
        let mut measured_by = BTreeMap::new();
        let mut counted_by = BTreeMap::new();
        for (place, (role, conversation)) in of_roles.into_iter().enumerate() {
            for sample in conversation.samples {
                let first = measured_by
                    .entry(sample.0.clone())
                    .or_insert_with(|| role.clone());
                if *first != role {
                    return Err(Violation(format!(
                        "found samples of metric \"{}\" from the roles \"{first}\" and \
                         \"{role}\", expected them from one",
                        sample.0
                    )));
                }
                joined.samples.push(sample);
            }
            for (counter, count) in conversation.counters {
                let name = match place {
                    0 => counter,
                    _ => format!("{role}.{counter}"),
                };
                if let Some(first) = counted_by.insert(name.clone(), role.clone()) {
                    return Err(Violation(format!(
                        "found a counter \"{name}\" of the roles \"{first}\" and \"{role}\", \
                         expected names that differ"
                    )));
                }
                joined.counters.insert(name, count);
            }
        }
        Ok(joined)
    }

    /// Returns whether the program gave a sample of that metric.
    pub fn has_sample_of(&self, metric: &str) -> bool {
        self.samples.iter().any(|(name, ..)| name == metric)
    }

    /// Checks that the conversation reached its end.
    ///
    /// # Errors
    /// A [`Violation`] where it stopped short.
    pub fn check_over(&self) -> Result<(), Violation> {
        if self.stage == Stage::Over {
            return Ok(());
        }
        Err(Violation(format!(
            "its output stopped after {} lines, without an end message",
            self.lines
        )))
    }

    /// Reduces a conversation that is over to the values of these metrics.
    ///
    /// # Errors
    /// A [`Violation`] where it stopped short, or a metric has no sample or another dimension.
    pub fn finish(self, metrics: &[Metric]) -> Result<Findings, Violation> {
        if let Some(refusal) = self.error {
            return Ok(Findings::Error(refusal));
        }
        self.check_over()?;
        let mut values = BTreeMap::new();
        let mut samples = BTreeMap::new();
        for metric in metrics {
            let mut of_metric = Vec::new();
            let mut reduced = None;
            for (name, value, unit, statistic) in &self.samples {
                if *name != metric.name {
                    continue;
                }
                let value = unit
                    .convert(*value, metric.unit)
                    .map_err(|error| error.to_string())
                    .and_then(measurable)
                    .map_err(|what| Violation(format!("metric \"{}\": {what}", metric.name)))?;
                match statistic {
                    None => of_metric.push(value),
                    Some(statistic) if *statistic == metric.statistic => reduced = Some(value),
                    Some(_) => {}
                }
            }
            let value = reduced
                .or_else(|| metric.statistic.of(&of_metric))
                .ok_or_else(|| {
                    Violation(format!(
                        "it ended without a sample of metric \"{}\"",
                        metric.name
                    ))
                })?;
            measurable(value)
                .map_err(|what| Violation(format!("metric \"{}\": {what}", metric.name)))?;
            values.insert(metric.name.clone(), value);
            samples.insert(
                metric.name.clone(),
                if of_metric.is_empty() {
                    vec![value]
                } else {
                    of_metric
                },
            );
        }
        Ok(Findings::Done {
            values,
            samples,
            counters: self.counters,
        })
    }

    fn violation(&self, what: String) -> Violation {
        Violation(format!("line {} of its output: {what}", self.lines))
    }
}

/// A record is JSON, which has no infinity: what went beyond all numbers would come back missing.
pub(crate) fn measurable(value: f64) -> Result<f64, String> {
    if is_measurable(value) {
        Ok(value)
    } else {
        Err(format!(
            "found {value:e}, expected 0 or 1e-150 to {VALUE_MAX:e} in size"
        ))
    }
}

impl Statistic {
    /// Reduces samples to this statistic (percentiles by nearest rank); `None` of no samples.
    pub fn of(self, samples: &[f64]) -> Option<f64> {
        if samples.is_empty() {
            return None;
        }
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let rank = |q: f64| sorted[((q * n as f64).ceil() as usize).clamp(1, n) - 1];
        Some(match self {
            Statistic::Median if n.is_multiple_of(2) => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
            Statistic::Median => sorted[n / 2],
            Statistic::Mean => samples.iter().sum::<f64>() / n as f64,
            Statistic::Min => sorted[0],
            Statistic::Max => sorted[n - 1],
            Statistic::P50 => rank(0.5),
            Statistic::P90 => rank(0.9),
            Statistic::P99 => rank(0.99),
            Statistic::P999 => rank(0.999),
        })
    }
}

/// The first characters of what a trial printed, safe for a terminal and a log.
fn excerpt(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(&line[..line.len().min(60)]);
    format!("{text:?}{}", if line.len() > 60 { "…" } else { "" })
}

#[cfg(test)]
mod tests;
