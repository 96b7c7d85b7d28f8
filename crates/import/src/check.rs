//! The checks: what is wrong with figures, by the records of any format.

mod known;

use std::collections::{BTreeMap, HashSet};

use crate::format::Format;
use crate::record::Statistic::{Mean, Progress, Sample, Total};
use crate::record::{Finding, Input, Parameters, Record, Run};
use crate::unit::Unit;

/// The most findings of one problem in one run that are listed one by one.
pub(crate) const SAME_MAX: usize = 20;

/// The share by which a product may differ from what it is the product of, beyond rounding.
const TOLERANCE: f64 = 0.005;

/// A run that is checked, and what was found in it.
struct Checked<'a> {
    input: &'a Input,
    run: &'a Run,
    format: &'static Format,
    found: Vec<Finding>,
}

impl Checked<'_> {
    fn add(&mut self, record: &Record, problem: impl Into<String>, should_be: impl Into<String>) {
        self.found.push(Finding {
            file: self.input.file.clone(),
            line: record.line,
            figure: shown(record),
            problem: problem.into(),
            should_be: should_be.into(),
        });
    }

    /// Makes a check, and shortens what it finds.
    fn make(&mut self, check: fn(&mut Self)) {
        let most = self.found.len() + SAME_MAX;
        check(self);
        let rest = self.found.len().saturating_sub(most);
        self.found.truncate(most);
        if let (Some(last), true) = (self.found.last_mut(), rest > 0) {
            last.problem += &format!(" (and so are {rest} more of this run)");
        }
    }
}

/// Finds what is wrong with the figures of these inputs, and with comparing them. In the order of
/// the files and their lines.
pub fn check(inputs: &[Input]) -> Vec<Finding> {
    let mut all = Vec::new();
    for input in inputs {
        all.extend(input.runs.iter().filter_map(|run| {
            Some(Checked {
                input,
                run,
                format: Format::named(run.format)?,
                found: Vec::new(),
            })
        }));
    }
    for checked in &mut all {
        for check in [
            units,
            values,
            more_received_than_sent,
            products,
            averages,
            known::hits,
            known::totals,
            known::counted,
            known::flaws,
            known::index,
            known::frequency,
            known::accumulation,
            known::shares,
            known::modelled,
        ] {
            checked.make(check);
        }
    }
    bytes_per_response(&mut all);
    repetitions(&mut all);
    let mut findings = Vec::new();
    for input in inputs {
        let of_input = all.iter().filter(|c| std::ptr::eq(c.input, input));
        let mut found = input.findings.clone();
        if let (Some(last), true) = (found.get_mut(SAME_MAX - 1), input.errors > SAME_MAX) {
            let rest = input.errors - SAME_MAX;
            last.problem += &format!(" (and so do {rest} more of its lines)");
        }
        found.extend(of_input.flat_map(|checked| checked.found.clone()));
        found.sort_by_key(|finding| finding.line);
        findings.append(&mut found);
    }
    findings
}

/// A figure as the log has it: `latency_p99 12.863 ms`.
pub(crate) fn shown(record: &Record) -> String {
    let unit = record.printed_unit.unwrap_or(record.unit.name);
    let text = format!("{} {} {unit}", record.name(), plain(record.value));
    text.trim_end().to_owned()
}

/// A number with at most six decimals.
fn plain(value: f64) -> String {
    let text = format!("{value:.6}");
    match text.trim_end_matches('0').trim_end_matches('.') {
        "-0" => "0".to_owned(),
        text => text.to_owned(),
    }
}

/// A number, which is finite, with six significant digits.
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

/// The total or mean of a figure in a group.
fn one<'a>(records: &[&'a Record], figure: &str) -> Option<&'a Record> {
    let is = |r: &&Record| r.figure == figure && matches!(r.statistic, Total | Mean);
    records.iter().copied().find(is)
}

