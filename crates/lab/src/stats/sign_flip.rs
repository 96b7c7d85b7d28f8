//! The paired sign-flip permutation test, on signed ranks.
//!
//! Where an effect lies exactly on its threshold, a round's distance from the threshold is as
//! likely to be so far above as so far below: its sign may be flipped. All 2ⁿ patterns of signs
//! are then equally likely, and p is the share of them that is at least as extreme as the data
//! (Fisher, *The Design of Experiments*, 1935). The statistic is the sum of the ranks of the
//! distances with their signs (Wilcoxon, "Individual comparisons by ranking methods", 1945), not
//! the sum of the distances: a single stall then weighs n at the most.
//!
//! A round exactly on the threshold speaks for neither side. It is ranked with the others, then
//! left out (Pratt, "Remarks on zeros and ties in the Wilcoxon signed rank procedures", 1959), so
//! it makes the smallest reachable p larger. Equal distances share the mean of their ranks.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// From this many rounds on the sum of ranks is taken as normal; below, its distribution is exact.
const EXACT_BELOW: usize = 129;
/// Up to this many rounds every pattern of signs is tried for several comparisons at once.
const ENUMERATED: usize = 14;
/// Random patterns tried beyond that.
const PATTERNS: u32 = 9_999;

/// The p of both directions of one comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SignFlip {
    /// One-sided p of "not above the threshold": small where the effect is above it.
    pub above: f64,
    /// One-sided p of "not below the threshold": small where the effect is below it.
    pub below: f64,
    /// Rounds not exactly on the threshold; the smallest reachable p is 1/2 to this power.
    pub rounds: usize,
}

impl SignFlip {
    /// The two-sided p: twice the smaller one-sided p.
    pub fn two_sided(&self) -> f64 {
        (2.0 * self.above.min(self.below)).min(1.0)
    }
}

/// Tests the signed distances of the rounds from a threshold; `distances` are not NaN.
///
/// Exact up to 128 rounds, by counting the patterns of signs with each sum of ranks; beyond, the
/// normal approximation with a correction for continuity, which is there good to four decimals.
pub fn sign_flip(distances: &[f64]) -> SignFlip {
    let ranks: Vec<i64> = signed_ranks(distances)
        .into_iter()
        .filter(|rank| *rank != 0)
        .collect();
    let total: i64 = ranks.iter().map(|rank| rank.abs()).sum();
    let positive: i64 = ranks.iter().filter(|rank| **rank > 0).sum();
    let tail = if ranks.len() < EXACT_BELOW {
        exact_tail
    } else {
        normal_tail
    };
    SignFlip {
        // By symmetry: so many ranks above are as likely as so many below.
        above: tail(&ranks, total - positive),
        below: tail(&ranks, positive),
        rounds: ranks.len(),
    }
}

/// The p of "no comparison lies above its threshold", against "at least one does".
///
/// `comparisons` hold the signed distance of every round, `None` where a round lacks it. A round's
/// sign is flipped in all comparisons together, which keeps their dependence, and the statistic is
/// the largest signed rank sum: the max-T procedure of Westfall and Young (*Resampling-Based
/// Multiple Testing*, 1993). It costs far less than Bonferroni's correction where the comparisons
/// share their rounds. Every pattern of signs is tried up to 14 rounds, 9,999 random ones from
/// `seed` beyond. One comparison alone gives [`SignFlip::above`]. Where no rank sum is positive, p
/// is above one half whatever the patterns say, and 1 is returned without trying them.
pub fn any_beyond(comparisons: &[Vec<Option<f64>>], seed: u64) -> f64 {
    if let [only] = comparisons {
        let present: Vec<f64> = only.iter().flatten().copied().collect();
        return sign_flip(&present).above;
    }
    let rounds = comparisons.iter().map(Vec::len).max().unwrap_or(0);
    let by_round = ranks_by_round(comparisons, rounds);
    if by_round.is_empty() {
        return 1.0;
    }
    let mut sums = vec![0i32; comparisons.len()];
    for ranks in &by_round {
        for (sum, rank) in sums.iter_mut().zip(ranks) {
            *sum += rank;
        }
    }
    let observed = largest(&sums);
    if observed <= 0 {
        return 1.0;
    }
    let rounds = by_round.len();
    if rounds <= ENUMERATED {
        let mut flipped = vec![false; rounds];
        let mut extreme = 1u32;
        let patterns = 1u32 << rounds;
        // Gray code: pattern k differs from the one before it in one round.
        for pattern in 1..patterns {
            let round = pattern.trailing_zeros() as usize;
            flipped[round] = !flipped[round];
            let twice = if flipped[round] { -2 } else { 2 };
            for (sum, rank) in sums.iter_mut().zip(&by_round[round]) {
                *sum += twice * rank;
            }
            extreme += u32::from(largest(&sums) >= observed);
        }
        return f64::from(extreme) / f64::from(patterns);
    }
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut extreme = 1u32;
    for _ in 0..PATTERNS {
        sums.fill(0);
        for ranks in &by_round {
            let sign = if random.next_u32() & 1 == 0 { 1 } else { -1 };
            for (sum, rank) in sums.iter_mut().zip(ranks) {
                *sum += sign * rank;
            }
        }
        extreme += u32::from(largest(&sums) >= observed);
    }
    f64::from(extreme) / f64::from(PATTERNS + 1)
}

