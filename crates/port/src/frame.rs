//! Frames: packet buffers that keep room in front of and behind what they hold.

use std::cell::UnsafeCell;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::rc::Rc;

/// Room in front of what a fresh frame holds, in bytes: an outer Ethernet (14), IPv6 (40), ESP (8) and IV (8) header
/// take 70 less the 14 of the inner Ethernet header that they replace.
pub const HEADROOM: usize = 192;

/// How the memory of a pool is cut into slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Slots an odd number of cache lines apart, so that the headers of many frames do not fall into the same few sets of
    /// a cache: for frames that only this process sees.
    Spread,
    /// Slots of a power of two of bytes, as AF_XDP wants its chunks.
    PowerOfTwo,
}

/// Memory for frames of one worker. Cheap to clone; frames keep it alive.
#[derive(Clone)]
pub struct Pool(Rc<Memory>);

struct Memory {
    base: NonNull<u8>,
    bytes: usize,
    /// Bytes from one slot to the next.
    stride: usize,
    /// Bytes of a slot that a frame may use.
    capacity: usize,
    slots: usize,
    /// Slots that belong to nobody, the last freed on top: it is the one that the caches hold.
    free: UnsafeCell<Vec<u32>>,
}

impl Pool {
    /// A pool of `slots` frames that hold up to `capacity` bytes each, headroom included.
    ///
    /// # Errors
    /// Where the memory cannot be had.
    ///
    /// # Panics
    /// On a capacity of zero or above 65,535, and on no slot or more than 2²⁴.
    pub fn new(slots: usize, capacity: usize, layout: Layout) -> io::Result<Pool> {
        assert!((1..=usize::from(u16::MAX)).contains(&capacity), "capacity");
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
        Ok(Pool(Rc::new(Memory {
            base,
            bytes,
            stride,
            capacity,
            slots,
            free: UnsafeCell::new((0..slots as u32).rev().collect()),
        })))
    }

    /// An empty frame with [`HEADROOM`], or as much of it as the capacity allows; none when all slots are taken.
    #[inline]
    pub fn take(&self) -> Option<Frame> {
        let slot = self.take_slot()?;
        let start = HEADROOM.min(self.0.capacity);
        Some(self.adopt(slot, start, start))
    }

    /// A frame that holds a copy of `bytes`; none when all slots are taken or it is too long for one.
    #[inline]
    pub fn copy(&self, bytes: &[u8]) -> Option<Frame> {
        let mut frame = self.take()?;
        frame.append(bytes.len())?.copy_from_slice(bytes);
        Some(frame)
    }

    /// How many frames can be taken.
    pub fn available(&self) -> usize {
        // SAFETY: as in `take_slot`.
        unsafe { (*self.0.free.get()).len() }
    }

    /// How many frames there are, taken and not.
    pub fn slots(&self) -> usize {
        self.0.slots
    }

    /// Bytes that a frame has in all, headroom included.
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// Whether `frame` is of this pool.
    pub fn owns(&self, frame: &Frame) -> bool {
        Rc::ptr_eq(&self.0, &frame.memory)
    }

    #[inline]
    pub(crate) fn take_slot(&self) -> Option<u32> {
        // SAFETY: a pool is not `Sync` and no method lets a reference into the list out, so this is the only one.
        unsafe { (*self.0.free.get()).pop() }
    }

    /// The frame in `slot`, holding its bytes from `start` to `end`. The slot must be the caller's: taken by
    /// [`Pool::take_slot`] or given up by [`Frame::into_slot`], and in no frame. What the kernel says about a
    /// slot is checked here.
    #[inline]
    pub(crate) fn adopt(&self, slot: u32, start: usize, end: usize) -> Frame {
        assert!(
            (slot as usize) < self.0.slots && start <= end && end <= self.0.capacity,
            "a slot outside its pool"
        );
        // SAFETY: below the number of slots, so within the mapping.
        let data = unsafe { self.0.base.add(slot as usize * self.0.stride) };
        Frame {
            data,
            memory: Rc::clone(&self.0),
            slot,
            start: start as u16,
            end: end as u16,
        }
    }

