//! The guest's side of the network device: a driver that the device cannot lead astray.

mod driver;
mod header;
mod notify;
mod queue;
mod stack;

use std::fmt;

pub use driver::{Counters, Driver, Received, SendError, Settings, PIECES_MAX};
pub use header::{Checksum, HeaderError, NetHeader, Protocol, Segments, NET_HEADER};
pub use notify::{Doorbell, ExitCounts, Notification};
pub use queue::Direction;

/// The reason why a driver has given its device up. All are things that no device does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The used index says that more chains were used than the device had.
    UsedIndex {
        /// The queue.
        queue: Direction,
        /// The index.
        found: u16,
        /// The index before.
        last: u16,
        /// Chains that the device had.
        in_flight: u16,
    },
    /// An element of the used ring names a descriptor that does not exist.
    Id {
        /// The queue.
        queue: Direction,
        /// The id.
        id: u32,
        /// Descriptors of the queue.
        size: u16,
    },
    /// An element of the used ring names a descriptor that is not the first of a chain of the
    /// device's.
    NotInFlight {
        /// The queue.
        queue: Direction,
        /// The id.
        id: u16,
    },
    /// An element of the used ring says that more bytes were written than the chain has.
    Length {
        /// The queue.
        queue: Direction,
        /// The id.
        id: u16,
        /// The bytes.
        found: u32,
        /// Bytes of the chain that the device may write.
        max: u32,
    },
    /// A frame claims to continue in further buffers, which was not negotiated.
    BufferCount {
        /// The number of buffers.
        found: u16,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::UsedIndex {
                queue,
                found,
                last,
                in_flight,
            } => write!(
                f,
                "{queue} queue: found used index {found} after {last}, expected at most \
                 {in_flight} more"
            ),
            Fault::Id { queue, id, size } => write!(
                f,
                "{queue} queue: found descriptor {id} in the used ring, expected one below {size}"
            ),
            Fault::NotInFlight { queue, id } => write!(
                f,
                "{queue} queue: found descriptor {id} in the used ring, which the device does not \
                 have"
            ),
            Fault::Length {
                queue,
                id,
                found,
                max,
            } => write!(
                f,
                "{queue} queue: found {found} bytes written to descriptor {id}, expected at most \
                 {max}"
            ),
            Fault::BufferCount { found } => write!(
                f,
                "receive queue: found a frame in {found} buffers, expected 1"
            ),
        }?;
        f.write_str("; the device is given up until it is reset")
    }
}

impl std::error::Error for Fault {}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::Receive => "receive",
            Direction::Transmit => "transmit",
        })
    }
}
