//! The health tests: what they examine, what they find, and what they cannot find.
//!
//! # At start-up
//!
//! 1,024 values of 64 bits are drawn (SP 800-90B, 4.3) and pass the continuous tests. Then they
//! are tested together: no value may come twice, and every bit must have been 0 and 1. One
//! start in 2⁴⁵ of a sound source fails, by the birthday paradox.
//!
//! | fault | found at start-up |
//! |---|---|
//! | one constant value, each value twice, a cycle of up to 1,023 values | always |
//! | a bit, nibble or byte that is stuck, in any position | always |
//! | values from a small pool in any order | practically always up to 18,000 of them, half the time at 750,000 |
//! | a cycle of 1,024 values or more | no |
//! | bits that are biased, or depend on other bits or values | no; the `tare-battery` crate finds these |
//! | output that is predictable, as of a cipher under a key that is known | no, and by no other test of the output |
//! | a repetition of several values that begins after the start | no |
//!
//! # Continuously
//!
//! The tests of SP 800-90B, section 4.4, for the values of one width.
//!
//! **Repetition count** examines whole values. **Adaptive proportion** examines every byte
//! of every value, eight at a time: a whole 64-bit symbol never repeats within a window of
//! a working source, so counting it would test nothing, and one chosen byte lane would
//! leave the other seven unwatched.
//!
//! The reference byte of a window is a byte of the last value before it rather than the first
//! byte in it. That saves a branch per value, and the count leaves the reference out, so that it
//! is Bin(512, p) exactly. The byte lanes take turns in giving the reference. The first window has
//! the reference 0.

mod block;
pub mod cutoff;
mod lanes;

use crate::error::HealthFailure;
use lanes::{equal_lanes, Lanes, Pattern};

const ONES: u64 = 0x0101_0101_0101_0101;

/// Values between two evaluations of the byte counts; eight counters of eight bits cannot
/// overflow in so few.
const FOLD: u32 = 64;

/// The state of the tests while only ordinary values come, in registers. RDRAND starts when all
/// instructions before it are done, and none after it starts before it is done, so every wait for
/// memory in between adds to its own time.
#[derive(Clone, Copy)]
pub(crate) struct Ordinary {
    last: u64,
    lanes: Lanes,
    pattern: Pattern,
}

impl Ordinary {
    /// Counts a 64-bit value if it is ordinary. Returns false if it is not.
    #[inline(always)]
    pub(crate) fn takes(&mut self, value: u64, suspicious: bool) -> bool {
        if suspicious || value == self.last {
            return false;
        }
        self.last = value;
        self.lanes.count(value, self.pattern);
        true
    }
}

/// Both tests over values of `BYTES` bytes (2, 4 or 8).
#[derive(Clone, Copy)]
pub(crate) struct Monitor<const BYTES: u32> {
    last: u64,
    run: u32,
    /// Values until the next fold.
    until_fold: u32,
    /// The reference byte in every lane.
    pattern: u64,
    /// One counter of matches per lane.
    lanes: u64,
    /// Matches of the window before the last fold.
    matches: u32,
    /// Bytes of the window before the last fold.
    seen: u32,
    /// Values of all folds so far; with those since, the number of values ever seen.
    folded: u64,
    /// The position of the next reference byte in the last value; the lanes take turns.
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
            folded: 0,
            shift: 0,
        }
    }

    /// Tests one value.
    #[inline(always)]
    pub(crate) fn observe(&mut self, value: u64) -> Result<(), HealthFailure> {
        self.until_fold -= 1;
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
        if self.until_fold == 0 {
            return self.fold();
        }
        Ok(())
    }

    /// Starts on at most `values` ordinary values, those that change nothing but counters. `None`
    /// if the lanes have to be added up within so many.
    #[inline(always)]
    pub(crate) fn ordinary(&self, values: u32) -> Option<Ordinary> {
        if self.until_fold <= values || BYTES != 8 {
            return None;
        }
        Some(Ordinary {
            last: self.last,
            lanes: Lanes::new(read_eight(&self.lanes)),
            pattern: Pattern::new(self.pattern),
        })
    }

    /// Stores the state after the `values` ordinary values, at least one, that `ordinary` took.
    #[inline(always)]
    pub(crate) fn took(&mut self, ordinary: Ordinary, values: u32) {
        self.last = ordinary.last;
        self.run = 1;
        self.lanes = ordinary.lanes.bytes();
        self.until_fold -= values;
    }

    /// Values seen so far.
    pub(crate) fn draws(&self) -> u64 {
        self.folded.wrapping_add(u64::from(FOLD - self.until_fold))
    }

    /// Makes every value after a failure not ordinary.
    pub(crate) fn end_ordinary(&mut self) {
        let draws = self.draws();
        self.until_fold = 1;
        self.folded = draws.wrapping_sub(u64::from(FOLD - self.until_fold));
    }

    /// Tests a block of at most [`until_fold`](Self::until_fold) values.
    pub(crate) fn observe_block(&mut self, block: &[[u8; 8]]) -> Result<(), HealthFailure> {
        let Some(last) = block.last() else {
            return Ok(());
        };
        let found = block::look(block, self.last, self.pattern as u8);
        if found.may_repeat || block.len() > self.until_fold as usize {
            return self.observe_each(block);
        }
        self.matches += found.matches;
        self.last = u64::from_ne_bytes(*last);
        self.run = 1;
        self.until_fold -= block.len() as u32;
        if self.until_fold == 0 {
            return self.fold();
        }
        Ok(())
    }

    /// The last value seen, 0 before the first.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// The longest block that [`observe_block`](Self::observe_block) takes now.
    pub(crate) fn until_fold(&self) -> u32 {
        self.until_fold
    }

    /// Overwrites the last value, which may have been delivered.
    pub(crate) fn forget(&mut self) {
        // SAFETY: a unique reference to an initialised integer; volatile only so that the
        // store is not dropped as dead.
        unsafe { core::ptr::write_volatile(&mut self.last, 0) };
    }

    /// One at a time: where two neighbours are equal, and where the block is too long.
    #[cold]
    #[inline(never)]
    fn observe_each(&mut self, block: &[[u8; 8]]) -> Result<(), HealthFailure> {
        block
            .iter()
            .try_for_each(|word| self.observe(u64::from_ne_bytes(*word)))
    }

    #[cold]
    fn repetition(&self) -> HealthFailure {
        HealthFailure::Repetition {
            value: self.last,
            bits: 8 * BYTES,
            run: self.run,
        }
    }

    /// Adds the lanes up, judges the window, and begins the next if this one is full.
    #[inline(never)]
    fn fold(&mut self) -> Result<(), HealthFailure> {
        self.matches += self
            .lanes
            .to_ne_bytes()
            .iter()
            .map(|&lane| u32::from(lane))
            .sum::<u32>();
        self.seen += FOLD * BYTES;
        self.folded = self.folded.wrapping_add(u64::from(FOLD));
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

/// Reads eight bytes. Without this the compiler reads the sixteen that fill a vector register, of
/// which eight were just written, and the processor would wait until those have reached the
/// cache.
#[inline(always)]
fn read_eight(field: &u64) -> u64 {
    // SAFETY: a reference to an initialised integer.
    unsafe { core::ptr::read_volatile(field) }
}

#[cfg(test)]
mod tests;
