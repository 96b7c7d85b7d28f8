//! Errors of opening a port.

use std::fmt;
use std::io;
use std::path::PathBuf;

use tare_packet::pcap;

/// The reason why a port could not be opened, and what to do about it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// There is no interface of this name here.
    NoSuchInterface {
        /// The number asked for.
        name: String,
        /// The interfaces of this network namespace.
        present: Vec<String>,
    },
    /// There is no device at this PCI address.
    NoSuchDevice {
        /// The whole address.
        address: String,
        /// The PCI devices here that have a network interface: address and name.
        present: Vec<(String, String)>,
    },
    /// The device at this PCI address has no network interface.
    NoInterfaceOfDevice {
        /// The whole address.
        address: String,
        /// The driver that holds the device, if one does.
        driver: Option<String>,
    },
    /// The interface has fewer queues.
    NoSuchQueue {
        /// The interface.
        interface: String,
        /// The queue asked for, from 0.
        queue: u32,
        /// The number of queues.
        queues: u32,
    },
    /// The interface has more queues than one, of which only one would be received from.
    SeveralQueues {
        /// The interface.
        interface: String,
        /// The number of queues.
        queues: u32,
    },
    /// The memory of the pool is not cut as AF_XDP wants it.
    UnfitPool {
        /// Slots of the pool.
        slots: usize,
        /// Bytes of a slot.
        capacity: usize,
    },
    /// No kind of port asked for works on this interface.
    Refused {
        /// The interface.
        interface: String,
        /// The kinds tried, in their order.
        refused: Vec<Refused>,
    },
    /// A capture could not be read or made.
    Capture {
        /// Its file.
        path: PathBuf,
        /// The reason.
        source: pcap::Error,
    },
    /// The operating system said no.
    Os {
        /// To what.
        doing: String,
        /// The error of the system.
        source: io::Error,
    },
}

/// A kind of port that was tried and did not work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The kind, such as "AF_XDP zero-copy".
    pub kind: &'static str,
    /// The reason.
    pub why: String,
}

impl Error {
    pub(crate) fn os(doing: impl Into<String>, source: io::Error) -> Error {
        Error::Os {
            doing: doing.into(),
            source,
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.why)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoSuchInterface { name, present } => {
                write!(f, "there is no interface \"{name}\" in this network namespace")?;
                match present.as_slice() {
                    [] => write!(f, ", nor any other"),
                    _ => write!(f, "; there are {}", present.join(", ")),
                }
            }
            Error::NoSuchDevice { address, present } => {
                write!(f, "there is no PCI device {address}")?;
                if present.is_empty() {
                    return write!(
                        f,
                        ", nor another with a network interface: give an interface by its name"
                    );
                }
                write!(f, "; those with a network interface are")?;
                for (n, (address, name)) in present.iter().enumerate() {
                    let comma = if n == 0 { "" } else { "," };
                    write!(f, "{comma} {address} ({name})")?;
                }
                Ok(())
            }
            Error::NoInterfaceOfDevice { address, driver } => {
                write!(f, "the PCI device {address} has no network interface: ")?;
                match driver {
                    Some(driver) => write!(f, "its driver is {driver}; bind it to its network driver"),
                    None => write!(f, "no driver holds it; load its network driver"),
                }
            }
            Error::NoSuchQueue {
                interface,
                queue,
                queues,
            } => write!(
                f,
                "{interface} has no queue {queue}, only 0 to {}; use fewer workers, or give it more with `ethtool -L {interface}`",
                queues.saturating_sub(1)
            ),
            Error::SeveralQueues { interface, queues } => write!(
                f,
                "{interface} has {queues} queues, expected one; give it one with `ethtool -L {interface} combined 1`"
            ),
            Error::UnfitPool { slots, capacity } => write!(
                f,
                "AF_XDP needs a pool with Layout::PowerOfTwo, at least 256 slots and a capacity of 2048 to 32768, a power of two; this has {slots} of {capacity}"
            ),
            Error::Refused { interface, refused } => {
                write!(f, "no port could be opened on {interface}")?;
                for refused in refused {
                    write!(f, "; {refused}")?;
                }
                Ok(())
            }
            Error::Capture { path, source } => write!(f, "{}: {source}", path.display()),
            Error::Os { doing, source } => {
                write!(f, "{doing}: {source}")?;
                match source.kind() {
                    io::ErrorKind::PermissionDenied => {
                        write!(f, " (run as root, or with CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF)")
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Os { source, .. } => Some(source),
            Error::Capture { source, .. } => Some(source),
            _ => None,
        }
    }
}
