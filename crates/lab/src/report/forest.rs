//! The forest plot: every claim's figure and interval beside its threshold.
//!
//! Claims have figures of different units and sizes. Each is therefore divided by its threshold,
//! so that one logarithmic axis serves a whole panel: left of 1 is below the threshold, right of
//! it above. A claim with two thresholds is divided by their geometric mean.

use maud::{html, Markup};

use super::figure::axis::{self, bottom_labels, grid, Tick};
use super::figure::scale::{percent, pixels, Scale};
use super::table::{self, statements};
use super::words::{ends, figure, published, symbol, words, Exact};
use crate::experiment::Standing;
use crate::result::{ClaimResult, ExperimentResult, RunResult, Verdict};
use crate::text::clip;

/// The height of a track, in pixels.
const HEIGHT: f64 = 26.0;

/// The ranges that an axis may have, as the factor around 1, and its ticks.
const RANGES: [f64; 6] = [1.12, 1.3, 1.6, 2.2, 4.5, 11.0];
const TICKS: [f64; 19] = [
    0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 0.9, 0.95, 0.98, 1.0, 1.02, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0,
    5.0, 10.0,
];

/// This share of the figures must lie inside the range; the others are arrows at its ends, so
/// that one distant figure does not compress all the others.
const INSIDE: f64 = 0.7;

/// A claim in units of its threshold; `None` for what has no place on a logarithmic axis.
struct Relative {
    measured: Option<f64>,
    ends: [Option<f64>; 2],
    at_least: Option<f64>,
    at_most: Option<f64>,
    published: Option<f64>,
    /// The band around each threshold within which the machine differs from itself.
    noise: Option<[f64; 2]>,
}

impl Relative {
    /// `None` for a claim whose threshold is not positive, such as a count that must be 0.
    fn of(experiment: &ExperimentResult, claim: &ClaimResult) -> Option<Relative> {
        let bound = claim.threshold;
        let unit = match (bound.at_least, bound.at_most) {
            (Some(low), Some(high)) if low > 0.0 => (low.ln() / 2.0 + high.ln() / 2.0).exp(),
            (Some(limit), None) | (None, Some(limit)) => limit,
            _ => return None,
        };
        if !(unit > 0.0 && unit.is_finite()) {
            return None;
        }
        let relative = |value: Option<f64>| value.map(|value| value / unit);
        let noise = experiment
            .noise
            .iter()
            .find(|noise| noise.metric == claim.metric);
        Some(Relative {
            measured: relative(claim.measured),
            ends: ends(claim.ci95).map(relative),
            at_least: relative(bound.at_least),
            at_most: relative(bound.at_most),
            published: relative(claim.published),
            noise: noise.map(|noise| noise.ci95),
        })
    }

    /// Returns the largest distance of the claim's marks from 1, as a factor of at least 1.
    fn reach(&self) -> f64 {
        let marks = [
            self.measured,
            self.ends[0],
            self.ends[1],
            self.at_least,
            self.at_most,
        ];
        let away = |value: f64| match value > 0.0 {
            true => value.max(1.0 / value),
            false => f64::INFINITY,
        };
        marks.into_iter().flatten().map(away).fold(1.0, f64::max)
    }
}

