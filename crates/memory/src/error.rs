//! Errors.

use std::{fmt, io};

/// The reason why memory could not be shared.
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
            doing: "shared memory",
            source,
        }
    }
}
