//! Flaws of known programs and documents, and those that show in several rows: sums that
//! accumulate, shares that do not add up.

use std::collections::BTreeMap;

use super::{groups, one, plain, rounded, Checked, SAME_MAX};
use crate::record::Record;
use crate::record::Statistic::{Mean, Total};

/// Properties of tests that their figures do not show, once for each parameter of a run.
pub(super) fn flaws(checked: &mut Checked<'_>) {
    for [parameter, above, text] in &checked.format.flaws {
        let above: f64 = above.parse().expect("a limit");
        let value = |r: &Record| r.parameters.get(parameter)?.parse::<f64>().ok();
        let shows = |r: &&Record| value(r).is_some_and(|value| value > above);
        let found = checked.run.records.iter().find(shows);
        if let Some((record, (problem, should_be))) = found.zip(text.split_once("; ")) {
            checked.add(record, problem, should_be);
        }
    }
}

/// memtier_benchmark's bytes of gets, against those of its sets: a hit brings a value back.
pub(super) fn hits(checked: &mut Checked<'_>) {
    let run = checked.run;
    let of = |kind: &str, figure: &'static str| {
        let is_kind = |r: &&Record| r.parameters.get("type").is_some_and(|t| **t == *kind);
        let totals = run.all(figure).filter(|r| r.statistic == Total);
        totals.filter(is_kind).last()
    };
    let sets = of("Sets", "operation_rate").zip(of("Sets", "throughput"));
    let gets = of("Gets", "hit_rate").zip(of("Gets", "throughput"));
    let (Some((sets, stored)), Some((hits, fetched))) = (sets, gets) else {
        return;
    };
    let each = stored.base() / sets.value;
    let right = hits.value * each;
    let is_finite = (right + stored.base()).is_finite();
    if sets.value <= 0.0 || !is_finite || fetched.base() >= 0.9 * right {
        return;
    }
    let about = |base: f64| {
        let (of_unit, unit) = (rounded(stored.unit.of_base(base)), stored.unit);
        format!("about {of_unit} {unit} ({} GB/s)", rounded(base / 1e9))
    };
    let (hits, each) = (plain(hits.value), each.round());
    let problem = format!(
        "the rate does not multiply to the bytes: {hits} hits per second of {each} B, the size \
         of a set, are not counted"
    );
    checked.add(fetched, problem, about(right));
    if let Some(total) = of("Totals", "throughput") {
        let problem = "the sum lacks the values that hits brought back";
        checked.add(total, problem, about(right + stored.base()));
    }
}

/// A row of totals whose bytes are not those of the rows before it: memtier_benchmark's, where each
/// of its arbitrary commands is counted twice.
pub(super) fn totals(checked: &mut Checked<'_>) {
    let is_row = |r: &&Record| r.statistic == Total && r.parameters.contains_key("type");
    let rows = checked.run.all("throughput").filter(is_row);
    let (totals, rows): (Vec<_>, Vec<_>) = rows.partition(|r| &*r.parameters["type"] == "Totals");
    let sum: f64 = rows.iter().map(|r| r.value).sum();
    let times = totals.first().map(|total| (total, total.value / sum));
    if let Some((total, times)) = times.filter(|(_, times)| times.is_finite() && *times > 1.01) {
        let times = rounded(times);
        let problem = format!("the sum is {times} times that of the rows that it adds up");
        checked.add(total, problem, format!("{} {}", rounded(sum), total.unit));
    }
}

/// memtier_benchmark's rate of all operations beside the one that it counted until its end: version
/// 2 gets the time of a run of one or two seconds (`--test-time`) wrong.
pub(super) fn counted(checked: &mut Checked<'_>) {
    let run = checked.run;
    let is_end = |r: &&Record| r.parameters.get("percent").is_some_and(|p| &**p == "100");
    let ends: Vec<_> = run.all("operation_rate_so_far").filter(is_end).collect();
    let Some(end) = ends.last() else { return };
    if ends
        .iter()
        .any(|r| r.parameters["run"] != end.parameters["run"])
    {
        return;
    }
    let is_sum = |r: &&Record| r.parameters.get("type").is_some_and(|t| &**t == "Totals");
    let rate = run.all("operation_rate").find(is_sum);
    let times = rate.map(|rate| (rate, rate.value / end.value));
    let is_off = |times: f64| times.is_finite() && (times - 1.0).abs() > 0.05;
    if let Some((rate, times)) = times.filter(|(_, times)| is_off(*times)) {
        let times = rounded(times);
        let problem =
            format!("the rate does not multiply to the operations: {times} times the rate counted");
        let should_be = format!(
            "{} {}, as in its last line of progress",
            end.value, end.unit
        );
        checked.add(rate, problem, should_be);
    }
}

