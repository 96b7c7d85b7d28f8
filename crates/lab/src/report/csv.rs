//! The samples as comma-separated values (RFC 4180): one line a cell, metric and round.

use std::fmt::Write;

use crate::result::RunResult;
use crate::unit::Better;

/// Every sample of the run: `experiment,at,metric,unit,better,round,value`, where `at` is the
/// point as JSON and a round without a value has an empty `value`. A cell that never ran has one
/// line with both `round` and `value` empty.
pub fn csv(result: &RunResult) -> String {
    let mut out = String::from("experiment,at,metric,unit,better,round,value\r\n");
    for experiment in &result.experiments {
        for cell in &experiment.cells {
            let mut head = String::new();
            field(&mut head, &experiment.id);
            head.push(',');
            field(&mut head, &super::section::json(&cell.at));
            head.push(',');
            field(&mut head, &cell.metric);
            let better = match cell.better {
                Better::Higher => "higher",
                Better::Lower => "lower",
            };
            let _ = write!(head, ",{},{better},", cell.unit);
            if cell.samples.is_empty() {
                let _ = write!(out, "{head},\r\n");
            }
            for (round, sample) in cell.samples.iter().enumerate() {
                let _ = match sample {
                    Some(value) => write!(out, "{head}{round},{value}\r\n"),
                    None => write!(out, "{head}{round},\r\n"),
                };
            }
        }
    }
    out
}

fn field(out: &mut String, text: &str) {
    if !text.contains(['"', ',', '\r', '\n']) {
        out.push_str(text);
        return;
    }
    out.push('"');
    out.push_str(&text.replace('"', "\"\""));
    out.push('"');
}
