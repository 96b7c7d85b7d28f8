//! Stacked shares: one row per combination, the metrics that are parts of one whole side by side.

use std::collections::BTreeMap;

use maud::{html, Markup};

use super::axis::{bottom_labels, grid, width, Ticks};
use super::mark::{printed_words, tooltip, Look, Way};
use super::plan::{key, values};
use super::scale::{percent, pixels, Scale};
use crate::experiment::Published;
use crate::report::table::json;
use crate::report::words::Exact;
use crate::result::{CellResult, ExperimentResult};
use crate::text::{clean, clip};
use crate::unit::Unit;
use crate::value::Point;

/// The heights of a measured bar and of a published one.
const HEIGHTS: [f64; 2] = [24.0, 14.0];

/// The widths, in pixels, that the plot has at least where the style sheet shows the texts of the
/// classes `w0`, `w1` and `w2`.
const PLOTS: [f64; 3] = [215.0, 330.0, 580.0];

/// The room beside the words in a segment, in pixels.
const MARGIN: f64 = 6.0;

/// A remainder below this, in per cent, is the error of a sum of floating-point numbers.
const LEAST: f64 = 1e-6;

/// One combination, with the cell and the published value of each part.
struct Row<'a> {
    at: &'a Point,
    cells: Vec<Option<&'a CellResult>>,
    published: Vec<Option<&'a Published>>,
}

/// A bar: its segments in the order of the file, and the parts that it lacks.
#[derive(Default)]
struct Bar {
    shares: Vec<Share>,
    lacking: Vec<String>,
}

struct Share {
    /// The place of the part in the file.
    number: usize,
    /// In the metric's own unit, and in per cent.
    value: f64,
    percent: f64,
    title: String,
}

impl Bar {
    /// Adds a part's value; without one that can be drawn, the reason.
    fn add(&mut self, number: usize, value: f64, unit: Unit, title: String) -> Result<(), String> {
        let percent = unit.convert(value, Unit::Percent).unwrap_or(f64::NAN);
        if !(percent.is_finite() && percent >= 0.0) {
            return Err(format!("{} is not a share", unit.show(value)));
        }
        self.shares.push(Share {
            number,
            value,
            percent,
            title,
        });
        Ok(())
    }

    fn sum(&self) -> f64 {
        let sum: f64 = self.shares.iter().map(|share| share.percent).sum();
        sum.min(f64::MAX)
    }

    fn rest(&self) -> f64 {
        100.0 - self.sum()
    }
}

/// The figure of the experiment's parts; nothing if it names none or has no cell of them.
pub(crate) fn draw(experiment: &ExperimentResult) -> Markup {
    let parts = &experiment.parts;
    let of_parts = |cell: &&CellResult| parts.contains(&cell.metric);
    let Some(first) = experiment.cells.iter().find(of_parts) else {
        return Markup::default();
    };
    let rows: Vec<(String, Row<'_>, Bar, Bar)> = rows(experiment)
        .into_iter()
        .map(|(label, row)| {
            let (measured, printed) = (row.measured(parts), row.printed(parts, first.unit));
            (label, row, measured, printed)
        })
        .collect();
    let sums = rows.iter().flat_map(|(.., one, other)| [one, other]);
    let most = sums.map(Bar::sum).fold(100.0, f64::max);
    let x = Scale::spread(false, 0.0, most, 3.0, 97.0, None);
    let ticks = Ticks::of(&x, Unit::Percent);
    let any_rest = rows.iter().any(|(.., measured, _)| measured.rest() > LEAST);
    let names: Vec<String> = parts.iter().map(|part| clip(part, 40)).collect();
    let description = format!(
        "Stacked shares of {} rows in %: {}. The tables below have the numbers",
        rows.len(),
        names.join(", ")
    );
    let track = |row: &Row<'_>, bar: &Bar, is_published: bool| {
        let height = HEIGHTS[usize::from(is_published)];
        html! {
            svg.track height=(pixels(height)) {
                (grid(&ticks.all, height))
                (segments(parts, row.at, bar, &x, is_published))
            }
        }
    };
    html! {
        figure.shares data-figure=(Exact(&experiment.id)) {
            p.metric { b { "Shares (" (ticks.unit) ")" } " " span.dim { "parts of one whole, medians" } }
            ul.names {
                @for (number, part) in parts.iter().enumerate() { (name(number, part)) }
                @if any_rest { li { (sign(html! { g.rest { (square()) } })) "other" } }
            }
            div.plot.rows data-scale=(x.kind()) data-way=(Way::Right.name()) role="img" aria-label=(description) {
                @for (label, row, measured, printed) in &rows {
                    div.row.whole { span.label { bdi { (clip(label, 90)) } } (track(row, measured, false)) }
                    @if !printed.shares.is_empty() {
                        div.row.printed { span.label.dim { "published" } (track(row, printed, true)) }
                    }
                }
                div.row.scale {
                    span.label {}
                    (bottom_labels(&ticks.all))
                    @for tick in &ticks.all {
                        i.tick data-tick=(tick.value) data-pixel=(pixels(tick.at)) {}
                    }
                }
            }
            (caption(&rows))
        }
    }
}

