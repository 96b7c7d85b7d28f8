//! Comma-separated values (RFC 4180) for programs: the samples, and the claims and targets.
//! Numbers are whole, in the unit that the line names; a value that is missing is an empty field.

use crate::experiment::Standing;
use crate::result::RunResult;
use crate::unit::Better;

use super::table;
use super::words::ends;

/// Every sample of the run, one line per cell, metric and round, where `at` is the point as JSON.
/// A cell that never ran has one line with both `round` and `value` empty. `failed` is the number
/// of the cell's trials that failed, `reason` says why it has no figure.
pub fn csv(result: &RunResult) -> String {
    let mut out = String::new();
    line(
        &mut out,
        [
            "experiment",
            "at",
            "metric",
            "unit",
            "better",
            "round",
            "value",
            "failed",
            "reason",
        ],
    );
    for experiment in &result.experiments {
        for cell in &experiment.cells {
            let better = match cell.better {
                Better::Higher => "higher",
                Better::Lower => "lower",
            };
            let at = table::json(&cell.at);
            let failed = cell.failed.to_string();
            let mut sample = |round: &str, value: &str| {
                let reason = &cell.remark();
                let (id, unit) = (experiment.id.as_str(), cell.unit.spelling());
                let metric = cell.metric.as_str();
                line(
                    &mut out,
                    [id, &at, metric, unit, better, round, value, &failed, reason],
                );
            };
            if cell.samples.is_empty() {
                sample("", "");
            }
            for (round, value) in cell.samples.iter().enumerate() {
                sample(&round.to_string(), &number(*value));
            }
        }
    }
    out
}

/// Every claim and every target of the run, one line each, told apart by `standing`. An end of
/// the interval that is unbounded is an empty field.
pub fn claims_csv(result: &RunResult) -> String {
    let mut out = String::new();
    line(
        &mut out,
        [
            "standing",
            "id",
            "verdict",
            "text",
            "source",
            "criterion",
            "at_least",
            "at_most",
            "unit",
            "published",
            "measured",
            "low",
            "high",
            "p",
            "p_corrected",
            "rounds",
            "failed",
            "failures",
            "reason",
        ],
    );
    for (name, standing) in [("claim", Standing::Claim), ("target", Standing::Target)] {
        for (_, claim) in table::statements(result, standing) {
            let failed: usize = claim.failures.iter().map(|failures| failures.failed).sum();
            let failures: Vec<String> = claim.failures.iter().map(table::failed).collect();
            let [low, high] = ends(claim.ci95).map(number);
            let source = match standing {
                Standing::Claim => claim.source.as_str(),
                Standing::Target => "",
            };
            line(
                &mut out,
                [
                    name,
                    &claim.id,
                    &claim.verdict.to_string(),
                    &claim.text,
                    source,
                    &claim.criterion,
                    &number(claim.threshold.at_least),
                    &number(claim.threshold.at_most),
                    claim.unit.spelling(),
                    &number(claim.published),
                    &number(claim.measured),
                    &low,
                    &high,
                    &number(claim.p),
                    &number(claim.p_holm),
                    &claim.n.to_string(),
                    &failed.to_string(),
                    &failures.join("; "),
                    claim.reason.as_deref().unwrap_or(""),
                ],
            );
        }
    }
    out
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

fn line<const N: usize>(out: &mut String, fields: [&str; N]) {
    for (place, text) in fields.into_iter().enumerate() {
        if place > 0 {
            out.push(',');
        }
        if text.contains(['"', ',', '\r', '\n']) {
            out.push('"');
            out.push_str(&text.replace('"', "\"\""));
            out.push('"');
        } else {
            out.push_str(text);
        }
    }
    out.push_str("\r\n");
}
