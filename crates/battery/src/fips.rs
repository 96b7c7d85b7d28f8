//! The four tests that FIPS 140-2 had at power-up (section 4.9.1 before change notice 2), which
//! rngtest still runs: monobit, poker, runs and long run on blocks of 20,000 bits.

use crate::block::Block;
use crate::report::Outcome;
use crate::special::binomial_upper;
use crate::Test;

const BYTES_MIN: u64 = 1024 * 1024;
const FIPS_BYTES: usize = 2500;
/// Every second block of the stream gives one block, because counting its runs is slow.
const EVERY_BLOCKS: u64 = 2;
/// Probability that an ideal block fails at least one of the four. Measured, not derived, because
/// the four depend on each other: 4013 of 5,000,000 blocks of ChaCha8, plus one standard deviation,
/// rounded up.
pub const FIPS_140_FAILURE_RATE: f64 = 8.2e-4;
/// Runs of 1, 2, … 5, and 6 or more bits, of either value: the least and the most allowed.
const RUNS_ALLOWED: [(u32, u32); 6] = [
    (2315, 2685),
    (1114, 1386),
    (527, 723),
    (240, 384),
    (103, 209),
    (103, 209),
];
const LONG_RUN: u32 = 26;

/// Tests 20,000 bits of every 128 KiB of the stream.
pub(crate) struct Fips140 {
    seen: u64,
    blocks: u64,
    failed: u64,
    /// Failures of monobit, poker, runs, long run.
    by_test: [u64; 4],
}

impl Fips140 {
    pub(crate) fn new() -> Self {
        Fips140 {
            seen: 0,
            blocks: 0,
            failed: 0,
            by_test: [0; 4],
        }
    }
}

/// Returns true for each of monobit, poker, runs and long run that the block fails.
fn failures(block: &[u8; FIPS_BYTES]) -> [bool; 4] {
    let ones: u32 = block.iter().map(|byte| byte.count_ones()).sum();
    let monobit = !(9726..=10_274).contains(&ones);

    let mut nibbles = [0u64; 16];
    for byte in block {
        nibbles[usize::from(byte & 15)] += 1;
        nibbles[usize::from(byte >> 4)] += 1;
    }
    // 16/5000 Σf² − 5000 between 2.16 and 46.17, times 5000 to stay in integers.
    let poker: u64 = 16 * nibbles.iter().map(|count| count * count).sum::<u64>();
    let poker = !(25_010_801..25_230_850).contains(&poker);

    let (runs, longest) = runs(block);
    let out_of_range = |counts: &[u32; 6]| {
        counts
            .iter()
            .zip(RUNS_ALLOWED)
            .any(|(count, (least, most))| !(least..=most).contains(count))
    };
    [
        monobit,
        poker,
        runs.iter().any(out_of_range),
        longest >= LONG_RUN,
    ]
}

/// Counts of runs of zeros and of ones by length, six or more together, and the longest.
fn runs(block: &[u8; FIPS_BYTES]) -> ([[u32; 6]; 2], u32) {
    let mut counts = [[0u32; 6]; 2];
    let (mut longest, mut run, mut value) = (0u32, 0u32, 0u64);
    let mut end = |value: u64, run: u32| {
        if run > 0 {
            counts[value as usize][run.min(6) as usize - 1] += 1;
            longest = longest.max(run);
        }
    };
    // 2500 bytes are 625 words of 32 bits. A word gives up its runs one by one, each in a few
    // instructions, which is far faster than a loop over its bits.
    for bytes in block.chunks_exact(4) {
        let mut word = u64::from(u32::from_le_bytes(bytes.try_into().expect("four bytes")));
        let mut left = 32;
        while left > 0 {
            let same = if value == 0 {
                word.trailing_zeros()
            } else {
                word.trailing_ones()
            }
            .min(left);
            run += same;
            word >>= same;
            left -= same;
            if left > 0 {
                end(value, run);
                run = 0;
                value ^= 1;
            }
        }
    }
    end(value, run);
    (counts, longest)
}

impl Test for Fips140 {
    fn absorb(&mut self, block: &Block<'_>) {
        self.seen += 1;
        let Some(block) = block.bytes().first_chunk::<FIPS_BYTES>() else {
            return;
        };
        if self.seen % EVERY_BLOCKS != 1 {
            return;
        }
        let failures = failures(block);
        self.blocks += 1;
        self.failed += u64::from(failures.contains(&true));
        for (count, failed) in self.by_test.iter_mut().zip(failures) {
            *count += u64::from(failed);
        }
    }

    fn outcomes(&self, bytes: u64, out: &mut Vec<Outcome>) {
        let p = binomial_upper(self.failed, self.blocks, FIPS_140_FAILURE_RATE);
        let [monobit, poker, runs, long_run] = self.by_test;
        let note = format!(
            "of {}; monobit {monobit}, poker {poker}, runs {runs}, long run {long_run}",
            self.blocks
        );
        out.push(
            Outcome::measured("FIPS 140-2", "failed blocks", self.failed as f64, p, note)
                .with_minimum(BYTES_MIN, bytes),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_those_that_a_bit_by_bit_count_finds() {
        let mut block = [0u8; FIPS_BYTES];
        let mut x = 7u64;
        for (i, byte) in block.iter_mut().enumerate() {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = if i % 300 < 12 { 255 } else { (x >> 56) as u8 };
        }
        let bits: Vec<u8> = block
            .iter()
            .flat_map(|byte| (0..8).map(move |i| byte >> i & 1))
            .collect();
        let mut counts = [[0u32; 6]; 2];
        let mut longest = 0;
        for run in bits.chunk_by(|a, b| a == b) {
            counts[usize::from(run[0])][run.len().min(6) - 1] += 1;
            longest = longest.max(run.len() as u32);
        }
        assert_eq!(runs(&block), (counts, longest));
        assert!(longest >= 96);
    }

    #[test]
    fn each_test_fails_what_it_should() {
        assert_eq!(failures(&[0; FIPS_BYTES]), [true, true, true, true]);
        assert_eq!(failures(&[0x55; FIPS_BYTES]), [false, true, true, false]);
        // As even as can be: poker's lower bound.
        let even: [u8; FIPS_BYTES] = std::array::from_fn(|i| (i % 16) as u8 * 17);
        assert!(failures(&even)[1]);
    }
}
