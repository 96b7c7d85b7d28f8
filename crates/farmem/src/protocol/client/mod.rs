//! The client's side: operations in, requests out; responses in, completions out.

mod order;
mod path;

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use tare_sim::{EventQueue, Instant};

use self::order::{Footprint, Order};
use self::path::{Bounds, Path};
use super::codec::{self, code, status, Head};
use super::message::{
    Authentication, Request, Response, GUARD_LEN, MESSAGE_MAX, OPERATION_MAX, REQUEST_HEADER,
    RESPONSE_HEADER,
};
use super::node::DATAGRAM_MIN;
use crate::operation::{Error, Operation, SpaceId, Value};

/// The settings of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// The number of the first request: a random one, because a space may have been used by another
    /// client a moment ago, whose operations the node still remembers by their numbers.
    pub first_id: u64,
    /// The protection of every message.
    pub authentication: Authentication,
    /// Longest datagram in both directions, in bytes, at least 1024; the node's, if that is less.
    pub datagram_bytes: usize,
    /// The time after which an operation is given up; the node's, if that is less.
    pub timeout: Duration,
    /// Most operations that have not completed, those that wait for others included.
    pub operations_max: usize,
    /// Most requests that are not answered.
    pub requests_max: usize,
    /// Most bytes of requests and responses on the way, whatever the delay.
    pub window_bytes_max: u64,
    /// Most bytes of responses on the way: what the last switch before the client can queue.
    pub response_bytes_max: u64,
    /// Time in queues that the window aims at.
    pub queueing: Duration,
    /// Retransmission timeout before the first answer.
    pub retransmission_initial: Duration,
    /// Least retransmission timeout.
    pub retransmission_min: Duration,
    /// Longest retransmission timeout.
    pub retransmission_max: Duration,
}

impl ClientConfig {
    /// Settings for Ethernet within a data centre, and a timeout of 250 ms.
    pub const fn new(first_id: u64) -> ClientConfig {
        ClientConfig {
            first_id,
            authentication: Authentication::None,
            datagram_bytes: 1472,
            timeout: Duration::from_millis(250),
            operations_max: 4096,
            requests_max: 4096,
            window_bytes_max: 16 << 20,
            response_bytes_max: 4 << 20,
            queueing: Duration::from_micros(500),
            retransmission_initial: Duration::from_millis(10),
            retransmission_min: Duration::from_millis(1),
            retransmission_max: Duration::from_millis(50),
        }
    }
}

/// The number of an operation of a client, which no other operation of that client has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId(pub u64);

/// Why an operation was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// As many are outstanding as the settings allow.
    Full,
    /// It transfers more than 1 GiB, or beyond the last address.
    Length,
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SubmitError::Full => "too many operations are outstanding: poll completions first",
            SubmitError::Length => "more than 1 GiB, or beyond the last address: use several",
        })
    }
}

impl std::error::Error for SubmitError {}

/// Why an operation did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The node refused it; it changed nothing.
    Refused(Error),
    /// It may have run, or may run until the node's horizon is reached, once. Which, the client
    /// cannot know: no answer came, or the node was restarted.
    OutcomeUnknown,
    /// It was given up, and changed nothing: it had not been sent, or only reads. The node was there,
    /// but slow.
    Timeout,
    /// It was given up, and changed nothing; nothing came from the node since it was submitted.
    NodeGone,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Refused(error) => error.fmt(f),
            Failure::OutcomeUnknown => {
                f.write_str("no answer: it may have happened; read what it was to change")
            }
            Failure::Timeout => f.write_str("the node was too slow; nothing happened: try again"),
            Failure::NodeGone => {
                f.write_str("the node does not answer; nothing happened: is it running?")
            }
        }
    }
}

impl std::error::Error for Failure {}

/// The end of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Its number.
    pub id: OperationId,
    /// Its space.
    pub space: SpaceId,
    /// How it ended.
    pub outcome: Result<Value, Failure>,
    /// What was read; empty for other operations.
    pub data: Vec<u8>,
}

