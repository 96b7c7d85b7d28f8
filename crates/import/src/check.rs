//! The checks: what is wrong with figures, by the records of any format.

mod known;
mod series;

use std::collections::BTreeMap;

use crate::format::Format;
use crate::record::{Finding, Input, Parameters, Record, Run, Statistic};

/// The most findings of one problem in one run that are listed one by one.
const SAME_MAX: usize = 20;

/// The share by which a product may differ from what it is the product of, beyond rounding.
const TOLERANCE: f64 = 0.005;

/// A run with its file and format.
#[derive(Clone, Copy)]
struct Place<'a> {
    file: &'a str,
    run: &'a Run,
    format: &'static Format,
}

impl Place<'_> {
    fn finding(&self, record: &Record, problem: String, should_be: String) -> Finding {
        Finding {
            file: self.file.to_owned(),
            line: record.line,
            figure: shown(record),
            problem,
            should_be,
        }
    }
}

/// Finds what is wrong with the figures of these inputs, and with comparing them. In the order of
/// the files and their lines.
pub fn check(inputs: &[Input]) -> Vec<Finding> {
    let places: Vec<Place<'_>> = inputs
        .iter()
        .flat_map(|input| input.runs.iter().map(move |run| (input, run)))
        .filter_map(|(input, run)| {
            let format = Format::named(run.format)?;
            Some(Place {
                file: &input.file,
                run,
                format,
            })
        })
        .collect();
    let mut findings: Vec<Finding> = inputs.iter().flat_map(|i| i.findings.clone()).collect();
    for place in &places {
        for check in [
            units as fn(Place<'_>) -> Vec<Finding>,
            negative_loss,
            more_received_than_sent,
            products,
            averages,
            errors,
            known::hits,
            known::flaws,
            known::index,
            known::frequency,
            series::accumulation,
            series::shares,
            series::modelled,
        ] {
            let mut found = check(*place);
            let rest = found.len().saturating_sub(SAME_MAX);
            found.truncate(SAME_MAX);
            if let (Some(last), true) = (found.last_mut(), rest > 0) {
                last.problem
                    .push_str(&format!(" (and so are {rest} more of this run)"));
            }
            findings.append(&mut found);
        }
    }
    findings.append(&mut bytes_per_response(&places));
    let (mut twice, originals) = printed_twice(&places);
    findings.append(&mut twice);
    findings.append(&mut once(&originals));
    let order: BTreeMap<&str, usize> = inputs
        .iter()
        .enumerate()
        .rev()
        .map(|(at, i)| (i.file.as_str(), at))
        .collect();
    findings.sort_by_key(|finding| (order.get(finding.file.as_str()).copied(), finding.line));
    findings
}

/// A figure as the log has it: `p99 latency 12.863 ms`.
pub(crate) fn shown(record: &Record) -> String {
    let unit = record.printed_unit.unwrap_or(record.unit.name);
    format!("{} {} {unit}", record.name(), plain(record.value))
        .trim_end()
        .to_owned()
}

/// A number with at most six decimals.
fn plain(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A number with six significant digits.
fn rounded(value: f64) -> String {
    let digits = 5 - value.abs().max(1e-12).log10().floor() as i32;
    plain((value * 10f64.powi(digits)).round() / 10f64.powi(digits))
}

/// Records by their parameters, in order.
fn groups(run: &Run) -> BTreeMap<&Parameters, Vec<&Record>> {
    let mut groups: BTreeMap<&Parameters, Vec<&Record>> = BTreeMap::new();
    for record in &run.records {
        groups.entry(&record.parameters).or_default().push(record);
    }
    groups
}

/// The record of a figure that is no progress and no sample of a group.
fn one<'a>(records: &[&'a Record], figure: &str) -> Option<&'a Record> {
    let is = |r: &&&Record| {
        r.figure == figure && matches!(r.statistic, Statistic::Total | Statistic::Mean)
    };
    records.iter().find(is).copied()
}

/// Returns whether the statistic sums up a run.
fn is_summary(record: &Record) -> bool {
    !matches!(record.statistic, Statistic::Progress | Statistic::Sample)
}

