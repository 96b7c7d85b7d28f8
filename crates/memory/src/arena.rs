//! Values of one type side by side, an odd number of cache lines apart.

use std::alloc::{handle_alloc_error, Layout};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::{fence, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::mm::{self, Advice, MapFlags, ProtFlags};

/// Bytes per line of the cache.
const LINE: usize = 64;

/// Bytes of the first chunk of an arena. A program with few values does not pay for a huge page.
const FIRST_CHUNK: usize = 64 << 10;

/// Bytes of a further chunk: a huge page of x86-64.
const CHUNK: usize = 2 << 20;

/// A type whose values can be in an arena.
pub trait Placed: Sized + Send + Sync + 'static {
    /// Returns the arena of this type.
    fn arena() -> &'static Arena<Self>;
}

/// Memory for values of one type, in slots that begin on a cache line and are an odd number of
/// lines apart.
///
/// A cache keeps a line in one of a few places that the address determines, by its lower bits.
/// Values that are all as far apart as a power of two, or a multiple of one, share few of these
/// places, and a program that goes through thousands of values and reads the same fields of each
/// finds only a part of its cache of use. An odd number of lines has no factor in common with the
/// number of places, so that the fields are spread over all of them.
///
/// A slot that is free again is wiped, and taken before a fresh one. Memory is never given back to
/// the system.
pub struct Arena<T> {
    slots: Mutex<Slots>,
    values: PhantomData<fn(T) -> T>,
}

/// The free slots of an arena, and the part of the last chunk that was never used.
struct Slots {
    free: Vec<Address>,
    fresh: Option<Address>,
    fresh_count: usize,
    taken: usize,
    bytes: usize,
}

/// The address of a slot that no value is in.
#[derive(Clone, Copy)]
struct Address(NonNull<u8>);

// SAFETY: an address of memory that no thread uses; the thread that takes it out of the arena may.
unsafe impl Send for Address {}

/// A slot.
#[repr(C, align(64))]
struct Slot<T> {
    value: T,
    /// Handles of the value. Behind it, where workers that only read the value never look.
    handles: AtomicUsize,
}

impl<T> Arena<T> {
    /// Bytes from one slot to the next.
    pub const STRIDE: usize = ((size_of::<Slot<T>>() / LINE) | 1) * LINE;

    /// Returns an arena without memory.
    #[allow(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Arena<T> {
        const { assert!(align_of::<Slot<T>>() == LINE && Self::STRIDE <= FIRST_CHUNK) };
        Arena {
            slots: Mutex::new(Slots {
                free: Vec::new(),
                fresh: None,
                fresh_count: 0,
                taken: 0,
                bytes: 0,
            }),
            values: PhantomData,
        }
    }

    /// Returns the number of slots with a value.
    pub fn taken(&self) -> usize {
        self.lock().taken
    }

    /// Returns the bytes of memory that the arena has from the system.
    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot, whose bytes are all zero.
    fn take(&self) -> NonNull<Slot<T>> {
        let mut slots = self.lock();
        slots.taken += 1;
        if let Some(Address(slot)) = slots.free.pop() {
            return slot.cast();
        }
        if slots.fresh_count == 0 {
            let bytes = if slots.bytes == 0 { FIRST_CHUNK } else { CHUNK };
            slots.fresh = Some(Address(chunk(bytes)));
            slots.fresh_count = bytes / Self::STRIDE;
            slots.bytes += bytes;
        }
        let Some(Address(slot)) = slots.fresh else {
            unreachable!("a chunk has slots");
        };
        slots.fresh_count -= 1;
        // SAFETY: the chunk has as many slots as were counted, so this is within it or one past its
        // end.
        slots.fresh = Some(Address(unsafe { slot.add(Self::STRIDE) }));
        slot.cast()
    }

    /// Takes back a slot.
    ///
    /// # Safety
    /// The slot must have been taken from this arena, and nothing may use it.
    unsafe fn give_back(&self, slot: NonNull<Slot<T>>) {
        // SAFETY: the caller's contract. These are no dead stores, which a compiler could drop:
        // the memory goes on to exist, and other threads may get it.
        unsafe { slot.cast::<u8>().write_bytes(0, size_of::<Slot<T>>()) };
        let mut slots = self.lock();
        slots.taken -= 1;
        slots.free.push(Address(slot.cast()));
    }
}

