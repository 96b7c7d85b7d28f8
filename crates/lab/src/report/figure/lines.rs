//! A numeric axis from left to right and the metric upwards: lines, points, error bars.

use maud::{html, Markup};

use super::axis::{self, apart, bottom_labels, series_name, Key, Tick, Ticks};
use super::mark::{self, Look, Place, Way};
use super::plan::{Panel, Series};
use super::samples::Samples;
use super::scale::{percent, pixels, Scale};
use super::words::{description, Drawn};
use crate::experiment::Axis;
use crate::text::clip;
use crate::unit::Unit;

/// The least height of the plot itself.
const PLOT: f64 = 240.0;

/// The height of a name beside the plot.
const NAME: f64 = 19.0;

/// The distance of the dots of single rounds from their median's mark.
const BESIDE: f64 = -6.5;

/// Draws the panel.
pub(crate) fn draw(panel: &Panel<'_>, axis: &Axis, unit: Option<Unit>) -> (Markup, Drawn) {
    let several = panel.series.len() > 1;
    let names = panel.series.len() * usize::from(several) + panel.references.len();
    let top = 10.0;
    let bottom = top + PLOT.max(names as f64 * NAME);
    let samples = Samples::of(panel);
    let y = Scale::for_values(&samples.domain(panel), bottom, top);
    let ticks = Ticks::of(&y, panel.unit);
    let positions = positions(panel);
    let room = 100.0 - 5.0 * panel.references.len().min(4) as f64;
    let x = Scale::for_axis(&positions, axis.log, 0.0, room);
    let missing = panel.cells().any(|cell| cell.median.is_none());
    let below = bottom + if missing { 18.0 } else { 0.0 };
    let height = below + 6.0;
    let cross = |position| Place {
        way: Way::Up,
        value: bottom + 10.0,
        position,
    };

    let mut wishes: Vec<(f64, Look, &str)> = Vec::new();
    let mut marks: Vec<Markup> = Vec::new();
    for (number, reference) in panel.references.iter().enumerate() {
        let look = Look::Reference(number);
        let at = 97.0 - 5.0 * (number % 4) as f64;
        let height = reference.cell.median.map(|median| y.at(median));
        wishes.push((height.unwrap_or(bottom), look, reference.name));
        match height {
            Some(height) => marks.push(html! {
                line.reference x1="0%" x2="100%" y1=(pixels(height)) y2=(pixels(height)) {}
                (mark::measured(panel.experiment, reference.cell, look, &y, (Way::Up, at)))
            }),
            None => marks.push(mark::missing(panel.experiment, reference.cell, cross(at))),
        }
        for published in &reference.published {
            let place = Place {
                way: Way::Up,
                value: y.at(published.value),
                position: at,
            };
            marks.push(mark::published(
                panel.experiment,
                published,
                panel.unit,
                look,
                place,
            ));
        }
    }
    let dodge = dodge(&x, &positions, panel.series.len());
    let mut outside = 0;
    for (number, series) in panel.series.iter().enumerate() {
        let look = Look::Series(number);
        let aside = (number as f64 - (panel.series.len() - 1) as f64 / 2.0) * dodge;
        let at = |position: f64| x.at(position) + aside;
        let mut dots = Vec::new();
        for mark in &series.marks {
            let position = at(mark.position);
            outside += samples.place(mark.cell, &y, |value| dots.push((value, position)));
        }
        marks.push(mark::dots(Way::Up, look, &dots, BESIDE));
        marks.push(joined(look, series, &at, &y));
        for mark in &series.marks {
            let position = at(mark.position);
            marks.push(match mark.cell.median {
                Some(_) => {
                    mark::measured(panel.experiment, mark.cell, look, &y, (Way::Up, position))
                }
                None => mark::missing(panel.experiment, mark.cell, cross(position)),
            });
        }
        for (position, published) in &series.published {
            let place = Place {
                way: Way::Up,
                value: y.at(published.value),
                position: at(*position),
            };
            marks.push(mark::published(
                panel.experiment,
                published,
                panel.unit,
                look,
                place,
            ));
        }
        if several {
            let height = last_value(series).map_or(bottom, |value| y.at(value));
            wishes.push((height, look, &series.label));
        }
    }
    let gutter = ticks
        .all
        .iter()
        .map(|tick| axis::width(&tick.label))
        .fold(0.0, f64::max)
        + 8.0;
    let (steps, axis_unit) = steps(&x, positions, unit);
    let key = Key {
        measured: panel.cells().any(|cell| cell.median.is_some()),
        published: panel.published_count() > 0,
        dots: samples.shown(),
        missing,
    };
    let markup = html! {
        (axis::name(panel, ticks.unit, &y))
        div.plot.lines.named[names > 0] style=(format!("--gutter:{gutter:.0}px"))
            data-scale=(y.kind()) data-way=(Way::Up.name()) role="img"
            aria-label=(description(panel, &y)) {
            (beside(&wishes, (top, bottom)))
            svg.gutter height=(pixels(height)) aria-hidden="true" {
                @for tick in &ticks.all {
                    text.num x="100%" dx="-7" y=(pixels(tick.at + 4.5)) text-anchor="end" { (tick.label) }
                }
            }
            svg.marks height=(pixels(height)) {
                @for tick in &ticks.all {
                    g.tick data-tick=(tick.value) data-pixel=(pixels(tick.at)) {
                        line.grid x1="0%" x2="100%" y1=(pixels(tick.at)) y2=(pixels(tick.at)) {}
                    }
                }
                line.axis x1="0%" x2="100%" y1=(pixels(bottom)) y2=(pixels(bottom)) {}
                @for step in &steps {
                    line.axis x1=(percent(step.at)) x2=(percent(step.at))
                        y1=(pixels(bottom)) y2=(pixels(bottom + 4.0)) {}
                }
                @for mark in &marks { (mark) }
            }
            (bottom_labels(&steps))
            p.across {
                bdi { (clip(&axis.name, 80)) }
                @if let Some(unit) = axis_unit { " (" (unit) ")" }
                @if x.log { ", logarithmic" }
            }
        }
        (key.markup())
    };
    let drawn = Drawn {
        outside,
        cut: y.cut(),
    };
    (markup, drawn)
}

