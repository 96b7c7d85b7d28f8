//! A source with its retries bounded, its health watched and its draws counted.

pub mod fast_path;
mod self_test;

use core::fmt;

use crate::error::{Error, HealthFailure};
use crate::health::Monitor;
use crate::processor::{Instruction, Processor};
use crate::retry::{retry, Dry};
use crate::retry_limit::RetryLimit;
use crate::source::{RdrandInstruction, RdseedInstruction, Source};

pub use self_test::SELF_TEST_DRAWS;

use fast_path::Unusual;

/// Random numbers from RDRAND.
pub type Rdrand = Generator<RdrandInstruction>;

/// Random numbers from RDSEED. Only the 64-bit form of the instruction is used, also for
/// narrower values: the narrow forms are unsound on AMD Zen 5.
pub type Rdseed = Generator<RdseedInstruction>;

/// Up to this many bytes, values are drawn and tested one by one; above, in blocks. A block costs
/// its set-up, which a few values do not earn back.
const FEW_BYTES: usize = 40;

/// The draws of a generator so far, the self-test and re-tests included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Executions that delivered a value (CF = 1).
    pub draws: u64,
    /// Executions that had none (CF = 0).
    pub underflows: u64,
}

/// Random numbers from a [`Source`], with everything between the instruction and the
/// caller: start-up self-test, bounded retries, continuous health tests, counts.
///
/// Give each thread a generator of its own: the hardware is shared anyway.
/// The last value drawn stays inside until the next draw, because the repetition count
/// test needs it; it is overwritten on drop.
///
/// Every filling method returns `Ok` only when the whole destination is filled. On
/// [`Error::Underflow`] the first [`Error::written`] elements are good; on
/// [`Error::Health`] the destination is zeroed.
pub struct Generator<S: Source> {
    source: S,
    limit: RetryLimit,
    values64: Monitor<8>,
    values32: Monitor<4>,
    values16: Monitor<2>,
    underflows: u64,
    failed: Option<HealthFailure>,
}

impl Generator<RdrandInstruction> {
    /// Detects RDRAND and runs the start-up self-test (about 40 µs).
    ///
    /// # Errors
    /// [`Error::Unsupported`], [`Error::SelfTest`], or [`Error::Underflow`] when the
    /// hardware delivers nothing.
    pub fn new() -> Result<Self, Error> {
        Self::with_retry_limit(RetryLimit::RDRAND)
    }

    /// As [`new`](Self::new), with another retry limit. The self-test waits at least as long as by
    /// default.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_retry_limit(limit: RetryLimit) -> Result<Self, Error> {
        Self::tested(RdrandInstruction::detect()?, Processor::current(), limit)
    }
}

impl Generator<RdseedInstruction> {
    /// Detects RDSEED and runs the start-up self-test (about 1 ms, on AMD Zen 5 25 ms).
    ///
    /// # Errors
    /// As [`Rdrand::new`].
    pub fn new() -> Result<Self, Error> {
        Self::with_retry_limit(RetryLimit::RDSEED)
    }

    /// As [`new`](Self::new), with another retry limit. The self-test waits at least as long as by
    /// default.
    ///
    /// # Errors
    /// As [`Rdrand::new`].
    pub fn with_retry_limit(limit: RetryLimit) -> Result<Self, Error> {
        Self::tested(RdseedInstruction::detect()?, Processor::current(), limit)
    }
}

impl<S: Source> Generator<S> {
    /// Takes any source and runs the start-up self-test on it.
    ///
    /// # Errors
    /// [`Error::SelfTest`] or [`Error::Underflow`].
    pub fn with_source(source: S) -> Result<Self, Error> {
        Self::tested(source, None, RetryLimit::of(S::INSTRUCTION))
    }

    /// As [`with_source`](Self::with_source), with a processor whose known defect explains
    /// a failure.
    ///
    /// # Errors
    /// [`Error::SelfTest`] or [`Error::Underflow`].
    #[cfg(feature = "testing")]
    pub fn with_source_on(source: S, processor: Option<Processor>) -> Result<Self, Error> {
        Self::tested(source, processor, RetryLimit::of(S::INSTRUCTION))
    }

    fn tested(source: S, processor: Option<Processor>, limit: RetryLimit) -> Result<Self, Error> {
        let mut generator = Self::untested(source);
        generator.limit = generator.limit.max(limit);
        generator.self_test(processor.and_then(|processor| processor.known_issue()))?;
        generator.limit = limit;
        Ok(generator)
    }

    /// Takes a source without the start-up self-test, for tests of what comes after it.
    /// The continuous tests run.
    #[cfg(feature = "testing")]
    #[must_use]
    pub const fn with_source_untested(source: S) -> Self {
        Self::untested(source)
    }

