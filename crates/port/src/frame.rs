//! Frames: packet buffers that keep room in front of and behind what they hold.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::rc::Weak;

/// Room in front of what a fresh frame holds, in bytes: an outer Ethernet (14), IPv6 (40), ESP (8)
/// and IV (8) header take 70 less the 14 of the inner Ethernet header that they replace. What is
/// behind the Ethernet header of a fresh frame then begins on a cache line: it is what ESP
/// encrypts, in accesses of up to 64 bytes, and those of a line are the fastest and never cross a
/// page.
pub const HEADROOM: usize = 192 - ETHERNET - SLOT;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;

/// The layout of slots in the memory of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Slots an odd number of cache lines apart, so that the headers of many frames do not fall
    /// into the same few sets of a cache: for frames that only this process sees.
    Spread,
    /// Slots of a power of two of bytes, as AF_XDP wants its chunks.
    PowerOfTwo,
}

/// Memory for frames of one worker. Cheap to clone; frames keep it alive. Neither pools nor frames
/// leave their thread.
pub struct Pool(NonNull<Memory>);

struct Memory {
    base: NonNull<u8>,
    bytes: usize,
    /// Bytes from one slot to the next.
    stride: usize,
    /// Bytes of a slot that a frame may use.
    capacity: usize,
    slots: usize,
    /// Pools that are handles of this memory. It goes when there are none and no slot is taken.
    handles: Cell<usize>,
    /// Slots that no frame and no port has, the last freed on top: it is the one that the caches
    /// hold. Has room for all, so that freeing never allocates.
    free: Vec<u32>,
    /// Other owners of the address of this memory: AF_XDP sockets that it is registered with. A
    /// pool need not know what they are, only keep them together with the memory.
    registrations: RefCell<Vec<Weak<dyn Any>>>,
}

/// The header at the start of a slot. A frame is a pointer to it: moving frames moves eight bytes.
/// Were its fields in the frame, moving one right after it changed would wait for narrow stores to
/// reach the cache.
#[repr(C)]
struct Slot {
    memory: NonNull<Memory>,
    number: u32,
    /// The start of the frame's bytes, and in the upper half their end, counted from the slot's
    /// start. One value, because a load of both right after a store of one would wait for that.
    range: u32,
}

impl Slot {
    #[inline(always)]
    fn start(&self) -> usize {
        (self.range & 0xffff) as usize
    }

    #[inline(always)]
    fn end(&self) -> usize {
        (self.range >> 16) as usize
    }

    /// Both at most 65,535: a pool's capacity is.
    #[inline(always)]
    fn set(&mut self, start: usize, end: usize) {
        self.range = start as u32 | (end as u32) << 16;
    }
}

/// Bytes of that; what a slot's frame holds is behind them.
pub(crate) const SLOT: usize = size_of::<Slot>();

impl Pool {
    /// A pool of `slots` frames that hold up to `capacity` bytes each, headroom included.
    ///
    /// # Errors
    /// If the memory cannot be had.
    ///
    /// # Panics
    /// On a capacity below 64 or above 65,535, and on no slot or more than 2²⁴.
    pub fn new(slots: usize, capacity: usize, layout: Layout) -> io::Result<Pool> {
        assert!((64..=usize::from(u16::MAX)).contains(&capacity), "capacity");
        assert!((1..=1 << 24).contains(&slots), "slots");
        let stride = match layout {
            Layout::Spread => (capacity.div_ceil(64) | 1) * 64,
            Layout::PowerOfTwo => capacity.next_power_of_two(),
        };
        let bytes = (stride * slots).next_multiple_of(2 << 20);
        // SAFETY: a fresh anonymous mapping, which touches no memory that exists.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Fewer entries of the TLB; where the kernel has no huge page it goes on with small ones.
        // SAFETY: advice on the mapping just made.
        unsafe { libc::madvise(base, bytes, libc::MADV_HUGEPAGE) };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = NonNull::from(Box::leak(Box::new(Memory {
            base,
            bytes,
            stride,
            capacity,
            slots,
            handles: Cell::new(1),
            free: (0..slots as u32).rev().collect(),
            registrations: RefCell::default(),
        })));
        for number in 0..slots as u32 {
            // SAFETY: the slot is within the fresh mapping and aligned to its stride, a multiple of
            // 64.
            unsafe {
                base.add(number as usize * stride)
                    .cast::<Slot>()
                    .write(Slot {
                        memory,
                        number,
                        range: 0,
                    });
            }
        }
        Ok(Pool(memory))
    }

