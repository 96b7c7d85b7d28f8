//! Birthday spacings (Marsaglia, "A current view of random number generators", 1985).

use crate::block::Block;
use crate::report::Outcome;
use crate::special::poisson_two_sided;
use crate::Test;

/// Eight groups, 32 duplicates expected.
const BYTES_MIN: u64 = 1024 * 1024;
/// Birthdays per group. With 2^32 days the expected number of duplicate spacings is
/// m³ / 4n = 2^36 / 2^34 = 4.
const BIRTHDAYS: usize = 4096;
const DAYS_LOG2: i32 = 32;
/// Two sorts per group cost as much as all else, so every second block gives one.
const BLOCKS_PER_GROUP: u64 = 2;
/// The Poisson mean above is itself an approximation, wrong by about 1/m; the count of this many
/// groups has a relative standard deviation twenty times as large.
const GROUPS_MAX: u64 = 10_000;

/// Counts duplicate spacings between sorted 32-bit values.
pub(crate) struct BirthdaySpacings {
    blocks: u64,
    groups: u64,
    duplicates: u64,
    days: Vec<u32>,
}

impl BirthdaySpacings {
    pub(crate) fn new() -> Self {
        let days = Vec::with_capacity(BIRTHDAYS);
        BirthdaySpacings {
            blocks: 0,
            groups: 0,
            duplicates: 0,
            days,
        }
    }
}

impl Test for BirthdaySpacings {
    fn absorb(&mut self, block: &Block<'_>) {
        self.blocks += 1;
        let Some(words) = block.words().get(..BIRTHDAYS / 2) else {
            return;
        };
        if self.blocks % BLOCKS_PER_GROUP != 1 || self.groups == GROUPS_MAX {
            return;
        }
        self.days.clear();
        self.days.extend(
            words
                .iter()
                .flat_map(|&word| [word as u32, (word >> 32) as u32]),
        );
        self.days.sort_unstable();
        for i in (1..BIRTHDAYS).rev() {
            self.days[i] -= self.days[i - 1];
        }
        self.days.sort_unstable();
        self.groups += 1;
        self.duplicates += self
            .days
            .windows(2)
            .map(|pair| u64::from(pair[0] == pair[1]))
            .sum::<u64>();
    }

    fn outcomes(&self, bytes: u64, out: &mut Vec<Outcome>) {
        let m = BIRTHDAYS as f64;
        let mean = self.groups as f64 * m.powi(3) / f64::from(DAYS_LOG2 + 2).exp2();
        let p = poisson_two_sided(self.duplicates, mean);
        let note = format!("{mean} expected in {} groups of {BIRTHDAYS}", self.groups);
        out.push(
            Outcome::measured(
                "birthday spacings",
                "duplicates",
                self.duplicates as f64,
                p,
                note,
            )
            .with_minimum(BYTES_MIN, bytes),
        );
    }
}