/// Decimal units that are binary, and figures without a unit. Once for each figure of a run.
fn units(place: Place<'_>) -> Vec<Finding> {
    let mut seen = Vec::new();
    let mut findings = Vec::new();
    for record in &place.run.records {
        let key = (record.figure, record.unit.name, record.printed_unit);
        if seen.contains(&key) {
            continue;
        }
        seen.push(key);
        if record.unit.name.is_empty() {
            let like = place
                .run
                .records
                .iter()
                .find(|other| other.figure == record.figure && !other.unit.name.is_empty());
            let should_be = match like {
                Some(other) => format!("in {}, as on line {}", other.unit, other.line),
                None => "printed with its unit".to_owned(),
            };
            findings.push(place.finding(record, "no unit is printed".into(), should_be));
        } else if let (Some(printed), Some((decimal, factor))) =
            (record.printed_unit, record.unit.decimal())
        {
            if !printed.contains('i') {
                let should_be = format!(
                    "{} {}, which is {} {decimal}",
                    plain(record.value),
                    record.unit,
                    rounded(record.value * factor)
                );
                let problem = format!(
                    "{printed} stands for {}: the program divides by powers of 1024",
                    record.unit
                );
                findings.push(place.finding(record, problem, should_be));
            }
        }
    }
    findings
}

fn negative_loss(place: Place<'_>) -> Vec<Finding> {
    let lost = place
        .run
        .records
        .iter()
        .filter(|r| r.figure.starts_with("lost_") && r.value < 0.0);
    lost.map(|record| {
        place.finding(
            record,
            "the loss is negative: packets of an earlier trial, or of others, were counted".into(),
            "the packets of this trial that did not arrive, at least 0, and the others counted apart".into(),
        )
    })
    .collect()
}

fn more_received_than_sent(place: Place<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for records in groups(place.run).into_values() {
        // Bytes only where no packets are counted: they are the same finding.
        let pair = ["packets", "messages", "bytes"].iter().find_map(|what| {
            let of = |way| {
                records
                    .iter()
                    .rfind(|r| r.figure.strip_prefix(way) == Some(what))
                    .copied()
            };
            Some((of("sent_")?, of("received_")?))
        });
        let Some((sent, received)) = pair.filter(|(sent, received)| received.value > sent.value)
        else {
            continue;
        };
        let more = received.value - sent.value;
        let unit = if sent.unit.is_data() { " B" } else { "" };
        let cause = match more {
            24.0 if sent.unit.is_data() => ": the close message of TLS was counted as data",
            _ => "",
        };
        findings.push(place.finding(
            received,
            format!("{}{unit} more were received than sent{cause}", plain(more)),
            format!(
                "at most {}{unit}, as sent on line {}",
                plain(sent.value),
                sent.line
            ),
        ));
    }
    findings
}

/// Amounts, times and rates that do not multiply.
fn products(place: Place<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for records in groups(place.run).into_values() {
        for [amount, time, rate] in &place.format.products {
            let figures = (
                one(&records, amount),
                one(&records, time),
                one(&records, rate),
            );
            let (Some(amount), Some(time), Some(rate)) = figures else {
                continue;
            };
            if !rate.unit.is_rate_of(amount.unit) || time.base() <= 0.0 || rate.base() <= 0.0 {
                continue;
            }
            let right = amount.base() / time.base();
            let rounding =
                [amount, time, rate].map(|r| r.resolution / r.value.abs().max(r.resolution));
            if (rate.base() / right - 1.0).abs() > TOLERANCE + rounding.iter().sum::<f64>() {
                findings.push(place.finding(
                    rate,
                    format!("it is not {} / {}", shown(amount), shown(time)),
                    format!("{} {}", rounded(rate.unit.of_base(right)), rate.unit),
                ));
            }
        }
        // The bytes of one operation, its time and the rate, where operations follow each other.
        let sizes = records
            .first()
            .and_then(|r| r.parameters.get("size")?.parse::<f64>().ok());
        let figures = (sizes, one(&records, "latency"), one(&records, "throughput"));
        if let (Some(size), Some(latency), Some(rate)) = figures {
            let right = size / latency.base();
            if latency.base() > 0.0
                && rate.unit.is_rate_of(crate::Unit::named("B"))
                && (rate.base() / right - 1.0).abs() > 0.01
            {
                findings.push(place.finding(
                    rate,
                    format!("it is not {size} B / {}", shown(latency)),
                    format!("{} {}", rounded(rate.unit.of_base(right)), rate.unit),
                ));
            }
        }
    }
    findings
}

