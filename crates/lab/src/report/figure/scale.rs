//! From values to pixels.

/// Maps values of a domain to places: pixels, or percentages of a width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    /// Logarithmic, or linear.
    pub(crate) log: bool,
    /// The least value drawn; positive on a logarithmic scale.
    pub(crate) low: f64,
    /// The greatest value drawn.
    pub(crate) high: f64,
    /// The pixel of `low`.
    pub(crate) from: f64,
    /// The pixel of `high`.
    pub(crate) to: f64,
    /// The place of zero, which a logarithmic scale cannot reach.
    pub(crate) zero: Option<f64>,
}

/// Values that span more than this are drawn on a logarithmic scale.
const LOG_SPAN: f64 = 20.0;

/// A linear axis starts at zero unless all of its values lie within this factor.
const CLOSE: f64 = 1.6;

/// Below this a linear scale shows everything at zero.
const SMALLEST_RANGE: f64 = 1e-300;

/// The share of its length that a logarithmic scale keeps for zero.
const ZERO_STRIP: f64 = 0.09;

impl Scale {
    /// A scale for measured values: logarithmic where they span more than 20 ×, from zero
    /// otherwise, unless they lie so close together that zero would hide every difference.
    pub(crate) fn for_values(values: &[f64], from: f64, to: f64) -> Scale {
        let (least, most) = extent(values);
        let positive: Vec<f64> = values.iter().copied().filter(|&v| v > 0.0).collect();
        let (smallest, _) = extent(&positive);
        if least >= 0.0 && !positive.is_empty() && most / smallest > LOG_SPAN {
            return Scale::log(&positive, least == 0.0, from, to);
        }
        let (mut low, mut high) = (least, most);
        if least > 0.0 && most / least < CLOSE {
            // At least a tenth of the value: noise must not fill the whole drawing.
            let room = (0.1 * most - (most - least)).max(0.0) / 2.0 + (most - least) * 0.08;
            low -= room;
            high += room;
        } else {
            low = low.min(0.0);
            high = high.max(0.0);
            high += (high - low) * 0.04;
        }
        Scale::linear(low, high, from, to)
    }

    /// A scale for the positions of an axis, padded so that no mark sits on the frame.
    pub(crate) fn for_axis(values: &[f64], log: bool, from: f64, to: f64) -> Scale {
        let pad = (to - from) * 0.06;
        let positive: Vec<f64> = values.iter().copied().filter(|&v| v > 0.0).collect();
        let (least, most) = extent(values);
        let (from, to) = (from + pad, to - pad);
        if log && !positive.is_empty() && least >= 0.0 {
            let (low, high) = extent(&positive);
            let zero = (least == 0.0).then_some(from);
            let from = zero.map_or(from, |zero| zero + (to - from) * ZERO_STRIP);
            return Scale::spread(true, low, high, from, to, zero);
        }
        Scale::spread(false, least, most, from, to, None)
    }

    fn linear(low: f64, high: f64, from: f64, to: f64) -> Scale {
        Scale::spread(false, low, high, from, to, None)
    }

    fn log(positive: &[f64], zero: bool, from: f64, to: f64) -> Scale {
        let (low, high) = extent(positive);
        let (low, high) = (below(low * 0.98), above(high * 1.02));
        let strip = (to - from) * ZERO_STRIP;
        if zero {
            Scale::spread(true, low, high, from + strip, to, Some(from + strip * 0.3))
        } else {
            Scale::spread(true, low, high, from, to, None)
        }
    }

    /// Widens the range if all values are the same, or too close to zero to be told apart:
    /// half of the least positive number is zero, and a quotient of two such differences NaN.
    pub(crate) fn spread(
        log: bool,
        low: f64,
        high: f64,
        from: f64,
        to: f64,
        zero: Option<f64>,
    ) -> Scale {
        let tiny = !log && low.abs().max(high.abs()) < SMALLEST_RANGE;
        let (low, high) = match (log, low < high) {
            (false, _) if tiny => (0.0, 1.0),
            (_, true) => (low, high),
            (true, false) => ((low / 2.0).max(f64::from_bits(1)), high * 2.0),
            (false, false) => (low - low.abs() / 2.0, high + high.abs() / 2.0),
        };
        Scale {
            log,
            low,
            high,
            from,
            to,
            zero,
        }
    }

