//! The client's side: operations in, requests out; responses in, completions out.

mod answer;
mod exchange;
mod interface;
mod operations;
mod order;
mod path;
mod requests;
mod send;

use std::collections::VecDeque;
use std::time::Duration;

use tare_sim::Instant;

use self::operations::{Active, First, Handle, Operations};
use self::order::{Footprint, Order};
use self::path::{Bounds, Path};
use self::requests::{Attempt, Requests};
use self::send::Segments;
use super::aead::Capability;
use super::codec::{self, code, status, Head};
use super::datagrams::{Datagrams, NETWORK_DATAGRAM};
use super::message::{Malformed, Response, MESSAGE_MAX};
use super::node::DATAGRAM_MIN;
use super::protection::Protection;
use crate::operation::{has_long_name, is_range, Error, Operation, SpaceId, Value};
pub use exchange::Exchange;
pub use interface::{
    ClientConfig, ClientCounters, Completion, Failure, OperationId, OwnedWrite, SubmitError,
};
pub use send::Run;

/// A client of one node, for any number of spaces, without sockets and clocks.
///
/// After each call of [`Client::submit`], [`Client::receive`] and [`Client::tick`],
/// [`Client::transmit`] is to be called until it returns false, and completions are to be polled.
/// Times must not run backwards.
#[derive(Debug)]
pub struct Client {
    config: ClientConfig,
    /// The longest datagram, if the node's is not less.
    datagram_bytes: usize,
    protection: Protection,
    node: Option<NodeInfo>,
    /// The epoch that the operations sent belong to; 0 if none.
    epoch: u64,
    hello: Hello,
    heard: Option<Instant>,
    /// The last time that a part of a long operation was answered, with others of it left; of a
    /// write, with the time that the node may take to copy it: 1 ns for each byte.
    progress: Instant,
    operations: Operations,
    /// Some operations were submitted at a time that is not known yet.
    is_unstamped: bool,
    order: Order,
    /// Operations of which something is to be sent for the first time.
    ready: VecDeque<Handle>,
    requests: Requests,
    path: Path,
    /// The window was full, and has not had room for a burst since.
    is_blocked: bool,
    /// The last round trip of what is being received, in nanoseconds, and the bytes of all of it.
    answered: (u64, u64),
    completions: VecDeque<Completion>,
    /// The segments that are sent as a run.
    run: Segments,
    /// Empty buffers and lists, for their memory.
    buffers: Vec<Vec<u8>>,
    blockers: Vec<u32>,
    counters: ClientCounters,
}

/// The node as it described itself.
#[derive(Clone, Copy, Debug)]
struct NodeInfo {
    datagram_bytes: usize,
    /// The time after which an operation is given up, this client's if that is less.
    timeout_ns: u64,
    write_max: u64,
    /// A time of the node, and when it came.
    time_ns: u64,
    at: Instant,
    /// The time after which that is too old to reckon with.
    reckon_ns: u64,
}

impl NodeInfo {
    /// Returns the node's time at a moment, in nanoseconds.
    #[inline]
    fn time_at(&self, now: Instant) -> u64 {
        let passed_ns = now.as_nanos().saturating_sub(self.at.as_nanos());
        self.time_ns.saturating_add(passed_ns)
    }

    /// Returns true if nothing came for so long that [`NodeInfo::time_at`] may be wrong by more
    /// than the node bears.
    #[inline]
    fn is_silent(&self, now: Instant) -> bool {
        now.as_nanos().saturating_sub(self.at.as_nanos()) > self.reckon_ns
    }
}

/// Timeouts of the node after which its time is asked for before the next change. Two clocks, each
/// of which runs wrong by up to 500 millionths, as far as NTP corrects one, are then apart by a
/// quarter of such a timeout; the node takes requests from one ahead to three behind.
const RECKON_TIMEOUTS: u64 = 256;

/// The question for epoch, time and limits.
#[derive(Clone, Copy, Debug)]
struct Hello {
    /// 0 until it is first sent.
    id: u64,
    /// The space of the operation that it was first sent for, so that clients which share a socket
    /// can tell their answers apart.
    space: SpaceId,
    attempts: u32,
    next: Instant,
}

const HELLO: Hello = Hello {
    id: 0,
    space: SpaceId(0),
    attempts: 0,
    next: Instant::ZERO,
};

