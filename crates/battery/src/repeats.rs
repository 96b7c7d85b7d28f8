//! Repeated blocks: 64-bit windows seen before, at any byte offset.
//!
//! A window is remembered when its hash is below a threshold. The choice depends on the window's
//! value alone, so both occurrences of a repeated window are chosen or neither is. When the table
//! is full the threshold is halved and the windows above it are forgotten: memory stays bounded
//! and any period shorter than the stream keeps being found (value-based sampling, as in Broder,
//! "On the resemblance and containment of documents", 1997).

use crate::block::Block;
use crate::report::Outcome;
use crate::special::poisson_upper;
use crate::Test;

const BYTES_MIN: u64 = 4096;
const WINDOW_BYTES: usize = 8;
/// Slots of the table: 1 MiB. At most half of them are ever taken.
const SLOTS: usize = 1 << 17;
const RETAINED_MAX: usize = SLOTS / 2;
/// An odd multiplier with well-spread bits (2^64 divided by the golden ratio): a bijection.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
/// No window: the table never holds it, because `zero_seen` stands for it.
const EMPTY: u64 = 0;

/// Remembers a sample of the windows seen and counts those that occur again.
pub(crate) struct Repeats {
    slots: Vec<u64>,
    retained: usize,
    zero_seen: bool,
    threshold: u64,
    sampled: u64,
    repeats: u64,
    /// Repeats expected of an ideal source.
    expected: f64,
}

impl Repeats {
    pub(crate) fn new() -> Self {
        Repeats {
            slots: vec![EMPTY; SLOTS],
            retained: 0,
            zero_seen: false,
            threshold: u64::MAX,
            sampled: 0,
            repeats: 0,
            expected: 0.0,
        }
    }

    #[cold]
    fn insert(&mut self, hash: u64) {
        self.sampled += 1;
        // The hash of an ideal window is uniform up to the threshold.
        self.expected += self.retained as f64 / (self.threshold as f64 + 1.0);
        if hash == EMPTY {
            self.repeats += u64::from(self.zero_seen);
            self.zero_seen = true;
            return;
        }
        if !place(&mut self.slots, hash) {
            self.repeats += 1;
            return;
        }
        self.retained += 1;
        while self.retained >= RETAINED_MAX {
            self.threshold /= 2;
            let kept: Vec<u64> = self
                .slots
                .drain(..)
                .filter(|&hash| hash != EMPTY && hash <= self.threshold)
                .collect();
            self.slots.resize(SLOTS, EMPTY);
            self.retained = kept.len();
            for hash in kept {
                place(&mut self.slots, hash);
            }
        }
    }
}

/// Puts `hash` into the open-addressing table. Returns false if it is there already.
fn place(slots: &mut [u64], hash: u64) -> bool {
    let mut slot = (hash ^ hash >> 29).wrapping_mul(SPREAD) as usize >> (usize::BITS - 17);
    loop {
        match slots[slot] {
            EMPTY => {
                slots[slot] = hash;
                return true;
            }
            taken if taken == hash => return false,
            _ => slot = (slot + 1) % SLOTS,
        }
    }
}

impl Test for Repeats {
    fn absorb(&mut self, block: &Block<'_>) {
        for window in block.bytes_from(WINDOW_BYTES - 1).windows(WINDOW_BYTES) {
            let word = u64::from_le_bytes(window.try_into().expect("eight bytes"));
            let hash = word.wrapping_mul(SPREAD);
            if hash <= self.threshold {
                self.insert(hash);
            }
        }
    }

    fn outcomes(&self, bytes: u64, out: &mut Vec<Outcome>) {
        let p = poisson_upper(self.repeats, self.expected);
        let note = format!(
            "of {} windows sampled; {:.1e} expected",
            self.sampled, self.expected
        );
        out.push(
            Outcome::measured("repeated windows", "count", self.repeats as f64, p, note)
                .with_minimum(BYTES_MIN, bytes),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Blocks;

    #[test]
    fn the_table_stays_bounded_and_a_repeat_across_four_megabytes_is_seen() {
        let mut x = 1u64;
        let mut block: Vec<u8> = Vec::new();
        while block.len() < (4 << 20) + 3 {
            x = (x ^ x >> 27).wrapping_mul(SPREAD).wrapping_add(1);
            block.extend_from_slice(&(x ^ x >> 31).to_le_bytes()[..7]);
        }
        let mut test = Repeats::new();
        let mut blocks = Blocks::new();
        blocks.push(&block, |block| test.absorb(block));
        assert_eq!(test.repeats, 0);
        assert!(test.retained < RETAINED_MAX && test.threshold < u64::MAX);
        blocks.push(&block, |block| test.absorb(block));
        assert!(test.repeats > 10_000, "{} repeats", test.repeats);
    }
}
