//! Views of shared memory.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicU8, Ordering};

use crate::copy;

/// A range of shared memory, whose bytes may change at any time.
///
/// ```compile_fail
/// let memory = tare_memory::SharedMemory::create("example", 8).unwrap();
/// let bytes: &[u8] = memory.view().as_ref(); // there is no way to a reference
/// ```
/// ```compile_fail,E0277
/// let memory = tare_memory::SharedMemory::create("example", 8).unwrap();
/// std::thread::scope(|scope| {
///     scope.spawn(|| memory.view()); // another thread needs a mapping of its own
/// });
/// ```
/// ```compile_fail,E0505
/// let memory = tare_memory::SharedMemory::create("example", 8).unwrap();
/// let view = memory.view();
/// drop(memory);
/// view.len(); // a view does not outlive its mapping
/// ```
#[derive(Clone, Copy)]
pub struct View<'a> {
    start: NonNull<u8>,
    len: usize,
    memory: PhantomData<&'a u8>,
}

mod sealed {
    pub trait Sealed {}
}

/// A value that is accessed at once and valid whatever its bits: an unsigned integer.
pub trait Value: sealed::Sealed + Copy + 'static {}

/// A value with atomic accesses.
pub trait AtomicValue: Value {
    /// Its atomic type.
    #[doc(hidden)]
    type Cell;
    #[doc(hidden)]
    fn load(cell: &Self::Cell, order: Ordering) -> Self;
    #[doc(hidden)]
    fn store(cell: &Self::Cell, value: Self, order: Ordering);
    #[doc(hidden)]
    fn swap(cell: &Self::Cell, value: Self, order: Ordering) -> Self;
    #[doc(hidden)]
    fn fetch_add(cell: &Self::Cell, value: Self, order: Ordering) -> Self;
    #[doc(hidden)]
    fn compare_exchange(
        cell: &Self::Cell,
        current: Self,
        new: Self,
        success: Ordering,
        failure: Ordering,
    ) -> Result<Self, Self>;
}

macro_rules! values {
    ($($value:ty => $cell:ty),+) => {$(
        impl sealed::Sealed for $value {}
        impl Value for $value {}
        impl AtomicValue for $value {
            type Cell = $cell;
            #[inline]
            fn load(cell: &$cell, order: Ordering) -> $value {
                cell.load(order)
            }
            #[inline]
            fn store(cell: &$cell, value: $value, order: Ordering) {
                cell.store(value, order);
            }
            #[inline]
            fn swap(cell: &$cell, value: $value, order: Ordering) -> $value {
                cell.swap(value, order)
            }
            #[inline]
            fn fetch_add(cell: &$cell, value: $value, order: Ordering) -> $value {
                cell.fetch_add(value, order)
            }
            #[inline]
            fn compare_exchange(
                cell: &$cell,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                cell.compare_exchange(current, new, success, failure)
            }
        }
    )+};
}

values!(u8 => AtomicU8, u16 => AtomicU16, u32 => AtomicU32, u64 => AtomicU64);

impl<'a> View<'a> {
    /// # Safety
    /// For all of `'a` the bytes must stay mapped, readable and writable, and be accessed by this
    /// program only through views, on one thread at a time.
    pub(crate) unsafe fn new(start: NonNull<u8>, len: usize) -> View<'a> {
        View {
            start,
            len,
            memory: PhantomData,
        }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address, for code that cannot use this crate's accesses. The bytes may change at
    /// any time; a reference to them would be undefined behaviour.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Asks for the cache lines of all bytes, and does not wait for them.
    #[inline]
    pub fn prefetch(self) {
        crate::cache::prefetch_at(self.start.as_ptr(), self.len);
    }

