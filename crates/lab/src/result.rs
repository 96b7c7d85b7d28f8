//! The results of a run: cells with their samples, claims with their verdicts.
//!
//! This is the schema of `tare run --json` and of the report's data.

use serde::{Deserialize, Serialize};

use crate::experiment::{Axis, Bound, Published, Standing};
use crate::fingerprint::Machine;
use crate::unit::{Better, Unit};
use crate::value::Point;

/// The version of this schema.
pub const SCHEMA: u32 = 2;

/// A whole run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The run's name: the name of its directory.
    pub run: String,
    /// The version of `tare` that ran it.
    pub tare: String,
    /// `quick`, `full`, as planned.
    pub size: String,
    /// The seed of every shuffle.
    pub seed: u64,
    /// The time at which it began, RFC 3339 in UTC.
    pub started: String,
    /// Rounds planned.
    pub rounds: u32,
    /// True if every planned trial is in; false for a run that was stopped half-way.
    pub complete: bool,
    /// The machine that it ran on.
    pub machine: Machine,
    /// Conditions that may distort the results, one sentence each.
    pub warnings: Vec<String>,
    /// The groups of claims that were corrected for together.
    pub families: Vec<Family>,
    /// The bound on the chance that the run holds any false verdict of one direction: that of its
    /// families together.
    #[serde(default)]
    pub error_rate: f64,
    /// The ids of the claims and targets that were tested on a figure alone: `error_rate` bounds
    /// their false verdicts only where rounds are independent.
    #[serde(default)]
    pub assuming_independent_rounds: Vec<String>,
    /// The experiments, in plan order.
    pub experiments: Vec<ExperimentResult>,
}

/// The claims or the targets of one suite: what the correction for multiple tests covers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Family {
    /// The suite.
    pub suite: String,
    /// Published claims or targets.
    pub standing: Standing,
    /// Members that were tested with a p.
    pub tests: usize,
    /// The bound on the chance of any false verdict of one direction in this family.
    pub alpha: f64,
}

impl Family {
    /// Returns the bound on the chance of any false verdict of one direction in all of `families`.
    pub fn error_rate(families: &[Family]) -> f64 {
        let sum: f64 = families.iter().map(|family| family.alpha).sum();
        sum.min(1.0)
    }
}

/// One experiment of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExperimentResult {
    /// The experiment's id.
    pub id: String,
    /// Its title.
    pub title: String,
    /// The publication.
    pub source: String,
    /// The axes of the matrix, for figures.
    pub axes: Vec<Axis>,
    /// The metrics that are parts of one whole, in the order in which they are drawn. Runs recorded
    /// before they could be named have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<String>,
    /// The values that the publication printed.
    pub published: Vec<Published>,
    /// The baseline against itself, one for each metric that could be taken.
    pub noise: Vec<Noise>,
    /// One entry per cell and metric.
    pub cells: Vec<CellResult>,
    /// Failed trials by cell, second trials of the baseline among them; cells without any are left
    /// out.
    #[serde(default)]
    pub failures: Vec<Failures>,
    /// Rounds that this experiment ran.
    pub rounds: u32,
    /// True if its trials are deterministic and were judged exactly, without a p.
    pub exact: bool,
    /// One entry per published claim.
    pub claims: Vec<ClaimResult>,
    /// One entry per target of Tare's own.
    pub targets: Vec<ClaimResult>,
}

impl ExperimentResult {
    /// Returns true if no claim and no target of it waits for more rounds.
    pub fn decided(&self) -> bool {
        !self
            .claims
            .iter()
            .chain(&self.targets)
            .any(|claim| claim.open)
    }

    /// The cells of one metric, in order.
    pub(crate) fn cells_of(&self, metric: &str) -> Vec<&CellResult> {
        let cells = self.cells.iter();
        cells.filter(|cell| cell.metric == metric).collect()
    }

    /// Returns the published values of one metric, in order.
    pub(crate) fn published_of(&self, metric: &str) -> Vec<&Published> {
        let published = self.published.iter();
        published.filter(|value| value.metric == metric).collect()
    }
}

/// The failed trials of one cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failures {
    /// The cell.
    pub at: Point,
    /// Trials that failed.
    pub failed: usize,
    /// Trials that ran.
    pub of: usize,
    /// The most frequent reason, in words.
    pub reason: String,
    /// The last lines of the standard error of the last failed trial; empty if it printed none.
    pub last_lines: Vec<String>,
    /// Its log, relative to the run directory.
    pub log: Option<String>,
}

/// The A/A cell: the baseline measured twice in every round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Noise {
    /// The metric.
    pub metric: String,
    /// The baseline cell.
    pub at: Point,
    /// Rounds in which both were measured.
    pub n: usize,
    /// Median over rounds of second / first; 1 on a quiet machine.
    pub ratio: f64,
    /// Its 95 % interval.
    pub ci95: [f64; 2],
    /// Two-sided p of "the two are the same".
    pub p: f64,
}

