//! Figures: SVG drawn from an experiment's cells, in the form that the data has.

pub(super) mod axis;
mod lines;
mod mark;
mod plan;
mod rows;
pub(super) mod scale;

use std::fmt::Write;

use maud::{html, Markup};

use self::plan::{Form, Panel};
use self::scale::Scale;
use super::words::{clip, Exact};
use crate::result::{CellResult, ExperimentResult};

/// More single rounds than this are not drawn one by one.
const DOTS: usize = 1500;

/// The figures of one metric of the experiment.
pub(super) fn figures(experiment: &ExperimentResult, metric: &str) -> Markup {
    html! {
        @for panel in &plan::panels(experiment, metric) {
            figure data-figure=(Exact(&experiment.id)) {
                @if !panel.part.is_empty() { p.part { bdi { (clip(&panel.part, 160)) } } }
                @if panel.values().is_empty() {
                    p.empty { "Nothing was measured here, so there is nothing to draw." }
                    (caption(panel, &Drawn::default()))
                } @else {
                    @let (drawing, drawn) = match &panel.form {
                        Form::Lines { axis, unit } => lines::draw(panel, axis, *unit),
                        Form::Rows { labels } => rows::draw(panel, labels),
                    };
                    (drawing)
                    (caption(panel, &drawn))
                }
            }
        }
    }
}

/// What a drawing left out and must say.
#[derive(Default)]
struct Drawn {
    /// Rounds outside the drawn range.
    outside: usize,
    /// The axis does not begin at zero.
    cut: bool,
}

/// Notes under the drawing: what is not to be seen in it.
fn caption(panel: &Panel<'_>, drawn: &Drawn) -> Markup {
    let mut notes = Vec::new();
    if drawn.cut {
        notes.push("The axis does not begin at zero.".to_owned());
    }
    match drawn.outside {
        0 => {}
        1 => notes.push("One round lies outside the drawn range.".to_owned()),
        n => notes.push(format!("{n} rounds lie outside the drawn range.")),
    }
    if panel.adrift > 0 {
        notes
            .push("Published values without a place on the axis are in the table only.".to_owned());
    }
    let missing: Vec<&CellResult> = panel.cells().filter(|c| c.median.is_none()).collect();
    if let [first, rest @ ..] = &missing[..] {
        let reason = match &first.reason {
            Some(reason) => format!(" ({})", clip(reason, 200)),
            None => String::new(),
        };
        let more = match rest.len() {
            0 => String::new(),
            n => format!(", and {n} more (see the table)"),
        };
        let at = clip(&first.at.to_string(), 120);
        notes.push(format!("No value: {at}{reason}{more}."));
    }
    html! {
        @if !notes.is_empty() { figcaption { bdi { (notes.join(" ")) } } }
    }
}

/// The figure in words.
fn description(panel: &Panel<'_>, scale: &Scale) -> String {
    let measured = panel.cells().filter(|cell| cell.median.is_some()).count();
    let mut text = match &panel.form {
        Form::Lines { axis, .. } => format!("Line figure over {}", clip(&axis.name, 60)),
        Form::Rows { labels } => format!("Dot plot of {} rows", labels.len() + panel.peers.len()),
    };
    let _ = write!(
        text,
        " in {}, {} scale: {measured} measured, {} published",
        panel.unit,
        if scale.log { "logarithmic" } else { "linear" },
        panel.published_count()
    );
    let names: Vec<String> = panel
        .series
        .iter()
        .map(|series| clip(&series.label, 40))
        .filter(|label| !label.is_empty())
        .take(12)
        .collect();
    if !names.is_empty() {
        let _ = write!(text, "; series: {}", names.join(", "));
    }
    text.push_str(". The table below has the numbers.");
    text
}

/// The single rounds of a panel, where there are few enough to show.
struct Samples {
    shown: bool,
}

impl Samples {
    fn of(panel: &Panel<'_>) -> Samples {
        let count: usize = panel.cells().map(|cell| cell.samples.len()).sum();
        let several = panel
            .cells()
            .any(|cell| cell.samples.iter().flatten().count() > 1);
        Samples {
            shown: several && count <= DOTS,
        }
    }

    fn shown(&self) -> bool {
        self.shown
    }

    /// The values that the scale must hold: all figures, and those rounds that are near enough
    /// to them not to squeeze them. The others are counted by [`Samples::place`].
    fn domain(&self, panel: &Panel<'_>) -> Vec<f64> {
        let mut values = panel.values();
        if self.shown {
            let most = values.iter().copied().fold(0.0f64, f64::max) * 1.25;
            let least = values.iter().copied().fold(f64::INFINITY, f64::min) / 1.25;
            let rounds = panel.cells().flat_map(|c| c.samples.iter().flatten());
            let near: Vec<f64> = rounds
                .copied()
                .filter(|v| (least..=most).contains(v))
                .collect();
            values.extend(near);
        }
        values
    }

    /// Hands over the pixel of each round of the cell; returns how many are out of range.
    fn place(&self, cell: &CellResult, scale: &Scale, mut dot: impl FnMut(f64)) -> usize {
        if !self.shown {
            return 0;
        }
        let (inside, outside): (Vec<f64>, Vec<f64>) = cell
            .samples
            .iter()
            .flatten()
            .partition(|&&value| scale.holds(value));
        inside.into_iter().for_each(|value| dot(scale.at(value)));
        outside.len()
    }
}