/// Maps fresh memory, all zero, at a multiple of its length.
fn chunk(bytes: usize) -> NonNull<u8> {
    let failed =
        || handle_alloc_error(Layout::from_size_align(bytes, bytes).unwrap_or(Layout::new::<u8>()));
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses touches no memory of the program.
    let start =
        unsafe { mm::mmap_anonymous(ptr::null_mut(), 2 * bytes, access, MapFlags::PRIVATE) };
    let Some(start) = start
        .ok()
        .and_then(|start| NonNull::new(start.cast::<u8>()))
    else {
        return failed();
    };
    let before = start.align_offset(bytes);
    // SAFETY: parts of the mapping that nothing uses.
    unsafe {
        let aligned = start.add(before);
        if before > 0 {
            let _ = mm::munmap(start.as_ptr().cast(), before);
        }
        let _ = mm::munmap(aligned.add(bytes).as_ptr().cast(), bytes - before);
        if bytes == CHUNK {
            // A hint: without huge pages the memory works as well.
            let _ = mm::madvise(aligned.as_ptr().cast(), bytes, Advice::LinuxHugepage);
        }
        aligned
    }
}

/// A value in the arena of its type, shared as by an [`Arc`](std::sync::Arc).
pub struct Shared<T: Placed> {
    slot: NonNull<Slot<T>>,
    value: PhantomData<Slot<T>>,
}

// SAFETY: as for `Arc`: handles on several threads give shared references to the value, and the
// last one drops it; `Placed` demands what both need.
unsafe impl<T: Placed> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Placed> Sync for Shared<T> {}

impl<T: Placed> Shared<T> {
    /// Puts a value into the arena.
    pub fn new(value: T) -> Shared<T> {
        Shared::filled(value, |_| {})
    }

    /// Puts a value into the arena and changes it there, so that no copy of what `fill` writes is
    /// elsewhere.
    pub fn filled(value: T, fill: impl FnOnce(&mut T)) -> Shared<T> {
        let slot = T::arena().take();
        // SAFETY: the slot is this function's alone, and large and aligned enough.
        unsafe {
            slot.write(Slot {
                value,
                handles: AtomicUsize::new(1),
            });
            // If `fill` panics, the slot is lost and not freed.
            fill(&mut (*slot.as_ptr()).value);
        }
        Shared {
            slot,
            value: PhantomData,
        }
    }

    /// Returns the value to change, if this is its only handle.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        if self.slot().handles.load(Ordering::Acquire) != 1 {
            return None;
        }
        // SAFETY: the only handle is borrowed for as long as the reference lives, so no other can
        // be made of it, and what threads did whose handles are gone was acquired above.
        Some(unsafe { &mut (*self.slot.as_ptr()).value })
    }

    #[inline(always)]
    fn slot(&self) -> &Slot<T> {
        // SAFETY: a slot has a value as long as it has a handle.
        unsafe { self.slot.as_ref() }
    }

    /// Wipes the slot and gives it back.
    #[cold]
    fn end(&mut self) {
        // All that other threads did with the value before they dropped their handles is over.
        fence(Ordering::Acquire);
        // SAFETY: this was the last handle, and it is being dropped.
        unsafe {
            ptr::drop_in_place(&raw mut (*self.slot.as_ptr()).value);
            T::arena().give_back(self.slot);
        }
    }
}

impl<T: Placed> Deref for Shared<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.slot().value
    }
}

impl<T: Placed> Clone for Shared<T> {
    fn clone(&self) -> Shared<T> {
        let before = self.slot().handles.fetch_add(1, Ordering::Relaxed);
        // As `Arc` does: forgotten handles must not bring the count back to zero.
        if before > isize::MAX as usize {
            std::process::abort();
        }
        Shared {
            slot: self.slot,
            value: PhantomData,
        }
    }
}

impl<T: Placed> Drop for Shared<T> {
    #[inline]
    fn drop(&mut self) {
        if self.slot().handles.fetch_sub(1, Ordering::Release) == 1 {
            self.end();
        }
    }
}

