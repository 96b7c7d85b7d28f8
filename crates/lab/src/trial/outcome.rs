//! Makes the outcome of a trial from what its processes wrote and how they ended.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::Signal;

use super::processes::Processes;
use super::watch::Watch;
use super::{STDOUT_BYTES, TIME};
use crate::experiment::Metric;
use crate::extract::Stream;
use crate::protocol::{measurable, Conversation, Findings, Position};
use crate::sample::{Outcome, OPERATIONS};
use crate::unit::Unit;
use crate::usage::{Usage, METRICS};

/// The status of a process that ended, and the resources that it used.
type Ended = (ExitStatus, Usage);

impl Processes {
    /// The outcome; `None` if the trial was interrupted and must run again. `time` is that of the
    /// role that measures, from its start to its exit.
    pub(super) fn outcome(
        &mut self,
        metrics: &[Metric],
        ended: &[Ended],
        time: Duration,
        speaks_protocol: bool,
    ) -> Option<Outcome> {
        if self.interrupted && self.failed.is_none() {
            return None;
        }
        if let Some(failure) = self.failure(ended, speaks_protocol) {
            return Some(failure);
        }
        let conversation = match self.conversation() {
            Ok(conversation) => conversation,
            Err(reason) => return Some(failed(reason)),
        };
        let seen = Seen {
            time,
            usage: &ended[0].1,
            watch: &self.watches[0],
        };
        let outcome = match speaks_protocol {
            true => seen.beside(conversation, metrics),
            false => seen.alone(metrics),
        };
        Some(outcome.unwrap_or_else(failed))
    }

    /// Returns the failure of the trial, if a process failed; that which failed first comes first.
    fn failure(&mut self, ended: &[Ended], speaks_protocol: bool) -> Option<Outcome> {
        let several = self.watches.len() > 1;
        let first = self.failed.unwrap_or(0);
        let others = (0..self.watches.len()).filter(|place| *place != first);
        let mut order = std::iter::once(first).chain(others);
        let (place, failure) = order.find_map(|place| {
            let trouble = self.trouble(&self.watches[place], ended[place].0, speaks_protocol);
            Some((place, trouble?))
        })?;
        self.failed = Some(place);
        if !several {
            return Some(failure);
        }
        Some(match prefixed(&self.watches[place].role, failure) {
            Outcome::Failed { mut reason } => {
                // The first to fail may have done so because another had died a moment before.
                for place in order.filter(|place| died(ended[*place].0)) {
                    let (role, how) = (&self.watches[place].role, describe(ended[place].0));
                    reason.push_str(&format!("; {role}: {how}"));
                }
                failed(reason)
            }
            other => other,
        })
    }

    /// Returns the failure of one process.
    fn trouble(&self, watch: &Watch, status: ExitStatus, speaks_protocol: bool) -> Option<Outcome> {
        let when = self.step.when();
        if let Some(reason) = watch.hindrance(self.step.late()) {
            return Some(failed(reason));
        }
        if let Some(refusal) = watch.conversation.error() {
            let (reason, remedy) = (refusal.message.clone(), refusal.remedy.clone());
            return Some(match refusal.missing {
                true => Outcome::NotTestable { reason, remedy },
                false => Outcome::Failed { reason },
            });
        }
        // A status says more than an output that stopped short because of it, and less than a
        // message that the process wrote before it exited.
        if !status.success() {
            return Some(failed(format!("{}{when}", describe(status))));
        }
        let short = watch.conversation.check_over().err();
        let short = short.filter(|_| speaks_protocol)?;
        Some(failed(format!("{}{when}", short.0)))
    }

    /// Returns the roles' conversations, put together.
    fn conversation(&mut self) -> Result<Conversation, String> {
        let said = |watch: &mut Watch| {
            let nothing = Conversation::new(Position::Alone);
            (
                watch.role.clone(),
                std::mem::replace(&mut watch.conversation, nothing),
            )
        };
        if let [alone] = &mut self.watches[..] {
            return Ok(said(alone).1);
        }
        let of_roles = self.watches.iter_mut().map(said).collect();
        Conversation::join(of_roles).map_err(|violation| violation.0)
    }
}

/// The values of a trial and the samples behind each, by metric.
#[derive(Default)]
struct Figures {
    values: BTreeMap<String, f64>,
    samples: BTreeMap<String, Vec<f64>>,
}

/// The figures of the process that measures which do not come by the protocol.
struct Seen<'a> {
    /// From its start to its exit.
    time: Duration,
    usage: &'a Usage,
    watch: &'a Watch,
}

impl Seen<'_> {
    /// The outcome of a trial that speaks the protocol.
    fn beside(&self, conversation: Conversation, metrics: &[Metric]) -> Result<Outcome, String> {
        let (said, seen_only): (Vec<Metric>, Vec<Metric>) =
            metrics.iter().cloned().partition(|metric| {
                metric.from.is_none()
                    && (conversation.has_sample_of(&metric.name)
                        || self.usage.value(&metric.name).is_none())
            });
        match conversation.finish(&said) {
            Ok(Findings::Done {
                values,
                samples,
                counters,
            }) => self.outcome(&seen_only, Figures { values, samples }, counters),
            Ok(Findings::Error(refusal)) => Err(refusal.message),
            Err(violation) => Err(violation.0),
        }
    }

    /// The outcome of a program that does not.
    fn alone(&self, metrics: &[Metric]) -> Result<Outcome, String> {
        let counters = [
            (OPERATIONS.to_owned(), 1),
            (STDOUT_BYTES.to_owned(), self.watch.printed()),
        ];
        self.outcome(metrics, Figures::default(), counters.into())
    }

    /// Adds the values of metrics that are taken from outside the protocol.
    fn outcome(
        &self,
        metrics: &[Metric],
        mut figures: Figures,
        counters: BTreeMap<String, u64>,
    ) -> Result<Outcome, String> {
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
            figures.values.insert(metric.name.clone(), value);
            figures.samples.insert(metric.name.clone(), of_metric);
        }
        match unknown {
            Some(why) if figures.values.is_empty() => Err(why),
            _ => Ok(Outcome::Done {
                values: figures.values,
                samples: figures.samples,
                counters,
            }),
        }
    }

    fn samples(&self, metric: &Metric) -> Result<Vec<f64>, String> {
        let found = match &metric.from {
            Some(extract) if extract.stream == Stream::Stdout => {
                extract.samples(&self.watch.stdout.text(), metric.unit)?
            }
            Some(extract) => extract.samples(&self.watch.errors, metric.unit)?,
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

/// The outcome as that of one role among several.
fn prefixed(role: &str, outcome: Outcome) -> Outcome {
    let of_role = |reason: String| format!("{role}: {reason}");
    match outcome {
        Outcome::Failed { reason } => failed(of_role(reason)),
        Outcome::NotTestable { reason, remedy } => Outcome::NotTestable {
            reason: of_role(reason),
            remedy,
        },
        done @ Outcome::Done { .. } => done,
    }
}

pub(super) fn failed(reason: String) -> Outcome {
    Outcome::Failed { reason }
}

/// Returns true if a process failed by itself: those that the lab ends are ended by SIGKILL.
fn died(status: ExitStatus) -> bool {
    !status.success() && status.signal() != Some(Signal::KILL.as_raw())
}

pub(super) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it exited with status {code}"),
        (None, Some(signal)) => format!("it was ended by signal {signal}"),
        (None, None) => "it ended in an unknown way".into(),
    }
}
