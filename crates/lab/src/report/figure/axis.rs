//! Ticks and their labels, and what lies around a plot: its name, its key, the names of series.
//!
//! A plot has no fixed width: its values or positions are percentages of whatever room the page
//! gives it, and text keeps its size. Only heights are pixels.

use maud::{html, Markup};

use super::mark::{self, Look};
use super::plan::Panel;
use super::scale::{percent, pixels, Scale};
use crate::report::table::direction;
use crate::text::{clip, visible};
use crate::unit::{significant, Unit};

/// The widths, in pixels, that a plot has at least: in a narrow page and in a wide one.
const NARROW: f64 = 215.0;
const WIDE: f64 = 330.0;

/// The room that a text of the size of figures takes, in pixels; rather too much than too little,
/// because the reader's font is not known here.
pub(crate) fn width(text: &str) -> f64 {
    let wide = |c: char| match c {
        'i' | 'j' | 'l' | '.' | ',' | ' ' => 4.5,
        'm' | 'w' | 'M' | 'W' | '%' => 12.0,
        c if c.is_ascii() => 8.2,
        _ => 13.0,
    };
    text.chars().map(wide).sum()
}

/// A tick: where it stands, its value and its label.
pub(crate) struct Tick {
    pub(crate) at: f64,
    pub(crate) value: f64,
    pub(crate) label: String,
    /// True if the label fits in a narrow plot, and in a wide one.
    pub(crate) room: [bool; 2],
}

/// The ticks of an axis of values, all in one unit.
pub(crate) struct Ticks {
    pub(crate) all: Vec<Tick>,
    pub(crate) unit: Unit,
}

impl Ticks {
    /// Ticks for values in `unit`.
    pub(crate) fn of(scale: &Scale, unit: Unit) -> Ticks {
        let short = unit.short(&[scale.low, scale.high]);
        let values = scale.ticks(5, short.per);
        Ticks {
            all: ticks(scale, values, |value| significant(value / short.per)),
            unit: short.unit,
        }
    }
}

/// Ticks at `values`, ascending, and which of their labels have room from left to right.
pub(crate) fn ticks(scale: &Scale, values: Vec<f64>, label: impl Fn(f64) -> String) -> Vec<Tick> {
    let labels: Vec<String> = values.iter().map(|&value| label(value)).collect();
    let widths: Vec<f64> = labels.iter().map(|label| width(label)).collect();
    let places: Vec<f64> = values.iter().map(|&value| scale.at(value)).collect();
    let kept = [NARROW, WIDE].map(|plot| {
        let pixels: Vec<f64> = places.iter().map(|at| at / 100.0 * plot).collect();
        thinned(&pixels, &widths)
    });
    let all = values.into_iter().zip(labels).zip(places).enumerate();
    all.map(|(place, ((value, label), at))| Tick {
        at,
        value,
        label,
        room: [kept[0][place], kept[1][place]],
    })
    .collect()
}

/// Labels below a plot, each at its tick.
pub(crate) fn bottom_labels(ticks: &[Tick]) -> Markup {
    html! {
        svg.labels height="18" aria-hidden="true" {
            @for tick in ticks {
                @let class = match tick.room {
                    [true, true] => "num",
                    [true, false] => "num narrow",
                    [false, true] => "num wide",
                    [false, false] => continue,
                };
                text class=(class) x=(percent(tick.at)) y="13" text-anchor="middle" { (tick.label) }
            }
        }
    }
}

/// Lines across a plot of that height at ticks that run from left to right.
pub(crate) fn grid(ticks: &[Tick], height: f64) -> Markup {
    html! {
        @for tick in ticks {
            line.grid x1=(percent(tick.at)) x2=(percent(tick.at)) y1="0" y2=(pixels(height)) {}
        }
    }
}

/// The metric, its unit, its good direction and the kind of its axis.
pub(crate) fn name(panel: &Panel<'_>, unit: Unit, scale: &Scale) -> Markup {
    html! {
        p.metric {
            b { bdi { (clip(panel.metric, 80)) } " (" (unit) ")" } " "
            span.dim {
                (direction(panel.better))
                @if scale.log { " · logarithmic" }
            }
        }
    }
}

/// The key: the kinds of marks that the figure has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Key {
    pub(crate) measured: bool,
    pub(crate) published: bool,
    pub(crate) dots: bool,
    pub(crate) missing: bool,
}

impl Key {
    pub(crate) fn markup(self) -> Markup {
        let entries = [
            (self.measured, "measured: median, 95 % interval"),
            (self.published, "published"),
            (self.dots, "one round"),
            (self.missing, "no value"),
        ];
        html! {
            ul.key {
                @for (place, (shown, words)) in entries.into_iter().enumerate() {
                    @if shown {
                        li {
                            svg.sign width="16" height="16" viewBox="-8 -8 16 16" aria-hidden="true" {
                                @match place {
                                    0 => { path.bar d="M0 -7V7M-3 -7h6M-3 7h6" {} circle.m r="4" {} },
                                    1 => circle.h r="6" {},
                                    2 => g.dots {
                                        circle r="1.4" cx="-4" cy="2" {} circle r="1.4" cy="-3" {} circle r="1.4" cx="4" cy="1" {}
                                    },
                                    _ => path.cross d="M-3.5 -3.5L3.5 3.5M-3.5 3.5L3.5 -3.5" {},
                                }
                            }
                            (words)
                        }
                    }
                }
            }
        }
    }
}

