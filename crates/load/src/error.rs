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
            Error::System(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for Error {}