    #[allow(dead_code)]
    pub(crate) fn memory(&self) -> (NonNull<u8>, usize, usize) {
        (self.0.base, self.0.bytes, self.0.stride)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} of {} free)", self.available(), self.slots())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `Pool::new`; every frame holds a count on this, so none is left.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// A packet in a slot of a [`Pool`], with room before and after it. Dropped, it goes back.
pub struct Frame {
    /// The slot's first byte.
    data: NonNull<u8>,
    memory: Rc<Memory>,
    slot: u32,
    start: u16,
    end: u16,
}

impl Frame {
    /// Bytes free in front.
    #[inline]
    pub fn headroom(&self) -> usize {
        usize::from(self.start)
    }

    /// Bytes free behind.
    #[inline]
    pub fn tailroom(&self) -> usize {
        self.memory.capacity - usize::from(self.end)
    }

    /// Grows by `n` bytes in front and gives those; what they hold is left over from earlier. None, and no change, when
    /// there is no room.
    #[inline]
    #[must_use = "there may have been no room"]
    pub fn prepend(&mut self, n: usize) -> Option<&mut [u8]> {
        self.start = usize::from(self.start).checked_sub(n)? as u16;
        self.get_mut(..n)
    }

    /// Grows by `n` bytes behind and gives those; what they hold is left over from earlier. None, and no change, when
    /// there is no room.
    #[inline]
    #[must_use = "there may have been no room"]
    pub fn append(&mut self, n: usize) -> Option<&mut [u8]> {
        if n > self.tailroom() {
            return None;
        }
        let len = self.len();
        self.end += n as u16;
        self.get_mut(len..)
    }

    /// Drops `n` bytes in front, or all when there are fewer.
    #[inline]
    pub fn trim_front(&mut self, n: usize) {
        self.start += n.min(self.len()) as u16;
    }

    /// Drops what is behind the first `len` bytes.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.end = self.start + len.min(self.len()) as u16;
    }

    /// A copy in another slot of the same pool, with the same headroom; none when all slots are taken.
    pub fn duplicate(&self) -> Option<Frame> {
        let pool = Pool(Rc::clone(&self.memory));
        let mut copy = pool.adopt(
            pool.take_slot()?,
            usize::from(self.start),
            usize::from(self.end),
        );
        copy.copy_from_slice(self);
        Some(copy)
    }

    /// Gives the slot up to the caller, who owes it to [`Pool::adopt`] or [`Pool::give_back`].
    #[allow(dead_code)]
    pub(crate) fn into_slot(self) -> (u32, usize, usize) {
        let given = (self.slot, usize::from(self.start), usize::from(self.end));
        let mut this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped and not used again, so the count is taken down once.
        unsafe { std::ptr::drop_in_place(&mut this.memory) };
        given
    }
}

impl Deref for Frame {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let (start, end) = (usize::from(self.start), usize::from(self.end));
        // SAFETY: start <= end <= capacity is kept by every method, so this is within the slot, which is this frame's alone
        // and was zeroed by the kernel.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr().add(start), end - start) }
    }
}

impl DerefMut for Frame {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let (start, end) = (usize::from(self.start), usize::from(self.end));
        // SAFETY: as in `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr().add(start), end - start) }
    }
}

impl Drop for Frame {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: as in `Pool::take_slot`: frames hold an `Rc`, so they stay on their pool's thread. The list was made with room
        // for all slots and each is in it at most once, so this does not allocate.
        unsafe { (*self.memory.free.get()).push(self.slot) };
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({} bytes)", self.len())
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
    }

    #[test]
    fn a_frame_refuses_to_leave_its_slot() {
        let pool = Pool::new(1, 512, Layout::PowerOfTwo).unwrap();
        let mut frame = pool.take().unwrap();
        assert!(frame.prepend(HEADROOM + 1).is_none());
        assert!(frame.append(512 - HEADROOM + 1).is_none());
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