impl Client {
    /// A client that has sent nothing.
    pub fn new(config: ClientConfig) -> Client {
        let datagram_bytes = config.datagram_bytes.unwrap_or(NETWORK_DATAGRAM);
        let datagram_bytes = datagram_bytes.clamp(DATAGRAM_MIN, MESSAGE_MAX);
        let config = ClientConfig {
            operations_max: config.operations_max.clamp(1, 1 << 20),
            requests_max: config.requests_max.clamp(1, 1 << 20),
            ..config
        };
        Client {
            protection: Protection::with_keys_max(config.authentication, config.keys_max),
            node: None,
            epoch: 0,
            hello: HELLO,
            heard: None,
            progress: Instant::ZERO,
            operations: Operations::new(),
            is_unstamped: false,
            order: Order::default(),
            ready: VecDeque::new(),
            requests: Requests::new(config.first_id),
            path: Path::new(Bounds {
                timeout_initial_ns: nanos(config.retransmission_initial),
                timeout_min_ns: nanos(config.retransmission_min),
                timeout_max_ns: nanos(config.retransmission_max),
                queueing_ns: nanos(config.queueing),
                window_max: config.window_bytes_max,
                datagram: datagram_bytes as u64,
            }),
            is_blocked: false,
            answered: (0, 0),
            completions: VecDeque::new(),
            run: Segments::default(),
            buffers: Vec::new(),
            blockers: Vec::new(),
            counters: ClientCounters::default(),
            datagram_bytes,
            config,
        }
    }

    /// Lets the client act for the space of a capability, in place of one that it had for that
    /// space. Without encryption it has no effect, and none is needed.
    pub fn authorize(&mut self, capability: Capability) {
        self.protection.authorize(capability);
    }

    /// Takes an operation on a space.
    ///
    /// It runs after all operations of that space that were submitted before it, have not completed
    /// and are on one of its pages of 4 KiB, if it or they change something. [`Operation::Lock`],
    /// [`Operation::Unlock`], [`Operation::Fence`] and those on spaces and regions, but for
    /// [`Operation::Find`], run after all that were submitted before, and before all that are
    /// submitted after them. [`Operation::Find`] and an [`Operation::Alloc`] without an address are
    /// ordered with those alone.
    pub fn submit(
        &mut self,
        now: Instant,
        space: SpaceId,
        operation: &Operation<'_>,
    ) -> Result<OperationId, SubmitError> {
        self.stamp(now);
        self.take(now, space, operation)
    }

    /// The same at a time that is not known yet: that of the next call of [`Client::transmit`].
    #[inline]
    pub(crate) fn submit_soon(
        &mut self,
        space: SpaceId,
        operation: &Operation<'_>,
    ) -> Result<OperationId, SubmitError> {
        let id = self.take(Instant::NEVER, space, operation)?;
        self.is_unstamped = true;
        Ok(id)
    }

    /// Takes a write whose bytes it keeps until the write has ended, without a copy of them. The
    /// completion gives them back.
    ///
    /// # Errors
    /// Those of [`Client::submit`], with the bytes.
    pub fn submit_write(
        &mut self,
        now: Instant,
        space: SpaceId,
        write: OwnedWrite,
    ) -> Result<OperationId, (SubmitError, OwnedWrite)> {
        self.stamp(now);
        self.take_write(now, space, write)
    }

    /// The same at a time that is not known yet.
    #[inline]
    pub(crate) fn submit_write_soon(
        &mut self,
        space: SpaceId,
        write: OwnedWrite,
    ) -> Result<OperationId, (SubmitError, OwnedWrite)> {
        let id = self.take_write(Instant::NEVER, space, write)?;
        self.is_unstamped = true;
        Ok(id)
    }

    fn take_write(
        &mut self,
        submitted: Instant,
        space: SpaceId,
        write: OwnedWrite,
    ) -> Result<OperationId, (SubmitError, OwnedWrite)> {
        let OwnedWrite { address, guard, .. } = write;
        if let Err(error) = self.check(space, (address, write.data.len() as u64)) {
            return Err((error, write));
        }
        let head = Head {
            code: code::WRITE,
            address,
            // It is at most `LEN_MAX`.
            length: write.data.len() as u32,
            guard,
        };
        let operation = Operation::Write {
            address,
            data: &[],
            guard,
        };
        let footprint = Footprint::new(&operation, &head);
        Ok(self.enter(submitted, space, head, footprint, write.data, true))
    }