/// The name of a series or a reference with its sign; `top` is its height beside a wide plot.
pub(crate) fn series_name(look: Look, words: &str, top: Option<f64>) -> Markup {
    let words: String = words.chars().map(visible).collect();
    html! {
        li class=(look.class()) style=[top.map(|top| format!("top:{top:.0}px"))] title=(words) {
            svg.sign width="14" height="14" viewBox="-7 -7 14 14" aria-hidden="true" { (mark::shape(look)) }
            bdi { (clip(&words, 60)) }
        }
    }
}

/// Moves `places` apart until neighbours are `gap` from each other, each as near to where it
/// wanted to be as that allows, all within `low..=high` where there is room for all.
pub(crate) fn apart(places: &mut [f64], gap: f64, low: f64, high: f64) {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by(|&a, &b| places[a].total_cmp(&places[b]));
    // Blocks of touching labels, each centred on the mean of its wishes.
    let mut blocks: Vec<(f64, usize)> = Vec::new(); // first place, how many
    for &index in &order {
        blocks.push((places[index].clamp(low, high.max(low)), 1));
        while let [.., (above, many), (below, few)] = blocks[..] {
            if below - above >= gap * many as f64 {
                break;
            }
            let (m, f) = (many as f64, few as f64);
            let first = (above * m + (below - gap * m) * f) / (m + f);
            let last = high - gap * (m + f - 1.0);
            blocks.truncate(blocks.len() - 2);
            blocks.push((first.min(last).max(low), many + few));
        }
    }
    let spread = blocks
        .iter()
        .flat_map(|&(first, many)| (0..many).map(move |i| first + gap * i as f64));
    for (&index, place) in order.iter().zip(spread) {
        places[index] = place;
    }
}

/// Selects the labels at `places` (centres, ascending) with these widths that are shown so that
/// none touch: every second, third… where that is nearly as many as fit, else as many as fit.
pub(crate) fn thinned(places: &[f64], widths: &[f64]) -> Vec<bool> {
    let count = places.len();
    let clear =
        |a: usize, b: usize| (places[b] - places[a]).abs() >= (widths[a] + widths[b]) / 2.0 + 5.0;
    let Some(last) = count.checked_sub(1) else {
        return Vec::new();
    };
    let mut keep = vec![false; count];
    keep[0] = true;
    keep[last] = last == 0 || clear(0, last);
    let mut previous = 0;
    for index in 1..last {
        if clear(previous, index) && (!keep[last] || clear(index, last)) {
            keep[index] = true;
            previous = index;
        }
    }
    let fitting = keep.iter().filter(|&&kept| kept).count();
    let even = (1..=count)
        .find(|&stride| {
            (stride..count)
                .step_by(stride)
                .all(|i| clear(i - stride, i))
        })
        .unwrap_or(count);
    if count.div_ceil(even) as f64 >= 0.7 * fitting as f64 {
        keep = (0..count).map(|index| index % even == 0).collect();
    }
    keep
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_that_collide_move_apart_and_stay_inside() {
        let mut places = [100.0, 101.0, 20.0, 102.0];
        apart(&mut places, 16.0, 10.0, 300.0);
        assert_eq!(places[2], 20.0);
        assert_eq!(places[1] - places[0], 16.0);
        assert_eq!(places[3] - places[1], 16.0);
        assert!((places[1] - 101.0).abs() < 1e-9);
        let mut low = [299.0, 300.0, 300.0];
        apart(&mut low, 16.0, 10.0, 300.0);
        assert_eq!(low, [268.0, 284.0, 300.0]);
    }

    #[test]
    fn tick_labels_never_touch() {
        let keep = thinned(&[0.0, 4.0, 60.0, 118.0, 120.0], &[20.0; 5]);
        assert_eq!(keep, [true, false, true, false, true]);
        assert_eq!(thinned(&[], &[]), Vec::<bool>::new());
        assert_eq!(thinned(&[5.0], &[500.0]), [true]);
        // 1, 2, 4 … 16384 at equal distances: every second one, not the first eight and gaps.
        let powers: Vec<f64> = (0..15).map(|i| 27.0 * f64::from(i)).collect();
        let widths: Vec<f64> = (0..15).map(|i| width(&(1 << i).to_string())).collect();
        let even: Vec<bool> = (0..15).map(|i| i % 2 == 0).collect();
        assert_eq!(thinned(&powers, &widths), even);
    }
}
