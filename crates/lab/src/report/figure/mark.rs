//! The marks of a figure: shapes, error bars, and the data that each one carries.

use std::fmt::Write;

use super::super::escape::{Exact, Shown};
use super::super::section::json;
use crate::experiment::Published;
use crate::result::CellResult;
use crate::unit::Unit;

/// Colours of the palette; the style sheet has as many classes `s0`, `s1`, …
const COLOURS: usize = 6;

/// Shapes, each centred on the origin, about 9 wide.
const SHAPES: [&str; 6] = [
    "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z",
    "M-4 -4h8v8h-8z",
    "M0 -5.2L4.8 3.6H-4.8z",
    "M0 -5.6L5.2 0L0 5.6L-5.2 0z",
    "M0 5.2L4.8 -3.6H-4.8z",
    "M-5 -1.8h3.2v-3.2h3.6v3.2h3.2v3.6h-3.2v3.2h-3.6v-3.2h-3.2z",
];

/// Which colour and shape a series has: no two of the first 36 share both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// A series of the matrix, by its number.
    Series(usize),
    /// A peer.
    Peer,
}

impl Look {
    /// The class that gives the colour.
    pub(crate) fn class(self) -> String {
        match self {
            Look::Series(number) => format!("s{}", number % COLOURS),
            Look::Peer => "peer".to_owned(),
        }
    }

    /// The outline of the marker.
    pub(crate) fn shape(self) -> &'static str {
        match self {
            Look::Series(number) => SHAPES[(number + number / COLOURS) % SHAPES.len()],
            Look::Peer => SHAPES[3],
        }
    }
}

/// Which way values run in a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Up,
    Right,
}

/// A measured mark: the marker at (`x`, `y`), its interval `bar` (pixels along the values' way),
/// and the cell's own data.
pub(crate) fn measured(
    out: &mut String,
    experiment: &str,
    cell: &CellResult,
    look: Look,
    (x, y): (f64, f64),
    bar: Option<[f64; 2]>,
    way: Way,
) {
    let Some(median) = cell.median else { return };
    let _ = write!(
        out,
        "<g class=\"mark {}\" transform=\"translate({x:.2} {y:.2})\" data-experiment=\"{}\" \
         data-metric=\"{}\" data-at=\"{}\" data-value=\"{median}\"",
        look.class(),
        Exact(experiment),
        Exact(&cell.metric),
        Exact(&json(&cell.at)),
    );
    if let Some([low, high]) = cell.ci95 {
        let _ = write!(out, " data-low=\"{low}\" data-high=\"{high}\"");
    }
    let _ = write!(out, "><title>{}</title>", Shown(&tooltip(cell, median)));
    if let Some([low, high]) = bar {
        let _ = match way {
            Way::Up => write!(
                out,
                "<path class=\"bar\" d=\"M0 {0:.2}V{1:.2}M-3.5 {0:.2}h7M-3.5 {1:.2}h7\"/>",
                low - y,
                high - y
            ),
            Way::Right => write!(
                out,
                "<path class=\"bar\" d=\"M{0:.2} 0H{1:.2}M{0:.2} -3.5v7M{1:.2} -3.5v7\"/>",
                low - x,
                high - x
            ),
        };
    }
    let _ = write!(out, "<path class=\"m\" d=\"{}\"/></g>", look.shape());
}

fn tooltip(cell: &CellResult, median: f64) -> String {
    let mut text = super::super::escape::clip(&cell.at.to_string(), 300);
    let _ = write!(text, ": {}", cell.unit.show(median));
    if let Some([low, high]) = cell.ci95 {
        let _ = write!(
            text,
            ", 95 % interval {} to {}",
            cell.unit.show(low),
            cell.unit.show(high)
        );
    }
    let _ = write!(text, ", n = {}", cell.n);
    if cell.failed > 0 {
        let _ = write!(text, ", {} failed", cell.failed);
    }
    text
}

/// A published value: hollow, a little larger, so that it shows around a measured one.
pub(crate) fn published(
    out: &mut String,
    experiment: &str,
    published: &Published,
    unit: Unit,
    look: Look,
    (x, y): (f64, f64),
) {
    let _ = write!(
        out,
        "<g class=\"published {}\" transform=\"translate({x:.2} {y:.2})\" \
         data-published-experiment=\"{}\" data-metric=\"{}\" data-at=\"{}\" data-value=\"{}\">\
         <title>{}: published {}{}</title><path class=\"h\" transform=\"scale(1.45)\" d=\"{}\"/></g>",
        look.class(),
        Exact(experiment),
        Exact(&published.metric),
        Exact(&json(&published.at)),
        published.value,
        Shown(&super::super::escape::clip(&published.at.to_string(), 300)),
        Shown(&unit.show(published.value)),
        Shown(&match &published.source {
            Some(source) => format!(" ({})", super::super::escape::clip(source, 200)),
            None => String::new(),
        }),
        look.shape(),
    );
}

/// A cell without a value: a cross where the axis begins. It has no `data-value`.
pub(crate) fn missing(out: &mut String, experiment: &str, cell: &CellResult, x: f64, y: f64) {
    let reason = cell.reason.as_deref().unwrap_or("no value");
    let _ = write!(
        out,
        "<g class=\"missing\" transform=\"translate({x:.2} {y:.2})\" \
         data-missing-experiment=\"{}\" data-metric=\"{}\" data-at=\"{}\"><title>{}: no value. {}</title>\
         <path d=\"M-3.5 -3.5L3.5 3.5M-3.5 3.5L3.5 -3.5\"/></g>",
        Exact(experiment),
        Exact(&cell.metric),
        Exact(&json(&cell.at)),
        Shown(&super::super::escape::clip(&cell.at.to_string(), 300)),
        Shown(&super::super::escape::clip(reason, 300)),
    );
}

/// Single rounds as faint dots, in one path.
pub(crate) fn dots(out: &mut String, look: Look, dots: &[(f64, f64)]) {
    if dots.is_empty() {
        return;
    }
    let _ = write!(out, "<path class=\"dots {}\" d=\"", look.class());
    for (x, y) in dots {
        let _ = write!(out, "M{x:.1} {y:.1}h0");
    }
    out.push_str("\"/>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_of_36_series_look_alike() {
        let looks: std::collections::HashSet<_> = (0..36)
            .map(|n| (Look::Series(n).class(), Look::Series(n).shape()))
            .collect();
        assert_eq!(looks.len(), 36);
    }
}
