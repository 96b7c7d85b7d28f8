//! The lock of a node.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

/// The longest time that [`FairMutex::leave`] waits until other threads have had the lock, which
/// may get no processor for longer. A test waits until they have.
const LONGEST: Duration = Duration::from_millis(if cfg!(test) { 60_000 } else { 20 });

/// A lock that a thread can leave to the others that wait.
///
/// The standard library's goes to the first thread that is awake, which is as a rule the one that
/// has just released it: a region that was prepared over shared memory, 0.2 ms at a time, kept
/// other workers waiting for 40 ms as a median.
#[derive(Debug, Default)]
pub struct FairMutex<T> {
    mutex: Mutex<T>,
    waiting: AtomicU32,
    /// Waits that are over, since the first.
    over: AtomicU32,
}

impl<T> FairMutex<T> {
    /// A lock around `value`.
    pub fn new(value: T) -> FairMutex<T> {
        FairMutex {
            mutex: Mutex::new(value),
            waiting: AtomicU32::new(0),
            over: AtomicU32::new(0),
        }
    }

    /// Takes the lock. A panic of the thread that had it is a defect of the node, whose state is
    /// that between two writes, and the others go on.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        match self.mutex.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => self.wait(),
        }
    }

    #[cold]
    fn wait(&self) -> MutexGuard<'_, T> {
        self.waiting.fetch_add(1, Relaxed);
        let guard = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Relaxed);
        self.over.fetch_add(1, Relaxed);
        guard
    }

    /// Releases the lock, and returns when as many threads have had it as wait for it at the call,
    /// or none waits any more, or after 20 ms.
    #[inline]
    pub fn leave(&self, guard: MutexGuard<'_, T>) {
        match self.waiting.load(Relaxed) {
            0 => drop(guard),
            waiting => {
                let over = self.over.load(Relaxed).wrapping_add(waiting);
                drop(guard);
                self.let_others(over);
            }
        }
    }

    /// Waits until so many waits are over. Where threads wait all the time, there is always one,
    /// and a long work in parts would be done in steps of 20 ms.
    #[cold]
    fn let_others(&self, over: u32) {
        let began = Instant::now();
        let is_over = || over.wrapping_sub(self.over.load(Relaxed)).cast_signed() <= 0;
        while self.waiting.load(Relaxed) > 0 && !is_over() && began.elapsed() < LONGEST {
            thread::yield_now();
        }
    }

    /// Returns true if another thread waits for the lock.
    #[cfg(test)]
    pub(super) fn is_waited_for(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        let inner = self.mutex.into_inner();
        inner.unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn a_lock_that_is_left_goes_to_the_thread_that_waits() {
        let lock = FairMutex::new(0);
        thread::scope(|scope| {
            for n in 1..=20 {
                let guard = lock.lock();
                let other = scope.spawn(|| *lock.lock() += 1);
                while lock.waiting.load(Relaxed) == 0 {
                    thread::yield_now();
                }
                lock.leave(guard);
                assert_eq!(lock.waiting.load(Relaxed), 0);
                other.join().unwrap();
                assert_eq!(*lock.lock(), n);
            }
        });
    }

    #[test]
    fn a_lock_that_is_left_comes_back_though_others_wait_all_the_time() {
        let (lock, is_done) = (FairMutex::new(0u64), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !is_done.load(Relaxed) {
                        let mut turns = lock.lock();
                        *turns += 1;
                        // Two wait at each release, so that there is always one.
                        while lock.waiting.load(Relaxed) < 2 && !is_done.load(Relaxed) {
                            thread::yield_now();
                        }
                        drop(turns);
                    }
                });
            }
            let guard = lock.lock();
            while lock.waiting.load(Relaxed) < 3 {
                thread::yield_now();
            }
            let (before, began) = (*guard, Instant::now());
            lock.leave(guard);
            let took = began.elapsed();
            let turns = *lock.lock() - before;
            is_done.store(true, Relaxed);
            assert!(turns > 0 && took < LONGEST, "{turns} in {took:?}");
        });
    }

    #[test]
    fn a_lock_outlives_the_panic_of_a_thread_that_had_it() {
        let lock = FairMutex::new(1);
        let panicked = thread::scope(|scope| {
            let held = scope.spawn(|| {
                let mut guard = lock.lock();
                *guard = 2;
                panic!("on purpose");
            });
            held.join().is_err()
        });
        assert!(panicked);
        lock.leave(lock.lock());
        assert_eq!(lock.into_inner(), 2);
    }
}
