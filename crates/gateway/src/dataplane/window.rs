//! The anti-replay window of an inbound SA.
//!
//! A ring of bits, longer than the window by more than a word, so that moving on clears whole words
//! and shifts nothing (RFC 6479). The word that holds the highest number stands apart: packets that
//! come in their order touch that alone, and of thousands of SAs that is a line of the cache less
//! for each packet. With extended sequence numbers (RFC 4304, RFC 4303 appendix A) the upper half
//! is inferred from where the window stands.

mod handover;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::sequence::SequenceMode;
use super::worker::WorkerId;

pub(crate) use handover::Received;

const WORDS: usize = 128;

/// The most packets a window can span.
pub const WINDOW_MAX: u32 = ((WORDS - 2) * 32) as u32;

/// The default window. RFC 4303, 3.4.3: "a minimum window size of 32
/// packets MUST be supported"; a gateway whose packets come over several queues needs more.
pub const WINDOW_DEFAULT: u32 = 2048;

/// The sequence numbers that were received. Workers share it: a claim is made under a lock that is
/// held for about ten instructions.
///
/// Atomic bits without a lock do not work here: clearing the words that the window moves over and
/// setting a bit in them are two steps, and between them another worker could have its bit cleared,
/// so that its packet would be accepted a second time. The atomic types are for the checks before
/// decryption, which read without the lock.
#[repr(C)]
pub struct Window {
    /// The highest number received; 0 before the first, for numbers start at 1 (RFC 4303, 2.2).
    top: AtomicU64,
    /// The word of that number.
    last: AtomicU32,
    size: u16,
    lock: AtomicBool,
    pub(crate) sequence_mode: SequenceMode,
    /// The words before. In the place of the last stands what it was before the ring came around.
    bits: [AtomicU32; WORDS],
}

/// The reason why a number is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Seen before.
    Replayed,
    /// Behind the window: it cannot be told whether it was seen.
    TooOld,
    /// Zero, which no sender uses.
    Zero,
}

impl Window {
    /// Bytes before the ring.
    pub(crate) const FRONT: usize = std::mem::offset_of!(Window, bits);

    /// A window of `size` packets, from 32 to [`WINDOW_MAX`]; others are brought into these bounds.
    pub fn new(size: u32, sequence_mode: SequenceMode) -> Window {
        Window {
            lock: AtomicBool::new(false),
            top: AtomicU64::new(0),
            last: AtomicU32::new(0),
            size: size.clamp(32, WINDOW_MAX) as u16,
            sequence_mode,
            bits: [const { AtomicU32::new(0) }; WORDS],
        }
    }

    fn size(&self) -> u64 {
        u64::from(self.size)
    }

    /// The word that holds the bit of a number within the window of `top`.
    #[inline]
    fn word(&self, top: u64, number: u64) -> &AtomicU32 {
        if number / 32 == top / 32 {
            &self.last
        } else {
            &self.bits[(number / 32) as usize % WORDS]
        }
    }

    /// Returns the highest number received.
    #[inline]
    pub fn top(&self) -> u64 {
        self.top.load(Ordering::Relaxed)
    }

    /// The whole number of a packet that carries its lower half, if the window may take it: see
    /// [`Window::extend`] and [`Window::check`].
    ///
    /// # Errors
    /// See [`Refused`].
    #[inline]
    pub(crate) fn number(&self, low: u32) -> Result<u64, Refused> {
        let top = self.top();
        let number = match self.sequence_mode {
            SequenceMode::Extended => self.extend_from(top, low).ok_or(Refused::TooOld)?,
            SequenceMode::Plain => u64::from(low),
        };
        self.check_below(top, number).map(|()| number)
    }

    /// The whole number of which a packet carries the lower half, where the SA counts in 64 bits.
    /// `None` if it would be from before the first.
    #[inline]
    pub fn extend(&self, low: u32) -> Option<u64> {
        self.extend_from(self.top(), low)
    }

