//! The figures of single cells, and the noise floor.

use super::comparison::Scale;
use super::seed_of;
use super::trials::{Cell, Obstacle, Trials};
use crate::experiment::{Experiment, Metric};
use crate::result::{CellResult, Noise};
use crate::stats::{interval, log_ratios, median, sign_flip};

/// Every cell's figures, metric by metric.
pub(super) fn figures(experiment: &Experiment, trials: &Trials<'_>, seed: u64) -> Vec<CellResult> {
    let mut figures = Vec::new();
    for cell in &trials.cells {
        for metric in &experiment.metrics {
            let label = [&experiment.id, &metric.name, &cell.at.to_string()];
            figures.push(figure(
                cell,
                metric,
                seed_of(seed, &label.map(String::as_str)),
            ));
        }
    }
    figures
}

fn figure(cell: &Cell<'_>, metric: &Metric, seed: u64) -> CellResult {
    let samples = cell.values(&metric.name);
    let present: Vec<f64> = samples.iter().flatten().copied().collect();
    let scale = if present.iter().all(|value| *value > 0.0) {
        Scale::Log
    } else {
        Scale::Linear
    };
    let kept: Vec<f64> = present.iter().map(|value| scale.keep(*value)).collect();
    let work = metric.work.as_ref();
    let middle = median(&present);
    // The way to the logarithm and back must not put the median beside its interval.
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
        ci95: interval(&kept, seed).map(|ends| around(ends.map(|end| scale.show(end)))),
        samples,
        work_per_operation: work.and_then(|counter| cell.work_per_operation(counter)),
        failed: cell.failed(),
        reason: match cell.obstacle(metric) {
            Some(Obstacle::NotTestable(reason) | Obstacle::Inconclusive(reason)) => Some(reason),
            None => None,
        },
    }
}

/// The baseline's second trials against its first, metric by metric. A metric that was ever zero
/// or negative has no ratio and is left out, as is one with fewer than two rounds.
pub(super) fn noise(experiment: &Experiment, trials: &Trials<'_>, seed: u64) -> Vec<Noise> {
    let twice = trials.cells.iter().filter(|cell| !cell.again.is_empty());
    twice
        .flat_map(|cell| {
            experiment
                .metrics
                .iter()
                .filter_map(move |metric| noise_of(&experiment.id, cell, metric, seed))
        })
        .collect()
}

fn noise_of(id: &str, cell: &Cell<'_>, metric: &Metric, seed: u64) -> Option<Noise> {
    let ratios = log_ratios(&cell.values_again(&metric.name), &cell.values(&metric.name));
    let present: Vec<f64> = ratios.ok()?.into_iter().flatten().collect();
    let ends = interval(&present, seed_of(seed, &[id, &metric.name, "noise"]))?;
    Some(Noise {
        metric: metric.name.clone(),
        at: cell.at.clone(),
        n: present.len(),
        ratio: Scale::Log.show(median(&present)?),
        ci95: ends.map(|end| Scale::Log.show(end)),
        p: sign_flip(&present).two_sided(),
    })
}