/// The combinations in the order of the file, with their labels, then the references.
fn rows(experiment: &ExperimentResult) -> Vec<(String, Row<'_>)> {
    let number = |metric: &str| experiment.parts.iter().position(|part| part == metric);
    let cells: Vec<&CellResult> = experiment.cells.iter().collect();
    let published: Vec<&Published> = experiment.published.iter().collect();
    let axes = experiment.axes.iter();
    let axes: Vec<_> = axes
        .filter(|axis| values(axis, &cells, &published) > 1)
        .collect();
    let place = |point: &Point| match point.beside() {
        Some(name) => {
            let place = cells.iter().position(|cell| cell.at == *point);
            (true, (vec![place.unwrap_or(usize::MAX)], name.to_owned()))
        }
        None => (false, key(&axes, point)),
    };
    let none = |at| Row {
        at,
        cells: vec![None; experiment.parts.len()],
        published: vec![None; experiment.parts.len()],
    };
    let mut rows = BTreeMap::new();
    for cell in &experiment.cells {
        if let Some(number) = number(&cell.metric) {
            let row = rows.entry(place(&cell.at));
            row.or_insert_with(|| none(&cell.at)).cells[number] = Some(cell);
        }
    }
    for published in &experiment.published {
        if let Some(number) = number(&published.metric) {
            let row = rows.entry(place(&published.at));
            let row = row.or_insert_with(|| none(&published.at));
            row.published[number] = Some(published);
        }
    }
    let rows = rows.into_iter();
    rows.map(|((_, (_, label)), row)| (label, row)).collect()
}

impl Row<'_> {
    fn measured(&self, parts: &[String]) -> Bar {
        let mut bar = Bar::default();
        for (number, (part, cell)) in parts.iter().zip(&self.cells).enumerate() {
            let part = clip(part, 80);
            let added = match cell.map(|cell| (cell, cell.median)) {
                Some((cell, Some(median))) => {
                    let title = format!("{part}, {}", tooltip(cell, median));
                    bar.add(number, median, cell.unit, title)
                }
                Some((cell, None)) => Err(cell.reason.clone().unwrap_or_default()),
                None => Err("this run has no such cell".to_owned()),
            };
            match added.map_err(|reason| clip(&reason, 200)) {
                Err(reason) if reason.is_empty() => bar.lacking.push(part),
                Err(reason) => bar.lacking.push(format!("{part} ({reason})")),
                Ok(()) => {}
            }
        }
        bar
    }

    fn printed(&self, parts: &[String], unit: Unit) -> Bar {
        let mut bar = Bar::default();
        for (number, (part, published)) in parts.iter().zip(&self.published).enumerate() {
            let part = clip(part, 80);
            let is_added = published.is_some_and(|published| {
                let title = format!("{part}, {}", printed_words(published, unit));
                bar.add(number, published.value, unit, title).is_ok()
            });
            if !is_added {
                bar.lacking.push(part);
            }
        }
        bar
    }
}

/// The segments of a bar, and what is left of the whole: other parts, or a value that is missing.
fn segments(parts: &[String], at: &Point, bar: &Bar, x: &Scale, is_published: bool) -> Markup {
    let height = HEIGHTS[usize::from(is_published)];
    let mut end = 0.0f64;
    let segments = bar.shares.iter().map(|share| {
        let from = end;
        end = (end + share.percent).min(f64::MAX);
        let letter = letter(share.number);
        let words = [format!("{letter} {:.1} %", share.percent), letter];
        let kind = if is_published { "share hollow" } else { "share" };
        html! {
            g class=(format!("{kind} {}", Look::Series(share.number).class()))
                data-part=(Exact(&parts[share.number])) data-at=(json(at)) data-value=(share.value) {
                title { (clean(&share.title)) }
                (segment([from, end], x, height, &words, false))
            }
        }
    });
    let segments: Vec<Markup> = segments.collect();
    html! {
        @for segment in segments { (segment) }
        (remainder(at, bar, x, height, is_published))
    }
}