/// The panel of one standing; empty if the run has no statement of it that was measured.
pub(super) fn panel(run: &RunResult, standing: Standing, anchor: &str) -> Markup {
    let rows: Vec<(usize, &ExperimentResult, &ClaimResult)> = statements(run, standing)
        .into_iter()
        .enumerate()
        .map(|(number, (experiment, claim))| (number, experiment, claim))
        .filter(|(_, _, claim)| claim.measured.is_some())
        .collect();
    let left_out = statements(run, standing).len() - rows.len();
    let relative: Vec<Option<Relative>> = rows
        .iter()
        .map(|(_, experiment, claim)| Relative::of(experiment, claim))
        .collect();
    let scale = scale(&relative);
    let ticks = ticks(&scale);
    let noise = relative.iter().flatten().any(|it| it.noise.is_some());
    let published = relative.iter().flatten().any(|it| it.published.is_some());
    html! {
        @if !rows.is_empty() {
            div.plot.forest data-scale="log" data-way="right" {
                @for ((number, experiment, claim), relative) in rows.iter().zip(&relative) {
                    div class=(format!("row v-{}", claim.verdict)) data-forest=(Exact(&claim.id)) {
                        a.label href=(format!("#{anchor}-{number}")) {
                            span.sign aria-hidden="true" { (symbol(claim.verdict)) }
                            span.hidden { (words(claim.verdict)) ": " }
                            bdi { (clip(&claim.text, 110)) }
                        }
                        @match relative {
                            Some(relative) => (track(relative, claim, &scale, &ticks)),
                            None => p.off { "counted; has no place on this axis" },
                        }
                        (figures(experiment, claim))
                    }
                }
                div.row.scale aria-hidden="true" {
                    span.label {}
                    (bottom_labels(&ticks))
                    @for tick in &ticks {
                        i.tick data-tick=(tick.value) data-pixel=(pixels(tick.at)) {}
                    }
                    p.across { "measured ÷ threshold, logarithmic" }
                }
            }
            (key(noise, published))
        }
        @if left_out > 0 {
            p.where { (left_out) " without a figure " (if left_out == 1 { "is" } else { "are" }) " in the table only." }
        }
    }
}

/// The figure in its own unit, its interval, and its criterion.
fn figures(experiment: &ExperimentResult, claim: &ClaimResult) -> Markup {
    let (measured, interval) = figure(experiment, claim);
    html! {
        p.figures {
            b { (measured) } " " span { (interval) } " "
            span.dim { bdi { (clip(&claim.criterion, 60)) } }
        }
    }
}

/// A range that holds most of the claims, the same on both sides of 1.
fn scale(all: &[Option<Relative>]) -> Scale {
    let reaches: Vec<f64> = all.iter().flatten().map(Relative::reach).collect();
    let holds = |range: f64| {
        let inside = reaches
            .iter()
            .filter(|&&reach| reach * 1.01 <= range)
            .count();
        inside as f64 >= INSIDE * reaches.len() as f64
    };
    let range = RANGES.into_iter().find(|&range| holds(range));
    let range = range.unwrap_or(RANGES[RANGES.len() - 1]);
    Scale::spread(true, 1.0 / range, range, 3.0, 97.0, None)
}

fn ticks(scale: &Scale) -> Vec<Tick> {
    // Few enough to be read; those near 1 only where the range is narrow.
    let nearest = (scale.high - 1.0) / 9.0;
    let values = TICKS.into_iter().filter(|&tick| {
        scale.holds(tick) && (tick == 1.0 || (tick.max(1.0 / tick) - 1.0) > nearest)
    });
    axis::ticks(scale, values.collect(), |value| value.to_string())
}

fn track(relative: &Relative, claim: &ClaimResult, scale: &Scale, ticks: &[Tick]) -> Markup {
    let at = |value: f64| scale.clamped(value);
    let middle = HEIGHT / 2.0;
    let low = relative.at_least.map_or(0.0, at);
    let high = relative.at_most.map_or(100.0, at);
    let limits: Vec<f64> = relative
        .at_least
        .into_iter()
        .chain(relative.at_most)
        .collect();
    let measured = relative.measured.unwrap_or(f64::NAN);
    let has_interval = claim.ci95.is_some();
    let [from, to] = relative.ends;
    let outside = |value: Option<f64>| match value {
        Some(value) => !scale.holds(value),
        None => true,
    };
    html! {
        svg.track height=(pixels(HEIGHT)) aria-hidden="true" {
            rect.met x=(percent(low)) width=(percent((high - low).max(0.0))) y="0" height=(pixels(HEIGHT)) {}
            (grid(ticks, HEIGHT))
            @if let Some([least, most]) = relative.noise {
                @for limit in &limits {
                    @let (from, to) = (at(limit * least), at(limit * most));
                    rect.noise x=(percent(from)) width=(percent((to - from).max(0.0)))
                        y=(pixels(middle - 7.0)) height="14" {}
                }
            }
            @for limit in &limits {
                line.threshold data-threshold=(limit) x1=(percent(at(*limit))) x2=(percent(at(*limit)))
                    y1="0" y2=(pixels(HEIGHT)) {}
            }
            g.mark data-forest-value=(measured) data-pixel=(pixels(at(measured))) {
                title { (claim.unit.show(claim.measured.unwrap_or(f64::NAN))) ", " (clip(&claim.criterion, 120)) }
                @if has_interval {
                    @let (from_at, to_at) = (from.map_or(1.0, at), to.map_or(99.0, at));
                    line.bar x1=(percent(from_at)) x2=(percent(to_at)) y1=(pixels(middle)) y2=(pixels(middle)) {}
                    (end(from_at, outside(from), "M4 -4L-1 0L4 4"))
                    (end(to_at, outside(to), "M-4 -4L1 0L-4 4"))
                }
                svg.at x=(percent(at(measured))) y=(pixels(middle)) { (body(claim.verdict, scale, measured)) }
            }
            @if let Some(value) = relative.published {
                g.published data-forest-published=(value) data-pixel=(pixels(at(value))) {
                    title { "published " (published(claim)) }
                    svg.at x=(percent(at(value))) y=(pixels(middle)) { path.h d="M0 -7L7 0L0 7L-7 0z" {} }
                }
            }
        }
    }
}

