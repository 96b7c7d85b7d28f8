//! Two runs side by side: what changed between them.
//!
//! The rounds of two runs are not paired: the machine may have been busier during one of them.
//! A difference is therefore shown, never judged. A verdict needs both variants in the rounds of
//! one run.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::experiment::{ClaimKind, Experiment, IMPORTED};
use crate::extract::Place;
use crate::fingerprint::Machine;
use crate::result::{CellResult, ClaimResult, ExperimentResult, RunResult, Verdict};
use crate::unit::{Better, Unit};
use crate::value::Point;

/// The share by which work per operation may differ and still be called the same.
const SAME_WORK: f64 = 0.01;

/// The changes from one run to another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunDiff {
    /// The name of the first run.
    pub before: String,
    /// The name of the second run.
    pub after: String,
    /// Properties of the machine, of the run and of its experiments that differ.
    pub conditions: Vec<Condition>,
    /// Claims and targets of both runs, in the order of the second.
    pub verdicts: Vec<VerdictChange>,
    /// Cells of both runs that have a median in both, in the order of the second.
    pub cells: Vec<CellChange>,
    /// Cells of both runs that have a median in one of them only, in the order of the second.
    pub without_value: Vec<CellWithoutValue>,
    /// Claims, targets and cells that only the first run has.
    pub only_before: Vec<String>,
    /// Those that only the second run has.
    pub only_after: Vec<String>,
}

/// A property that differs between the runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Condition {
    /// Its name in words.
    pub what: String,
    /// Its value in the first run; `None` if unknown.
    pub before: Option<String>,
    /// Its value in the second run; `None` if unknown.
    pub after: Option<String>,
}

/// The verdicts on one claim or target.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VerdictChange {
    /// `experiment/claim`.
    pub id: String,
    /// The claim in words, as the second run has it.
    pub text: String,
    /// The unit of both figures.
    pub unit: Unit,
    /// The first run's verdict.
    pub before: Verdict,
    /// The second run's verdict.
    pub after: Verdict,
    /// The first run's figure.
    pub measured_before: Option<f64>,
    /// The second run's figure.
    pub measured_after: Option<f64>,
    /// True if the criterion, the metric and the cells are the same; otherwise the verdicts answer
    /// two questions.
    pub same_criterion: bool,
}

/// One cell's medians.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CellChange {
    /// The experiment.
    pub experiment: String,
    /// The cell.
    pub at: Point,
    /// The metric.
    pub metric: String,
    /// The unit of both medians.
    pub unit: Unit,
    /// The good direction.
    pub better: Better,
    /// The first run's median.
    pub before: f64,
    /// The second run's median.
    pub after: f64,
    /// After / before; `None` unless both are above 0 and the work is the same.
    pub ratio: Option<f64>,
    /// The work per operation of both, if it differs by more than 1 %: their medians cannot be
    /// compared.
    pub other_work: Option<[f64; 2]>,
    /// True if the two 95 % intervals have no value in common, or, where both experiments are exact
    /// and have no intervals, if the medians differ; `None` if an interval is missing.
    pub apart: Option<bool>,
    /// True if both experiments are exact: a median that differs has changed.
    pub exact: bool,
}

/// A cell that has a median in one of the runs only.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CellWithoutValue {
    /// The experiment.
    pub experiment: String,
    /// The cell.
    pub at: Point,
    /// The metric.
    pub metric: String,
    /// The unit of the median.
    pub unit: Unit,
    /// The first run's median.
    pub before: Option<f64>,
    /// The second run's median.
    pub after: Option<f64>,
    /// The reason for which the other run has none, if it is known.
    pub reason: Option<String>,
}

impl CellChange {
    /// Returns whether the second run's median is the better one; `None` if they are equal.
    pub fn improved(&self) -> Option<bool> {
        match self.after.total_cmp(&self.before) {
            std::cmp::Ordering::Equal => None,
            order => Some(order.is_gt() == (self.better == Better::Higher)),
        }
    }
}

