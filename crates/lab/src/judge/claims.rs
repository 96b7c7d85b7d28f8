//! The comparisons of a claim: its cells, whether they may be compared, and what is compared.

use super::comparison::{Comparison, Scale, Wanted};
use super::trials::{Cell, Obstacle, Trials};
use super::words;
use crate::experiment::{Bound, Claim, ClaimKind, Experiment, Metric};
use crate::stats::{log_ratios, slope, Bets, Round};
use crate::unit::Better;
use crate::value::{Selector, Value};

/// The scale of a ratio within a round, and the symmetry that the shuffle gives it.
const PAIRED: (Scale, Bets) = (Scale::Log, Bets::SignsAndRanks);

/// The largest difference of the work per operation between cells that still did the same work.
const SAME_WORK: f64 = 0.01;

/// The comparisons that must all hold for `claim` to hold; none for a claim that counts.
///
/// # Errors
/// They cannot be made: says why. A cell that this machine cannot run comes first, then one
/// that gave no figure, then cells that did not do the same work.
pub(super) fn comparisons(
    experiment: &Experiment,
    claim: &Claim,
    trials: &Trials<'_>,
) -> Result<Vec<Comparison>, Obstacle> {
    let metric = experiment.metric(&claim.metric).ok_or_else(|| {
        Obstacle::NotTestable(format!("the experiment does not measure {}", claim.metric))
    })?;
    let made = match &claim.kind {
        ClaimKind::Ratio { of, to, bound } => {
            let pairs = pairs(experiment, trials, of, to);
            usable(pairs.iter().flat_map(|(of, to)| [*of, *to]))?;
            let mut made = Vec::new();
            for (of, to) in pairs {
                same_work(&[of, to], metric)?;
                let rounds = ratios(of, to, metric)?;
                made.extend(Comparison::of_bound(
                    &versus(of, to),
                    &rounds,
                    PAIRED,
                    *bound,
                ));
            }
            made
        }
        ClaimKind::Flat {
            over,
            within,
            at_most,
        } => flat(
            &lines(experiment, trials, over, within, None),
            metric,
            *at_most,
        )?,
        ClaimKind::Scales {
            over,
            within,
            up_to,
            bound,
        } => {
            let lines = lines(experiment, trials, over, within, *up_to);
            scales(&lines, over, metric, *bound)?
        }
        ClaimKind::Order { ranked, margin } => order(trials, ranked, metric, *margin)?,
        ClaimKind::Value { of, bound } => {
            let cells: Vec<&Cell<'_>> = chosen(trials, of).collect();
            usable(cells.iter().copied())?;
            cells
                .into_iter()
                .flat_map(|cell| value(cell, metric, *bound))
                .collect()
        }
        ClaimKind::Zero { .. } => return Ok(Vec::new()),
    };
    if made.is_empty() {
        return Err(Obstacle::NotTestable(
            "the matrix has no cells that this claim could compare".to_owned(),
        ));
    }
    Ok(made)
}

/// The cells that `claim` is about.
pub(super) fn cells<'t, 'a>(
    experiment: &Experiment,
    claim: &'t Claim,
    trials: &'t Trials<'a>,
) -> Vec<&'t Cell<'a>> {
    let on_lines = |lines: Vec<Vec<(Value, &'t Cell<'a>)>>| -> Vec<&'t Cell<'a>> {
        lines.into_iter().flatten().map(|(_, cell)| cell).collect()
    };
    let mut cells: Vec<&Cell<'_>> = match &claim.kind {
        ClaimKind::Ratio { of, to, .. } => pairs(experiment, trials, of, to)
            .into_iter()
            .flat_map(|(of, to)| [of, to])
            .collect(),
        ClaimKind::Flat { over, within, .. } => {
            on_lines(lines(experiment, trials, over, within, None))
        }
        ClaimKind::Scales {
            over,
            within,
            up_to,
            ..
        } => on_lines(lines(experiment, trials, over, within, *up_to)),
        ClaimKind::Order { ranked, .. } => ranked
            .iter()
            .filter_map(|selector| chosen(trials, selector).next())
            .collect(),
        ClaimKind::Value { of, .. } => chosen(trials, of).collect(),
        ClaimKind::Zero { within, .. } => chosen(trials, within).collect(),
    };
    let mut seen: Vec<*const Cell<'_>> = Vec::new();
    cells.retain(|cell| {
        let cell: *const Cell<'_> = *cell;
        let new = !seen.contains(&cell);
        seen.extend(new.then_some(cell));
        new
    });
    cells
}

