//! Experiments: a matrix of cells, the metrics of each cell, and the claims about them.
//!
//! These are plain values; [`crate::file`] reads them from TOML and guarantees that every
//! name in them resolves: a claim's selector chooses at least one cell, an axis named by
//! `over` exists and has numbers where numbers are needed.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::extract::Extract;
use crate::unit::{Better, Unit};
use crate::value::{Parameters, Point, Selector, Value, BESIDE};

/// The most rounds of an experiment.
pub const ROUNDS_MAX: u32 = 10_000;

/// The driver of experiments whose figures were imported: no trial of theirs can run here.
pub const IMPORTED: &str = "imported";

/// One experiment, resolved for a machine (its processor count is already filled in).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// `suite/name`, unique in a run; the part before the slash is the suite.
    pub id: String,
    /// A one-line description.
    pub title: String,
    /// The publication and the place in it.
    pub source: String,
    /// The driver that runs a cell.
    pub driver: String,
    /// Parameters that are the same in every cell.
    pub fixed: Parameters,
    /// The axes, in the order of the file; their product less `exclude` is the matrix.
    pub axes: Vec<Axis>,
    /// Points left out of the product.
    pub exclude: Vec<Selector>,
    /// References that run in the same rounds, one cell each.
    pub beside: Vec<String>,
    /// The cell that runs twice per round (the A/A cell); the first cell if none is named.
    pub baseline: Option<Selector>,
    /// The metrics. Figures show the first. Never empty.
    pub metrics: Vec<Metric>,
    /// The names of the metrics that are parts of one whole, in the order in which they are drawn:
    /// at least two, all in `%` or all in `ratio`. Empty if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<String>,
    /// Values the publication printed, drawn beside the measured ones.
    pub published: Vec<Published>,
    /// The claims of the publication, and Tare's own targets.
    pub claims: Vec<Claim>,
    /// True if the driver's trials are deterministic (virtual time, counts): judged exactly.
    #[serde(default)]
    pub exact: bool,
    /// The number of rounds.
    #[serde(default)]
    pub rounds: Rounds,
}

/// The number of rounds that an experiment runs: at least `least`, then until every claim is
/// decided, and at most `most`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rounds {
    /// Rounds that are always run.
    pub least: u32,
    /// Rounds after which an undecided claim stays inconclusive.
    pub most: u32,
}

impl Rounds {
    /// That many rounds, whatever they show.
    pub fn exactly(rounds: u32) -> Rounds {
        Rounds {
            least: rounds,
            most: rounds,
        }
    }

    /// Returns whether it is a range within 1 to [`ROUNDS_MAX`].
    pub fn is_sound(&self) -> bool {
        (1..=self.most).contains(&self.least) && self.most <= ROUNDS_MAX
    }
}

impl Default for Rounds {
    fn default() -> Self {
        Rounds {
            least: 10,
            most: 60,
        }
    }
}

/// An axis of the matrix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// The parameter that varies.
    pub name: String,
    /// Its values, in order, without repeats. Never empty.
    pub values: Vec<Value>,
    /// True if figures draw the axis on a logarithmic scale.
    pub log: bool,
}

/// A quantity that is measured in a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// The name that the trial's samples carry.
    pub name: String,
    /// The statistic that reduces a trial's samples to the trial's value.
    pub statistic: Statistic,
    /// The statistic that reduces the trials' values to the cell's figure: the median, the mean, or
    /// the 90th or 99th percentile.
    #[serde(default, skip_serializing_if = "Statistic::is_median")]
    pub across: Statistic,
    /// The place of the samples in the output of a program; `None` if it reports them by the
    /// protocol, or they are measured from outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Extract>,
    /// The unit in which the value is kept and printed.
    pub unit: Unit,
    /// The direction in which the metric is better.
    pub better: Better,
    /// The counter that holds the work done; work per operation must be equal in cells that are
    /// compared. `None` if the metric is itself a count of events.
    pub work: Option<String>,
}

