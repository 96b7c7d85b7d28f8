//! A numeric axis from left to right and the metric upwards: lines, points, error bars.

use std::fmt::Write;

use super::canvas::{self, Anchor, Key, Ticks, ROW, WIDTH};
use super::label::{apart, fit, thinned, width};
use super::mark::{self, Look, Way};
use super::number;
use super::plan::{Panel, Series};
use super::scale::Scale;
use super::{interval, Drawn, Samples};
use crate::experiment::Axis;
use crate::unit::{significant, Unit};

/// The least height of the plot itself.
const PLOT: f64 = 260.0;

/// Widest direct label, its sign included.
const LABEL: f64 = 190.0;

/// How far the dots of single rounds stand from their median's mark.
const BESIDE: f64 = 6.5;

/// Draws the panel.
pub(crate) fn draw(
    out: &mut String,
    id: &str,
    panel: &Panel<'_>,
    axis: &Axis,
    unit: Option<Unit>,
) -> Drawn {
    let labelled = panel.series.len() > 1 || !panel.peers.is_empty();
    let labels = panel.series.len() * usize::from(panel.series.len() > 1) + panel.peers.len();
    let top = 34.0;
    let bottom = top + PLOT.max(labels as f64 * (ROW - 2.0));
    let samples = Samples::of(panel);
    let y = Scale::for_values(&samples.domain(panel), bottom, top);
    let ticks = Ticks::of(&y, panel.unit, 5);

    let left = ticks.width() + 14.0;
    let names = panel.series.iter().map(|s| s.label.as_str());
    let names = names.chain(panel.peers.iter().map(|p| p.name));
    let widest = names.map(|n| width(&fit(n, LABEL))).fold(0.0, f64::max);
    let right = WIDTH
        - if labelled {
            widest.min(LABEL) + 42.0
        } else {
            10.0
        };
    let peers_room = 13.0 * panel.peers.len().min(4) as f64;
    let positions = positions(panel);
    let x = Scale::for_axis(&positions, axis.log, left, right - peers_room);

    let missing = panel.cells().any(|cell| cell.median.is_none());
    let strip = if missing { 18.0 } else { 0.0 };
    let height = bottom + strip + 3.0 * ROW + 12.0;
    canvas::open(out, id, panel, height, &y, Way::Up);
    canvas::title(out, panel, ticks.unit, y.log);
    for (value, words) in &ticks.at {
        let at = y.at(*value);
        let _ = write!(
            out,
            "<g class=\"tick\" data-tick=\"{value}\" data-pixel=\"{at:.2}\">"
        );
        canvas::line(out, "grid", (left, at), (right, at));
        canvas::text(out, (left - 7.0, at + 4.5), "num", Anchor::End, words);
        out.push_str("</g>");
    }
    canvas::line(out, "axis", (left, bottom), (right, bottom));
    let below = bottom + strip;
    bottom_axis(out, &x, &positions, unit, bottom, below + 19.0);
    canvas::text(
        out,
        ((left + right) / 2.0, below + 19.0 + ROW),
        "dim",
        Anchor::Middle,
        &x_title(axis, right - left),
    );

    let mut wishes: Vec<(f64, Look, &str)> = Vec::new();
    for (number, peer) in panel.peers.iter().enumerate() {
        let at = right - 8.0 - 13.0 * (number % 4) as f64;
        if let Some(pixel) = peer.cell.median.map(|median| y.at(median)) {
            canvas::line(out, "reference", (left, pixel), (right, pixel));
            wishes.push((pixel, Look::Peer, peer.name));
            let bar = interval(peer.cell, &y);
            mark::measured(
                out,
                panel.experiment,
                peer.cell,
                Look::Peer,
                (at, pixel),
                bar,
                Way::Up,
            );
        } else {
            mark::missing(out, panel.experiment, peer.cell, at, bottom + 10.0);
        }
        for published in &peer.published {
            let place = (at, y.at(published.value));
            mark::published(
                out,
                panel.experiment,
                published,
                panel.unit,
                Look::Peer,
                place,
            );
        }
    }
    let dodge = dodge(&x, &positions, panel.series.len());
    let mut outside = 0;
    for (number, series) in panel.series.iter().enumerate() {
        let look = Look::Series(number);
        let aside = (number as f64 - (panel.series.len() - 1) as f64 / 2.0) * dodge;
        let mut dots = Vec::new();
        for mark in &series.marks {
            let at = x.at(mark.position) + aside;
            outside += samples.place(mark.cell, &y, |pixel| dots.push((at - BESIDE, pixel)));
        }
        mark::dots(out, look, &dots);
        joined(out, look, series, &x, &y, aside);
        for mark in &series.marks {
            let at = x.at(mark.position) + aside;
            match mark.cell.median {
                Some(median) => {
                    let bar = interval(mark.cell, &y);
                    let place = (at, y.at(median));
                    mark::measured(out, panel.experiment, mark.cell, look, place, bar, Way::Up);
                }
                None => mark::missing(out, panel.experiment, mark.cell, at, bottom + 10.0),
            }
        }
        for (position, published) in &series.published {
            let place = (x.at(*position) + aside, y.at(published.value));
            mark::published(out, panel.experiment, published, panel.unit, look, place);
        }
        if panel.series.len() > 1 {
            if let Some(value) = last_value(series) {
                wishes.push((y.at(value), look, &series.label));
            }
        }
    }
    direct_labels(out, &wishes, right, (top, bottom), widest);
    let drawn = Drawn {
        outside,
        cut: y.cut(),
    };
    let key = Key {
        measured: panel.cells().any(|cell| cell.median.is_some()),
        published: panel.published_count() > 0,
        dots: samples.shown(),
        missing,
    };
    canvas::key(out, key, left, height - 8.0);
    out.push_str("</svg>");
    drawn
}

