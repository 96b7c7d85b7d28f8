//! Files whose bytes belong to one process at a time.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fd::AsFd;
use rustix::fs::{FallocateFlags, FlockOperation, MemfdFlags, Mode};
use rustix::io::Errno;

use crate::error::Error;
use crate::private::{has_transparent, refused, Mapping, Pages, MAPPING_MAX};

/// The file system of `hugetlbfs`, and of memfds with huge pages.
const HUGETLBFS: u64 = 0x9584_58f6;
/// The file system of memfds, and of `/dev/shm`.
pub(crate) const TMPFS: u64 = 0x0102_1994;

/// A file that this process has for itself, to map it: on hugetlbfs, on tmpfs, a memfd, or any
/// other. It is locked (`flock`), and no other user may read or write it.
///
/// The lock ends with the last mapping. It holds off all programs that take it, and no others:
/// a file that is cut off by another program ends this one (SIGBUS).
pub struct OwnedFile {
    fd: Arc<Locked>,
    pages: Pages,
    len: u64,
    /// The bytes before this have been mapped.
    mapped: u64,
}

/// A file under a lock, which ends with this value, also if a child that was just forked still has
/// the file open.
pub(crate) struct Locked(OwnedFd);

impl Drop for Locked {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

impl AsFd for Locked {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl OwnedFile {
    /// Opens a file, or makes an empty one with mode 0600.
    ///
    /// # Errors
    /// It is not a regular file, it belongs to another user or others may access it, another
    /// process has it, or it cannot be opened.
    pub fn open(path: &Path) -> Result<OwnedFile, Error> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false);
        OwnedFile::take(file.mode(0o600).open(path)?)
    }

    /// Makes an empty memfd, whose memory exists as long as a process has it open. The name is for
    /// `/proc`.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn memfd(name: &str, pages: Pages) -> Result<OwnedFile, Error> {
        let flags = MemfdFlags::CLOEXEC
            | match pages {
                Pages::Huge1G => MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB,
                Pages::Huge2M => MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
                Pages::Transparent | Pages::Small => MemfdFlags::empty(),
            };
        let fd = rustix::fs::memfd_create(name, flags).map_err(Error::os("memfd_create"))?;
        rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR).map_err(Error::os("fchmod"))?;
        OwnedFile::from_fd(fd.as_fd())
    }

    /// Takes a file that another process has handed on, such as a memfd.
    ///
    /// # Errors
    /// As [`OwnedFile::open`].
    pub fn from_fd(fd: BorrowedFd<'_>) -> Result<OwnedFile, Error> {
        // Opened once more: all that were handed one open file have its lock together.
        OwnedFile::take(reopen(fd)?)
    }

    fn take(file: File) -> Result<OwnedFile, Error> {
        let lock = FlockOperation::NonBlockingLockExclusive;
        rustix::fs::flock(&file, lock).map_err(|errno| match errno {
            Errno::WOULDBLOCK => Error::FileInUse,
            errno => Error::os("flock")(errno),
        })?;
        // After the lock: another owner may have changed its length until then.
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(Error::NotAFile);
        }
        let (owner, own) = (found.uid(), rustix::process::geteuid().as_raw());
        if owner != own {
            return Err(Error::FileOwner { owner, own });
        }
        let mode = found.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(Error::FileMode(mode));
        }
        let system = rustix::fs::fstatfs(&file).map_err(Error::os("fstatfs"))?;
        let pages = match (system.f_type as u64, system.f_bsize as u64) {
            (HUGETLBFS, 0x4000_0000) => Pages::Huge1G,
            (HUGETLBFS, _) => Pages::Huge2M,
            (TMPFS, _) if has_transparent("shmem_enabled") => Pages::Transparent,
            _ => Pages::Small,
        };
        Ok(OwnedFile {
            fd: Arc::new(Locked(file.into())),
            pages,
            len: found.len(),
            mapped: 0,
        })
    }

    /// Opens the file once more, without the lock, to be handed on: the memory of a memfd stays as
    /// long as this is open, and [`OwnedFile::from_fd`] takes it once this owner is gone.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn reopened(&self) -> Result<OwnedFd, Error> {
        Ok(reopen(self.fd.0.as_fd())?.into())
    }

    /// Returns the pages that mappings of it are made of.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the bytes of the file that a mapping of `len` bytes takes.
    pub fn rounded(&self, len: usize) -> u64 {
        // Pages of 2 MiB are at such offsets of the file. Also where the kernel gives none now, so
        // that the next process finds the bytes at the same place.
        let multiple = self.pages.bytes().max(Pages::Huge2M.bytes());
        (len as u64).next_multiple_of(multiple as u64)
    }

    /// Makes the file longer; new bytes are 0, and take their memory at once.
    ///
    /// # Errors
    /// It has more bytes, or there is not as much memory.
    pub fn grow(&mut self, len: u64) -> Result<(), Error> {
        if len > MAPPING_MAX || len < self.len {
            return Err(Error::MappingLength(len));
        }
        rustix::fs::ftruncate(&self.fd.0, len).map_err(Error::os("ftruncate"))?;
        // Bytes without memory end the process when they are touched.
        let all = rustix::fs::fallocate(&self.fd.0, FallocateFlags::empty(), 0, len);
        if let Err(errno) = all {
            rustix::fs::ftruncate(&self.fd.0, self.len).map_err(Error::os("ftruncate"))?;
            return Err(match (errno, self.pages) {
                (Errno::NOSPC, Pages::Huge1G | Pages::Huge2M) => {
                    refused(Errno::NOMEM, self.pages, len as usize)
                }
                _ => Error::os("fallocate")(errno),
            });
        }
        self.len = len;
        Ok(())
    }

    /// Maps the next bytes of the file, behind those that were mapped before: at most once each,
    /// since a mapping belongs to its caller alone.
    ///
    /// # Errors
    /// The length is 0, or the file has not as many bytes left.
    pub fn map(&mut self, len: usize) -> Result<Mapping, Error> {
        let end = self.mapped + self.rounded(len);
        if end > self.len {
            return Err(Error::MappingLength(len as u64));
        }
        let mapping = Mapping::of_file(&self.fd, self.mapped, len, self.pages)?;
        self.mapped = end;
        Ok(mapping)
    }
}

fn reopen(fd: BorrowedFd<'_>) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    OpenOptions::new().read(true).write(true).open(path)
}

impl fmt::Debug for OwnedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = fs::read_link(format!("/proc/self/fd/{}", self.fd.0.as_raw_fd()));
        write!(f, "OwnedFile({:?}, {} bytes)", path.ok(), self.len)
    }
}