    /// An empty frame with [`HEADROOM`], or as much of it as the capacity allows; none when all
    /// slots are taken.
    #[inline]
    pub fn take(&self) -> Option<Frame> {
        let slot = self.take_slot()?;
        let start = (SLOT + HEADROOM).min(self.inner().capacity);
        Some(self.adopt(slot, start, start))
    }

    /// A frame that holds a copy of `bytes`; none when all slots are taken or it is too long for
    /// one.
    #[inline]
    pub fn copy(&self, bytes: &[u8]) -> Option<Frame> {
        let mut frame = self.take()?;
        let place = frame.append(bytes.len())?;
        match (
            place.split_first_chunk_mut::<ETHERNET>(),
            bytes.split_first_chunk::<ETHERNET>(),
        ) {
            // The second part begins on a cache line, where a copy is faster.
            (Some((link, place)), Some((header, rest))) => {
                *link = *header;
                place.copy_from_slice(rest);
            }
            _ => place.copy_from_slice(bytes),
        }
        Some(frame)
    }

    /// The number of frames that can be taken.
    pub fn available(&self) -> usize {
        self.inner().free.len()
    }

    /// The number of frames, taken and not.
    pub fn slots(&self) -> usize {
        self.inner().slots
    }

    /// Bytes that a frame can hold, with its headroom.
    pub fn capacity(&self) -> usize {
        self.inner().capacity - SLOT
    }

    /// True if `frame` is of this pool.
    pub fn owns(&self, frame: &Frame) -> bool {
        frame.slot().memory == self.0
    }

    #[inline]
    fn inner(&self) -> &Memory {
        // SAFETY: this handle keeps the memory. References to it are shared ones, but for those to
        // the list of free slots, which none of the methods that make one hands out or calls
        // anything with.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    pub(crate) fn take_slot(&self) -> Option<u32> {
        // SAFETY: as in `inner`; pools stay on one thread, so no other code looks at the list now.
        unsafe { (*self.0.as_ptr()).free.pop() }
    }

    /// The frame in `slot`, holding its bytes from `start` to `end`. The slot must be the caller's:
    /// taken by [`Pool::take_slot`] or given up by [`Frame::into_slot`], and in no frame. What the
    /// kernel says about a slot is checked here; it leaves the front of a slot alone.
    #[inline]
    pub(crate) fn adopt(&self, slot: u32, start: usize, end: usize) -> Frame {
        let inner = self.inner();
        assert!(
            (slot as usize) < inner.slots && SLOT <= start && start <= end && end <= inner.capacity,
            "a slot outside its pool"
        );
        // SAFETY: below the number of slots, so within the mapping, where `new` put a header.
        let mut frame = Frame(unsafe { inner.base.add(slot as usize * inner.stride).cast() });
        frame.slot_mut().set(start, end);
        frame
    }

    /// Takes back a slot that was the caller's.
    #[inline]
    pub(crate) fn give_back(&self, slot: u32) {
        drop(self.adopt(slot, SLOT, SLOT));
    }

    /// The first byte of the first slot, how many bytes further the next is, and how many of those
    /// a slot may use.
    pub(crate) fn memory(&self) -> (NonNull<u8>, usize, usize) {
        let inner = self.inner();
        (inner.base, inner.stride, inner.capacity)
    }

    pub(crate) fn registrations(&self) -> &RefCell<Vec<Weak<dyn Any>>> {
        &self.inner().registrations
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} of {} free)", self.available(), self.slots())
    }
}

impl Clone for Pool {
    fn clone(&self) -> Pool {
        let handles = &self.inner().handles;
        handles.set(handles.get() + 1);
        Pool(self.0)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let inner = self.inner();
        inner.handles.set(inner.handles.get() - 1);
        let unused = inner.handles.get() == 0 && inner.free.len() == inner.slots;
        if unused {
            // SAFETY: this was the last handle, and no frame is left.
            unsafe { release(self.0) };
        }
    }
}

