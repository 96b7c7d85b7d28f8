//! The packets of one stream that arrived in one trial.

use tare_histogram::{Histogram, Latency};

/// The class of a sequence that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The first of its number, after all lower ones that have come.
    InOrder,
    /// The first of its number, after a higher one: "reordered" as RFC 4737 section 3 has it.
    Reordered,
    /// Its number had come before.
    Duplicate,
    /// So far behind that it cannot be told whether its number had come before. It counts as lost.
    Late,
}

/// The sequences of a stream that have arrived in a trial, and their latencies.
///
/// Memory is fixed: one bit for each of the last `window` sequences, and a histogram. What is
/// further behind the highest sequence than the window is [`Seen::Late`].
#[derive(Debug)]
pub struct Ledger {
    bits: Box<[u64]>,
    /// One more than the highest sequence that came: "NextExp" of RFC 4737.
    next: u64,
    unique: u64,
    bytes: u64,
    duplicates: u64,
    reordered: u64,
    reorder_offset_max: u64,
    late: u64,
    latency: Histogram,
}

impl Ledger {
    /// An empty ledger with a window of at least so many sequences.
    pub fn new(window: usize) -> Ledger {
        // The word that is emptied for the newest sequences takes up to 64 of the oldest with it.
        let words = (window.div_ceil(64) + 1).next_power_of_two();
        Ledger {
            bits: vec![0; words].into(),
            next: 0,
            unique: 0,
            bytes: 0,
            duplicates: 0,
            reordered: 0,
            reorder_offset_max: 0,
            late: 0,
            latency: Histogram::new(),
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        let used = self.next.div_ceil(64).min(self.bits.len() as u64) as usize;
        self.bits[..used].fill(0);
        self.next = 0;
        self.unique = 0;
        self.bytes = 0;
        self.duplicates = 0;
        self.reordered = 0;
        self.reorder_offset_max = 0;
        self.late = 0;
        self.latency.clear();
    }

    /// The number of sequences in the window.
    pub fn window(&self) -> u64 {
        (self.bits.len() as u64 - 1) * 64
    }

    /// Enters a frame of `length` bytes that took `latency_ns`.
    #[inline]
    pub fn record(&mut self, sequence: u64, length: usize, latency_ns: u64) -> Seen {
        let seen = if sequence >= self.next {
            self.open(sequence);
            Seen::InOrder
        } else if self.next - sequence > self.window() {
            self.late += 1;
            return Seen::Late;
        } else if self.bits[self.word(sequence)] & bit(sequence) != 0 {
            self.duplicates += 1;
            return Seen::Duplicate;
        } else {
            self.reordered += 1;
            self.reorder_offset_max = self.reorder_offset_max.max(self.next - sequence);
            Seen::Reordered
        };
        let word = self.word(sequence);
        self.bits[word] |= bit(sequence);
        self.unique += 1;
        self.bytes += length as u64;
        self.latency.record(latency_ns);
        seen
    }

    /// Moves the window up to a new highest sequence: the words that it reaches anew are empty.
    #[inline]
    fn open(&mut self, sequence: u64) {
        let words = self.bits.len() as u64;
        let first = self.next.div_ceil(64);
        let last = sequence / 64;
        // A jump beyond the window empties each word once.
        for word in first.max((last + 1).saturating_sub(words))..=last {
            self.bits[(word % words) as usize] = 0;
        }
        self.next = sequence + 1;
    }

    #[inline]
    fn word(&self, sequence: u64) -> usize {
        (sequence / 64 % self.bits.len() as u64) as usize
    }

    /// Sequences that arrived, each counted once.
    pub fn unique(&self) -> u64 {
        self.unique
    }

    /// Bytes of those.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Frames that arrived again.
    pub fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Sequences that arrived after a higher one.
    pub fn reordered(&self) -> u64 {
        self.reordered
    }

    /// The largest distance of a reordered sequence from the highest one plus one.
    pub fn reorder_offset_max(&self) -> u64 {
        self.reorder_offset_max
    }

    /// Frames beyond the window.
    pub fn late(&self) -> u64 {
        self.late
    }

    /// The time from sending to receiving of the frames that arrived; `None` if none did.
    pub fn latency(&self) -> Option<Latency> {
        self.latency.summary()
    }

    /// The same of several ledgers together.
    pub fn latency_of_all<'a>(ledgers: impl IntoIterator<Item = &'a Ledger>) -> Option<Latency> {
        let mut ledgers = ledgers.into_iter();
        let first = ledgers.next()?;
        let Some(second) = ledgers.next() else {
            return first.latency();
        };
        let mut all = first.latency.clone();
        for ledger in std::iter::once(second).chain(ledgers) {
            all.merge(&ledger.latency);
        }
        all.summary()
    }
}

#[inline]
fn bit(sequence: u64) -> u64 {
    1 << (sequence % 64)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a set that remembers everything.
        #[test]
        fn a_window_classifies_as_a_full_record_does(jumps in proptest::collection::vec((0u64..400, 0u64..500), 1..400)) {
            let mut ledger = Ledger::new(192);
            let window = ledger.window();
            prop_assert_eq!(window, 192);
            let mut seen = HashSet::new();
            let (mut base, mut next) = (0u64, 0u64);
            for (forward, back) in jumps {
                base += forward;
                let sequence = base.saturating_sub(back);
                let expected = if sequence >= next {
                    Seen::InOrder
                } else if next - sequence > window {
                    Seen::Late
                } else if seen.contains(&sequence) {
                    Seen::Duplicate
                } else {
                    Seen::Reordered
                };
                prop_assert_eq!(ledger.record(sequence, 60, 5), expected);
                if expected != Seen::Late {
                    seen.insert(sequence);
                }
                next = next.max(sequence + 1);
            }
            prop_assert_eq!(ledger.unique(), seen.len() as u64);
            ledger.clear();
            prop_assert!(ledger.bits.iter().all(|&word| word == 0));
            prop_assert_eq!(ledger.record(0, 60, 5), Seen::InOrder);
        }
    }

    #[test]
    fn latencies_are_kept_to_three_digits() {
        let mut ledger = Ledger::new(1 << 12);
        for n in 0..1000 {
            ledger.record(n, 60, 1000 + n);
        }
        let latency = ledger.latency().unwrap();
        assert_eq!((latency.count, latency.min_ns), (1000, 1000));
        for (value, exact) in [
            (latency.p50_ns, 1500),
            (latency.p99_ns, 1990),
            (latency.max_ns, 1999),
        ] {
            assert!(value.abs_diff(exact) <= 2, "{value} for {exact}");
        }
    }

    #[test]
    fn nothing_received_has_no_latency() {
        assert!(Ledger::new(64).latency().is_none());
    }
}
