//! Errors.

use std::{fmt, io};

use crate::file::TMPFS;
use crate::private::Pages;

/// The reason why memory could not be shared or mapped.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    Os {
        /// The operation that failed.
        doing: &'static str,
        /// Its error.
        source: io::Error,
    },
    /// The length is 0 or more than [`LEN_MAX`](crate::LEN_MAX).
    Length(u64),
    /// The file is no memfd that is sealed against shrinking.
    NotSealed,
    /// The file is on a file system of this type, and not on tmpfs.
    FileSystem(u64),
    /// The length of a mapping is 0, more than [`MAPPING_MAX`](crate::MAPPING_MAX), or more than
    /// the file has.
    MappingLength(u64),
    /// The system has not as many huge pages that are free.
    HugePages {
        /// The pages.
        pages: Pages,
        /// The number that are free; `None` if the system has none of this size.
        found: Option<u64>,
        /// The number needed.
        expected: u64,
        /// The number there are, in use or free.
        total: u64,
    },
    /// Another process has the file.
    FileInUse,
    /// The file is not a regular one.
    NotAFile,
    /// Other users may access the file, by this mode.
    FileMode(u32),
    /// The file belongs to another user, who may access it.
    FileOwner {
        /// The user that it belongs to.
        owner: u32,
        /// The effective user of this process.
        own: u32,
    },
    /// The memory has a guard already.
    Guarded,
}

impl Error {
    pub(crate) fn os(doing: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
        move |errno| Error::Os {
            doing,
            source: errno.into(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Os { doing, source } => write!(f, "{doing}: {source}"),
            Error::Length(len) => write!(
                f,
                "shared memory of {len} bytes: expected 1 to {}",
                crate::LEN_MAX
            ),
            Error::NotSealed => f.write_str(
                "the shared memory can be shrunk by the other side: expected a memfd with F_SEAL_SHRINK",
            ),
            Error::FileSystem(found) => write!(
                f,
                "the shared memory is on a file system of type {found:#x}: expected tmpfs \
                 ({TMPFS:#x}), a memfd without huge pages",
            ),
            Error::MappingLength(len) => write!(
                f,
                "a mapping of {len} bytes: expected 1 to {}, and no more than the file has",
                crate::MAPPING_MAX
            ),
            Error::HugePages {
                pages,
                found: None,
                ..
            } => write!(f, "this system has no {pages}: use smaller ones"),
            Error::HugePages {
                pages,
                found: Some(found),
                expected,
                total,
            } => {
                let more = total + expected.saturating_sub(*found);
                let kib = pages.bytes() >> 10;
                write!(
                    f,
                    "found {found} free {pages}, expected {expected}: echo {more} > \
                     /sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages"
                )
            }
            Error::FileInUse => {
                f.write_str("another process has the file: end it, or use another file")
            }
            Error::NotAFile => f.write_str("found no regular file: expected one"),
            Error::FileMode(mode) => write!(
                f,
                "found a file of mode {mode:04o}, expected 0600, since it has the secrets of \
                 others: chmod 600"
            ),
            Error::FileOwner { owner, own } => write!(
                f,
                "found a file of user {owner}, expected one of user {own}, since it has the \
                 secrets of others: run as user {owner}, or chown {own} it"
            ),
            Error::Guarded => {
                f.write_str("the memory has a guard already: expected one guard per mapping")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Os { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<io::Error> for Error {
    fn from(source: io::Error) -> Error {
        Error::Os {
            doing: "opening the memory",
            source,
        }
    }
}
