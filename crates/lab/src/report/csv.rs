//! Comma-separated values (RFC 4180) for programs: the samples, and the claims and targets.
//! Numbers are whole, in the unit that the line names; a value that is missing is an empty field.
//! Control characters, line breaks among them, are replaced.

use crate::experiment::Standing;
use crate::result::{CellResult, Evidence, ExperimentResult, RunResult};
use crate::text::clean;
use crate::unit::Better;

use super::table::{self, Cell, Kind, Row, Table};
use super::words::ends;

/// Every sample of the run, one line per cell, metric and round, where `at` is the point as JSON.
/// A cell that never ran has one line with both `round` and `value` empty. `failed` is the number
/// of the cell's trials that failed, `reason` says why they did or why it has no figure.
pub fn csv(result: &RunResult) -> String {
    let columns = [
        ("experiment", Kind::Words),
        ("at", Kind::Words),
        ("metric", Kind::Words),
        ("unit", Kind::Words),
        ("better", Kind::Words),
        ("round", Kind::Figure),
        ("value", Kind::Figure),
        ("failed", Kind::Figure),
        ("reason", Kind::Words),
    ];
    let mut table = Table::new("Samples", &columns);
    for experiment in &result.experiments {
        for cell in &experiment.cells {
            let better = match cell.better {
                Better::Higher => "higher",
                Better::Lower => "lower",
            };
            let remark = remark(experiment, cell);
            let mut sample = |round: String, value: String| {
                table.rows.push(row([
                    experiment.id.as_str().into(),
                    table::json(&cell.at).into(),
                    cell.metric.as_str().into(),
                    cell.unit.spelling().into(),
                    better.into(),
                    round.into(),
                    value.into(),
                    cell.failed.to_string().into(),
                    remark.as_str().into(),
                ]));
            };
            if cell.samples.is_empty() {
                sample(String::new(), String::new());
            }
            for (round, value) in cell.samples.iter().enumerate() {
                sample(round.to_string(), number(*value));
            }
        }
    }
    render(&table)
}

/// The remark on a cell; where a part of its trials failed, why.
fn remark(experiment: &ExperimentResult, cell: &CellResult) -> String {
    let failures = experiment.failures.iter().find(|it| it.at == cell.at);
    let failed = failures
        .filter(|_| cell.reason.is_none())
        .map(table::failed)
        .into_iter();
    let remark = Some(cell.remark()).filter(|remark| !remark.is_empty());
    failed.chain(remark).collect::<Vec<_>>().join("; ")
}

/// Every claim and every target of the run, one line each, told apart by `standing`. An end of
/// the interval that is unbounded is an empty field.
pub fn claims_csv(result: &RunResult) -> String {
    let columns = [
        ("standing", Kind::Words),
        ("id", Kind::Words),
        ("verdict", Kind::Words),
        ("text", Kind::Words),
        ("source", Kind::Words),
        ("criterion", Kind::Words),
        ("at_least", Kind::Figure),
        ("at_most", Kind::Figure),
        ("unit", Kind::Words),
        ("published", Kind::Figure),
        ("measured", Kind::Figure),
        ("low", Kind::Figure),
        ("high", Kind::Figure),
        (Evidence::FIELDS[0], Kind::Figure),
        (Evidence::FIELDS[1], Kind::Figure),
        ("rounds", Kind::Figure),
        ("failed", Kind::Figure),
        ("failures", Kind::Words),
        ("reason", Kind::Words),
    ];
    let mut table = Table::new("Claims and targets", &columns);
    for (name, standing) in [("claim", Standing::Claim), ("target", Standing::Target)] {
        for (_, claim) in table::statements(result, standing) {
            let failed: usize = claim.failures.iter().map(|failures| failures.failed).sum();
            let failures: Vec<String> = claim.failures.iter().map(table::failed).collect();
            let [low, high] = ends(claim.ci95).map(number);
            let [p, p_corrected] = claim.evidence.fields().map(number);
            let source = match standing {
                Standing::Claim => claim.source.as_str(),
                Standing::Target => "",
            };
            table.rows.push(row([
                name.into(),
                claim.id.as_str().into(),
                claim.verdict.to_string().into(),
                claim.text.as_str().into(),
                source.into(),
                claim.criterion.as_str().into(),
                number(claim.threshold.at_least).into(),
                number(claim.threshold.at_most).into(),
                claim.unit.spelling().into(),
                number(claim.published).into(),
                number(claim.measured).into(),
                low.into(),
                high.into(),
                p.into(),
                p_corrected.into(),
                claim.n.to_string().into(),
                failed.to_string().into(),
                failures.join("; ").into(),
                claim.reason.as_deref().unwrap_or("").into(),
            ]));
        }
    }
    render(&table)
}

fn row<const COLUMNS: usize>(cells: [Cell; COLUMNS]) -> Row {
    Row {
        cells: cells.into(),
        ..Row::default()
    }
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// A table as lines of fields, the heads of its columns first.
fn render(table: &Table) -> String {
    let mut out = String::new();
    line(&mut out, table.columns.iter().map(|column| &*column.head));
    for row in &table.rows {
        line(&mut out, row.cells.iter().map(|cell| &*cell.text));
    }
    out
}

fn line<'a>(out: &mut String, fields: impl Iterator<Item = &'a str>) {
    for (place, text) in fields.enumerate() {
        if place > 0 {
            out.push(',');
        }
        // No field has a line break: `clean` makes it a space.
        let text = clean(text);
        if text.contains(['"', ',']) {
            out.push('"');
            out.push_str(&text.replace('"', "\"\""));
            out.push('"');
        } else {
            out.push_str(&text);
        }
    }
    out.push_str("\r\n");
}
