//! Sources: where the requests of a worker come from.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::FairMutex;
use crate::protocol::Node;
use crate::transport::Waiting;

/// The work of one turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Datagrams, or pieces of memory, that came.
    pub received: u64,
    /// Bytes that came.
    pub received_bytes: u64,
    /// Datagrams, or pieces of memory, that were sent.
    pub sent: u64,
    /// Bytes that were sent.
    pub sent_bytes: u64,
    /// Frames that came and were not for this node, or were malformed, over ports that hand over
    /// frames.
    pub refused: u64,
}

/// A way for requests to come and answers to leave. Each belongs to one worker.
pub trait Source<S>: Send {
    /// Takes what has come, lets the node answer, and sends the answers. If nothing has come it
    /// waits for at most `wait`, in this way; it may return earlier.
    ///
    /// # Errors
    /// Those after which the source is of no use.
    fn turn(
        &mut self,
        node: &FairMutex<Node<S>>,
        wait: Duration,
        waiting: Waiting,
    ) -> io::Result<Turn>;

    /// The descriptor that is readable when something has come. A worker with several sources
    /// sleeps until one of them is; one without is asked at least every millisecond.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Shows others what it has counted. Called now and then, by its worker.
    fn report(&self) {}
}
