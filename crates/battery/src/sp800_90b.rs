//! The two continuous health tests of NIST SP 800-90B, section 4.4, on bytes.
//!
//! Cut-offs for H = 8 bits per byte and α = 2^-40 per sample:
//! C = 1 + ⌈40 / 8⌉ = 6 equal bytes in a row (4.4.1), and 19 occurrences of a window's first byte
//! among its 512 (4.4.2: 1 + the smallest c with P(B ≤ c) ≥ 1 − α, B ~ Bin(512, 1/256)).

use crate::block::Block;
use crate::report::Outcome;
use crate::special::{at_least_once, binomial_upper};
use crate::Test;

const BYTES_MIN: u64 = 4096;
const LOG2_ALPHA: i32 = -40;
const VALUES: f64 = 256.0;

/// Repetition count test: the longest run of one byte value.
pub(crate) struct RepetitionCount {
    value: u8,
    run: u64,
    run_max: u64,
    alarms: u64,
}

impl RepetitionCount {
    const CUTOFF: u64 = 6;

    pub(crate) fn new() -> Self {
        RepetitionCount {
            value: 0,
            run: 0,
            run_max: 0,
            alarms: 0,
        }
    }

    fn step(&mut self, byte: u8) {
        if self.run > 0 && byte == self.value {
            self.run += 1;
        } else {
            self.value = byte;
            self.run = 1;
        }
        self.run_max = self.run_max.max(self.run);
        self.alarms += u64::from(self.run == Self::CUTOFF);
    }
}

impl Test for RepetitionCount {
    fn absorb(&mut self, block: &Block<'_>) {
        for piece in block.bytes().chunks(8) {
            let Ok(word) = <[u8; 8]>::try_from(piece) else {
                piece.iter().for_each(|&byte| self.step(byte));
                continue;
            };
            // No byte equal to the one before it: the run ends at the last byte, with length 1.
            let word = u64::from_le_bytes(word);
            let unequal = word ^ (word << 8 | u64::from(self.value));
            if self.run > 0 && !has_zero_byte(unequal) {
                self.value = piece[7];
                self.run = 1;
            } else {
                piece.iter().for_each(|&byte| self.step(byte));
            }
        }
    }

    fn outcomes(&self, bytes: u64, out: &mut Vec<Outcome>) {
        // A run of L starts at a given byte with probability (1 − 1/256) · 256^(1 − L).
        let length = self.run_max.min(100) as i32;
        let starts = (1.0 - 1.0 / VALUES) * bytes as f64;
        let p = if length <= 1 {
            1.0
        } else {
            at_least_once(VALUES.powi(1 - length), starts)
        };
        let note = format!("{} alarms at cut-off {}", self.alarms, Self::CUTOFF);
        let name = "repetition count, bytes";
        out.push(
            Outcome::measured(name, "longest run", self.run_max as f64, p, note)
                .with_minimum(BYTES_MIN, bytes),
        );
    }
}

/// Returns true if some byte of `word` is zero. It may be true of other words as well, since the
/// slow path that follows is exact.
fn has_zero_byte(word: u64) -> bool {
    word.wrapping_sub(0x0101_0101_0101_0101) & !word & 0x8080_8080_8080_8080 != 0
}

/// Adaptive proportion test: the number of occurrences of a window's first byte in the window.
pub(crate) struct AdaptiveProportion {
    windows: u64,
    count_max: u64,
    cutoff: u64,
    alarms: u64,
}

impl AdaptiveProportion {
    /// SP 800-90B's window for sources that are not binary. It divides the block.
    const WINDOW: usize = 512;

    pub(crate) fn new() -> Self {
        AdaptiveProportion {
            windows: 0,
            count_max: 0,
            cutoff: Self::cutoff(),
            alarms: 0,
        }
    }

    fn cutoff() -> u64 {
        let alpha = f64::from(LOG2_ALPHA).exp2();
        // P(B > c) is P(B ≥ c + 1), and the cut-off is that c + 1.
        (1..)
            .find(|&count| Self::tail(Self::WINDOW as u64, count) <= alpha)
            .expect("a finite window")
    }

    fn tail(trials: u64, count: u64) -> f64 {
        binomial_upper(count, trials, 1.0 / VALUES)
    }
}

impl Test for AdaptiveProportion {
    fn absorb(&mut self, block: &Block<'_>) {
        for window in block.bytes().chunks_exact(Self::WINDOW) {
            let first = window[0];
            let count: u16 = window.iter().map(|&byte| u16::from(byte == first)).sum();
            let count = u64::from(count);
            self.windows += 1;
            self.count_max = self.count_max.max(count);
            self.alarms += u64::from(count >= self.cutoff);
        }
    }

    fn outcomes(&self, bytes: u64, out: &mut Vec<Outcome>) {
        // The first byte is always there; the others are trials.
        let others = self.count_max.saturating_sub(1);
        let p = at_least_once(
            Self::tail(Self::WINDOW as u64 - 1, others),
            self.windows as f64,
        );
        let note = format!(
            "{} alarms at cut-off {} in {} windows of {}",
            self.alarms,
            self.cutoff,
            self.windows,
            Self::WINDOW
        );
        let name = "adaptive proportion, bytes";
        out.push(
            Outcome::measured(name, "largest count", self.count_max as f64, p, note)
                .with_minimum(BYTES_MIN, bytes),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Blocks;

    #[test]
    fn cut_offs_are_those_of_the_standard() {
        assert_eq!(
            RepetitionCount::CUTOFF,
            1 + u64::from((-LOG2_ALPHA).unsigned_abs()).div_ceil(8)
        );
        assert_eq!(AdaptiveProportion::cutoff(), 19);
    }

    #[test]
    fn the_longest_run_is_found_wherever_it_lies() {
        for start in [0, 1, 3, 7, 8, 1000, 65_530, 65_535, 65_536, 65_537] {
            for length in [2, 5, 6, 9, 30] {
                let mut stream: Vec<u8> = (0..=255).cycle().take(70_001).collect();
                // The neighbours must differ from the run: values 1 apart never do repeat.
                let value = stream[start].wrapping_add(128);
                stream[start..start + length].fill(value);
                let mut test = RepetitionCount::new();
                let mut blocks = Blocks::new();
                blocks.push(&stream, |block| test.absorb(block));
                blocks.finish(|block| test.absorb(block));
                assert_eq!(test.run_max, length as u64, "at {start}");
                assert_eq!(test.alarms, u64::from(length >= 6), "at {start}");
            }
        }
    }
}
