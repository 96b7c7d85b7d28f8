//! What a trial says on its standard output: one JSON object a line.
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
//! `version` comes first and `start` second, when the warm-up is over. `progress`, `sample` and
//! `counters` follow in any order and number; a counter said twice keeps its last value. `end`, or
//! `error` at any place after `version`, is last, and the process exits with 0 after it.

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
    /// The warm-up is over.
    Start {},
    /// How far the measured part is, from 0 to 1.
    Progress {
        /// The fraction done.
        done: f64,
    },
    /// One measurement.
    Sample {
        /// The metric's name.
        metric: String,
        /// The value, finite.
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
    /// The trial is complete.
    End {},
    /// The trial could not be done.
    Error {
        /// What went wrong, in words.
        message: String,
        /// Whether the machine lacks something, rather than something having broken.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        missing: bool,
        /// The command or change that would help.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        remedy: Option<String>,
    },
}

/// How far a conversation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Silent,
    Introduced,
    Started,
    Over,
}

/// A trial's conversation, checked line by line as it arrives.
#[derive(Debug)]
pub struct Conversation {
    stage: Stage,
    lines: usize,
    samples: Vec<(String, f64, Unit, Option<Statistic>)>,
    counters: BTreeMap<String, u64>,
    error: Option<(String, bool, Option<String>)>,
}

/// What a complete conversation came to.
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
    Error {
        /// What went wrong.
        message: String,
        /// Whether the machine lacks something.
        missing: bool,
        /// What would help.
        remedy: Option<String>,
    },
}

/// How a trial broke the protocol, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Violation {}

/// What a line means for whoever waits on the trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Heard {
    /// The process is up and speaks.
    Introduced,
    /// The measured part has begun.
    Started,
    /// It is this far, from 0 to 1.
    Progress(f64),
    /// Taken note of.
    Noted,
    /// Nothing more may come.
    Over,
}

impl Default for Conversation {
    fn default() -> Self {
        Conversation {
            stage: Stage::Silent,
            lines: 0,
            samples: Vec::new(),
            counters: BTreeMap::new(),
            error: None,
        }
    }
}