/// The cells that `selector` chooses.
pub(super) fn chosen<'t, 'a>(
    trials: &'t Trials<'a>,
    selector: &'t Selector,
) -> impl Iterator<Item = &'t Cell<'a>> {
    trials
        .cells
        .iter()
        .filter(|cell| selector.matches(&cell.at))
}

/// Numerators with their denominators: cells that agree on every axis that neither selector
/// names. A reference has no axes, so it pairs with every cell.
fn pairs<'t, 'a>(
    experiment: &Experiment,
    trials: &'t Trials<'a>,
    of: &'t Selector,
    to: &'t Selector,
) -> Vec<(&'t Cell<'a>, &'t Cell<'a>)> {
    let free: Vec<&str> = experiment
        .axes
        .iter()
        .map(|axis| axis.name.as_str())
        .filter(|axis| !of.0.contains_key(*axis) && !to.0.contains_key(*axis))
        .collect();
    let agree = |a: &Cell<'_>, b: &Cell<'_>| {
        free.iter()
            .all(|axis| match (a.at.0.get(*axis), b.at.0.get(*axis)) {
                (Some(a), Some(b)) => a == b,
                _ => true,
            })
    };
    chosen(trials, of)
        .flat_map(|a| chosen(trials, to).map(move |b| (a, b)))
        .filter(|(a, b)| a.at != b.at && agree(a, b))
        .collect()
}

/// The chosen cells, line by line along the axis `over`, each with its value on the axis, in the
/// axis's order. A line of one cell is none.
fn lines<'t, 'a>(
    experiment: &Experiment,
    trials: &'t Trials<'a>,
    over: &str,
    within: &'t Selector,
    up_to: Option<f64>,
) -> Vec<Vec<(Value, &'t Cell<'a>)>> {
    let mut lines: Vec<Vec<(Value, &Cell<'_>)>> = Vec::new();
    let elsewhere = |cell: &Cell<'_>| {
        let mut at = cell.at.clone();
        at.0.remove(over);
        at
    };
    for cell in chosen(trials, within) {
        let Some(value) = cell.at.0.get(over) else {
            continue;
        };
        if let (Some(limit), Some(value)) = (up_to, value.as_f64()) {
            if value > limit {
                continue;
            }
        }
        let entry = (value.clone(), cell);
        match lines
            .iter_mut()
            .find(|line| elsewhere(line[0].1) == elsewhere(cell))
        {
            Some(line) => line.push(entry),
            None => lines.push(vec![entry]),
        }
    }
    if let Some(axis) = experiment.axes.iter().find(|axis| axis.name == over) {
        let place = |value: &Value| axis.values.iter().position(|other| other == value);
        for line in &mut lines {
            line.sort_by_key(|(value, _)| place(value));
        }
    }
    lines.retain(|line| line.len() > 1);
    lines
}

