//! Many clients over one link.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use tare_memory::prefetch;
use tare_sim::{EventQueue, Instant};

use super::link::{with_buffer, Link};
use super::{Channel, Direct};
use crate::operation::{Operation, SpaceId};
use crate::protocol::{
    peek, Client, Completion, Datagrams, OperationId, OwnedWrite, SubmitError, SEND_BYTES,
};

/// A link that many clients of one thread share, each with a space of its own: a hundred thousand
/// sessions need no hundred thousand sockets. Responses find their client by the space.
#[derive(Debug)]
pub struct Shared<L> {
    clients: Rc<RefCell<Clients<L>>>,
}

/// The channel of one client of a [`Shared`] link. Whichever of them makes progress makes it for
/// all.
#[derive(Debug)]
pub struct Member<L> {
    clients: Rc<RefCell<Clients<L>>>,
    index: u32,
}

#[derive(Debug)]
struct Clients<L> {
    link: L,
    clients: Vec<Option<Entry>>,
    free: Vec<u32>,
    spaces: HashMap<SpaceId, u32>,
    /// Clients that may have something to send.
    ready: Vec<u32>,
    /// The deadlines of clients, each at most once but for those that a nearer one replaced.
    timers: EventQueue<u32>,
    out: Datagrams,
    /// Messages for spaces that no client has.
    unmatched: u64,
}

#[derive(Debug)]
struct Entry {
    client: Client,
    space: SpaceId,
    is_ready: bool,
    /// The time of its entry in `timers`.
    timer: Instant,
}

impl<L: Link> Shared<L> {
    /// A link without clients.
    pub fn new(link: L) -> Shared<L> {
        Shared {
            clients: Rc::new(RefCell::new(Clients {
                link,
                clients: Vec::new(),
                free: Vec::new(),
                spaces: HashMap::new(),
                ready: Vec::new(),
                timers: EventQueue::new(),
                out: Datagrams::default(),
                unmatched: 0,
            })),
        }
    }

    /// Adds a client, whose operations are all on this space; `None` if another one has it.
    pub fn join(&self, space: SpaceId, client: Client) -> Option<Member<L>> {
        let mut clients = self.clients.borrow_mut();
        if clients.spaces.contains_key(&space) {
            return None;
        }
        let entry = Some(Entry {
            client,
            space,
            is_ready: false,
            timer: Instant::NEVER,
        });
        let index = match clients.free.pop() {
            Some(index) => {
                clients.clients[index as usize] = entry;
                index
            }
            None => {
                clients.clients.push(entry);
                clients.clients.len() as u32 - 1
            }
        };
        clients.spaces.insert(space, index);
        Some(Member {
            clients: Rc::clone(&self.clients),
            index,
        })
    }

    /// Messages that came for spaces that no client has, such as one that left.
    pub fn unmatched(&self) -> u64 {
        self.clients.borrow().unmatched
    }
}

impl<L> Drop for Member<L> {
    fn drop(&mut self) {
        let mut clients = self.clients.borrow_mut();
        if let Some(entry) = clients.clients[self.index as usize].take() {
            clients.spaces.remove(&entry.space);
        }
        clients.free.push(self.index);
    }
}

impl<L: Link> Clients<L> {
    fn entry(&mut self, index: u32) -> Option<&mut Entry> {
        self.clients.get_mut(index as usize)?.as_mut()
    }

    fn make_ready(&mut self, index: u32) {
        if let Some(Some(entry)) = self.clients.get_mut(index as usize) {
            if !std::mem::replace(&mut entry.is_ready, true) {
                self.ready.push(index);
            }
        }
    }

    fn progress(&mut self, wait: Duration, index: u32) -> io::Result<()> {
        let now = Instant::now();
        while let Some((at, due)) = self.timers.pop(now) {
            // An entry that a nearer one replaced, or that of a client which has left.
            if let Some(entry) = self.entry(due).filter(|entry| entry.timer == at) {
                entry.timer = Instant::NEVER;
                entry.client.tick(now);
                self.make_ready(due);
            }
        }
        self.send(now)?;
        let has_completed = self
            .entry(index)
            .is_some_and(|entry| entry.client.has_completed());
        let wait = match has_completed {
            true => Duration::ZERO,
            false => wait.min(self.timers.next_at().since(now)),
        };
        let came = with_buffer(|buffer| {
            let len = self.link.receive(buffer, wait)?;
            let now = self.link.now();
            self.take(now, &mut buffer[..len], index);
            io::Result::Ok((len > 0).then_some(now))
        })?;
        came.map_or(Ok(()), |now| self.send(now))
    }

