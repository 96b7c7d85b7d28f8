//! A figure in words: its description, and the notes under the drawing.

use std::fmt::Write;

use maud::{html, Markup};

use super::plan::{Form, Panel};
use super::scale::Scale;
use crate::result::CellResult;
use crate::text::clip;

/// The omissions of a drawing, which its caption must state.
#[derive(Default)]
pub(crate) struct Drawn {
    /// Rounds outside the drawn range.
    pub(crate) outside: usize,
    /// The axis does not begin at zero.
    pub(crate) cut: bool,
}

/// Notes under the drawing: what is not to be seen in it.
pub(crate) fn caption(panel: &Panel<'_>, drawn: &Drawn) -> Markup {
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
pub(crate) fn description(panel: &Panel<'_>, scale: &Scale) -> String {
    let measured = panel.cells().filter(|cell| cell.median.is_some()).count();
    let mut text = match &panel.form {
        Form::Lines { axis, .. } => format!("Line figure over {}", clip(&axis.name, 60)),
        Form::Rows { labels } => {
            format!("Dot plot of {} rows", labels.len() + panel.references.len())
        }
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