/// A statistic that reduces a trial's samples to one value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Statistic {
    /// The median (of one sample: that sample).
    #[default]
    Median,
    /// The arithmetic mean.
    Mean,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// The 50th percentile of the operations of the trial.
    P50,
    /// The 90th percentile.
    P90,
    /// The 99th percentile.
    P99,
    /// The 99.9th percentile.
    P999,
}

impl Statistic {
    fn is_median(&self) -> bool {
        *self == Statistic::Median
    }
}

impl fmt::Display for Statistic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Statistic::Median => "median",
            Statistic::Mean => "mean",
            Statistic::Min => "minimum",
            Statistic::Max => "maximum",
            Statistic::P50 => "50th percentile",
            Statistic::P90 => "90th percentile",
            Statistic::P99 => "99th percentile",
            Statistic::P999 => "99.9th percentile",
        })
    }
}

/// A figure that the publication printed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Published {
    /// The cell it belongs to; it may name values that this machine's matrix lacks.
    pub at: Point,
    /// The metric's name.
    pub metric: String,
    /// The value, converted to the metric's unit.
    pub value: f64,
    /// The publication that printed it, if that differs from the experiment's source.
    pub source: Option<String>,
}

/// The origin of a statement. The two never share a table, a count or a correction.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// A publication: `[[experiment.claim]]`.
    #[default]
    Claim,
    /// Tare's own: `[[experiment.target]]`, a ratio to something measured in the same round.
    Target,
}

/// A statement in a form that can be judged: a publication's claim, or a target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// Unique in its experiment; reports show `experiment/claim`.
    pub id: String,
    /// A published claim or a target.
    #[serde(default)]
    pub standing: Standing,
    /// The claim in words.
    pub text: String,
    /// The publication that made it, if that differs from the experiment's source.
    pub source: Option<String>,
    /// The metric it is about.
    pub metric: String,
    /// The statement that must hold.
    pub kind: ClaimKind,
    /// The figure that the publication gave, in the claim's own terms (a ratio, a slope…).
    pub published: Option<f64>,
}

/// The six kinds of claim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClaimKind {
    /// Cell A / cell B. Where the selectors leave axes free, cells pair up by their values on
    /// them and the claim must hold for every pair.
    Ratio {
        /// The numerator.
        of: Selector,
        /// The denominator.
        to: Selector,
        /// The limits of the ratio.
        bound: Bound,
    },
    /// The largest over the smallest along an axis; must hold for every line along it.
    Flat {
        /// The axis.
        over: String,
        /// The cells it is about.
        within: Selector,
        /// The largest ratio that still counts as flat; above 1.
        at_most: f64,
    },
    /// The slope of log(metric) against log(axis): 1 is proportional, 0 is flat.
    Scales {
        /// The axis; its values are positive numbers.
        over: String,
        /// The cells it is about.
        within: Selector,
        /// Only axis values up to this one, if given.
        up_to: Option<f64>,
        /// The limits of the slope.
        bound: Bound,
    },
    /// Variants from best to worst in the metric's own direction.
    Order {
        /// The variants, best first; at least two. Each chooses exactly one cell.
        ranked: Vec<Selector>,
        /// By how much each must beat the next, as a ratio; 1 or more.
        margin: f64,
    },
    /// A figure against limits in its own unit: one that does not depend on the machine, or one
    /// where the published statement is itself the rate. It has no partner in its round, so its
    /// rounds are taken as independent.
    Value {
        /// The cells.
        of: Selector,
        /// Its limits, in the metric's unit.
        bound: Bound,
    },
    /// A counter that must be zero over all trials of the cells.
    Zero {
        /// The counter's name.
        counter: String,
        /// The cells.
        within: Selector,
        /// The counter that proves there was something to count (draws, packets); must not be 0.
        out_of: String,
        /// True if cells that this machine cannot run are left out, as long as there are others.
        /// Runs recorded before this choice existed lack it.
        #[serde(default)]
        where_testable: bool,
    },
}

