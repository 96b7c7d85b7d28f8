//! Figures: SVG drawn from an experiment's cells, in the form that the data has.

pub(super) mod axis;
mod lines;
mod mark;
mod plan;
mod rows;
mod samples;
pub(super) mod scale;
mod shares;
mod words;

use maud::{html, Markup};

use self::plan::Form;
pub(super) use self::shares::draw as shares;
use self::words::{caption, Drawn};
use super::words::Exact;
use crate::result::ExperimentResult;
use crate::text::clip;

/// The figures of one metric of the experiment.
pub(super) fn figures(experiment: &ExperimentResult, metric: &str) -> Markup {
    html! {
        @for panel in &plan::panels(experiment, metric) {
            figure data-figure=(Exact(&experiment.id)) {
                @if !panel.part.is_empty() { p.part { bdi { (clip(&panel.part, 160)) } } }
                @if panel.values().is_empty() {
                    p.empty { "There are no measurements to draw." }
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
