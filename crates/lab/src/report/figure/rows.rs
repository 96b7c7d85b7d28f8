//! A dot plot: one row a combination, in the order of the file; values from left to right.

use std::fmt::Write;

use super::canvas::{self, Anchor, Key, Ticks, ROW, WIDTH};
use super::label::{fit, thinned, width};
use super::mark::{self, Look, Way};
use super::plan::Panel;
use super::scale::Scale;
use super::{interval, Drawn, Samples};

/// Widest row label.
const LABEL: f64 = 230.0;

/// How far series of one row stand from each other.
const LANE: f64 = 16.0;

/// How far the dots of single rounds stand below their median's mark.
const BELOW: f64 = 6.5;

/// Draws the panel.
pub(crate) fn draw(out: &mut String, id: &str, panel: &Panel<'_>, rows: &[String]) -> Drawn {
    let names = rows.iter().map(String::as_str);
    let names: Vec<&str> = names.chain(panel.peers.iter().map(|p| p.name)).collect();
    let widest = names
        .iter()
        .map(|n| width(&fit(n, LABEL)))
        .fold(0.0, f64::max);
    let missing = panel.cells().any(|cell| cell.median.is_none());
    let left = widest.min(LABEL) + if missing { 34.0 } else { 16.0 };
    let right = WIDTH - 14.0;
    let legend = Legend::of(panel);
    let lanes = panel.series.len().max(1) as f64;
    let row = if names.len() > 24 { 20.0 } else { 26.0 } + LANE * (lanes - 1.0);
    let lone = if names.len() > 24 { 20.0 } else { 26.0 };
    let top = 28.0 + legend.height();
    let peers_from = top + row * rows.len() as f64 + if panel.peers.is_empty() { 0.0 } else { 8.0 };
    let bottom = peers_from + lone * panel.peers.len() as f64 + 4.0;
    let height = bottom + 2.0 * ROW + 14.0;

    let samples = Samples::of(panel);
    let x = Scale::for_values(&samples.domain(panel), left, right);
    let ticks = Ticks::of(&x, panel.unit, 5);
    canvas::open(out, id, panel, height, &x, Way::Right);
    canvas::title(out, panel, ticks.unit, x.log);
    legend.draw(out, 24.0);
    let places: Vec<f64> = ticks.at.iter().map(|(value, _)| x.at(*value)).collect();
    let widths: Vec<f64> = ticks.at.iter().map(|(_, words)| width(words)).collect();
    let keep = thinned(&places, &widths);
    for (((value, words), at), keep) in ticks.at.iter().zip(places).zip(keep) {
        let _ = write!(
            out,
            "<g class=\"tick\" data-tick=\"{value}\" data-pixel=\"{at:.2}\">"
        );
        canvas::line(out, "grid", (at, top), (at, bottom));
        if keep {
            canvas::text(out, (at, bottom + 18.0), "num", Anchor::Middle, words);
        }
        out.push_str("</g>");
    }
    canvas::line(out, "axis", (left, bottom), (right, bottom));

    for (number, label) in rows.iter().enumerate() {
        let middle = top + row * (number as f64 + 0.5);
        canvas::line(out, "rule", (left, middle), (right, middle));
        canvas::text(
            out,
            (widest, middle + 4.5),
            "label",
            Anchor::End,
            &fit(label, LABEL),
        );
    }
    let mut outside = 0;
    let cross = left - 9.0;
    for (number, series) in panel.series.iter().enumerate() {
        let look = Look::Series(number);
        let lane = (number as f64 - (lanes - 1.0) / 2.0) * LANE;
        let y = |position: f64| top + row * (position + 0.5) + lane;
        let mut dots = Vec::new();
        for mark in &series.marks {
            outside += samples.place(mark.cell, &x, |pixel| {
                dots.push((pixel, y(mark.position) + BELOW))
            });
        }
        mark::dots(out, look, &dots);
        for mark in &series.marks {
            let at = y(mark.position);
            match mark.cell.median {
                Some(median) => {
                    let place = (x.at(median), at);
                    let bar = interval(mark.cell, &x);
                    mark::measured(
                        out,
                        panel.experiment,
                        mark.cell,
                        look,
                        place,
                        bar,
                        Way::Right,
                    );
                }
                None => mark::missing(out, panel.experiment, mark.cell, cross, at),
            }
        }
        for (position, published) in &series.published {
            let place = (x.at(published.value), y(*position));
            mark::published(out, panel.experiment, published, panel.unit, look, place);
        }
    }
    if !panel.peers.is_empty() && !rows.is_empty() {
        canvas::line(
            out,
            "axis",
            (0.0, peers_from - 4.0),
            (right, peers_from - 4.0),
        );
    }
    for (number, peer) in panel.peers.iter().enumerate() {
        let middle = peers_from + lone * (number as f64 + 0.5);
        canvas::line(out, "rule", (left, middle), (right, middle));
        canvas::text(
            out,
            (widest, middle + 4.5),
            "label",
            Anchor::End,
            &fit(peer.name, LABEL),
        );
        let mut dots = Vec::new();
        outside += samples.place(peer.cell, &x, |pixel| dots.push((pixel, middle + BELOW)));
        mark::dots(out, Look::Peer, &dots);
        match peer.cell.median {
            Some(median) => {
                let place = (x.at(median), middle);
                let bar = interval(peer.cell, &x);
                mark::measured(
                    out,
                    panel.experiment,
                    peer.cell,
                    Look::Peer,
                    place,
                    bar,
                    Way::Right,
                );
            }
            None => mark::missing(out, panel.experiment, peer.cell, cross, middle),
        }
        for published in &peer.published {
            let place = (x.at(published.value), middle);
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
    let drawn = Drawn {
        outside,
        cut: x.cut(),
    };
    let key = Key {
        measured: panel.cells().any(|cell| cell.median.is_some()),
        published: panel.published_count() > 0,
        dots: samples.shown(),
        missing,
    };
    canvas::key(out, key, left.min(120.0), height - 8.0);
    out.push_str("</svg>");
    drawn
}

/// Names of the series, above the plot, in as many lines as they need.
struct Legend<'a> {
    /// Series number, name, place.
    entries: Vec<(usize, &'a str, f64, f64)>,
    lines: f64,
}

impl<'a> Legend<'a> {
    fn of(panel: &'a Panel<'_>) -> Self {
        let mut entries = Vec::new();
        let (mut x, mut line) = (0.0, 0.0);
        if panel.series.len() > 1 {
            for (number, series) in panel.series.iter().enumerate() {
                let wide = 15.0 + width(&fit(&series.label, LABEL)) + 20.0;
                if x > 0.0 && x + wide > WIDTH {
                    (x, line) = (0.0, line + 1.0);
                }
                entries.push((number, series.label.as_str(), x, line));
                x += wide;
            }
        }
        let lines = if entries.is_empty() { 0.0 } else { line + 1.0 };
        Legend { entries, lines }
    }

    fn height(&self) -> f64 {
        self.lines * ROW + if self.lines > 0.0 { 6.0 } else { 0.0 }
    }

    fn draw(&self, out: &mut String, top: f64) {
        for (number, words, x, line) in &self.entries {
            let place = (*x + 2.0, top + (line + 0.5) * ROW);
            canvas::sign(out, Look::Series(*number), words, place, LABEL);
        }
    }
}