/// Every place on the axis where something stands, ascending, each once.
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

/// Ticks where the matrix has its values, as many as can be read.
fn bottom_axis(
    out: &mut String,
    x: &Scale,
    positions: &[f64],
    unit: Option<Unit>,
    axis: f64,
    y: f64,
) {
    let round;
    let values = if positions.len() > 40 {
        round = x.ticks(7, 1.0);
        &round
    } else {
        positions
    };
    let words: Vec<String> = values
        .iter()
        .map(|&value| unit.map_or_else(|| significant(value), |unit| number::own(unit, value)))
        .collect();
    let places: Vec<f64> = values.iter().map(|&value| x.at(value)).collect();
    let widths: Vec<f64> = words.iter().map(|words| width(words)).collect();
    let keep = thinned(&places, &widths);
    for ((place, words), keep) in places.iter().zip(&words).zip(keep) {
        canvas::line(out, "axis", (*place, axis), (*place, axis + 4.0));
        if keep {
            canvas::text(out, (*place, y), "num", Anchor::Middle, words);
        }
    }
}

fn x_title(axis: &Axis, room: f64) -> String {
    let scale = if axis.log { ", logarithmic" } else { "" };
    format!("{}{scale}", fit(&axis.name, room - 130.0))
}

/// How far series stand from each other where they share a position, so that their error bars
/// can be told apart.
fn dodge(x: &Scale, positions: &[f64], series: usize) -> f64 {
    let gaps = positions
        .windows(2)
        .map(|pair| x.at(pair[1]) - x.at(pair[0]));
    let nearest = gaps.fold(f64::INFINITY, f64::min);
    (nearest * 0.5 / series.max(1) as f64).min(4.0)
}

/// The line through the series' medians, broken where one is missing.
fn joined(out: &mut String, look: Look, series: &Series<'_>, x: &Scale, y: &Scale, aside: f64) {
    let mut path = String::new();
    let mut pen = 'M';
    for mark in &series.marks {
        let Some(median) = mark.cell.median else {
            pen = 'M';
            continue;
        };
        let _ = write!(
            path,
            "{pen}{:.2} {:.2}",
            x.at(mark.position) + aside,
            y.at(median)
        );
        pen = 'L';
    }
    if path.contains('L') {
        let _ = write!(out, "<path class=\"line {}\" d=\"{path}\"/>", look.class());
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

/// The names of series and peers right of the plot, each at its line's height or led to it.
fn direct_labels(
    out: &mut String,
    wishes: &[(f64, Look, &str)],
    right: f64,
    (top, bottom): (f64, f64),
    widest: f64,
) {
    let mut places: Vec<f64> = wishes.iter().map(|(wish, ..)| *wish).collect();
    apart(&mut places, ROW - 2.0, top, bottom);
    for (place, (wish, look, words)) in places.into_iter().zip(wishes) {
        let _ = write!(
            out,
            "<path class=\"leader\" d=\"M{:.1} {wish:.1}L{:.1} {place:.1}\"/>",
            right + 2.0,
            right + 16.0
        );
        canvas::sign(out, *look, words, (right + 18.0, place), widest + 6.0);
    }
}