impl ClaimKind {
    /// Returns whether it is about a count, which is exact, and compares nothing.
    pub fn is_count(&self) -> bool {
        matches!(self, ClaimKind::Zero { .. })
    }

    /// The selectors of the cells that it is about.
    pub(crate) fn selectors(&self) -> Vec<&Selector> {
        match self {
            ClaimKind::Ratio { of, to, .. } => vec![of, to],
            ClaimKind::Flat { within, .. }
            | ClaimKind::Scales { within, .. }
            | ClaimKind::Zero { within, .. } => vec![within],
            ClaimKind::Order { ranked, .. } => ranked.iter().collect(),
            ClaimKind::Value { of, .. } => vec![of],
        }
    }
}

/// A lower limit, an upper limit, or both (`between`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bound {
    /// The lower limit.
    pub at_least: Option<f64>,
    /// The upper limit.
    pub at_most: Option<f64>,
}

impl Experiment {
    /// The part of the id before the slash: `tare run SUITE` runs all of it.
    pub fn suite(&self) -> &str {
        self.id.split('/').next().unwrap_or(&self.id)
    }

    /// Every cell: the product of the axes in file order (the last axis varies fastest) less
    /// the excluded points, then one cell for each reference.
    pub fn points(&self) -> Vec<Point> {
        let mut points = vec![Point::default()];
        for axis in &self.axes {
            points = points
                .iter()
                .flat_map(|point| {
                    axis.values.iter().map(|value| {
                        let mut next = point.clone();
                        next.0.insert(axis.name.clone(), value.clone());
                        next
                    })
                })
                .collect();
        }
        points.retain(|point| !self.exclude.iter().any(|left_out| left_out.matches(point)));
        points.extend(self.beside.iter().map(|name| {
            Point(Parameters::from([(
                BESIDE.to_owned(),
                Value::Text(name.clone()),
            )]))
        }));
        points
    }

    /// The experiment with these claims alone, and only the cells that they speak of. `None` if it
    /// has none of them.
    pub fn narrowed(mut self, claims: &[&str]) -> Option<Experiment> {
        self.claims
            .retain(|claim| claims.contains(&claim.id.as_str()));
        let selectors: Vec<&Selector> = self
            .claims
            .iter()
            .flat_map(|c| c.kind.selectors())
            .collect();
        let chosen = |point: &Point| selectors.iter().any(|s| s.matches(point));
        let (needed, unneeded): (Vec<Point>, Vec<Point>) =
            self.points().into_iter().partition(chosen);
        if self.claims.is_empty() {
            return None;
        }
        let is_on = |axis: &str, value: &Value| {
            let mut needed = needed.iter();
            needed.any(|point| point.0.get(axis) == Some(value))
        };
        for axis in &mut self.axes {
            axis.values.retain(|value| is_on(&axis.name, value));
        }
        self.beside
            .retain(|reference| is_on(BESIDE, &reference.as_str().into()));
        let within = |point: &Point| {
            let axes = &self.axes;
            axes.iter().all(|axis| {
                let value = point.0.get(&axis.name);
                value.is_some_and(|value| axis.values.contains(value))
            })
        };
        let rest = unneeded.into_iter().filter(within);
        self.exclude.extend(rest.map(|point| Selector(point.0)));
        let points = self.points();
        let left = |selector: &Selector| points.iter().any(|point| selector.matches(point));
        self.baseline = self.baseline.filter(left);
        Some(self)
    }

    /// The metric of that name.
    pub fn metric(&self, name: &str) -> Option<&Metric> {
        self.metrics.iter().find(|metric| metric.name == name)
    }

    /// All parameters of the cell at `point`: the fixed ones and the point's own.
    pub fn parameters(&self, point: &Point) -> Parameters {
        let mut all = self.fixed.clone();
        all.extend(point.0.clone());
        all
    }
}
