//! The client's side.

mod area;
mod channel;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{fence, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tare_memory::SharedMemory;

use self::area::Area;
use self::channel::Pending;
use super::layout::{
    self, flag, to_words, Entry, Layout, CLIENT_WORD, FIRST, LINE, NODE_WORD, READ_INLINE,
};
use super::rendezvous::{self, Message, Received, Shown};
use super::server::timespec;
use super::{ConnectError, Violation, PART_MAX};
use crate::operation::{Address, Error, Guard, Operation, SpaceId, Value};
use crate::protocol::codec::{self, code, status, Head};
use crate::protocol::{Capability, Completion, Failure};
use crate::transport::Channel;

/// Looks at a completion between looks at the clock.
const SPINS: u32 = 512;

/// The time between looks at the socket while the node does not answer.
const LIVENESS: Duration = Duration::from_millis(1);

/// The settings of a [`Client`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// Entries of each ring, a power of two from 16 to 4096: the most requests on the way.
    pub entries: u32,
    /// Bytes of the data area, whole pages from 16 KiB to 64 MiB.
    pub data_bytes: u32,
    /// The most operations that have not completed, those that wait for room included.
    pub operations_max: usize,
    /// The time after which an operation is given up. For one of several parts it begins again
    /// with each answer to a part.
    pub timeout: Duration,
    /// The time for which the client polls before it sleeps; the longest lets it never sleep. A
    /// node may be on the same processor, so that polling keeps it from running.
    pub busy: Duration,
}

impl ClientConfig {
    /// Settings with 256 entries, 2 MiB of data and a timeout of 250 ms, for a client that never
    /// sleeps.
    pub const fn busy() -> ClientConfig {
        ClientConfig {
            entries: 256,
            data_bytes: 2 << 20,
            operations_max: 4096,
            timeout: Duration::from_millis(250),
            busy: Duration::MAX,
        }
    }

    /// The same for a client that sleeps after polling for 20 µs.
    pub const fn blocking() -> ClientConfig {
        ClientConfig {
            busy: Duration::from_micros(20),
            ..ClientConfig::busy()
        }
    }
}

/// A client process's ring to a node, for any number of spaces.
///
/// Operations that are submitted complete in the order of submission. For one at a time,
/// [`Client::call`], [`Client::read_into`] and [`Client::write`] neither allocate nor queue.
pub struct Client {
    socket: OwnedFd,
    memory: SharedMemory,
    layout: Layout,
    config: ClientConfig,
    part_max: u32,
    epoch: u64,
    /// The number of the next entry, and of the first that is not answered.
    next: u32,
    answered: u32,
    /// The entries between these, in order.
    flights: VecDeque<Flight>,
    area: Area,
    /// The operations that are not over, in order, and the number of the first.
    operations: VecDeque<Pending>,
    first: u64,
    /// Those at the end of `operations` that are not in the ring as a whole.
    unsent: usize,
    /// Those at the end that were submitted since the last call of `progress`.
    undated: usize,
    /// The operations that have no completion yet.
    outstanding: usize,
    completions: VecDeque<Completion>,
    buffers: Vec<Vec<u8>>,
    /// The client's word in the header: odd while the node must notify it.
    client_word: u32,
    /// The value of the node's word for which it was notified last.
    notified: u32,
    /// Entries were stored since the last full fence.
    is_fence_due: bool,
    /// The last time that the node answered.
    heard: Instant,
    is_gone: bool,
    violation: Option<Violation>,
}

/// An entry that is not answered.
#[derive(Clone, Copy, Debug)]
struct Flight {
    operation: u64,
    len: u32,
    line: u32,
    /// Lines of the data area that are free again after it.
    lines: u32,
}