/// One cell's figures for one metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellResult {
    /// Its point in the matrix.
    pub at: Point,
    /// The metric's name.
    pub metric: String,
    /// The unit of `median`, `ci95` and `samples`.
    pub unit: Unit,
    /// The good direction.
    pub better: Better,
    /// Trials that gave a value.
    pub n: usize,
    /// The median of the trials; `None` if there is none.
    pub median: Option<f64>,
    /// The 95 % interval of the median; `None` if an end is infinite: too few trials, or too
    /// many that failed.
    pub ci95: Option<[f64; 2]>,
    /// The trials' values, by round; `null` for a round without one.
    pub samples: Vec<Option<f64>>,
    /// Work per operation (median over trials), in the work counter's own unit.
    pub work_per_operation: Option<f64>,
    /// Trials that failed, second trials of the baseline among them.
    pub failed: usize,
    /// The reason if there is no figure, in words (not testable here, every trial failed…).
    pub reason: Option<String>,
    /// Further properties of the values, a sentence each: that they are bimodal or
    /// heavy-tailed, and the metric's own statistic across trials.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl CellResult {
    /// The reason and the notes as one text; empty if there is neither.
    pub fn remark(&self) -> String {
        let all: Vec<&str> = self
            .reason
            .iter()
            .chain(&self.notes)
            .map(String::as_str)
            .collect();
        all.join("; ")
    }
}

/// One claim, judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClaimResult {
    /// `experiment/claim`.
    pub id: String,
    /// The claim in words.
    pub text: String,
    /// The publication that made it.
    pub source: String,
    /// The criterion in words: `at least 0.97`, `between 920 and 1130`.
    pub criterion: String,
    /// The metric that it is about.
    pub metric: String,
    /// The limits behind `criterion`, in `unit`.
    pub threshold: Bound,
    /// The unit of `published`, `measured` and `ci95`: the metric's for a value, a ratio for what
    /// compares cells, a count for what is counted.
    pub unit: Unit,
    /// The publication's figure, where it gave one.
    pub published: Option<f64>,
    /// This machine's figure.
    pub measured: Option<f64>,
    /// Its 95 % interval, valid after any round; `None` if an end is infinite.
    pub ci95: Option<[f64; 2]>,
    /// The strength of the evidence, besides the interval.
    #[serde(flatten)]
    pub evidence: Evidence,
    /// Rounds the figure rests on.
    pub n: usize,
    /// Failed trials of the cells that the claim compares, by cell; each counts against a verdict.
    pub failures: Vec<Failures>,
    /// After how many rounds a test decided; more rounds change the figures, not the verdict.
    pub decided_after: Option<u32>,
    /// True if more rounds, of those that the experiment may run, could give a verdict.
    pub open: bool,
    /// The verdict.
    pub verdict: Verdict,
    /// The reason, if the verdict is not plain from the figures.
    pub reason: Option<String>,
}

/// The evidence behind a verdict: the p of a test. Another kind of evidence would be another form
/// of this type, which alone says how it is named and shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// The p of the claim's test before correction, valid after any round; `None` for counts and
    /// deterministic trials.
    pub p: Option<f64>,
    /// The same after Holm's correction over the family.
    pub p_holm: Option<f64>,
}

impl Evidence {
    /// Its name, as the head of a column.
    pub const NAME: &str = "p";

    /// The names of its numbers, for programs.
    pub const FIELDS: [&str; 2] = ["p", "p_corrected"];

    /// Its numbers, in the order of [`Evidence::FIELDS`].
    pub fn fields(&self) -> [Option<f64>; 2] {
        [self.p, self.p_holm]
    }

    /// The evidence in words; `None` if there is none.
    pub fn in_words(&self) -> Option<String> {
        match (self.p_holm, self.p) {
            (Some(p), _) => Some(p_in_words(p)),
            (None, Some(p)) => Some(format!("{} uncorrected", p_in_words(p))),
            (None, None) => None,
        }
    }
}

/// A p in words: two significant digits, and no more zeros than mean something.
pub(crate) fn p_in_words(p: f64) -> String {
    if p < 1e-4 {
        return "< 0.0001".to_owned();
    }
    let decimals = (1.0 - p.log10().floor()).clamp(2.0, 5.0) as usize;
    format!("{p:.decimals$}")
}

/// The verdict of a run on a published claim or a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The whole interval is on the claim's side and the test is significant.
    Reproduced,
    /// The whole interval is on the other side and the test is significant.
    NotReproduced,
    /// As `Reproduced`, of a target.
    Held,
    /// As `NotReproduced`, of a target.
    Missed,
    /// The rounds do not carry a verdict.
    Inconclusive,
    /// This machine cannot run it, or the cells may not be compared.
    NotTestable,
}

impl Verdict {
    /// Returns the verdict as that standing names it: `Reproduced` of a target is `Held`.
    pub(crate) fn of(self, standing: Standing) -> Verdict {
        match (standing, self) {
            (Standing::Target, Verdict::Reproduced) => Verdict::Held,
            (Standing::Target, Verdict::NotReproduced) => Verdict::Missed,
            (_, verdict) => verdict,
        }
    }

    /// Returns whether the statement was found to be false here.
    pub fn is_negative(self) -> bool {
        matches!(self, Verdict::NotReproduced | Verdict::Missed)
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Verdict::Reproduced => "reproduced",
            Verdict::NotReproduced => "not-reproduced",
            Verdict::Held => "held",
            Verdict::Missed => "missed",
            Verdict::Inconclusive => "inconclusive",
            Verdict::NotTestable => "not-testable",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_p_keeps_two_significant_digits() {
        assert_eq!(p_in_words(1.0), "1.00");
        assert_eq!(p_in_words(1.0 / 256.0), "0.0039");
        assert_eq!(p_in_words(0.05), "0.050");
        assert_eq!(p_in_words(0.0), "< 0.0001");
    }
}
