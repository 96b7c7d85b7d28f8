//! Errors of trials.

use std::{fmt, io};

use crate::transport::Target;

/// The reason why a trial gave no figures.
#[derive(Debug)]
pub enum Error {
    /// A server cannot be reached, or says what its protocol does not allow.
    Connection {
        /// Its address.
        address: std::net::SocketAddr,
        /// The error.
        error: String,
    },
    /// A line of a trace is no request.
    Trace {
        /// The file.
        path: std::path::PathBuf,
        /// The line, from 1.
        line: u64,
        /// The start of the line.
        found: String,
        /// A line that would do.
        expected: &'static str,
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
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Connection { address, error } => write!(f, "connection to {address}: {error}"),
            Error::Trace {
                path,
                line,
                found,
                expected,
            } => {
                let path = path.display();
                write!(f, "{path}:{line}: found {found:?}, expected {expected}")
            }
            Error::System(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for Error {}