    #[inline]
    fn extend_from(&self, top: u64, low: u32) -> Option<u64> {
        // RFC 4303, A2.1, in one step: the number is the first one with this lower half from the
        // bottom of the window on. Case A, the window is within one subspace, and case B, it spans
        // two, differ in where its bottom is.
        let below = self.size() - 1;
        let bottom = top.wrapping_sub(below);
        let ahead = u64::from(low.wrapping_sub(bottom as u32));
        let number = bottom.wrapping_add(ahead);
        // A number before the first one or after the last wraps, to the other side of the top.
        ((number >= top) == (ahead >= below)).then_some(number)
    }

    /// Returns an error if `number` would be refused now. Cheap, and no promise: RFC 4303, 3.4.3,
    /// "the receiver ... SHOULD" look before it spends time on the ICV.
    #[inline]
    pub fn check(&self, number: u64) -> Result<(), Refused> {
        self.check_below(self.top(), number)
    }

    #[inline]
    fn check_below(&self, top: u64, number: u64) -> Result<(), Refused> {
        if number > top {
            return Ok(());
        }
        if number == 0 {
            return Err(Refused::Zero);
        }
        if top - number >= self.size() {
            return Err(Refused::TooOld);
        }
        let word = self.word(top, number).load(Ordering::Relaxed);
        if word & bit_of(number) != 0 {
            return Err(Refused::Replayed);
        }
        Ok(())
    }

    /// Keeps other workers out while numbers are claimed. A sole worker need not: see
    /// [`super::worker`].
    #[inline]
    pub(crate) fn lock(&self, worker: &WorkerId) -> Claims<'_> {
        let locked = !worker.is_sole();
        if locked {
            self.spin_lock();
        }
        self.claims(locked)
    }

    /// Returns the right to claim numbers; the caller has the lock or needs none.
    #[inline]
    fn claims(&self, locked: bool) -> Claims<'_> {
        Claims {
            window: self,
            top: self.top.load(Ordering::Relaxed),
            last: self.last.load(Ordering::Relaxed),
            locked,
        }
    }

    #[inline]
    fn spin_lock(&self) {
        while self
            .lock
            .compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            std::hint::spin_loop();
        }
    }

    /// Claims `number` for a packet that is authentic; only the first to claim it gets it. RFC
    /// 4303, 3.4.3: "The receive window is updated only if the integrity verification succeeds."
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn claim(&self, number: u64) -> Result<(), Refused> {
        self.spin_lock();
        self.claims(true).claim(number)
    }
}

/// The right to claim numbers of a window.
///
/// It has the highest number and its word, which packets in order touch alone, to itself: a burst
/// of them loads and stores both once. Other workers read them without the lock, before decryption,
/// and may see them late or one without the other, and misjudge a number: then a packet is
/// decrypted in vain or, rarely, dropped, and none is accepted twice, because each claim is made
/// under the lock.
pub(crate) struct Claims<'a> {
    window: &'a Window,
    top: u64,
    last: u32,
    locked: bool,
}

impl Claims<'_> {
    /// Claims a number; see [`Window::claim`].
    #[inline]
    pub(crate) fn claim(&mut self, number: u64) -> Result<(), Refused> {
        if number > self.top {
            if number / 32 != self.top / 32 {
                self.move_on(number);
            }
            self.top = number;
        } else if number == 0 {
            return Err(Refused::Zero);
        } else if self.top - number >= self.window.size() {
            return Err(Refused::TooOld);
        } else if number / 32 != self.top / 32 {
            return claim_in(self.window.word(self.top, number), number);
        }
        if self.last & bit_of(number) != 0 {
            return Err(Refused::Replayed);
        }
        self.last |= bit_of(number);
        Ok(())
    }

    /// Claims `n` numbers from `first` on, all at once; returns false, and claims none, if they are
    /// not all beyond the highest one.
    #[inline]
    pub(crate) fn claim_run(&mut self, first: u64, n: u64) -> bool {
        let Some(end) = first.checked_add(n) else {
            return false;
        };
        if first <= self.top {
            return false;
        }
        let mut at = first;
        while at < end {
            if at / 32 != self.top / 32 {
                self.move_on(at);
            }
            // Up to the end of the word, or of the numbers.
            let next = end.min((at | 31).saturating_add(1));
            self.last |= u32::MAX >> (32 - (next - at)) << (at % 32);
            self.top = next - 1;
            at = next;
        }
        true
    }

    /// Makes the word of `number`, which is beyond that of the highest number, the last one.
    fn move_on(&mut self, number: u64) {
        let (from, to) = (self.top / 32, number / 32);
        let bits = &self.window.bits;
        bits[from as usize % WORDS].store(self.last, Ordering::Relaxed);
        self.last = 0;
        // At most once around: further words would be cleared twice.
        for word in from + 1..to.min(from + 1 + WORDS as u64) {
            bits[word as usize % WORDS].store(0, Ordering::Relaxed);
        }
    }
}

