//! Flaws of known programs and documents, as far as their figures show them.

use super::{one, plain, rounded, Place, SAME_MAX};
use crate::record::{Finding, Record, Statistic};

/// A property of a test that its figures do not show.
struct Flaw {
    format: &'static str,
    /// The parameter that shows it, if it is above the limit.
    parameter: &'static str,
    above: f64,
    problem: &'static str,
    should_be: &'static str,
}

const FLAWS: &[Flaw] = &[
    Flaw {
        format: "clio",
        parameter: "sessions",
        above: 1.0,
        problem: "the test opens the sessions and uses one of them",
        should_be: "measured with every session in turn",
    },
    Flaw {
        format: "clio",
        parameter: "page_order",
        above: 7.0,
        problem: "the test touches the same 128 pages from order 7 on",
        should_be: "measured over 2^order pages with memory behind them",
    },
];

/// The flaws of known tests, once for each parameter of a run.
pub(super) fn flaws(place: Place<'_>) -> Vec<Finding> {
    let of_format = FLAWS.iter().filter(|flaw| flaw.format == place.run.format);
    of_format
        .filter_map(|flaw| {
            let shows = |r: &&Record| {
                let value = r
                    .parameters
                    .get(flaw.parameter)
                    .and_then(|value| value.parse::<f64>().ok());
                value.is_some_and(|value| value > flaw.above)
            };
            let record = place.run.records.iter().find(shows)?;
            Some(place.finding(record, flaw.problem.into(), flaw.should_be.into()))
        })
        .collect()
}

/// memtier_benchmark's bytes of gets, against those of its sets: a hit brings a value back.
pub(super) fn hits(place: Place<'_>) -> Vec<Finding> {
    let of = |kind: &str, figure: &str| {
        let records = place.run.records.iter().rev();
        let mut of_kind =
            records.filter(|r| r.parameters.get("type").is_some_and(|t| **t == *kind));
        of_kind.find(|r| r.figure == figure && r.statistic == Statistic::Total)
    };
    let figures = (
        of("Sets", "operation_rate"),
        of("Sets", "throughput"),
        of("Gets", "hit_rate"),
        of("Gets", "throughput"),
    );
    let (Some(sets), Some(stored), Some(hits), Some(fetched)) = figures else {
        return Vec::new();
    };
    let each = stored.base() / sets.value;
    let right = hits.value * each;
    if sets.value <= 0.0 || fetched.base() >= 0.9 * right {
        return Vec::new();
    }
    let show = |base: f64| {
        let unit = stored.unit;
        format!(
            "{} {unit} ({} GB/s)",
            rounded(unit.of_base(base)),
            rounded(base / 1e9)
        )
    };
    let mut findings = vec![place.finding(
        fetched,
        format!(
            "the rate does not multiply to the bytes: {} hits per second of {} B, the size of a set, are not counted",
            plain(hits.value),
            each.round()
        ),
        format!("about {}", show(right)),
    )];
    if let Some(total) = of("Totals", "throughput") {
        let problem = "the sum lacks the values that hits brought back".to_owned();
        findings.push(place.finding(
            total,
            problem,
            format!("about {}", show(right + stored.base())),
        ));
    }
    findings
}

/// UnixBench's index, which is no factor, and the copies that its result is the sum of.
pub(super) fn index(place: Place<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let indices = place
        .run
        .records
        .iter()
        .filter(|r| r.figure == "index")
        .take(SAME_MAX);
    for record in indices {
        let times = record.value / 10.0;
        findings.push(place.finding(
            record,
            "an index is no factor: that of the reference machine is 10, not 1".into(),
            format!("read as {} times the reference machine", rounded(times)),
        ));
        let claims = place
            .run
            .records
            .iter()
            .filter(|r| r.figure == "claimed_factor");
        for claim in claims.filter(|claim| (claim.value / record.value - 1.0).abs() < 1e-3) {
            findings.push(place.finding(
                claim,
                format!("the index of line {} is read as a factor", record.line),
                format!("{} times faster than the reference machine", rounded(times)),
            ));
        }
    }
    let result = place.run.records.iter().find(|r| r.figure == "result");
    if let Some(record) = result.filter(|r| !r.parameters.contains_key("copies")) {
        findings.push(place.finding(
            record,
            "the number of copies that ran is not printed, and the result is their sum".into(),
            "printed with the line \"… running N parallel copies of tests\"".into(),
        ));
    }
    findings
}

/// A data rate that is printed as a frequency.
pub(super) fn frequency(place: Place<'_>) -> Vec<Finding> {
    let wrong = place
        .run
        .records
        .iter()
        .filter(|r| r.unit.name == "Hz")
        .take(SAME_MAX);
    wrong
        .filter_map(|record| {
            let on_line: Vec<&Record> = place
                .run
                .records
                .iter()
                .filter(|r| r.line == record.line)
                .collect();
            let rate = one(&on_line, "throughput")
                .or_else(|| on_line.iter().find(|r| r.figure == "throughput").copied())?;
            let (decimal, factor) = rate.unit.decimal()?;
            let problem = "a data rate is printed in Hz".to_owned();
            Some(place.finding(
                record,
                problem,
                format!("{} {decimal}", rounded(rate.value * factor)),
            ))
        })
        .collect()
}