fn flat(
    lines: &[Vec<(Value, &Cell<'_>)>],
    metric: &Metric,
    at_most: f64,
) -> Result<Vec<Comparison>, Obstacle> {
    usable(lines.iter().flatten().map(|(_, cell)| *cell))?;
    let mut made = Vec::new();
    for line in lines {
        let cells: Vec<&Cell<'_>> = line.iter().map(|(_, cell)| *cell).collect();
        same_work(&cells, metric)?;
        for of in &cells {
            for to in cells.iter().filter(|to| to.at != of.at) {
                made.push(Comparison {
                    name: versus(of, to),
                    rounds: ratios(of, to, metric)?,
                    scale: PAIRED.0,
                    bets: PAIRED.1,
                    threshold: at_most,
                    wanted: Wanted::Below,
                });
            }
        }
    }
    Ok(made)
}

fn scales(
    lines: &[Vec<(Value, &Cell<'_>)>],
    over: &str,
    metric: &Metric,
    bound: Bound,
) -> Result<Vec<Comparison>, Obstacle> {
    usable(lines.iter().flatten().map(|(_, cell)| *cell))?;
    let mut made = Vec::new();
    for line in lines {
        let cells: Vec<&Cell<'_>> = line.iter().map(|(_, cell)| *cell).collect();
        same_work(&cells, metric)?;
        let mut logs = Vec::new();
        for (value, cell) in line {
            let Some(x) = value.as_f64().filter(|x| *x > 0.0) else {
                return Err(Obstacle::NotTestable(format!(
                    "{over} = {value} has no logarithm, so no slope goes through it"
                )));
            };
            let figures = cell.figures(&metric.name);
            let ones = vec![Round::Figure(1.0); figures.len()];
            let y = log_ratios(&figures, &ones)
                .map_err(|round| no_logarithm(&[cell], metric, round))?;
            logs.push((x.ln(), y));
        }
        let rounds: Vec<Round> = (0..cells[0].rounds.len())
            .map(|round| slope_of(&logs, round))
            .collect();
        let mut name = cells[0].at.clone();
        name.0.remove(over);
        made.extend(Comparison::of_bound(
            &name.to_string(),
            &rounds,
            (Scale::Linear, Bets::SignsAndRanks),
            bound,
        ));
    }
    Ok(made)
}

/// The slope of one round. Through part of the line it would not be the same figure, so a round
/// needs all of it.
fn slope_of(logs: &[(f64, Vec<Round>)], round: usize) -> Round {
    let mut points = Vec::new();
    let mut missing = false;
    for (x, y) in logs {
        match y[round] {
            Round::Failed => return Round::Failed,
            Round::Missing => missing = true,
            Round::Figure(y) => points.push((*x, y)),
        }
    }
    match slope(&points) {
        Some(slope) if !missing => Round::Figure(slope),
        _ => Round::Missing,
    }
}

fn order(
    trials: &Trials<'_>,
    ranked: &[Selector],
    metric: &Metric,
    margin: f64,
) -> Result<Vec<Comparison>, Obstacle> {
    let cells: Vec<&Cell<'_>> = ranked
        .iter()
        .filter_map(|selector| chosen(trials, selector).next())
        .collect();
    if cells.len() < ranked.len() {
        return Ok(Vec::new()); // An order of a part of them is another claim.
    }
    usable(cells.iter().copied())?;
    same_work(&cells, metric)?;
    cells
        .windows(2)
        .map(|two| {
            let (of, to) = match metric.better {
                Better::Higher => (two[0], two[1]),
                Better::Lower => (two[1], two[0]),
            };
            Ok(Comparison {
                name: versus(of, to),
                rounds: ratios(of, to, metric)?,
                scale: PAIRED.0,
                bets: PAIRED.1,
                threshold: margin,
                wanted: Wanted::Above,
            })
        })
        .collect()
}

/// A figure against its limits, on the logarithmic scale where all of them are positive.
fn value(cell: &Cell<'_>, metric: &Metric, bound: Bound) -> Vec<Comparison> {
    let mut rounds = cell.figures(&metric.name);
    let figures = rounds.iter().filter_map(|round| match round {
        Round::Figure(figure) => Some(*figure),
        Round::Missing | Round::Failed => None,
    });
    let limits = [bound.at_least, bound.at_most].into_iter().flatten();
    let scale = if limits.chain(figures).all(|figure| figure > 0.0) {
        Scale::Log
    } else {
        Scale::Linear
    };
    for round in &mut rounds {
        if let Round::Figure(figure) = round {
            *figure = scale.keep(*figure);
        }
    }
    Comparison::of_bound(&cell.name(), &rounds, (scale, Bets::Signs), bound)
}

fn ratios(of: &Cell<'_>, to: &Cell<'_>, metric: &Metric) -> Result<Vec<Round>, Obstacle> {
    let ratios = log_ratios(&of.figures(&metric.name), &to.figures(&metric.name))
        .map_err(|round| no_logarithm(&[of, to], metric, round))?;
    if ratios.iter().all(|round| *round == Round::Missing) {
        return Err(Obstacle::NotYet(format!(
            "{} and {} were not both measured in any round",
            of.name(),
            to.name()
        )));
    }
    Ok(ratios)
}

fn no_logarithm(cells: &[&Cell<'_>], metric: &Metric, round: usize) -> Obstacle {
    let names: Vec<String> = cells.iter().map(|cell| cell.name()).collect();
    Obstacle::Inconclusive(format!(
        "no ratio: {} of {} was zero or negative in round {}",
        metric.name,
        names.join(" or "),
        round + 1
    ))
}

fn versus(of: &Cell<'_>, to: &Cell<'_>) -> String {
    format!("{} against {}", of.name(), to.name())
}

/// Checks that this machine can run every cell, and has begun to.
fn usable<'t, 'a: 't>(cells: impl Iterator<Item = &'t Cell<'a>>) -> Result<(), Obstacle> {
    let mut first = None;
    for cell in cells {
        if let Some(untestable) = cell.not_testable() {
            return Err(untestable);
        }
        if cell.ran() == 0 {
            let waiting = || Obstacle::NotYet(format!("no trial of {} has run", cell.name()));
            first = first.or_else(|| Some(waiting()));
        }
    }
    first.map_or(Ok(()), Err)
}

/// Checks that all cells did the same work per operation, to one part in a hundred. A metric
/// without a work counter is a count of events itself and has nothing to check.
fn same_work(cells: &[&Cell<'_>], metric: &Metric) -> Result<(), Obstacle> {
    let Some(counter) = &metric.work else {
        return Ok(());
    };
    let mut work = Vec::new();
    let with_figures = |cell: &&&Cell<'_>| cell.obstacle(metric).is_none();
    for cell in cells.iter().filter(with_figures) {
        let Some(amount) = cell.work_per_operation(counter) else {
            return Err(Obstacle::NotTestable(format!(
                "{} did not count its work ({counter} and operations), so nothing shows that it \
                 did the same as the others",
                cell.name()
            )));
        };
        if amount == 0.0 {
            return Err(Obstacle::NotTestable(format!(
                "{} did no work: {counter} stayed 0",
                cell.name()
            )));
        }
        work.push((cell, cell.work_by_round(counter)));
    }
    // Round by round, as the values are compared: a cell that does less in some rounds only
    // would hide behind its median.
    let rounds = work.iter().map(|(_, amounts)| amounts.len()).max();
    for round in 0..rounds.unwrap_or(0) {
        let mut here: Vec<(f64, &Cell<'_>)> = Vec::new();
        for (cell, amounts) in &work {
            here.extend(amounts[round].map(|amount| (amount, **cell)));
        }
        here.sort_by(|a, b| a.0.total_cmp(&b.0));
        if let (Some((least, less)), Some((most, more))) = (here.first(), here.last()) {
            if most / least > 1.0 + SAME_WORK {
                return Err(Obstacle::NotTestable(format!(
                    "not the same work: {} did {} per operation, {} {}",
                    more.name(),
                    words::work(*most, counter),
                    less.name(),
                    words::work(*least, counter)
                )));
            }
        }
    }
    Ok(())
}
