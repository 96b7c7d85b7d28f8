#![doc = include_str!("../README.md")]

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

use block::{Block, Blocks};

/// The length of stream, in bytes, from which every test judges: 1 MiB.
pub const BYTES_MIN: u64 = 1024 * 1024;

/// The parameters of a judgement.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The family-wise false alarm rate: the share of ideal streams that may fail. 1e-6 by default.
    pub family_alpha: f64,
}

impl Default for Config {
    fn default() -> Self {
        Config { family_alpha: 1e-6 }
    }
}

impl Config {
    /// Returns these parameters with another family-wise false alarm rate.
    ///
    /// # Panics
    /// If `alpha` is not strictly between 0 and 1.
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

/// One test: absorbs the stream block by block and reports what it found.
trait Test: Send {
    /// Takes in the next block. Every block but the last is full.
    fn absorb(&mut self, block: &Block<'_>);

    /// Appends the outcomes. `bytes` is the length of the whole stream.
    fn outcomes(&self, bytes: u64, out: &mut Vec<Outcome>);
}

/// All tests over one stream. Holds about 2 MiB, whatever the length of the stream.
pub struct Battery {
    config: Config,
    bytes: u64,
    blocks: Blocks,
    tests: Vec<Box<dyn Test>>,
}

impl Battery {
    /// Returns a battery that has taken in no byte yet.
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

    /// Takes in the next bytes of the stream, in chunks of any size.
    pub fn update(&mut self, chunk: &[u8]) {
        self.bytes += chunk.len() as u64;
        let tests = &mut self.tests;
        self.blocks.push(chunk, |block| {
            tests.iter_mut().for_each(|test| test.absorb(block))
        });
    }

    /// The number of bytes taken in so far.
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