/// What a client did, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCounters {
    /// Operations submitted.
    pub submitted: u64,
    /// Operations that had to wait for others on the same pages.
    pub ordered: u64,
    /// Requests sent, retransmissions included.
    pub requests: u64,
    /// Requests sent again.
    pub retransmissions: u64,
    /// Requests that the node had no room for.
    pub busy: u64,
    /// Messages that could not be read, or that do not fit the request that they answer.
    pub malformed: u64,
    /// Responses to requests that were answered already, or were never sent.
    pub unmatched: u64,
    /// Epochs seen after the first.
    pub restarts: u64,
}

/// A client of one node, for any number of spaces, without sockets and clocks.
///
/// After each call of [`Client::submit`], [`Client::receive`] and [`Client::tick`],
/// [`Client::transmit`] is to be called until it returns false, and completions are to be polled.
/// Times must not run backwards.
#[derive(Debug)]
pub struct Client {
    config: ClientConfig,
    node: Option<NodeInfo>,
    /// The epoch that the operations sent belong to; 0 if none.
    epoch: u64,
    hello: Hello,
    heard: Option<Instant>,
    operations: Vec<Option<Active>>,
    free: Vec<u32>,
    active: usize,
    order: Order,
    /// Operations of which something is to be sent for the first time.
    ready: VecDeque<(u32, OperationId)>,
    /// All that are active, in the order of their ends.
    deadlines: VecDeque<(Instant, u32, OperationId)>,
    requests: Requests,
    path: Path,
    completions: VecDeque<Completion>,
    /// Empty buffers, for their memory.
    buffers: Vec<Vec<u8>>,
    blockers: Vec<u32>,
    counters: ClientCounters,
}

/// What is known of a node that answered.
#[derive(Clone, Copy, Debug)]
struct NodeInfo {
    datagram_bytes: usize,
    timeout: Duration,
    write_max: u64,
    /// A time of the node, and when it came.
    time_ns: u64,
    at: Instant,
}

/// The question for epoch, time and limits.
#[derive(Clone, Copy, Debug)]
struct Hello {
    /// 0 until it is first sent.
    id: u64,
    attempts: u32,
    next: Instant,
}

const HELLO: Hello = Hello {
    id: 0,
    attempts: 0,
    next: Instant::ZERO,
};

/// An operation that has not completed.
#[derive(Debug)]
struct Active {
    id: OperationId,
    space: SpaceId,
    head: Head,
    /// The body to send, or the buffer of a read.
    data: Vec<u8>,
    submitted: Instant,
    /// Its first request; `None` if nothing was sent.
    first: Option<First>,
    /// Bytes sent at least once, and bytes answered.
    sent: u32,
    answered: u32,
    /// Operations that it waits for.
    blockers: u32,
    /// Operations that wait for it.
    dependents: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct First {
    id: u64,
    at: Instant,
    /// The same by the node's clock.
    at_ns: u64,
    /// Bytes of a request or response that carry data.
    part: u32,
}

/// A part of an operation that is one request, in as many attempts as it takes.
#[derive(Clone, Copy, Debug)]
struct Part {
    operation: (u32, OperationId),
    offset: u32,
    length: u32,
    /// The first and the latest attempt; answers to those between are not looked for.
    first: (u64, Instant),
    last: (u64, Instant),
    attempts: u32,
    /// Bytes of the request, and of the response as far as they can be foreseen.
    request_bytes: u64,
    response_bytes: u64,
    /// False while it waits to be sent again.
    in_flight: bool,
}

/// The requests that are not answered.
#[derive(Debug)]
struct Requests {
    parts: Vec<Option<Part>>,
    free: Vec<u32>,
    /// Attempts, each at its number modulo the length: numbers of this client are consecutive. At
    /// most two of each part, so half of the places are free.
    attempts: Vec<(u64, u32)>,
    next_id: u64,
    timers: EventQueue<(u32, u64)>,
    /// Parts to be sent again, with the attempt that was not answered.
    again: VecDeque<(u32, u64)>,
    /// Bytes on the way, both directions, and of responses alone.
    bytes: u64,
    response_bytes: u64,
}

impl Client {
    /// A client that has sent nothing.
    pub fn new(config: ClientConfig) -> Client {
        let config = ClientConfig {
            datagram_bytes: config.datagram_bytes.clamp(DATAGRAM_MIN, MESSAGE_MAX),
            operations_max: config.operations_max.clamp(1, 1 << 20),
            requests_max: config.requests_max.clamp(1, 1 << 20),
            ..config
        };
        Client {
            node: None,
            epoch: 0,
            hello: HELLO,
            heard: None,
            operations: Vec::new(),
            free: Vec::new(),
            active: 0,
            order: Order::default(),
            ready: VecDeque::new(),
            deadlines: VecDeque::new(),
            requests: Requests::new(config.first_id, config.requests_max),
            path: Path::new(Bounds {
                timeout_initial: config.retransmission_initial,
                timeout_min: config.retransmission_min,
                timeout_max: config.retransmission_max,
                queueing: config.queueing,
                window_max: config.window_bytes_max,
                datagram: config.datagram_bytes as u64,
            }),
            completions: VecDeque::new(),
            buffers: Vec::new(),
            blockers: Vec::new(),
            counters: ClientCounters::default(),
            config,
        }
    }

