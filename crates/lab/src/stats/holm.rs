//! Many claims at once: Holm's correction.

/// Holm's step-down correction of `p` values, in their order.
///
/// If all tested hypotheses hold, or any part of them, the chance that a corrected p of one
/// that holds is at or below α is at most α, however the tests depend on each other (Holm, "A
/// simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics,
/// 1979).
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&a, &b| p[a].total_cmp(&p[b]));
    let mut corrected = vec![1.0; p.len()];
    let mut largest = 0f64;
    for (done, &index) in order.iter().enumerate() {
        largest = largest.max(p[index] * (p.len() - done) as f64).min(1.0);
        corrected[index] = largest;
    }
    corrected
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_correction_is_the_worked_example_of_a_textbook() {
        // Smallest × 4, next × 3, next × 2, largest × 1, never below the one before.
        let corrected = holm(&[0.01, 0.04, 0.03, 0.005]);
        let expected = [0.03, 0.06, 0.06, 0.02];
        for (found, expected) in corrected.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-12, "{corrected:?}");
        }
        assert_eq!(holm(&[]), Vec::<f64>::new());
        assert_eq!(holm(&[0.9, 0.8]), [1.0, 1.0]);
    }

    proptest! {
        #[test]
        fn the_correction_keeps_the_order_and_lies_between_p_and_bonferroni(
            p in prop::collection::vec(0.0..=1.0f64, 1..40),
        ) {
            let corrected = holm(&p);
            for i in 0..p.len() {
                prop_assert!(corrected[i] >= p[i]);
                prop_assert!(corrected[i] <= (p[i] * p.len() as f64).min(1.0));
                for j in 0..p.len() {
                    prop_assert!(p[i] > p[j] || corrected[i] <= corrected[j]);
                }
            }
        }

        #[test]
        fn a_smaller_p_never_makes_another_ones_correction_larger(
            mut p in prop::collection::vec(0.0..=1.0f64, 2..20),
            factor in 0.0..=1.0f64,
        ) {
            let before = holm(&p);
            p[0] *= factor;
            let after = holm(&p);
            for i in 0..p.len() {
                prop_assert!(after[i] <= before[i]);
            }
        }
    }
}
