//! The result of an import: runs of records, findings and refusals.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

use crate::check::SAME_MAX;
use crate::format::Format;
use crate::unit::Unit;
use crate::{RECORDS_MAX, REFUSALS_MAX};

/// One figure of a log.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// The figure's name: `latency`, `throughput`, `request_rate`.
    pub figure: &'static str,
    /// The statistic that it is.
    pub statistic: Statistic,
    /// The value, in `unit`.
    pub value: f64,
    /// The unit that the value has, which need not be the one that the log prints.
    pub unit: Unit,
    /// The unit as the log spells it, where that is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub printed_unit: Option<&'static str>,
    /// The parameters: threads, URL, size.
    pub parameters: Parameters,
    /// The line of the file, from 1.
    pub line: usize,
    /// The value of the last digit that was printed; 0 if the log has every digit.
    #[serde(skip)]
    pub(crate) resolution: f64,
}

/// Parameters by name, as the log spells their values.
pub type Parameters = BTreeMap<&'static str, Arc<str>>;

impl Record {
    /// The figure with its statistic: `latency_p99`, `request_rate`.
    pub fn name(&self) -> String {
        match self.statistic {
            Statistic::Total => self.figure.to_owned(),
            statistic => format!("{}_{statistic}", self.figure),
        }
    }

    /// The value in base units.
    pub fn base(&self) -> f64 {
        self.unit.base(self.value)
    }
}

/// The statistic that a figure is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Statistic {
    /// Of the whole run: a count, or a count over its time.
    Total,
    /// An average, or the estimate of one.
    Mean,
    /// The standard deviation.
    Stdev,
    /// A spread that is none of the others, as the program defines it.
    Spread,
    /// The percentage of samples within one standard deviation of the mean.
    WithinStdev,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// The lower end of a confidence interval.
    Low,
    /// The upper end of a confidence interval.
    High,
    /// One of several samples.
    Sample,
    /// Of a part of the run, printed while it went on.
    Progress,
    /// A percentile, `p` and its level.
    #[serde(untagged, serialize_with = "percentile", skip_deserializing)]
    Percentile(f64),
}

fn percentile<S: Serializer>(level: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("p{level}"))
}

impl fmt::Display for Statistic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl Statistic {
    /// The statistic of that name in the tables.
    pub(crate) fn named(name: &str) -> Statistic {
        let level = name.strip_prefix('p').and_then(|level| level.parse().ok());
        level.map(Statistic::Percentile).unwrap_or_else(|| {
            serde_json::from_value(name.into()).expect("a statistic of the tables")
        })
    }
}

/// One run of a benchmark: what one start of the program printed.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// The name of its format.
    pub format: &'static str,
    /// Its first line, from 1.
    pub line: usize,
    /// Its figures, in the order of the log.
    pub records: Vec<Record>,
}

impl Run {
    /// The record of that figure and statistic; the last one if it was printed again.
    pub fn find(&self, figure: &str, statistic: Statistic) -> Option<&Record> {
        let is = |r: &&Record| r.figure == figure && r.statistic == statistic;
        self.records.iter().rfind(is)
    }

    /// The records of a figure.
    pub(crate) fn all<'a>(&'a self, figure: &'a str) -> impl Iterator<Item = &'a Record> {
        self.records.iter().filter(move |r| r.figure == figure)
    }

    /// The bytes of all responses and their number; `None` if the format does not print both.
    pub fn work(&self) -> Option<(u64, u64)> {
        let [bytes, operations] = Format::named(self.format)?.work?;
        let of = |figure| self.find(figure, Statistic::Total);
        // Both are whole and below 2^64.
        Some((of(bytes)?.base() as u64, of(operations)?.value as u64))
    }
}

/// One imported file.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Input {
    /// The name under which it was read.
    pub file: String,
    /// Its runs.
    pub runs: Vec<Run>,
    /// The findings of the reader itself, errors first; [`crate::check()`] finds the rest.
    #[serde(skip)]
    pub(crate) findings: Vec<Finding>,
    /// The errors that the log reports, of which the first [`SAME_MAX`] are findings.
    #[serde(skip)]
    pub(crate) errors: usize,
    /// The lines that could not be read.
    pub refused: Vec<Refusal>,
    /// The one format that it may have.
    #[serde(skip)]
    pub(crate) forced: Option<&'static Format>,
    /// The line that is being read, from 1.
    #[serde(skip)]
    pub(crate) at: usize,
    /// The number of its figures, those of runs that were cut among them.
    #[serde(skip)]
    pub(crate) records: usize,
}

impl Input {
    /// Adds the finding that the log reports an error.
    pub(crate) fn error(&mut self, text: &str) {
        self.errors += 1;
        if self.errors > SAME_MAX {
            return;
        }
        let figure = text.trim().chars().take(80).collect();
        let problem = "the log reports an error, and its figures count all the same";
        self.find(figure, problem, "a run without errors");
    }

    /// Adds a finding of the reader.
    pub(crate) fn find(&mut self, figure: String, problem: &str, should_be: &str) {
        self.findings.push(Finding {
            file: self.file.clone(),
            line: self.at,
            figure,
            problem: problem.into(),
            should_be: should_be.into(),
        });
    }

    /// Refuses a line. The first [`REFUSALS_MAX`] are kept.
    pub(crate) fn refuse(&mut self, refused: Refused) {
        let (found, expected) = match self.refused.len() {
            0..REFUSALS_MAX => refused,
            REFUSALS_MAX => {
                let expected = format!("at most {REFUSALS_MAX} lines that cannot be read");
                ("more of the kind".to_owned(), expected)
            }
            _ => return,
        };
        self.refused.push(Refusal {
            file: self.file.clone(),
            line: self.at,
            found,
            expected,
        });
    }
}

/// The text that was found and what was expected instead.
pub(crate) type Refused = (String, String);

pub(crate) type Outcome = Result<(), Refused>;

pub(crate) fn too_many() -> Refused {
    let found = format!("more than {RECORDS_MAX} figures");
    (found, "fewer in one file".into())
}

/// Text of a log for a message, in quotation marks and not too long.
pub(crate) fn quoted(text: &str) -> String {
    let mut short: String = text.trim().chars().take(60).collect();
    if short.len() < text.trim().len() {
        short.push('…');
    }
    format!("{short:?}")
}

/// Something that is wrong with a figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The file.
    pub file: String,
    /// Its line, from 1.
    pub line: usize,
    /// The figure, as the log has it.
    pub figure: String,
    /// The problem, in words.
    pub problem: String,
    /// The right figure, or what is missing.
    pub should_be: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, line, figure) = (&self.file, self.line, &self.figure);
        let (problem, should_be) = (&self.problem, &self.should_be);
        write!(f, "{file}:{line}: {figure}: {problem}; ")?;
        write!(f, "it should be {should_be}")
    }
}

/// A line that could not be read.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Refusal {
    /// The file.
    pub file: String,
    /// Its line, from 1.
    pub line: usize,
    /// The text that is there.
    pub found: String,
    /// The text that was expected.
    pub expected: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: found ", self.file, self.line)?;
        write!(f, "{}, expected {}", self.found, self.expected)
    }
}
