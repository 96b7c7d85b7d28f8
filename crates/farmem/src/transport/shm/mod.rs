//! Remote memory on one machine: a ring in memory that a client process shares with the node.
//!
//! A client connects to a Unix socket. The node makes a sealed region for this process alone and
//! sends it over the socket; no client maps anything of another's. In the region are a submission
//! ring that only the client writes, a completion ring that only the node writes, and a data area.
//! An entry of a ring is one cache line, and its first word, stored last, has its number: an entry
//! is its own doorbell. So an operation of 16 bytes is one line to the node and one line back, and
//! the node looks at one line per process, however many sessions the process has: the space is a
//! field of the entry. Longer data is in the data area, which is given out and taken back in order.
//!
//! - **Order.** The node runs what is in a ring in the order of submission, all spaces alike, which
//!   is more than [`Channel`](super::Channel) promises. Completions come in that order too.
//! - **At most once.** An entry is never sent again. An operation that is given up is *retracted*:
//!   one store replaces its entry by one without effect, so that it ran, is running, or never runs.
//! - **Whole.** A write that is longer than a part is put together at the node and then runs as a
//!   whole. A read that is longer is one read per part, which may see different moments.
//! - **Data.** Each side stores into the data area by ordinary stores or past the caches, whichever
//!   takes less time there ([`Copier`](tare_memory::Copier)): before a store, the processor of the
//!   other side has to give the line up, which on some machines takes longer than all else.
//! - **Sleep.** A side that has polled in vain for a while sets its word in the header to an odd
//!   number, looks once more, and sleeps; the other side then sends a message over the socket. In
//!   between is a full fence on both sides, or each could miss what the other has just stored. The
//!   word counts up, so that each sleep costs one message. There are no eventfds: their flags are
//!   of both sides, and a client that makes one blocking could stop the node. A socket's are not,
//!   it says that the other side is gone, and it is there anyway.
//! - **Hostile clients.** Of an entry, each word is loaded once, and what is checked is the copy.
//!   Nothing that the node needs to know is in shared memory: where it is in each ring, and what it
//!   keeps of a write, is its own. A client that breaks the protocol is cut off, with a
//!   [`Violation`]. Each turn does a bounded amount of work per client: a long allocation is
//!   prepared in parts, with other clients' turns between them. Only what names or maps a long
//!   region, and a write of several parts, run at once: one of 1 GiB takes as long as copying 1 GiB
//!   does. The memory for writes in parts is shared out: one that is left incomplete gives way to
//!   those of others.
//! - **Access.** The socket's file has mode 0600. With [`ServerConfig::authorize`], a process may
//!   use a space only after it has shown the space's capability ([`Client::attach`]).

mod bell;
mod client;
mod config;
mod layout;
mod polled;
mod rendezvous;
mod ring;
mod server;

use std::fmt;
use std::io;

pub use client::{Client, ClientConfig};
pub use config::{Authorize, Counters, ServerConfig};
pub use server::Server;

/// The version of the region and of the messages on the socket.
pub const VERSION: u32 = 1;

/// The most entries that the node takes from one client before it looks at the next one.
pub const BATCH: usize = 16;

/// The longest data of one entry, in bytes.
pub const PART_MAX: u32 = 64 << 10;

macro_rules! reasons {
    ($(#[$doc:meta])* $name:ident { $($(#[$item_doc:meta])* $item:ident = $byte:literal: $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$item_doc])* $item = $byte,)+
        }

        impl $name {
            fn from_byte(byte: u8) -> Option<$name> {
                match byte {
                    $($byte => Some($name::$item),)+
                    _ => None,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $($name::$item => $text,)+
                })
            }
        }
    };
}

reasons! {
    /// The reason why the node refuses a connection.
    Refusal {
        /// Another version.
        Version = 1: "the node has another version of the shared region",
        /// The sizes of the region.
        Sizes = 2: "the sizes of the region are not possible: entries are a power of two from 16 \
            to 4096, data is whole pages from 16 KiB to 64 MiB",
        /// The node has as many clients as it may have.
        Full = 3: "the node has as many clients over shared memory as it may have: one of them must \
            disconnect first",
        /// No memory for another region.
        Memory = 4: "the node has no memory for another region",
    }
}

reasons! {
    /// The reason why the node cut off a client.
    Violation {
        /// An entry has a reserved bit set, or a flag that its operation cannot have.
        Reserved = 1: "an entry has a flag that it cannot have",
        /// An entry has an unknown code or wrong arguments.
        Operation = 2: "an entry is no operation",
        /// The data of an entry is not within the data area, or too long for the entry.
        Area = 3: "the data of an entry is beyond its place",
        /// A part of a write does not follow the part before it.
        Part = 4: "a part of a write does not follow the part before",
        /// A message on the socket is unknown, or came at the wrong time.
        Message = 5: "a message on the socket is unknown",
    }
}

/// The reason why a client could not connect.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// The operating system refused.
    Os {
        /// The operation that failed.
        doing: &'static str,
        /// Its error.
        source: io::Error,
    },
    /// The node did not answer in time.
    Silent,
    /// The node refused.
    Refused {
        /// The reason.
        refusal: Refusal,
        /// The node's version.
        version: u32,
    },
    /// The other side is no node, or the region is not what was agreed.
    NotANode,
    /// The region could not be mapped.
    Memory(tare_memory::Error),
}

impl ConnectError {
    fn os(doing: &'static str) -> impl Fn(rustix::io::Errno) -> ConnectError {
        move |errno| ConnectError::Os {
            doing,
            source: errno.into(),
        }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::Os { doing, source } => {
                write!(f, "{doing}: {source}")?;
                match source.kind() {
                    // No socket at the path, or one whose node has ended.
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                        f.write_str("; start one with `tare memory serve --shm PATH`")
                    }
                    _ => Ok(()),
                }
            }
            ConnectError::Silent => f.write_str("the node did not answer in time: is it running?"),
            ConnectError::Refused { refusal, version } => {
                write!(f, "{refusal} (node: version {version}, this: {VERSION})")
            }
            ConnectError::NotANode => f.write_str(
                "what answers at this socket is no memory node: expected one of version 1",
            ),
            ConnectError::Memory(error) => error.fmt(f),
        }
    }
}

impl From<ConnectError> for io::Error {
    fn from(error: ConnectError) -> io::Error {
        let kind = match &error {
            ConnectError::Os { source, .. } => source.kind(),
            ConnectError::Silent => io::ErrorKind::TimedOut,
            ConnectError::Refused { .. } => io::ErrorKind::ConnectionRefused,
            ConnectError::NotANode => io::ErrorKind::InvalidData,
            ConnectError::Memory(_) => io::ErrorKind::OutOfMemory,
        };
        io::Error::new(kind, error)
    }
}

// Each text has its cause in it, so that no source has to repeat it.
impl std::error::Error for ConnectError {}
