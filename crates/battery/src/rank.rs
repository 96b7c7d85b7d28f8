//! Rank of binary matrices over GF(2) (Marsaglia and Tsay, 1985): linear dependence between bits.

use crate::block::{Block, BLOCK_BYTES};
use crate::report::Outcome;
use crate::special::binomial_two_sided;
use crate::Test;

const BYTES_MIN: u64 = 1024 * 1024;

/// P(rank = n − `deficiency`) of a random n × n matrix, n large (already exact to 1e-15 at 64).
fn deficiency_probability(deficiency: u32) -> f64 {
    let d = deficiency as i32;
    let above: f64 = (d + 1..60).map(|i| 1.0 - 0.5f64.powi(i)).product();
    let below: f64 = (1..=d).map(|i| 1.0 - 0.5f64.powi(i)).product();
    0.5f64.powi(d * d) * above / below
}

/// Returns the rank of a matrix of N × 64 columns. Destroys its rows.
fn rank<const N: usize>(rows: &mut [[u64; N]]) -> usize {
    let mut rank = 0;
    for column in 0..64 * N {
        let (word, bit) = (column / 64, column % 64);
        let has = |row: &[u64; N]| row[word] >> bit & 1;
        let Some(found) = (rank..rows.len()).find(|&i| has(&rows[i]) == 1) else {
            continue;
        };
        rows.swap(rank, found);
        let pivot = rows[rank];
        for row in &mut rows[found + 1..] {
            let mask = has(row).wrapping_neg();
            for (to, from) in row[word..].iter_mut().zip(&pivot[word..]) {
                *to ^= from & mask;
            }
        }
        rank += 1;
        if rank == rows.len() {
            break;
        }
    }
    rank
}

/// Counts the 64 × 64 matrices, one from every 8 KiB, that have rank 62 or less.
pub(crate) struct Rank64 {
    matrices: u64,
    deficient: u64,
}

impl Rank64 {
    const SIDE: usize = 64;
    const EVERY_WORDS: usize = 1024;

    pub(crate) fn new() -> Self {
        Rank64 {
            matrices: 0,
            deficient: 0,
        }
    }
}

impl Test for Rank64 {
    fn absorb(&mut self, block: &Block<'_>) {
        for words in block.words().chunks(Self::EVERY_WORDS) {
            let Some(words) = words.get(..Self::SIDE) else {
                continue;
            };
            let mut rows: [[u64; 1]; Self::SIDE] = std::array::from_fn(|i| [words[i]]);
            self.matrices += 1;
            self.deficient += u64::from(rank(&mut rows) + 2 <= Self::SIDE);
        }
    }

    fn outcomes(&self, bytes: u64, out: &mut Vec<Outcome>) {
        let chance = 1.0 - deficiency_probability(0) - deficiency_probability(1);
        let p = binomial_two_sided(self.deficient, self.matrices, chance);
        let expected = chance * self.matrices as f64;
        let note = format!("{expected:.1} expected of {} matrices", self.matrices);
        out.push(
            Outcome::measured("rank 64 × 64", "rank ≤ 62", self.deficient as f64, p, note)
                .with_minimum(BYTES_MIN, bytes),
        );
    }
}

/// The sum of the rank deficiencies of 1024 × 1024 matrices, one from every 4 MiB. A generator
/// that is linear over GF(2) with fewer than about 1000 bits of state cannot reach full rank.
pub(crate) struct Rank1024 {
    /// Blocks until the next matrix begins.
    blocks_to_skip: usize,
    rows: Vec<[u64; ROW_WORDS]>,
    matrices: u32,
    deficiency: usize,
}

const ROW_WORDS: usize = 16;

impl Rank1024 {
    const SIDE: usize = 64 * ROW_WORDS;
    const MATRICES_MAX: u32 = 16;
    /// A matrix is two blocks, so it begins and ends with one.
    const MATRIX_BLOCKS: usize = Self::SIDE * ROW_WORDS * 8 / BLOCK_BYTES;
    const EVERY_BLOCKS: usize = 4 * 1024 * 1024 / BLOCK_BYTES;