/// Returns every position on the axis that has a mark, ascending, each once.
fn positions(panel: &Panel<'_>) -> Vec<f64> {
    let mut all: Vec<f64> = panel
        .series
        .iter()
        .flat_map(|s| {
            let published = s.published.iter().map(|(position, _)| *position);
            s.marks.iter().map(|mark| mark.position).chain(published)
        })
        .collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    all
}

/// Ticks where the matrix has its values, and the unit of their labels where they are quantities:
/// the one of its family that needs the fewest digits.
fn steps(x: &Scale, positions: Vec<f64>, unit: Option<Unit>) -> (Vec<Tick>, Option<Unit>) {
    let values = match positions.len() {
        0..=40 => positions,
        _ => x.ticks(7, 1.0),
    };
    let label = |value: f64, unit: Option<Unit>, own: Option<Unit>| match (unit, own) {
        (Some(unit), Some(own)) => (value * own.scale() / unit.scale()).to_string(),
        _ => value.to_string(),
    };
    let shown = unit.map(|own| {
        let family = own.family().iter().copied().chain([own]);
        let length = |&unit: &Unit| -> usize {
            values
                .iter()
                .map(|&value| label(value, Some(unit), Some(own)).len())
                .sum()
        };
        family.min_by_key(length).unwrap_or(own)
    });
    (
        axis::ticks(x, values, |value| label(value, shown, unit)),
        shown,
    )
}

/// The distance between series that share a position, in per cent, so that their
/// error bars can be told apart.
fn dodge(x: &Scale, positions: &[f64], series: usize) -> f64 {
    let gaps = positions
        .windows(2)
        .map(|pair| x.at(pair[1]) - x.at(pair[0]));
    let nearest = gaps.fold(f64::INFINITY, f64::min);
    (nearest * 0.5 / series.max(1) as f64).min(1.2)
}

/// The line through the series' medians, broken where one is missing.
fn joined(look: Look, series: &Series<'_>, at: &dyn Fn(f64) -> f64, y: &Scale) -> Markup {
    html! {
        g class=(format!("line {}", look.class())) {
            @for pair in series.marks.windows(2) {
                @if let (Some(from), Some(to)) = (pair[0].cell.median, pair[1].cell.median) {
                    line x1=(percent(at(pair[0].position))) y1=(pixels(y.at(from)))
                        x2=(percent(at(pair[1].position))) y2=(pixels(y.at(to))) {}
                }
            }
        }
    }
}

fn last_value(series: &Series<'_>) -> Option<f64> {
    let measured = series.marks.iter().rev().find_map(|mark| mark.cell.median);
    measured.or_else(|| {
        series
            .published
            .last()
            .map(|(_, published)| published.value)
    })
}

/// The names of series and references: in a wide page right of the plot, each at the height of its
/// line or led to it; in a narrow one above it.
fn beside(wishes: &[(f64, Look, &str)], (top, bottom): (f64, f64)) -> Markup {
    let mut places: Vec<f64> = wishes.iter().map(|(wish, ..)| *wish).collect();
    apart(&mut places, NAME, top, bottom);
    html! {
        @if !wishes.is_empty() {
            ul.names {
                @for ((wish, look, words), place) in wishes.iter().zip(&places) {
                    (series_name(*look, words, Some(*place)))
                    li.leader aria-hidden="true" {
                        svg { path d=(format!("M0 {wish:.1}L14 {place:.1}")) {} }
                    }
                }
            }
        }
    }
}
