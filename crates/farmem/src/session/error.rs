//! The errors of sessions.

use std::fmt;
use std::io;

use crate::memory::PAGES_MAX;
use crate::operation::{self, PageSize};
use crate::protocol::{Failure, SubmitError};

/// The reason why a call of a session did not succeed.
#[derive(Debug)]
pub enum Error {
    /// The operation failed.
    Failed(Failure),
    /// One operation of a batch failed; the others may have succeeded.
    Part {
        /// Its index within the batch, the first that failed.
        index: usize,
        /// The reason.
        failure: Failure,
    },
    /// An allocation, a free or a region has no pages or too many, which the node refused with
    /// [`Length`](operation::Error::Length).
    Pages {
        /// The bytes.
        bytes: u64,
        /// The pages; those that are at the address if `None`, which only the node knows.
        page: Option<PageSize>,
    },
    /// The operation was not taken.
    Submit(SubmitError),
    /// The operating system failed; the session is of no use any more.
    Io(io::Error),
    /// The address of a node that cannot be used, and what is expected.
    Address {
        /// The address.
        address: String,
        /// The expectation.
        expected: &'static str,
    },
    /// The host of a node has no address.
    Host {
        /// The host.
        host: String,
        /// The reason.
        error: io::Error,
    },
}

impl Error {
    /// Returns the failure of the operation, if that is what the error is.
    pub fn failure(&self) -> Option<Failure> {
        match self {
            Error::Failed(failure) | Error::Part { failure, .. } => Some(*failure),
            Error::Pages { .. } => Some(Failure::Refused(operation::Error::Length)),
            _ => None,
        }
    }

    /// Returns the error of an operation on so many bytes in pages: with their number, if that is
    /// the reason.
    pub(super) fn on_pages(self, bytes: u64, page: Option<PageSize>) -> Error {
        let least = page.unwrap_or(PageSize::Small);
        let is_number = bytes == 0 || bytes.div_ceil(least.bytes()) > PAGES_MAX;
        match self.failure() {
            Some(Failure::Refused(operation::Error::Length)) if is_number => {
                Error::Pages { bytes, page }
            }
            _ => self,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Failed(failure) => failure.fmt(f),
            Error::Part { index, failure } => {
                write!(f, "operation {index} of the batch: {failure}")
            }
            Error::Pages { bytes, page } => {
                let found = match page {
                    Some(page) => bytes.div_ceil(page.bytes()).to_string(),
                    None => format!("{bytes} bytes"),
                };
                write!(
                    f,
                    "at least one and at most 2^{} pages (found {found}); use larger pages or \
                     several allocations",
                    PAGES_MAX.ilog2()
                )
            }
            Error::Submit(error) => error.fmt(f),
            Error::Io(error) => write!(f, "the transport failed: {error}"),
            Error::Address { address, expected } => {
                write!(f, "the node's address is {address:?}, expected {expected}")
            }
            Error::Host { host, error } => write!(f, "{host} has no address: {error}"),
        }
    }
}

// The text has the reason in it, so there is no source: a chain would say it twice.
impl std::error::Error for Error {}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        Error::Failed(failure)
    }
}

impl From<SubmitError> for Error {
    fn from(error: SubmitError) -> Error {
        Error::Submit(error)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Io(error)
    }
}