    /// Takes an operation on a space.
    ///
    /// It runs after all operations of that space that were submitted before it, have not completed
    /// and are on one of its pages of 4 KiB, if it or they change something. [`Operation::Lock`],
    /// [`Operation::Unlock`], [`Operation::Fence`] and those on spaces and regions run after all
    /// that were submitted before, and before all that are submitted after them.
    pub fn submit(
        &mut self,
        now: Instant,
        space: SpaceId,
        operation: &Operation<'_>,
    ) -> Result<OperationId, SubmitError> {
        if let Operation::Read { address, len } = *operation {
            check_range(address, u64::from(len))?;
        } else if let Operation::Write { address, data, .. } = *operation {
            check_range(address, data.len() as u64)?;
        }
        if self.active >= self.config.operations_max {
            return Err(SubmitError::Full);
        }
        let mut data = self.buffers.pop().unwrap_or_default();
        let head = codec::encode(operation, &mut data);
        let id = OperationId(self.counters.submitted);
        self.counters.submitted += 1;
        let slot = self.free.pop().unwrap_or(self.operations.len() as u32);
        let mut blockers = std::mem::take(&mut self.blockers);
        let footprint = Footprint::new(operation, &head);
        self.order.enter(slot, space, footprint, &mut blockers);
        for blocker in &blockers {
            if let Some(Some(blocker)) = self.operations.get_mut(*blocker as usize) {
                blocker.dependents.push(slot);
            }
        }
        let active = Active {
            id,
            space,
            head,
            data,
            submitted: now,
            first: None,
            sent: 0,
            answered: 0,
            blockers: blockers.len() as u32,
            dependents: Vec::new(),
        };
        self.counters.ordered += u64::from(!blockers.is_empty());
        let is_free = blockers.is_empty();
        blockers.clear();
        self.blockers = blockers;
        match self.operations.get_mut(slot as usize) {
            Some(place) => *place = Some(active),
            None => self.operations.push(Some(active)),
        }
        self.active += 1;
        self.deadlines.push_back((now + self.timeout(), slot, id));
        if is_free {
            self.start(slot);
        }
        Ok(id)
    }

    /// Takes a datagram from the node.
    pub fn receive(&mut self, now: Instant, mut datagram: &[u8]) {
        while !datagram.is_empty() {
            let Ok((response, rest)) = Response::parse(datagram, self.config.authentication) else {
                self.counters.malformed += 1;
                return;
            };
            datagram = rest;
            if response.status == status::HELLO {
                self.welcome(now, &response);
            } else {
                self.answer(now, &response);
            }
        }
    }

