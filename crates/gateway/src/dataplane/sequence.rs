//! Sequence numbers of outbound packets, which are their nonces.

use std::sync::atomic::{AtomicU64, Ordering};

use super::worker::WorkerId;

/// The width of an SA's sequence numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceMode {
    /// 64 bits, of which a packet carries the lower half: extended sequence numbers, ESN.
    Extended,
    /// 32 bits; the SA ends with them.
    Plain,
}

impl SequenceMode {
    /// Returns the width of extended numbers or of plain ones.
    #[inline(always)]
    pub(crate) const fn of(is_extended: bool) -> SequenceMode {
        if is_extended {
            SequenceMode::Extended
        } else {
            SequenceMode::Plain
        }
    }
}

/// The last sequence number that was taken.
#[derive(Default)]
pub(super) struct SequenceCounter(AtomicU64);

impl SequenceCounter {
    #[inline]
    pub(super) fn last(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Skips all numbers up to `last`. Exclusive access, because the store of a sole worker would
    /// undo an addition that comes between its load and its store.
    pub(super) fn skip_to(&mut self, last: u64) {
        let counter = self.0.get_mut();
        *counter = last.max(*counter);
    }

    /// Takes `n` consecutive numbers and returns the first; `None` if the SA has no more.
    ///
    /// A sole worker loads and stores: an atomic addition waits for all earlier loads and stores,
    /// and with a route of its own for each packet that is a tenth of the worker's time. See
    /// [`super::worker`] for why no other worker can be here then.
    #[inline]
    pub(super) fn take(&self, n: u64, mode: SequenceMode, worker: &WorkerId) -> Option<u64> {
        let end = match mode {
            SequenceMode::Extended => u64::MAX / 2,
            SequenceMode::Plain => u64::from(u32::MAX),
        };
        // RFC 4303, 3.3.3: "the sender checks to ensure that the counter has not cycled".
        let after = |before: u64| before.checked_add(n).filter(|&last| last <= end);
        let before = if worker.is_sole() {
            let before = self.0.load(Ordering::Relaxed);
            self.0.store(after(before)?, Ordering::Relaxed);
            before
        } else {
            // A refused request must not touch the counter: one that adds and undoes it lets
            // another worker's numbers be taken twice between the two.
            self.0
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, after)
                .ok()?
        };
        Some(before + 1)
    }
}

/// Adds to a counter that is no nonce. A sole worker does without an atomic addition, which takes
/// as long as about twenty other instructions.
#[inline]
pub(super) fn add(counter: &AtomicU64, n: u64, worker: &WorkerId) {
    if worker.is_sole() {
        counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    } else {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::Barrier;
    use std::time::Duration;

    use tare_sim::Random;

    use super::*;
    use crate::dataplane::WorkerGroup;

    #[test]
    fn two_workers_never_take_the_same_number() {
        let counter = SequenceCounter::default();
        let (_, workers) = WorkerGroup::new(2);
        let taken: u64 = std::thread::scope(|scope| {
            let take = |worker: WorkerId| {
                let counter = &counter;
                scope.spawn(move || {
                    // On a busy machine one may be done before the other one runs: each goes on
                    // until it was often enough in the middle of the other's numbers.
                    let (mut taken, mut gaps, mut last) = (0, 0, 0);
                    let start = std::time::Instant::now();
                    while gaps < 1000 && start.elapsed() < Duration::from_secs(2) {
                        for _ in 0..1000 {
                            let number = counter.take(1, SequenceMode::Extended, &worker).unwrap();
                            gaps += u64::from(number != last + 1);
                            last = number;
                            taken += 1;
                        }
                    }
                    taken
                })
            };
            let threads: Vec<_> = workers.into_iter().map(take).collect();
            let taken = threads.into_iter().map(|thread| thread.join().unwrap());
            taken.sum()
        });
        // A number that two of them took is counted twice on one side and once on the other.
        assert_eq!(counter.last(), taken);
    }

    /// The fault to find is one of nanoseconds: the number that one adds and takes back is seen by
    /// another.
    #[test]
    fn a_refused_request_does_not_touch_the_counter() {
        let mut counter = SequenceCounter::default();
        let end = u64::from(u32::MAX);
        counter.skip_to(end - 1);
        let (_, mut workers) = WorkerGroup::new(2);
        let worker = workers.pop().unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..300_000 {
                    assert_eq!(counter.take(6, SequenceMode::Plain, &worker), None);
                }
                done.store(true, Ordering::Relaxed);
            });
            while !done.load(Ordering::Relaxed) {
                assert_eq!(counter.last(), end - 1);
            }
        });
    }

    #[test]
    fn workers_take_no_number_twice_where_an_sa_ends() {
        let end = u64::from(u32::MAX);
        for round in 0..500 {
            let mut counter = SequenceCounter::default();
            counter.skip_to(end - 40 - round % 20);
            let start = counter.last();
            let (_, workers) = WorkerGroup::new(4);
            let barrier = Barrier::new(workers.len());
            let mut ranges: Vec<(u64, u64)> = std::thread::scope(|scope| {
                let take = |(number, worker): (u64, WorkerId)| {
                    let (counter, barrier) = (&counter, &barrier);
                    scope.spawn(move || {
                        let mut random = Random::new(round * 4 + number);
                        let mut ranges = Vec::new();
                        barrier.wait();
                        loop {
                            let n = 1 + random.below(8);
                            match counter.take(n, SequenceMode::Plain, &worker) {
                                Some(first) => ranges.push((first, first + n)),
                                None if n == 1 => break ranges,
                                None => {}
                            }
                        }
                    })
                };
                let threads: Vec<_> = (0..).zip(workers).map(take).collect();
                let ranges = threads.into_iter().map(|thread| thread.join().unwrap());
                ranges.flatten().collect()
            });
            ranges.sort_unstable();
            // One after the other, without a gap: each number once.
            let mut next = start + 1;
            for (first, after) in ranges {
                assert_eq!(first, next, "in round {round}");
                next = after;
            }
            assert_eq!((next, counter.last()), (end + 1, end));
        }
    }

    #[test]
    fn no_number_comes_after_the_last_and_a_refused_request_uses_none() {
        let (_, sole) = WorkerGroup::sole();
        let (_, mut workers) = WorkerGroup::new(2);
        workers.push(sole);
        for (mode, last) in [
            (SequenceMode::Plain, u64::from(u32::MAX)),
            (SequenceMode::Extended, u64::MAX / 2),
        ] {
            for worker in &workers {
                let mut counter = SequenceCounter::default();
                counter.skip_to(last - 5);
                counter.skip_to(1);
                assert_eq!(counter.take(6, mode, worker), None);
                assert_eq!(counter.take(5, mode, worker), Some(last - 4));
                assert_eq!(counter.take(1, mode, worker), None);
                assert_eq!(counter.last(), last);
            }
        }
    }

    #[test]
    fn a_sole_worker_takes_every_number_once() {
        let counter = SequenceCounter::default();
        let (_, worker) = WorkerGroup::sole();
        for first in [1, 8, 15] {
            let taken = counter.take(7, SequenceMode::Extended, &worker);
            assert_eq!(taken, Some(first));
        }
        assert_eq!(counter.last(), 21);
    }
}