impl Conversation {
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
        match (self.stage, message) {
            (Stage::Silent, Message::Version { protocol, .. }) if protocol == PROTOCOL => {
                self.stage = Stage::Introduced;
                Ok(Heard::Introduced)
            }
            (Stage::Silent, Message::Version { protocol, program }) => Err(self.violation(
                format!("found protocol {protocol} (of {program:?}), expected {PROTOCOL}"),
            )),
            (Stage::Silent, _) => Err(self.violation(format!(
                "found {}, expected a version message first",
                excerpt(line)
            ))),
            (
                _,
                Message::Error {
                    message,
                    missing,
                    remedy,
                },
            ) => {
                self.stage = Stage::Over;
                self.error = Some((message, missing, remedy));
                Ok(Heard::Over)
            }
            (Stage::Introduced, Message::Start {}) => {
                self.stage = Stage::Started;
                Ok(Heard::Started)
            }
            (Stage::Started, Message::Progress { done }) => {
                Ok(Heard::Progress(done.clamp(0.0, 1.0)))
            }
            (
                Stage::Started,
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
                if self.samples.len() == SAMPLES_MAX {
                    return Err(self.violation(format!(
                        "found more than {SAMPLES_MAX} samples; reduce them in the trial and say which statistic"
                    )));
                }
                self.samples.push((metric, value, unit, statistic));
                Ok(Heard::Noted)
            }
            (Stage::Started, Message::Counters { counters }) => {
                self.counters.extend(counters);
                if self.counters.len() > COUNTERS_MAX {
                    return Err(self.violation(format!("found more than {COUNTERS_MAX} counters")));
                }
                Ok(Heard::Noted)
            }
            (Stage::Started, Message::End {}) => {
                self.stage = Stage::Over;
                Ok(Heard::Over)
            }
            (Stage::Introduced, _) => {
                Err(self.violation(format!("found {}, expected a start message", excerpt(line))))
            }
            (Stage::Started | Stage::Over, _) => Err(self.violation(format!(
                "found {}, expected progress, sample, counters or end",
                excerpt(line)
            ))),
        }
    }

    /// Whether the program gave a sample of that metric.
    pub fn has_sample_of(&self, metric: &str) -> bool {
        self.samples.iter().any(|(name, ..)| name == metric)
    }

    /// The conversation is over: what did it come to for these metrics?
    ///
    /// # Errors
    /// A [`Violation`] where it stopped short, or a metric has no sample or another dimension.
    pub fn finish(self, metrics: &[Metric]) -> Result<Findings, Violation> {
        if let Some((message, missing, remedy)) = self.error {
            return Ok(Findings::Error {
                message,
                missing,
                remedy,
            });
        }
        if self.stage != Stage::Over {
            return Err(Violation(format!(
                "its output stopped after {} lines, without an end message",
                self.lines
            )));
        }
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
mod tests {
    use super::*;
    use crate::unit::Better;

    fn metric(statistic: Statistic) -> Metric {
        Metric {
            name: "throughput".into(),
            statistic,
            across: Statistic::Median,
            from: None,
            unit: Unit::MebibytesPerSecond,
            better: Better::Higher,
            work: Some("bytes".into()),
        }
    }

    fn converse(lines: &[&str]) -> Result<Findings, Violation> {
        let mut conversation = Conversation::default();
        for line in lines {
            conversation.hear(line.as_bytes())?;
        }
        conversation.finish(&[metric(Statistic::Median)])
    }

    const VERSION: &str = r#"{"type":"version","protocol":1,"program":"p 1"}"#;
    const START: &str = r#"{"type":"start"}"#;
    const END: &str = r#"{"type":"end"}"#;

    #[test]
    fn a_proper_conversation_gives_values_in_the_metrics_unit() {
        let findings = converse(&[
            VERSION,
            START,
            r#"{"type":"progress","done":0.5}"#,
            r#"{"type":"sample","metric":"throughput","value":1048576,"unit":"B/s"}"#,
            r#"{"type":"sample","metric":"throughput","value":3,"unit":"MiB/s"}"#,
            r#"{"type":"counters","counters":{"bytes":1,"operations":1}}"#,
            r#"{"type":"counters","counters":{"bytes":9}}"#,
            END,
        ])
        .unwrap();
        let Findings::Done {
            values,
            samples,
            counters,
        } = findings
        else {
            panic!("{findings:?}")
        };
        assert_eq!(values["throughput"], 2.0);
        assert_eq!(samples["throughput"], [1.0, 3.0]);
        assert_eq!((counters["bytes"], counters["operations"]), (9, 1));
    }

    #[test]
    fn every_breach_is_named_with_its_line() {
        let cases: &[(&[&str], &str)] = &[
            (&["hello"], "line 1 of its output: found \"hello\", expected a message"),
            (&[START], "line 1 of its output: found \"{\\\"type\\\":\\\"start\\\"}\", expected a version message first"),
            (
                &[r#"{"type":"version","protocol":7,"program":"p 1"}"#],
                "line 1 of its output: found protocol 7 (of \"p 1\"), expected 1",
            ),
            (&[VERSION, VERSION], "expected a start message"),
            (&[VERSION, END], "expected a start message"),
            (&[VERSION, START, START], "expected progress, sample, counters or end"),
            (&[VERSION, START, END, END], "after the end, expected nothing"),
            (&[VERSION, START, END], "ended without a sample of metric \"throughput\""),
            (&[VERSION, START], "its output stopped after 2 lines"),
            (&[VERSION, START, r#"{"type":"sample","metric":"throughput","value":1,"unit":"Hz"}"#, END], "Hz cannot be converted to MiB/s"),
            (&[VERSION, START, r#"{"type":"sample","metric":"throughput","value":1,"unit":"furlong"}"#], "found unit"),
            (&[VERSION, START, r#"{"type":"sample","metric":"throughput","value":1e999,"unit":"B/s"}"#], "line 3"),
            (&[VERSION, START, r#"{"type":"sample","metric":"throughput","value":1.7e308,"unit":"GiB/s"}"#, END], "metric \"throughput\": found inf"),
            (
                &[
                    VERSION,
                    START,
                    r#"{"type":"sample","metric":"throughput","value":1e200,"unit":"MiB/s"}"#,
                    END,
                ],
                "metric \"throughput\": found 1e200",
            ),
            (&[VERSION, START, r#"{"type":"counters","counters":{"bytes":-1}}"#], "line 3"),
        ];
        for (lines, expected) in cases {
            let error = converse(lines).unwrap_err().to_string();
            assert!(error.contains(expected), "{lines:?}: {error}");
        }
        let long = vec![b'x'; LINE_MAX + 1];
        assert!(Conversation::default().hear(&long).is_err());
    }

    #[test]
    fn a_trial_may_say_that_the_machine_lacks_something() {
        let findings = converse(&[
            VERSION,
            r#"{"type":"error","message":"no RDSEED","missing":true,"remedy":"another CPU"}"#,
        ]);
        assert_eq!(
            findings,
            Ok(Findings::Error {
                message: "no RDSEED".into(),
                missing: true,
                remedy: Some("another CPU".into())
            })
        );
    }

    #[test]
    fn statistics_of_a_trial() {
        let samples = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(Statistic::Median.of(&samples), Some(2.5));
        assert_eq!(Statistic::Mean.of(&samples), Some(2.5));
        assert_eq!(Statistic::P50.of(&samples), Some(2.0));
        assert_eq!(Statistic::P999.of(&samples), Some(4.0));
        assert_eq!(Statistic::Min.of(&samples), Some(1.0));
        assert_eq!(Statistic::Max.of(&[]), None);
    }

    proptest::proptest! {
        #[test]
        fn no_output_makes_the_reader_panic(lines: Vec<Vec<u8>>, valid in 0usize..4) {
            let mut conversation = Conversation::default();
            for line in [VERSION, START, END].iter().take(valid) {
                let _ = conversation.hear(line.as_bytes());
            }
            for line in &lines {
                let _ = conversation.hear(line);
            }
            let _ = conversation.finish(&[metric(Statistic::P99)]);
        }
    }
}