    /// Writes the next datagram to be sent to the node into `datagram`; returns false if there is
    /// none at present.
    pub fn transmit(&mut self, now: Instant, datagram: &mut Vec<u8>) -> bool {
        datagram.clear();
        let Some(node) = self.node else {
            if self.active > 0 && now >= self.hello.next {
                self.greet(now, datagram);
            }
            return !datagram.is_empty();
        };
        let longest = self.config.datagram_bytes.min(node.datagram_bytes);
        while self.transmit_again(now, longest, datagram) {}
        if self.requests.again.is_empty() {
            while self.transmit_first(now, &node, longest, datagram) {}
        }
        !datagram.is_empty()
    }

    /// Does what is due. To be called at [`Client::next_deadline`], or any time.
    pub fn tick(&mut self, now: Instant) {
        while let Some((_, (part, id))) = self.requests.timers.pop(now) {
            let Some(flying) = self.requests.flying(part, id) else {
                continue;
            };
            if self.active(flying.operation).is_none() {
                self.requests.remove(part);
                continue;
            }
            self.requests.send_again(part);
            self.path.lost(now);
        }
        while let Some(&(deadline, slot, id)) = self.deadlines.front() {
            if deadline > now {
                break;
            }
            self.deadlines.pop_front();
            self.give_up(slot, id);
        }
        if self.deadlines.len() > 64 + 2 * self.active {
            let operations = &self.operations;
            self.deadlines.retain(|(_, slot, id)| {
                let active = operations.get(*slot as usize).and_then(Option::as_ref);
                active.is_some_and(|active| active.id == *id)
            });
        }
        self.requests.prune_timers();
    }

    /// The time of the next call of [`Client::tick`], unless something else happens before.
    pub fn next_deadline(&self) -> Instant {
        let hello = match self.node {
            None if self.active > 0 => self.hello.next,
            _ => Instant::NEVER,
        };
        let deadline = self.deadlines.front();
        let deadline = deadline.map_or(Instant::NEVER, |(deadline, ..)| *deadline);
        self.requests.timers.next_at().min(deadline).min(hello)
    }

