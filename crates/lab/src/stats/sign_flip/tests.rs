use proptest::prelude::*;

use super::*;

/// p by trying every pattern of signs on plain floating-point ranks.
fn brute_force(distances: &[f64]) -> (f64, f64) {
    let rank = |distance: f64| {
        let smaller = distances
            .iter()
            .filter(|d| d.abs() < distance.abs())
            .count() as f64;
        let equal = distances
            .iter()
            .filter(|d| d.abs() == distance.abs())
            .count() as f64;
        smaller + (equal + 1.0) / 2.0
    };
    let present: Vec<f64> = distances.iter().copied().filter(|d| *d != 0.0).collect();
    let sum = |signs: &dyn Fn(usize) -> f64| -> f64 {
        present
            .iter()
            .enumerate()
            .map(|(i, d)| signs(i) * rank(*d))
            .sum()
    };
    let observed = sum(&|i| present[i].signum());
    let patterns = 1u32 << present.len();
    let share = |extreme: &dyn Fn(f64) -> bool| {
        let hits = (0..patterns)
            .filter(|pattern| extreme(sum(&|i| if pattern >> i & 1 == 1 { 1.0 } else { -1.0 })))
            .count();
        hits as f64 / f64::from(patterns)
    };
    (share(&|s| s >= observed), share(&|s| s <= observed))
}

#[test]
fn the_smallest_p_of_n_rounds_is_one_in_two_to_the_n() {
    for n in 1..=20 {
        let all_above: Vec<f64> = (1..=n).map(f64::from).collect();
        let p = sign_flip(&all_above);
        assert_eq!(p.above, 0.5f64.powi(n));
        assert_eq!(p.below, 1.0);
        assert_eq!(p.rounds, n as usize);
    }
}

#[test]
fn rounds_on_the_threshold_speak_for_neither_side() {
    let p = sign_flip(&[0.0; 8]);
    assert_eq!((p.above, p.below, p.rounds), (1.0, 1.0, 0));
    let p = sign_flip(&[0.0, 0.0, 1.0, 2.0, 3.0]);
    assert_eq!((p.above, p.rounds), (0.125, 3));
    let p = sign_flip(&[]);
    assert_eq!((p.above, p.below, p.two_sided()), (1.0, 1.0, 1.0));
}

#[test]
fn values_without_variance_reach_the_smallest_p() {
    assert_eq!(sign_flip(&[0.25; 8]).above, 1.0 / 256.0);
    assert_eq!(sign_flip(&[-0.25; 8]).below, 1.0 / 256.0);
}

#[test]
fn the_size_of_a_single_stall_does_not_matter() {
    let mut distances = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, -10.0];
    let p = sign_flip(&distances);
    distances[9] = -1e9;
    assert_eq!(sign_flip(&distances), p);
    assert!(p.above < 0.05, "{p:?}");
}

#[test]
fn the_normal_tail_joins_the_exact_one() {
    for shift in [10, 25, 40] {
        let distances: Vec<f64> = (1..=128).map(|i| f64::from(i % 129 - shift)).collect();
        let ranks: Vec<i64> = signed_ranks(&distances)
            .into_iter()
            .filter(|r| *r != 0)
            .collect();
        let negative = -ranks.iter().filter(|rank| **rank < 0).sum::<i64>();
        let difference = exact_tail(&ranks, negative) - normal_tail(&ranks, negative);
        assert!(difference.abs() < 1e-4, "{difference}");
    }
}

#[test]
fn one_of_several_comparisons_above_its_threshold_is_found() {
    let all = |distance: f64| -> Vec<Option<f64>> {
        (1..=8).map(|i| Some(distance * f64::from(i))).collect()
    };
    // Alone it reaches 1/256; beside one that lies below, the pattern that flips every round is as
    // extreme.
    assert_eq!(any_beyond(&[all(1.0)], 0), 1.0 / 256.0);
    assert_eq!(any_beyond(&[all(1.0), all(-1.0)], 0), 2.0 / 256.0);
    assert_eq!(any_beyond(&[all(1.0), all(2.0), all(3.0)], 0), 1.0 / 256.0);
    assert_eq!(any_beyond(&[all(0.0), all(0.0)], 0), 1.0);
    assert_eq!(any_beyond(&[], 0), 1.0);
    assert_eq!(any_beyond(&[vec![None; 8], vec![None; 8]], 0), 1.0);
}

#[test]
fn random_patterns_agree_with_all_patterns() {
    let comparison = |seed: u64, rounds: usize| -> Vec<Option<f64>> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        (0..rounds)
            .map(|_| Some(f64::from(random.next_u32()) / 4e9 - 0.2))
            .collect()
    };
    // Two copies of one comparison, which leans above its threshold, have its own p.
    for rounds in [14, 15, 20] {
        let one = comparison(7, rounds);
        let alone = any_beyond(std::slice::from_ref(&one), 0);
        let twice = any_beyond(&[one.clone(), one], 0);
        assert!(
            (alone - twice).abs() < 0.015,
            "{rounds} rounds: {alone} {twice}"
        );
    }
}

proptest! {
    #[test]
    fn counting_agrees_with_trying_every_pattern(
        // Few distinct values, so that ties and zeros are common.
        distances in prop::collection::vec((-4..=4i32).prop_map(f64::from), 0..=10),
    ) {
        let p = sign_flip(&distances);
        let (above, below) = brute_force(&distances);
        prop_assert!((p.above - above).abs() < 1e-12, "{} {above}", p.above);
        prop_assert!((p.below - below).abs() < 1e-12, "{} {below}", p.below);
    }

    #[test]
    fn the_directions_mirror_each_other_and_scale_does_not_matter(
        distances in prop::collection::vec(-1e3..1e3f64, 1..40),
        scale in 0.001..1000.0f64,
    ) {
        let p = sign_flip(&distances);
        let mirrored: Vec<f64> = distances.iter().map(|d| -d * scale).collect();
        let q = sign_flip(&mirrored);
        prop_assert!((p.above - q.below).abs() < 1e-12);
        prop_assert!((p.below - q.above).abs() < 1e-12);
        prop_assert!(p.above + p.below >= 1.0);
    }

    #[test]
    fn several_comparisons_are_never_surer_than_the_surest_of_them(
        comparisons in prop::collection::vec(prop::collection::vec(-1.0..1.0f64, 8), 2..5),
    ) {
        let comparisons: Vec<Vec<Option<f64>>> = comparisons
            .into_iter()
            .map(|one| one.into_iter().map(Some).collect())
            .collect();
        let surest = comparisons
            .iter()
            .map(|one| any_beyond(std::slice::from_ref(one), 0))
            .fold(1.0, f64::min);
        prop_assert!(any_beyond(&comparisons, 0) >= surest - 1e-12);
    }
}