/// Gives the memory back to the system.
///
/// # Safety
/// No handle and no frame may be left.
unsafe fn release(memory: NonNull<Memory>) {
    // SAFETY: it was leaked from a box in `Pool::new`, and there is no one left to use it.
    drop(unsafe { Box::from_raw(memory.as_ptr()) });
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `Pool::new`, in which no frame is left.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// A packet in a slot of a [`Pool`], with room before and after it. Dropped, it goes back.
pub struct Frame(NonNull<Slot>);

impl Frame {
    #[inline]
    fn slot(&self) -> &Slot {
        // SAFETY: a frame points to the header of a slot that is its own, in memory that lasts
        // while a slot is taken.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    fn slot_mut(&mut self) -> &mut Slot {
        // SAFETY: as in `slot`.
        unsafe { self.0.as_mut() }
    }

    #[inline]
    fn memory(&self) -> &Memory {
        // SAFETY: as in `slot`; see `Pool::inner` for the references.
        unsafe { self.slot().memory.as_ref() }
    }

    /// The start of the bytes that it holds, and their end.
    #[inline(always)]
    fn range(&self) -> (usize, usize) {
        let slot = self.slot();
        let (start, end) = (slot.start(), slot.end());
        // So that the compiler knows that their number is small, and need not look for sums that
        // overflow.
        // SAFETY: SLOT <= start <= end <= capacity is kept by every method.
        unsafe { std::hint::assert_unchecked(start <= end) };
        (start, end)
    }

    /// Bytes free in front.
    #[inline]
    pub fn headroom(&self) -> usize {
        self.slot().start() - SLOT
    }

    /// Bytes free behind.
    #[inline]
    pub fn tailroom(&self) -> usize {
        self.memory().capacity - self.slot().end()
    }

    /// Grows by `n` bytes in front and gives those; what they hold is left over from earlier. None,
    /// and no change, when there is no room.
    #[inline]
    #[must_use = "there may have been no room"]
    pub fn prepend(&mut self, n: usize) -> Option<&mut [u8]> {
        if n > self.headroom() {
            return None;
        }
        let slot = self.slot_mut();
        slot.set(slot.start() - n, slot.end());
        self.get_mut(..n)
    }

    /// Grows by `n` bytes behind and gives those; what they hold is left over from earlier. None,
    /// and no change, when there is no room.
    #[inline]
    #[must_use = "there may have been no room"]
    pub fn append(&mut self, n: usize) -> Option<&mut [u8]> {
        if n > self.tailroom() {
            return None;
        }
        let len = self.len();
        let slot = self.slot_mut();
        slot.set(slot.start(), slot.end() + n);
        self.get_mut(len..)
    }

    /// Grows by `front` bytes in front and `behind` bytes behind, and gives all; what the new ones
    /// hold is left over from earlier. None, and no change, when there is no room.
    #[inline]
    #[must_use = "there may have been no room"]
    pub fn grow(&mut self, front: usize, behind: usize) -> Option<&mut [u8]> {
        if front > self.headroom() || behind > self.tailroom() {
            return None;
        }
        let len = front + self.len() + behind;
        let slot = self.slot_mut();
        let start = slot.start() - front;
        slot.set(start, start + len);
        // SAFETY: there was room for both, as just seen.
        Some(unsafe { self.bytes_mut(start, len) })
    }

    /// Keeps `len` bytes after the first `at`, or as many as there are, and gives them.
    #[inline]
    pub fn keep(&mut self, at: usize, len: usize) -> &mut [u8] {
        let at = at.min(self.len());
        let len = len.min(self.len() - at);
        let slot = self.slot_mut();
        let start = slot.start() + at;
        slot.set(start, start + len);
        // SAFETY: within what the frame held.
        unsafe { self.bytes_mut(start, len) }
    }

    /// The bytes of a frame that were just set. Read back, their place would be packed and unpacked
    /// again, and the compiler would not know how many there are at least.
    ///
    /// # Safety
    /// `len` bytes from `start` on must be within the slot and behind its header.
    #[inline(always)]
    unsafe fn bytes_mut(&mut self, start: usize, len: usize) -> &mut [u8] {
        // SAFETY: as in `deref`, by the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.0.cast::<u8>().add(start).as_ptr(), len) }
    }

    /// Drops `n` bytes in front, or all when there are fewer.
    #[inline]
    pub fn trim_front(&mut self, n: usize) {
        let n = n.min(self.len());
        let slot = self.slot_mut();
        slot.set(slot.start() + n, slot.end());
    }

    /// Drops what is behind the first `len` bytes.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        let len = len.min(self.len());
        let slot = self.slot_mut();
        slot.set(slot.start(), slot.start() + len);
    }

    /// A copy in another slot of the same pool, with the same headroom; none when all slots are
    /// taken.
    pub fn duplicate(&self) -> Option<Frame> {
        let slot = self.slot();
        // A handle that is not counted: this frame keeps the memory.
        let pool = std::mem::ManuallyDrop::new(Pool(slot.memory));
        let mut copy = pool.adopt(pool.take_slot()?, slot.start(), slot.end());
        copy.copy_from_slice(self);
        Some(copy)
    }

    /// Gives the slot up to the caller, who owes it to [`Pool::adopt`] or [`Pool::give_back`]: its
    /// number, and where its bytes begin and end.
    pub(crate) fn into_slot(self) -> (u32, usize, usize) {
        let slot = std::mem::ManuallyDrop::new(self);
        let slot = slot.slot();
        (slot.number, slot.start(), slot.end())
    }
}