/// UnixBench's index, which is no factor, and the copies that its result is the sum of.
pub(super) fn index(checked: &mut Checked<'_>) {
    let run = checked.run;
    for record in run.all("index").take(SAME_MAX) {
        let times = rounded(record.value / 10.0);
        let problem = "an index is no factor: that of the reference machine is 10, not 1";
        let should_be = format!("read as {times} times the reference machine");
        checked.add(record, problem, should_be);
        let is_claimed = |r: &&Record| (r.value / record.value - 1.0).abs() < 1e-3;
        for claim in run.all("claimed_factor").filter(is_claimed) {
            let problem = format!("the index of line {} is read as a factor", record.line);
            let should_be = format!("{times} times faster than the reference machine");
            checked.add(claim, problem, should_be);
        }
    }
    let result = run.all("result").next();
    if let Some(record) = result.filter(|r| !r.parameters.contains_key("copies")) {
        let problem = "the number of copies that ran is not printed, and the result is their sum";
        let should_be = "printed with the line \"… running N parallel copies of tests\"";
        checked.add(record, problem, should_be);
    }
}

/// A data rate that is printed as a frequency.
pub(super) fn frequency(checked: &mut Checked<'_>) {
    let run = checked.run;
    let in_hertz = run.records.iter().filter(|r| r.unit.name == "Hz");
    for record in in_hertz.take(SAME_MAX) {
        let rate = run.all("throughput").find(|r| r.line == record.line);
        let decimal = rate.and_then(|rate| rate.unit.decimal());
        if let (Some(rate), Some((decimal, factor))) = (rate, decimal) {
            if !(rate.value * factor).is_finite() {
                continue;
            }
            let should_be = format!("{} {decimal}", rounded(rate.value * factor));
            checked.add(record, "a data rate is printed in Hz", should_be);
        }
    }
}

/// A rate whose rows each hold those before them: it grows as the sum of what threads and latency
/// give, not as each.
pub(super) fn accumulation(checked: &mut Checked<'_>) {
    // By the kind of latency: the threads of a row, its latency and its rate.
    let mut series: BTreeMap<&str, Vec<(f64, &Record, &Record)>> = BTreeMap::new();
    for records in groups(checked.run).into_values() {
        for latency in records.iter().filter(|r| r.statistic == Mean) {
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
    for part in ["cycle", "cycle1", "cycles"] {
        let percentages = format!("{part}_percent");
        let pairs: Vec<_> = run.all(part).zip(run.all(&percentages)).collect();
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
        let whole = whole.filter(|whole| *whole > 0.0);
        let share = whole.map(|whole| 100.0 * sum / whole);
        let Some(share) = share.filter(|share| share.is_finite()) else {
            continue;
        };
        let (rows, of_all, cycles) = (pairs.len(), rounded(share), plain(sum));
        if share > printed + 1.0 {
            let printed = plain(printed);
            let problem = format!(
                "the {rows} rows have {cycles} cycles, {least}{of_all} % of all, and their \
                 percentages add up to {printed}: each is rounded down"
            );
            let should_be = format!("{least}{of_all} % in all, each with decimals");
            checked.add(first, problem, should_be);
        }
        if let Some(total) = total.filter(|total| sum > total.value) {
            let parts = format!("the parts are {cycles} cycles, more than the whole");
            let problem = format!("{parts}: some are counted in two classes");
            checked.add(total, problem, "at least the sum of its parts");
        }
    }
}

/// Cycles that are a count times a constant, and not measured.
pub(super) fn modelled(checked: &mut Checked<'_>) {
    let run = checked.run;
    let rows = run.all("exits").zip(run.all("cycle"));
    let rows = rows.zip(run.all("cycle1"));
    let mut costs = rows.map(|((exits, cycle), sum)| (sum.value - cycle.value) / exits.value);
    let (first, second) = (costs.next(), costs.next());
    let is_cost = |cost: &f64| cost.is_finite() && *cost > 0.0;
    let Some(cost) = first.filter(|cost| is_cost(cost) && first == second) else {
        return;
    };
    if let (true, Some(record)) = (costs.all(|other| other == cost), run.all("cycle1").next()) {
        let cost = plain(cost);
        let problem =
            format!("it is not measured: in every row it is cycle and {cost} for each exit");
        checked.add(record, problem, "cycles that were counted");
    }
}
