//! What line figures and dot plots share: the sheet, its title, its key.

use std::fmt::Write;

use super::super::escape::Shown;
use super::label::{fit, width};
use super::mark::{Look, Way};
use super::number;
use super::plan::Panel;
use super::scale::Scale;
use crate::unit::{Better, Unit};

/// The width of every figure's view box.
pub(crate) const WIDTH: f64 = 680.0;

/// The height of a row of text.
pub(crate) const ROW: f64 = 20.0;

/// Where a text is held.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// A text of the class `class`, already cut to its room.
pub(crate) fn text(out: &mut String, (x, y): (f64, f64), class: &str, anchor: Anchor, words: &str) {
    let anchor = match anchor {
        Anchor::Start => "",
        Anchor::Middle => " text-anchor=\"middle\"",
        Anchor::End => " text-anchor=\"end\"",
    };
    let _ = write!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\"{anchor}>{}</text>",
        Shown(words)
    );
}

/// A line of the class `class`.
pub(crate) fn line(out: &mut String, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    let _ = write!(
        out,
        "<path class=\"{class}\" d=\"M{x1:.2} {y1:.2}L{x2:.2} {y2:.2}\"/>"
    );
}

/// The metric, its unit and its good direction, above the plot.
pub(crate) fn title(out: &mut String, panel: &Panel<'_>, unit: Option<&str>, log: bool) {
    let name = match unit {
        Some(unit) => format!("{} ({unit})", fit(panel.metric, 330.0)),
        None => fit(panel.metric, 380.0),
    };
    let _ = write!(
        out,
        "<text x=\"2\" y=\"15\"><tspan class=\"name\">{}</tspan><tspan class=\"dim\" dx=\"10\">{}{}</tspan></text>",
        Shown(&name),
        direction(panel.better),
        if log { " · logarithmic" } else { "" },
    );
}

/// The good direction in words, with an arrow.
pub(crate) fn direction(better: Better) -> &'static str {
    match better {
        Better::Higher => "higher is better ↑",
        Better::Lower => "lower is better ↓",
    }
}

/// The ticks of the values' axis, placed on a grid across the plot, and the unit for the title.
///
/// Each tick says its value in `data-tick`, so that a drawing can be measured against its axis.
pub(crate) struct Ticks {
    /// Value, label.
    pub(crate) at: Vec<(f64, String)>,
    pub(crate) unit: Option<&'static str>,
}

impl Ticks {
    pub(crate) fn of(scale: &Scale, unit: Unit, target: usize) -> Ticks {
        let ends = [scale.low, scale.high];
        let per = number::shown(unit, &ends, scale.log).map_or(1.0, |shown| shown.per);
        let values = scale.ticks(target, per);
        let (labels, shown) = number::labels(unit, &values, &ends, scale.log);
        Ticks {
            at: values.into_iter().zip(labels).collect(),
            unit: shown.map(|shown| shown.spelling),
        }
    }

    /// The widest label.
    pub(crate) fn width(&self) -> f64 {
        self.at.iter().map(|(_, l)| width(l)).fold(0.0, f64::max)
    }
}

/// Opens the drawing: name and description for those who do not see it, and how its values run.
pub(crate) fn open(
    out: &mut String,
    id: &str,
    panel: &Panel<'_>,
    height: f64,
    scale: &Scale,
    way: Way,
) {
    let _ = write!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\" \
         data-figure=\"{}\" data-scale=\"{}\" data-way=\"{}\"><title id=\"{id}-t\">{}</title>\
         <desc id=\"{id}-d\">{}</desc>",
        super::super::escape::Exact(panel.experiment),
        if scale.log { "log" } else { "linear" },
        match way {
            Way::Up => "up",
            Way::Right => "right",
        },
        Shown(&name(panel)),
        Shown(&super::description(panel, scale)),
    );
}

fn name(panel: &Panel<'_>) -> String {
    let metric = super::super::escape::clip(panel.metric, 120);
    if panel.part.is_empty() {
        return metric;
    }
    format!("{metric}, {}", super::super::escape::clip(&panel.part, 120))
}

/// What the kinds of marks mean.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Key {
    pub(crate) measured: bool,
    pub(crate) published: bool,
    pub(crate) dots: bool,
    pub(crate) missing: bool,
}

/// The key along the bottom, its text on the line `y`.
pub(crate) fn key(out: &mut String, key: Key, mut x: f64, y: f64) {
    let middle = y - 4.5;
    let entries = [
        (key.measured, "measured: median, 95 % interval"),
        (key.published, "published"),
        (key.dots, "one round"),
        (key.missing, "no value"),
    ];
    for (index, (shown, words)) in entries.into_iter().enumerate() {
        if !shown {
            continue;
        }
        let _ = write!(
            out,
            "<g class=\"key\" transform=\"translate({:.1} {middle:.1})\">",
            x + 6.0
        );
        out.push_str(match index {
            0 => "<path class=\"bar\" d=\"M0 -7V7M-3 -7h6M-3 7h6\"/><circle class=\"m\" r=\"4\"/>",
            1 => "<circle class=\"h\" r=\"6\"/>",
            2 => "<path class=\"dots\" d=\"M-4 2h0M0 -3h0M4 1h0\"/>",
            _ => "<path class=\"cross\" d=\"M-3.5 -3.5L3.5 3.5M-3.5 3.5L3.5 -3.5\"/>",
        });
        out.push_str("</g>");
        text(out, (x + 18.0, y), "dim", Anchor::Start, words);
        x += 18.0 + width(words) + 18.0;
    }
}

/// A series' sign and name, as labels and legends show it; `room` is for the words.
pub(crate) fn sign(out: &mut String, look: Look, words: &str, (x, y): (f64, f64), room: f64) {
    let _ = write!(
        out,
        "<g class=\"sign {}\"><path class=\"m\" transform=\"translate({:.1} {y:.1})\" d=\"{}\"/>",
        look.class(),
        x + 5.0,
        look.shape()
    );
    text(
        out,
        (x + 15.0, y + 4.5),
        "label",
        Anchor::Start,
        &fit(words, room),
    );
    out.push_str("</g>");
}
