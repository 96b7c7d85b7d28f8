//! Transports: how the operations of a client reach a node.
//!
//! A [`Channel`] takes operations and gives completions. Over datagrams that is a [`Remote`], a
//! [`Client`](crate::protocol::Client) with a [`Link`], or a [`Shared`], many clients with one
//! link. [`UdpLink`] is a UDP socket, [`XdpLink`](xdp::XdpLink) the frames of an interface, and
//! [`Faulty`] a link that loses, duplicates and reorders.

mod faulty;
mod link;
mod peer;
mod remote;
mod shared;
mod udp;

pub mod shm;
pub mod xdp;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use tare_sim::Instant;

use crate::operation::{Operation, SpaceId, Value};
use crate::protocol::{Completion, Failure, OperationId, OwnedWrite, SubmitError};

pub use faulty::{FaultCounts, Faults, Faulty};
pub use link::{share_processor, Link, Waiting, DATAGRAM_MAX};
pub(crate) use peer::Peer;
pub use remote::Remote;
pub use shared::{Member, Shared};
pub(crate) use udp::UdpSocket;
pub use udp::{UdpLink, SOCKET_BYTES};

/// The result of [`Channel::direct`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direct {
    /// It has ended.
    Ended(Result<Value, Failure>),
    /// It has not ended in time, and goes on as if it had been submitted.
    Submitted(OperationId),
    /// It is to be submitted: the channel has no shorter way for it, or others have not completed.
    NotTaken,
}

/// The way from the sessions of one thread to one node: operations in, completions out.
///
/// Operations of one space run in the order that [`Client::submit`](crate::protocol::Client::submit)
/// promises, over every transport.
pub trait Channel {
    /// Takes an operation on a space. It is sent by the next call of [`Channel::progress`], so that
    /// operations submitted together can share datagrams.
    fn submit(
        &mut self,
        space: SpaceId,
        operation: &Operation<'_>,
    ) -> Result<OperationId, SubmitError>;

    /// Takes a write whose bytes belong to the channel until it has ended; the completion gives
    /// them back. It saves a copy where the channel would have to keep one.
    ///
    /// # Errors
    /// As [`Channel::submit`], with the bytes.
    fn submit_write(
        &mut self,
        space: SpaceId,
        write: OwnedWrite,
    ) -> Result<OperationId, (SubmitError, OwnedWrite)>;

    /// Sends what is to be sent, takes what has come, and does what is due. If nothing has come it
    /// waits for at most `wait`, asleep or busy as the channel was opened.
    ///
    /// # Errors
    /// Those of the operating system, after which the channel is of no use.
    fn progress(&mut self, wait: Duration) -> io::Result<()>;

    /// The next operation that has completed, in the order in which they did.
    fn poll(&mut self) -> Option<Completion>;

    /// Takes back the buffer of a completion, to be used again.
    fn recycle(&mut self, buffer: Vec<u8>);

    /// Operations that have not completed.
    fn outstanding(&self) -> usize;

    /// Runs one operation and waits for its end, if the channel has a way for that which is shorter
    /// than by a completion; what it reads is put into `into`, which is as long.
    ///
    /// # Errors
    /// Those of the operating system, after which the channel is of no use.
    fn direct(
        &mut self,
        space: SpaceId,
        operation: &Operation<'_>,
        into: &mut [u8],
    ) -> io::Result<Direct> {
        let _ = (space, operation, into);
        Ok(Direct::NotTaken)
    }

    /// The descriptor that is readable when something has come, for callers that wait for other
    /// things too; `None` if there is none.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The time by which [`Channel::progress`] is to be called though nothing has come.
    fn next_deadline(&self) -> Instant {
        Instant::NEVER
    }
}

impl<C: Channel + ?Sized> Channel for Box<C> {
    fn submit(
        &mut self,
        space: SpaceId,
        operation: &Operation<'_>,
    ) -> Result<OperationId, SubmitError> {
        (**self).submit(space, operation)
    }

    fn submit_write(
        &mut self,
        space: SpaceId,
        write: OwnedWrite,
    ) -> Result<OperationId, (SubmitError, OwnedWrite)> {
        (**self).submit_write(space, write)
    }

    fn progress(&mut self, wait: Duration) -> io::Result<()> {
        (**self).progress(wait)
    }

    fn poll(&mut self) -> Option<Completion> {
        (**self).poll()
    }

    fn recycle(&mut self, buffer: Vec<u8>) {
        (**self).recycle(buffer);
    }

    fn outstanding(&self) -> usize {
        (**self).outstanding()
    }

    fn direct(
        &mut self,
        space: SpaceId,
        operation: &Operation<'_>,
        into: &mut [u8],
    ) -> io::Result<Direct> {
        (**self).direct(space, operation, into)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        (**self).descriptor()
    }

    fn next_deadline(&self) -> Instant {
        (**self).next_deadline()
    }
}
