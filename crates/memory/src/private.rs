//! Memory of this process alone, in pages of a chosen size, which may be the bytes of a file.

use std::fmt;
use std::fs;
use std::ptr::{self, NonNull};
use std::sync::atomic::{compiler_fence, AtomicU64, Ordering};
use std::sync::Arc;

use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

use crate::error::Error;
use crate::file::Locked;

/// The longest mapping: 32 TiB.
pub const MAPPING_MAX: u64 = 1 << 45;

/// Bytes of the smallest page.
const SMALL: usize = 4 << 10;

/// The pages that memory is made of, as the processor sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// 1 GiB each, which the system has set aside.
    Huge1G,
    /// 2 MiB each, which the system has set aside.
    Huge2M,
    /// 2 MiB each where the kernel finds some, and 4 KiB elsewhere.
    Transparent,
    /// 4 KiB each.
    Small,
}

impl Pages {
    /// All, those first with which the processor finds an address soonest.
    pub const ALL: [Pages; 4] = [
        Pages::Huge1G,
        Pages::Huge2M,
        Pages::Transparent,
        Pages::Small,
    ];

    /// Returns the multiple of bytes that a mapping takes.
    pub const fn bytes(self) -> usize {
        match self {
            Pages::Huge1G => 1 << 30,
            Pages::Huge2M | Pages::Transparent => 2 << 20,
            Pages::Small => SMALL,
        }
    }
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pages::Huge1G => "huge pages of 1 GiB",
            Pages::Huge2M => "huge pages of 2 MiB",
            Pages::Transparent => "transparent huge pages",
            Pages::Small => "pages of 4 KiB",
        })
    }
}

/// Memory that no other process or mapping reads or writes, so it is plain bytes. All of its pages
/// are there from the start: no access waits for the kernel, and none ends the process.
pub struct Mapping {
    start: NonNull<u8>,
    /// The bytes that the caller asked for.
    len: usize,
    /// The bytes to unmap: whole pages.
    mapped: usize,
    pages: Pages,
    /// Keeps the file locked.
    _file: Option<Arc<Locked>>,
}

// SAFETY: the mapping belongs to this value alone and is not bound to the thread that made it.
unsafe impl Send for Mapping {}
// SAFETY: shared references only read.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes, all 0, in pages of one kind.
    ///
    /// # Errors
    /// The length is 0 or more than [`MAPPING_MAX`], or there are not as many pages.
    pub fn anonymous(len: usize, pages: Pages) -> Result<Mapping, Error> {
        let mapped = whole(len, pages)?;
        let mut flags = MapFlags::PRIVATE;
        match pages {
            Pages::Huge1G => flags |= MapFlags::HUGETLB | MapFlags::HUGE_1GB,
            Pages::Huge2M => flags |= MapFlags::HUGETLB | MapFlags::HUGE_2MB,
            // At a multiple of their size, or the first and last 2 MiB are of small pages.
            Pages::Transparent => return transparent(len, mapped),
            Pages::Small => (),
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of the
        // program.
        let start = unsafe { mm::mmap_anonymous(ptr::null_mut(), mapped, access, flags) };
        let start = start.map_err(|errno| refused(errno, pages, mapped))?;
        let mapping = Mapping::from_kernel(start, len, mapped, pages, None)?;
        mapping.populate()?;
        Ok(mapping)
    }

    /// Maps `len` bytes, all 0, in the best pages that the system has; [`Mapping::pages`] says
    /// which. Pages of which the length is less than a half are left to others.
    ///
    /// # Errors
    /// The length is 0 or more than [`MAPPING_MAX`], or there is not as much memory.
    pub fn best(len: usize) -> Result<Mapping, Error> {
        let fits = |pages: &Pages| len >= pages.bytes() / 2;
        let is_given = |pages: &Pages| *pages != Pages::Transparent || has_transparent("enabled");
        for pages in Pages::ALL.into_iter().filter(fits).filter(is_given) {
            match Mapping::anonymous(len, pages) {
                Err(Error::HugePages { .. }) => continue,
                result => return result,
            }
        }
        Mapping::anonymous(len, Pages::Small)
    }

    /// Maps a part of a file that this process owns. All of its bytes exist.
    pub(crate) fn of_file(
        file: &Arc<Locked>,
        offset: u64,
        len: usize,
        pages: Pages,
    ) -> Result<Mapping, Error> {
        let mapped = whole(len, pages)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let (flags, fd) = (MapFlags::SHARED, file.as_fd());
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of the
        // program.
        let start = unsafe { mm::mmap(ptr::null_mut(), mapped, access, flags, fd, offset) };
        let start = start.map_err(|errno| refused(errno, pages, mapped))?;
        let mapping = Mapping::from_kernel(start, len, mapped, pages, Some(Arc::clone(file)))?;
        if pages == Pages::Transparent {
            // A hint: file systems that have no huge pages refuse it.
            mapping.advise(Advice::LinuxHugepage).ok();
        }
        mapping.populate()?;
        // A child would have the same bytes as this process.
        mapping
            .advise(Advice::LinuxDontFork)
            .map_err(Error::os("madvise"))?;
        Ok(mapping)
    }

    fn from_kernel(
        start: *mut core::ffi::c_void,
        len: usize,
        mapped: usize,
        pages: Pages,
        file: Option<Arc<Locked>>,
    ) -> Result<Mapping, Error> {
        let start = NonNull::new(start.cast()).ok_or(Error::Length(len as u64))?;
        Ok(Mapping {
            start,
            len,
            mapped,
            pages,
            _file: file,
        })
    }

    /// Returns the pages that the memory is made of.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    fn advise(&self, advice: Advice) -> Result<(), Errno> {
        // SAFETY: this mapping; none of the advice that is given here changes its bytes.
        unsafe { mm::madvise(self.start.as_ptr().cast(), self.mapped, advice) }
    }

    /// Has the kernel find all pages now.
    fn populate(&self) -> Result<(), Error> {
        match self.advise(Advice::LinuxPopulateWrite) {
            // Before Linux 5.14: one write for each page, of the byte that is there.
            Err(Errno::INVAL) => {
                for offset in (0..self.mapped).step_by(SMALL) {
                    // SAFETY: within the mapping, of which there is no reference yet.
                    unsafe {
                        let byte = self.start.add(offset);
                        byte.write_volatile(byte.read_volatile());
                    }
                }
                Ok(())
            }
            result => result.map_err(Error::os("MADV_POPULATE_WRITE")),
        }
    }
}