    /// Runs one operation of a client without entering it, if nothing of another one is to be sent.
    fn direct(
        &mut self,
        index: u32,
        space: SpaceId,
        operation: &Operation<'_>,
        into: &mut [u8],
    ) -> io::Result<Direct> {
        let Some(Some(entry)) = self.clients.get_mut(index as usize) else {
            return Ok(Direct::NotTaken);
        };
        prefetch(entry);
        if !self.ready.is_empty() {
            return Ok(Direct::NotTaken);
        }
        let now = Instant::now();
        let exchange = entry
            .client
            .start_exchange(now, space, operation, &mut self.out);
        let Some(exchange) = exchange else {
            return Ok(Direct::NotTaken);
        };
        // After an error the exchange is dropped: its operation has no outcome but the error.
        send_out(&mut self.link, &mut self.out)?;
        let wait = entry.client.exchange_timeout();
        // Others may have something to do before that.
        let wait = wait.min(self.timers.next_at().since(now));
        with_buffer(|buffer| {
            let len = self.link.receive(buffer, wait)?;
            let (now, datagram) = (self.link.now(), &mut buffer[..len]);
            let Some(Some(Entry { client, .. })) = self.clients.get_mut(index as usize) else {
                return Ok(Direct::NotTaken);
            };
            let is_one = peek(datagram) == Some((space, len));
            let id = if is_one {
                match client.finish_exchange(now, exchange, operation, datagram, into) {
                    Ok(outcome) => return Ok(Direct::Ended(outcome)),
                    Err(id) => id,
                }
            } else {
                let id = client.enter_exchange(exchange, operation);
                self.take(now, datagram, index);
                id
            };
            self.make_ready(index);
            Ok(Direct::Submitted(id))
        })
    }

    fn send(&mut self, now: Instant) -> io::Result<()> {
        while let Some(index) = self.ready.pop() {
            let Some(Some(entry)) = self.clients.get_mut(index as usize) else {
                continue;
            };
            entry.is_ready = false;
            while entry.client.transmit(now, &mut self.out) {
                if self.out.bytes() >= SEND_BYTES {
                    send_out(&mut self.link, &mut self.out)?;
                }
            }
            let next = entry.client.next_deadline();
            if next < entry.timer {
                entry.timer = next;
                self.timers.push(next, index);
            }
        }
        if !self.out.is_empty() {
            send_out(&mut self.link, &mut self.out)?;
        }
        Ok(())
    }

    /// Gives each client the messages for its space, which is mostly that of the client that waits.
    fn take(&mut self, now: Instant, mut rest: &mut [u8], waiting: u32) {
        while let Some((space, mut messages)) = peek(rest) {
            while let Some((_, more)) = peek(&rest[messages..]).filter(|next| next.0 == space) {
                messages += more;
            }
            let (these, others) = rest.split_at_mut(messages);
            rest = others;
            let is_it = |entry: &mut Entry| entry.space == space;
            let index = match self.entry(waiting).is_some_and(is_it) {
                true => Some(waiting),
                false => self.spaces.get(&space).copied(),
            };
            match index.and_then(|index| Some((index, self.entry(index)?))) {
                Some((index, entry)) => {
                    entry.client.receive(now, these);
                    self.make_ready(index);
                }
                None => self.unmatched += 1,
            }
        }
    }
}

/// Sends datagrams, which are then no longer there, also after an error.
#[inline]
fn send_out<L: Link>(link: &mut L, out: &mut Datagrams) -> io::Result<()> {
    let sent = link.send(out);
    out.clear();
    sent
}

impl<L: Link> Member<L> {
    /// Calls a function with the client.
    pub fn with<R>(&self, call: impl FnOnce(&mut Client) -> R) -> Option<R> {
        let mut clients = self.clients.borrow_mut();
        clients
            .entry(self.index)
            .map(|entry| call(&mut entry.client))
    }
}

impl<L: Link> Channel for Member<L> {
    fn submit(
        &mut self,
        space: SpaceId,
        operation: &Operation<'_>,
    ) -> Result<OperationId, SubmitError> {
        let mut clients = self.clients.borrow_mut();
        // One of a hundred thousand is in no cache: its lines had better come all at once.
        if let Some(entry) = clients.clients.get(self.index as usize) {
            prefetch(entry);
        }
        clients.make_ready(self.index);
        let entry = clients.entry(self.index).ok_or(SubmitError::Full)?;
        debug_assert_eq!(space, entry.space);
        entry.client.submit_soon(space, operation)
    }

    fn submit_write(
        &mut self,
        space: SpaceId,
        write: OwnedWrite,
    ) -> Result<OperationId, (SubmitError, OwnedWrite)> {
        let mut clients = self.clients.borrow_mut();
        clients.make_ready(self.index);
        match clients.entry(self.index) {
            Some(entry) => entry.client.submit_write_soon(space, write),
            None => Err((SubmitError::Full, write)),
        }
    }

    fn direct(
        &mut self,
        space: SpaceId,
        operation: &Operation<'_>,
        into: &mut [u8],
    ) -> io::Result<Direct> {
        let mut clients = self.clients.borrow_mut();
        clients.direct(self.index, space, operation, into)
    }

    fn progress(&mut self, wait: Duration) -> io::Result<()> {
        self.clients.borrow_mut().progress(wait, self.index)
    }

    fn poll(&mut self) -> Option<Completion> {
        self.with(Client::poll).flatten()
    }

    fn recycle(&mut self, buffer: Vec<u8>) {
        self.with(|client| client.recycle(buffer));
    }

    fn outstanding(&self) -> usize {
        self.with(|client| client.outstanding()).unwrap_or(0)
    }

    fn next_deadline(&self) -> Instant {
        self.clients.borrow().timers.next_at()
    }
}
