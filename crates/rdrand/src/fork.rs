//! Detection of a fork, and a lock that survives one.
//!
//! A child process starts with a copy of its parent's keys and counters; used as they are,
//! both would encrypt with the same keystream. A fork shows in a page that the kernel zeroes
//! in a child (`MADV_WIPEONFORK`, Linux 4.14), whichever library or system call forked; where
//! that is missing, in the process number. `pthread_atfork` would miss forks by a bare system
//! call. A lock that another thread held at the moment of the fork has no holder in the child;
//! it is taken over instead of waited for.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU64, Ordering};

/// A number that differs between a process and its ancestors, and not within a process.
///
/// Without `std` a fork cannot be detected, and the number is always 0.
pub(crate) use sign::generation;

/// A short-term lock whose holder is known to live in this process.
pub(crate) struct ForkLock<T> {
    /// 0 when free, otherwise the holder's generation plus one.
    holder: AtomicU64,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through the one guard that exists at a time.
unsafe impl<T: Send> Sync for ForkLock<T> {}

/// The lock, held.
pub(crate) struct Guard<'a, T> {
    lock: &'a ForkLock<T>,
    /// The generation of this process.
    pub(crate) here: u64,
}

impl<T> ForkLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        ForkLock {
            holder: AtomicU64::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the lock. After a fork the value may be in the middle of a change of the
    /// parent's: a holder that sees a new generation must set it up anew.
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        let generation = generation();
        let mine = generation.wrapping_add(1).max(1);
        let mut waits = 0_u32;
        loop {
            let holder = self.holder.load(Ordering::Relaxed);
            // Free, or left over from an ancestor.
            if holder != mine
                && self
                    .holder
                    .compare_exchange(holder, mine, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return Guard {
                    lock: self,
                    here: generation,
                };
            }
            wait(waits);
            waits = waits.saturating_add(1);
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one of its lock, see `ForkLock::lock`.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `self` is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.lock.holder.store(0, Ordering::Release);
    }
}

/// Spins a little, then yields the processor, then sleeps: the holder may be waiting for the
/// processor that the waiter uses.
fn wait(waits: u32) {
    match waits {
        0..=15 => core::hint::spin_loop(),
        #[cfg(feature = "std")]
        16..=63 => std::thread::yield_now(),
        #[cfg(feature = "std")]
        _ => std::thread::sleep(std::time::Duration::from_micros(50)),
        #[cfg(not(feature = "std"))]
        _ => core::hint::spin_loop(),
    }
}

#[cfg(all(feature = "std", unix))]
mod sign {
    use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

    /// The page in a child that is not counted yet.
    const WIPED: u32 = 0;
    const COUNTED: u32 = 1;
    const BEING_COUNTED: u32 = 2;

    /// The page that a child finds zeroed; null until first use or where there is none.
    static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());

    /// Forks noticed by this process and its ancestors.
    static FORKS: AtomicU64 = AtomicU64::new(0);

    pub(crate) fn generation() -> u64 {
        let Some(page) = page() else {
            // A child may in the end get the number of a dead ancestor; the page knows better.
            return u64::from(std::process::id());
        };
        while page.load(Ordering::Acquire) != COUNTED {
            // The thread that counts is in this process: a fork would have wiped the claim.
            let claim =
                page.compare_exchange(WIPED, BEING_COUNTED, Ordering::AcqRel, Ordering::Acquire);
            if claim.is_ok() {
                FORKS.fetch_add(1, Ordering::AcqRel);
                page.store(COUNTED, Ordering::Release);
            } else {
                core::hint::spin_loop();
            }
        }
        FORKS.load(Ordering::Acquire)
    }

    fn page() -> Option<&'static AtomicU32> {
        let page = PAGE.load(Ordering::Acquire);
        // SAFETY: once published, the page stays mapped as long as the process lives.
        unsafe { page.as_ref() }.or_else(map_page)
    }

    #[cfg(target_os = "linux")]
    #[cold]
    fn map_page() -> Option<&'static AtomicU32> {
        use rustix::mm::{madvise, mmap_anonymous, munmap, Advice, MapFlags, ProtFlags};

        const LENGTH: usize = 4096;
        /// Set if the kernel has no `MADV_WIPEONFORK`, so that it is asked once.
        static ABSENT: core::sync::atomic::AtomicBool = core::sync::atomic::AtomicBool::new(false);

        if ABSENT.load(Ordering::Relaxed) {
            return None;
        }
        if !madvise_works() {
            ABSENT.store(true, Ordering::Relaxed);
            return None;
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at an address of the kernel's choice.
        let start =
            unsafe { mmap_anonymous(core::ptr::null_mut(), LENGTH, access, MapFlags::PRIVATE) };
        let Ok(start) = start else {
            ABSENT.store(true, Ordering::Relaxed);
            return None;
        };
        // SAFETY: the mapping made above, whole.
        if unsafe { madvise(start, LENGTH, Advice::LinuxWipeOnFork) }.is_err() {
            // SAFETY: the mapping is known to no one but this function yet.
            let _ = unsafe { munmap(start, LENGTH) };
            ABSENT.store(true, Ordering::Relaxed);
            return None;
        }
        let page = start.cast::<AtomicU32>();
        // SAFETY: a fresh page is zeroed, aligned and large enough for the number.
        unsafe { &*page }.store(COUNTED, Ordering::Release);
        let null = core::ptr::null_mut();
        match PAGE.compare_exchange(null, page, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: published just now and never unmapped.
            Ok(_) => Some(unsafe { &*page }),
            Err(other) => {
                // SAFETY: this page was not published, so it is known to this function alone.
                let _ = unsafe { munmap(start, LENGTH) };
                // SAFETY: the published page is never unmapped.
                unsafe { other.as_ref() }
            }
        }
    }

    /// Returns true if `madvise` takes effect. Linux refuses this advice for shared memory; QEMU's
    /// emulation of user programs accepts all advice and ignores it.
    #[cfg(target_os = "linux")]
    fn madvise_works() -> bool {
        use rustix::mm::{madvise, mmap_anonymous, munmap, Advice, MapFlags, ProtFlags};

        let (null, length) = (core::ptr::null_mut(), 4096);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let Ok(start) =
            (unsafe { mmap_anonymous(null, length, ProtFlags::READ, MapFlags::SHARED) })
        else {
            return false;
        };
        // SAFETY: the mapping made above, whole, and not known outside of this function; both
        // calls.
        unsafe {
            let refused = madvise(start, length, Advice::LinuxWipeOnFork).is_err();
            let _ = munmap(start, length);
            refused
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn map_page() -> Option<&'static AtomicU32> {
        None
    }
}

#[cfg(not(all(feature = "std", unix)))]
mod sign {
    pub(crate) fn generation() -> u64 {
        0
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    #[test]
    fn the_lock_excludes() {
        let lock = ForkLock::new(0_u32);
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let mut guard = lock.lock();
                        let before = *guard;
                        std::hint::black_box(before);
                        *guard = before + 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 32_000);
    }

    #[test]
    fn a_lock_held_by_a_thread_that_is_not_in_this_process_is_taken_over() {
        let lock = ForkLock::new(7_u32);
        // What a child finds: held, by the generation of its parent.
        lock.holder
            .store(generation().wrapping_add(1000), Ordering::Relaxed);
        assert_eq!(*lock.lock(), 7);
        assert_eq!(lock.holder.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_process_that_does_not_fork_keeps_its_generation() {
        let before = generation();
        assert!((0..1000).all(|_| generation() == before));
    }
}
