//! A client over a link of datagrams.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use tare_sim::Instant;

use super::link::{with_buffer, with_out, Link};
use super::{Channel, Direct};
use crate::operation::{Operation, SpaceId};
use crate::protocol::{
    Client, Completion, OperationId, OwnedWrite, SubmitError, REQUEST_HEADER, RESPONSE_HEADER,
    SEND_BYTES,
};

/// Most pieces taken at a time. What they make room for can leave in one run, but the node should
/// have something to do meanwhile.
const PIECES_MAX: u32 = 3;

/// Bytes of requests and their answers after which operations that were submitted are sent without
/// waiting for [`Channel::progress`]: the node works on them while the next ones are submitted.
const EARLY_BYTES: u64 = 12_000;

/// Bytes of a request and a response without data.
const MESSAGES_BYTES: u64 = (REQUEST_HEADER + RESPONSE_HEADER) as u64;

/// Bytes of a piece that is worth an answer of its own.
const LONG: usize = 16 << 10;

/// One client over a link.
#[derive(Debug)]
pub struct Remote<L> {
    client: Client,
    link: L,
    /// Bytes of requests and answers that were submitted since something was sent.
    unsent: u64,
    /// The error of an early send, for the next call that can return it.
    failed: Option<io::Error>,
}

impl<L: Link> Remote<L> {
    /// A client over a link that it alone uses.
    pub fn new(client: Client, link: L) -> Remote<L> {
        Remote {
            client,
            link,
            unsent: 0,
            failed: None,
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

    /// Sends if there is enough of it.
    #[inline]
    fn send_early(&mut self) {
        if self.unsent >= EARLY_BYTES {
            self.failed = self.send(Instant::now()).err();
        }
    }

    fn send(&mut self, now: Instant) -> io::Result<()> {
        self.unsent = 0;
        self.failed.take().map_or(Ok(()), Err)?;
        with_out(|out| {
            loop {
                while let Some(run) =
                    (self.link.gathers()).and_then(|least| self.client.transmit_run(now, least))
                {
                    self.link.send_run(&run)?;
                }
                if !self.client.transmit(now, out) {
                    break;
                }
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
        if self.client.outstanding() == 0 {
            tare_memory::prefetch(self);
            self.client.prefetch();
        }
        let id = self.client.submit_soon(space, operation)?;
        self.unsent += match operation {
            Operation::Read { len, .. } => MESSAGES_BYTES + u64::from(*len),
            Operation::Write { data, .. } => MESSAGES_BYTES + data.len() as u64,
            _ => MESSAGES_BYTES,
        };
        self.send_early();
        Ok(id)
    }

    fn submit_write(
        &mut self,
        space: SpaceId,
        write: OwnedWrite,
    ) -> Result<OperationId, (SubmitError, OwnedWrite)> {
        let bytes = MESSAGES_BYTES + write.data.len() as u64;
        let id = self.client.submit_write_soon(space, write)?;
        self.unsent += bytes;
        self.send_early();
        Ok(id)
    }

    fn direct(
        &mut self,
        space: SpaceId,
        operation: &Operation<'_>,
        into: &mut [u8],
    ) -> io::Result<Direct> {
        if self.client.outstanding() > 0 || self.failed.is_some() {
            return Ok(Direct::NotTaken);
        }
        // Among a thousand clients, nothing of one is in a near cache when its turn comes.
        tare_memory::prefetch(self);
        let now = Instant::now();
        let exchange = with_out(|out| {
            let exchange = self.client.start_exchange(now, space, operation, out);
            if exchange.is_some() {
                // After an error the exchange is dropped: its operation has no outcome but the
                // error.
                self.link.send(out)?;
            }
            io::Result::Ok(exchange)
        })?;
        let Some(exchange) = exchange else {
            return Ok(Direct::NotTaken);
        };
        with_buffer(|buffer| {
            let len = self.link.receive(buffer, self.client.exchange_timeout())?;
            if len == 0 {
                let id = self.client.enter_exchange(exchange, operation);
                return Ok(Direct::Submitted(id));
            }
            let (now, datagram) = (self.link.now(), &mut buffer[..len]);
            let client = &mut self.client;
            Ok(
                match client.finish_exchange(now, exchange, operation, datagram, into) {
                    Ok(outcome) => Direct::Ended(outcome),
                    Err(id) => Direct::Submitted(id),
                },
            )
        })
    }

    fn progress(&mut self, wait: Duration) -> io::Result<()> {
        let now = Instant::now();
        // One operation at a time is the first request, of which nothing can be due.
        let awaits = self.client.awaits_answers();
        let is_due = awaits && self.client.next_deadline() <= now;
        if is_due {
            self.client.tick(now);
        }
        self.send(now)?;
        if !is_due && (awaits || !self.client.awaits_answers()) {
            // It has something to tidy up now and then, while the node works; and should nothing
            // have been sent, what waits must end in time all the same.
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