/// The remainder of the whole behind the segments: other parts, or one that is missing. That is
/// shown where nothing is left, too.
fn remainder(at: &Point, bar: &Bar, x: &Scale, height: f64, is_published: bool) -> Markup {
    let (end, rest) = (bar.sum(), bar.rest().max(0.0));
    let amount = format!("{rest:.1} %");
    let lacking = bar.lacking.join(", ");
    let is_absent = !bar.lacking.is_empty() && !is_published;
    let (title, words) = match (bar.lacking.is_empty(), is_published) {
        (true, _) => (
            format!("other: {amount}"),
            [format!("other {amount}"), amount],
        ),
        (false, true) => {
            let title = format!("not published: {lacking}");
            (title, ["not published".to_owned(), String::new()])
        }
        (false, false) => {
            let title = format!("no value: {lacking}; {amount} are left for it and others");
            (title, ["× no value".to_owned(), "×".to_owned()])
        }
    };
    html! {
        @if rest > LEAST || is_absent {
            g class=(if is_absent { "rest absent" } else { "rest" }) data-at=(json(at)) {
                title { (clean(&title)) }
                (segment([end, end + rest], x, height, &words, is_absent))
            }
        }
    }
}

/// A rectangle, and the first of `words` that has room in it at each width of the figure. Where
/// they must be shown the last of them need no room, and begin where the rectangle does.
fn segment(
    [from, to]: [f64; 2],
    x: &Scale,
    height: f64,
    words: &[String; 2],
    must: bool,
) -> Markup {
    let (left, right) = (x.at(from), x.at(to));
    let fitting = PLOTS.map(|plot| {
        let room = (right - left) / 100.0 * plot - MARGIN;
        let fitting = words.iter().position(|words| width(words) <= room);
        fitting.or(must.then_some(words.len() - 1))
    });
    let (place, anchor) = match must {
        true => (left + 0.8, "start"),
        false => ((left + right) / 2.0, "middle"),
    };
    html! {
        rect x=(percent(left)) width=(percent(right - left)) height=(pixels(height)) {}
        @for (number, words) in words.iter().enumerate().filter(|(_, words)| !words.is_empty()) {
            @let fits = |plot: &usize| fitting[*plot] == Some(number);
            @let plots: Vec<usize> = (0..PLOTS.len()).filter(fits).collect();
            @let classes: Vec<String> = plots.iter().map(|plot| format!("w{plot}")).collect();
            @if !plots.is_empty() {
                text class=[(plots.len() < PLOTS.len()).then(|| classes.join(" "))]
                    x=(percent(place)) y=(pixels(height / 2.0 + 4.0)) text-anchor=(anchor) { (words) }
            }
        }
    }
}

/// The letter that names a part in a bar, where a colour may not be seen.
fn letter(number: usize) -> String {
    let letter = u8::try_from(number).map_or(b'?', |number| b'A'.saturating_add(number));
    char::from(letter).to_string()
}

fn name(number: usize, part: &str) -> Markup {
    let class = Look::Series(number).class();
    let drawing = html! {
        g.share { (square()) text x="7" y="11" text-anchor="middle" { (letter(number)) } }
    };
    html! {
        li class=(class) title=(clean(part)) { (sign(drawing)) bdi { (clip(part, 60)) } }
    }
}

fn sign(drawing: Markup) -> Markup {
    html! { svg.sign width="14" height="14" aria-hidden="true" { (drawing) } }
}

fn square() -> Markup {
    html! { rect width="14" height="14" {} }
}

/// Notes under the drawing: values that are missing, and sums above the whole.
fn caption(rows: &[(String, Row<'_>, Bar, Bar)]) -> Markup {
    let mut notes = Vec::new();
    let lacking = rows.iter().filter(|(.., bar, _)| !bar.lacking.is_empty());
    let lacking: Vec<_> = lacking.collect();
    if let [(_, row, bar, _), rest @ ..] = &lacking[..] {
        let more = match rest.len() {
            0 => String::new(),
            1 => ", and in one more row".to_owned(),
            n => format!(", and in {n} more rows"),
        };
        let (at, parts) = (clip(&row.at.to_string(), 120), bar.lacking.join(", "));
        notes.push(format!("No value: {at}: {parts}{more}."));
    }
    if rows.iter().any(|(.., bar, _)| bar.rest() < -0.05) {
        notes.push("The medians of a row's parts add up to more than 100 %.".to_owned());
    }
    html! {
        @if !notes.is_empty() { figcaption { bdi { (notes.join(" ")) } } }
    }
}
