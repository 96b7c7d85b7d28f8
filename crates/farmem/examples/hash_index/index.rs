//! The index that the workload sees, wherever its entries are.

use std::fmt;
use std::time::Duration;

use super::layout::Value;

/// The time for which a node or server may be away before the program gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Something to do, of which many may be outstanding, but one for each key.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) key: u64,
    /// The value to insert, or to replace the one that is there; the key is looked up if `None`.
    pub(crate) put: Option<Value>,
}

/// The end of a request.
pub(crate) struct Done {
    /// The number that the caller gave it.
    pub(crate) ticket: usize,
    /// The value that was there before; `None` if the key had none.
    pub(crate) value: Option<Value>,
    /// False if the value before a put is not known: its answer was lost.
    pub(crate) is_known: bool,
}

/// Events that the index handled.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Events {
    /// Writes of unknown outcome that had happened, as reading showed.
    pub(crate) had_happened: u64,
    /// Writes of unknown outcome that had not happened, and were repeated.
    pub(crate) had_not: u64,
    /// Requests repeated that had changed nothing.
    pub(crate) repeated: u64,
    /// Times that the lock was taken anew, or the server connected to, because of a failure.
    pub(crate) resumed: u64,
}

/// A hash index somewhere else.
pub(crate) trait Index {
    /// Makes it anew, empty, with room for so many entries.
    fn create(&mut self, entries: u64) -> Result<(), Error>;

    /// Takes a request, without waiting.
    fn submit(&mut self, ticket: usize, request: Request);

    /// Appends requests that have ended; waits for one for some time if there is none.
    fn poll(&mut self, done: &mut Vec<Done>) -> Result<(), Error>;

    /// Returns what happened until now.
    fn events(&self) -> Events;

    /// Returns the bytes that the index takes there, if they are known.
    fn bytes(&mut self) -> Option<u64>;
}

/// The reason why the program cannot go on.
#[derive(Debug)]
pub(crate) struct Error(pub(crate) String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Error {
        Error(error.to_string())
    }
}

impl From<tare_farmem::session::Error> for Error {
    fn from(error: tare_farmem::session::Error) -> Error {
        Error(error.to_string())
    }
}
