//! The marks of a figure: shapes, error bars, and the data that each one carries.

use maud::{html, Markup};

use super::scale::{percent, pixels, Scale};
use crate::experiment::Published;
use crate::report::table::json;
use crate::report::words::{ends, interval, Exact};
use crate::result::CellResult;
use crate::text::{clean, clip};
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

/// The colour and shape of a series: no two of the first 36 share both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// A series of the matrix, by its number.
    Series(usize),
    /// A reference, by its number.
    Reference(usize),
}

impl Look {
    /// The class that gives the colour.
    pub(crate) fn class(self) -> String {
        match self {
            Look::Series(number) => format!("s{}", number % COLOURS),
            Look::Reference(_) => "ref".to_owned(),
        }
    }

    /// The outline of the marker.
    pub(crate) fn shape(self) -> &'static str {
        match self {
            Look::Series(number) => SHAPES[(number + number / COLOURS) % SHAPES.len()],
            Look::Reference(number) => SHAPES[(number + 3) % SHAPES.len()],
        }
    }
}

/// The outline of a series' marker, around the origin.
pub(crate) fn shape(look: Look) -> Markup {
    html! { path.m d=(look.shape()) {} }
}

/// The direction of values in a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Values are heights in pixels, positions are percentages of the width.
    Up,
    /// Values are percentages of the width, positions are heights in pixels.
    Right,
}

impl Way {
    /// As `data-way` has it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Way::Up => "up",
            Way::Right => "right",
        }
    }

    /// `x` and `y` of the value that stands at `value`, at the position `position`.
    fn place(self, value: f64, position: f64) -> [String; 2] {
        match self {
            Way::Up => [percent(position), pixels(value)],
            Way::Right => [percent(value), pixels(position)],
        }
    }

    /// A line along the values, with caps.
    pub(crate) fn bar(self, [low, high]: [f64; 2], position: f64) -> Markup {
        let ends = [low, high].map(|end| self.place(end, position));
        let [[x1, y1], [x2, y2]] = &ends;
        let cap = match self {
            Way::Up => "M-3.5 0h7",
            Way::Right => "M0 -3.5v7",
        };
        html! {
            line.bar x1=(x1) y1=(y1) x2=(x2) y2=(y2) {}
            @for [x, y] in &ends { svg.at x=(x) y=(y) { path.bar d=(cap) {} } }
        }
    }
}

/// The position of a mark.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) way: Way,
    /// Along the values.
    pub(crate) value: f64,
    /// Across them.
    pub(crate) position: f64,
}

impl Place {
    /// `inner`, drawn around the place.
    fn around(self, inner: &Markup) -> Markup {
        let [x, y] = self.way.place(self.value, self.position);
        html! { svg.at x=(x) y=(y) { (inner) } }
    }
}

/// A measured mark with its interval on `scale` and the cell's own data; nothing for a cell
/// without a value.
pub(crate) fn measured(
    experiment: &str,
    cell: &CellResult,
    look: Look,
    scale: &Scale,
    (way, position): (Way, f64),
) -> Markup {
    let Some(median) = cell.median else {
        return Markup::default();
    };
    let place = Place {
        way,
        value: scale.at(median),
        position,
    };
    let [low, high] = ends(cell.ci95);
    html! {
        g class=(format!("mark {}", look.class())) data-experiment=(Exact(experiment))
            data-metric=(Exact(&cell.metric)) data-at=(json(&cell.at)) data-value=(median)
            data-low=[low] data-high=[high] data-pixel=(pixels(place.value)) {
            title { (clean(&tooltip(cell, median))) }
            @if let Some(ci95) = cell.ci95 {
                (way.bar(ci95.map(|end| scale.clamped(end)), position))
            }
            (place.around(&shape(look)))
        }
    }
}

/// The cell with its figure, its interval in the same unit, and its rounds in words.
pub(super) fn tooltip(cell: &CellResult, median: f64) -> String {
    let mut text = format!(
        "{}: {}",
        clip(&cell.at.to_string(), 300),
        cell.unit.show(median)
    );
    if let Some(ci95) = cell.ci95 {
        let per = cell.unit.short(&[median]).per;
        text += &format!(", 95 % interval {}", interval(ci95, per));
    }
    text += &format!(", n = {}", cell.n);
    if cell.failed > 0 {
        text += &format!(", {} failed", cell.failed);
    }
    text
}

/// A published value: hollow, a little larger, so that it shows around a measured one.
pub(crate) fn published(
    experiment: &str,
    published: &Published,
    unit: Unit,
    look: Look,
    place: Place,
) -> Markup {
    html! {
        g class=(format!("published {}", look.class())) data-published-experiment=(Exact(experiment))
            data-metric=(Exact(&published.metric)) data-at=(json(&published.at))
            data-value=(published.value) data-pixel=(pixels(place.value)) {
            title { (printed_words(published, unit)) }
            (place.around(&html! { path.h transform="scale(1.45)" d=(look.shape()) {} }))
        }
    }
}

/// The published value in words, with its place.
pub(super) fn printed_words(published: &Published, unit: Unit) -> String {
    let mut words = format!(
        "{}: published {}",
        clip(&published.at.to_string(), 300),
        unit.show_exact(published.value)
    );
    if let Some(source) = &published.source {
        words += &format!(" ({})", clip(source, 200));
    }
    words
}

/// A cell without a value: a cross where the axis begins. It has no `data-value`.
pub(crate) fn missing(experiment: &str, cell: &CellResult, place: Place) -> Markup {
    let at = clip(&cell.at.to_string(), 300);
    let reason = clip(cell.reason.as_deref().unwrap_or("no value"), 300);
    html! {
        g.missing data-missing-experiment=(Exact(experiment)) data-metric=(Exact(&cell.metric))
            data-at=(json(&cell.at)) data-pixel=(pixels(place.value)) {
            title { (at) ": no value. " (reason) }
            (place.around(&html! { path d="M-3.5 -3.5L3.5 3.5M-3.5 3.5L3.5 -3.5" {} }))
        }
    }
}

/// Single rounds as faint dots, `aside` pixels from the places of their values.
pub(crate) fn dots(way: Way, look: Look, dots: &[(f64, f64)], aside: f64) -> Markup {
    html! {
        g class=(format!("dots {}", look.class())) transform=(format!("translate({aside} 0)")) {
            @for &(value, position) in dots {
                @let [x, y] = way.place(value, position);
                circle r="1.4" cx=(x) cy=(y) {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::Better;
    use crate::value::Point;

    #[test]
    fn a_tooltip_has_the_figure_and_its_interval_in_one_unit() {
        let cell = CellResult {
            at: Point::default(),
            metric: "rate".into(),
            unit: Unit::MegabytesPerSecond,
            better: Better::Higher,
            n: 12,
            median: Some(0.09076),
            ci95: Some([0.08963, 0.09197]),
            samples: vec![],
            work_per_operation: None,
            failed: 0,
            reason: None,
            notes: vec![],
        };
        let words = "90.76 kB/s, 95 % interval [89.63, 91.97], n = 12";
        let tooltip = tooltip(&cell, 0.09076);
        assert!(tooltip.ends_with(words), "{tooltip}");
    }

    #[test]
    fn no_two_of_36_series_look_alike() {
        let looks: std::collections::HashSet<_> = (0..36)
            .map(|n| (Look::Series(n).class(), Look::Series(n).shape()))
            .collect();
        assert_eq!(looks.len(), 36);
    }
}
