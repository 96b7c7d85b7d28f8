//! One experiment: its figures, its cells, its noise floor.

use std::collections::HashMap;
use std::fmt::Write;

use super::claims::{badge, number};
use super::escape::{clip, Shown};
use super::figure;
use super::p_value;
use super::page::prose;
use crate::experiment::Published;
use crate::result::{CellResult, ExperimentResult};
use crate::unit::{significant, Better};
use crate::value::Point;

/// Longer tables start folded.
const FOLD: usize = 40;

/// Writes the section whose anchor is `anchor`.
pub(super) fn section(out: &mut String, experiment: &ExperimentResult, anchor: &str) {
    let _ = write!(
        out,
        "<section id=\"{anchor}\" aria-labelledby=\"{anchor}-h\"><h2 id=\"{anchor}-h\"><bdi>{}</bdi></h2>\
         <p class=\"where\"><bdi class=\"id\">{}</bdi> <bdi>{}</bdi></p>",
        Shown(&clip(&experiment.title, 240)),
        Shown(&clip(&experiment.id, 120)),
        Shown(&clip(&experiment.source, 400)),
    );
    if !experiment.claims.is_empty() {
        out.push_str("<ul class=\"verdicts\" aria-label=\"Verdicts\">");
        for claim in &experiment.claims {
            let text = clip(&claim.text, 200);
            let _ = write!(
                out,
                "<li>{} <bdi>{}</bdi></li>",
                badge(claim.verdict),
                Shown(&text)
            );
        }
        out.push_str("</ul>");
    }
    let metrics = metrics(experiment);
    if metrics.is_empty() {
        out.push_str("<p class=\"empty\">No cell of this experiment was run.</p>");
    }
    for (number, metric) in metrics.iter().enumerate() {
        figure::figures(out, &format!("{anchor}-f{number}"), experiment, metric);
        cells(out, experiment, metric);
    }
    noise(out, experiment);
    out.push_str("<p class=\"back\"><a href=\"#claims\">Back to the claims</a></p></section>");
}

/// The metrics of the cells, in order, each once.
pub(super) fn metrics(experiment: &ExperimentResult) -> Vec<&str> {
    let mut metrics: Vec<&str> = Vec::new();
    for cell in &experiment.cells {
        if !metrics.contains(&cell.metric.as_str()) {
            metrics.push(&cell.metric);
        }
    }
    metrics
}

/// A point as JSON, as it stands in `data-at`.
pub(super) fn json(point: &Point) -> String {
    // A map of names to plain values always has a JSON form.
    serde_json::to_string(point).unwrap_or_default()
}

fn cells(out: &mut String, experiment: &ExperimentResult, metric: &str) {
    let cells: Vec<&CellResult> = experiment
        .cells
        .iter()
        .filter(|c| c.metric == metric)
        .collect();
    let Some(first) = cells.first() else { return };
    let mut published: HashMap<String, Vec<&Published>> = HashMap::new();
    for value in experiment.published.iter().filter(|p| p.metric == metric) {
        published.entry(json(&value.at)).or_default().push(value);
    }
    let name = clip(metric, 80);
    let direction = match first.better {
        Better::Higher => "higher is better",
        Better::Lower => "lower is better",
    };
    let folded = cells.len() > FOLD;
    let _ = write!(
        out,
        "<details class=\"cells\"{}><summary>Table of {} {}: <bdi>{}</bdi></summary>\
         <div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"Cells: {}\"><table>\
         <caption><bdi>{}</bdi> in {}, {direction}</caption><thead><tr>",
        if folded { "" } else { " open" },
        cells.len(),
        if cells.len() == 1 { "cell" } else { "cells" },
        Shown(&name),
        Shown(&name),
        Shown(&name),
        first.unit,
    );
    for axis in &experiment.axes {
        let _ = write!(
            out,
            "<th scope=\"col\"><bdi>{}</bdi></th>",
            Shown(&clip(&axis.name, 60))
        );
    }
    if experiment.axes.is_empty() {
        out.push_str("<th scope=\"col\">Cell</th>");
    }
    let works = cells.iter().any(|cell| cell.work_per_operation.is_some());
    let _ = write!(
        out,
        "<th scope=\"col\" class=\"n\">Median</th><th scope=\"col\" class=\"n\">95&nbsp;% interval</th>\
         <th scope=\"col\" class=\"n\">Rounds</th><th scope=\"col\" class=\"n\">Published</th>{}\
         <th scope=\"col\">Note</th></tr></thead><tbody>",
        if works {
            "<th scope=\"col\" class=\"n\">Work an operation</th>"
        } else {
            ""
        }
    );
    for cell in &cells {
        let mine = published.remove(&json(&cell.at)).unwrap_or_default();
        place(out, experiment, &cell.at);
        let _ = write!(
            out,
            "<td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">",
            number(cell.median),
            interval(cell.ci95),
            cell.n
        );
        listed(out, &mine);
        out.push_str("</td>");
        if works {
            let _ = write!(
                out,
                "<td class=\"n\">{}</td>",
                number(cell.work_per_operation)
            );
        }
        out.push_str("<td>");
        if cell.failed > 0 {
            let trials = if cell.failed == 1 { "trial" } else { "trials" };
            let _ = write!(
                out,
                "<p class=\"failed\">{} {trials} failed</p>",
                cell.failed
            );
        }
        for remark in cell.reason.iter().chain(&cell.notes) {
            prose(out, "reason", remark);
        }
        out.push_str("</td></tr>");
    }
    leftovers(out, experiment, metric, &published, works);
    out.push_str("</tbody></table></div></details>");
}

