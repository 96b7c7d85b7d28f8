//! The choice between two ways to store many bytes for another processor.

use crate::{timestamp, View};

/// Least bytes of a copy for which the ways are compared: with fewer, the time stamps weigh.
const MEASURED_MIN: usize = 1024;

/// The gain in the time of the copy at which bytes are streamed: the other processor then loads
/// them from memory, which this side does not see and which may take longer than from a cache.
const GAIN: u64 = 2;

/// Comparisons in succession that have to say the same for a change of the way.
const AGREED: u32 = 3;

/// Copies between two comparisons: at first, and at most.
const PERIOD: u32 = 4;
const PERIOD_MAX: u32 = 1024;

/// A way to store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By stores that bring each line into this processor's cache.
    Cached,
    /// By stores past the caches.
    Streamed,
}

impl Way {
    fn other(self) -> Way {
        match self {
            Way::Cached => Way::Streamed,
            Way::Streamed => Way::Cached,
        }
    }
}

/// Copies private memory into shared memory that a thread on another processor reads, by the
/// faster one of two ways, which it finds out by trying.
///
/// Before a processor stores into a line that another one has read, the other one has to give it
/// up. Some processors wait for that line after line: on a Zen 4 guest 27 ns per line, 2.3 GB/s.
/// Stores past the caches do not wait (16.7 GB/s there), but the bytes are then loaded from memory,
/// which on other machines is slower. What is compared is the time of this side's copies.
#[derive(Clone, Debug)]
pub struct Copier {
    way: Way,
    /// Copies until the next comparison.
    left: u32,
    period: u32,
    /// Comparisons in succession for the other way.
    against: u32,
    /// The last copy by the way that is in use: its bytes, and its time.
    last: Option<(usize, u64)>,
}

/// A copy of several pieces, from [`Copier::start`] to [`Copier::finish`].
#[derive(Debug)]
#[must_use]
pub struct Pieces {
    way: Way,
    len: usize,
    /// The time at the start, if it is measured.
    start: Option<u64>,
}

impl Pieces {
    /// Copies a piece as [`View::copy_from_and_prefetch`] does; `None` if the lengths differ.
    #[inline]
    pub fn copy(&self, to: View<'_>, from: &[u8], next: &[u8]) -> Option<()> {
        match self.way {
            Way::Cached => to.copy_from_and_prefetch(from, next),
            Way::Streamed => to.stream_from_and_prefetch(from, next),
        }
    }
}

impl Default for Copier {
    fn default() -> Copier {
        Copier {
            way: Way::Cached,
            left: PERIOD,
            period: PERIOD,
            against: 0,
            last: None,
        }
    }
}

impl Copier {
    /// Copies bytes; `None` if the lengths differ.
    #[inline]
    pub fn copy(&mut self, to: View<'_>, from: &[u8]) -> Option<()> {
        if from.len() < MEASURED_MIN {
            return to.copy_from(from);
        }
        let pieces = self.start(from.len());
        let copied = pieces.copy(to, from, &[]);
        self.finish(pieces);
        copied
    }

    /// Begins a copy of `len` bytes in pieces.
    #[inline]
    pub fn start(&mut self, len: usize) -> Pieces {
        if len < MEASURED_MIN {
            let (way, start) = (Way::Cached, None);
            return Pieces { way, len, start };
        }
        self.left = self.left.saturating_sub(1);
        let way = match (self.left, self.last) {
            // Only beside one of about the same length.
            (0, Some((last, _))) if len / 2 <= last && last / 2 <= len => self.way.other(),
            _ => self.way,
        };
        // The last copy before a comparison is the other half of it.
        let start = (self.left <= 1).then(timestamp);
        Pieces { way, len, start }
    }

    /// Ends a copy whose pieces have all been copied.
    #[inline]
    pub fn finish(&mut self, pieces: Pieces) {
        if let Some(start) = pieces.start {
            self.took(pieces.way, pieces.len, timestamp().wrapping_sub(start));
        }
    }