/// The end of an interval: a cap, or an arrow where it goes on outside the axis.
fn end(at: f64, outside: bool, arrow: &str) -> Markup {
    let shape = if outside { arrow } else { "M0 -4v8" };
    html! { svg.at x=(percent(at)) y=(pixels(HEIGHT / 2.0)) { path.bar d=(shape) {} } }
}

/// The mark of the figure: a disc, or an arrow head where the figure is outside the axis.
fn body(verdict: Verdict, scale: &Scale, measured: f64) -> Markup {
    let shape = match verdict {
        _ if measured > scale.high => "M-5 -6L5 0L-5 6z",
        _ if !scale.holds(measured) => "M5 -6L-5 0L5 6z",
        Verdict::Inconclusive => "M-4.5 -4.5h9v9h-9z",
        _ => "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z",
    };
    html! { path.m d=(shape) {} }
}

fn key(noise: bool, published: bool) -> Markup {
    let entry = |inner: Markup, words: &str| {
        html! {
            li { svg.sign width="22" height="16" viewBox="-11 -8 22 16" aria-hidden="true" { (inner) } (words) }
        }
    };
    html! {
        ul.key {
            (entry(html! { path.bar d="M-10 0H10M-10 -4v8M10 -4v8" {} circle.m r="5" {} }, "measured, 95 % interval"))
            (entry(html! { path.threshold d="M-4 -8V8" {} rect.met x="-4" y="-8" width="15" height="16" {} },
                "threshold; shaded where the criterion is met"))
            @if published { (entry(html! { path.h d="M0 -7L7 0L0 7L-7 0z" {} }, "published")) }
            @if noise { (entry(html! { rect.noise x="-10" y="-7" width="20" height="14" {} }, "noise floor")) }
            (entry(html! { path.m d="M-5 -6L5 0L-5 6z" {} }, "outside the axis"))
        }
    }
}

/// The heading of a standing with its counts, each with sign, word and colour.
pub(super) fn counts(run: &RunResult, standing: Standing) -> Markup {
    let [no, open, yes, untestable] = super::words::verdicts(standing);
    html! {
        p.summary data-standing=(standing_name(standing)) {
            span.name { (table::name(standing)) }
            @for verdict in [yes, no, open, untestable] {
                @let count = table::counted(run, standing, verdict);
                @if count > 0 { span.tally { b { (count) } " " (badge(verdict)) } }
            }
        }
    }
}

/// The standing as attributes have it.
pub(super) fn standing_name(standing: Standing) -> &'static str {
    match standing {
        Standing::Claim => "claim",
        Standing::Target => "target",
    }
}

/// A verdict with sign, word and colour.
pub(super) fn badge(verdict: Verdict) -> Markup {
    html! {
        span class=(format!("verdict v-{verdict}")) {
            span aria-hidden="true" { (symbol(verdict)) } " " (words(verdict))
        }
    }
}