    fn take(
        &mut self,
        submitted: Instant,
        space: SpaceId,
        operation: &Operation<'_>,
    ) -> Result<OperationId, SubmitError> {
        let range = match *operation {
            Operation::Read { address, len } => {
                // As below, in fewer steps.
                self.check(space, (address, len.into()))?;
                let head = Head::of_read(address, len);
                let footprint = Footprint::new(operation, &head);
                return Ok(self.enter(submitted, space, head, footprint, Vec::new(), false));
            }
            Operation::Write { address, data, .. } => (address, data.len() as u64),
            _ if has_long_name(operation) => {
                self.check(space, (0, 0))?;
                return Ok(self.refuse(space, Error::Name));
            }
            _ => (0, 0),
        };
        self.check(space, range)?;
        let mut data = self.buffers.pop().unwrap_or_default();
        let head = codec::encode(operation, &mut data);
        let footprint = Footprint::new(operation, &head);
        Ok(self.enter(submitted, space, head, footprint, data, false))
    }

    /// Checks whether an operation on this range can be taken.
    #[inline]
    fn check(&mut self, space: SpaceId, (address, bytes): (u64, u64)) -> Result<(), SubmitError> {
        if !is_range(address, bytes) {
            return Err(SubmitError::Length);
        }
        if self.operations.len() >= self.config.operations_max {
            return Err(SubmitError::Full);
        }
        match self.protection.is_authorized(space) {
            true => Ok(()),
            false => Err(SubmitError::Unauthorized),
        }
    }

    /// Ends an operation that no node would run, without asking one.
    #[cold]
    fn refuse(&mut self, space: SpaceId, error: Error) -> OperationId {
        let id = OperationId(self.counters.submitted);
        self.counters.submitted += 1;
        self.completions.push_back(Completion {
            id,
            space,
            outcome: Err(Failure::Refused(error)),
            data: Vec::new(),
        });
        id
    }

    /// Enters an operation that was checked.
    #[inline(always)]
    fn enter(
        &mut self,
        submitted: Instant,
        space: SpaceId,
        head: Head,
        footprint: Footprint,
        data: Vec<u8>,
        is_owned: bool,
    ) -> OperationId {
        let id = OperationId(self.counters.submitted);
        self.counters.submitted += 1;
        let slot = self.operations.next_slot();
        let blockers = &mut self.blockers;
        blockers.clear();
        self.order.enter(slot, space, footprint, blockers);
        for blocker in blockers.iter() {
            if let Some((_, blocker)) = self.operations.at(*blocker) {
                blocker.dependents.push(slot);
            }
        }
        let blockers = blockers.len() as u32;
        let handle = self.operations.insert(Active {
            id,
            space,
            head,
            data: Vec::new(),
            is_owned,
            submitted,
            first: None,
            sent: 0,
            answered: 0,
            blockers,
            dependents: Vec::new(),
        });
        if let (1.., Some((_, active))) = (data.capacity(), self.operations.at(slot)) {
            active.data = data;
        }
        if blockers > 0 {
            self.counters.ordered += 1;
        } else if head.code == code::FENCE {
            self.finish(slot, Ok(Value::None));
        } else {
            self.ready.push_back(handle);
        }
        id
    }

    /// Asks the cache for what the next operation needs of the client, and does not wait for it:
    /// among a thousand clients, nothing of one is in a near cache when its turn comes.
    #[inline]
    pub(crate) fn prefetch(&self) {
        self.operations.prefetch();
        self.order.prefetch();
    }

    /// Gives operations the time of their submission, as far as they have none.
    #[inline]
    fn stamp(&mut self, now: Instant) {
        if std::mem::take(&mut self.is_unstamped) {
            self.operations.stamp(now);
        }
    }

    /// Takes a datagram from the node, which it decrypts in place.
    pub fn receive(&mut self, now: Instant, mut datagram: &mut [u8]) {
        let outstanding = self.requests.bytes;
        self.answered = (0, 0);
        while !datagram.is_empty() {
            let parsed = Response::parse(datagram, &mut self.protection);
            match self.take_response(now, parsed) {
                Some(rest) => datagram = rest,
                None => break,
            }
        }
        self.end_answers(now, outstanding);
    }

