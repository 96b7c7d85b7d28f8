//! The rings that an AF_XDP socket shares with the kernel.

use std::io;
use std::marker::PhantomData;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::syscall::{check, option, set_option};

/// An entry of a ring: chunk addresses (fill, completion), or descriptors (receive,
/// transmit).
pub(super) trait Entry: Copy {}

impl Entry for u64 {}
impl Entry for libc::xdp_desc {}

/// The kinds of ring: the socket option that makes each, and the offset that it is mapped from.
#[derive(Clone, Copy)]
pub(super) enum Which {
    Receive,
    Transmit,
    Fill,
    Completion,
}

/// A ring, mapped. One side of it is this process, the only one that calls here; the other is the
/// kernel.
pub(super) struct Ring<T> {
    map: NonNull<u8>,
    bytes: usize,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    size: u32,
    /// The index of our side, which the kernel only reads, and the latest seen of the kernel's.
    ours: u32,
    theirs: u32,
    entry: PhantomData<T>,
}

impl<T: Entry> Ring<T> {
    /// Makes a ring of `size` entries, a power of two, and maps it.
    pub(super) fn new(socket: &OwnedFd, which: Which, size: u32) -> io::Result<Ring<T>> {
        assert!(size.is_power_of_two());
        let (make, page) = match which {
            Which::Receive => (libc::XDP_RX_RING, libc::XDP_PGOFF_RX_RING as u64),
            Which::Transmit => (libc::XDP_TX_RING, libc::XDP_PGOFF_TX_RING as u64),
            Which::Fill => (libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_PGOFF_FILL_RING),
            Which::Completion => (
                libc::XDP_UMEM_COMPLETION_RING,
                libc::XDP_UMEM_PGOFF_COMPLETION_RING,
            ),
        };
        set_option(socket, libc::SOL_XDP, make, &size)?;
        // SAFETY: plain numbers, for which all bytes are values; all zero here.
        let offsets: libc::xdp_mmap_offsets =
            unsafe { option(socket, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, mem::zeroed())? };
        let at = match which {
            Which::Receive => offsets.rx,
            Which::Transmit => offsets.tx,
            Which::Fill => offsets.fr,
            Which::Completion => offsets.cr,
        };
        // `bytes` is far from any overflow, and everything that is read lies within the
        // mapping.
        let header = [at.producer, at.consumer, at.flags];
        if header
            .iter()
            .any(|&offset| offset % 4 != 0 || offset + 4 > at.desc)
            || at.desc % 8 != 0
            || at.desc > 1 << 20
        {
            return Err(io::Error::other(
                "the kernel lays AF_XDP rings out in no known way",
            ));
        }
        let bytes = at.desc as usize + size as usize * mem::size_of::<T>();
        // SAFETY: a new mapping at a place of the kernel's choice.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                socket.as_raw_fd(),
                page as libc::off_t,
            )
        };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let map = NonNull::new(map.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: all offsets were checked to lie within the mapping, and to be multiples of what
        // they point to.
        let place = |offset: u64| unsafe { map.add(offset as usize) };
        let mut ring = Ring {
            map,
            bytes,
            producer: place(at.producer).cast(),
            consumer: place(at.consumer).cast(),
            flags: place(at.flags).cast(),
            entries: place(at.desc).cast(),
            size,
            ours: 0,
            theirs: 0,
            entry: PhantomData,
        };
        // Both are zero on a new ring.
        ring.ours = ring.load(ring.producer);
        ring.theirs = ring.load(ring.consumer);
        Ok(ring)
    }

    pub(super) fn size(&self) -> u32 {
        self.size
    }

    /// Of a ring that we fill: puts an entry where the kernel does not look before
    /// [`Ring::publish`]. The caller knows that there is room: it puts at most `size` more than it
    /// took from the ring through which the kernel gives back.
    #[inline]
    pub(super) fn put(&mut self, entry: T) {
        // SAFETY: the index is below `size`. The kernel does not read this entry: it is behind the
        // producer index that it sees.
        unsafe {
            self.entries
                .add((self.ours & (self.size - 1)) as usize)
                .write(entry);
        }
        self.ours = self.ours.wrapping_add(1);
    }

    /// Shows the kernel what was put.
    #[inline]
    pub(super) fn publish(&self) {
        // SAFETY: within the mapping, see `new`.
        unsafe { self.producer.as_ref() }.store(self.ours, Ordering::Release);
    }

    /// Of a ring that we fill: how many entries the kernel has not taken yet.
    #[inline]
    pub(super) fn untaken(&self) -> u32 {
        self.ours.wrapping_sub(self.load(self.consumer))
    }

    /// Of a ring that the kernel fills: how many entries there are to take. It asks the kernel's
    /// index only when it knows of none.
    #[inline]
    pub(super) fn ready(&mut self) -> io::Result<u32> {
        if self.theirs == self.ours {
            self.theirs = self.load(self.producer);
        }
        let ready = self.theirs.wrapping_sub(self.ours);
        if ready > self.size {
            return Err(io::Error::other("an AF_XDP ring holds more than its size"));
        }
        Ok(ready)
    }

    /// Takes one of the entries that are ready.
    #[inline]
    pub(super) fn take(&mut self) -> T {
        // SAFETY: the index is below `size`; the kernel has written this entry before the index
        // that `ready` read, and leaves it alone until `release`. Any bytes are an entry.
        let entry = unsafe {
            self.entries
                .add((self.ours & (self.size - 1)) as usize)
                .read()
        };
        self.ours = self.ours.wrapping_add(1);
        entry
    }

    /// Gives the kernel back what was taken.
    #[inline]
    pub(super) fn release(&self) {
        // SAFETY: within the mapping, see `new`.
        unsafe { self.consumer.as_ref() }.store(self.ours, Ordering::Release);
    }

    /// True if the kernel sleeps until it is called.
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        self.load(self.flags) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    #[inline]
    fn load(&self, index: NonNull<AtomicU32>) -> u32 {
        // SAFETY: within the mapping, see `new`.
        unsafe { index.as_ref() }.load(Ordering::Acquire)
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, to which no pointer outlives the ring.
        let unmapped = unsafe { libc::munmap(self.map.as_ptr().cast(), self.bytes) };
        debug_assert!(check(unmapped).is_ok());
    }
}
