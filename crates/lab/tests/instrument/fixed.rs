//! The plan before this one, for comparison: always 24 rounds, then one test.

use std::sync::LazyLock;

use crate::bench::Run;

const ROUNDS: usize = 24;

/// Returns whether a signed-rank test (Wilcoxon, 1945) over the first 24 rounds finds way 1 slower,
/// with Bonferroni's correction for this many claims.
pub(crate) fn finds<const CLAIMS: usize>(run: &Run) -> bool {
    let samples = |way: usize| &run.end.cells[way].samples[..ROUNDS];
    let mut distances: Vec<f64> = (samples(1).iter().zip(samples(0)))
        .map(|(one, zero)| (one.unwrap() / zero.unwrap()).ln())
        .collect();
    distances.sort_unstable_by(|a, b| a.abs().total_cmp(&b.abs()));
    let ranks = (1..)
        .zip(&distances)
        .filter(|(_, distance)| **distance > 0.0);
    let above: usize = ranks.map(|(rank, _)| rank).sum();
    TAIL[above] * CLAIMS as f64 <= 0.05
}

/// By sum of ranks: the chance of at least that sum.
static TAIL: LazyLock<Vec<f64>> = LazyLock::new(|| {
    let sums = ROUNDS * (ROUNDS + 1) / 2 + 1;
    let mut chance = vec![0.0; sums];
    chance[0] = 1.0;
    for rank in 1..=ROUNDS {
        for sum in (0..sums).rev() {
            let with = if sum >= rank { chance[sum - rank] } else { 0.0 };
            chance[sum] = (chance[sum] + with) / 2.0;
        }
    }
    for sum in (0..sums - 1).rev() {
        chance[sum] += chance[sum + 1];
    }
    chance
});
