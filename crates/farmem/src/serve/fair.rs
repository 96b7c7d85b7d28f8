//! The lock of a node.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

/// The longest time that [`FairMutex::leave`] waits until another thread has the lock, which may
/// get no processor for longer. A test waits until it has.
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
}

impl<T> FairMutex<T> {
    /// A lock around `value`.
    pub fn new(value: T) -> FairMutex<T> {
        FairMutex {
            mutex: Mutex::new(value),
            waiting: AtomicU32::new(0),
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
        guard
    }

    /// Releases the lock, and returns when no other thread waits for it any more, or after 20 ms.
    #[inline]
    pub fn leave(&self, guard: MutexGuard<'_, T>) {
        drop(guard);
        if self.waiting.load(Relaxed) > 0 {
            self.let_others();
        }
    }

    #[cold]
    fn let_others(&self) {
        let began = Instant::now();
        while self.waiting.load(Relaxed) > 0 && began.elapsed() < LONGEST {
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