    /// The pixel of `value`.
    pub(crate) fn at(&self, value: f64) -> f64 {
        if self.log && value <= 0.0 {
            return self.zero.unwrap_or(self.from);
        }
        let share = if self.log {
            (value.ln() - self.low.ln()) / (self.high.ln() - self.low.ln())
        } else {
            // Halves first: the difference of two huge numbers of opposite sign overflows.
            (value / 2.0 - self.low / 2.0) / (self.high / 2.0 - self.low / 2.0)
        };
        self.from + share * (self.to - self.from)
    }

    /// The pixel of `value`, or of the end of the scale that is nearest to it.
    pub(crate) fn clamped(&self, value: f64) -> f64 {
        if value.is_nan() || (self.log && value <= 0.0) {
            return self.zero.unwrap_or(self.from);
        }
        self.at(value.clamp(self.low, self.high))
    }

    /// Returns whether `value` is inside the drawn range.
    pub(crate) fn holds(&self, value: f64) -> bool {
        if self.log && value <= 0.0 {
            return self.zero.is_some() && value == 0.0;
        }
        value >= self.low && value <= self.high
    }

    /// As `data-scale` has it.
    pub(crate) fn kind(&self) -> &'static str {
        if self.log {
            "log"
        } else {
            "linear"
        }
    }

    /// Returns whether a linear scale leaves zero out, which a reader must be told.
    pub(crate) fn cut(&self) -> bool {
        !self.log && self.low > 0.0
    }

    /// About `target` values at round numbers, ascending. `unit` is how many of the axis' own
    /// unit one displayed unit is.
    pub(crate) fn ticks(&self, target: usize, unit: f64) -> Vec<f64> {
        let mut ticks = if self.log {
            log_ticks(self.low / unit, self.high / unit)
        } else {
            let step = step((self.high / unit - self.low / unit) / target.max(1) as f64);
            let first = (self.low / unit / step - 1e-9).ceil();
            (0..=3 * target.max(1))
                .map(|i| (first + i as f64) * step)
                .take_while(|tick| tick.is_finite())
                .take_while(|&tick| tick <= self.high / unit + step * 1e-9)
                .collect()
        };
        ticks.iter_mut().for_each(|tick| *tick *= unit);
        if self.zero.is_some() {
            ticks.insert(0, 0.0);
        }
        ticks
    }
}

/// Least and greatest; (0, 0) of nothing.
fn extent(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if least <= most {
        (least, most)
    } else {
        (0.0, 0.0)
    }
}

/// The round step (1, 2 or 5 times a power of ten) nearest above `raw`.
fn step(raw: f64) -> f64 {
    let power = 10f64.powf(raw.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|multiple| multiple * power)
        .find(|&step| step >= raw * 0.999)
        .unwrap_or(10.0 * power)
}

/// The greatest 1, 2 or 5 times a power of ten that is not above `value`.
fn below(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    [5.0, 2.0, 1.0]
        .into_iter()
        .map(|multiple| multiple * power)
        .find(|&round| round <= value && round > 0.0)
        .unwrap_or(value)
}

/// The least 1, 2 or 5 times a power of ten that is not below `value`.
fn above(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|multiple| multiple * power)
        .find(|&round| round >= value && round.is_finite())
        .unwrap_or(value)
}

/// Powers of ten, with twos and fives where there are few, and not all where there are many.
fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let decades = high.log10() - low.log10();
    let multiples: &[f64] = if decades < 1.2 {
        &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0]
    } else if decades < 2.6 {
        &[1.0, 2.0, 5.0]
    } else {
        &[1.0]
    };
    let every = (decades / 7.0).ceil().max(1.0) as usize;
    (first..=last)
        .step_by(every)
        .flat_map(|exponent| multiples.iter().map(move |m| m * 10f64.powi(exponent)))
        .filter(|&tick| tick >= low * 0.999 && tick <= high * 1.001 && tick.is_finite())
        .collect()
}

