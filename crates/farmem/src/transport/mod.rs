//! Transports: how the operations of a client reach a node.

use std::io;
use std::time::Duration;

use crate::operation::{Operation, SpaceId};
use crate::protocol::{Completion, OperationId, SubmitError};

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
}
