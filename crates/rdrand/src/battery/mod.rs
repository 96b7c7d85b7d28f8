//! Quick statistical tests on a byte stream, in a single pass and bounded memory.
//!
//! The battery is a smoke alarm, not a proof: it finds generators that are broken in the ways
//! hardware and software break (stuck or biased bits, zero blocks, repeated blocks, counters,
//! short linear generators, text) within megabytes, and it does so with a stated rate of false
//! alarms. It cannot tell a good cipher in counter mode from hardware; no test of output can.
//!
//! ```
//! use tare_rdrand::battery::{Battery, Config, Verdict};
//!
//! let mut battery = Battery::new(Config::default());
//! battery.update(&[0; 100_000]);
//! let report = battery.finish();
//! assert_eq!(report.verdict, Verdict::Fail);
//! ```
//!
//! # The decision
//! Every test gives a p-value: the probability that an ideal source, with independent and uniform
//! bits, gives a statistic at least as extreme. Holm's procedure holds all of them against one
//! family-wise false alarm rate, 1e-6 a stream unless [`Config`] says otherwise. A test whose
//! minimal sample is not reached says so, and a report with such a test never passes: a full
//! report takes [`BYTES_MIN`] bytes.
//!
//! # The tests
//!
//! | test | statistic | from |
//! |---|---|---|
//! | repetition count (SP 800-90B 4.4.1), bytes | longest run of one value; alarms at cut-off 6 | 4 KiB |
//! | adaptive proportion (SP 800-90B 4.4.2), bytes | largest count in windows of 512; alarms at cut-off 19 | 4 KiB |
//! | monobit | z of the number of ones | 4 KiB |
//! | block frequency | chi-square over blocks of 1024 bits | 16 KiB |
//! | bit positions | chi-square over the 64 positions of a word | 16 KiB |
//! | cumulative sums | largest excursion of the ±1 walk | 16 KiB |
//! | runs; autocorrelation at 2 to 1024 bits | z of the number of unequal bit pairs | 16 KiB |
//! | longest run of ones in 128 bits | chi-square, 6 classes | 16 KiB |
//! | bytes | chi-square, two-sided | 16 KiB |
//! | byte pairs | chi-square over 65,536 bins, two-sided | 1 MiB |
//! | zero and all-one words | Poisson count | 4 KiB |
//! | constant stride, 8 to 64 bits, both byte orders | binomial count of zero second differences | 16 KiB |
//! | repeated windows | Poisson count of 64-bit windows seen before, at any byte offset | 4 KiB |
//! | birthday spacings | Poisson count, 4096 birthdays in 2^32 days, every 128 KiB | 1 MiB |
//! | matrix rank 64 × 64 | binomial count of rank ≤ 62, one matrix every 8 KiB | 1 MiB |
//! | matrix rank 1024 × 1024 | sum of rank deficiencies, one every 4 MiB, at most 16 | 1 MiB |
//! | FIPS 140-2 | failed blocks of 20,000 bits, one every 128 KiB | 1 MiB |
//!
//! SP 800-90B's cut-offs are those for full-entropy bytes (H = 8) and a false alarm every 2^40
//! samples. They are reported, but the verdict comes from the p-value of the most extreme window,
//! because a fixed cut-off would raise the false alarm rate with the length of the stream.
//!
//! # What it finds
//! The tests of this module hold it to these, among others, at the family-wise rate of 1e-6:
//! a bit biased to 51 % from 20 kB on (in 99 of 100 streams), one stuck bit in 64, counters of
//! 8 to 64 bits, blocks repeated with any period up to half the stream, 64 % zero blocks, low bits
//! of a linear congruential generator, an LFSR of up to 1000 bits, text.

mod autocorrelation;
mod birthday;
mod bits;
mod block;
mod distribution;
mod fips;
mod frequency;
mod longest_run;
mod rank;
mod repeats;
mod report;
mod sp800_90b;
pub mod special;
mod words;

pub use fips::FIPS_140_FAILURE_RATE;
pub use report::{Outcome, Report, Verdict};

use std::boxed::Box;
use std::{vec, vec::Vec};

use block::{Block, Blocks};

/// The length of stream, in bytes, from which every test judges: 1 MiB.
pub const BYTES_MIN: u64 = 1024 * 1024;

/// How to judge.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The family-wise false alarm rate: how often an ideal stream may fail. 1e-6 by default.
    pub family_alpha: f64,
}

impl Default for Config {
    fn default() -> Self {
        Config { family_alpha: 1e-6 }
    }
}

impl Config {
    /// The same with another family-wise false alarm rate.
    ///
    /// # Panics
    /// Where `alpha` is not strictly between 0 and 1.
    #[must_use]
    pub fn with_family_alpha(mut self, alpha: f64) -> Self {
        assert!(
            alpha > 0.0 && alpha < 1.0,
            "a false alarm rate is between 0 and 1, not {alpha}"
        );
        self.family_alpha = alpha;
        self
    }
}

/// One test: absorbs the stream block by block and says what it found.
trait Test: Send {
    /// Looks at the next block. Every block but the last is full.
    fn absorb(&mut self, block: &Block<'_>);

    /// Appends the outcomes. `bytes` is the length of the whole stream.
    fn outcomes(&self, bytes: u64, out: &mut Vec<Outcome>);
}

/// The battery at work on one stream. Holds about 2 MiB whatever the length of the stream.
pub struct Battery {
    config: Config,
    bytes: u64,
    blocks: Blocks,
    tests: Vec<Box<dyn Test>>,
}

impl Battery {
    /// A battery that has seen nothing.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let tests: Vec<Box<dyn Test>> = vec![
            Box::new(sp800_90b::RepetitionCount::new()),
            Box::new(sp800_90b::AdaptiveProportion::new()),
            Box::new(frequency::Frequency::new()),
            Box::new(autocorrelation::Autocorrelation::new()),
            Box::new(longest_run::LongestRun::new()),
            Box::new(distribution::Distribution::new()),
            Box::new(words::BlankWords::new()),
            Box::new(words::Stride::new()),
            Box::new(repeats::Repeats::new()),
            Box::new(birthday::BirthdaySpacings::new()),
            Box::new(rank::Rank64::new()),
            Box::new(rank::Rank1024::new()),
            Box::new(fips::Fips140::new()),
        ];
        Battery {
            config,
            bytes: 0,
            blocks: Blocks::new(),
            tests,
        }
    }

    /// Feeds the next bytes of the stream, in chunks of any size.
    pub fn update(&mut self, chunk: &[u8]) {
        self.bytes += chunk.len() as u64;
        let tests = &mut self.tests;
        self.blocks.push(chunk, |block| {
            tests.iter_mut().for_each(|test| test.absorb(block))
        });
    }

    /// How many bytes have been fed.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Judges the stream.
    #[must_use]
    pub fn finish(self) -> Report {
        let Battery {
            config,
            bytes,
            blocks,
            mut tests,
        } = self;
        blocks.finish(|block| tests.iter_mut().for_each(|test| test.absorb(block)));
        let mut outcomes = Vec::new();
        for test in &tests {
            test.outcomes(bytes, &mut outcomes);
        }
        Report::new(bytes, config.family_alpha, outcomes)
    }
}

#[cfg(test)]
mod tests;