/// Claims a number in the word that has its bit.
#[cold]
fn claim_in(slot: &AtomicU32, number: u64) -> Result<(), Refused> {
    let word = slot.load(Ordering::Relaxed);
    if word & bit_of(number) != 0 {
        return Err(Refused::Replayed);
    }
    slot.store(word | bit_of(number), Ordering::Relaxed);
    Ok(())
}

impl Drop for Claims<'_> {
    #[inline]
    fn drop(&mut self) {
        self.window.last.store(self.last, Ordering::Relaxed);
        self.window.top.store(self.top, Ordering::Relaxed);
        if self.locked {
            self.window.lock.store(false, Ordering::Release);
        }
    }
}

#[inline]
fn bit_of(number: u64) -> u32 {
    1 << (number % 32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;
    use std::time::{Duration, Instant};

    /// The window as its definition reads, with unbounded memory.
    struct Plainly {
        size: u64,
        top: u64,
        seen: HashSet<u64>,
    }

    impl Plainly {
        fn claim(&mut self, number: u64) -> Result<(), Refused> {
            if number == 0 {
                return Err(Refused::Zero);
            }
            if number <= self.top && self.top - number >= self.size {
                return Err(Refused::TooOld);
            }
            if !self.seen.insert(number) {
                return Err(Refused::Replayed);
            }
            self.top = self.top.max(number);
            Ok(())
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn a_window_does_what_its_definition_says(
            size in 32u32..=WINDOW_MAX,
            start in prop_oneof![Just(0u64), Just((1 << 32) - 500), any::<u32>().prop_map(u64::from)],
            steps in proptest::collection::vec(
                prop_oneof![6 => -5000i64..50, 3 => 0i64..3, 1 => 0i64..20_000], 1..300),
        ) {
            let window = Window::new(size, SequenceMode::Extended);
            let mut plainly = Plainly { size: size.into(), top: 0, seen: HashSet::new() };
            let mut at = start;
            for step in steps {
                at = at.saturating_add_signed(step);
                let checked = window.check(at);
                let claimed = window.claim(at);
                prop_assert_eq!(checked, claimed);
                prop_assert_eq!(claimed, plainly.claim(at));
                at = at.max(window.top());
            }
        }

        #[test]
        fn a_run_is_claimed_as_its_numbers_one_by_one(
            size in 32u32..=WINDOW_MAX,
            start in prop_oneof![Just(0u64), Just(u64::MAX / 2), 0u64..200],
            steps in proptest::collection::vec(
                (prop_oneof![3 => 1u64..3, 2 => 0u64..100, 1 => 0u64..10_000], 0u64..150, any::<bool>()),
                1..40),
        ) {
            let (runs, ones) = (Window::new(size, SequenceMode::Extended), Window::new(size, SequenceMode::Extended));
            let mut at = start;
            for (ahead, n, is_back) in steps {
                // Some begin at the highest number, or before it.
                let first = if is_back { at.saturating_sub(ahead) } else { at + ahead };
                let claimed = runs.claims(false).claim_run(first, n);
                prop_assert_eq!(claimed, first > ones.top());
                if claimed {
                    for number in first..first + n {
                        prop_assert_eq!(ones.claim(number), Ok(()));
                    }
                }
                prop_assert_eq!(runs.top(), ones.top());
                let top = ones.top();
                for number in top.saturating_sub(u64::from(size) + 40)..=top + 1 {
                    prop_assert_eq!(runs.check(number), ones.check(number), "{}", number);
                }
                at = at.max(top);
            }
        }

        #[test]
        fn the_upper_half_is_found_from_anywhere_near_the_window(
            size in 32u32..=WINDOW_MAX,
            top in prop_oneof![1u64..10_000, (1u64 << 32) - 5000..(1 << 32) + 5000, (7u64 << 32)..(7 << 32) + 100],
            ahead in prop_oneof![3 => 0u64..1 << 31, 1 => Just(u64::MAX)],
            behind in 0u64..4032,
        ) {
            // The farthest number whose lower half is not that of one within the window.
            let ahead = ahead.min((1 << 32) - u64::from(size));
            let window = Window::new(size, SequenceMode::Extended);
            window.claim(top).unwrap();
            prop_assert_eq!(window.extend((top + ahead) as u32), Some(top + ahead));
            if behind < size.into() && behind < top {
                prop_assert_eq!(window.extend((top - behind) as u32), Some(top - behind));
            }
        }
    }

    #[test]
    fn before_the_first_subspace_there_is_nothing() {
        let window = Window::new(64, SequenceMode::Extended);
        window.claim(3).unwrap();
        assert_eq!(window.extend(u32::MAX), None);
        assert_eq!(window.extend(1), Some(1));
    }

    #[test]
    fn behind_the_last_subspace_there_is_nothing() {
        let window = Window::new(64, SequenceMode::Extended);
        window.claim(u64::MAX - 3).unwrap();
        assert_eq!(window.extend(5), None);
        assert_eq!(window.extend(u32::MAX), Some(u64::MAX));
    }

    #[test]
    fn sizes_are_brought_into_their_bounds() {
        for (asked, size) in [(0, 32), (31, 32), (33, 33), (u32::MAX, WINDOW_MAX)] {
            let window = Window::new(asked, SequenceMode::Extended);
            window.claim(10_000).unwrap();
            let first = 10_001 - u64::from(size);
            assert_eq!(window.check(first), Ok(()), "{asked}");
            assert_eq!(window.check(first - 1), Err(Refused::TooOld), "{asked}");
        }
    }

    #[test]
    fn two_workers_never_both_get_a_number() {
        let window = Window::new(WINDOW_MAX, SequenceMode::Extended);
        let mut won: Vec<u64> = std::thread::scope(|scope| {
            let worker = || {
                let won: Vec<u64> = (1..=100_000).filter(|&n| window.claim(n).is_ok()).collect();
                won
            };
            let one = scope.spawn(worker);
            let two = scope.spawn(worker);
            [one.join().unwrap(), two.join().unwrap()].concat()
        });
        // A worker that falls behind the window loses numbers that the other did not get; none is
        // won twice.
        let all = won.len();
        won.sort_unstable();
        won.dedup();
        assert_eq!(won.len(), all);
        assert!(all > 1000, "{all}");
    }

    #[test]
    fn of_two_workers_that_claim_a_number_at_once_one_gets_it() {
        let window = Window::new(WINDOW_MAX, SequenceMode::Extended);
        let (arrived, end) = (AtomicU64::new(0), AtomicU64::new(100_000));
        let start = Instant::now();
        let worker = |is_first: bool| {
            let (mut number, mut won) = (0, 0);
            while number < end.load(Ordering::SeqCst) {
                number += 1;
                // On a busy machine they meet less often.
                if is_first && start.elapsed() > Duration::from_secs(2) {
                    end.store(number, Ordering::SeqCst);
                }
                arrived.fetch_add(1, Ordering::SeqCst);
                let mut waited = 0;
                while arrived.load(Ordering::SeqCst) < 2 * number {
                    waited += 1;
                    match waited % 1000 {
                        0 => std::thread::yield_now(),
                        _ => std::hint::spin_loop(),
                    }
                }
                won += u64::from(window.claim(number).is_ok());
            }
            (number, won)
        };
        let (one, two) = std::thread::scope(|scope| {
            let two = scope.spawn(|| worker(false));
            (worker(true), two.join().unwrap())
        });
        assert_eq!((two.0, one.1 + two.1), (one.0, one.0));
    }
}
