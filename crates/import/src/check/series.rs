//! Flaws that show in several rows: sums that accumulate, shares that do not add up.

use std::collections::BTreeMap;

use super::{groups, one, plain, rounded, Checked};
use crate::record::{Record, Statistic};

/// A rate whose rows each hold those before them: it grows as the sum of what threads and latency
/// give, not as each.
pub(super) fn accumulation(checked: &mut Checked<'_>) {
    // By the kind of latency: the threads of a row, its latency and its rate.
    let mut series: BTreeMap<&str, Vec<(f64, &Record, &Record)>> = BTreeMap::new();
    for records in groups(checked.run).into_values() {
        for latency in records.iter().filter(|r| r.statistic == Statistic::Mean) {
            let Some(kind) = latency.figure.strip_suffix("latency") else {
                continue;
            };
            let rate = one(&records, &format!("{kind}throughput"));
            let threads = latency.parameters.get("threads");
            let threads = threads.and_then(|n| n.parse().ok());
            let row = threads.zip(rate).map(|(n, rate)| (n, *latency, rate));
            series.entry(kind).or_default().extend(row);
        }
    }
    for mut rows in series.into_values() {
        rows.sort_by_key(|(_, latency, _)| latency.line);
        if rows.len() < 2 || rows.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
            continue;
        }
        // The bytes of one operation, by the first row.
        let (of_first, latency, rate) = rows[0];
        let bytes = rate.base() * latency.base() / of_first;
        let off = |a: f64, b: f64| (a / b - 1.0).abs();
        let (mut sum, mut before) = (0.0, 0.0);
        for (threads, latency, rate) in rows {
            let own = threads * bytes / latency.base();
            sum += own;
            if off(rate.base(), sum) < 0.05 && off(rate.base(), own) > 0.2 {
                let problem = "the sum accumulates over the rows: those before are in it";
                let should_be = format!("{} {}", rounded(rate.value - before), rate.unit);
                checked.add(rate, problem, should_be);
            }
            before = rate.value;
        }
    }
}

/// Percentages that were rounded down each, beside the cycles that they are of.
pub(super) fn shares(checked: &mut Checked<'_>) {
    let run = checked.run;
    for (part, percent) in [
        ("cycle", "cycle_percent"),
        ("cycle1", "cycle1_percent"),
        ("cycles", "cycles_percent"),
    ] {
        let pairs: Vec<(&Record, &Record)> = run.all(part).zip(run.all(percent)).collect();
        let Some((first, _)) = pairs.first() else {
            continue;
        };
        let sum: f64 = pairs.iter().map(|(part, _)| part.value).sum();
        let printed: f64 = pairs.iter().map(|(_, percent)| percent.value).sum();
        // If p percent are rounded down, the whole is at most 100 / p times the part.
        let bounds = pairs.iter().filter(|(_, percent)| percent.value > 0.0);
        let bounds = bounds.map(|(part, percent)| 100.0 * part.value / percent.value);
        let total = run.all("total_cycles").next().filter(|_| part == "cycles");
        let (least, whole) = match total {
            Some(total) => ("", Some(total.value)),
            None => ("at least ", bounds.reduce(f64::min)),
        };
        let Some(whole) = whole.filter(|whole| *whole > 0.0) else {
            continue;
        };
        let share = 100.0 * sum / whole;
        if share > printed + 1.0 {
            let (rows, of_all) = (pairs.len(), rounded(share));
            let problem = format!(
                "the {rows} rows have {} cycles, {least}{of_all} % of all, and their percentages \
                 add up to {}: each is rounded down",
                plain(sum),
                plain(printed)
            );
            checked.add(
                first,
                problem,
                format!("{least}{of_all} % in all, each with decimals"),
            );
        }
        if let Some(total) = total.filter(|total| sum > total.value) {
            let sum = plain(sum);
            let problem = format!(
                "the parts are {sum} cycles, more than the whole: some are counted in two classes"
            );
            checked.add(total, problem, "at least the sum of its parts");
        }
    }
}

/// Cycles that are a count times a constant, and not measured.
pub(super) fn modelled(checked: &mut Checked<'_>) {
    let run = checked.run;
    let rows = run
        .all("exits")
        .zip(run.all("cycle"))
        .zip(run.all("cycle1"));
    let costs = rows.map(|((exits, cycle), cycle1)| (cycle1.value - cycle.value) / exits.value);
    let costs: Vec<f64> = costs.collect();
    let [cost, rest @ ..] = &costs[..] else {
        return;
    };
    if *cost <= 0.0 || rest.is_empty() || rest.iter().any(|other| other != cost) {
        return;
    }
    let cost = plain(*cost);
    let problem = format!("it is not measured: in every row it is cycle and {cost} for each exit");
    if let Some(record) = run.all("cycle1").next() {
        checked.add(record, problem, "cycles that were counted");
    }
}