impl<T: Placed + fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    macro_rules! placed {
        ($name:ident, $bytes:literal) => {
            #[allow(dead_code, reason = "of its size alone")]
            struct $name([u8; $bytes]);

            impl Placed for $name {
                fn arena() -> &'static Arena<$name> {
                    static VALUES: Arena<$name> = Arena::new();
                    &VALUES
                }
            }
        };
    }

    placed!(Byte, 1);
    placed!(Line, 56);
    placed!(TwoLines, 57);
    placed!(Many, 840);
    placed!(Long, 3064);

    fn address<T: Placed>(value: &Shared<T>) -> usize {
        (&raw const **value).expose_provenance()
    }

    /// More than the first chunk holds: the slots of the next one are as far apart.
    fn check_layout<T: Placed>(value: impl Fn() -> T) {
        let stride = Arena::<T>::STRIDE;
        assert!(stride >= size_of::<T>() + size_of::<usize>());
        assert!(stride < size_of::<T>() + size_of::<usize>() + 2 * LINE);
        assert_eq!(stride % LINE, 0);
        assert_eq!(
            stride / LINE % 2,
            1,
            "{stride} bytes are an even number of lines"
        );
        let first = FIRST_CHUNK / stride;
        let values: Vec<Shared<T>> = (0..first + 512).map(|_| Shared::new(value())).collect();
        let addresses: Vec<usize> = values.iter().map(address).collect();
        assert!(addresses.iter().all(|address| address % LINE == 0));
        for part in [&addresses[..first], &addresses[first..]] {
            let apart = part.windows(2).map(|pair| pair[1] - pair[0]);
            assert!(apart.into_iter().all(|apart| apart == stride));
        }
        // A cache of 512 sets finds a place for the same line of each value in another set.
        let sets: HashSet<usize> = addresses[first..]
            .iter()
            .map(|at| at / LINE % 512)
            .collect();
        assert_eq!(sets.len(), 512);
        assert_eq!(T::arena().taken(), first + 512);
        assert_eq!(
            T::arena().bytes(),
            FIRST_CHUNK + (512 * stride).div_ceil(CHUNK) * CHUNK
        );
    }

    #[test]
    fn slots_begin_on_a_line_and_are_an_odd_number_of_lines_apart() {
        check_layout(|| Byte([1; _]));
        check_layout(|| Line([1; _]));
        check_layout(|| TwoLines([1; _]));
        check_layout(|| Many([1; _]));
        check_layout(|| Long([1; _]));
    }

    struct Noted([u64; 20]);

    static DROPPED: AtomicUsize = AtomicUsize::new(0);

    impl Drop for Noted {
        fn drop(&mut self) {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Placed for Noted {
        fn arena() -> &'static Arena<Noted> {
            static VALUES: Arena<Noted> = Arena::new();
            &VALUES
        }
    }

    #[test]
    fn a_value_can_be_changed_by_its_only_handle() {
        placed!(Value, 8);
        let mut one = Shared::new(Value([1; _]));
        let other = one.clone();
        assert!(one.get_mut().is_none());
        drop(other);
        one.get_mut().unwrap().0[0] = 2;
        assert_eq!(one.0[0], 2);
    }

    #[test]
    fn a_slot_is_wiped_and_taken_again_when_its_last_handle_is_gone() {
        let first = Shared::filled(Noted([0; 20]), |value| value.0.fill(0xa5a5));
        let (at, second) = (address(&first), first.clone());
        drop(first);
        assert_eq!(
            (DROPPED.load(Ordering::Relaxed), second.0),
            (0, [0xa5a5; 20])
        );
        // Both handles of another value at once: one of the threads ends it.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let handle = second.clone();
                scope.spawn(move || {
                    (0..1000).for_each(|_| assert_eq!(handle.clone().0[19], 0xa5a5))
                });
            }
            scope.spawn(move || drop(second));
        });
        assert_eq!(DROPPED.load(Ordering::Relaxed), 1);
        assert_eq!(Noted::arena().taken(), 0);
        let slot = std::ptr::with_exposed_provenance::<u8>(at);
        // SAFETY: an arena keeps its memory, and no other test uses this one.
        let left =
            (0..size_of::<Slot<Noted>>()).filter(|&n| unsafe { slot.add(n).read_volatile() } != 0);
        assert_eq!(left.count(), 0, "bytes that were not wiped");
        let bytes = Noted::arena().bytes();
        for _ in 0..100_000 {
            assert_eq!(address(&Shared::new(Noted([1; 20]))), at);
        }
        assert_eq!(Noted::arena().bytes(), bytes);
    }
}