impl Deref for Frame {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let (start, end) = self.range();
        // SAFETY: within the slot and behind its header; the slot is this frame's alone and was
        // zeroed by the kernel.
        unsafe { std::slice::from_raw_parts(self.0.cast::<u8>().add(start).as_ptr(), end - start) }
    }
}

impl DerefMut for Frame {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let (start, end) = self.range();
        // SAFETY: as in `deref`.
        unsafe {
            std::slice::from_raw_parts_mut(self.0.cast::<u8>().add(start).as_ptr(), end - start)
        }
    }
}

impl Drop for Frame {
    #[inline]
    fn drop(&mut self) {
        let &Slot { memory, number, .. } = self.slot();
        // SAFETY: the memory lasts while this slot is taken. Frames stay on their pool's thread and
        // no method keeps a reference to the list, so this one is alone. The list has room for all
        // slots and each is in it at most once: it does not grow.
        let inner = unsafe {
            (*memory.as_ptr()).free.push(number);
            memory.as_ref()
        };
        if inner.handles.get() == 0 && inner.free.len() == inner.slots {
            // SAFETY: no handle, and this was the last frame.
            unsafe { release(memory) };
        }
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({} bytes)", self.len())
    }
}

impl tare_sim::Carried for Frame {
    fn frame_len(&self) -> usize {
        self.len()
    }

    fn duplicate(&self) -> Option<Frame> {
        Frame::duplicate(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_grows_on_both_ends_and_keeps_what_it_held() {
        let pool = Pool::new(2, 512, Layout::Spread).unwrap();
        let mut frame = pool.copy(b"middle").unwrap();
        frame.prepend(5).unwrap().copy_from_slice(b"front");
        frame.append(4).unwrap().copy_from_slice(b"back");
        assert_eq!(&*frame, b"frontmiddleback");
        frame.trim_front(5);
        frame.truncate(6);
        assert_eq!(&*frame, b"middle");
        assert_eq!(frame.grow(5, 4).unwrap(), b"frontmiddleback");
        frame.keep(5, 6);
        assert_eq!(&*frame, b"middle");
        frame.keep(3, 9);
        assert_eq!(&*frame, b"dle");
        frame.keep(4, 1);
        assert!(frame.is_empty());
    }

    #[test]
    fn a_frame_refuses_to_leave_its_slot() {
        let pool = Pool::new(1, 512, Layout::PowerOfTwo).unwrap();
        let mut frame = pool.take().unwrap();
        assert!(frame.prepend(HEADROOM + 1).is_none());
        assert!(frame.append(pool.capacity() - HEADROOM + 1).is_none());
        assert!(frame.grow(HEADROOM + 1, 0).is_none());
        assert!(frame.grow(0, pool.capacity() - HEADROOM + 1).is_none());
        assert!(frame.is_empty());
        assert!(pool.take().is_none());
        frame.trim_front(9);
        frame.truncate(9);
        assert_eq!(frame.headroom(), HEADROOM);
        drop(frame);
        assert!(pool.copy(&[0; 400]).is_none());
        assert_eq!(pool.available(), 1);
    }

    #[test]
    fn a_frame_outlives_the_handle_of_its_pool() {
        let pool = Pool::new(1, 2048, Layout::Spread).unwrap();
        let frame = pool.copy(b"still here").unwrap();
        drop(pool);
        assert_eq!(&*frame, b"still here");
    }

    #[test]
    fn a_slot_that_was_given_up_comes_back_as_the_same_frame() {
        let pool = Pool::new(4, 2048, Layout::PowerOfTwo).unwrap();
        let (slot, start, end) = pool.copy(b"to the kernel").unwrap().into_slot();
        assert_eq!(pool.available(), 3);
        assert_eq!(&*pool.adopt(slot, start, end), b"to the kernel");
        assert_eq!(pool.available(), 4);
    }
}