/// A length as SVG has it: a percentage of the plot.
pub(crate) fn percent(at: f64) -> String {
    format!("{at:.3}%")
}

/// A length in pixels.
pub(crate) fn pixels(at: f64) -> String {
    format!("{at:.2}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9 * a.abs().max(b.abs()).max(1.0)
    }

    #[test]
    fn a_linear_scale_starts_at_zero_and_is_proportional() {
        let scale = Scale::for_values(&[50.0, 100.0], 300.0, 20.0);
        assert!(!scale.log && scale.low == 0.0);
        assert!(near(scale.at(0.0), 300.0));
        let middle = (scale.at(0.0) + scale.at(80.0)) / 2.0;
        assert!(near(scale.at(40.0), middle));
    }

    #[test]
    fn close_values_get_a_cut_axis_of_at_least_a_tenth() {
        let scale = Scale::for_values(&[214.0, 215.0], 300.0, 20.0);
        assert!(scale.cut());
        assert!(scale.high - scale.low > 21.0);
        assert!(scale.low < 214.0 && scale.high > 215.0);
    }

    #[test]
    fn a_span_above_twenty_is_drawn_with_equal_ratios_as_equal_distances() {
        let scale = Scale::for_values(&[0.1, 212.0], 300.0, 20.0);
        assert!(scale.log);
        let decade = scale.at(1.0) - scale.at(10.0);
        assert!(decade > 0.0 && near(scale.at(10.0) - scale.at(100.0), decade));
        assert!(!Scale::for_values(&[10.0, 199.0], 300.0, 20.0).log);
    }

    #[test]
    fn zero_on_a_logarithmic_scale_has_a_place_of_its_own_below_everything() {
        let scale = Scale::for_values(&[0.0, 3.0, 4000.0], 300.0, 20.0);
        assert!(scale.log && scale.holds(0.0));
        assert!(scale.at(0.0) > scale.at(scale.low) + 10.0);
        assert!(scale.at(0.0) < 300.0);
        assert_eq!(scale.ticks(5, 1.0)[0], 0.0);
        let axis = Scale::for_axis(&[0.0, 1.0, 1024.0], true, 60.0, 500.0);
        assert!(axis.at(0.0) < axis.at(1.0) - 10.0);
    }

    #[test]
    fn degenerate_values_still_land_inside_the_frame() {
        for values in [
            vec![],
            vec![0.0],
            vec![5.0],
            vec![-3.0],
            vec![0.0, 0.0],
            vec![-1e308, 1e308],
            vec![1e-320, 1e300],
            vec![f64::MAX, f64::MIN_POSITIVE],
            vec![5e-324],
            vec![0.0, 5e-324],
            vec![-5e-324, 5e-324],
            vec![0.0, f64::MIN_POSITIVE],
            vec![1e-300],
        ] {
            let axis = |log| Scale::for_axis(&values, log, 20.0, 300.0);
            for scale in [
                Scale::for_values(&values, 300.0, 20.0),
                axis(false),
                axis(true),
            ] {
                for &value in &values {
                    let pixel = scale.at(value);
                    assert!((19.9..=300.1).contains(&pixel), "{values:?} {pixel}");
                }
                let ticks = scale.ticks(5, 1.0);
                let are_finite = ticks.iter().all(|tick| tick.is_finite());
                assert!(ticks.len() < 30 && are_finite, "{scale:?} {ticks:?}");
            }
        }
    }

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(
            Scale::linear(0.0, 104.0, 0.0, 1.0).ticks(5, 1.0),
            [0.0, 50.0, 100.0]
        );
        assert_eq!(
            Scale::linear(0.0, 2600.0, 0.0, 1.0).ticks(5, 1000.0),
            [0.0, 1000.0, 2000.0]
        );
        let decades = Scale::spread(true, 0.1, 1000.0, 0.0, 1.0, None).ticks(5, 1.0);
        assert_eq!(decades.len(), 5);
        assert!(near(decades[0], 0.1) && near(decades[4], 1000.0));
    }
}
