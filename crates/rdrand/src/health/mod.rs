//! The continuous health tests of SP 800-90B, section 4.4, for the values of one width.
//!
//! **Repetition count** looks at whole values. **Adaptive proportion** looks at every byte
//! of every value, eight at a time: a whole 64-bit symbol never repeats within a window of
//! a working source, so counting it would test nothing, and one chosen byte lane would
//! leave the other seven unwatched.
//!
//! The reference byte of a window is a byte of the last value before it rather than the
//! first byte in it. That spares a branch for each value, the count therefore leaves the
//! reference out, and it is Bin(512, p) exactly. The byte lanes take turns in giving the
//! reference. The first window has the reference 0.

pub mod cutoff;

use crate::error::HealthFailure;

const LOW_BITS: u64 = 0x7f7f_7f7f_7f7f_7f7f;
const ONES: u64 = 0x0101_0101_0101_0101;

/// Values between two evaluations of the byte counts; eight counters of eight bits cannot
/// overflow in so few.
const FOLD: u32 = 64;

/// Both tests over values of `BYTES` bytes (2, 4 or 8).
#[derive(Clone, Copy)]
pub(crate) struct Monitor<const BYTES: u32> {
    last: u64,
    run: u32,
    /// Values until the next fold.
    until_fold: u32,
    /// The reference byte in every lane.
    pattern: u64,
    /// One counter of matches a lane.
    lanes: u64,
    /// Matches of the window before the last fold.
    matches: u32,
    /// Bytes of the window before the last fold.
    seen: u32,
    /// Where in the last value the next reference byte lies; every lane has its turn.
    shift: u32,
}

impl<const BYTES: u32> Monitor<BYTES> {
    pub(crate) const REPETITION: u32 = cutoff::repetition_of_width(BYTES);
    const LANES: u64 = if BYTES == 8 {
        u64::MAX
    } else {
        (1 << (8 * BYTES)) - 1
    };

    pub(crate) const fn new() -> Self {
        Monitor {
            last: 0,
            run: 0,
            until_fold: FOLD,
            pattern: 0,
            lanes: 0,
            matches: 0,
            seen: 0,
            shift: 0,
        }
    }

    /// Takes note of one value.
    #[inline(always)]
    pub(crate) fn observe(&mut self, value: u64) -> Result<(), HealthFailure> {
        if value == self.last {
            self.run += 1;
            if self.run >= Self::REPETITION {
                return Err(self.repetition());
            }
        } else {
            self.last = value;
            self.run = 1;
        }
        self.lanes += equal_lanes(value, self.pattern) & Self::LANES;
        self.until_fold -= 1;
        if self.until_fold == 0 {
            return self.fold();
        }
        Ok(())
    }

    /// Overwrites what is left of the output in here.
    pub(crate) fn forget(&mut self) {
        // SAFETY: a unique reference to an initialised integer; volatile only so that the
        // store is not dropped as dead.
        unsafe { core::ptr::write_volatile(&mut self.last, 0) };
    }

    #[cold]
    fn repetition(&self) -> HealthFailure {
        HealthFailure::Repetition {
            value: self.last,
            bits: 8 * BYTES,
            run: self.run,
        }
    }

    /// Adds the lanes up, judges the window, and opens the next where this one is full.
    #[inline(never)]
    fn fold(&mut self) -> Result<(), HealthFailure> {
        self.matches += self
            .lanes
            .to_ne_bytes()
            .iter()
            .map(|&lane| u32::from(lane))
            .sum::<u32>();
        self.seen += FOLD * BYTES;
        self.lanes = 0;
        self.until_fold = FOLD;
        if self.matches >= cutoff::PROPORTION {
            let byte = self.pattern as u8;
            return Err(HealthFailure::Proportion {
                byte,
                count: self.matches,
                window: self.seen,
            });
        }
        if self.seen >= cutoff::WINDOW {
            self.pattern = ((self.last >> self.shift) & 0xff) * ONES;
            self.shift = (self.shift + 8) % (8 * BYTES);
            self.matches = 0;
            self.seen = 0;
        }
        Ok(())
    }
}

/// 1 in every byte lane where `a` and `b` are equal, 0 elsewhere; no carry between lanes.
#[inline(always)]
fn equal_lanes(a: u64, b: u64) -> u64 {
    let difference = a ^ b;
    let some_bit = ((difference & LOW_BITS) + LOW_BITS) | difference;
    (!some_bit >> 7) & ONES
}

#[cfg(test)]
mod tests;