    pub(crate) fn new() -> Self {
        let rows = Vec::with_capacity(Self::SIDE);
        Rank1024 {
            blocks_to_skip: 0,
            rows,
            matrices: 0,
            deficiency: 0,
        }
    }

    /// P(sum of the deficiencies of `matrices` matrices ≥ `sum`), exactly.
    fn tail(matrices: u32, sum: usize) -> f64 {
        /// Beyond it the probability of one matrix is below 1e-30.
        const DEFICIENCY_MAX: usize = 10;
        // sums[s] = P(sum = s), convolved one matrix at a time, from the far end for the tail's
        // own digits.
        let one: [f64; DEFICIENCY_MAX + 1] =
            std::array::from_fn(|d| deficiency_probability(d as u32));
        let mut sums = vec![1.0];
        for _ in 0..matrices {
            let mut next = vec![0.0; sums.len() + DEFICIENCY_MAX];
            for (s, p) in sums.iter().enumerate() {
                for (d, q) in one.iter().enumerate() {
                    next[s + d] += p * q;
                }
            }
            sums = next;
        }
        sums.iter().skip(sum).rev().sum()
    }
}

impl Test for Rank1024 {
    fn absorb(&mut self, block: &Block<'_>) {
        if self.blocks_to_skip > 0 || self.matrices == Self::MATRICES_MAX {
            self.blocks_to_skip = self.blocks_to_skip.saturating_sub(1);
            return;
        }
        let rows = block.words().chunks_exact(ROW_WORDS);
        self.rows
            .extend(rows.map(|row| <[u64; ROW_WORDS]>::try_from(row).expect("a full row")));
        if self.rows.len() == Self::SIDE {
            self.deficiency += Self::SIDE - rank(&mut self.rows);
            self.matrices += 1;
            self.rows.clear();
            self.blocks_to_skip = Self::EVERY_BLOCKS - Self::MATRIX_BLOCKS;
        }
    }

    fn outcomes(&self, bytes: u64, out: &mut Vec<Outcome>) {
        let p = Self::tail(self.matrices, self.deficiency);
        let note = format!("{} matrices", self.matrices);
        let (name, statistic) = ("rank 1024 × 1024", "sum of deficiencies");
        out.push(
            Outcome::measured(name, statistic, self.deficiency as f64, p, note)
                .with_minimum(BYTES_MIN, bytes),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_known_matrices() {
        let mut identity: Vec<[u64; 1]> = (0..64).map(|i| [1 << i]).collect();
        assert_eq!(rank(&mut identity), 64);
        let mut reversed: Vec<[u64; 1]> = (0..64).rev().map(|i| [u64::MAX << i]).collect();
        assert_eq!(rank(&mut reversed), 64);
        assert_eq!(rank(&mut [[0u64; 2]; 128]), 0);
        assert_eq!(rank(&mut [[5u64, 9]; 128]), 1);
        // The third row is the sum of the first two.
        assert_eq!(rank(&mut [[0b0011, 1], [0b0110, 2], [0b0101, 3]]), 2);
    }

    #[test]
    fn deficiency_probabilities_are_the_published_ones() {
        // Marsaglia and Tsay; also SP 800-22, section 3.5: 0.2888, 0.5776, 0.1336 for the rest.
        assert!((deficiency_probability(0) - 0.288_788_095).abs() < 1e-9);
        assert!((deficiency_probability(1) - 0.577_576_190).abs() < 1e-9);
        assert!((deficiency_probability(2) - 0.128_350_264).abs() < 1e-9);
        let sum: f64 = (0..12).map(deficiency_probability).sum();
        assert!((sum - 1.0).abs() < 1e-14);
        assert!((Rank1024::tail(16, 0) - 1.0).abs() < 1e-12);
        assert!(Rank1024::tail(1, 6) < 1e-10);
        assert_eq!(Rank1024::tail(2, 100), 0.0);
    }
}
