//! Random bytes into a writer, with an exact count of those that arrived.

use core::fmt;
use std::io;
use std::vec;

use crate::error::Error;
use crate::generator::Generator;
use crate::source::Source;

/// Bytes drawn and written at a time.
pub const CHUNK_BYTES: usize = 16 * 1024;

/// The reason that fewer bytes than asked for arrived, and their number.
#[derive(Debug)]
#[non_exhaustive]
pub enum WriteError {
    /// The generator stopped.
    Source {
        /// Bytes that the writer took before.
        written: u64,
        /// The error of the generator.
        error: Error,
    },
    /// The writer stopped, for instance because the disk is full.
    Sink {
        /// Bytes that the writer took before.
        written: u64,
        /// The error of the writer.
        error: io::Error,
    },
}

impl WriteError {
    /// Bytes that the writer took.
    #[must_use]
    pub fn written(&self) -> u64 {
        match self {
            WriteError::Source { written, .. } | WriteError::Sink { written, .. } => *written,
        }
    }
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WriteError::Source { written, error } => write!(f, "after {written} bytes: {error}"),
            WriteError::Sink { written, error } => {
                write!(f, "after {written} bytes the output failed: {error}")
            }
        }
    }
}

impl core::error::Error for WriteError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            WriteError::Source { error, .. } => Some(error),
            WriteError::Sink { error, .. } => Some(error),
        }
    }
}

/// Writes exactly `count` random bytes and flushes.
///
/// # Errors
/// [`WriteError`] with the number of bytes that the writer took. The bytes that a generator
/// delivered before an underflow are written too.
pub fn write_bytes<S: Source>(
    generator: &mut Generator<S>,
    writer: &mut impl io::Write,
    count: u64,
) -> Result<(), WriteError> {
    let written = pump(
        count,
        |chunk| generator.fill_bytes(chunk),
        |bytes| write_some(writer, bytes),
    )?;
    writer
        .flush()
        .map_err(|error| WriteError::Sink { written, error })
}

fn write_some(writer: &mut impl io::Write, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match writer.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Moves `count` bytes from `fill` to `sink`, which may take fewer than it is offered.
fn pump(
    count: u64,
    mut fill: impl FnMut(&mut [u8]) -> Result<(), Error>,
    mut sink: impl FnMut(&[u8]) -> io::Result<usize>,
) -> Result<u64, WriteError> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut written = 0_u64;
    while written < count {
        let wanted = (count - written).min(CHUNK_BYTES as u64) as usize;
        let filled = fill(&mut buffer[..wanted]);
        let good = filled.as_ref().map_or_else(Error::written, |()| wanted);
        let mut offered = &buffer[..good];
        while !offered.is_empty() {
            match sink(offered) {
                Ok(0) => {
                    let error = io::Error::from(io::ErrorKind::WriteZero);
                    return Err(WriteError::Sink { written, error });
                }
                Ok(taken) => {
                    let taken = taken.min(offered.len());
                    written += taken as u64;
                    offered = &offered[taken..];
                }
                Err(error) => return Err(WriteError::Sink { written, error }),
            }
        }
        filled.map_err(|error| WriteError::Source { written, error })?;
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::scripted::{Carry, ScriptedRdrand, Values};

    #[test]
    fn more_than_4_gib_does_not_wrap() {
        let count = (1 << 32) + 4097;
        let mut taken = 0_u64;
        let written = pump(
            count,
            |_| Ok(()),
            |bytes| {
                taken += bytes.len() as u64;
                Ok(bytes.len())
            },
        );
        assert_eq!((written.unwrap(), taken), (count, count));
    }

    #[test]
    fn short_writes_lose_and_repeat_nothing() {
        let mut generator = Generator::with_source_untested(ScriptedRdrand::healthy(1));
        let mut expected = std::vec![0; 100_000];
        generator.fill_bytes(&mut expected).unwrap();
        let mut generator = Generator::with_source_untested(ScriptedRdrand::healthy(1));
        let mut got = Vec::new();
        let written = pump(
            100_000,
            |chunk| generator.fill_bytes(chunk),
            |bytes| {
                let taken = bytes.len().min(777);
                got.extend_from_slice(&bytes[..taken]);
                Ok(taken)
            },
        );
        assert_eq!(written.unwrap(), 100_000);
        assert_eq!(got, expected);
    }

    #[test]
    fn a_full_disk_is_reported_with_the_bytes_that_arrived() {
        let mut generator = Generator::with_source_untested(ScriptedRdrand::healthy(1));
        let mut disk = [0; 20_000];
        let error = write_bytes(&mut generator, &mut &mut disk[..], 50_000).unwrap_err();
        assert!(
            matches!(
                error,
                WriteError::Sink {
                    written: 20_000,
                    ..
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn a_dry_source_is_reported_with_the_bytes_that_arrived() {
        let script = ScriptedRdrand::new(Values::Healthy(1), Carry::Until(3000));
        let mut generator = Generator::with_source_untested(script);
        let mut out = Vec::new();
        let error = write_bytes(&mut generator, &mut out, 50_000).unwrap_err();
        assert!(
            matches!(
                error,
                WriteError::Source {
                    written: 24_000,
                    ..
                }
            ),
            "{error}"
        );
        assert_eq!(out.len(), 24_000);
    }
}
