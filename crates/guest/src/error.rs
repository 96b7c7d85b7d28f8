//! Reasons why there is no guest, or none any more.

use std::path::PathBuf;
use std::time::Duration;
use std::{fmt, io};

/// The reason why a guest could not be built or booted, or why it has ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A program of this machine is absent; the package of Debian that has it.
    Program(String, &'static str),
    /// There is no kernel with modules.
    Kernel(String),
    /// A file could not be read or written.
    File(PathBuf, io::Error),
    /// QEMU's version cannot be read, or does not have the flavour.
    Version(String),
    /// QEMU could not be started, or has ended with a message of its own.
    Qemu(String),
    /// The guest was not ready in time.
    Deadline(Duration, Last),
    /// The guest's kernel has panicked.
    Panic(String, Last),
    /// The guest has no memory left.
    Memory(Last),
    /// The guest has ended without being asked to.
    Ended(Last),
    /// The guest's agent, or QEMU's monitor, sent something that is not of its protocol.
    Protocol(String),
    /// A command could not be started in the guest.
    Command(String),
    /// A guest of this flavour is not what it is called.
    Flavour(String),
}

/// The last lines of a guest's console.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Last(pub Vec<String>);

impl fmt::Display for Last {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return write!(f, "its console is empty");
        }
        write!(f, "the last of its console:")?;
        self.0.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Program(name, package) => {
                write!(f, "{name} is missing: as root: apt-get install {package}")
            }
            Error::Kernel(reason) => write!(f, "{reason}"),
            Error::File(path, error) => write!(f, "{}: {error}", path.display()),
            Error::Version(reason) => write!(f, "{reason}"),
            Error::Qemu(reason) => write!(f, "QEMU: {reason}"),
            Error::Deadline(limit, last) => {
                let seconds = limit.as_secs_f64();
                write!(f, "the guest is not ready after {seconds:.0} s; {last}")
            }
            Error::Panic(reason, last) => {
                write!(f, "the guest's kernel panicked: {reason}; {last}")
            }
            Error::Memory(last) => write!(f, "the guest ran out of memory: give it more; {last}"),
            Error::Ended(last) => write!(f, "the guest ended early; {last}"),
            Error::Protocol(reason) => write!(f, "{reason}"),
            Error::Command(reason) => write!(f, "in the guest: {reason}"),
            Error::Flavour(reason) => write!(f, "{reason}"),
        }
    }
}

impl std::error::Error for Error {}