/// Averages of which no spread is known. Once for each figure of a run.
fn averages(place: Place<'_>) -> Vec<Finding> {
    let groups = groups(place.run);
    let mut findings: Vec<Finding> = Vec::new();
    let mut seen = Vec::new();
    let is_mean = |r: &&Record| r.statistic == Statistic::Mean;
    for mean in place.run.records.iter().filter(is_mean) {
        let no_spread = [Statistic::Mean, Statistic::Total, Statistic::Progress];
        let is_spread = |r: &&Record| r.figure == mean.figure && !no_spread.contains(&r.statistic);
        if seen.contains(&mean.figure) || groups[&mean.parameters].iter().any(is_spread) {
            continue;
        }
        seen.push(mean.figure);
        findings.push(place.finding(
            mean,
            "an average without spread".into(),
            "printed with percentiles, or a standard deviation and the number of samples".into(),
        ));
    }
    findings
}

fn errors(place: Place<'_>) -> Vec<Finding> {
    let errors = place
        .run
        .records
        .iter()
        .filter(|r| r.figure.ends_with("_errors") && r.value > 0.0);
    errors
        .map(|record| {
            let problem = "requests that failed are among those counted";
            place.finding(
                record,
                problem.into(),
                "0, or the rate of the responses that succeeded".into(),
            )
        })
        .collect()
}

/// Runs of one format whose responses differ in size.
fn bytes_per_response(places: &[Place<'_>]) -> Vec<Finding> {
    let work = |place: &Place<'_>| {
        let (bytes, operations) = place.run.work()?;
        let [figure, _] = place.format.work?;
        let line = place.run.find(figure, Statistic::Total)?.line;
        (operations > 0).then(|| (bytes as f64 / operations as f64, line))
    };
    let mut firsts: Vec<(Place<'_>, f64, usize)> = Vec::new();
    let mut findings = Vec::new();
    for place in places {
        let Some((each, line)) = work(place) else {
            continue;
        };
        let Some((first, of_first, first_line)) = firsts
            .iter()
            .find(|(first, ..)| std::ptr::eq(first.format, place.format))
        else {
            firsts.push((*place, each, line));
            continue;
        };
        if (each / of_first - 1.0).abs() > 0.01 {
            let record = place.run.find("request_rate", Statistic::Total);
            findings.push(Finding {
                file: place.file.to_owned(),
                line,
                figure: record.map(shown).unwrap_or_default(),
                problem: format!(
                    "{} B per response, and {} B in the run of {}:{first_line}: not the same work, so the rates cannot be compared",
                    each.round(),
                    of_first.round(),
                    first.file
                ),
                should_be: "measured with the same response".into(),
            });
        }
    }
    findings
}

/// Two runs whose every figure is the same are one run that was printed twice.
/// Returns the other runs beside the findings.
fn printed_twice<'a>(places: &[Place<'a>]) -> (Vec<Finding>, Vec<Place<'a>>) {
    let mut seen: BTreeMap<_, Place<'_>> = BTreeMap::new();
    let (mut findings, mut originals) = (Vec::new(), Vec::new());
    for place in places {
        let records = place.run.records.iter().filter(|r| is_summary(r));
        let figures: Vec<(String, u64)> = records
            .clone()
            .map(|r| (r.name(), r.value.to_bits()))
            .collect();
        // Few figures may be equal by chance.
        let is_long = figures.len() >= 8;
        let key = (place.run.format, figures);
        match (seen.get(&key).filter(|_| is_long), records.clone().next()) {
            (Some(first), Some(record)) => findings.push(place.finding(
                record,
                format!(
                    "every figure is that of the run of {}:{}: one run, printed twice",
                    first.file, first.run.line
                ),
                "a run of its own".into(),
            )),
            _ => {
                seen.entry(key).or_insert(*place);
                originals.push(*place);
            }
        }
    }
    (findings, originals)
}

/// Runs that were made once.
fn once(places: &[Place<'_>]) -> Vec<Finding> {
    let key = |place: &Place<'_>, record: &Record| {
        (place.run.format, record.name(), record.parameters.clone())
    };
    let mut times: BTreeMap<_, usize> = BTreeMap::new();
    for place in places {
        for record in place.run.records.iter().filter(|r| is_summary(r)) {
            *times.entry(key(place, record)).or_default() += 1;
        }
    }
    let mut findings = Vec::new();
    for place in places.iter().filter(|place| !place.format.repeats) {
        let first = place
            .run
            .records
            .iter()
            .find(|r| is_summary(r) && times[&key(place, r)] == 1);
        if let Some(record) = first {
            findings.push(place.finding(
                record,
                "one run only: how far runs differ is not known".into(),
                "the median of several runs, with their spread".into(),
            ));
        }
    }
    findings
}
