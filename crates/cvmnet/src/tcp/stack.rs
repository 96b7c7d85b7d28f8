//! The stack: connections, listening ports, and what they have in common. Frames that arrive are in
//! [`incoming`], packets that leave in [`outgoing`].

mod incoming;
mod outgoing;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use tare_packet::{ipv4, ipv6, udp};
use tare_sim::Instant;

use crate::tcp::buffer::{Buffer, Chunk};
use crate::tcp::config::{Config, Invalid};
use crate::tcp::connection::{Connection, Failure, Ready, State};
use crate::tcp::headers::Tuple;
use crate::tcp::link::Link;
use crate::tcp::receive_queue::ReceiveQueue;
use crate::tcp::secret::Secret;
use crate::tcp::table::{Id, Table};
use crate::tcp::transmit::{Refused, SendError};

/// Frames and connections, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames received.
    pub received: u64,
    /// Of them, dropped because they were truncated or contradicted themselves.
    pub malformed: u64,
    /// Dropped because they were for others, or of protocols, fragments and extensions that the
    /// stack does not have.
    pub not_for_us: u64,
    /// Dropped because a checksum was wrong.
    pub checksum: u64,
    /// Dropped because they came from an address that no other host has.
    pub source: u64,
    /// SYNs dropped because too many connections waited to be accepted, or there were too many.
    pub overflow: u64,
    /// SYNs answered with a cookie.
    pub cookies_sent: u64,
    /// Connections opened by a cookie.
    pub cookies_taken: u64,
    /// Packets of connections sent; a large one that the device cuts is one.
    pub sent: u64,
    /// Of their payload, bytes.
    pub sent_bytes: u64,
}

/// The reason why a connection cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// The address is not that of one host, or this end has none of its family, or there is no
    /// router to it.
    Unreachable,
    /// There are as many connections as the settings allow.
    Full,
    /// Every dynamic port is in use with this peer.
    Ports,
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ConnectError::Unreachable => "no route to the address; give the network a gateway",
            ConnectError::Full => "too many connections; close some or raise connections_max",
            ConnectError::Ports => "all dynamic ports are in use with this peer; close some",
        })
    }
}

impl std::error::Error for ConnectError {}

struct Listener {
    /// Connections that are being opened.
    opening: usize,
    /// Those that wait to be accepted.
    waiting: VecDeque<Id>,
    /// The time until which acknowledgments may be of cookies.
    cookies_until: Instant,
}

/// The stack's own notes of a connection: where it is in the lists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Book {
    pinned: usize,
    copied: usize,
    /// The time that the stack's timers have for it, not later than its deadline.
    scheduled: Instant,
    is_output: bool,
    is_event: bool,
    is_opening: bool,
    is_time_wait: bool,
}

impl Book {
    pub(crate) fn new() -> Book {
        Book {
            pinned: 0,
            copied: 0,
            scheduled: Instant::NEVER,
            is_output: false,
            is_event: false,
            is_opening: false,
            is_time_wait: false,
        }
    }
}

/// TCP over IPv4 and IPv6 on Ethernet, without I/O: frames and the time go in by
/// [`Stack::receive`], packets come out by [`Stack::poll`]. `B` is the memory that payloads are in,
/// both ways.
///
/// Moments given must not run backwards. No call blocks; each does a bounded amount of work.
pub struct Stack<B> {
    config: Config,
    secret: Secret,
    table: Table<B>,
    listeners: BTreeMap<u16, Listener>,
    link: Link,
    /// All timers of connections: one entry for each, in the order of time.
    timers: BTreeSet<(Instant, u32)>,
    /// Connections that may have something to send.
    output: VecDeque<Id>,
    /// Those that wait for the station of their next hop.
    unresolved: VecDeque<Id>,
    events: VecDeque<Id>,
    /// Those in TIME-WAIT, the oldest first.
    time_wait: VecDeque<Id>,
    /// Bytes of the pool in receive queues.
    pinned: usize,
    /// Bytes of private memory in them.
    copied: usize,
    next_port: u16,
    counters: Counters,
}

impl<B: Buffer> Stack<B> {
    /// Creates a stack.
    ///
    /// # Errors
    /// The first setting that is not possible.
    pub fn new(config: Config, secret: Secret) -> Result<Stack<B>, Invalid> {
        config.check()?;
        Ok(Stack {
            table: Table::new(config.connections_max, secret.clone()),
            listeners: BTreeMap::new(),
            link: Link::new(&config),
            timers: BTreeSet::new(),
            output: VecDeque::new(),
            unresolved: VecDeque::new(),
            events: VecDeque::new(),
            time_wait: VecDeque::new(),
            pinned: 0,
            copied: 0,
            next_port: 0,
            counters: Counters::default(),
            config,
            secret,
        })
    }