/// Compares two judged runs by the ids of their claims and the coordinates of their cells, and the
/// experiments of both plans by their ids.
pub fn diff(before: (&RunResult, &[Experiment]), after: (&RunResult, &[Experiment])) -> RunDiff {
    let changed_experiments = changed_experiments(before.1, after.1);
    let (planned_before, planned_after) = (planned(before.1), planned(after.1));
    let is_about_other_cells = |id: &String| {
        let both = planned_before.get(id).zip(planned_after.get(id));
        both.is_some_and(|(before, after)| before.selectors() != after.selectors())
    };
    let (before, after) = (before.0, after.0);
    let (claims_before, claims_after) = (claims(before), claims(after));
    let (cells_before, cells_after) = (cells(before), cells(after));
    let verdicts = claims_after
        .iter()
        .filter_map(|(id, after)| {
            let (_, before) = claims_before.iter().find(|(other, _)| other == id)?;
            Some(VerdictChange {
                id: id.clone(),
                text: after.text.clone(),
                unit: after.unit,
                before: before.verdict,
                after: after.verdict,
                measured_before: before
                    .measured
                    .and_then(|value| before.unit.convert(value, after.unit).ok()),
                measured_after: after.measured,
                same_criterion: before.criterion == after.criterion
                    && before.metric == after.metric
                    && !is_about_other_cells(id),
            })
        })
        .collect();
    let common: Vec<(&Measured<'_>, &Measured<'_>)> = cells_after
        .iter()
        .filter_map(|after| {
            let before = cells_before.iter().find(|other| other.name == after.name)?;
            Some((before, after))
        })
        .collect();
    let pairs = common.iter();
    let changes = pairs
        .clone()
        .filter_map(|(before, after)| change(before, after));
    let without_value = pairs.filter_map(|(before, after)| without_value(before, after));
    let names = |claims: &[(String, &ClaimResult)], cells: &[Measured<'_>]| {
        let claims = claims.iter().map(|(id, _)| id.clone());
        let cells = cells.iter().map(|cell| cell.name.clone());
        claims.chain(cells).collect::<Vec<_>>()
    };
    let first = names(&claims_before, &cells_before);
    let second = names(&claims_after, &cells_after);
    let without = |all: &[String], others: &[String]| {
        all.iter()
            .filter(|name| !others.contains(name))
            .cloned()
            .collect()
    };
    RunDiff {
        before: before.run.clone(),
        after: after.run.clone(),
        conditions: conditions(before, after)
            .into_iter()
            .chain(changed_experiments)
            .collect(),
        verdicts,
        cells: changes.collect(),
        without_value: without_value.collect(),
        only_before: without(&first, &second),
        only_after: without(&second, &first),
    }
}

fn change(before: &Measured<'_>, after: &Measured<'_>) -> Option<CellChange> {
    let exact = before.experiment.exact && after.experiment.exact;
    let experiment = &after.experiment.id;
    let (before, after) = (before.cell, after.cell);
    let scaled = |value: f64| before.unit.convert(value, after.unit).ok();
    let (from, to) = (scaled(before.median?)?, after.median?);
    let apart = match (before.ci95, after.ci95) {
        // Deterministic trials have no intervals: any difference is a change. That of a last digit
        // comes from the conversion of units.
        _ if exact => Some((from - to).abs() > f64::EPSILON * 4.0 * from.abs().max(to.abs())),
        (Some([low, high]), Some([other_low, other_high])) => {
            Some(scaled(high)? < other_low || other_high < scaled(low)?)
        }
        _ => None,
    };
    let work = before.work_per_operation.zip(after.work_per_operation);
    let other_work = work
        .filter(|(a, b)| (a - b).abs() > SAME_WORK * a.abs().max(b.abs()))
        .map(|(a, b)| [a, b]);
    Some(CellChange {
        experiment: experiment.clone(),
        at: after.at.clone(),
        metric: after.metric.clone(),
        unit: after.unit,
        better: after.better,
        before: from,
        after: to,
        ratio: (from > 0.0 && to > 0.0 && other_work.is_none()).then(|| to / from),
        apart: apart.filter(|_| other_work.is_none()),
        exact,
        other_work,
    })
}

fn without_value(before: &Measured<'_>, after: &Measured<'_>) -> Option<CellWithoutValue> {
    let experiment = after.experiment.id.clone();
    let (before, after) = (before.cell, after.cell);
    let (has, lacks) = match (before.median, after.median) {
        (Some(_), None) => (before, after),
        (None, Some(_)) => (after, before),
        _ => return None,
    };
    Some(CellWithoutValue {
        experiment,
        at: after.at.clone(),
        metric: after.metric.clone(),
        unit: has.unit,
        before: before.median,
        after: after.median,
        reason: lacks.reason.clone(),
    })
}

fn claims(run: &RunResult) -> Vec<(String, &ClaimResult)> {
    run.experiments
        .iter()
        .flat_map(|experiment| experiment.claims.iter().chain(&experiment.targets))
        .map(|claim| (claim.id.clone(), claim))
        .collect()
}

/// The statements of all claims and targets, by the ids of their results.
fn planned(experiments: &[Experiment]) -> BTreeMap<String, &ClaimKind> {
    let all = experiments.iter().flat_map(|experiment| {
        let claims = experiment.claims.iter();
        claims.map(move |claim| (format!("{}/{}", experiment.id, claim.id), &claim.kind))
    });
    all.collect()
}

/// A cell of a run.
struct Measured<'r> {
    /// Experiment, place and metric: what two runs have in common.
    name: String,
    experiment: &'r ExperimentResult,
    cell: &'r CellResult,
}

