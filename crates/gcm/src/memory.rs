//! Views of memory that another party may be writing to.
//!
//! A `&[u8]` promises the compiler that the bytes do not change while it is alive. Memory that a
//! hostile host can write breaks that promise: even holding a slice over it is undefined behaviour,
//! and the compiler may read a byte twice and get two values. These views are therefore a raw
//! pointer and a length. They can be made neither a slice, nor a byte, nor an iterator: only this
//! crate accesses the memory, each byte once.
//!
//! ```compile_fail
//! let bytes = [0u8; 4];
//! let view = tare_gcm::SharedRead::from(&bytes[..]);
//! let slice: &[u8] = view.as_ref(); // does not compile
//! ```
//! ```compile_fail
//! let bytes = [0u8; 4];
//! let view = tare_gcm::SharedRead::from(&bytes[..]);
//! let first = view[0]; // nor does this
//! ```
//! Opening into shared memory does not compile either, because plaintext may only go to a
//! `&mut [u8]`:
//! ```compile_fail
//! # use tare_gcm::*;
//! let (mut key, mut bytes) = (Key::new(&[0; 16]).unwrap(), [0u8; 4]);
//! let shared = SharedWrite::from(&mut bytes[..]);
//! let _ = key.open(&Nonce::from([0; 12]), &[], SharedRead::from(&[0u8; 4][..]), &Tag::from([0; 16]), shared);
//! ```
//!
//! A view stays on its thread, as memory of `tare-memory` does, which may be accessed by one thread
//! of a program at a time; another thread makes a view of its own.
//! ```compile_fail,E0277
//! let mut bytes = [0u8; 4];
//! let view = tare_gcm::SharedWrite::from(&mut bytes[..]);
//! std::thread::scope(|scope| scope.spawn(move || view.len()).join()); // does not compile
//! ```

use core::fmt;
use core::marker::PhantomData;

/// Returns true if the 64 bytes at `p` go past the end of its page.
///
/// Those on a cache line never do. Frames mostly begin on one, so this is looked at first.
#[inline(always)]
pub(crate) fn goes_past_page_end(p: *const u8) -> bool {
    !p.addr().is_multiple_of(64) && reaches_page_end(p)
}

/// Returns true if the 64 bytes at `p` go past the end of its page, or just up to it: to tell these
/// apart takes an instruction more, which every packet would pay for.
#[inline(always)]
pub(crate) fn reaches_page_end(p: *const u8) -> bool {
    // Those 64 bytes on are the first 64 of a page.
    crate::native::low_bits_after_64(p) & 0xfc0 == 0
}

/// Bytes to be read, once each, from memory that others may write to at the same moment.
///
/// Private memory is a special case: every `&[u8]` is a `SharedRead`.
#[derive(Clone, Copy)]
pub struct SharedRead<'a> {
    start: *const u8,
    len: usize,
    memory: PhantomData<&'a ()>,
}

impl<'a> SharedRead<'a> {
    /// Returns a view of `len` bytes at `start`.
    ///
    /// # Safety
    /// For all of `'a` the bytes must stay mapped and readable, and none of them may be among those
    /// that a call with this view writes: a message is sealed or opened in place by the
    /// `…_in_place` calls, or between memory that does not overlap. The bytes may change at any
    /// time, by other processes, devices, virtual machines, or threads that write with atomic or
    /// volatile accesses; what is read is then any mixture of old and new bytes, which this crate
    /// is made for.
    pub const unsafe fn new(start: *const u8, len: usize) -> Self {
        Self {
            start,
            len,
            memory: PhantomData,
        }
    }

    /// The number of bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the bytes before `at` and those from `at` on; `None` if there are fewer than `at`.
    pub fn split_at(self, at: usize) -> Option<(Self, Self)> {
        let rest = self.len.checked_sub(at)?;
        // SAFETY: both parts lie within the bytes that this view was made for.
        Some(unsafe {
            (
                Self::new(self.start, at),
                Self::new(self.start.add(at), rest),
            )
        })
    }

    pub(crate) const fn start(&self) -> *const u8 {
        self.start
    }
}

impl fmt::Debug for SharedRead<'_> {
    /// Writes the length: the bytes are another party's as well, and may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedRead({} bytes)", self.len)
    }
}

impl<'a> From<&'a [u8]> for SharedRead<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        // SAFETY: the slice is readable, and borrowed, for 'a.
        unsafe { Self::new(bytes.as_ptr(), bytes.len()) }
    }
}

/// Bytes to be written, once each, in memory that others may read and write at the same moment.
///
/// Private memory is a special case: every `&mut [u8]` can be made a `SharedWrite`.
pub struct SharedWrite<'a> {
    start: *mut u8,
    len: usize,
    memory: PhantomData<&'a mut ()>,
}

impl<'a> SharedWrite<'a> {
    /// Returns a view of `len` bytes at `start`.
    ///
    /// # Safety
    /// For all of `'a` the bytes must stay mapped and writable, and no Rust reference to them may
    /// be in use; in particular none to the plaintext of the same call. Others may read and write
    /// them at any time, as with [`SharedRead::new`].
    pub const unsafe fn new(start: *mut u8, len: usize) -> Self {
        Self {
            start,
            len,
            memory: PhantomData,
        }
    }

    /// The number of bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the bytes before `at` and those from `at` on; `None` if there are fewer than `at`.
    pub fn split_at(self, at: usize) -> Option<(Self, Self)> {
        let rest = self.len.checked_sub(at)?;
        // SAFETY: both parts lie within the bytes that this view was made for, and do not overlap.
        Some(unsafe {
            (
                Self::new(self.start, at),
                Self::new(self.start.add(at), rest),
            )
        })
    }

    /// Returns a view of the same bytes with a shorter lifetime, to use a view more than once.
    pub fn reborrow(&mut self) -> SharedWrite<'_> {
        SharedWrite {
            start: self.start,
            len: self.len,
            memory: PhantomData,
        }
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }
}

impl fmt::Debug for SharedWrite<'_> {
    /// Writes the length, as of a [`SharedRead`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedWrite({} bytes)", self.len)
    }
}

impl<'a> From<&'a mut [u8]> for SharedWrite<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        // SAFETY: the slice is writable, and borrowed exclusively, for 'a.
        unsafe { Self::new(bytes.as_mut_ptr(), bytes.len()) }
    }
}

#[cfg(feature = "memory")]
impl<'a> From<tare_memory::View<'a>> for SharedRead<'a> {
    fn from(view: tare_memory::View<'a>) -> Self {
        // SAFETY: a view's bytes are mapped and readable for 'a, in memory that is never unmapped
        // or shrunk meanwhile and that this program makes no reference to.
        unsafe { Self::new(view.as_ptr(), view.len()) }
    }
}

#[cfg(feature = "memory")]
impl<'a> From<tare_memory::View<'a>> for SharedWrite<'a> {
    fn from(view: tare_memory::View<'a>) -> Self {
        // SAFETY: as above; the mapping is writable too.
        unsafe { Self::new(view.as_ptr(), view.len()) }
    }
}