    /// Takes the first message of a datagram; returns the rest if it could be read.
    #[inline(always)]
    fn take_response<'d>(
        &mut self,
        now: Instant,
        parsed: Result<(Response<'d>, &'d mut [u8]), Malformed>,
    ) -> Option<&'d mut [u8]> {
        let (response, rest) = match parsed {
            Ok(parsed) => parsed,
            Err(Malformed::Unauthenticated) => {
                self.counters.unauthenticated += 1;
                return None;
            }
            Err(_) => {
                self.counters.malformed += 1;
                return None;
            }
        };
        if response.status == status::HELLO {
            self.welcome(now, &response);
        } else {
            self.answer(now, &response);
        }
        Some(rest)
    }

    /// Takes one sample of the path for all answers that came together, before which so many bytes
    /// were outstanding.
    #[inline]
    fn end_answers(&mut self, now: Instant, outstanding: u64) {
        let (rtt_ns, bytes) = self.answered;
        if bytes > 0 {
            self.path.answered(now, rtt_ns, bytes, outstanding);
        }
    }

    /// Appends the next datagram to be sent to the node, or several of a long write; returns false
    /// if there is none at present.
    pub fn transmit(&mut self, now: Instant, out: &mut Datagrams) -> bool {
        self.stamp(now);
        let Some(node) = self.node else {
            if self.operations.len() > 0 && now >= self.hello.next {
                self.greet(now, out);
            }
            return end(out);
        };
        if out.bytes() == 0 && self.holds_end() {
            return false;
        }
        let longest = self.datagram_bytes.min(node.datagram_bytes);
        while self.transmit_again(now, longest, out) {}
        if self.requests.again.is_empty() && !self.waits_for_burst() {
            while self.transmit_first(now, &node, longest, out) {}
        }
        end(out)
    }

    /// Returns true while the window is nearly full after it was full. Without this the room that
    /// each answer makes would be used at once for one request, which then has a datagram, and its
    /// answer another one, to itself, and so on for good (the silly window of RFC 813).
    fn waits_for_burst(&mut self) -> bool {
        let window = self.path.window();
        let burst = (window / 4).min(BURST_BYTES);
        self.is_blocked &= self.requests.bytes > 0 && self.requests.bytes + burst > window;
        self.is_blocked
    }

    /// Does what is due. To be called at [`Client::next_deadline`], or any time.
    pub fn tick(&mut self, now: Instant) {
        while let Some(id) = self.requests.due(now, &self.path) {
            let attempt = self.requests.find(id);
            let attempt =
                attempt.filter(|attempt| self.operations.get(attempt.operation).is_some());
            match attempt.map(|attempt| (attempt.at, attempt.is_refused())) {
                Some((sent, is_refused)) => {
                    self.requests.send_again(id);
                    if !is_refused {
                        self.path.lost(now, sent);
                    }
                }
                None => self.requests.remove(id),
            }
        }
        while let Some((slot, active)) = self.operations.oldest() {
            if self.end_of(active.submitted) > now {
                break;
            }
            self.give_up(slot);
        }
    }

    /// The time of the next call of [`Client::tick`], unless something else happens before.
    pub fn next_deadline(&self) -> Instant {
        let Some((_, oldest)) = self.operations.oldest() else {
            return self.requests.next_due(&self.path);
        };
        let next = match self.node {
            None => self.hello.next,
            Some(_) => Instant::NEVER,
        };
        let deadline = self.end_of(oldest.submitted);
        self.requests.next_due(&self.path).min(deadline).min(next)
    }

    /// The next operation that has completed, in the order in which they did.
    #[inline]
    pub fn poll(&mut self) -> Option<Completion> {
        let first = self.completions.pop_front();
        if self.completions.is_empty() {
            // Back to the start of its memory, so that one operation at a time uses the same lines.
            self.completions.clear();
        }
        first
    }

    /// Returns true if [`Client::poll`] has something.
    #[inline]
    pub fn has_completed(&self) -> bool {
        !self.completions.is_empty()
    }

    /// Takes back the buffer of a completion, to be used again.
    #[inline]
    pub fn recycle(&mut self, mut buffer: Vec<u8>) {
        let has_room = match buffer.capacity() {
            0..=SHORT_BYTES_MAX => self.buffers.len() < SHORT_MAX,
            capacity => capacity <= BUFFER_BYTES_MAX && self.buffers.len() < BUFFERS_MAX,
        };
        if has_room && buffer.capacity() > 0 {
            buffer.clear();
            self.buffers.push(buffer);
        }
    }

    /// Operations that have not completed.
    #[inline]
    pub fn outstanding(&self) -> usize {
        self.operations.len()
    }

    /// Returns true if an answer is awaited. If not, nothing is due.
    #[inline]
    pub(crate) fn awaits_answers(&self) -> bool {
        self.node.is_none() || self.requests.len() > 0
    }

    /// The node's epoch, 0 if it never answered.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns what the client did.
    pub fn counters(&self) -> ClientCounters {
        self.counters
    }

    /// The time after which an operation is given up, in nanoseconds.
    #[inline]
    fn timeout_ns(&self) -> u64 {
        match &self.node {
            Some(node) => node.timeout_ns,
            None => nanos(self.config.timeout),
        }
    }

    /// The time when an operation is given up. It is the same time after the submission for all, so
    /// that none is given up before one that it waits for.
    #[inline]
    fn end_of(&self, submitted: Instant) -> Instant {
        let from = submitted.max(self.progress);
        Instant::from_nanos(from.as_nanos().saturating_add(self.timeout_ns()))
    }

    fn finish(&mut self, slot: u32, outcome: Result<Value, Failure>) {
        let mut fences = Vec::new();
        self.end(slot, outcome, &mut fences);
        self.end_fences(fences);
    }

    /// Ends an operation that has read so many bytes.
    #[inline]
    fn finish_read(&mut self, slot: u32, length: u32) {
        let mut fences = Vec::new();
        self.end(slot, Ok(Value::Bytes(length)), &mut fences);
        if !fences.is_empty() {
            self.end_fences(fences);
        }
    }

    /// Ends fences, and those that wait for them: not by recursion, because there may be thousands.
    fn end_fences(&mut self, mut fences: Vec<u32>) {
        while let Some(slot) = fences.pop() {
            self.end(slot, Ok(Value::None), &mut fences);
        }
    }

    /// Ends an operation; appends the slots of the fences that wait for nothing more.
    #[inline(always)]
    fn end(&mut self, slot: u32, outcome: Result<Value, Failure>, fences: &mut Vec<u32>) {
        let Some(ended) = self.operations.remove(slot) else {
            return;
        };
        self.order.leave(slot);
        let data = match outcome {
            Ok(Value::Bytes(_)) => ended.data,
            _ if ended.is_owned => ended.data,
            _ => {
                self.recycle(ended.data);
                Vec::new()
            }
        };
        self.completions.push_back(Completion {
            id: ended.id,
            space: ended.space,
            outcome,
            data,
        });
        for dependent in ended.dependents {
            let Some((handle, waiting)) = self.operations.at(dependent) else {
                continue;
            };
            waiting.blockers = waiting.blockers.saturating_sub(1);
            if waiting.blockers > 0 {
                continue;
            }
            match waiting.head.code {
                code::FENCE => fences.push(dependent),
                _ => self.ready.push_back(handle),
            }
        }
    }

    /// Ends an operation whose time is over. Operations are given up in the order of their
    /// submission, so none that still waits for another is given up before that.
    fn give_up(&mut self, slot: u32) {
        let Some((_, active)) = self.operations.at(slot) else {
            return;
        };
        let failure = if active.first.is_some() && !codec::is_idempotent(active.head.code) {
            Failure::OutcomeUnknown
        } else if self.heard.is_some_and(|heard| heard > active.submitted) {
            Failure::Timeout
        } else {
            Failure::NodeGone
        };
        self.finish(slot, Err(failure));
    }
}

/// Bytes for which there has to be room after the window was full, unless a quarter of it is less.
const BURST_BYTES: u64 = 64 << 10;

/// Most buffers that are kept, if they are short, and if not.
const SHORT_MAX: usize = 1024;
const BUFFERS_MAX: usize = 256;

const SHORT_BYTES_MAX: usize = 256;
const BUFFER_BYTES_MAX: usize = 64 << 10;

/// Completes the datagram; returns false if there is nothing in it.
#[inline]
fn end(out: &mut Datagrams) -> bool {
    let is_some = out.open_bytes() > 0;
    out.end();
    is_some
}

#[inline]
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