fn cells(run: &RunResult) -> Vec<Measured<'_>> {
    let all = run.experiments.iter().flat_map(|experiment| {
        let cells = experiment.cells.iter();
        cells.map(move |cell| (experiment, cell))
    });
    all.map(|(experiment, cell)| Measured {
        name: format!("{} {} {}", experiment.id, cell.at, cell.metric),
        experiment,
        cell,
    })
    .collect()
}

fn conditions(before: &RunResult, after: &RunResult) -> Vec<Condition> {
    let of = |run: &RunResult| -> Vec<(&'static str, Option<String>)> {
        let Machine {
            cpus,
            cpu_model,
            cpu_flags,
            threads_per_core,
            hypervisor,
            governor,
            turbo,
            mitigations,
            kernel,
            kernel_command_line,
            memory,
            interfaces: _,
            load,
        } = &run.machine;
        vec![
            ("processor", cpu_model.clone()),
            ("processors", (*cpus > 0).then(|| cpus.to_string())),
            (
                "threads per core",
                threads_per_core.map(|threads| threads.to_string()),
            ),
            ("processor flags", Some(cpu_flags.join(" "))),
            ("hypervisor", hypervisor.clone()),
            ("frequency governor", governor.clone()),
            (
                "turbo",
                turbo.map(|on| if on { "on" } else { "off" }.into()),
            ),
            ("mitigations", Some(format!("{mitigations:?}"))),
            ("kernel", Some(kernel.clone())),
            ("kernel command line", kernel_command_line.clone()),
            // Kernels differ by a few pages in what they call all memory.
            (
                "memory, GiB",
                memory.map(|bytes| (bytes as f64 / f64::from(1 << 30)).round().to_string()),
            ),
            (
                "load average at the start",
                load.map(|load| load.to_string()),
            ),
            ("version of tare", Some(run.tare.clone())),
            ("size", Some(run.size.clone())),
        ]
    };
    of(before)
        .into_iter()
        .zip(of(after))
        .filter(|((_, before), (_, after))| before != after)
        .map(|((what, before), (_, after))| Condition {
            what: what.to_owned(),
            before,
            after,
        })
        .collect()
}

/// The properties that differ of experiments with the same id.
fn changed_experiments(before: &[Experiment], after: &[Experiment]) -> Vec<Condition> {
    let mut changed = Vec::new();
    for after in after {
        let Some(before) = before.iter().find(|other| other.id == after.id) else {
            continue;
        };
        let (first, second) = (properties(before, after), properties(after, before));
        let names: BTreeSet<&String> = first.keys().chain(second.keys()).collect();
        let of = |all: &BTreeMap<String, String>, name: &String| {
            all.get(name)
                .cloned()
                .unwrap_or_else(|| "not given".to_owned())
        };
        let pairs = names
            .into_iter()
            .map(|name| (name, of(&first, name), of(&second, name)));
        changed.extend(pairs.filter(|(_, first, second)| first != second).map(
            |(name, first, second)| Condition {
                what: format!("{}: {name}", after.id),
                before: Some(first),
                after: Some(second),
            },
        ));
    }
    changed
}

/// The properties that the figures of an experiment rest on, those of metrics as far as the `other`
/// run has them too.
fn properties(experiment: &Experiment, other: &Experiment) -> BTreeMap<String, String> {
    let driver = ("driver".to_owned(), experiment.driver.clone());
    // A log does not say by what parameters it was measured, nor where its figures came from.
    let is_imported = [experiment, other].iter().any(|one| one.driver == IMPORTED);
    let fixed = experiment.fixed.iter().filter(|_| !is_imported);
    let fixed = fixed.map(|(name, value)| (format!("fixed.{name}"), value.to_string()));
    let metrics = experiment.metrics.iter();
    let metrics = metrics.filter_map(|one| Some((one, other.metric(&one.name)?.unit)));
    let metrics = metrics.flat_map(|(one, other_unit)| {
        let better = match one.better {
            Better::Higher => "higher",
            Better::Lower => "lower",
        };
        // Units that convert into each other are no difference.
        let unit = match one.unit.convert(1.0, other_unit) {
            Ok(_) => String::new(),
            Err(_) => one.unit.to_string(),
        };
        let from = one.from.as_ref().filter(|_| !is_imported).map(|from| {
            let (kind, place) = match &from.place {
                Place::Json(place) => ("JSON Pointer", place),
                Place::Regex(place) => ("regular expression", place),
            };
            ("from", format!("{}, {kind} {place}", from.stream.name()))
        });
        let named = [
            ("statistic", one.statistic.to_string()),
            ("across", one.across.to_string()),
            ("better", better.to_owned()),
            ("unit", unit),
        ];
        let all = named.into_iter().chain(from);
        all.map(|(property, value)| (format!("{}.{property}", one.name), value))
    });
    std::iter::once(driver)
        .chain(fixed)
        .chain(metrics)
        .collect()
}
