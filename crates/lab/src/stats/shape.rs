//! The shape of a cell's values: whether they have one mode and light tails. If not, a median tells
//! half of it.
//!
//! Both tests look at logarithms where all values are positive, so that a lognormal noise counts as
//! well-behaved. Their thresholds were set by simulation so that either is exceeded by less than
//! one in a hundred samples of normal, lognormal or uniform noise; `the_rates_of_both_tests`
//! measures that. The logarithm would hide a power law, whose logarithm is exponential: a value of
//! ten times the median is a tail whatever the spread of the others.

use std::fmt;

use super::median;

/// Fewer values show no shape.
const VALUES_MIN: usize = 10;

/// Differences below this are of no interest, whatever their shape: 5 %.
const DIFFERENCE_MIN: f64 = 0.05;

/// The logarithm of the multiple of the median from which a value is far, however wide the others
/// spread: 10.
const FAR: f64 = std::f64::consts::LN_10;

/// A shape of a cell's values other than a single mode with light tails.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// Two groups with a gap between them.
    Bimodal {
        /// Values.
        n: usize,
        /// Those of the smaller group.
        apart: usize,
        /// The smaller group's median over the other's; `None` if not all values are positive.
        ratio: Option<f64>,
    },
    /// Some values far from the rest, on one side or both.
    HeavyTailed {
        /// Values.
        n: usize,
        /// Those that are far.
        far: usize,
        /// The farthest value over the median; `None` if not all values are positive.
        ratio: Option<f64>,
    },
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = |ratio: Option<f64>| {
            ratio.map_or_else(String::new, |ratio| format!(", at {ratio:.3} times"))
        };
        match self {
            Shape::Bimodal { n, apart, ratio } => write!(
                f,
                "bimodal: {apart} of {n} values form a group of their own{}{}",
                times(*ratio),
                if ratio.is_some() { " the others" } else { "" }
            ),
            Shape::HeavyTailed { n, far, ratio } => write!(
                f,
                "heavy-tailed: {far} of {n} values lie far outside the spread of the others{}{}",
                times(*ratio),
                if ratio.is_some() { " the median" } else { "" }
            ),
        }
    }
}

/// The shape of a cell's values; `None` if they look like a single hill with light tails, or are
/// fewer than ten.
pub fn shape(values: &[f64]) -> Option<Shape> {
    if values.len() < VALUES_MIN {
        return None;
    }
    let positive = values.iter().all(|value| *value > 0.0);
    let mut kept: Vec<f64> = match positive {
        true => values.iter().map(|value| value.ln()).collect(),
        false => values.to_vec(),
    };
    kept.sort_by(f64::total_cmp);
    bimodal(&kept, positive).or_else(|| heavy_tailed(&kept, positive))
}

/// The best split of the sorted values into two groups (Otsu's criterion): bimodal where the
/// difference of the groups explains most of the variance. Normal noise reaches 64 %, uniform
/// noise 75 %, and small samples more.
fn bimodal(sorted: &[f64], positive: bool) -> Option<Shape> {
    let n = sorted.len();
    let size = n as f64;
    // One or two strays are a tail and not a mode.
    let least = (0.15 * size).ceil().max(3.0) as usize;
    let total: f64 = sorted.iter().sum();
    let mean = total / size;
    let variance: f64 = sorted.iter().map(|value| (value - mean).powi(2)).sum();
    let mut below = 0.0;
    let mut best = (0.0, 0);
    for (at, value) in sorted.iter().enumerate() {
        if (least..=n - least).contains(&at) {
            let (a, b) = (at as f64, size - at as f64);
            let between = a * b / size * (below / a - (total - below) / b).powi(2);
            if between > best.0 {
                best = (between, at);
            }
        }
        below += value;
    }
    let (between, at) = best;
    let (low, high) = sorted.split_at(at);
    let (small, large) = if low.len() < high.len() {
        (low, high)
    } else {
        (high, low)
    };
    let distance = median(small)? - median(large)?;
    let matters = !positive || distance.abs() >= DIFFERENCE_MIN;
    (matters && variance > 0.0 && between / variance > 0.84 + 1.2 / size).then(|| Shape::Bimodal {
        n,
        apart: small.len(),
        ratio: positive.then(|| distance.exp()),
    })
}