    /// The next operation that has completed, in the order in which they did.
    pub fn poll(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// Takes back the buffer of a completion, to be used again.
    pub fn recycle(&mut self, mut buffer: Vec<u8>) {
        if self.buffers.len() < BUFFERS_MAX && buffer.capacity() <= BUFFER_BYTES_MAX {
            buffer.clear();
            self.buffers.push(buffer);
        }
    }

    /// Operations that have not completed.
    pub fn outstanding(&self) -> usize {
        self.active
    }

    /// The node's epoch, 0 if it never answered.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// What it did.
    pub fn counters(&self) -> ClientCounters {
        self.counters
    }

    fn timeout(&self) -> Duration {
        let node = self.node.map_or(Duration::MAX, |node| node.timeout);
        self.config.timeout.min(node)
    }

    fn active(&self, (slot, id): (u32, OperationId)) -> Option<&Active> {
        let active = self.operations.get(slot as usize)?.as_ref();
        active.filter(|active| active.id == id)
    }

    /// Lets an operation go that waits for no other.
    fn start(&mut self, slot: u32) {
        let Some(Some(active)) = self.operations.get(slot as usize) else {
            return;
        };
        match active.head.code {
            code::FENCE => self.finish(slot, Ok(Value::None)),
            _ => self.ready.push_back((slot, active.id)),
        }
    }

    fn finish(&mut self, slot: u32, outcome: Result<Value, Failure>) {
        let mut ended = vec![(slot, outcome)];
        // Not by recursion: a thousand fences may wait for each other.
        while let Some((slot, outcome)) = ended.pop() {
            let Some(active) = self.operations[slot as usize].take() else {
                continue;
            };
            self.order.leave(slot);
            self.free.push(slot);
            self.active -= 1;
            let data = match outcome {
                Ok(Value::Bytes(_)) => active.data,
                _ => {
                    self.recycle(active.data);
                    Vec::new()
                }
            };
            self.completions.push_back(Completion {
                id: active.id,
                space: active.space,
                outcome,
                data,
            });
            for dependent in active.dependents {
                let Some(Some(waiting)) = self.operations.get_mut(dependent as usize) else {
                    continue;
                };
                waiting.blockers = waiting.blockers.saturating_sub(1);
                if waiting.blockers > 0 {
                    continue;
                }
                match waiting.head.code {
                    code::FENCE => ended.push((dependent, Ok(Value::None))),
                    _ => self.ready.push_back((dependent, waiting.id)),
                }
            }
        }
    }

    /// Ends an operation whose time is over. Operations are given up in the order of their
    /// submission, so none that still waits for another is given up before that.
    fn give_up(&mut self, slot: u32, id: OperationId) {
        let Some(active) = self.active((slot, id)) else {
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

    fn greet(&mut self, now: Instant, datagram: &mut Vec<u8>) {
        if self.hello.id == 0 {
            self.hello.id = self.requests.new_id();
        }
        let request = Request {
            code: code::HELLO,
            space: SpaceId(0),
            id: self.hello.id,
            epoch: 0,
            replaced: 0,
            sent_ns: 0,
            address: 0,
            length: 0,
            offset: 0,
            segment: 0,
            guard: None,
            body: &[],
        };
        request.emit(self.config.authentication, datagram);
        self.hello.next = now + self.path.timeout(self.hello.attempts);
        self.hello.attempts += 1;
        self.counters.requests += 1;
    }

    /// Learns what node there is.
    fn welcome(&mut self, now: Instant, response: &Response<'_>) {
        if self.node.is_some() || self.hello.id == 0 || response.id != self.hello.id {
            self.counters.unmatched += 1;
            return;
        }
        let (words, rest) = response.body.as_chunks();
        let ([datagram_bytes, timeout, write_max], []) = (words, rest) else {
            self.counters.malformed += 1;
            return;
        };
        let datagram_bytes = u64::from_le_bytes(*datagram_bytes);
        if response.epoch == 0 || datagram_bytes < DATAGRAM_MIN as u64 {
            self.counters.malformed += 1;
            return;
        }
        self.heard = Some(now);
        self.hello = HELLO;
        self.node = Some(NodeInfo {
            datagram_bytes: usize::try_from(datagram_bytes).unwrap_or(usize::MAX),
            timeout: Duration::from_nanos(u64::from_le_bytes(*timeout)),
            write_max: u64::from_le_bytes(*write_max),
            time_ns: response.time_ns,
            at: now,
        });
        let before = std::mem::replace(&mut self.epoch, response.epoch);
        if before != 0 && before != response.epoch {
            self.counters.restarts += 1;
            let up = Duration::from_nanos(response.time_ns.saturating_sub(response.value));
            // A thousandth, because the two clocks need not run at the same rate.
            self.restart(now - (up - up / 1000));
        }
    }

    /// Ends or repeats what was sent to the node before it was restarted, which was not later than
    /// `started`.
    fn restart(&mut self, started: Instant) {
        for slot in 0..self.operations.len() as u32 {
            let Some(Some(active)) = self.operations.get_mut(slot as usize) else {
                continue;
            };
            let Some(first) = active
                .first
                .filter(|_| !codec::is_idempotent(active.head.code))
            else {
                continue;
            };
            if first.at <= started {
                self.finish(slot, Err(Failure::OutcomeUnknown));
                continue;
            }
            // No copy of it can have reached the old node; the new one has refused all of them. It
            // may still be in the queue, if some of it had not been sent.
            let entry = (slot, active.id);
            (active.first, active.sent, active.answered) = (None, 0, 0);
            self.ready.retain(|ready| *ready != entry);
            self.ready.push_back(entry);
        }
        for part in 0..self.requests.parts.len() as u32 {
            let Some(Some(found)) = self.requests.parts.get(part as usize).copied() else {
                continue;
            };
            match self.active(found.operation) {
                Some(active) if active.first.is_some() => self.requests.send_again(part),
                _ => self.requests.remove(part),
            }
        }
    }

    /// Takes the response to a request of an operation.
    fn answer(&mut self, now: Instant, response: &Response<'_>) {
        let Some((index, part)) = self.requests.find(response.id) else {
            self.counters.unmatched += 1;
            return;
        };
        let (slot, _) = part.operation;
        let Some(active) = self.active(part.operation) else {
            self.requests.remove(index);
            self.counters.unmatched += 1;
            return;
        };
        let code = active.head.code;
        if active.space != response.space {
            self.counters.malformed += 1;
            return;
        }
        if response.epoch != self.epoch {
            if response.status == status::EPOCH && self.node.is_some() {
                // The answer to a question that is asked from now on comes from that node or a later
                // one, whatever else is still on the way.
                self.node = None;
                self.hello = HELLO;
            }
            return;
        }
        self.heard = Some(now);
        if let Some(node) = self.node.as_mut() {
            if response.time_ns > node.time_ns {
                (node.time_ns, node.at) = (response.time_ns, now);
            }
        }
        let sent = match response.id == part.last.0 {
            true => part.last.1,
            false => part.first.1,
        };
        let bytes = part.request_bytes + part.response_bytes;
        let outstanding = self.requests.bytes;
        match response.status {
            status::BUSY => {
                // Sent again when its timer fires.
                self.counters.busy += 1;
                self.path.lost(now);
                return;
            }
            status::EPOCH => return,
            status::EXPIRED => {
                self.requests.remove(index);
                if !codec::is_idempotent(code) {
                    self.finish(slot, Err(Failure::OutcomeUnknown));
                }
                return;
            }
            status::RECEIVED if code == code::WRITE => {
                self.requests.remove(index);
                self.path.answered(now, now.since(sent), bytes, outstanding);
                return;
            }
            _ => {}
        }
        let outcome = codec::decode_outcome(code, response.status, response.value);
        let is_read = outcome.is_some_and(|outcome| matches!(outcome, Ok(Value::Bytes(_))));
        let length = if is_read { part.length as usize } else { 0 };
        let Some(outcome) = outcome.filter(|_| response.body.len() == length) else {
            self.counters.malformed += 1;
            return;
        };
        self.requests.remove(index);
        self.path.answered(now, now.since(sent), bytes, outstanding);
        if !is_read {
            return self.finish(slot, outcome.map_err(Failure::Refused));
        }
        let Some(Some(active)) = self.operations.get_mut(slot as usize) else {
            return;
        };
        let place = part.offset as usize..part.offset as usize + length;
        if let Some(place) = active.data.get_mut(place) {
            place.copy_from_slice(response.body);
        }
        active.answered += part.length;
        if active.answered == active.head.length {
            let length = active.head.length;
            self.finish(slot, Ok(Value::Bytes(length)));
        }
    }

    /// Sends a part again, if there is one and room for it; returns false if not.
    fn transmit_again(&mut self, now: Instant, longest: usize, datagram: &mut Vec<u8>) -> bool {
        let Some(&(index, id)) = self.requests.again.front() else {
            return false;
        };
        let part = self.requests.parts.get(index as usize).copied().flatten();
        let part = part.filter(|part| part.last.0 == id && !part.in_flight);
        let Some(part) = part else {
            self.requests.again.pop_front();
            return true;
        };
        if self.active(part.operation).is_none() {
            self.requests.again.pop_front();
            self.requests.remove(index);
            return true;
        }
        if !self.has_room(part.request_bytes, part.response_bytes, longest, datagram) {
            return false;
        }
        self.requests.again.pop_front();
        self.counters.retransmissions += 1;
        self.emit(now, index, datagram);
        true
    }

    /// Sends the next part of the first operation in the queue, if there is room for it; returns
    /// false if not. Operations take turns, so that a long one does not hold up the others.
    fn transmit_first(
        &mut self,
        now: Instant,
        node: &NodeInfo,
        longest: usize,
        datagram: &mut Vec<u8>,
    ) -> bool {
        let Some(&(slot, id)) = self.ready.front() else {
            return false;
        };
        let Some(active) = self.active((slot, id)) else {
            self.ready.pop_front();
            return true;
        };
        let head = active.head;
        if head.code == code::WRITE && u64::from(head.length) > node.write_max {
            self.ready.pop_front();
            self.finish(slot, Err(Failure::Refused(Error::Length)));
            return true;
        }
        let trailer = self.config.authentication.trailer_len();
        let guard = if head.guard.is_some() { GUARD_LEN } else { 0 };
        let request = REQUEST_HEADER + guard + trailer;
        let response = RESPONSE_HEADER + trailer;
        let part = active.first.map_or_else(
            || {
                let around = if head.code == code::READ {
                    response
                } else {
                    request
                };
                ((longest - around) & !7) as u32
            },
            |first| first.part,
        );
        let offset = active.sent;
        let length = part.min(head.length - offset);
        let (request_bytes, response_bytes) = match head.code {
            code::READ => (request, response + length as usize),
            code::WRITE => (request + length as usize, response),
            _ => (request + active.data.len(), response),
        };
        let (request_bytes, response_bytes) = (request_bytes as u64, response_bytes as u64);
        if self.requests.len() >= self.config.requests_max
            || !self.has_room(request_bytes, response_bytes, longest, datagram)
        {
            return false;
        }
        self.ready.pop_front();
        let at_ns = node.time_ns.saturating_add(nanos(now.since(node.at)));
        if let Some(Some(active)) = self.operations.get_mut(slot as usize) {
            active.sent += length;
            active.first.get_or_insert(First {
                id: 0,
                at: now,
                at_ns,
                part,
            });
            if head.code == code::READ {
                active.data.resize(head.length as usize, 0);
            }
            if active.sent < head.length {
                self.ready.push_back((slot, id));
            }
        }
        let index = self.requests.insert(Part {
            operation: (slot, id),
            offset,
            length,
            first: (0, now),
            last: (0, now),
            attempts: 0,
            request_bytes,
            response_bytes,
            in_flight: false,
        });
        self.emit(now, index, datagram);
        true
    }

    fn has_room(&self, request: u64, response: u64, longest: usize, datagram: &[u8]) -> bool {
        let Requests {
            bytes,
            response_bytes,
            ..
        } = self.requests;
        // One request is always allowed, however long the response.
        datagram.len() as u64 + request <= longest as u64
            && (bytes == 0
                || (bytes + request + response <= self.path.window()
                    && response_bytes + response <= self.config.response_bytes_max))
    }

    /// Appends the next attempt of a part to a datagram.
    fn emit(&mut self, now: Instant, index: u32, datagram: &mut Vec<u8>) {
        let Some(part) = self.requests.begin_attempt(index, now) else {
            return;
        };
        let (slot, _) = part.operation;
        let Some(Some(active)) = self.operations.get_mut(slot as usize) else {
            return;
        };
        let Some(first) = active.first.as_mut() else {
            return;
        };
        let id = part.last.0;
        if first.id == 0 {
            first.id = id;
        }
        let head = active.head;
        let (from, to) = (
            part.offset as usize,
            part.offset as usize + part.length as usize,
        );
        let (address, length, body) = match head.code {
            code::READ => (head.address + u64::from(part.offset), part.length, &[][..]),
            code::WRITE => (
                head.address,
                head.length,
                active.data.get(from..to).unwrap_or(&[]),
            ),
            _ => (head.address, 0, &active.data[..]),
        };
        let is_segment = head.code == code::WRITE && head.length > first.part;
        let request = Request {
            code: head.code,
            space: active.space,
            id,
            epoch: self.epoch,
            replaced: if first.id == id { 0 } else { first.id },
            sent_ns: first.at_ns,
            address,
            length,
            offset: if is_segment { part.offset } else { 0 },
            segment: if is_segment { first.part } else { 0 },
            guard: head.guard,
            body,
        };
        request.emit(self.config.authentication, datagram);
        let timeout = self.path.timeout(part.attempts - 1);
        self.requests.timers.push(now + timeout, (index, id));
        self.counters.requests += 1;
    }
}

impl Requests {
    fn new(first_id: u64, max: usize) -> Requests {
        Requests {
            parts: Vec::new(),
            free: Vec::new(),
            attempts: vec![(0, 0); (max * 4).next_power_of_two()],
            next_id: first_id,
            timers: EventQueue::new(),
            again: VecDeque::new(),
            bytes: 0,
            response_bytes: 0,
        }
    }

    fn len(&self) -> usize {
        self.parts.len() - self.free.len()
    }

    /// A number that was not used before and whose place is free.
    fn new_id(&mut self) -> u64 {
        loop {
            let id = self.next_id;
            self.next_id = id.wrapping_add(1);
            if id != 0 && self.place(id).0 == 0 {
                return id;
            }
        }
    }

    fn place(&self, id: u64) -> (u64, u32) {
        self.attempts[id as usize & (self.attempts.len() - 1)]
    }

    fn set_place(&mut self, id: u64, attempt: (u64, u32)) {
        let index = id as usize & (self.attempts.len() - 1);
        self.attempts[index] = attempt;
    }

    /// The part that an attempt belongs to, with its index.
    fn find(&self, id: u64) -> Option<(u32, Part)> {
        let (found, index) = self.place(id);
        let part = self.parts.get(index as usize).copied().flatten();
        (found == id && id != 0).then_some((index, part?))
    }

    /// The part, if its latest attempt is this and not answered.
    fn flying(&self, index: u32, id: u64) -> Option<Part> {
        let part = self.parts.get(index as usize).copied().flatten()?;
        (part.last.0 == id && part.in_flight).then_some(part)
    }

    fn insert(&mut self, part: Part) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.parts[index as usize] = Some(part);
                index
            }
            None => {
                self.parts.push(Some(part));
                self.parts.len() as u32 - 1
            }
        }
    }

