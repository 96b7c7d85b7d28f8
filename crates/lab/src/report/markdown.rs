//! The run as Markdown: the claims, then the cells, as tables that GitHub and mdBook show.

use std::fmt::Write;

use super::claims::figure;
use super::escape::visible;
use super::{p_value, section, summary, symbol, words};
use crate::result::{CellResult, ExperimentResult, RunResult};
use crate::unit::{significant, Better};

/// The run as Markdown; text from outside stays text.
pub fn markdown(result: &RunResult) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "# {}\n\n{}.\n", plain(&result.run), summary(result));
    if !result.complete {
        out.push_str("**Incomplete**: the run was stopped before its last trial.\n\n");
    }
    out.push_str(
        "| Verdict | Claim | Source | Published | Measured | 95 % interval | Criterion | p (Holm) | Rounds | Reason |\n\
         |---|---|---|--:|--:|--:|---|--:|--:|---|\n",
    );
    for claim in result.experiments.iter().flat_map(|e| &e.claims) {
        let _ = writeln!(
            out,
            "| {} {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            symbol(claim.verdict),
            words(claim.verdict),
            plain(&claim.text),
            plain(&claim.source),
            figure(claim, claim.published),
            figure(claim, claim.measured),
            interval(claim.ci95),
            plain(&claim.criterion),
            claim
                .p_holm
                .map_or_else(|| "–".to_owned(), |p| plain(&p_value(p))),
            claim.n,
            plain(claim.reason.as_deref().unwrap_or("")),
        );
    }
    for experiment in &result.experiments {
        let _ = writeln!(
            out,
            "\n## {}\n\n{} ({})",
            plain(&experiment.title),
            plain(&experiment.source),
            plain(&experiment.id)
        );
        for metric in section::metrics(experiment) {
            cells(&mut out, experiment, metric);
        }
    }
    out
}

fn cells(out: &mut String, experiment: &ExperimentResult, metric: &str) {
    let cells: Vec<&CellResult> = experiment
        .cells
        .iter()
        .filter(|c| c.metric == metric)
        .collect();
    let Some(first) = cells.first() else { return };
    let direction = match first.better {
        Better::Higher => "higher is better",
        Better::Lower => "lower is better",
    };
    let _ = write!(
        out,
        "\n{} in {}, {direction}:\n\n| Cell | Median | 95 % interval | Rounds | Published | Note |\n\
         |---|--:|--:|--:|--:|---|\n",
        plain(metric),
        first.unit
    );
    for cell in cells {
        let mut published = experiment
            .published
            .iter()
            .filter(|p| p.metric == metric && p.at == cell.at);
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} |",
            plain(&cell.at.to_string()),
            number(cell.median),
            interval(cell.ci95),
            cell.n,
            number(published.next().map(|p| p.value)),
            plain(&cell.remark()),
        );
    }
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), significant)
}

fn interval(ci95: Option<[f64; 2]>) -> String {
    match ci95 {
        Some([low, high]) => format!("{} … {}", significant(low), significant(high)),
        None => "–".to_owned(),
    }
}

/// Text in which nothing is markup.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars().map(visible) {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '~' | '!' => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}