    const fn untested(source: S) -> Self {
        Generator {
            source,
            limit: RetryLimit::of(S::INSTRUCTION),
            values64: Monitor::new(),
            values32: Monitor::new(),
            values16: Monitor::new(),
            underflows: 0,
            failed: None,
        }
    }

    /// Sets the retry limit of one value.
    #[inline]
    pub fn set_retry_limit(&mut self, limit: RetryLimit) {
        self.limit = limit;
    }

    /// The retry limit of one value.
    #[must_use]
    pub fn retry_limit(&self) -> RetryLimit {
        self.limit
    }

    /// Returns the draws and underflows so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let draws = [
            self.values64.draws(),
            self.values32.draws(),
            self.values16.draws(),
        ]
        .iter()
        .sum();
        Counts {
            draws,
            underflows: self.underflows,
        }
    }

    /// Returns the source, for its own counts.
    #[must_use]
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Fills with random bytes, at any alignment, with exactly `⌈len / 8⌉` draws.
    /// `written` of an error counts bytes.
    ///
    /// # Errors
    /// [`Error::Underflow`] or [`Error::Health`].
    #[inline]
    pub fn fill_bytes(&mut self, destination: &mut [u8]) -> Result<(), Error> {
        // A small request must not pay for the code of blocks: its registers and its checks would
        // stand beside the instruction and add to its latency.
        if let Ok(word) = <&mut [u8; 8]>::try_from(&mut *destination) {
            return match self.attempt() {
                Ok(value) => {
                    *word = value.to_ne_bytes();
                    Ok(())
                }
                Err(first) => fast_path::finish_few(self, first, 0, destination),
            };
        }
        if destination.len() <= FEW_BYTES {
            return self.fill_few(destination);
        }
        self.fill_blocks(destination)
    }

    /// Draws one value after another, each tested as it comes; rare cases are out of line.
    #[inline]
    fn fill_few(&mut self, destination: &mut [u8]) -> Result<(), Error> {
        let (words, rest) = destination.as_chunks_mut::<8>();
        let length = 8 * words.len();
        if let Err((written, first)) = fast_path::few(self, words) {
            return fast_path::finish_few(self, first, written, destination);
        }
        if !rest.is_empty() {
            match self.attempt() {
                Ok(value) => rest.copy_from_slice(&value.to_ne_bytes()[..rest.len()]),
                Err(first) => return fast_path::finish_few(self, first, length, destination),
            }
        }
        Ok(())
    }

    /// Draws blocks and tests each as a whole while it is in the nearest cache: the loop around
    /// the instruction stays as tight as it can be, and the tests run over many values at once.
    /// Nothing is delivered untested, because a failure zeroes the whole destination.
    fn fill_blocks(&mut self, destination: &mut [u8]) -> Result<(), Error> {
        if self.failed.is_some() {
            return Err(self.refuse(destination));
        }
        let (mut words, rest) = destination.as_chunks_mut::<8>();
        let mut written = 0;
        let mut stopped = None;
        while !words.is_empty() && stopped.is_none() {
            let length = words.len().min(self.values64.until_fold() as usize);
            let (block, more) = core::mem::take(&mut words).split_at_mut(length);
            words = more;
            let (drawn, dry) = self.draw_block(block);
            written += drawn * 8;
            stopped = match self.values64.observe_block(&block[..drawn]) {
                Err(failure) => Some(Stop::Sick(failure)),
                Ok(()) => dry.map(Stop::Dry),
            };
        }
        if stopped.is_none() {
            stopped = self.finish(rest).err();
        }
        match stopped {
            None => Ok(()),
            Some(stop) => Err(self.stopped(stop, written, destination)),
        }
    }

    /// The bare loop with bounded retries. Returns the number of values that came, and the failure
    /// that stopped it.
    #[inline(always)]
    fn draw_block(&mut self, block: &mut [[u8; 8]]) -> (usize, Option<Dry>) {
        for (index, word) in block.iter_mut().enumerate() {
            let value = match self.source.step_u64() {
                Some(value) => value,
                None => {
                    let (source, underflows) = (&mut self.source, &mut self.underflows);
                    match retry(source, underflows, self.limit, step::<S, 8>) {
                        Ok(value) => value,
                        Err(dry) => return (index, Some(dry)),
                    }
                }
            };
            *word = value.to_ne_bytes();
        }
        (block.len(), None)
    }

    /// Makes the last draw, for fewer than eight bytes. If there is none, re-tests the last value
    /// of a block, which no following value has cleared.
    fn finish(&mut self, rest: &mut [u8]) -> Result<(), Stop> {
        let last = self.values64.last();
        if rest.is_empty() {
            return if suspicious::<8>(last) {
                retest(
                    &mut self.source,
                    &mut self.values64,
                    &mut self.underflows,
                    self.limit,
                    last,
                )
            } else {
                Ok(())
            };
        }
        let value = draw(
            &mut self.source,
            &mut self.values64,
            &mut self.underflows,
            self.limit,
        )?;
        rest.copy_from_slice(&value.to_ne_bytes()[..rest.len()]);
        Ok(())
    }

    /// Fills with 16-bit values, four per draw. `written` of an error counts values.
    ///
    /// # Errors
    /// [`Error::Underflow`] or [`Error::Health`].
    #[inline]
    pub fn fill_u16(&mut self, destination: &mut [u16]) -> Result<(), Error> {
        self.fill_bytes(u16::bytes_of(destination))
            .map_err(|e| e.with_written(e.written() / 2))
    }

    /// Fills with 32-bit values, two per draw. `written` of an error counts values.
    ///
    /// # Errors
    /// [`Error::Underflow`] or [`Error::Health`].
    #[inline]
    pub fn fill_u32(&mut self, destination: &mut [u32]) -> Result<(), Error> {
        self.fill_bytes(u32::bytes_of(destination))
            .map_err(|e| e.with_written(e.written() / 4))
    }

    /// Fills with 64-bit values, one per draw. `written` of an error counts values.
    ///
    /// # Errors
    /// [`Error::Underflow`] or [`Error::Health`].
    #[inline]
    pub fn fill_u64(&mut self, destination: &mut [u64]) -> Result<(), Error> {
        if let [one] = destination {
            *one = self.next_u64().inspect_err(|error| {
                if matches!(error, Error::Health { .. }) {
                    *one = 0;
                }
            })?;
            return Ok(());
        }
        self.fill_bytes(u64::bytes_of(destination))
            .map_err(|e| e.with_written(e.written() / 8))
    }

    /// Draws one 64-bit value.
    ///
    /// # Errors
    /// [`Error::Underflow`] or [`Error::Health`].
    #[inline]
    pub fn next_u64(&mut self) -> Result<u64, Error> {
        match self.attempt() {
            Ok(value) => Ok(value),
            Err(first) => fast_path::finish_one(self, first),
        }
    }

    /// The common case of one draw; the rest of it is [`fast_path::finish_one`].
    #[inline(always)]
    fn attempt(&mut self) -> Result<u64, Unusual> {
        let first = self.source.step_u64();
        fast_path::one(self, first)
    }

    /// Draws one 32-bit value, by the 32-bit form of RDRAND or from the 64-bit form of RDSEED.
    ///
    /// # Errors
    /// [`Error::Underflow`] or [`Error::Health`].
    #[inline]
    pub fn next_u32(&mut self) -> Result<u32, Error> {
        if matches!(S::INSTRUCTION, Instruction::Rdseed) {
            return self.next_u64().map(|value| value as u32);
        }
        if self.failed.is_some() {
            return Err(self.refuse(&mut []));
        }
        draw(
            &mut self.source,
            &mut self.values32,
            &mut self.underflows,
            self.limit,
        )
        .map(|value| value as u32)
        .map_err(|stop| self.stopped(stop, 0, &mut []))
    }

    /// Draws one 16-bit value, by the 16-bit form of RDRAND or from the 64-bit form of RDSEED.
    ///
    /// # Errors
    /// [`Error::Underflow`] or [`Error::Health`].
    #[inline]
    pub fn next_u16(&mut self) -> Result<u16, Error> {
        if matches!(S::INSTRUCTION, Instruction::Rdseed) {
            return self.next_u64().map(|value| value as u16);
        }
        if self.failed.is_some() {
            return Err(self.refuse(&mut []));
        }
        draw(
            &mut self.source,
            &mut self.values16,
            &mut self.underflows,
            self.limit,
        )
        .map(|value| value as u16)
        .map_err(|stop| self.stopped(stop, 0, &mut []))
    }

    #[cold]
    fn stopped(&mut self, stop: Stop, written: usize, destination: &mut [u8]) -> Error {
        match stop {
            Stop::Dry(Dry { attempts, waited }) => Error::Underflow {
                instruction: S::INSTRUCTION,
                attempts,
                waited,
                written,
            },
            Stop::Sick(failure) => {
                self.failed = Some(failure);
                self.values64.end_ordinary();
                destination.fill(0);
                Error::Health {
                    instruction: S::INSTRUCTION,
                    failure,
                }
            }
        }
    }

    /// The error of a generator that has failed a health test: it stays failed.
    #[cold]
    fn refuse(&self, destination: &mut [u8]) -> Error {
        destination.fill(0);
        let failure = self.failed.unwrap_or(HealthFailure::Repetition {
            value: 0,
            bits: 64,
            run: 0,
        });
        Error::Health {
            instruction: S::INSTRUCTION,
            failure,
        }
    }
}

