//! The number of ones: in all, in each block, in each position of a word, and at each step of the
//! ±1 walk (NIST SP 800-22, sections 2.1, 2.2 and 2.13).

use crate::bits::{CarrySave, GROUP};
use crate::block::Block;
use crate::report::Outcome;
use crate::special::{chi_square_two_sided, normal_two_sided, walk_extreme};
use crate::Test;

const BYTES_MIN: u64 = 16 * 1024;
const MONOBIT_BYTES_MIN: u64 = 4096;
/// Bits of a block in the block frequency test: one [`GROUP`] of words.
const GROUP_BITS: i64 = 64 * GROUP as i64;
/// Bit planes of the counters by position: 2^44 words are 128 TiB.
const PLANES: usize = 40;

/// Monobit, block frequency, bit positions and cumulative sums, from the same counts.
pub(crate) struct Frequency {
    words: u64,
    ones: u64,
    groups: u64,
    /// Sum of squared deviations of ones from half over the groups, in (2 × ones − 1024)².
    squares: f64,
    tree: CarrySave<1>,
    /// `planes[k]` holds bit k of the number of sixteens counted for each position.
    planes: [u64; PLANES],
    /// Counts by position of words that did not fill a group.
    rest: [u64; 64],
    /// The walk that goes up one for a one and down one for a zero, and its extremes.
    walk: i64,
    highest: i64,
    lowest: i64,
}

impl Frequency {
    pub(crate) fn new() -> Self {
        Frequency {
            words: 0,
            ones: 0,
            groups: 0,
            squares: 0.0,
            tree: CarrySave::new(),
            planes: [0; PLANES],
            rest: [0; 64],
            walk: 0,
            highest: 0,
            lowest: 0,
        }
    }

    fn group(&mut self, group: &[u64; GROUP]) {
        let ones: u64 = group.iter().map(|word| u64::from(word.count_ones())).sum();
        let deviation = 2 * ones as i64 - GROUP_BITS;
        self.ones += ones;
        self.groups += 1;
        self.squares += (deviation * deviation) as f64;
        let [mut carry] = self.tree.add(&group.map(|word| [word]));
        for plane in &mut self.planes {
            let next = *plane & carry;
            *plane ^= carry;
            carry = next;
            if carry == 0 {
                break;
            }
        }
        if self.may_leave_range(GROUP_BITS) {
            group.iter().for_each(|&word| self.walk_word(word));
        } else {
            self.walk += deviation;
        }
    }

    /// Returns true if a step of at most `bits` could make a new extreme. Where it could not, the
    /// walk moves by whole words and groups: extremes are rare, and bit by bit a word costs 64
    /// steps.
    fn may_leave_range(&self, bits: i64) -> bool {
        self.walk + bits > self.highest || self.walk - bits < self.lowest
    }

    fn walk_word(&mut self, word: u64) {
        if !self.may_leave_range(64) {
            self.walk += 2 * i64::from(word.count_ones()) - 64;
            return;
        }
        for bit in 0..64 {
            self.walk += 2 * (word >> bit & 1) as i64 - 1;
            self.highest = self.highest.max(self.walk);
            self.lowest = self.lowest.min(self.walk);
        }
    }

    fn ones_at(&self, position: usize) -> u64 {
        let bit = |word: u64| word >> position & 1;
        let planes = self
            .planes
            .iter()
            .enumerate()
            .map(|(k, &plane)| bit(plane) << (k + 4));
        let tree = self
            .tree
            .rest()
            .into_iter()
            .map(|(weight, [word])| weight * bit(word));
        planes.chain(tree).sum::<u64>() + self.rest[position]
    }
}

impl Test for Frequency {
    fn absorb(&mut self, block: &Block<'_>) {
        let words = block.words();
        self.words += words.len() as u64;
        let groups = words.chunks_exact(GROUP);
        for &word in groups.remainder() {
            self.ones += u64::from(word.count_ones());
            for (position, count) in self.rest.iter_mut().enumerate() {
                *count += word >> position & 1;
            }
        }
        let rest = groups.remainder();
        for group in groups {
            self.group(group.try_into().expect("a full group"));
        }
        rest.iter().for_each(|&word| self.walk_word(word));
    }

    fn outcomes(&self, bytes: u64, out: &mut Vec<Outcome>) {
        let bits = 64.0 * self.words as f64;
        let z = (2.0 * self.ones as f64 - bits) / bits.sqrt();
        let note = format!("{:.4} % ones", 100.0 * self.ones as f64 / bits);
        out.push(
            Outcome::measured("monobit", "z", z, normal_two_sided(z), note)
                .with_minimum(MONOBIT_BYTES_MIN, bytes),
        );

        let chi_square = self.squares / GROUP_BITS as f64;
        let p = chi_square_two_sided(chi_square, self.groups as f64);
        let statistic = format!("chi-square ({} df)", self.groups);
        let note = format!("blocks of {GROUP_BITS} bits");
        out.push(
            Outcome::measured("block frequency", statistic, chi_square, p, note)
                .with_minimum(BYTES_MIN, bytes),
        );

        let words = self.words as f64;
        let deviations: [f64; 64] =
            std::array::from_fn(|i| (2.0 * self.ones_at(i) as f64 - words) / words.sqrt());
        let chi_square = deviations.iter().map(|z| z * z).sum();
        let worst = (0..64).max_by(|&a, &b| deviations[a].abs().total_cmp(&deviations[b].abs()));
        let note = worst.map_or(String::new(), |i| {
            let share = 100.0 * self.ones_at(i) as f64 / words;
            format!("furthest from even: bit {i} of 64, {share:.3} % ones")
        });
        let p = chi_square_two_sided(chi_square, 64.0);
        out.push(
            Outcome::measured("bit positions", "chi-square (64 df)", chi_square, p, note)
                .with_minimum(BYTES_MIN, bytes),
        );

        let excursion = self.highest.max(-self.lowest) as f64;
        let z = excursion / bits.sqrt();
        let note = format!("largest excursion {excursion}");
        out.push(
            Outcome::measured("cumulative sums", "z", z, walk_extreme(z), note)
                .with_minimum(BYTES_MIN, bytes),
        );
    }
}
