//! Seeds for other generators: the strongest that this processor gives, with their grade.

use core::fmt;

use crate::error::Error;
use crate::generator::{Generator, Rdrand, Rdseed};
use crate::retry_limit::RetryLimit;
use crate::source::{RdrandInstruction, RdseedInstruction, Source};

/// The method by which the weakest part of a seed was made, strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum SeedGrade {
    /// RDSEED: the entropy source itself, full entropy by Intel's and AMD's claim (SP 800-90B
    /// and C).
    Rdseed,
    /// RDRAND, 512 samples of 128 bits condensed to one by AES-CBC-MAC. Each 128 bits of the
    /// seed span at least one reseed of the hardware generator, which happens at the latest
    /// after 511 such samples.
    RdrandConditioned,
    /// RDRAND, each 64 bits after 1024 skipped draws: at least one reseed lies between any
    /// two values, but nothing is condensed. Only in builds without the feature `aes`.
    RdrandSkipped,
}

impl fmt::Display for SeedGrade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SeedGrade::Rdseed => "RDSEED",
            SeedGrade::RdrandConditioned => "RDRAND, 512:1 by AES-CBC-MAC",
            SeedGrade::RdrandSkipped => "RDRAND, one of 1025",
        })
    }
}

/// Fills with seed material, once; makes a [`Seeder`] for it, which costs about 1 ms, on AMD Zen 5
/// 25 ms.
///
/// # Errors
/// [`Error::Unsupported`] without RDSEED and RDRAND; otherwise the error of the last method tried.
pub fn seed(destination: &mut [u8]) -> Result<SeedGrade, Error> {
    Seeder::new()?.fill_bytes(destination)
}

/// Makes seeds: from RDSEED while it delivers, otherwise from condensed RDRAND.
#[derive(Debug)]
pub struct Seeder<D: Source = RdseedInstruction, R: Source = RdrandInstruction> {
    rdseed: Option<Generator<D>>,
    rdrand: Option<Generator<R>>,
}

impl Seeder {
    /// Takes what this processor has and passes its self-test.
    ///
    /// # Errors
    /// The error of RDRAND where neither instruction can be used.
    pub fn new() -> Result<Self, Error> {
        Self::with_retry_limit(RetryLimit::RDSEED)
    }

    /// As [`new`](Self::new), with a limit of the caller's for each RDSEED value. When it is used
    /// up, the seed is made of RDRAND.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_retry_limit(limit: RetryLimit) -> Result<Self, Error> {
        let rdseed = Rdseed::with_retry_limit(limit).ok();
        match (rdseed, Rdrand::new()) {
            (None, Err(error)) => Err(error),
            (rdseed, rdrand) => Ok(Seeder {
                rdseed,
                rdrand: rdrand.ok(),
            }),
        }
    }
}

impl<D: Source, R: Source> Seeder<D, R> {
    /// Takes generators, such as scripted ones.
    #[must_use]
    pub fn with_generators(rdseed: Option<Generator<D>>, rdrand: Option<Generator<R>>) -> Self {
        Seeder { rdseed, rdrand }
    }

    /// Fills with seed material and returns its grade. All or nothing: on an error the
    /// destination is zeroed.
    ///
    /// # Errors
    /// The error of RDRAND, or of RDSEED without RDRAND.
    pub fn fill_bytes(&mut self, destination: &mut [u8]) -> Result<SeedGrade, Error> {
        let stopped = match &mut self.rdseed {
            Some(rdseed) => match rdseed.fill_bytes(destination) {
                Ok(()) => return Ok(SeedGrade::Rdseed),
                Err(error) => Some(error),
            },
            None => None,
        };
        let written = stopped.as_ref().map_or(0, Error::written);
        let result = match (&mut self.rdrand, stopped) {
            (Some(rdrand), _) => condense(rdrand, &mut destination[written..]),
            (None, Some(error)) => Err(error.with_written(0)),
            (None, None) => Err(Error::Unsupported {
                instruction: R::INSTRUCTION,
            }),
        };
        if result.is_err() {
            destination.fill(0);
        }
        result.map_err(|error| error.with_written(0))
    }

    /// Draws of both instructions, the self-tests included.
    #[cfg(test)]
    pub(crate) fn draws(&self) -> u64 {
        let rdseed = self
            .rdseed
            .as_ref()
            .map_or(0, |rdseed| rdseed.counts().draws);
        rdseed
            + self
                .rdrand
                .as_ref()
                .map_or(0, |rdrand| rdrand.counts().draws)
    }
}

/// 128-bit samples that one 128-bit block of a seed is made of.
#[cfg(feature = "aes")]
const SAMPLES: usize = 512;

#[cfg(feature = "aes")]
fn condense<R: Source>(
    rdrand: &mut Generator<R>,
    destination: &mut [u8],
) -> Result<SeedGrade, Error> {
    use aes::cipher::{Array, BlockCipherEncrypt, KeyInit};
    use zeroize::{Zeroize, Zeroizing};

    let mut key = Zeroizing::new([0; 16]);
    rdrand.fill_bytes(&mut *key)?;
    let cipher = aes::Aes128::new(&Array::from(*key));
    let mut samples = Zeroizing::new([0; 16 * SAMPLES]);
    for block in destination.chunks_mut(16) {
        rdrand.fill_bytes(&mut *samples)?;
        let mut mac = Array::from([0; 16]);
        for sample in samples.chunks_exact(16) {
            for (byte, bits) in mac.iter_mut().zip(sample) {
                *byte ^= bits;
            }
            cipher.encrypt_block(&mut mac);
        }
        block.copy_from_slice(&mac[..block.len()]);
        mac.zeroize();
    }
    Ok(SeedGrade::RdrandConditioned)
}

#[cfg(not(feature = "aes"))]
fn condense<R: Source>(
    rdrand: &mut Generator<R>,
    destination: &mut [u8],
) -> Result<SeedGrade, Error> {
    rdrand.fill_bytes_reseed_skip(destination)?;
    Ok(SeedGrade::RdrandSkipped)
}