/// Published values of cells that this machine's matrix does not have, in file order.
fn leftovers(
    out: &mut String,
    experiment: &ExperimentResult,
    metric: &str,
    left: &HashMap<String, Vec<&Published>>,
    works: bool,
) {
    for value in experiment.published.iter().filter(|p| p.metric == metric) {
        if !left.contains_key(&json(&value.at)) {
            continue;
        }
        place(out, experiment, &value.at);
        let dash = number(None);
        let _ = write!(
            out,
            "<td class=\"n\">{dash}</td><td class=\"n\">{dash}</td><td class=\"n\">0</td><td class=\"n\">"
        );
        listed(out, &[value]);
        let _ = write!(
            out,
            "</td>{}<td><p class=\"reason\">not in this machine’s matrix</p></td></tr>",
            if works { "<td></td>" } else { "" }
        );
    }
}

fn listed(out: &mut String, published: &[&Published]) {
    if published.is_empty() {
        out.push_str(&number(None));
    }
    for value in published {
        let _ = match &value.source {
            Some(source) => write!(
                out,
                "<span title=\"{}\">{}</span> ",
                Shown(&clip(source, 200)),
                significant(value.value)
            ),
            None => write!(out, "{} ", significant(value.value)),
        };
    }
}

/// The first columns of a row: the point, one column an axis; a peer's name spans them.
fn place(out: &mut String, experiment: &ExperimentResult, at: &Point) {
    out.push_str("<tr>");
    let columns = experiment.axes.len().max(1);
    let whole = match at.beside() {
        Some(name) => Some(format!("beside: {name}")),
        None if experiment.axes.is_empty() => Some(at.to_string()),
        None => None,
    };
    if let Some(whole) = whole {
        let _ = write!(
            out,
            "<th scope=\"row\" colspan=\"{columns}\"><bdi>{}</bdi></th>",
            Shown(&clip(&whole, 120))
        );
        return;
    }
    for (index, axis) in experiment.axes.iter().enumerate() {
        let value = at.0.get(&axis.name);
        let words = value.map_or_else(|| "any".to_owned(), |value| value.to_string());
        let _ = if index == 0 {
            write!(
                out,
                "<th scope=\"row\"><bdi>{}</bdi></th>",
                Shown(&clip(&words, 120))
            )
        } else {
            write!(out, "<td><bdi>{}</bdi></td>", Shown(&clip(&words, 120)))
        };
    }
}

fn interval(ci95: Option<[f64; 2]>) -> String {
    match ci95 {
        Some([low, high]) => format!("{} … {}", significant(low), significant(high)),
        None => number(None),
    }
}

/// The A/A cell: how far the machine is from agreeing with itself.
fn noise(out: &mut String, experiment: &ExperimentResult) {
    if experiment.noise.is_empty() {
        return;
    }
    out.push_str(
        "<div class=\"scroll noise\" tabindex=\"0\" role=\"group\" aria-label=\"Noise floor\"><table>\
         <caption>Noise floor: the baseline against itself</caption><thead><tr>\
         <th scope=\"col\">Metric</th><th scope=\"col\">Cell</th><th scope=\"col\" class=\"n\">Second / first</th>\
         <th scope=\"col\" class=\"n\">95&nbsp;% interval</th><th scope=\"col\" class=\"n\">p</th>\
         <th scope=\"col\" class=\"n\">Rounds</th></tr></thead><tbody>",
    );
    for noise in &experiment.noise {
        let _ = write!(
            out,
            "<tr><th scope=\"row\"><bdi>{}</bdi></th><td><bdi>{}</bdi></td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            Shown(&clip(&noise.metric, 80)),
            Shown(&clip(&noise.at.to_string(), 200)),
            significant(noise.ratio),
            interval(Some(noise.ci95)),
            Shown(&p_value(noise.p)),
            noise.n
        );
    }
    out.push_str("</tbody></table></div>");
}