impl Client {
    /// Connects to the node at a path.
    ///
    /// # Errors
    /// No node listens there, it refuses, or it is another version.
    pub fn connect(path: &Path, config: &ClientConfig) -> Result<Client, ConnectError> {
        let wanted = Layout::checked(config.entries, config.data_bytes);
        let wanted = wanted.ok_or(ConnectError::Refused {
            refusal: super::Refusal::Sizes,
            version: super::VERSION,
        })?;
        let address = SocketAddrUnix::new(path).map_err(ConnectError::os("the socket's path"))?;
        let kind = SocketType::SEQPACKET;
        let socket = net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
        let socket = socket.map_err(ConnectError::os("socket"))?;
        net::connect(&socket, &address).map_err(ConnectError::os("connecting to the node"))?;
        let failed = |source| ConnectError::Os {
            doing: "greeting the node",
            source,
        };
        match rendezvous::send(&socket, &rendezvous::hello(wanted)) {
            // It has refused already, and said why.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            sent => sent.map_err(failed)?,
        }
        // Longer than for an operation: the node zeroes a region first.
        let patience = config.timeout.saturating_add(Duration::from_secs(2));
        if !wait_readable(&socket, patience).map_err(failed)? {
            return Err(ConnectError::Silent);
        }
        let (message, file) = rendezvous::receive_with(&socket).map_err(failed)?;
        let Some(Message::Welcome {
            version,
            layout,
            epoch,
            refusal,
        }) = message
        else {
            return Err(ConnectError::NotANode);
        };
        if let Some(refusal) = refusal {
            return Err(ConnectError::Refused { refusal, version });
        }
        let file = file.ok_or(ConnectError::NotANode)?;
        let memory = SharedMemory::open(file).map_err(ConnectError::Memory)?;
        if rendezvous::layout(layout) != Some(wanted) || memory.len() != wanted.bytes() {
            return Err(ConnectError::NotANode);
        }
        Ok(Client {
            socket,
            memory,
            layout: wanted,
            config: *config,
            part_max: PART_MAX.min(wanted.data_bytes / 4),
            epoch,
            next: FIRST,
            answered: FIRST,
            flights: VecDeque::with_capacity(wanted.entries as usize),
            area: Area::new(wanted.data_bytes / LINE as u32),
            operations: VecDeque::new(),
            first: 0,
            unsent: 0,
            undated: 0,
            outstanding: 0,
            completions: VecDeque::new(),
            buffers: Vec::new(),
            client_word: 0,
            notified: 0,
            is_fence_due: false,
            heard: Instant::now(),
            is_gone: false,
            violation: None,
        })
    }

    /// Returns the node's epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns true if the node has ended or cut off this client. Then nothing reaches it any more:
    /// connect again.
    pub fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Returns the reason if the node cut off this client.
    pub fn violation(&self) -> Option<Violation> {
        self.violation
    }