/// Prints no random number: the last value may have been delivered.
impl<S: Source> fmt::Debug for Generator<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generator")
            .field("instruction", &S::INSTRUCTION)
            .field("retry_limit", &self.limit)
            .field("counts", &self.counts())
            .field("failed", &self.failed.is_some())
            .finish_non_exhaustive()
    }
}

impl<S: Source> Drop for Generator<S> {
    fn drop(&mut self) {
        self.values64.forget();
        self.values32.forget();
        self.values16.forget();
    }
}

/// The reason that a draw gave no value.
enum Stop {
    Dry(Dry),
    Sick(HealthFailure),
}

/// Draws one value of `BYTES` bytes: retried, tested, counted.
#[inline(always)]
fn draw<S: Source, const BYTES: u32>(
    source: &mut S,
    monitor: &mut Monitor<BYTES>,
    underflows: &mut u64,
    limit: RetryLimit,
) -> Result<u64, Stop> {
    let first = step::<S, BYTES>(source);
    accept(first, source, monitor, underflows, limit)
}

/// The rest of [`draw`] after its first attempt.
#[inline(always)]
fn accept<S: Source, const BYTES: u32>(
    first: Option<u64>,
    source: &mut S,
    monitor: &mut Monitor<BYTES>,
    underflows: &mut u64,
    limit: RetryLimit,
) -> Result<u64, Stop> {
    let value = match first {
        Some(value) => value,
        None => retry(source, underflows, limit, step::<S, BYTES>).map_err(Stop::Dry)?,
    };
    monitor.observe(value).map_err(Stop::Sick)?;
    if suspicious::<BYTES>(value) {
        retest(source, monitor, underflows, limit, value)?;
    }
    Ok(value)
}