/// Decimal units that are binary, and figures without a unit. Once for each figure of a run.
fn units(checked: &mut Checked<'_>) {
    let run = checked.run;
    let mut seen = HashSet::new();
    for record in &run.records {
        let unit = record.unit;
        if !seen.insert((record.figure, unit.name, record.printed_unit)) {
            continue;
        }
        if unit.name.is_empty() {
            let mut others = run.all(record.figure).filter(|r| !r.unit.name.is_empty());
            let should_be = match others.next() {
                Some(like) if others.all(|other| other.unit == like.unit) => {
                    format!("in {}, as on line {}", like.unit, like.line)
                }
                _ => "printed with its unit".to_owned(),
            };
            checked.add(record, "no unit is printed", should_be);
        }
        let decimal = record.printed_unit.filter(|name| !name.contains('i'));
        let binary = unit.decimal();
        let binary = binary.filter(|(_, factor)| (record.value * factor).is_finite());
        if let (Some(printed), Some((decimal, factor))) = (decimal, binary) {
            let problem =
                format!("{printed} stands for {unit}: the program divides by powers of 1024");
            let (value, right) = (plain(record.value), rounded(record.value * factor));
            let should_be = format!("{value} {unit}, which is {right} {decimal}");
            checked.add(record, problem, should_be);
        }
    }
}

fn more_received_than_sent(checked: &mut Checked<'_>) {
    for records in groups(checked.run).into_values() {
        let of = |way, what| {
            let is = |r: &&&Record| r.figure.strip_prefix(way) == Some(what);
            records.iter().rfind(is).copied()
        };
        // Bytes only where no packets are counted: they are the same finding.
        let pair = |what| of("sent_", what).zip(of("received_", what));
        let pair = ["packets", "messages", "bytes"].into_iter().find_map(pair);
        let Some((sent, received)) = pair.filter(|(sent, got)| got.value > sent.value) else {
            continue;
        };
        let more = received.value - sent.value;
        let (unit, cause) = match (sent.unit.is_data(), more) {
            (true, 24.0) => (" B", ": the close message of TLS was counted as data"),
            (true, _) => (" B", ""),
            (false, _) => ("", ""),
        };
        let (more, most, line) = (plain(more), plain(sent.value), sent.line);
        let problem = format!("{more}{unit} more were received than sent{cause}");
        let should_be = format!("at most {most}{unit}, as sent on line {line}");
        checked.add(received, problem, should_be);
    }
}

/// Amounts, times and rates that do not multiply.
fn products(checked: &mut Checked<'_>) {
    for records in groups(checked.run).into_values() {
        let of = |figure| one(&records, figure);
        let positive = |figure| of(figure).filter(|r| r.base() > 0.0);
        for [amount, time, rate] in &checked.format.products {
            let all = (of(amount), positive(time), positive(rate));
            let (Some(amount), Some(time), Some(rate)) = all else {
                continue;
            };
            let rounding = |r: &Record| r.resolution / r.value.abs().max(r.resolution);
            let tolerance = TOLERANCE + rounding(amount) + rounding(time) + rounding(rate);
            let right = amount.base() / time.base();
            let parts = format!("{} / {}", shown(amount), shown(time));
            if rate.unit.is_rate_of(amount.unit) {
                multiplies(checked, rate, right, tolerance, &parts);
            }
        }
        // The bytes of one operation, its time and the rate, where operations follow each other.
        let size = records.first().and_then(|r| r.parameters.get("size"));
        let size = size.and_then(|size| size.parse::<f64>().ok());
        let figures = (size, positive("latency"), of("throughput"));
        if let (Some(size), Some(latency), Some(rate)) = figures {
            if rate.unit.is_rate_of(Unit::named("B")) {
                let parts = format!("{size} B / {}", shown(latency));
                multiplies(checked, rate, size / latency.base(), 0.01, &parts);
            }
        }
    }
}

fn multiplies(checked: &mut Checked<'_>, rate: &Record, right: f64, tolerance: f64, parts: &str) {
    let of_unit = rate.unit.of_base(right);
    if of_unit.is_finite() && (rate.base() / right - 1.0).abs() > tolerance {
        let should_be = format!("{} {}", rounded(of_unit), rate.unit);
        checked.add(rate, format!("it is not {parts}"), should_be);
    }
}

/// Averages of which no spread is known. Once for each figure of a run.
fn averages(checked: &mut Checked<'_>) {
    let should_be = "printed with percentiles, or a standard deviation and the number of samples";
    let groups = groups(checked.run);
    let mut seen = HashSet::new();
    for mean in checked.run.records.iter().filter(|r| r.statistic == Mean) {
        let group = groups[&mean.parameters].iter();
        let same = || group.clone().filter(|r| r.figure == mean.figure);
        let has_spread = same().any(|r| !matches!(r.statistic, Mean | Total | Progress));
        let means = same().filter(|r| r.statistic == Mean).take(2).count();
        if !has_spread && means == 1 && seen.insert(mean.figure) {
            checked.add(mean, "an average without spread", should_be);
        }
    }
}