    /// Shows the capability of a space to the node; returns whether it is the right one.
    ///
    /// # Errors
    /// [`Failure::NodeGone`], or [`Failure::Timeout`].
    pub fn attach(&mut self, capability: &Capability) -> Result<bool, Failure> {
        let space = capability.space();
        let capability = Shown::new(capability.bytes());
        let message = Message::Attach { space, capability };
        rendezvous::send(&self.socket, &message).map_err(|_| Failure::NodeGone)?;
        let deadline = Instant::now() + self.config.timeout;
        loop {
            match rendezvous::receive(&self.socket) {
                Received::Message(Message::Attached { allowed }) => return Ok(allowed),
                Received::Nothing => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    let is_there = wait_readable(&self.socket, left);
                    if !is_there.map_err(|_| Failure::NodeGone)? {
                        return Err(Failure::Timeout);
                    }
                }
                other => self.received(&other),
            }
            if self.is_gone {
                return Err(Failure::NodeGone);
            }
        }
    }

    /// Fills `out` with the bytes at an address, and waits for it.
    ///
    /// # Errors
    /// As [`Operation::Read`].
    #[inline]
    pub fn read_into(
        &mut self,
        space: SpaceId,
        address: Address,
        out: &mut [u8],
    ) -> Result<(), Failure> {
        let len = u32::try_from(out.len()).map_err(|_| Failure::Refused(Error::Length))?;
        if !self.is_idle() || len > self.part_max {
            let operation = Operation::Read { address, len };
            return self.call_queued(space, &operation, out).map(drop);
        }
        let is_inline = len as usize <= READ_INLINE;
        let mut entry = Entry {
            code: code::READ,
            space: space.0,
            address,
            length: len,
            ..Entry::default()
        };
        let mut lines = 0;
        if !is_inline {
            // Everything is free, so the first line is.
            entry.flags = flag::AREA;
            lines = len.div_ceil(LINE as u32);
        }
        let (status, value) = self.exchange(&entry, lines)?;
        outcome(code::READ, status, value)?;
        if value != u64::from(len) {
            return Err(Failure::OutcomeUnknown);
        }
        let at = self.layout.completion(self.answered.wrapping_sub(1));
        take_read(&self.memory, self.layout, is_inline, at, 0, out);
        Ok(())
    }

    /// Writes bytes, and waits for it.
    ///
    /// # Errors
    /// As [`Operation::Write`].
    #[inline]
    pub fn write(
        &mut self,
        space: SpaceId,
        address: Address,
        data: &[u8],
        guard: Option<Guard>,
    ) -> Result<(), Failure> {
        let operation = Operation::Write {
            address,
            data,
            guard,
        };
        if !self.is_idle() || data.len() > self.part_max as usize {
            return self.call_queued(space, &operation, &mut []).map(drop);
        }
        let head = Head {
            code: code::WRITE,
            address,
            length: data.len() as u32,
            guard,
        };
        self.call_one(space, &head, data).map(drop)
    }

    /// Runs any operation, and waits for it. What is read is put into `out`.
    ///
    /// # Errors
    /// As the operation; [`Error::Length`] if `out` is too short.
    pub fn call(
        &mut self,
        space: SpaceId,
        operation: &Operation<'_>,
        out: &mut [u8],
    ) -> Result<Value, Failure> {
        match *operation {
            Operation::Read { address, len } => {
                let out = out.get_mut(..len as usize);
                let out = out.ok_or(Failure::Refused(Error::Length))?;
                self.read_into(space, address, out)?;
                Ok(Value::Bytes(len))
            }
            Operation::Write {
                address,
                data,
                guard,
            } => {
                self.write(space, address, data, guard)?;
                Ok(Value::None)
            }
            _ if self.is_idle() && *operation != Operation::Fence => {
                let mut body = self.buffers.pop().unwrap_or_default();
                body.clear();
                let head = codec::encode(operation, &mut body);
                let result = self.call_one(space, &head, &body);
                self.recycle(body);
                result
            }
            _ => self.call_queued(space, operation, out),
        }
    }

    /// Returns true if nothing is on the way, so that an entry can be sent past the queues.
    #[inline]
    fn is_idle(&self) -> bool {
        self.operations.is_empty() && !self.is_gone
    }

    /// Runs an operation of one entry.
    fn call_one(&mut self, space: SpaceId, head: &Head, body: &[u8]) -> Result<Value, Failure> {
        let Some((entry, lines)) = self.entry(space, head, body, 0) else {
            return Err(Failure::Refused(Error::Length));
        };
        let (status, value) = self.exchange(&entry, lines)?;
        outcome(head.code, status, value)
    }

    /// Runs an operation by the queues, behind all that is on the way.
    #[inline(never)]
    fn call_queued(
        &mut self,
        space: SpaceId,
        operation: &Operation<'_>,
        out: &mut [u8],
    ) -> Result<Value, Failure> {
        let id = loop {
            match self.submit(space, operation) {
                Ok(id) => break id,
                Err(crate::protocol::SubmitError::Length) => {
                    return Err(Failure::Refused(Error::Length));
                }
                // The node would not run it either.
                Err(crate::protocol::SubmitError::Unauthorized) => {
                    return Err(Failure::Refused(Error::NoSuchSpace));
                }
                Err(crate::protocol::SubmitError::Full) => {
                    self.progress(LIVENESS).map_err(|_| Failure::NodeGone)?;
                }
            }
        };
        loop {
            let ours = self.completions.iter().rposition(|done| done.id == id);
            if let Some(done) = ours.and_then(|n| self.completions.remove(n)) {
                let len = done.data.len().min(out.len());
                out[..len].copy_from_slice(&done.data[..len]);
                self.recycle(done.data);
                return done.outcome;
            }
            if self.progress(LIVENESS).is_err() {
                return Err(Failure::OutcomeUnknown);
            }
        }
    }

    /// Makes the entry of a whole operation or, at `at` > 0 or where it is too long, of a part of
    /// it; puts its data into the data area. Returns the lines that it takes there, or `None` if
    /// there is no room.
    #[inline]
    fn entry(&mut self, space: SpaceId, head: &Head, body: &[u8], at: u32) -> Option<(Entry, u32)> {
        let mut entry = Entry {
            code: head.code,
            space: space.0,
            address: head.address,
            ..Entry::default()
        };
        if let Some(guard) = head.guard {
            entry.flags |= flag::GUARD;
            (entry.body[2], entry.body[3]) = (guard.lock, guard.token);
        }
        if head.code == code::READ {
            let left = head.length - at;
            entry.length = left.min(self.part_max);
            entry.address = head.address.wrapping_add(at.into());
            if entry.length as usize <= READ_INLINE {
                return Some((entry, 0));
            }
            entry.flags |= flag::AREA;
            let (line, lines) = self.area.take(entry.length)?;
            entry.line = line;
            return Some((entry, lines));
        }
        let is_write = head.code == code::WRITE;
        if body.len() <= Entry::inline_max(head.guard.is_some()) {
            let [a, b, c, d] = to_words(body);
            (entry.body[0], entry.body[1]) = (a, b);
            if head.guard.is_none() {
                (entry.body[2], entry.body[3]) = (c, d);
            }
            if is_write {
                entry.length = body.len() as u32;
            } else {
                entry.arguments = body.len() as u8;
            }
            return Some((entry, 0));
        }
        let rest = body.get(at as usize..)?;
        let part = &rest[..rest.len().min(self.part_max as usize)];
        let len = part.len() as u32;
        let (line, lines) = self.area.take(len)?;
        (entry.flags, entry.line) = (entry.flags | flag::AREA, line);
        if is_write {
            entry.length = len;
            if part.len() < body.len() {
                entry.flags |= flag::PART;
                entry.body[0] = u64::from(at) | (body.len() as u64) << 32;
            }
        } else {
            entry.arguments = u8::try_from(len).ok()?;
        }
        let to = self.layout.area(&self.memory, line, len);
        to.and_then(|to| to.copy_from(part))?;
        Some((entry, lines))
    }

    /// Stores an entry, past the queues, and waits for its answer. The data area is then free.
    #[inline]
    fn exchange(&mut self, entry: &Entry, lines: u32) -> Result<(u8, u64), Failure> {
        let number = self.next;
        entry.store(&self.memory, self.layout.submission(number), number);
        self.next = number.wrapping_add(1);
        // Without a fence this may be old; `exchange_slowly` looks again behind one.
        self.notify();
        let at = self.layout.completion(number);
        for _ in 0..SPINS {
            if let Some(first) = layout::first_word(&self.memory, at, number) {
                self.answered = self.next;
                self.area.clear();
                return Ok(((first >> 32) as u8, layout::word(&self.memory, at, 1)));
            }
        }
        self.exchange_slowly(entry, lines)
    }

    #[cold]
    fn exchange_slowly(&mut self, entry: &Entry, lines: u32) -> Result<(u8, u64), Failure> {
        let (number, start) = (self.answered, Instant::now());
        let at = self.layout.completion(number);
        self.heard = start;
        self.is_fence_due = true;
        self.ring_doorbell();
        let mut seen_alive = start;
        loop {
            if let Some(first) = layout::first_word(&self.memory, at, number) {
                self.answered = self.next;
                self.area.clear();
                return Ok(((first >> 32) as u8, layout::word(&self.memory, at, 1)));
            }
            let now = Instant::now();
            let age = now - start;
            if now - seen_alive >= LIVENESS {
                seen_alive = now;
                self.messages();
            }
            if age >= self.config.timeout || self.is_gone {
                break;
            }
            if age >= self.config.busy {
                let left = self.config.timeout - age;
                if self.sleep(left).is_err() {
                    self.is_gone = true;
                }
                continue;
            }
            for _ in 0..SPINS {
                if layout::first_word(&self.memory, at, number).is_some() {
                    break;
                }
                std::hint::spin_loop();
            }
        }
        // From here on it is an operation of the queues whose end was reported.
        self.flights.push_back(Flight {
            operation: self.first,
            len: entry.length,
            line: entry.line,
            lines,
        });
        let failure = self.failure(entry.code, true, start);
        self.operations.push_back(Pending::reported(entry, start));
        self.retract();
        Err(failure)
    }

    /// The way in which an operation ends that gets no answer.
    fn failure(&self, code: u8, is_sent: bool, submitted: Instant) -> Failure {
        if is_sent && !codec::is_idempotent(code) && code != code::FENCE {
            Failure::OutcomeUnknown
        } else if self.is_gone || self.heard <= submitted {
            Failure::NodeGone
        } else {
            Failure::Timeout
        }
    }

    /// Replaces all entries on the way of operations that were reported, from the last to the
    /// first: the node never finds a part of a write without those before it.
    fn retract(&mut self) {
        let numbers = (0..).map(|n: u32| self.answered.wrapping_add(n));
        let flights: Vec<_> = numbers.zip(self.flights.iter()).collect();
        for (number, flight) in flights.into_iter().rev() {
            let index = (flight.operation - self.first) as usize;
            if self.operations.get(index).is_some_and(Pending::is_reported) {
                Entry::retract(&self.memory, self.layout.submission(number), number);
            }
        }
    }

    /// Wakes the node if it asks for that, as far as is known without a fence.
    #[inline]
    fn notify(&mut self) {
        let waits = layout::waits(&self.memory, NODE_WORD);
        if waits & 1 == 1 && waits != self.notified {
            self.notified = waits;
            if rendezvous::send(&self.socket, &Message::Notify).is_err() {
                self.is_gone = true;
            }
        }
    }

    /// Wakes the node if it asks for that. The fence is against the node's between its store of the
    /// word and its last look at the ring: one of the two sees what the other stored.
    fn ring_doorbell(&mut self) {
        if std::mem::take(&mut self.is_fence_due) {
            fence(Ordering::SeqCst);
            self.notify();
        }
    }

    /// Sleeps until the node answers or something comes over the socket, for at most `timeout`.
    fn sleep(&mut self, timeout: Duration) -> io::Result<()> {
        self.client_word = self.client_word.wrapping_add(1) | 1;
        layout::set_waits(&self.memory, CLIENT_WORD, self.client_word);
        fence(Ordering::SeqCst);
        let at = self.layout.completion(self.answered);
        let mut result = Ok(());
        if layout::first_word(&self.memory, at, self.answered).is_none() {
            result = wait_readable(&self.socket, timeout).map(drop);
        }
        self.client_word = self.client_word.wrapping_add(1);
        layout::set_waits(&self.memory, CLIENT_WORD, self.client_word);
        self.messages();
        result
    }

    /// Takes what came over the socket.
    fn messages(&mut self) {
        while !self.is_gone {
            match rendezvous::receive(&self.socket) {
                Received::Nothing => break,
                other => self.received(&other),
            }
        }
    }

    fn received(&mut self, received: &Received) {
        match received {
            Received::Message(Message::Notify | Message::Attached { .. }) | Received::Nothing => {}
            Received::Message(Message::End { violation }) => self.violation = Some(*violation),
            Received::Message(_) | Received::Malformed | Received::End => self.is_gone = true,
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("epoch", &self.epoch)
            .field("next", &self.next)
            .field("answered", &self.answered)
            .field("outstanding", &self.outstanding)
            .field("is_gone", &self.is_gone)
            .finish_non_exhaustive()
    }
}

