//! Medians, quantiles, paired log ratios and slopes.

/// The median of `values`; `None` where there are none, or where one is no number.
///
/// Of an even count it is the mean of the two in the middle.
pub fn median(values: &[f64]) -> Option<f64> {
    if values.is_empty() || values.iter().any(|value| value.is_nan()) {
        return None;
    }
    Some(median_in_place(&mut values.to_vec()))
}

/// The median of at least one number, which it reorders.
pub(super) fn median_in_place(values: &mut [f64]) -> f64 {
    let middle = values.len() / 2;
    let odd = values.len() % 2 == 1;
    if values.len() <= FEW {
        sort_few(values);
        return if odd {
            values[middle]
        } else {
            0.5 * values[middle - 1] + 0.5 * values[middle]
        };
    }
    let (below, &mut upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    if odd {
        return upper;
    }
    let lower = below.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    // Halves first: the sum of two large values may not be finite.
    0.5 * lower + 0.5 * upper
}

/// Up to this many values a sort without branches is faster than a selection; the bootstrap takes
/// thousands of medians of ten.
const FEW: usize = 16;

fn sort_few(values: &mut [f64]) {
    macro_rules! by_length {
        ($($length:literal)*) => {
            match values.len() {
                $($length => sort_network::<$length>(values),)*
                _ => {}
            }
        };
    }
    by_length!(2 3 4 5 6 7 8 9 10 11 12 13 14 15 16);
}

/// Odd-even transposition (Knuth, *The Art of Computer Programming* 3, section 5.3.4): with the
/// length known, all of it happens in registers.
fn sort_network<const LENGTH: usize>(values: &mut [f64]) {
    let Ok(values) = <&mut [f64; LENGTH]>::try_from(values) else {
        return;
    };
    let mut sorted = *values;
    for pass in 0..LENGTH {
        let mut left = pass % 2;
        while left + 1 < LENGTH {
            let (a, b) = (sorted[left], sorted[left + 1]);
            sorted[left] = if a < b { a } else { b };
            sorted[left + 1] = if a < b { b } else { a };
            left += 2;
        }
    }
    *values = sorted;
}

/// The quantile `at` (0 to 1) of `sorted` values, at least one; linear between neighbours
/// (definition 7 of Hyndman and Fan, "Sample quantiles in statistical packages", 1996).
pub fn quantile(sorted: &[f64], at: f64) -> f64 {
    let place = at.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let lower = place.floor() as usize;
    let upper = (lower + 1).min(sorted.len() - 1);
    sorted[lower] + (place - lower as f64) * (sorted[upper] - sorted[lower])
}

/// log(`of` / `to`) round by round; `None` in a round that lacks one of the two.
///
/// # Errors
/// The first round in which a value is zero or negative: it has no logarithm, and leaving the
/// round out would leave out exactly the extreme ones. Counts, which may be 0, are therefore
/// compared by difference, never by ratio.
pub fn log_ratios(of: &[Option<f64>], to: &[Option<f64>]) -> Result<Vec<Option<f64>>, usize> {
    let log = |round: usize, value: f64| {
        if value > 0.0 {
            Ok(value.ln())
        } else {
            Err(round)
        }
    };
    of.iter()
        .zip(to)
        .enumerate()
        .map(|(round, (of, to))| match (of, to) {
            (Some(of), Some(to)) => Ok(Some(log(round, *of)? - log(round, *to)?)),
            _ => Ok(None),
        })
        .collect()
}

/// The least-squares slope through points `(x, y)`; `None` below two different `x`.
pub fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let n = points.len() as f64;
    let mean_x = points.iter().map(|point| point.0).sum::<f64>() / n;
    let mean_y = points.iter().map(|point| point.1).sum::<f64>() / n;
    let spread: f64 = points.iter().map(|point| (point.0 - mean_x).powi(2)).sum();
    let shared: f64 = points
        .iter()
        .map(|point| (point.0 - mean_x) * (point.1 - mean_y))
        .sum();
    (spread > 0.0).then(|| shared / spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_the_mean_of_the_two_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[f64::NAN, 1.0]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[9.0, 1.0, 2.0, 4.0]), Some(3.0));
        assert_eq!(median(&[f64::MAX, f64::MAX]), Some(f64::MAX));
        for count in 1..30 {
            let values: Vec<f64> = (0..count).map(|i| f64::from(i * 7 % 13 - 5)).collect();
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            assert_eq!(median(&values), Some(quantile(&sorted, 0.5)));
        }
    }

    #[test]
    fn a_round_that_lacks_one_of_the_two_gives_no_ratio() {
        let of = [Some(2.0), None, Some(8.0)];
        let to = [Some(1.0), Some(1.0), None];
        assert_eq!(log_ratios(&of, &to), Ok(vec![Some(2f64.ln()), None, None]));
    }

    #[test]
    fn zero_and_negative_values_have_no_log_ratio() {
        assert_eq!(log_ratios(&[Some(1.0)], &[Some(0.0)]), Err(0));
        assert_eq!(
            log_ratios(&[Some(1.0), Some(-1.0)], &[Some(2.0), Some(2.0)]),
            Err(1)
        );
    }

    #[test]
    fn a_straight_line_gives_its_slope_and_a_single_point_none() {
        let line = [(0.0, 1.0), (1.0, 3.0), (4.0, 9.0)];
        assert!((slope(&line).unwrap() - 2.0).abs() < 1e-12);
        assert_eq!(slope(&line[..1]), None);
        assert_eq!(slope(&[(1.0, 1.0), (1.0, 2.0)]), None);
    }

    #[test]
    fn quantiles_run_from_the_smallest_to_the_largest() {
        let sorted = [1.0, 2.0, 4.0];
        assert_eq!(quantile(&sorted, 0.0), 1.0);
        assert_eq!(quantile(&sorted, 0.75), 3.0);
        assert_eq!(quantile(&sorted, 1.0), 4.0);
    }
}
