//! The bare instruction loop: the limit with which every other figure is compared.
//!
//! The values are neither tested nor counted, and the retries have no limit: a loop retries on
//! CF = 0 for ever. Use it to measure; use [`Rdrand`](crate::Rdrand) to get numbers.

use crate::source::Source;
pub use crate::source::{RdrandInstruction, RdseedInstruction};

/// Fills with 64-bit values; retries each until CF = 1.
#[inline]
pub fn fill_u64<S: Source>(mut source: S, destination: &mut [u64]) {
    for slot in destination {
        *slot = loop {
            if let Some(value) = source.step_u64() {
                break value;
            }
        };
    }
}

/// Fills with 32-bit values; retries each until CF = 1.
#[inline]
pub fn fill_u32<S: Source>(mut source: S, destination: &mut [u32]) {
    for slot in destination {
        *slot = loop {
            if let Some(value) = source.step_u32() {
                break value;
            }
        };
    }
}

/// Fills with 16-bit values; retries each until CF = 1.
#[inline]
pub fn fill_u16<S: Source>(mut source: S, destination: &mut [u16]) {
    for slot in destination {
        *slot = loop {
            if let Some(value) = source.step_u16() {
                break value;
            }
        };
    }
}

/// Executes the 64-bit form `draws` times without retrying and returns the number of
/// times that CF was 0.
#[inline]
#[must_use]
pub fn count_underflows<S: Source>(mut source: S, draws: u64) -> u64 {
    let mut underflows = 0;
    for _ in 0..draws {
        underflows += u64::from(source.step_u64().is_none());
    }
    underflows
}

/// Executes RDRAND `draws` times without retrying and returns the number of times that it had no
/// data.
#[inline]
#[must_use]
pub fn count_rdrand_underflows(rdrand: RdrandInstruction, draws: u64) -> u64 {
    count_underflows(rdrand, draws)
}

/// Executes RDSEED `draws` times without retrying and returns the number of times that it had no
/// data.
#[inline]
#[must_use]
pub fn count_rdseed_underflows(rdseed: RdseedInstruction, draws: u64) -> u64 {
    count_underflows(rdseed, draws)
}