/// The signed ranks of every round that has one, comparison by comparison. In 32 bits, where the
/// sums of 46,340 rounds have room and ten thousand comparisons fit into the fastest cache.
fn ranks_by_round(comparisons: &[Vec<Option<f64>>], rounds: usize) -> Vec<Vec<i32>> {
    let mut by_round = vec![vec![0i32; comparisons.len()]; rounds];
    for (comparison, distances) in comparisons.iter().enumerate() {
        let (places, present): (Vec<usize>, Vec<f64>) = distances
            .iter()
            .enumerate()
            .filter_map(|(round, distance)| Some((round, (*distance)?)))
            .unzip();
        for (round, rank) in places.into_iter().zip(signed_ranks(&present)) {
            by_round[round][comparison] = rank as i32;
        }
    }
    by_round.retain(|ranks| ranks.iter().any(|rank| *rank != 0));
    by_round
}

fn largest(sums: &[i32]) -> i32 {
    sums.iter().copied().max().unwrap_or(i32::MIN)
}

/// Twice the rank of each distance among all by size, with its sign; 0 for a distance of 0.
///
/// Twice, so that the mean rank of ties is whole and sums are exact.
fn signed_ranks(distances: &[f64]) -> Vec<i64> {
    let mut order: Vec<usize> = (0..distances.len()).collect();
    order.sort_by(|&a, &b| distances[a].abs().total_cmp(&distances[b].abs()));
    let mut ranks = vec![0i64; distances.len()];
    let mut start = 0;
    while start < order.len() {
        let size = distances[order[start]].abs();
        let tied = order[start..]
            .iter()
            .take_while(|&&index| distances[index].abs() == size)
            .count();
        // The ranks start + 1 to start + tied have this mean, doubled.
        let twice = (2 * start + tied + 1) as i64;
        for &index in &order[start..start + tied] {
            ranks[index] = match distances[index] {
                distance if distance > 0.0 => twice,
                distance if distance < 0.0 => -twice,
                _ => 0,
            };
        }
        start += tied;
    }
    ranks
}

/// The share of sign patterns whose negative ranks sum to `negative` or less.
fn exact_tail(ranks: &[i64], negative: i64) -> f64 {
    let rest = ranks.iter().map(|rank| rank.abs()).sum::<i64>() - negative - 1;
    if rest < 0 {
        return 1.0;
    }
    if rest < negative {
        // The other tail is shorter, and the distribution is symmetric.
        return 1.0 - exact_tail(ranks, rest);
    }
    // ways[s]: the share of patterns of the ranks so far whose negative ones sum to s.
    let mut ways = vec![0.0f64; negative as usize + 1];
    ways[0] = 1.0;
    for rank in ranks {
        let rank = rank.unsigned_abs() as usize;
        for sum in (0..ways.len()).rev() {
            let with = if sum >= rank { ways[sum - rank] } else { 0.0 };
            ways[sum] = 0.5 * ways[sum] + 0.5 * with;
        }
    }
    ways.iter().sum::<f64>().min(1.0)
}

/// As [`exact_tail`], approximately.
fn normal_tail(ranks: &[i64], negative: i64) -> f64 {
    let total: i64 = ranks.iter().map(|rank| rank.abs()).sum();
    let variance: f64 = ranks.iter().map(|rank| (*rank as f64).powi(2) / 4.0).sum();
    // Ranks are doubled, so one step of the sum is 2 and half a step is 1.
    let z = (negative as f64 + 1.0 - total as f64 / 2.0) / variance.sqrt();
    normal_cdf(z)
}

/// The standard normal distribution, absolute error below 7.5e-8 (Abramowitz and Stegun,
/// *Handbook of Mathematical Functions*, 1964, 26.2.17).
fn normal_cdf(z: f64) -> f64 {
    const B: [f64; 5] = [
        0.319_381_530,
        -0.356_563_782,
        1.781_477_937,
        -1.821_255_978,
        1.330_274_429,
    ];
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let series = B.iter().rev().fold(0.0, |sum, b| (sum + b) * t);
    let upper = (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt() * series;
    if z > 0.0 {
        1.0 - upper
    } else {
        upper
    }
}

#[cfg(test)]
mod tests;