/// Returns true for zero and all-ones, which every known broken processor returns.
#[inline(always)]
fn suspicious<const BYTES: u32>(value: u64) -> bool {
    // One comparison for both: all-ones + 1 is 0, 0 + 1 is 1.
    let mask = u64::MAX >> (64 - 8 * BYTES);
    value.wrapping_add(1) & mask <= 1
}

#[inline(always)]
fn step<S: Source, const BYTES: u32>(source: &mut S) -> Option<u64> {
    match BYTES {
        2 => source.step_u16().map(u64::from),
        4 => source.step_u32().map(u64::from),
        _ => source.step_u64(),
    }
}

/// Re-tests a suspicious value. It is legitimate now and then, and dropping it would bias the
/// output. So more values are drawn and discarded until a different one clears it or the
/// repetition count test fails the source. All known broken processors return one of the two
/// values, and return it again: with this, the first one is never delivered.
#[cold]
#[inline(never)]
fn retest<S: Source, const BYTES: u32>(
    source: &mut S,
    monitor: &mut Monitor<BYTES>,
    underflows: &mut u64,
    limit: RetryLimit,
    suspicious: u64,
) -> Result<(), Stop> {
    loop {
        let value = match step::<S, BYTES>(source) {
            Some(value) => value,
            None => retry(source, underflows, limit, step::<S, BYTES>).map_err(Stop::Dry)?,
        };
        monitor.observe(value).map_err(Stop::Sick)?;
        if value != suspicious {
            return Ok(());
        }
    }
}

/// Returns the bytes of an array of 64-bit values.
pub(crate) fn bytes_of_u64(values: &mut [u64]) -> &mut [u8] {
    u64::bytes_of(values)
}

/// Integers whose arrays may be filled as bytes.
trait Bytes: Sized {
    fn bytes_of(values: &mut [Self]) -> &mut [u8];
}

macro_rules! bytes {
    ($($type:ty),*) => {$(
        impl Bytes for $type {
            #[inline(always)]
            fn bytes_of(values: &mut [$type]) -> &mut [u8] {
                // SAFETY: the memory is valid for this many bytes and borrowed for as long,
                // a byte needs no alignment, and every bit pattern is a valid integer.
                unsafe {
                    core::slice::from_raw_parts_mut(
                        values.as_mut_ptr().cast::<u8>(),
                        core::mem::size_of_val(values),
                    )
                }
            }
        }
    )*};
}

bytes!(u16, u32, u64);
