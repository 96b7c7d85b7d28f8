//! A client over a link of datagrams.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use tare_sim::Instant;

use super::link::{with_buffer, with_out, Link};
use super::Channel;
use crate::operation::{Operation, SpaceId};
use crate::protocol::{Client, Completion, OperationId, SubmitError};

/// Bytes of datagrams after which they are handed to the link: about a run of them, so that the
/// other side works on it while the next one is written.
pub(crate) const SEND_BYTES: usize = 62 << 10;

/// Most pieces taken at a time. What they make room for can leave in one run, but the node should
/// have something to do meanwhile.
const PIECES_MAX: u32 = 3;

/// Bytes of a piece that is worth an answer of its own.
const LONG: usize = 16 << 10;

/// One client over a link.
#[derive(Debug)]
pub struct Remote<L> {
    client: Client,
    link: L,
    /// The time of the first operation that was submitted since the last progress. Those after it
    /// get the same, since reading the clock for each would be a tenth of their cost.
    submitted: Option<Instant>,
}

impl<L: Link> Remote<L> {
    /// A client over a link that it alone uses.
    pub fn new(client: Client, link: L) -> Remote<L> {
        Remote {
            client,
            link,
            submitted: None,
        }
    }

    /// Returns the client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the link.
    pub fn link(&self) -> &L {
        &self.link
    }

    /// Returns the link, for callers that use it between two operations.
    pub fn link_mut(&mut self) -> &mut L {
        &mut self.link
    }

    /// Takes what comes within `wait`, and what is there then; returns the time if anything came.
    #[inline]
    fn receive(&mut self, buffer: &mut [u8], mut wait: Duration) -> io::Result<Option<Instant>> {
        let mut last = None;
        for _ in 0..PIECES_MAX {
            let len = self.link.receive(buffer, wait)?;
            if len == 0 {
                break;
            }
            let now = self.link.now();
            self.client.receive(now, &mut buffer[..len]);
            (last, wait) = (Some(now), Duration::ZERO);
            if self.client.outstanding() == 0 || len >= LONG {
                break;
            }
        }
        Ok(last)
    }

    fn send(&mut self, now: Instant) -> io::Result<()> {
        with_out(|out| {
            while self.client.transmit(now, out) {
                if out.bytes() >= SEND_BYTES {
                    self.link.send(out)?;
                    out.clear();
                }
            }
            match out.is_empty() {
                true => Ok(()),
                false => self.link.send(out),
            }
        })
    }
}

impl<L: Link> Channel for Remote<L> {
    fn submit(
        &mut self,
        space: SpaceId,
        operation: &Operation<'_>,
    ) -> Result<OperationId, SubmitError> {
        let submitted = &mut self.submitted;
        let clock = || *submitted.get_or_insert_with(Instant::now);
        self.client.submit_by(clock, space, operation)
    }

    fn progress(&mut self, wait: Duration) -> io::Result<()> {
        let now = Instant::now();
        self.submitted = None;
        let is_due = self.client.next_deadline() <= now;
        if is_due {
            self.client.tick(now);
        }
        self.send(now)?;
        if !is_due {
            // It has something to tidy up now and then, while the node works.
            self.client.tick(now);
        }
        let wait = match self.client.has_completed() {
            true => Duration::ZERO,
            false => wait.min(self.client.next_deadline().since(now)),
        };
        let Some(now) = with_buffer(|buffer| self.receive(buffer, wait))? else {
            return Ok(());
        };
        // The caller may now wait for the descriptor: what the answers made room for must not wait
        // with it.
        self.send(now)
    }

    fn poll(&mut self) -> Option<Completion> {
        self.client.poll()
    }

    fn recycle(&mut self, buffer: Vec<u8>) {
        self.client.recycle(buffer);
    }

    fn outstanding(&self) -> usize {
        self.client.outstanding()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.link.descriptor()
    }

    fn next_deadline(&self) -> Instant {
        self.client.next_deadline()
    }
}