/// Figures that are wrong by themselves: the problem, and what they should be.
fn values(checked: &mut Checked<'_>) {
    for record in &checked.run.records {
        let (problem, should_be) = match (record.figure, record.value) {
            (figure, ..0.0) if figure.starts_with("lost_") => (
                "the loss is negative: packets of an earlier trial, or of others, were counted",
                "the packets of this trial that did not arrive, at least 0, and the others counted \
                 apart",
            ),
            (figure, 0.0..) if figure.ends_with("_errors") && record.value > 0.0 => (
                "requests that failed are among those counted",
                "0, or the rate of the responses that succeeded",
            ),
            ("requests", 0.0) => (
                "no request was completed, so the latencies are of none",
                "a run in which requests are completed",
            ),
            _ => continue,
        };
        checked.add(record, problem, should_be);
    }
}

/// Runs of one format whose responses differ in size.
fn bytes_per_response(all: &mut [Checked<'_>]) {
    let mut firsts: BTreeMap<&str, (f64, String)> = BTreeMap::new();
    for checked in all {
        let run = checked.run;
        let work = checked.format.work;
        let bytes = work.and_then(|[bytes, _]| run.find(bytes, Total));
        let (Some(bytes), Some((total, responses @ 1..))) = (bytes, run.work()) else {
            continue;
        };
        let each = total as f64 / responses as f64;
        let place = format!("{}:{}", checked.input.file, bytes.line);
        let (of_first, first) = firsts.entry(run.format).or_insert((each, place));
        if (each / *of_first - 1.0).abs() > 0.01 {
            let (each, of_first) = (each.round(), of_first.round());
            let problem = format!(
                "{each} B per response, and {of_first} B in the run of {first}: not the same \
                 work, so the rates cannot be compared"
            );
            // The work is on the line of the bytes.
            let mut rate = run.find("request_rate", Total).unwrap_or(bytes).clone();
            rate.line = bytes.line;
            checked.add(&rate, problem, "measured with the same response");
        }
    }
}

/// Runs that were made once, and two runs whose every figure is the same: one run, printed twice.
fn repetitions(all: &mut [Checked<'_>]) {
    let summary = |r: &&Record| !matches!(r.statistic, Progress | Sample);
    let mut seen: BTreeMap<_, (usize, String)> = BTreeMap::new();
    let mut times: BTreeMap<_, usize> = BTreeMap::new();
    let mut originals = Vec::new();
    for (place, checked) in all.iter_mut().enumerate() {
        let run = checked.run;
        let records: Vec<&Record> = run.records.iter().filter(summary).collect();
        let figures = records.iter().map(|r| (r.name(), r.value.to_bits()));
        let key = (run.format, figures.collect::<Vec<_>>());
        let this = || (place, format!("{}:{}", checked.input.file, run.line));
        let (of_first, first) = seen.entry(key).or_insert_with(this);
        // Few figures may be equal by chance.
        if *of_first != place && records.len() >= 8 {
            let problem =
                format!("every figure is that of the run of {first}: one run, printed twice");
            checked.add(records[0], problem, "a run of its own");
            continue;
        }
        originals.push(place);
        for record in records {
            let key = (run.format, record.name(), &record.parameters);
            *times.entry(key).or_default() += 1;
        }
    }
    for place in originals {
        let checked = &mut all[place];
        let run = checked.run;
        let is_once = |r: &&Record| times[&(run.format, r.name(), &r.parameters)] == 1;
        // A program that prints its best and its worst run has made several.
        let is_of_several = |r: &Record| r.parameters.contains_key("results");
        let mut once = run.records.iter().filter(summary).filter(is_once);
        let once = once.find(|r| !checked.format.repeats && !is_of_several(r));
        if let Some(record) = once {
            let problem = "one run only: how far runs differ is not known";
            let should_be = "the median of several runs, with their spread";
            checked.add(record, problem, should_be);
        }
    }
}
