//! The number of times that a bit differs from the bit some distance before it. At distance 1 this
//! is the number of runs (NIST SP 800-22, section 2.3, without its condition on the share of ones).

use crate::bits::count_ones;
use crate::block::Block;
use crate::report::Outcome;
use crate::special::normal_two_sided;
use crate::Test;

const BYTES_MIN: u64 = 16 * 1024;

/// Distances in bits: neighbours, the symbol widths of the library's methods, and the block sizes
/// of AES and of the generators behind RDRAND.
const LAGS: [usize; 12] = [1, 2, 4, 8, 16, 24, 32, 64, 128, 256, 512, 1024];

/// Counts unequal pairs of bits at each of the lags.
pub(crate) struct Autocorrelation {
    counts: [Count; LAGS.len()],
}

#[derive(Clone, Copy, Default)]
struct Count {
    pairs: u64,
    unequal: u64,
}

impl Autocorrelation {
    pub(crate) fn new() -> Self {
        Autocorrelation {
            counts: [Count::default(); LAGS.len()],
        }
    }
}

impl Test for Autocorrelation {
    fn absorb(&mut self, block: &Block<'_>) {
        for (lag, count) in LAGS.into_iter().zip(&mut self.counts) {
            let (whole, part) = (lag / 64, lag % 64);
            let back = whole + usize::from(part > 0);
            let words = block.words_from(back);
            let Some(now) = words.get(back..) else {
                continue;
            };
            // The word `lag` bits earlier is put together from two, unless `lag` is whole words.
            let n = now.len();
            count.pairs += 64 * n as u64;
            count.unequal += if part == 0 {
                let before = &words[..n];
                count_ones(n, |i| now[i] ^ before[i])
            } else {
                let (older, newer) = (&words[..n], &words[1..=n]);
                count_ones(n, |i| now[i] ^ (newer[i] << part | older[i] >> (64 - part)))
            };
        }
    }

    fn outcomes(&self, bytes: u64, out: &mut Vec<Outcome>) {
        for (lag, count) in LAGS.into_iter().zip(&self.counts) {
            let pairs = count.pairs as f64;
            let z = (2.0 * count.unequal as f64 - pairs) / pairs.sqrt();
            let name = match lag {
                1 => "runs".to_owned(),
                lag => format!("autocorrelation, lag {lag}"),
            };
            let note = format!("{:.4} % unequal", 100.0 * count.unequal as f64 / pairs);
            out.push(
                Outcome::measured(name, "z", z, normal_two_sided(z), note)
                    .with_minimum(BYTES_MIN, bytes),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Blocks;

    #[test]
    fn pairs_are_those_that_a_bit_by_bit_count_finds() {
        let stream: Vec<u8> = (0..140_000u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 23) as u8)
            .collect();
        let mut test = Autocorrelation::new();
        let mut blocks = Blocks::new();
        blocks.push(&stream, |block| test.absorb(block));
        blocks.finish(|block| test.absorb(block));

        let bit = |i: usize| stream[i / 8] >> (i % 8) & 1;
        for (lag, count) in LAGS.into_iter().zip(&test.counts) {
            let first = lag.div_ceil(64) * 64;
            let all = first..8 * stream.len();
            assert_eq!(count.pairs, all.len() as u64, "lag {lag}");
            let unequal = all.filter(|&i| bit(i) != bit(i - lag)).count();
            assert_eq!(count.unequal, unequal as u64, "lag {lag}");
        }
    }
}
