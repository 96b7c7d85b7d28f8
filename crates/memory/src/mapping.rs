//! A memfd and its mapping.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::fs::{self, FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{self, MapFlags, ProtFlags};

use crate::error::Error;
use crate::file::TMPFS;
use crate::gate::{Gate, Means, Window};
use crate::view::View;

/// The longest memory: 1 TiB.
pub const LEN_MAX: usize = 1 << 40;

/// Memory shared with another process or thread.
pub struct SharedMemory {
    fd: OwnedFd,
    start: NonNull<u8>,
    len: usize,
    gate: Option<Gate>,
    /// Not `Sync`: see the front page, "One thread per mapping".
    one_thread: PhantomData<Cell<()>>,
}

// SAFETY: the mapping belongs to this value alone and is not bound to the thread that made it.
unsafe impl Send for SharedMemory {}

impl SharedMemory {
    /// Creates memory of `len` bytes, all 0, whose length is sealed. The name is for `/proc`.
    ///
    /// # Errors
    /// The length is 0 or too long, or there is not as much memory.
    pub fn create(name: &str, len: usize) -> Result<SharedMemory, Error> {
        let len = checked(len as u64)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = fs::memfd_create(name, flags).map_err(Error::os("memfd_create"))?;
        fs::ftruncate(&fd, len as u64).map_err(Error::os("ftruncate"))?;
        // Pages that are missing when they are touched end the process; missing now, they are an
        // error.
        let flags = FallocateFlags::empty();
        fs::fallocate(&fd, flags, 0, len as u64).map_err(Error::os("fallocate"))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fs::fcntl_add_seals(&fd, seals).map_err(Error::os("F_ADD_SEALS"))?;
        map(fd, len)
    }

    /// Maps memory that the other side created.
    ///
    /// # Errors
    /// The file is no memfd that is sealed against shrinking, it has huge pages, its length is 0 or
    /// too long, or it cannot be mapped for reading and writing.
    pub fn open(fd: OwnedFd) -> Result<SharedMemory, Error> {
        // Seals first: a length that was read before the seal may be less by now.
        let seals = fs::fcntl_get_seals(&fd).map_err(|_| Error::NotSealed)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(Error::NotSealed);
        }
        // Another file's pages may run out when they are touched, which ends the process: those of
        // a hole that the other side punches into a file of huge pages.
        let system = fs::fstatfs(&fd).map_err(Error::os("fstatfs"))?.f_type as u64;
        if system != TMPFS {
            return Err(Error::FileSystem(system));
        }
        let stat = fs::fstat(&fd).map_err(Error::os("fstat"))?;
        let len = checked(u64::try_from(stat.st_size).unwrap_or(0))?;
        map(fd, len)
    }

    /// Maps the same memory once more, for another thread.
    ///
    /// # Errors
    /// It cannot be mapped.
    pub fn try_clone(&self) -> Result<SharedMemory, Error> {
        SharedMemory::open(self.fd.try_clone()?)
    }

    /// Keeps the program off this mapping but within a [`SharedMemory::open_window`]: outside, a
    /// load or store ends the process. Other mappings of the memory, those of
    /// [`SharedMemory::try_clone`] too, are not affected.
    ///
    /// # Errors
    /// Processor or kernel have no protection keys, or none that is free, or the mapping has a
    /// guard already: pages keep the access of their last gate, and one that is gone opens them no
    /// more.
    pub fn guard(&mut self, means: Means) -> Result<(), Error> {
        if self.gate.is_some() {
            return Err(Error::Guarded);
        }
        // SAFETY: the mapping has whole pages, since the kernel rounds its length up, exists as
        // long as this value, and is accessed through views only.
        self.gate = Some(unsafe { Gate::new(self.start, self.len, means) }?);
        Ok(())
    }

    /// Lets this thread access the memory until the window is dropped. Without a
    /// [`SharedMemory::guard`], it may always.
    #[inline]
    pub fn open_window(&self) -> Window<'_> {
        Window::new(self.gate.as_ref(), true)
    }

    /// Keeps this thread off the memory within an open window, until the inner one is dropped.
    #[inline]
    pub fn closed_window(&self) -> Window<'_> {
        Window::new(self.gate.as_ref(), false)
    }

    /// Gives the pages back to the system, also if the other side keeps the file. All bytes are 0
    /// then, and those that are touched take memory again.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn discard(&self) -> Result<(), Error> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fs::fallocate(&self.fd, flags, 0, self.len as u64).map_err(Error::os("fallocate"))
    }

    /// Returns the file descriptor, to be sent to the other side.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the number of bytes, at least 1.
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns a view of all of it.
    pub fn view(&self) -> View<'_> {
        // SAFETY: the mapping is readable and writable, page-aligned, and exists for as long as
        // `self` is borrowed; the file has at least `len` bytes and is sealed against shrinking.
        unsafe { View::new(self.start, self.len) }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: `map` made this mapping, which no view outlives.
        let _ = unsafe { mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedMemory({} bytes)", self.len)
    }
}

fn checked(len: u64) -> Result<usize, Error> {
    match usize::try_from(len) {
        Ok(len @ 1..=LEN_MAX) => Ok(len),
        _ => Err(Error::Length(len)),
    }
}

fn map(fd: OwnedFd, len: usize) -> Result<SharedMemory, Error> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses touches no memory of the program.
    let start = unsafe { mm::mmap(ptr::null_mut(), len, access, MapFlags::SHARED, &fd, 0) };
    let start = start.map_err(Error::os("mmap"))?;
    let start = NonNull::new(start.cast()).ok_or(Error::Length(len as u64))?;
    Ok(SharedMemory {
        fd,
        start,
        len,
        gate: None,
        one_thread: PhantomData,
    })
}