    /// Returns the `len` bytes at `offset`; `None` if they are not all within this view.
    #[inline]
    pub fn range(self, offset: usize, len: usize) -> Option<View<'a>> {
        let end = offset.checked_add(len)?;
        if end > self.len {
            return None;
        }
        // SAFETY: `offset` is at most `self.len`, so the address is within the mapping or one past
        // its end, and the bytes are a part of this view's.
        Some(unsafe { View::new(self.start.add(offset), len) })
    }

    /// Returns the value at `offset`, for volatile accesses; `None` if it is not aligned or not
    /// within this view.
    #[inline]
    pub fn volatile<T: Value>(self, offset: usize) -> Option<Volatile<'a, T>> {
        Some(Volatile {
            at: self.place(offset, 1)?,
            memory: PhantomData,
        })
    }

    /// Returns the `count` values at `offset`, for volatile accesses; `None` if they are not
    /// aligned or not all within this view.
    #[inline]
    pub fn slice<T: Value>(self, offset: usize, count: usize) -> Option<Slice<'a, T>> {
        Some(Slice {
            start: self.place(offset, count)?,
            count,
            memory: PhantomData,
        })
    }

    /// Returns the value at `offset`, for atomic accesses; `None` if it is not aligned or not
    /// within this view.
    #[inline]
    pub fn atomic<T: AtomicValue>(self, offset: usize) -> Option<Atomic<'a, T>> {
        Some(Atomic {
            at: self.place::<T>(offset, 1)?,
            memory: PhantomData,
        })
    }

    fn place<T: Value>(self, offset: usize, count: usize) -> Option<NonNull<T>> {
        let bytes = size_of::<T>().checked_mul(count)?;
        let place = self.range(offset, bytes)?.start.cast::<T>();
        place.is_aligned().then_some(place)
    }

    /// Copies the bytes to private memory, each loaded once; `None` if the lengths differ.
    ///
    /// The copy may be a mixture of old and new bytes: check the copy and not the original.
    #[inline]
    pub fn copy_to(self, to: &mut [u8]) -> Option<()> {
        if to.len() != self.len {
            return None;
        }
        // SAFETY: the view has as many bytes as `to`, and its mapping is readable. Both are of
        // different memory: no reference to a mapping exists.
        let done = unsafe {
            let from = self.start.as_ptr();
            copy::blocks(
                from,
                to.as_mut_ptr(),
                self.len,
                from.wrapping_add(copy::AHEAD),
            )
        };
        self.range(done, self.len - done)?.words_to(&mut to[done..])
    }

    /// Returns the sum of the 32-bit words, in the processor's order of bytes, of as much of the
    /// start as can be added in wide registers, each byte loaded once, and the number of bytes of
    /// it: a multiple of 64, and 0 where there is no such way.
    #[inline]
    pub fn sum_words(self) -> (u64, usize) {
        /// Whole blocks, of which the sum is below 2⁶⁴.
        const MAX: usize = 1 << 33;
        // SAFETY: the view has as many bytes, and its mapping is readable.
        unsafe { copy::sum_blocks(self.start.as_ptr(), self.len.min(MAX)) }
    }

    /// Copies private memory to the bytes, each stored once; `None` if the lengths differ.
    #[inline]
    pub fn copy_from(self, from: &[u8]) -> Option<()> {
        self.copy_from_before(from, from.as_ptr())
    }

    /// Copies private memory to the bytes as [`View::copy_from`] does, and meanwhile brings as many
    /// bytes from the start of `next` into the caches: what the caller copies after it.
    #[inline]
    pub fn copy_from_and_prefetch(self, from: &[u8], next: &[u8]) -> Option<()> {
        let ahead = if next.is_empty() { from } else { next };
        self.copy_from_before(from, ahead.as_ptr())
    }

    /// Copies private memory to the bytes as [`View::copy_from_and_prefetch`] does, but past the
    /// caches where the processor can: another one that has the lines need not give them up first,
    /// and loads the bytes from memory. What is stored after it is seen after it.
    #[inline]
    pub fn stream_from_and_prefetch(self, from: &[u8], next: &[u8]) -> Option<()> {
        if from.len() != self.len {
            return None;
        }
        let front = self.start.align_offset(copy::BLOCK).min(self.len);
        self.range(0, front)?.words_from(&from[..front])?;
        let from = &from[front..];
        let ahead = if next.is_empty() { from } else { next };
        let to = self.range(front, self.len - front)?;
        // SAFETY: as in `copy_from_before`; the view begins at a block, or is empty.
        let done = unsafe {
            let to_start = to.start.as_ptr();
            copy::stream_blocks(from.as_ptr(), to_start, to.len, ahead.as_ptr())
        };
        to.range(done, to.len - done)?.words_from(&from[done..])
    }

    /// Copies as [`View::copy_to`], but by the C library's `memcpy`: for measurements, which hold
    /// the other copy against it.
    #[doc(hidden)]
    pub fn memcpy_to(self, to: &mut [u8]) -> Option<()> {
        if to.len() != self.len {
            return None;
        }
        // SAFETY: as in `copy_to`.
        unsafe { copy::memcpy(self.start.as_ptr(), to.as_mut_ptr(), self.len) };
        Some(())
    }

    /// Copies as [`View::copy_from`], but by the C library's `memcpy`.
    #[doc(hidden)]
    pub fn memcpy_from(self, from: &[u8]) -> Option<()> {
        if from.len() != self.len {
            return None;
        }
        // SAFETY: as in `copy_from_before`.
        unsafe { copy::memcpy(from.as_ptr(), self.start.as_ptr(), self.len) };
        Some(())
    }

    #[inline]
    fn copy_from_before(self, from: &[u8], ahead: *const u8) -> Option<()> {
        if from.len() != self.len {
            return None;
        }
        // SAFETY: as in `copy_to`; the mapping is writable.
        let done = unsafe { copy::blocks(from.as_ptr(), self.start.as_ptr(), self.len, ahead) };
        self.range(done, self.len - done)?.words_from(&from[done..])
    }

    fn words_to(self, to: &mut [u8]) -> Option<()> {
        let (front, words, _) = self.split()?;
        let (to_front, rest) = to.split_at_mut(front.len());
        let (to_words, to_back) = rest.split_at_mut(8 * words.len());
        for (n, to) in to_words.chunks_exact_mut(8).enumerate() {
            to.copy_from_slice(&words.load(n)?.to_ne_bytes());
        }
        let back = self.slice::<u8>(self.len - to_back.len(), to_back.len())?;
        for (from, to) in [(front, to_front), (back, to_back)] {
            for (n, to) in to.iter_mut().enumerate() {
                *to = from.load(n)?;
            }
        }
        Some(())
    }

    fn words_from(self, from: &[u8]) -> Option<()> {
        let (front, words, back) = self.split()?;
        let (from_front, rest) = from.split_at(front.len());
        let (from_words, from_back) = rest.split_at(8 * words.len());
        for (n, from) in from_words.chunks_exact(8).enumerate() {
            words.store(n, u64::from_ne_bytes(*from.first_chunk()?))?;
        }
        for (to, from) in [(front, from_front), (back, from_back)] {
            for (n, from) in from.iter().enumerate() {
                to.store(n, *from)?;
            }
        }
        Some(())
    }

    /// Splits the view into bytes up to an aligned word, whole words, and bytes after them.
    fn split(self) -> Option<(Slice<'a, u8>, Slice<'a, u64>, Slice<'a, u8>)> {
        let front = self.start.align_offset(8);
        let words = self.len.saturating_sub(front) / 8;
        if words == 0 {
            // There may be no aligned address in it at all.
            let none = Slice {
                start: NonNull::dangling(),
                count: 0,
                memory: PhantomData,
            };
            return Some((self.slice(0, self.len)?, none, self.slice(self.len, 0)?));
        }
        let back = front + 8 * words;
        Some((
            self.slice(0, front)?,
            self.slice(front, words)?,
            self.slice(back, self.len - back)?,
        ))
    }
}

