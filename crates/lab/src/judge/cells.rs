//! The figures of single cells, and the noise floor.

use std::collections::HashMap;

use super::claims;
use super::comparison::{Comparison, Scale, Wanted};
use super::evidence::{interval, two_sided_p};
use super::trials::{Cell, Obstacle, Trials};
use crate::experiment::{ClaimKind, Experiment, Metric, Statistic, IMPORTED};
use crate::result::{CellResult, Failures, Noise};
use crate::stats::{log_ratios, median, shape, Bets, Round};

/// Every cell's figures, metric by metric.
pub(super) fn figures(experiment: &Experiment, trials: &Trials<'_>) -> Vec<CellResult> {
    let mut figures = Vec::new();
    for cell in &trials.cells {
        for metric in &experiment.metrics {
            let figure = figure(cell, metric, experiment.exact);
            // A log does not have every figure of every cell, and that is no failure.
            if figure.n > 0 || experiment.driver != IMPORTED {
                figures.push(figure);
            }
        }
    }
    figures
}

/// The failed trials of every cell that has any, second trials of the baseline among them. A trial
/// that gave no number for the metric of a claim about its cell has failed too.
pub(super) fn failures(experiment: &Experiment, trials: &Trials<'_>) -> Vec<Failures> {
    let mut metrics: HashMap<*const Cell<'_>, Vec<&Metric>> = HashMap::new();
    for claim in &experiment.claims {
        if let ClaimKind::Zero { .. } = claim.kind {
            continue;
        }
        for cell in claims::cells(experiment, claim, trials) {
            let of_cell = metrics.entry(std::ptr::from_ref(cell)).or_default();
            of_cell.extend(experiment.metric(&claim.metric));
        }
    }
    let of = |cell| {
        let metrics = metrics.get(&std::ptr::from_ref(cell));
        cell.all_failures(metrics.map_or(&[], Vec::as_slice))
    };
    trials.cells.iter().filter_map(of).collect()
}

fn figure(cell: &Cell<'_>, metric: &Metric, exact: bool) -> CellResult {
    let mut rounds = cell.figures(&metric.name);
    let samples: Vec<Option<f64>> = rounds.iter().map(value).collect();
    let present: Vec<f64> = samples.iter().flatten().copied().collect();
    let scale = if present.iter().all(|value| *value > 0.0) {
        Scale::Log
    } else {
        Scale::Linear
    };
    for round in &mut rounds {
        if let Round::Figure(figure) = round {
            *figure = scale.keep(*figure);
        }
    }
    let work = metric.work.as_ref();
    let middle = median(&present);
    // A cell on its own has no partner whose noise it shares, and stalls on one side only.
    let interval = (!exact)
        .then(|| interval(&rounds, scale, Bets::Signs))
        .flatten();
    // Neither the way to the logarithm and back nor a machine that changed half-way may put the
    // median beside its interval.
    let around = |[low, high]: [f64; 2]| match middle {
        Some(middle) => [low.min(middle), high.max(middle)],
        None => [low, high],
    };
    CellResult {
        at: cell.at.clone(),
        metric: metric.name.clone(),
        unit: metric.unit,
        better: metric.better,
        n: present.len(),
        median: middle,
        ci95: interval.map(around),
        notes: notes(&present, metric),
        samples,
        work_per_operation: work.and_then(|counter| cell.work_per_operation(counter)),
        failed: cell.all_failures(&[]).map_or(0, |all| all.failed),
        reason: match cell.obstacle(metric) {
            Some(
                Obstacle::NotTestable(reason)
                | Obstacle::Inconclusive(reason)
                | Obstacle::NotYet(reason),
            ) => Some(reason),
            None => None,
        },
    }
}

/// The properties of a cell's values that a median does not show.
fn notes(values: &[f64], metric: &Metric) -> Vec<String> {
    let across = (metric.across != Statistic::Median)
        .then(|| metric.across.of(values))
        .flatten()
        .map(|value| {
            format!(
                "{} over {} trials: {}; described, not judged",
                metric.across,
                values.len(),
                metric.unit.show(value)
            )
        });
    across
        .into_iter()
        .chain(shape(values).map(|shape| shape.to_string()))
        .collect()
}

fn value(round: &Round) -> Option<f64> {
    match round {
        Round::Figure(figure) => Some(*figure),
        Round::Missing | Round::Failed => None,
    }
}

/// The baseline's second trials against its first, metric by metric. A metric that was ever zero
/// or negative has no ratio and is left out, as is one with too few rounds for an interval, and an
/// experiment without noise.
pub(super) fn noise(experiment: &Experiment, trials: &Trials<'_>) -> Vec<Noise> {
    let twice = trials
        .cells
        .iter()
        .filter(|cell| !cell.again.is_empty() && !experiment.exact);
    twice
        .flat_map(|cell| {
            let metrics = experiment.metrics.iter();
            metrics.filter_map(move |metric| noise_of(cell, metric))
        })
        .collect()
}

fn noise_of(cell: &Cell<'_>, metric: &Metric) -> Option<Noise> {
    let again = cell.figures_again(&metric.name);
    let rounds = log_ratios(&again, &cell.figures(&metric.name)).ok()?;
    let same = Comparison {
        name: String::new(),
        rounds,
        scale: Scale::Log,
        bets: Bets::SignsAndRanks,
        threshold: 1.0,
        wanted: Wanted::Above,
    };
    let measured = same.measure();
    let ratio = measured.effect?;
    let [low, high] = interval(&same.rounds, same.scale, same.bets)?;
    Some(Noise {
        metric: metric.name.clone(),
        at: cell.at.clone(),
        n: measured.n,
        ratio,
        // As around a cell's median.
        ci95: [low.min(ratio), high.max(ratio)],
        p: two_sided_p(&same),
    })
}
