//! Medians, paired log ratios and slopes.

use super::Round;

/// The median of `values`; `None` if there are none, or where one is no number.
///
/// Of an even count it is the mean of the two in the middle.
pub fn median(values: &[f64]) -> Option<f64> {
    if values.is_empty() || values.iter().any(|value| value.is_nan()) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let (lower, upper) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
    // Halves first: the sum of two large values may not be finite.
    Some(if lower == upper {
        lower
    } else {
        0.5 * lower + 0.5 * upper
    })
}

/// log(`of` / `to`) round by round. A round in which one of the two failed has failed.
///
/// # Errors
/// The first round in which a value is zero or negative: it has no logarithm, and leaving the
/// round out would leave out exactly the extreme ones. Counts, which may be 0, are therefore
/// compared by difference, never by ratio.
pub fn log_ratios(of: &[Round], to: &[Round]) -> Result<Vec<Round>, usize> {
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
        .map(|(round, both)| {
            Ok(match both {
                (Round::Failed, _) | (_, Round::Failed) => Round::Failed,
                (Round::Missing, _) | (_, Round::Missing) => Round::Missing,
                (Round::Figure(of), Round::Figure(to)) => {
                    Round::Figure(log(round, *of)? - log(round, *to)?)
                }
            })
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
            let middle = (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0;
            assert_eq!(median(&values), Some(middle));
        }
    }

    #[test]
    fn a_round_that_lacks_one_of_the_two_gives_no_ratio() {
        use Round::{Failed, Figure, Missing};
        let of = [Figure(2.0), Missing, Figure(8.0), Failed, Missing];
        let to = [Figure(1.0), Figure(1.0), Missing, Figure(1.0), Failed];
        let ratios = [Figure(2f64.ln()), Missing, Missing, Failed, Failed];
        assert_eq!(log_ratios(&of, &to), Ok(ratios.to_vec()));
    }

    #[test]
    fn zero_and_negative_values_have_no_log_ratio() {
        let figures = |values: &[f64]| values.iter().map(|v| Round::Figure(*v)).collect::<Vec<_>>();
        assert_eq!(log_ratios(&figures(&[1.0]), &figures(&[0.0])), Err(0));
        assert_eq!(
            log_ratios(&figures(&[1.0, -1.0]), &figures(&[2.0, 2.0])),
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
}