impl fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({} bytes)", self.len)
    }
}

/// A value in shared memory. Each access is one instruction of the value's width; it orders no
/// other access.
#[derive(Clone, Copy)]
pub struct Volatile<'a, T> {
    at: NonNull<T>,
    memory: PhantomData<&'a u8>,
}

impl<T: Value> Volatile<'_, T> {
    /// Loads the value.
    #[inline]
    pub fn load(&self) -> T {
        // SAFETY: `View::place` checked bounds and alignment; the mapping outlives `self`, and any
        // bits are a valid value. No other thread of this program accesses this mapping.
        unsafe { self.at.read_volatile() }
    }

    /// Stores a value.
    #[inline]
    pub fn store(&self, value: T) {
        // SAFETY: as in `load`; the mapping is writable and no reference to it exists.
        unsafe { self.at.write_volatile(value) }
    }
}

/// Values in shared memory; each access is as with [`Volatile`].
#[derive(Clone, Copy)]
pub struct Slice<'a, T> {
    start: NonNull<T>,
    count: usize,
    memory: PhantomData<&'a u8>,
}

impl<'a, T: Value> Slice<'a, T> {
    /// Returns the number of values.
    #[inline]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns one value; `None` beyond the last.
    #[inline]
    pub fn get(&self, index: usize) -> Option<Volatile<'a, T>> {
        if index >= self.count {
            return None;
        }
        Some(Volatile {
            // SAFETY: `View::place` checked that `count` values are within the mapping.
            at: unsafe { self.start.add(index) },
            memory: PhantomData,
        })
    }

    /// Loads one value; `None` beyond the last.
    #[inline]
    pub fn load(&self, index: usize) -> Option<T> {
        Some(self.get(index)?.load())
    }

    /// Stores one value; `None` beyond the last.
    #[inline]
    pub fn store(&self, index: usize, value: T) -> Option<()> {
        self.get(index)?.store(value);
        Some(())
    }
}