impl AsRef<[u8]> for Mapping {
    #[inline(always)]
    fn as_ref(&self) -> &[u8] {
        // SAFETY: readable, and initialized by the kernel, for as long as `self` exists. Nothing
        // else writes to it. Anonymous memory has no other mapping. A file is mapped only by
        // `OwnedFile`, at most once for each byte, under a lock that no two owners have at a time,
        // and no user but its owner and root may open it: who writes to it regardless of the lock
        // is as far outside the program as a debugger.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl AsMut<[u8]> for Mapping {
    #[inline(always)]
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and writable; `self` is borrowed for as long as the slice lives.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping, which no slice outlives.
        let _ = unsafe { mm::munmap(self.start.as_ptr().cast(), self.mapped) };
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({} bytes in {})", self.len, self.pages)
    }
}

/// Stores a word so that it is there after everything that was stored before and before everything
/// that is stored later, and never in part, for a process that finds the memory after this one was
/// killed. That is no order for other processors, nor for a power loss.
///
/// # Panics
/// If the word is not aligned.
#[inline]
pub fn publish(word: &mut [u8; 8], value: u64) {
    let word = word.as_mut_ptr().cast::<u64>();
    assert!(word.is_aligned(), "a word of 8 bytes at a multiple of 8");
    compiler_fence(Ordering::SeqCst);
    // SAFETY: eight bytes that are borrowed for writing, aligned. Atomic, so that it is one
    // instruction: the process is killed between two instructions.
    unsafe { AtomicU64::from_ptr(word) }.store(value, Ordering::Release);
    compiler_fence(Ordering::SeqCst);
}

/// Returns the length in whole pages.
fn whole(len: usize, pages: Pages) -> Result<usize, Error> {
    if len == 0 || len as u64 > MAPPING_MAX {
        return Err(Error::MappingLength(len as u64));
    }
    Ok(len.next_multiple_of(pages.bytes()))
}

fn transparent(len: usize, mapped: usize) -> Result<Mapping, Error> {
    let (access, huge) = (ProtFlags::READ | ProtFlags::WRITE, Pages::Transparent);
    let (all, flags) = (mapped + huge.bytes(), MapFlags::PRIVATE);
    // SAFETY: as in `anonymous`.
    let start = unsafe { mm::mmap_anonymous(ptr::null_mut(), all, access, flags) };
    let start = start.map_err(Error::os("mmap"))?.cast::<u8>();
    let before = start.align_offset(huge.bytes()).min(huge.bytes());
    // SAFETY: parts of the new mapping, which nothing uses; the rest begins within it.
    let aligned = unsafe {
        if before > 0 {
            let _ = mm::munmap(start.cast(), before);
        }
        let end = start.add(before + mapped);
        if before < huge.bytes() {
            let _ = mm::munmap(end.cast(), huge.bytes() - before);
        }
        start.add(before)
    };
    let mapping = Mapping::from_kernel(aligned.cast(), len, mapped, huge, None)?;
    // A kernel without them gives small pages.
    mapping.advise(Advice::LinuxHugepage).ok();
    mapping.populate()?;
    Ok(mapping)
}

/// Returns true if the system gives transparent huge pages to those who ask, for memory (`enabled`)
/// or files on tmpfs (`shmem_enabled`).
pub(crate) fn has_transparent(setting: &str) -> bool {
    let path = format!("/sys/kernel/mm/transparent_hugepage/{setting}");
    let setting = fs::read_to_string(path).unwrap_or_default();
    [
        "[always]",
        "[within_size]",
        "[advise]",
        "[madvise]",
        "[force]",
    ]
    .iter()
    .any(|chosen| setting.contains(chosen))
}

/// Returns why the kernel mapped no pages.
pub(crate) fn refused(errno: Errno, pages: Pages, mapped: usize) -> Error {
    let kib = pages.bytes() >> 10;
    match pages {
        Pages::Huge1G | Pages::Huge2M if matches!(errno, Errno::NOMEM | Errno::INVAL) => {
            let read = |name: &str| -> Option<u64> {
                let path = format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB/{name}");
                fs::read_to_string(path).ok()?.trim().parse().ok()
            };
            let free = read("free_hugepages");
            let reserved = read("resv_hugepages").unwrap_or(0);
            Error::HugePages {
                pages,
                found: free.map(|free| free.saturating_sub(reserved)),
                expected: (mapped / pages.bytes()) as u64,
                total: read("nr_hugepages").unwrap_or(0),
            }
        }
        _ => Error::os("mmap")(errno),
    }
}
