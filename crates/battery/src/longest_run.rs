//! Longest run of ones in blocks of 128 bits (NIST SP 800-22, section 2.4), with class
//! probabilities computed rather than copied.

use crate::block::Block;
use crate::report::Outcome;
use crate::special::chi_square_two_sided;
use crate::Test;

const BYTES_MIN: u64 = 16 * 1024;
const BLOCK_BITS: usize = 128;
/// The first class is a longest run of at most this many ones; the last of at least
/// `SHORTEST + CLASSES − 1`.
const SHORTEST: usize = 4;
const CLASSES: usize = 6;

/// Counts blocks by the length of their longest run of ones.
pub(crate) struct LongestRun {
    classes: [u64; CLASSES],
}

impl LongestRun {
    pub(crate) fn new() -> Self {
        LongestRun {
            classes: [0; CLASSES],
        }
    }
}

/// The class of a block, without a branch: bit i of `r_k` says that k ones end at bit i.
fn class(block: u128) -> usize {
    let r2 = block & block << 1;
    let r4 = r2 & r2 << 2;
    let r5 = r4 & block << 4;
    let r6 = r4 & r2 << 4;
    let r7 = r6 & block << 6;
    let r8 = r4 & r4 << 4;
    let r9 = r8 & block << 8;
    [r5, r6, r7, r8, r9]
        .into_iter()
        .map(|ends| usize::from(ends != 0))
        .sum()
}

/// P(no run of ones longer than `run` in `bits` fair bits). The first zero is bit j + 1 with
/// probability 2^-(j+1), and what follows it is a shorter block.
fn no_longer_than(run: usize, bits: usize) -> f64 {
    let mut p = vec![1.0; run + 1];
    for n in run + 1..=bits {
        p.push(
            (0..=run)
                .map(|j| 0.5f64.powi(j as i32 + 1) * p[n - j - 1])
                .sum(),
        );
    }
    p[bits]
}

fn class_probabilities() -> [f64; CLASSES] {
    std::array::from_fn(|class| {
        let longest = SHORTEST + class;
        let at_most = if class + 1 == CLASSES {
            1.0
        } else {
            no_longer_than(longest, BLOCK_BITS)
        };
        at_most
            - if class == 0 {
                0.0
            } else {
                no_longer_than(longest - 1, BLOCK_BITS)
            }
    })
}

impl Test for LongestRun {
    fn absorb(&mut self, block: &Block<'_>) {
        for pair in block.words().chunks_exact(2) {
            self.classes[class(u128::from(pair[0]) | u128::from(pair[1]) << 64)] += 1;
        }
    }

    fn outcomes(&self, bytes: u64, out: &mut Vec<Outcome>) {
        let blocks = self.classes.iter().sum::<u64>() as f64;
        let chi_square: f64 = self
            .classes
            .iter()
            .zip(class_probabilities())
            .map(|(&count, p)| (count as f64 - blocks * p).powi(2) / (blocks * p))
            .sum();
        let p = chi_square_two_sided(chi_square, CLASSES as f64 - 1.0);
        let note = format!("{blocks} blocks of {BLOCK_BITS} bits");
        let (name, statistic) = ("longest run of ones", "chi-square (5 df)");
        out.push(
            Outcome::measured(name, statistic, chi_square, p, note).with_minimum(BYTES_MIN, bytes),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_probabilities_are_those_of_sp_800_22() {
        // Section 3.4, K = 5, M = 128, to the digits printed there (cut, not rounded).
        let published = [0.1174, 0.2430, 0.2493, 0.1752, 0.1027, 0.1124];
        for (computed, published) in class_probabilities().into_iter().zip(published) {
            assert!(
                (computed - published).abs() < 1e-4,
                "{computed} for {published}"
            );
        }
    }

    #[test]
    fn the_class_is_that_of_the_longest_run() {
        for run in 0..=128usize {
            for start in [0, 1, 60, 64, 128 - run.min(128)] {
                if start + run > 128 {
                    continue;
                }
                let ones = if run == 128 {
                    u128::MAX
                } else {
                    (1u128 << run) - 1
                };
                let block = ones << start.min(127);
                let expected = run.clamp(SHORTEST, SHORTEST + CLASSES - 1) - SHORTEST;
                assert_eq!(class(block), expected, "{run} ones from bit {start}");
            }
        }
    }
}
