//! A dot plot: one row per combination, in the order of the file; values from left to right.

use maud::{html, Markup};

use super::axis::{self, bottom_labels, grid, series_name, Key, Ticks};
use super::mark::{self, Look, Place, Way};
use super::plan::{Mark, Panel};
use super::samples::Samples;
use super::scale::{pixels, Scale};
use super::words::{description, Drawn};
use crate::experiment::Published;
use crate::text::clip;

/// The height of a row with one series.
const ROW: f64 = 26.0;

/// The distance between the series of one row.
const LANE: f64 = 16.0;

/// The distance of the dots of single rounds below their median's mark.
const BELOW: f64 = 6.5;

/// The place of the cross of a cell without a value, in per cent of the width.
const CROSS: f64 = 1.0;

/// One row: its name, and the marks of each lane.
struct Row<'a> {
    name: &'a str,
    lanes: Vec<Lane<'a>>,
}

struct Lane<'a> {
    look: Look,
    marks: Vec<&'a Mark<'a>>,
    published: Vec<&'a Published>,
}

/// Draws the panel.
pub(crate) fn draw(panel: &Panel<'_>, labels: &[String]) -> (Markup, Drawn) {
    let samples = Samples::of(panel);
    let x = Scale::for_values(&samples.domain(panel), 3.0, 97.0);
    let ticks = Ticks::of(&x, panel.unit);
    let references: Vec<Mark<'_>> = panel
        .references
        .iter()
        .map(|reference| Mark {
            position: 0.0,
            cell: reference.cell,
        })
        .collect();
    let rows = rows(panel, labels, &references);
    let mut outside = 0;
    let mut tracks: Vec<Markup> = Vec::new();
    for row in &rows {
        let height = ROW + LANE * (row.lanes.len() - 1) as f64;
        let marks = row.lanes.iter().enumerate().map(|(number, lane)| {
            let y = ROW / 2.0 + LANE * number as f64;
            let mut dots = Vec::new();
            for mark in &lane.marks {
                outside += samples.place(mark.cell, &x, |value| dots.push((value, y + BELOW)));
            }
            html! {
                (mark::dots(Way::Right, lane.look, &dots, 0.0))
                @for mark in &lane.marks { (drawn(panel, mark, lane.look, &x, y)) }
                @for published in &lane.published {
                    @let place = Place { way: Way::Right, value: x.at(published.value), position: y };
                    (mark::published(panel.experiment, published, panel.unit, lane.look, place))
                }
            }
        });
        let marks: Vec<Markup> = marks.collect();
        tracks.push(html! {
            svg.track height=(pixels(height)) { (grid(&ticks.all, height)) @for mark in marks { (mark) } }
        });
    }
    let key = Key {
        measured: panel.cells().any(|cell| cell.median.is_some()),
        published: panel.published_count() > 0,
        dots: samples.shown(),
        missing: panel.cells().any(|cell| cell.median.is_none()),
    };
    let markup = html! {
        (axis::name(panel, ticks.unit, &x))
        @if panel.series.len() > 1 {
            ul.names {
                @for (number, series) in panel.series.iter().enumerate() {
                    (series_name(Look::Series(number), &series.label, None))
                }
            }
        }
        div.plot.rows data-scale=(x.kind()) data-way=(Way::Right.name()) role="img"
            aria-label=(description(panel, &x)) {
            @for (row, track) in rows.iter().zip(tracks) {
                div.row { span.label { bdi { (clip(row.name, 90)) } } (track) }
            }
            div.row.scale {
                span.label {}
                (bottom_labels(&ticks.all))
                @for tick in &ticks.all {
                    i.tick data-tick=(tick.value) data-pixel=(pixels(tick.at)) {}
                }
            }
        }
        (key.markup())
    };
    let drawn = Drawn {
        outside,
        cut: x.cut(),
    };
    (markup, drawn)
}

fn drawn(panel: &Panel<'_>, mark: &Mark<'_>, look: Look, x: &Scale, y: f64) -> Markup {
    let cross = Place {
        way: Way::Right,
        value: CROSS,
        position: y,
    };
    match mark.cell.median {
        Some(_) => mark::measured(panel.experiment, mark.cell, look, x, (Way::Right, y)),
        None => mark::missing(panel.experiment, mark.cell, cross),
    }
}

/// The matrix' combinations, then the references.
fn rows<'a>(
    panel: &'a Panel<'_>,
    labels: &'a [String],
    references: &'a [Mark<'a>],
) -> Vec<Row<'a>> {
    let mut rows: Vec<Row<'a>> = Vec::new();
    for (place, label) in labels.iter().enumerate() {
        let lanes = panel.series.iter().enumerate().map(|(number, series)| {
            let marks = series.marks.iter();
            let published = series.published.iter();
            Lane {
                look: Look::Series(number),
                marks: marks.filter(|mark| mark.position == place as f64).collect(),
                published: published
                    .filter(|(position, _)| *position == place as f64)
                    .map(|(_, published)| *published)
                    .collect(),
            }
        });
        rows.push(Row {
            name: label,
            lanes: lanes.collect(),
        });
    }
    for ((number, reference), mark) in panel.references.iter().enumerate().zip(references) {
        rows.push(Row {
            name: reference.name,
            lanes: vec![Lane {
                look: Look::Reference(number),
                marks: vec![mark],
                published: reference.published.clone(),
            }],
        });
    }
    rows.retain(|row| !row.lanes.is_empty());
    rows
}