    /// Takes note of the time of a copy.
    #[cold]
    fn took(&mut self, way: Way, len: usize, time: u64) {
        let Some((last_len, last_time)) = self.last.filter(|_| way != self.way) else {
            self.last = Some((len, time));
            return;
        };
        // Both for the product of the lengths.
        let this = time.saturating_mul(last_len as u64);
        let last = last_time.saturating_mul(len as u64);
        let (cached, streamed) = match way {
            Way::Cached => (this, last),
            Way::Streamed => (last, this),
        };
        let better = match cached / GAIN >= streamed {
            true => Way::Streamed,
            false => Way::Cached,
        };
        if better == self.way {
            self.against = 0;
            self.period = (2 * self.period).min(PERIOD_MAX);
        } else {
            self.against += 1;
            self.period = PERIOD;
        }
        if self.against == AGREED {
            (self.way, self.against) = (better, 0);
        }
        (self.left, self.last) = (self.period, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes `count` copies of `len` bytes on a machine where each way takes so many time stamps
    /// per byte; returns how many were streamed.
    fn copies(copier: &mut Copier, count: u32, len: usize, cached: u64, streamed: u64) -> u32 {
        let mut n = 0;
        for _ in 0..count {
            let pieces = copier.start(len);
            let each = match pieces.way {
                Way::Cached => cached,
                Way::Streamed => streamed,
            };
            n += u32::from(pieces.way == Way::Streamed);
            if pieces.start.is_some() {
                copier.took(pieces.way, len, each * len as u64);
            }
        }
        n
    }

    #[test]
    fn bytes_are_streamed_where_that_takes_so_much_less_time_and_only_there() {
        let (less, more) = (2 * GAIN - 1, 2 * GAIN);
        let mut copier = Copier::default();
        assert!(copies(&mut copier, 1000, 4096, less, 2) < 300);
        let streamed = copies(&mut copier, 2000, 4096, more, 2);
        assert!((400..2000).contains(&streamed), "{streamed}");
        copies(&mut copier, 100 * PERIOD_MAX, 4096, more, 2);
        let streamed = copies(&mut copier, PERIOD_MAX, 4096, more, 2);
        assert!(streamed >= PERIOD_MAX - 1);
        // The machine is another one now: it is found out, if later.
        copies(&mut copier, 2 * PERIOD_MAX, 4096, less, 2);
        let streamed = copies(&mut copier, 1000, 4096, less, 2);
        assert!((1..20).contains(&streamed), "{streamed}");
    }

    #[test]
    fn single_copies_that_take_long_change_nothing() {
        let mut copier = Copier::default();
        copies(&mut copier, 500, 4096, 2 * GAIN, 1);
        for _ in 0..100 {
            let left = copier.left;
            copies(&mut copier, left - 1, 4096, 2 * GAIN, 1);
            // The thread was not running for a while.
            copier.last = Some((4096, 1 << 40));
            assert_eq!(copies(&mut copier, 1, 4096, 2 * GAIN, 1), 0);
            assert_eq!(copier.way, Way::Streamed);
            copies(&mut copier, PERIOD, 4096, 2 * GAIN, 1);
        }
    }

    #[test]
    fn copies_of_similar_lengths_are_compared_by_their_bytes() {
        let (mut copier, mut streamed) = (Copier::default(), 0);
        for len in [2900, 1500].repeat(500) {
            streamed += copies(&mut copier, 1, len, 20 * GAIN - 1, 20);
        }
        assert!((1..20).contains(&streamed), "{streamed}");
    }

    #[test]
    fn copies_of_very_different_lengths_are_not_compared() {
        let mut copier = Copier::default();
        for len in [1024, 4096].repeat(500) {
            assert_eq!(copies(&mut copier, 1, len, 2 * GAIN, 1), 0);
        }
    }

    #[test]
    fn short_copies_are_not_measured() {
        let mut copier = Copier::default();
        assert_eq!(copies(&mut copier, 1000, MEASURED_MIN - 1, 8, 1), 0);
        assert_eq!(copier.left, PERIOD);
    }
}
