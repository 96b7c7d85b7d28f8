//! Flaws of known programs and documents, as far as their figures show them.

use super::{plain, rounded, Checked, SAME_MAX};
use crate::record::{Record, Statistic};

/// Properties of tests that their figures do not show: the format, the parameter that shows it if
/// it is above the limit, the problem, and what the figure should be.
const FLAWS: [(&str, &str, f64, &str, &str); 2] = [
    (
        "clio",
        "sessions",
        1.0,
        "the test opens the sessions and uses one of them",
        "measured with every session in turn",
    ),
    (
        "clio",
        "page_order",
        7.0,
        "the test touches the same 128 pages from order 7 on",
        "measured over 2^order pages with memory behind them",
    ),
];

/// The flaws of known tests, once for each parameter of a run.
pub(super) fn flaws(checked: &mut Checked<'_>) {
    for (format, parameter, above, problem, should_be) in FLAWS {
        let value = |r: &Record| r.parameters.get(parameter)?.parse::<f64>().ok();
        let shows = |r: &&Record| value(r).is_some_and(|value| value > above);
        let record = checked.run.records.iter().find(shows);
        if let Some(record) = record.filter(|_| checked.run.format == format) {
            checked.add(record, problem, should_be);
        }
    }
}

/// memtier_benchmark's bytes of gets, against those of its sets: a hit brings a value back.
pub(super) fn hits(checked: &mut Checked<'_>) {
    let run = checked.run;
    let of = |kind: &str, figure: &'static str| {
        let is_kind = |r: &&Record| r.parameters.get("type").is_some_and(|t| **t == *kind);
        let totals = run.all(figure).filter(|r| r.statistic == Statistic::Total);
        totals.filter(is_kind).last()
    };
    let sets = of("Sets", "operation_rate").zip(of("Sets", "throughput"));
    let gets = of("Gets", "hit_rate").zip(of("Gets", "throughput"));
    let Some(((sets, stored), (hits, fetched))) = sets.zip(gets) else {
        return;
    };
    let each = stored.base() / sets.value;
    let right = hits.value * each;
    if sets.value <= 0.0 || fetched.base() >= 0.9 * right {
        return;
    }
    let about = |base: f64| {
        let unit = stored.unit;
        let of_unit = rounded(unit.of_base(base));
        format!("about {of_unit} {unit} ({} GB/s)", rounded(base / 1e9))
    };
    let problem = format!(
        "the rate does not multiply to the bytes: {} hits per second of {} B, the size of a set, \
         are not counted",
        plain(hits.value),
        each.round()
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
    let rows = checked.run.all("throughput");
    let rows =
        rows.filter(|r| r.statistic == Statistic::Total && r.parameters.contains_key("type"));
    let (totals, rows): (Vec<_>, Vec<_>) = rows.partition(|r| &*r.parameters["type"] == "Totals");
    let sum: f64 = rows.iter().map(|r| r.value).sum();
    if let Some(total) = totals.first().filter(|total| total.value > 1.01 * sum) {
        let times = rounded(total.value / sum);
        let problem = format!("the sum is {times} times that of the rows that it adds up");
        checked.add(total, problem, format!("{} {}", rounded(sum), total.unit));
    }
}

/// UnixBench's index, which is no factor, and the copies that its result is the sum of.
pub(super) fn index(checked: &mut Checked<'_>) {
    let run = checked.run;
    for record in run.all("index").take(SAME_MAX) {
        let times = rounded(record.value / 10.0);
        let problem = "an index is no factor: that of the reference machine is 10, not 1";
        checked.add(
            record,
            problem,
            format!("read as {times} times the reference machine"),
        );
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
        let decimal = rate.and_then(|rate| Some((rate, rate.unit.decimal()?)));
        if let Some((rate, (decimal, factor))) = decimal {
            let should_be = format!("{} {decimal}", rounded(rate.value * factor));
            checked.add(record, "a data rate is printed in Hz", should_be);
        }
    }
}