    /// Takes connections to a port from now on.
    pub fn listen(&mut self, port: u16) {
        self.listeners.entry(port).or_insert(Listener {
            opening: 0,
            waiting: VecDeque::new(),
            cookies_until: Instant::ZERO,
        });
    }

    /// Takes no more connections to a port, and resets those that were not accepted.
    pub fn unlisten(&mut self, now: Instant, port: u16) {
        let waiting = self.listeners.remove(&port).map(|it| it.waiting);
        for id in waiting.into_iter().flatten() {
            self.abort(now, id);
        }
    }

    /// Returns a connection that was opened by a peer, the oldest first.
    pub fn accept(&mut self, port: u16) -> Option<Id> {
        let listener = self.listeners.get_mut(&port)?;
        let id = listener.waiting.pop_front()?;
        let connection = self.table.get_mut(id)?;
        connection.is_unaccepted = false;
        connection.is_released = false;
        if connection.ready != Ready::default() {
            connection.book.is_event = true;
            push_live(&mut self.events, id, &self.table);
        }
        Some(id)
    }

    /// Opens a connection; it is [`Ready::writable`] when the peer has answered.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn connect(&mut self, now: Instant, to: SocketAddr) -> Result<Id, ConnectError> {
        self.connect_from(now, to, |_| true)
    }

    /// Opens a connection from a local address and port that suit.
    ///
    /// # Errors
    /// As [`Stack::connect`].
    pub fn connect_from(
        &mut self,
        now: Instant,
        to: SocketAddr,
        suits: impl Fn(SocketAddr) -> bool,
    ) -> Result<Id, ConnectError> {
        let is_host = match to.ip() {
            IpAddr::V4(address) => ipv4::is_host(address.to_bits()),
            IpAddr::V6(address) => ipv6::is_host(address.to_bits()),
        };
        let local = self.config.local(to.ip());
        let local = local.filter(|own| is_host && to.port() > 0 && *own != to.ip());
        let local = local.ok_or(ConnectError::Unreachable)?;
        if self.config.next_hop(to.ip()).is_none() {
            return Err(ConnectError::Unreachable);
        }
        if !self.make_room(now) {
            return Err(ConnectError::Full);
        }
        let tuple = self
            .free_tuple(local, to, suits)
            .ok_or(ConnectError::Ports)?;
        let iss = self.secret.initial_sequence(now, &tuple);
        let clock = self.secret.clock_offset(&tuple);
        let connection = Connection::active(now, tuple, iss, clock, &self.config);
        let id = self.table.insert(connection);
        self.touch(now, id.index);
        Ok(id)
    }

    /// Returns a tuple with a port that is free, beginning at one that outsiders cannot guess
    /// (RFC 6056, 3.3.3).
    fn free_tuple(
        &mut self,
        local: IpAddr,
        to: SocketAddr,
        suits: impl Fn(SocketAddr) -> bool,
    ) -> Option<Tuple> {
        let mut tuple = Tuple {
            local,
            remote: to.ip(),
            local_port: 0,
            remote_port: to.port(),
        };
        let ports = u16::MAX - udp::DYNAMIC_FIRST + 1;
        let first = self.secret.first_port(&tuple);
        for _ in 0..ports {
            let port = first.wrapping_add(self.next_port) % ports + udp::DYNAMIC_FIRST;
            self.next_port = self.next_port.wrapping_add(1);
            tuple.local_port = port;
            let is_free = self.table.find(&tuple).is_none() && !self.listeners.contains_key(&port);
            if is_free && suits((local, port).into()) {
                return Some(tuple);
            }
        }
        None
    }

    /// Returns the bytes that have arrived on a connection, where they are; none if it is unknown.
    pub fn readable(&self, id: Id) -> impl Iterator<Item = Chunk<'_, B>> {
        let connection = self.table.get(id);
        connection.into_iter().flat_map(|it| it.rx().chunks())
    }

    /// Returns the number of bytes that can be read.
    pub fn readable_len(&self, id: Id) -> usize {
        self.table.get(id).map_or(0, |it| it.rx().len())
    }

    /// Returns true if all that the peer sent was read, and it sends no more.
    pub fn is_finished(&self, id: Id) -> bool {
        let rx = self.table.get(id).map(Connection::rx);
        rx.is_some_and(|rx| rx.is_finished() && rx.len() == 0)
    }

    /// Returns true if all that the peer sends has arrived, whether it was read or not.
    pub fn is_at_end(&self, id: Id) -> bool {
        let rx = self.table.get(id).map(Connection::rx);
        rx.is_some_and(ReceiveQueue::is_finished)
    }

    /// Drops the first `n` bytes of what has arrived, or all if there are fewer, and returns how
    /// many they were. Buffers without bytes that are left go back to the pool.
    pub fn consume(&mut self, now: Instant, id: Id, n: usize) -> usize {
        let Some(connection) = self.table.get_mut(id) else {
            return 0;
        };
        let n = connection.consume(n, &self.config);
        self.touch(now, id.index);
        n
    }

    /// Sends sealed bytes: the range of a buffer, which is kept until the peer has acknowledged
    /// them.
    ///
    /// # Errors
    /// The reference and the reason, if the connection does not take it.
    pub fn send(
        &mut self,
        now: Instant,
        id: Id,
        buffer: B,
        range: Range<usize>,
    ) -> Result<(), Refused<B>> {
        let Some(connection) = self.table.get_mut(id) else {
            let reason = SendError::Closed;
            return Err(Refused {
                buffer,
                range,
                reason,
            });
        };
        connection.send(now, buffer, range, &self.config)?;
        self.touch(now, id.index);
        Ok(())
    }

    /// Returns the number of references that wait to be sent or acknowledged.
    pub fn references(&self, id: Id) -> usize {
        self.table.get(id).map_or(0, Connection::references)
    }

    /// Sends a FIN behind what was sent. What the peer sends can be read on.
    pub fn shutdown(&mut self, now: Instant, id: Id) {
        if let Some(connection) = self.table.get_mut(id) {
            connection.shutdown(now);
            self.touch(now, id.index);
        }
    }

    /// Gives a connection up: what was sent is delivered if the peer takes it, and nothing is read
    /// any more. The identity is not valid afterwards.
    pub fn close(&mut self, now: Instant, id: Id) {
        let config = &self.config;
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        if connection.state != State::Closed && connection.close(now, config) {
            self.abort(now, id);
        } else {
            connection.is_released = true;
            self.touch(now, id.index);
        }
    }

    /// Resets a connection. The identity is not valid afterwards.
    pub fn abort(&mut self, now: Instant, id: Id) {
        if let Some(connection) = self.table.get_mut(id) {
            connection.is_released = true;
            self.fail(now, id.index, Failure::Aborted);
        }
    }

    /// Lets short segments wait for acknowledgments of earlier ones (Nagle's algorithm), or not.
    pub fn set_no_delay(&mut self, now: Instant, id: Id, no_delay: bool) {
        if let Some(connection) = self.table.get_mut(id) {
            connection.no_delay = no_delay;
            self.touch(now, id.index);
        }
    }

    /// Returns the state of a connection; `None` if it is unknown.
    pub fn state(&self, id: Id) -> Option<State> {
        self.table.get(id).map(|it| it.state)
    }

    /// Returns the reason why a connection ended early; `None` if it did not.
    pub fn failure(&self, id: Id) -> Option<Failure> {
        self.table.get(id)?.failure
    }

    /// Returns the addresses and ports of a connection.
    pub fn tuple(&self, id: Id) -> Option<Tuple> {
        self.table.get(id).map(|it| it.tuple)
    }

    /// Returns a connection to which something has happened, and what. Each is returned once until
    /// something else happens.
    pub fn event(&mut self) -> Option<(Id, Ready)> {
        while let Some(id) = self.events.pop_front() {
            if let Some(connection) = self.table.get_mut(id) {
                connection.book.is_event = false;
                return Some((id, std::mem::take(&mut connection.ready)));
            }
        }
        None
    }

    /// Returns the number of connections, in any state.
    pub fn connections(&self) -> usize {
        self.table.len()
    }

    /// Returns the entries of the longest list of connections that wait for something.
    pub(crate) fn waiting(&self) -> usize {
        let lists = [&self.output, &self.unresolved, &self.events];
        lists.map(VecDeque::len).into_iter().max().unwrap_or(0)
    }

    /// Returns the bytes of the pool that receive queues keep.
    pub fn pinned(&self) -> usize {
        self.pinned
    }

    /// Returns the bytes of private memory that receive queues keep.
    pub fn copied(&self) -> usize {
        self.copied
    }

    /// Returns what was counted.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the time of the next [`Stack::poll`], if nothing else happens before;
    /// [`Instant::NEVER`] if there is none. Polling earlier does no harm.
    pub fn next_timer(&self) -> Instant {
        let connections = self.timers.first().map_or(Instant::NEVER, |timer| timer.0);
        connections.min(self.link.deadline())
    }

    /// Resets a connection at the peer and ends it.
    fn fail(&mut self, now: Instant, index: u32, failure: Failure) {
        let Some(connection) = self.table.at(index) else {
            return;
        };
        let is_known_to_peer = !matches!(connection.state, State::Closed | State::TimeWait);
        let (tuple, mac, reset) = (connection.tuple, connection.mac, connection.reset());
        connection.end(Some(failure));
        if let Some(mac) = mac.filter(|_| is_known_to_peer) {
            self.reply(mac, &tuple, &reset);
        }
        self.settle(now, index);
    }

    /// Makes room for a connection, at the cost of the oldest in TIME-WAIT. Returns whether there
    /// is any.
    fn make_room(&mut self, now: Instant) -> bool {
        while self.table.is_full() {
            if !self.drop_oldest(now) {
                return false;
            }
        }
        true
    }

    /// Ends the oldest connection in TIME-WAIT.
    fn drop_oldest(&mut self, now: Instant) -> bool {
        let Some(id) = self.time_wait.pop_front() else {
            return false;
        };
        let connection = self.table.get_mut(id);
        if let Some(connection) = connection.filter(|it| it.state == State::TimeWait) {
            connection.end(None);
            self.settle(now, id.index);
        }
        true
    }

    /// Brings the stack's lists up to date with a connection that something was done to, and lets
    /// it send.
    fn touch(&mut self, now: Instant, index: u32) {
        self.settle(now, index);
        let id = self.table.id(index);
        if let Some((id, connection)) = id.zip(self.table.at(index)) {
            if !std::mem::replace(&mut connection.book.is_output, true) {
                push_live(&mut self.output, id, &self.table);
            }
        }
    }

    /// Brings the stack's lists up to date with a connection.
    fn settle(&mut self, now: Instant, index: u32) {
        let Some(id) = self.table.id(index) else {
            return;
        };
        let Some(connection) = self.table.at(index) else {
            return;
        };
        let book = &mut connection.book;
        let port = connection.tuple.local_port;
        let pinned = connection.rx.pinned();
        self.pinned = self.pinned - std::mem::replace(&mut book.pinned, pinned) + pinned;
        let copied = connection.rx.copied();
        self.copied = self.copied - std::mem::replace(&mut book.copied, copied) + copied;
        if book.is_opening && connection.state != State::SynReceived {
            book.is_opening = false;
            let is_open = connection.state != State::Closed;
            match self.listeners.get_mut(&port) {
                Some(listener) => {
                    // Lower than the truth after the port was closed and opened again.
                    listener.opening = listener.opening.saturating_sub(1);
                    if is_open {
                        listener.waiting.push_back(id);
                    }
                }
                None if is_open => return self.fail(now, index, Failure::Aborted),
                None => {}
            }
        }
        let Some(connection) = self.table.at(index) else {
            return;
        };
        if connection.state == State::Closed && connection.is_released {
            self.remove(index);
            return;
        }
        let deadline = connection.deadline();
        let book = &mut connection.book;
        if deadline < book.scheduled {
            self.timers.remove(&(book.scheduled, index));
            self.timers.insert((deadline, index));
            book.scheduled = deadline;
        }
        if !connection.is_unaccepted && !book.is_event && connection.ready != Ready::default() {
            book.is_event = true;
            push_live(&mut self.events, id, &self.table);
        }
        let Some(connection) = self.table.at(index) else {
            return;
        };
        let book = &mut connection.book;
        if connection.state == State::TimeWait && !book.is_time_wait {
            book.is_time_wait = true;
            self.time_wait.push_back(id);
            if self.time_wait.len() > self.config.time_wait_max {
                self.drop_oldest(now);
            }
        }
    }

    fn remove(&mut self, index: u32) {
        let id = self.table.id(index);
        let Some(connection) = self.table.remove(index) else {
            return;
        };
        self.timers.remove(&(connection.book.scheduled, index));
        self.pinned -= connection.book.pinned;
        self.copied -= connection.book.copied;
        let listener = self.listeners.get_mut(&connection.tuple.local_port);
        if let Some(listener) = listener.filter(|_| connection.is_unaccepted) {
            listener.waiting.retain(|&waiting| Some(waiting) != id);
        }
    }
}

/// Adds a connection to a list. Those that are gone stay in lists until it is their turn; before a
/// list has twice as many entries as there are connections, they are removed.
fn push_live<B>(list: &mut VecDeque<Id>, id: Id, table: &Table<B>) {
    if list.len() >= 2 * table.len() + 16 {
        list.retain(|&id| table.get(id).is_some());
    }
    list.push_back(id);
}

#[cfg(test)]
mod tests;
