//! Draws in two parts: the common case, and the rest of it out of line.
//!
//! [`Generator::next_u64`] and [`Generator::fill_bytes`] are made of these functions. They are
//! public, with the feature `fast_path`, for callers such as the C interface that lay out the two
//! parts themselves. RDRAND starts when all instructions before it are done, and none after it
//! starts before it is done, so every load, saved register and call beside it adds its whole
//! latency to that of the draw. What only the rare cases need therefore has to be in another
//! function, which for a C function means one that the caller chooses.
//!
//! A value is common when it came at the first attempt, differs from the value before, is neither
//! zero nor all-ones, and does not end a window of the health tests. For every other one the first
//! part returns [`Unusual`], and the second part must be called with it next: it holds an attempt
//! that is neither tested nor counted yet.
//!
//! ```
//! use tare_rdrand::{fast_path, Error, Rdrand, Source};
//!
//! fn draw(generator: &mut Rdrand) -> Result<u64, Error> {
//!     let first = generator.source().clone().step_u64();
//!     fast_path::one(generator, first).or_else(|first| fast_path::finish_one(generator, first))
//! }
//!
//! match Rdrand::new() {
//!     Ok(mut generator) => assert_ne!(draw(&mut generator)?, draw(&mut generator)?),
//!     Err(error) => println!("no RDRAND: {error}"),
//! }
//! # Ok::<(), Error>(())
//! ```

use super::{accept, suspicious, Generator};
use crate::error::Error;
use crate::source::Source;

/// A first attempt that is not common: its result, neither tested nor delivered yet, or that it
/// was not made.
#[must_use]
pub struct Unusual(Option<Option<u64>>);

/// Tests and returns one 64-bit value from `first`, an attempt that the caller made at the
/// generator's source: a caller may have the source at hand sooner than the generator.
///
/// # Errors
/// [`Unusual`], which [`finish_one`] must be given next.
#[inline(always)]
pub fn one<S: Source>(generator: &mut Generator<S>, first: Option<u64>) -> Result<u64, Unusual> {
    if let (Some(value), Some(mut ordinary)) = (first, generator.values64.ordinary(1)) {
        if ordinary.takes(value, suspicious::<8>(value)) {
            generator.values64.took(ordinary, 1);
            return Ok(value);
        }
    }
    Err(Unusual(Some(first)))
}

/// Finishes what [`one`] did not: no data, a suspicious or repeated value, the end of a window, a
/// failed test.
///
/// # Errors
/// [`Error::Underflow`] or [`Error::Health`].
#[cold]
#[inline(never)]
pub fn finish_one<S: Source>(generator: &mut Generator<S>, first: Unusual) -> Result<u64, Error> {
    if generator.failed.is_some() {
        return Err(generator.refuse(&mut []));
    }
    let first = match first.0 {
        Some(first) => first,
        None => generator.source.step_u64(),
    };
    accept(
        first,
        &mut generator.source,
        &mut generator.values64,
        &mut generator.underflows,
        generator.limit,
    )
    .map_err(|stop| generator.stopped(stop, 0, &mut []))
}

/// Fills a few words, up to five, as [`one`] does one.
///
/// # Errors
/// The number of bytes written, and [`Unusual`], which [`finish_few`] must be given next.
#[inline(always)]
pub fn few<S: Source>(
    generator: &mut Generator<S>,
    words: &mut [[u8; 8]],
) -> Result<(), (usize, Unusual)> {
    if words.is_empty() {
        return Ok(());
    }
    let Some(mut ordinary) = generator.values64.ordinary(words.len() as u32) else {
        return Err((0, Unusual(None)));
    };
    let mut taken = 0;
    for word in words {
        match generator.source.step_u64() {
            Some(value) if ordinary.takes(value, suspicious::<8>(value)) => {
                *word = value.to_ne_bytes();
            }
            first => {
                if taken > 0 {
                    generator.values64.took(ordinary, taken);
                }
                return Err((8 * taken as usize, Unusual(Some(first))));
            }
        }
        taken += 1;
    }
    generator.values64.took(ordinary, taken);
    Ok(())
}

/// Fills what is left of `destination` after `written` bytes, a multiple of eight, of which
/// `first` is the next attempt.
///
/// # Errors
/// [`Error::Underflow`] or [`Error::Health`].
#[cold]
#[inline(never)]
pub fn finish_few<S: Source>(
    generator: &mut Generator<S>,
    first: Unusual,
    mut written: usize,
    destination: &mut [u8],
) -> Result<(), Error> {
    let mut drawn = finish_one(generator, first);
    loop {
        let value = match drawn {
            Ok(value) => value.to_ne_bytes(),
            Err(error @ Error::Underflow { .. }) => return Err(error.with_written(written)),
            Err(error) => {
                destination.fill(0);
                return Err(error);
            }
        };
        let length = (destination.len() - written).min(8);
        destination[written..written + length].copy_from_slice(&value[..length]);
        written += length;
        if written == destination.len() {
            return Ok(());
        }
        drawn = generator.next_u64();
    }
}