/// Waits until a socket can be read; returns false if the time is over.
fn wait_readable(socket: &OwnedFd, timeout: Duration) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
    match poll(&mut fds, Some(&timespec(timeout))) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns the outcome of an operation.
fn outcome(code: u8, status: u8, value: u64) -> Result<Value, Failure> {
    match codec::decode_outcome(code, status, value) {
        Some(Ok(value)) => Ok(value),
        Some(Err(error)) => Err(Failure::Refused(error)),
        None if status == status::EXPIRED => Err(Failure::Timeout),
        // The node answered something that this operation cannot have.
        None => Err(Failure::OutcomeUnknown),
    }
}

/// Copies what was read, from a completion or from the data area.
#[inline]
fn take_read(
    memory: &SharedMemory,
    layout: Layout,
    is_inline: bool,
    at: usize,
    line: u32,
    out: &mut [u8],
) {
    if !is_inline {
        if let Some(from) = layout.area(memory, line, out.len() as u32) {
            let _ = from.copy_to(out);
        }
        return;
    }
    let word = |n: usize| layout::word(memory, at, 2 + n).to_le_bytes();
    if let Ok(out) = <&mut [u8; 16]>::try_from(&mut *out) {
        out[..8].copy_from_slice(&word(0));
        out[8..].copy_from_slice(&word(1));
        return;
    }
    for (n, bytes) in out.chunks_mut(8).enumerate() {
        bytes.copy_from_slice(&word(n)[..bytes.len()]);
    }
}
