//! Histograms of bytes and of byte pairs.

use crate::block::Block;
use crate::report::Outcome;
use crate::special::chi_square_two_sided;
use crate::Test;

const BYTES_MIN: u64 = 16 * 1024;
/// 524,288 pairs in 65,536 bins: eight expected in each.
const PAIRS_BYTES_MIN: u64 = 1024 * 1024;
/// Histograms filled in turn, so that equal neighbours do not wait for each other.
const TURNS: usize = 4;

/// Counts each byte and each non-overlapping pair of bytes.
pub(crate) struct Distribution {
    bytes: Box<[[u64; 256]; TURNS]>,
    pairs: Vec<u64>,
}

impl Distribution {
    pub(crate) fn new() -> Self {
        Distribution {
            bytes: Box::new([[0; 256]; TURNS]),
            pairs: vec![0; 1 << 16],
        }
    }
}

impl Test for Distribution {
    fn absorb(&mut self, block: &Block<'_>) {
        let pairs: &mut [u64; 1 << 16] = self.pairs.as_mut_slice().try_into().expect("2^16 bins");
        let [a, b, c, d] = &mut *self.bytes;
        let quads = block.bytes().chunks_exact(4);
        for &byte in quads.remainder() {
            a[usize::from(byte)] += 1;
        }
        for quad in quads {
            a[usize::from(quad[0])] += 1;
            b[usize::from(quad[1])] += 1;
            c[usize::from(quad[2])] += 1;
            d[usize::from(quad[3])] += 1;
            pairs[usize::from(u16::from_le_bytes([quad[0], quad[1]]))] += 1;
            pairs[usize::from(u16::from_le_bytes([quad[2], quad[3]]))] += 1;
        }
    }

    fn outcomes(&self, bytes: u64, out: &mut Vec<Outcome>) {
        let counts: Vec<u64> = (0..256)
            .map(|value| self.bytes.iter().map(|turn| turn[value]).sum())
            .collect();
        let (commonest, count) = counts
            .iter()
            .enumerate()
            .max_by_key(|(_, &count)| count)
            .expect("256 bins");
        let share = 100.0 * *count as f64 / bytes as f64;
        let note = format!("commonest: {commonest:#04x}, {share:.3} %");
        let x = chi_square_uniform(&counts);
        let p = chi_square_two_sided(x, 255.0);
        out.push(
            Outcome::measured("bytes", "chi-square (255 df)", x, p, note)
                .with_minimum(BYTES_MIN, bytes),
        );

        let x = chi_square_uniform(&self.pairs);
        let p = chi_square_two_sided(x, 65_535.0);
        let missing = self.pairs.iter().filter(|&&count| count == 0).count();
        let note = format!("{missing} pairs never seen");
        out.push(
            Outcome::measured("byte pairs", "chi-square (65535 df)", x, p, note)
                .with_minimum(PAIRS_BYTES_MIN, bytes),
        );
    }
}

/// Pearson's statistic against equal probabilities.
fn chi_square_uniform(counts: &[u64]) -> f64 {
    let total = counts.iter().sum::<u64>() as f64;
    let expected = total / counts.len() as f64;
    counts
        .iter()
        .map(|&count| (count as f64 - expected).powi(2))
        .sum::<f64>()
        / expected
}