/// A value in shared memory with atomic accesses, which may order others.
#[derive(Clone, Copy)]
pub struct Atomic<'a, T> {
    at: NonNull<T>,
    memory: PhantomData<&'a u8>,
}

impl<T: AtomicValue> Atomic<'_, T> {
    #[inline]
    fn cell(&self) -> &T::Cell {
        // SAFETY: `View::place` checked bounds and alignment, which is that of the atomic type: the
        // four types here have their integer's size, and their accesses need its natural alignment,
        // which `place` required. The mapping outlives `self`. An atomic type allows changes
        // through other pointers, and this reference never leaves this module.
        unsafe { self.at.cast().as_ref() }
    }

    /// Loads the value.
    #[inline]
    pub fn load(&self, order: Ordering) -> T {
        T::load(self.cell(), order)
    }

    /// Stores a value.
    #[inline]
    pub fn store(&self, value: T, order: Ordering) {
        T::store(self.cell(), value, order);
    }

    /// Stores a value and returns the one before.
    #[inline]
    pub fn swap(&self, value: T, order: Ordering) -> T {
        T::swap(self.cell(), value, order)
    }

    /// Adds a value, with wrap-around, and returns the one before.
    #[inline]
    pub fn fetch_add(&self, value: T, order: Ordering) -> T {
        T::fetch_add(self.cell(), value, order)
    }

    /// Stores `new` if the value is `current`.
    ///
    /// # Errors
    /// The value, if it is another one.
    #[inline]
    pub fn compare_exchange(
        &self,
        current: T,
        new: T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<T, T> {
        T::compare_exchange(self.cell(), current, new, success, failure)
    }
}

const _: () = assert!(
    align_of::<AtomicU64>() == size_of::<u64>() && align_of::<u64>() == size_of::<u64>(),
    "64-bit values are not aligned to their size here"
);
