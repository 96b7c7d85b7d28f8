//! A method as a stream of bytes of any length.

use std::io::{self, Read};

use anyhow::anyhow;
use tare_rdrand::instruction::{self, RdrandInstruction};
use tare_rdrand::{AesCtr, Error};

use super::method::Method;
use super::retry::Retry;
use crate::references::random::{self, RandChacha, RdrandCrate};
use crate::systems::system_random;

/// A function that fills a whole buffer, or fails.
pub(crate) type Fill = Box<dyn FnMut(&mut [u8]) -> anyhow::Result<()> + Send>;

/// Starts a generator for one thread.
///
/// # Errors
/// The processor lacks the instruction, or it failed its self-test.
pub(crate) fn open(method: Method, retry: Retry) -> anyhow::Result<Fill> {
    Ok(match method {
        // The bytes of an array are those that its elements have in memory.
        Method::GetBytes | Method::Uint8Array => {
            let mut rdrand = retry.rdrand()?;
            Box::new(move |buffer| rdrand.fill_bytes(buffer).map_err(uncounted))
        }
        Method::Uint16Array => {
            let mut rdrand = retry.rdrand()?;
            elements(
                move |array: &mut [u16]| rdrand.fill_u16(array).map_err(uncounted),
                u16::to_ne_bytes,
            )
        }
        Method::Uint32Array => {
            let mut rdrand = retry.rdrand()?;
            elements(
                move |array: &mut [u32]| rdrand.fill_u32(array).map_err(uncounted),
                u32::to_ne_bytes,
            )
        }
        Method::Uint64Array => {
            let mut rdrand = retry.rdrand()?;
            elements(
                move |array: &mut [u64]| rdrand.fill_u64(array).map_err(uncounted),
                u64::to_ne_bytes,
            )
        }
        Method::GetBytesOf32 => {
            let mut rdrand = retry.rdrand_of_32()?;
            Box::new(move |buffer| rdrand.fill_bytes(buffer).map_err(uncounted))
        }
        Method::ReseedDelay => {
            let mut rdrand = retry.rdrand()?;
            Box::new(move |buffer| rdrand.fill_bytes_reseed_delay(buffer).map_err(uncounted))
        }
        Method::ReseedSkip => {
            let mut rdrand = retry.rdrand()?;
            Box::new(move |buffer| rdrand.fill_bytes_reseed_skip(buffer).map_err(uncounted))
        }
        Method::AesCtr => {
            let (aes, mut rdrand) = (AesCtr::with_random_key()?, retry.rdrand()?);
            Box::new(move |buffer| aes.fill_bytes(&mut rdrand, buffer).map_err(uncounted))
        }
        Method::Rdseed => {
            let mut rdseed = retry.rdseed()?;
            Box::new(move |buffer| rdseed.fill_bytes(buffer).map_err(uncounted))
        }
        Method::Seed => {
            let mut seeder = retry.seeder()?;
            Box::new(move |buffer| {
                seeder.fill_bytes(buffer).map_err(uncounted)?;
                Ok(())
            })
        }
        Method::Bare16 => bare(
            |source, array: &mut [u16]| instruction::fill_u16(source, array),
            u16::to_ne_bytes,
        )?,
        Method::Bare32 => bare(
            |source, array: &mut [u32]| instruction::fill_u32(source, array),
            u32::to_ne_bytes,
        )?,
        Method::Bare64 => bare(
            |source, array: &mut [u64]| instruction::fill_u64(source, array),
            u64::to_ne_bytes,
        )?,
        Method::GetrandomSyscall => Box::new(|buffer| Ok(random::fill_by_system_call(buffer)?)),
        Method::GetrandomLibc => Box::new(|buffer| Ok(random::fill_by_libc(buffer)?)),
        Method::RandChacha => {
            let mut random = RandChacha::new(system_random()?);
            Box::new(move |buffer| {
                random.fill(buffer);
                Ok(())
            })
        }
        Method::AwsLcRs => Box::new(random::fill_by_aws_lc_rs),
        Method::RdrandCrate => {
            let mut random = RdrandCrate::new()?;
            Box::new(move |buffer| random.fill(buffer))
        }
    })
}

/// The error without its count of elements: they are those of one buffer, and the caller counts
/// the bytes of all.
pub(super) fn uncounted(error: Error) -> anyhow::Error {
    match error {
        Error::Underflow {
            instruction,
            attempts,
            waited,
            ..
        } => {
            let waited = waited.map_or(String::new(), |time| {
                format!(" and {} ms", time.as_millis())
            });
            anyhow!(
                "{instruction} gave no number in {attempts} attempts{waited}; try again when other \
                 programs draw less, draw with fewer threads, or wait longer (--retry-time)"
            )
        }
        other => other.into(),
    }
}

/// The bare loop over arrays of one element type.
fn bare<T: Copy + Default + Send + 'static, const N: usize>(
    fill: fn(RdrandInstruction, &mut [T]),
    to_bytes: fn(T) -> [u8; N],
) -> anyhow::Result<Fill> {
    let source = RdrandInstruction::detect()?;
    Ok(elements(
        move |array: &mut [T]| {
            fill(source, array);
            Ok(())
        },
        to_bytes,
    ))
}

/// Makes bytes out of a function that fills arrays. The part of the last element for which a buffer
/// has no space is discarded.
fn elements<T: Copy + Default + Send + 'static, const N: usize>(
    mut fill: impl FnMut(&mut [T]) -> anyhow::Result<()> + Send + 'static,
    to_bytes: fn(T) -> [u8; N],
) -> Fill {
    let mut array = Vec::new();
    Box::new(move |buffer| {
        array.resize(buffer.len().div_ceil(N), T::default());
        fill(&mut array)?;
        for (bytes, &element) in buffer.chunks_mut(N).zip(&array) {
            bytes.copy_from_slice(&to_bytes(element)[..bytes.len()]);
        }
        Ok(())
    })
}

/// The bytes that a method should generate per call: enough that the call costs little, few enough
/// that a bar moves every some tens of milliseconds.
pub(crate) fn chunk_bytes(method: Method) -> usize {
    match method {
        // 0.1 to 0.2 MB/s.
        Method::ReseedDelay | Method::ReseedSkip => 2 * 1024,
        // 0.3 MiB/s for all threads together on AMD Zen 5.
        Method::Rdseed | Method::Seed => 4 * 1024,
        _ => 256 * 1024,
    }
}

/// A stream as a reader that ends after `left` bytes.
pub(crate) struct FillReader {
    fill: Fill,
    left: u64,
}

impl FillReader {
    pub(crate) fn new(fill: Fill, bytes: u64) -> Self {
        FillReader { fill, left: bytes }
    }
}

impl Read for FillReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = buffer
            .len()
            .min(usize::try_from(self.left).unwrap_or(usize::MAX));
        (self.fill)(&mut buffer[..n]).map_err(io::Error::other)?;
        self.left -= n as u64;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_fills_buffers_of_any_length() {
        for method in super::super::method::testable() {
            let mut fill = open(method, Retry::PATIENT).unwrap();
            for length in [0, 1, 7, 8, 65] {
                let mut buffer = vec![0; length];
                fill(&mut buffer).unwrap();
                // A run of nine zeros would come once in 2^72 buffers.
                assert!(
                    length < 9 || buffer.windows(9).all(|w| w != [0; 9]),
                    "{method}"
                );
            }
        }
    }
}