/// Values far from the median, measured by the median absolute deviation, which they do not widen;
/// and, of positive values, those of ten times the median or more.
fn heavy_tailed(sorted: &[f64], positive: bool) -> Option<Shape> {
    let n = sorted.len();
    let middle = median(sorted)?;
    let deviations: Vec<f64> = sorted.iter().map(|value| (value - middle).abs()).collect();
    // The factor makes it the standard deviation of normal noise.
    let spread = 1.4826 * median(&deviations)?;
    if spread == 0.0 && !positive {
        return None;
    }
    let limit = ((4.6 + 36.0 / n as f64) * spread).max(if positive { DIFFERENCE_MIN } else { 0.0 });
    let is_far = |&value: &f64| {
        let distance = value - middle;
        distance.abs() > limit || positive && distance >= FAR
    };
    let far: Vec<f64> = sorted.iter().copied().filter(is_far).collect();
    let farthest = far
        .iter()
        .max_by(|a, b| (*a - middle).abs().total_cmp(&(*b - middle).abs()))?;
    Some(Shape::HeavyTailed {
        n,
        far: far.len(),
        ratio: positive.then(|| (farthest - middle).exp()),
    })
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha8Rng;
    use rand_core::{Rng, SeedableRng};

    use super::*;

    fn uniform(random: &mut ChaCha8Rng) -> f64 {
        ((random.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    fn normal(random: &mut ChaCha8Rng) -> f64 {
        (-2.0 * uniform(random).ln()).sqrt() * (std::f64::consts::TAU * uniform(random)).cos()
    }

    /// Returns the shares of samples of `n` draws that are called bimodal and heavy-tailed.
    fn rates(n: usize, mut draw: impl FnMut(&mut ChaCha8Rng) -> f64) -> (f64, f64) {
        const SAMPLES: usize = 4000;
        let mut random = ChaCha8Rng::seed_from_u64(n as u64);
        let (mut two, mut tails) = (0, 0);
        for _ in 0..SAMPLES {
            let values: Vec<f64> = (0..n).map(|_| draw(&mut random)).collect();
            match shape(&values) {
                Some(Shape::Bimodal { .. }) => two += 1,
                Some(Shape::HeavyTailed { .. }) => tails += 1,
                None => {}
            }
        }
        (two as f64 / SAMPLES as f64, tails as f64 / SAMPLES as f64)
    }

    #[test]
    fn the_rates_of_both_tests() {
        println!(
            "  n  normal         lognormal 5 %  lognormal 30 % lognormal 50 % uniform        \
             two modes      1 in 10 slow   Pareto 0.7     Pareto 1.1"
        );
        for n in [10, 16, 24, 40, 60] {
            let alarms = [
                // About zero: the scale is linear.
                rates(n, normal),
                rates(n, |random| (0.05 * normal(random)).exp()),
                rates(n, |random| (0.3 * normal(random)).exp()),
                rates(n, |random| (0.5 * normal(random)).exp()),
                rates(n, |random| 1.0 + uniform(random)),
            ];
            // 3 % of noise about 1 and 1.5, and calls that take four times as long now and then.
            let noise = |random: &mut ChaCha8Rng| (0.03 * normal(random)).exp();
            let modes = rates(n, |random| {
                let slow = uniform(random) < 0.4;
                noise(random) * if slow { 1.5 } else { 1.0 }
            });
            let slow = rates(n, |random| {
                let slow = uniform(random) < 0.1;
                noise(random) * if slow { 4.0 } else { 1.0 }
            });
            let powers = [0.7, 1.1];
            let pareto = powers.map(|power| rates(n, |random| uniform(random).powf(-1.0 / power)));
            let line: Vec<String> = alarms
                .iter()
                .chain([&modes, &slow])
                .chain(&pareto)
                .map(|(two, tails)| format!("{:5.2} % {:5.2} %", 100.0 * two, 100.0 * tails))
                .collect();
            println!("{n:3}  {}", line.join("  "));
            for (two, tails) in alarms {
                assert!(two < 0.01 && tails < 0.01, "{n}: {two} {tails}");
            }
            // Of samples in which there is something to see; a group of fewer than three is none.
            assert!(modes.0 > if n < 24 { 0.7 } else { 0.97 }, "{n}: {modes:?}");
            let any = 1.0 - 0.9f64.powi(n as i32);
            assert!(slow.0 + slow.1 > 0.98 * any, "{n}: {slow:?} of {any}");
            for (power, found) in powers.into_iter().zip(pareto) {
                // The share of samples with a value beyond ten times the median of the power law.
                let any = 1.0 - (1.0 - 0.5 * 10f64.powf(-power)).powi(n as i32);
                assert!(found.1 > 0.9 * any, "{n}, {power}: {found:?} of {any}");
            }
        }
    }

    #[test]
    fn ten_times_the_median_is_a_tail_however_wide_the_others_spread() {
        // Quantiles of a power law of 0.7: their logarithms spread so far that none is an outlier.
        let mut values: Vec<f64> = (0..20)
            .map(|place| ((20.0 - f64::from(place)) / 20.5).powf(-1.0 / 0.7))
            .collect();
        let Some(Shape::HeavyTailed { n: 20, far, ratio }) = shape(&values) else {
            panic!("{:?}", shape(&values))
        };
        assert_eq!(far, 2);
        assert!((25.0..35.0).contains(&ratio.unwrap()), "{ratio:?}");
        // As far below the median as above it: a small value costs no time.
        for value in &mut values {
            *value = 1.0 / *value;
        }
        assert_eq!(shape(&values), None);
        // Nor is there a multiple of the median if a value is not positive.
        for value in &mut values {
            *value = 1.0 / *value;
        }
        values[0] = 0.0;
        let linear = shape(&values);
        assert!(
            matches!(linear, Some(Shape::HeavyTailed { ratio: None, .. })),
            "{linear:?}"
        );
    }

    #[test]
    fn two_values_apart_are_a_tail_and_three_a_mode() {
        let mut values = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 2.0, 2.02, 2.01];
        assert!(matches!(
            shape(&values),
            Some(Shape::Bimodal { apart: 3, .. })
        ));
        values[9] = 0.99;
        assert!(matches!(
            shape(&values),
            Some(Shape::HeavyTailed { far: 2, .. })
        ));
    }

    #[test]
    fn a_shape_is_said_in_a_sentence() {
        let mut values = vec![1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 0.99, 1.0, 1.01];
        assert_eq!(shape(&values), None);
        values[3] = 3.0;
        let said = shape(&values).unwrap().to_string();
        assert!(
            said.starts_with("heavy-tailed: 1 of 10 values lie far outside"),
            "{said}"
        );
        assert!(said.contains("at 3.000 times the median"), "{said}");
        for value in &mut values[..4] {
            *value = 2.0;
        }
        let said = shape(&values).unwrap().to_string();
        assert!(
            said.starts_with("bimodal: 4 of 10 values form a group of their own, at 2.0"),
            "{said}"
        );
    }

    #[test]
    fn small_differences_few_values_and_no_noise_have_no_shape() {
        assert_eq!(shape(&[1.0, 9.0, 1.0, 9.0, 1.0, 9.0, 1.0, 9.0, 1.0]), None);
        assert_eq!(shape(&[7.0; 20]), None);
        assert_eq!(shape(&[0.0; 20]), None);
        let mut counts = [1000.0; 20];
        counts[..8].fill(1001.0);
        assert_eq!(shape(&counts), None);
        counts[19] = 1040.0;
        assert_eq!(shape(&counts), None);
        counts[19] = 2000.0;
        assert!(shape(&counts).is_some());
    }
}
