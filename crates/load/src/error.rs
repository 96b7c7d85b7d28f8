//! Errors of trials.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::pace::RATES;
use crate::transport::Target;

/// The reason why a trial gave no figures.
#[derive(Debug)]
pub enum Error {
    /// A server cannot be reached, or says what its protocol does not allow.
    Connection {
        /// Its address.
        address: SocketAddr,
        /// The error.
        error: String,
    },
    /// A line of a trace is no request.
    Trace {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The start of the line, and a line that would do.
        error: Unexpected,
    },
    /// An open loop with a rate outside of [`RATES`].
    Rate {
        /// Requests per second.
        found: f64,
    },
    /// The operating system refuses something else.
    System(io::Error),
}

impl Error {
    pub(crate) fn connection(target: &Target, error: &impl ToString) -> Error {
        Error::Connection {
            address: target.address,
            error: error.to_string(),
        }
    }

    pub(crate) fn system(error: impl Into<io::Error>) -> Error {
        Error::System(error.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Connection { address, error } => write!(f, "connection to {address}: {error}"),
            Error::Trace { path, line, error } => write!(f, "{}:{line}: {error}", path.display()),
            Error::Rate { found } => {
                let (least, most) = (RATES.start(), RATES.end());
                write!(
                    f,
                    "found a rate of {found} requests per second, expected {least} to {most}"
                )
            }
            Error::System(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for Error {}

/// Bytes that a protocol does not allow, or a text that is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unexpected {
    found: String,
    expected: String,
}

impl Unexpected {
    /// The start of what a server sent.
    pub(crate) fn bytes(found: &[u8], expected: &str) -> Unexpected {
        let shown = &found[..found.len().min(60)];
        Unexpected {
            found: format!("\"{}\"", shown.escape_ascii()),
            expected: expected.into(),
        }
    }

    /// The words of a server, which the protocol has escaped.
    pub(crate) fn said(found: &str, expected: &str) -> Unexpected {
        Unexpected {
            found: format!("\"{found}\""),
            expected: expected.into(),
        }
    }

    /// The text as it was written.
    pub(crate) fn text(found: &str, expected: &str) -> Unexpected {
        Unexpected {
            found: format!("{found:?}"),
            expected: expected.into(),
        }
    }
}

impl fmt::Display for Unexpected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "found {}, expected {}", self.found, self.expected)
    }
}

impl std::error::Error for Unexpected {}