    /// Gives a part a new attempt; returns the part as it is then.
    fn begin_attempt(&mut self, index: u32, now: Instant) -> Option<Part> {
        let mut part = self.parts.get(index as usize).copied().flatten()?;
        let id = self.new_id();
        if part.attempts == 0 {
            part.first = (id, now);
        } else if part.last.0 != part.first.0 {
            self.set_place(part.last.0, (0, 0));
        }
        part.last = (id, now);
        part.attempts += 1;
        part.in_flight = true;
        self.bytes += part.request_bytes + part.response_bytes;
        self.response_bytes += part.response_bytes;
        self.set_place(id, (id, index));
        self.parts[index as usize] = Some(part);
        Some(part)
    }

    /// Takes a part for lost: it no longer counts as being on the way, and is to be sent again.
    fn send_again(&mut self, index: u32) {
        if let Some(Some(part)) = self.parts.get_mut(index as usize) {
            if part.in_flight {
                part.in_flight = false;
                self.bytes -= part.request_bytes + part.response_bytes;
                self.response_bytes -= part.response_bytes;
                self.again.push_back((index, part.last.0));
            }
        }
    }

    fn remove(&mut self, index: u32) {
        let Some(part) = self.parts.get_mut(index as usize).and_then(Option::take) else {
            return;
        };
        if part.in_flight {
            self.bytes -= part.request_bytes + part.response_bytes;
            self.response_bytes -= part.response_bytes;
        }
        self.set_place(part.first.0, (0, 0));
        self.set_place(part.last.0, (0, 0));
        self.free.push(index);
    }

    /// Forgets timers of attempts that were answered, when they are most of all.
    fn prune_timers(&mut self) {
        if self.timers.len() > 64 + 4 * self.len() {
            let parts = &self.parts;
            self.timers.retain(|_, (index, id)| {
                let part = parts.get(*index as usize).copied().flatten();
                part.is_some_and(|part| part.last.0 == *id)
            });
        }
    }
}

const BUFFERS_MAX: usize = 64;
const BUFFER_BYTES_MAX: usize = 64 << 10;

fn check_range(address: u64, bytes: u64) -> Result<(), SubmitError> {
    let fits = bytes <= u64::from(OPERATION_MAX) && address.checked_add(bytes).is_some();
    fits.then_some(()).ok_or(SubmitError::Length)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
