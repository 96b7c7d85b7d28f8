//! The record of one trial, as `samples.jsonl` keeps it: one JSON object per line.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::value::Point;

/// One trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialRecord {
    /// The experiment's id.
    pub experiment: String,
    /// The round, from 0.
    pub round: u32,
    /// The cell.
    pub at: Point,
    /// True if this is the second run of the baseline (the A/A cell).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
    /// Its outcome.
    pub outcome: Outcome,
    /// The trial's whole wall-clock time, in ms, its start and end included.
    pub elapsed_ms: f64,
    /// The part of `elapsed_ms` that the lab and the process start cost, in ms.
    pub overhead_ms: Option<f64>,
    /// The run's time when the trial ended, in ms: earlier parts of a run that was resumed count,
    /// the time between the parts does not.
    #[serde(default)]
    pub run_ms: f64,
    /// The last lines that a failed trial printed on its standard error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last_lines: Vec<String>,
    /// Notes of the trial's processes, by name; by `role.name` for a role that does not measure.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub notes: BTreeMap<String, serde_json::Value>,
    /// The log file of a failed trial, relative to the run directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
}

/// The outcome of a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "kebab-case")]
pub enum Outcome {
    /// It ran to its end.
    Done {
        /// Metric name to value, in the metric's unit.
        values: BTreeMap<String, f64>,
        /// The raw samples behind each value, in the metric's unit.
        samples: BTreeMap<String, Vec<f64>>,
        /// Work done, by counter; `role.counter` for a role that does not measure.
        counters: BTreeMap<String, u64>,
    },
    /// It crashed, hung, printed garbage or broke the protocol.
    Failed {
        /// The failure, in words.
        reason: String,
    },
    /// The machine lacks something.
    NotTestable {
        /// The thing that is missing.
        reason: String,
        /// The command or change that would help, if there is one.
        remedy: Option<String>,
    },
}

/// Returns true if `value` could be a measurement: 0, or of a size from
/// 1/[`VALUE_MAX`] to [`VALUE_MAX`], so that sums, differences and quotients are numbers too.
pub fn is_measurable(value: f64) -> bool {
    value == 0.0 || (1.0 / VALUE_MAX..=VALUE_MAX).contains(&value.abs())
}

/// The largest value that a trial may give, of either sign and in any unit.
pub const VALUE_MAX: f64 = 1e150;

/// The counter that every driver reports: how many operations the work was done in.
pub const OPERATIONS: &str = "operations";
