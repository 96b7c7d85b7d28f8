//! Flaws that show in several rows: sums that accumulate, shares that do not add up.

use std::collections::BTreeMap;

use super::{plain, rounded, Place};
use crate::record::{Finding, Record};

/// A rate whose rows each hold those before them: it grows as the sum of what threads and latency
/// give, not as each.
pub(super) fn accumulation(place: Place<'_>) -> Vec<Finding> {
    let rows = place
        .run
        .records
        .iter()
        .filter(|r| r.parameters.contains_key("threads"));
    let mut rates: BTreeMap<(usize, &str), &Record> = BTreeMap::new();
    let mut series: BTreeMap<&str, Vec<[&Record; 2]>> = BTreeMap::new();
    for record in rows.clone() {
        if let Some(kind) = record.figure.strip_suffix("throughput") {
            rates.insert((record.line, kind), record);
        }
    }
    for latency in rows {
        let kind = latency.figure.strip_suffix("latency");
        let rate = kind.and_then(|kind| rates.get(&(latency.line, kind)));
        if let (Some(kind), Some(rate)) = (kind, rate) {
            series.entry(kind).or_default().push([latency, rate]);
        }
    }
    series
        .into_values()
        .flat_map(|rows| accumulates(place, &rows))
        .collect()
}

fn accumulates(place: Place<'_>, rows: &[[&Record; 2]]) -> Vec<Finding> {
    let threads = |r: &Record| r.parameters.get("threads")?.parse::<f64>().ok();
    let [first, ..] = rows else {
        return Vec::new();
    };
    let Some(of_first) = threads(first[0]) else {
        return Vec::new();
    };
    // The bytes of one operation, by the first row.
    let bytes = first[1].base() * first[0].base() / of_first;
    let off = |a: f64, b: f64| (a / b - 1.0).abs();
    let (mut sum, mut before) = (0.0, 0.0);
    let mut findings = Vec::new();
    for [latency, rate] in rows {
        let Some(threads) = threads(latency) else {
            return Vec::new();
        };
        let own = threads * bytes / latency.base();
        sum += own;
        if off(rate.base(), sum) < 0.05 && off(rate.base(), own) > 0.2 {
            findings.push(place.finding(
                rate,
                "the sum accumulates over the rows: those before are in it".into(),
                format!("{} {}", rounded(rate.value - before), rate.unit),
            ));
        }
        before = rate.value;
    }
    findings
}

/// Percentages that were rounded down each, beside the cycles that they are of.
pub(super) fn shares(place: Place<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (part, percent) in [
        ("cycle", "cycle_percent"),
        ("cycle1", "cycle1_percent"),
        ("cycles", "cycles_percent"),
    ] {
        let all = |figure: &str| {
            place
                .run
                .records
                .iter()
                .filter(move |r| r.figure == figure)
                .collect::<Vec<_>>()
        };
        let (parts, percents) = (all(part), all(percent));
        let Some(first) = parts.first().filter(|_| parts.len() == percents.len()) else {
            continue;
        };
        let sum: f64 = parts.iter().map(|r| r.value).sum();
        let printed: f64 = percents.iter().map(|r| r.value).sum();
        let printed_total = place
            .run
            .records
            .iter()
            .find(|r| r.figure == "total_cycles" && part == "cycles");
        // If p percent are rounded down, the whole is at most 100 / p times the part.
        let bounds = parts.iter().zip(&percents).filter(|(_, p)| p.value > 0.0);
        let bound = bounds
            .map(|(part, p)| 100.0 * part.value / p.value)
            .reduce(f64::min);
        let whole = printed_total.map(|r| r.value).or(bound);
        let Some(share) = whole
            .filter(|whole| *whole > 0.0)
            .map(|whole| 100.0 * sum / whole)
        else {
            continue;
        };
        if share > printed + 1.0 {
            let least = if printed_total.is_some() {
                ""
            } else {
                "at least "
            };
            findings.push(place.finding(
                first,
                format!(
                    "the {} rows have {} cycles, {least}{} % of all, and their percentages add up to {}: each is rounded down",
                    parts.len(),
                    plain(sum),
                    rounded(share),
                    plain(printed)
                ),
                format!("{least}{} % in all, each with decimals", rounded(share)),
            ));
        }
        if let Some(total) = printed_total.filter(|total| sum > total.value) {
            findings.push(place.finding(
                total,
                format!(
                    "the parts are {} cycles, more than the whole: some are counted in two classes",
                    plain(sum)
                ),
                "at least the sum of its parts".into(),
            ));
        }
    }
    findings
}

/// Cycles that are a count times a constant, and not measured.
pub(super) fn modelled(place: Place<'_>) -> Vec<Finding> {
    let all = |figure: &'static str| place.run.records.iter().filter(move |r| r.figure == figure);
    let mut rows = all("exits").zip(all("cycle")).zip(all("cycle1"));
    let each = |((exits, cycle), cycle1): ((&Record, &Record), &Record)| {
        (cycle1.value - cycle.value) / exits.value
    };
    let Some(first) = rows.next() else {
        return Vec::new();
    };
    let cost = each(first);
    let rest: Vec<_> = rows.collect();
    if cost <= 0.0 || rest.is_empty() || rest.into_iter().any(|row| each(row) != cost) {
        return Vec::new();
    }
    vec![place.finding(
        first.1,
        format!(
            "it is not measured: in every row it is cycle and {} for each exit",
            plain(cost)
        ),
        "cycles that were counted".into(),
    )]
}
