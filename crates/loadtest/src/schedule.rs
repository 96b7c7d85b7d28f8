//! The times at which frames leave.

use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};
use tare_sim::Instant;

pub(crate) use tare_packet::ethernet::OVERHEAD;

/// Bits that a frame of `length` bytes, without its checksum, occupies on the wire.
pub(crate) fn wire_bits(length: usize) -> u64 {
    tare_packet::ethernet::on_wire(length) as u64 * 8
}

/// Bits per second that one stream occupies on the wire, with 24 bytes of overhead per frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

impl Rate {
    /// The fastest that there is: 2⁴⁸ bits per second.
    pub const MAX: Rate = Rate(1 << 48);

    /// A rate in bits per second, at most [`Rate::MAX`].
    pub const fn from_bits(bits_per_second: u64) -> Rate {
        if bits_per_second > Rate::MAX.0 {
            Rate::MAX
        } else {
            Rate(bits_per_second)
        }
    }

    /// A rate in bits per second, rounded; 0 if it is not positive.
    pub fn from_f64(bits_per_second: f64) -> Rate {
        Rate::from_bits(bits_per_second.round() as u64)
    }

    /// Bits per second.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Gigabits per second.
    pub fn gbps(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl Serialize for Rate {
    /// As bits per second.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6} Gb/s", self.gbps())
    }
}

/// The moments at which the frames of a loop leave, at a rate. Frame *n* is due when the bits of
/// those before it have passed: nothing adds up, so a thousand million frames take exactly what
/// their bits take.
///
/// A generator that was held up may catch up by a bounded number of frames; what is beyond that
/// slips, and is never sent. That is the burst of a token bucket, but a schedule is not a
/// [`tare_sim::TokenBucket`]: it counts bits from the start of the trial, because a limiter's
/// interval, rounded to a nanosecond, is wrong by 4 % for short frames at 100 Gb/s.
#[derive(Debug)]
pub struct Schedule {
    rate: u64,
    /// Bits before each frame of the loop, and at the end those of all.
    bits: Vec<u64>,
    start: Instant,
    /// Bits before the current loop.
    base: u64,
    index: usize,
    catch_up_bits: u64,
    slipped_ns: u64,
}

impl Schedule {
    /// A schedule for a loop of frames of these lengths, in bytes, that begins at `start` and
    /// catches up by at most `catch_up` of the longest frames.
    ///
    /// # Panics
    /// On no frames or a rate of zero.
    pub fn new(
        rate: Rate,
        lengths: impl Iterator<Item = usize>,
        start: Instant,
        catch_up: u32,
    ) -> Schedule {
        assert!(rate.bits() > 0, "a rate of zero");
        let mut bits = vec![0];
        let (mut sum, mut longest) = (0, 0);
        for length in lengths {
            let frame = wire_bits(length);
            sum += frame;
            longest = longest.max(frame);
            bits.push(sum);
        }
        assert!(sum > 0, "no frames");
        Schedule {
            rate: rate.bits(),
            bits,
            start,
            base: 0,
            index: 0,
            catch_up_bits: longest * u64::from(catch_up),
            slipped_ns: 0,
        }
    }

    /// The place in the loop of the next frame.
    #[inline]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Bits of all frames so far.
    #[inline]
    pub fn bits(&self) -> u64 {
        self.base + self.bits[self.index]
    }

    /// The time when the next frame is due.
    #[inline]
    pub fn due(&self) -> Instant {
        Instant::from_nanos(
            (self.start.as_nanos() + self.slipped_ns)
                .saturating_add(time_ns(self.bits(), self.rate)),
        )
    }

    /// The bits that may have left by `now`; what is too late by more than the bound slips. Ask
    /// once, then take frames with [`Schedule::take`] for as long as they are due.
    #[inline]
    pub fn allowance(&mut self, now: Instant) -> u64 {
        let elapsed = now
            .as_nanos()
            .saturating_sub(self.start.as_nanos() + self.slipped_ns);
        let allowed = (u128::from(elapsed) * u128::from(self.rate) / 1_000_000_000) as u64;
        let most = self.bits() + self.catch_up_bits;
        if allowed <= most {
            return allowed;
        }
        let late = u128::from(allowed - most) * 1_000_000_000 / u128::from(self.rate);
        self.slipped_ns += late as u64;
        most
    }

    /// Takes the next frame if it is due within an allowance: its place in the loop.
    #[inline]
    pub fn take(&mut self, allowance: u64) -> Option<usize> {
        if self.bits() > allowance {
            return None;
        }
        let taken = self.index;
        self.index += 1;
        if self.index + 1 == self.bits.len() {
            self.base += self.bits[self.index];
            self.index = 0;
        }
        Some(taken)
    }

    /// Time that was not made up for.
    pub fn slipped(&self) -> Duration {
        Duration::from_nanos(self.slipped_ns)
    }
}

/// The first whole nanosecond by which `bits` have passed.
fn time_ns(bits: u64, rate: u64) -> u64 {
    let ns = (u128::from(bits) * 1_000_000_000).div_ceil(u128::from(rate));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// The time that this many bits take.
pub(crate) fn time_of(bits: u64, rate: Rate) -> Duration {
    Duration::from_nanos(time_ns(bits, rate.bits().max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_frame_leaves_exactly_when_the_bits_before_it_have_passed(
            rate in 1_000u64..200_000_000_000,
            lengths in proptest::collection::vec(14usize..2000, 1..6),
            frames in 1usize..300,
        ) {
            let mut schedule = Schedule::new(Rate(rate), lengths.iter().copied(), Instant::from_nanos(7), 0);
            let mut bits = 0u128;
            for n in 0..frames {
                let exact = 7 + (bits * 1_000_000_000).div_ceil(u128::from(rate));
                let due = schedule.due();
                prop_assert_eq!(u128::from(due.as_nanos()), exact);
                // One nanosecond before, it may not leave; then, it may.
                let before = schedule.allowance(due - Duration::from_nanos(1));
                prop_assert!(n == 0 || before < schedule.bits());
                let then = schedule.allowance(due);
                prop_assert_eq!(schedule.take(then), Some(n % lengths.len()));
                bits += u128::from(wire_bits(lengths[n % lengths.len()]));
            }
            prop_assert_eq!(schedule.slipped(), Duration::ZERO);
        }

        #[test]
        fn a_late_generator_catches_up_by_no_more_than_the_bound(late_us in 0u64..100_000, catch_up in 1u32..100) {
            // 84 bytes at 672 Mb/s: a frame a microsecond.
            let mut schedule = Schedule::new(Rate(672_000_000), [60].into_iter(), Instant::ZERO, catch_up);
            let allowance = schedule.allowance(Instant::from_nanos(late_us * 1000));
            let burst = std::iter::from_fn(|| schedule.take(allowance)).count() as u64;
            prop_assert_eq!(burst, late_us.min(u64::from(catch_up)) + 1);
            let slipped = Duration::from_micros(late_us.saturating_sub(u64::from(catch_up)));
            prop_assert_eq!(schedule.slipped(), slipped);
        }
    }

    #[test]
    fn a_thousand_million_frames_do_not_drift() {
        let mut schedule = Schedule::new(Rate(609_000_000), [60].into_iter(), Instant::ZERO, 0);
        schedule.base = 1_000_000_000 * 672;
        // 10⁹ × 672 / 609·10⁶ s
        assert_eq!(schedule.due().as_nanos(), 1_103_448_275_863);
    }
}
