//! The node's side: requests in, operations run, responses out.

mod assembly;
mod config;
mod execute;
mod held;
mod pieces;
mod records;

use std::time::Duration;

use tare_sim::Instant;

use self::assembly::{Arrival, Assemblies};
pub use self::config::{NodeConfig, NodeCounters};
pub use self::execute::Execute;
use self::held::Place;
pub use self::pieces::Pieces;
use self::records::Records;
use super::aead::Secret;
use super::codec::{self, code, status};
use super::datagrams::Datagrams;
use super::message::{
    peek_address, Malformed, Request, Response, MESSAGE_MAX, RECEIVED_MAX, REQUEST_HEADER,
    RESPONSE_HEADER,
};
use super::protection::Protection;
use crate::operation::{Error, Operation, PageSize, SpaceId};

/// Requests whose memory is asked for at a time: about as many lines as a processor waits for.
const AHEAD: usize = 32;

/// Bytes of which nothing is asked for ahead, because most of them are a single request.
const ALONE_MAX: usize = 2 * REQUEST_HEADER - 1;

/// Bytes of a request of which nothing is asked for ahead: its own take longer than the miss.
const LONG: usize = 512;

/// log2 of the bytes of the smallest page.
const PAGE_SHIFT: u32 = PageSize::Small.shift();

/// A memory node without sockets and clocks.
///
/// It knows no connections: what it keeps of a client is the outcome of each operation that must
/// not run twice, until all requests for it are refused for their age, and the segments of writes
/// that are incomplete. Both are bounded; when they are full, requests are answered with "busy".
#[derive(Debug)]
pub struct Node<S> {
    config: NodeConfig,
    protection: Protection,
    store: S,
    started: Option<Instant>,
    /// The latest time that it was called with.
    latest: Instant,
    /// The longest datagram of several answers to the sender of the present requests, whose own
    /// limit may be less than the node's. Every sender takes this many bytes: the least that there
    /// is, or an answer as long as it asked for.
    shared_bytes: usize,
    records: Records,
    assemblies: Assemblies,
    counters: NodeCounters,
}

/// Segments of one write that arrived in succession, with consecutive numbers, and are answered
/// together.
struct Received {
    space: SpaceId,
    operation: u64,
    sent_ns: u64,
    /// The number of the last one.
    id: u64,
    count: u64,
}

impl Received {
    fn new(request: &Request<'_>) -> Received {
        Received {
            space: request.space,
            operation: request.operation_id(),
            sent_ns: request.sent_ns,
            id: request.id,
            count: 0,
        }
    }

    /// Returns true if a request is the next segment.
    #[inline]
    fn goes_on(&self, request: &Request<'_>) -> bool {
        request.segment != 0
            && (request.space, request.operation_id()) == (self.space, self.operation)
            && request.id == self.id.wrapping_add(1)
            && self.count <= RECEIVED_MAX
    }
}

impl<S: Execute> Node<S> {
    /// A node with this memory.
    pub fn new(config: NodeConfig, store: S) -> Node<S> {
        let config = NodeConfig {
            epoch: config.epoch.max(1),
            datagram_bytes: config.datagram_bytes.clamp(DATAGRAM_MIN, MESSAGE_MAX),
            ..config
        };
        let keys_max = config.keys_max;
        let mut protection = Protection::with_keys_max(config.authentication, keys_max);
        protection.set_epoch(config.epoch);
        Node {
            config,
            protection,
            store,
            started: None,
            latest: Instant::ZERO,
            shared_bytes: DATAGRAM_MIN,
            records: Records::new(config.records_max()),
            assemblies: Assemblies::new(config.assembly_bytes, config.assembly_bytes_per_space),
            counters: NodeCounters::default(),
        }
    }

    /// Gives the node its secret, without which no encrypted message is accepted.
    pub fn set_secret(&mut self, secret: Secret) {
        self.protection.set_secret(secret);
    }

    /// Takes a datagram, which it decrypts in place, and adds the answers to `replies`. It must be
    /// called with its own time of the node, which should not run backwards: of what was later the
    /// node takes the latest.
    pub fn receive(&mut self, now: Instant, datagram: &mut [u8], replies: &mut Datagrams) {
        self.receive_some(now, datagram, replies, usize::MAX);
    }

    /// The same, but ends before a message once the replies have so many bytes; returns the bytes
    /// of the datagram that were taken. The rest is to be given to it as another datagram, so that
    /// long answers to many requests leave as they are made.
    pub(crate) fn receive_some(
        &mut self,
        now: Instant,
        datagram: &mut [u8],
        replies: &mut Datagrams,
        enough: usize,
    ) -> usize {
        self.receive_from(now, datagram, 0, false, replies, enough)
    }

    /// Takes datagrams from pieces of a buffer, which it may keep in the end.
    pub fn pieces<'a>(&'a mut self, buffer: &'a mut Box<[u8]>) -> Pieces<'a, S> {
        Pieces::new(self, buffer)
    }

    /// Takes the messages of a buffer that begin at `start`. Segments stay in it if it `holds`
    /// them. Returns the bytes that were taken.
    #[inline]
    fn receive_from(
        &mut self,
        now: Instant,
        buffer: &mut [u8],
        start: usize,
        holds: bool,
        replies: &mut Datagrams,
        enough: usize,
    ) -> usize {
        let now = self.advance(now);
        self.shared_bytes = DATAGRAM_MIN;
        let mut received = None;
        let end = self.take(now, buffer, start, holds, replies, enough, &mut received);
        if received.is_some() {
            self.acknowledge(now, &mut received, replies);
        }
        replies.end();
        end - start
    }

    /// Returns the time, which does not run backwards.
    #[inline]
    fn advance(&mut self, now: Instant) -> Instant {
        self.latest = self.latest.max(now);
        self.started.get_or_insert(self.latest);
        self.latest
    }

    /// [`Node::receive_from`] without the answer to the last segments; returns where it ended.
    #[inline(always)]
    #[allow(
        clippy::too_many_arguments,
        reason = "those of its only caller, in registers"
    )]
    fn take(
        &mut self,
        now: Instant,
        buffer: &mut [u8],
        start: usize,
        holds: bool,
        replies: &mut Datagrams,
        enough: usize,
        received: &mut Option<Received>,
    ) -> usize {
        let (mut at, end) = (start, buffer.len());
        let mut ahead = 0;
        while at < end {
            if replies.bytes() >= enough {
                return at;
            }
            let (before, rest) = buffer.split_at_mut(at);
            if ahead == 0 {
                ahead = self.prefetch(rest);
            }
            ahead -= 1;
            let request = match Request::parse(rest, &mut self.protection) {
                Ok((request, rest)) => {
                    at = end - rest.len();
                    request
                }
                Err(Malformed::Unauthenticated) => {
                    self.counters.unauthenticated += 1;
                    return end;
                }
                Err(_) => {
                    self.counters.malformed += 1;
                    return end;
                }
            };
            self.counters.requests += 1;
            let place = holds.then(|| Place {
                before,
                body_at: at - self.protection.trailer_len() - request.body.len(),
            });
            if let Some(last) = received {
                if !last.goes_on(&request) {
                    self.acknowledge(now, received, replies);
                } else if self.is_kept_like(last, &request, place) {
                    (last.id, last.count) = (request.id, last.count + 1);
                    continue;
                }
            }
            let mut start = Response::begin(&self.protection, &mut replies.bytes);
            let answered = self.answer(now, &request, place, &mut replies.bytes);
            let Ok((status, value)) = answered else {
                self.counters.malformed += 1;
                replies.bytes.truncate(start);
                continue;
            };
            if status == status::RECEIVED {
                replies.bytes.truncate(start);
                let segments = received.get_or_insert(Received::new(&request));
                (segments.id, segments.count) = (request.id, segments.count + 1);
                segments.sent_ns = request.sent_ns;
                continue;
            }
            if received.is_some() {
                // This one is of the same write, and has no body.
                replies.bytes.truncate(start);
                self.acknowledge(now, received, replies);
                start = Response::begin(&self.protection, &mut replies.bytes);
            }
            self.finish(
                now,
                start,
                status,
                value,
                (request.space, request.id),
                replies,
            );
        }
        end
    }

    /// Keeps the next segment of the same write, for which everything is as it was for the one
    /// before; returns false if that is not certain, or it is the last one missing.
    #[inline]
    fn is_kept_like(
        &mut self,
        last: &Received,
        request: &Request<'_>,
        place: Option<Place<'_>>,
    ) -> bool {
        // With the same send time it is neither too old nor from the future, at the same moment.
        request.code == code::WRITE
            && request.epoch == self.config.epoch
            && request.sent_ns == last.sent_ns
            && self.assemblies.keep(request, place)
    }

    /// Answers segments, if there are any, in one response.
    #[inline(never)]
    fn acknowledge(
        &mut self,
        now: Instant,
        received: &mut Option<Received>,
        replies: &mut Datagrams,
    ) {
        if let Some(Received {
            space, id, count, ..
        }) = received.take()
        {
            let start = Response::begin(&self.protection, &mut replies.bytes);
            let before = count - 1;
            self.finish(now, start, status::RECEIVED, before, (space, id), replies);
        }
    }

    /// Writes the header of the response that begins at `start`.
    #[inline(always)]
    fn finish(
        &mut self,
        now: Instant,
        start: usize,
        status: u8,
        value: u64,
        (space, id): (SpaceId, u64),
        replies: &mut Datagrams,
    ) {
        let response = Response {
            status,
            space,
            id,
            epoch: self.config.epoch,
            time_ns: now.as_nanos(),
            value,
            body: &[],
        };
        // It has the key of every space of which it could open a request.
        let sealed = response.finish(&mut self.protection, start, &mut replies.bytes);
        if sealed.is_ok() && replies.open_bytes() > self.shared_bytes {
            replies.end_at(start);
            self.shared_bytes = self.shared_bytes.max(replies.open_bytes());
        }
    }

    /// Asks the cache for what the next requests touch: for their places in the page table, then
    /// for their memory, so that the misses of all overlap. Returns the number of the requests, at
    /// least one.
    #[inline]
    fn prefetch(&self, datagram: &[u8]) -> usize {
        if datagram.len() <= ALONE_MAX || self.protection.is_secret() {
            return 1;
        }
        match peek_address(datagram) {
            Some((_, _, more)) if datagram.len() - more.len() <= LONG => {}
            // The places below are not for each segment of a write.
            _ => return 1,
        }
        let mut places = [(SpaceId(0), 0); AHEAD];
        let (mut count, mut requests, mut rest) = (0, 0, datagram);
        let mut last = (SpaceId(0), u64::MAX);
        while let (Some(place), Some((space, address, more))) =
            (places.get_mut(count), peek_address(rest))
        {
            if rest.len() - more.len() > LONG || requests == AHEAD {
                break;
            }
            (requests, rest) = (requests + 1, more);
            // Parts of a long read are mostly on the page of the part before.
            if std::mem::replace(&mut last, (space, address >> PAGE_SHIFT))
                != (space, address >> PAGE_SHIFT)
            {
                *place = (space, address);
                self.store.prefetch(space, address);
                count += 1;
            }
        }
        for (space, address) in &places[..count] {
            if let Some(Ok(part)) = self.store.part(*space, *address, 1) {
                tare_memory::prefetch(part);
            }
        }
        requests.max(1)
    }

    /// The status and the value of the answer to a request; its body is appended to `out`. A
    /// segment with a place may stay there.
    #[inline]
    fn answer(
        &mut self,
        now: Instant,
        request: &Request<'_>,
        place: Option<Place<'_>>,
        out: &mut Vec<u8>,
    ) -> Result<(u8, u64), Malformed> {
        let head = RESPONSE_HEADER + self.config.authentication.trailer_len();
        let is_plain = request.guard.is_none() && request.body.is_empty();
        if request.code == code::READ && request.epoch == self.config.epoch && is_plain {
            // Most requests; the rest of this finds out the same in more steps.
            let (address, len) = (request.address, request.length);
            if len as usize > self.config.datagram_bytes - head {
                return Ok(codec::encode_outcome(Err(Error::Length)));
            }
            if let Some(Ok(part)) = self.store.part(request.space, address, len) {
                let is_within = address.checked_add(len.into()).is_some();
                if part.len() == len as usize && len > 0 && is_within {
                    // All of it is on one page: there is nothing else to find out.
                    out.extend_from_slice(part);
                    return Ok((status::DONE, len.into()));
                }
            }
            let read = Operation::Read { address, len };
            return Ok(self.execute(now, request.space, &read, out));
        }
        if request.code == code::HELLO {
            return Ok((status::HELLO, self.hello(now, out)));
        }
        if request.epoch != self.config.epoch {
            self.counters.stale += 1;
            return Ok((status::EPOCH, 0));
        }
        if codec::is_idempotent(request.code) {
            let operation = codec::decode(request, request.body)?;
            if request.length as usize > self.config.datagram_bytes - head {
                return Ok(codec::encode_outcome(Err(Error::Length)));
            }
            return Ok(self.execute(now, request.space, &operation, out));
        }
        self.answer_once(now, request, place, out)
    }

    /// Runs an operation unless it was run, or may have been run and forgotten.
    ///
    /// All attempts of an operation, or of a segment of it, carry the time of the first, and a
    /// record is kept until requests with the latest of these times are refused: all segments have
    /// come when there is a record. So whatever clients believe of the node's clock, there is no
    /// moment at which a copy is accepted and the record is gone.
    fn answer_once(
        &mut self,
        now: Instant,
        request: &Request<'_>,
        place: Option<Place<'_>>,
        out: &mut Vec<u8>,
    ) -> Result<(u8, u64), Malformed> {
        let now_ns = now.as_nanos();
        let mut expires_ns = request.sent_ns.saturating_add(nanos(self.config.horizon()));
        // One from the future would be kept for longer than the bound on the records allows for.
        if expires_ns < now_ns
            || request.sent_ns > now_ns.saturating_add(nanos(self.config.timeout))
        {
            self.counters.expired += 1;
            return Ok((status::EXPIRED, 0));
        }
        let key = (request.space, request.operation_id());
        // A write of which segments are missing has not run.
        let is_open = request.segment != 0 && self.assemblies.has(key);
        if let Some(outcome) = (!is_open)
            .then(|| self.records.find(key.0, key.1))
            .flatten()
        {
            self.counters.repeated += 1;
            return Ok(outcome);
        }
        let has_room = self.records.has_room(now_ns);
        let outcome = if request.segment == 0 {
            let operation = codec::decode(request, request.body)?;
            // Pages of a region get memory at once, which may have to be zeroed: part by part, and
            // others are served before the client asks again.
            let is_long = request.code == code::REGION;
            if !has_room || (is_long && !self.store.prepare(request.space, &operation)) {
                self.counters.busy += 1;
                return Ok((status::BUSY, 0));
            }
            self.execute(now, request.space, &operation, out)
        } else {
            if request.code != code::WRITE {
                return Err(Malformed::Code);
            }
            let arrival = (self.assemblies).receive(request, place, expires_ns, has_room)?;
            let data = match arrival {
                Arrival::Kept => return Ok((status::RECEIVED, 0)),
                Arrival::Refused | Arrival::NoRoom => {
                    self.counters.busy += 1;
                    return Ok((status::BUSY, 0));
                }
                Arrival::Complete(data, latest) => {
                    expires_ns = latest;
                    data
                }
            };
            if data.is_empty() {
                self.write_held(now, request, place.map_or(&[], |place| place.before))
            } else {
                let operation = codec::decode(request, &data)?;
                let outcome = self.execute(now, request.space, &operation, out);
                self.assemblies.recycle(data);
                outcome
            }
        };
        self.records.insert(key, expires_ns, outcome);
        Ok(outcome)
    }

    /// Runs a write of which the segments are where they arrived; this request has the last one.
    fn write_held(&mut self, now: Instant, request: &Request<'_>, before: &[u8]) -> (u8, u64) {
        self.counters.executed += 1;
        let Request { space, address, .. } = *request;
        let (len, guard, store) = (request.length, request.guard, &mut self.store);
        let outcome = self.assemblies.held().gather(before, request.body, |fill| {
            store.write_with(now, space, address, len, guard, fill)
        });
        codec::encode_outcome(outcome)
    }

    fn execute(
        &mut self,
        now: Instant,
        space: SpaceId,
        operation: &Operation<'_>,
        out: &mut Vec<u8>,
    ) -> (u8, u64) {
        self.counters.executed += u64::from(!matches!(operation, Operation::Read { .. }));
        let start = out.len();
        let outcome = self.store.execute(now, space, operation, out);
        if outcome.is_err() {
            out.truncate(start);
        }
        codec::encode_outcome(outcome)
    }

    /// Writes what a client needs to know to `out`; returns the time of the node's start.
    fn hello(&self, now: Instant, out: &mut Vec<u8>) -> u64 {
        let limits = [
            self.config.datagram_bytes as u64,
            nanos(self.config.timeout),
            self.config.assembly_bytes_per_space,
        ];
        out.extend_from_slice(limits.map(u64::to_le_bytes).as_flattened());
        self.started.unwrap_or(now).as_nanos()
    }

    /// Forgets what has expired. To be called at [`Node::next_deadline`], or any time.
    pub fn tick(&mut self, now: Instant) {
        let now = self.advance(now);
        self.records.has_room(now.as_nanos());
        self.counters.abandoned += self.assemblies.expire(now.as_nanos()) as u64;
    }

    /// The time from which on something is to be forgotten.
    pub fn next_deadline(&self) -> Instant {
        let expiry = self.records.next_expiry();
        let expiry = expiry.min(self.assemblies.next_expiry());
        Instant::from_nanos(expiry.saturating_add(1))
    }

    /// Returns the epoch.
    pub fn epoch(&self) -> u64 {
        self.config.epoch
    }

    /// Returns what the node did.
    pub fn counters(&self) -> NodeCounters {
        self.counters
    }

    /// Operations whose outcome is remembered.
    pub fn records(&self) -> usize {
        self.records.len()
    }

    /// The memory.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The memory, for what its operator does.
    pub fn store_mut(&mut self) -> &mut S {
        &mut self.store
    }

    /// The memory, for another node to go on with.
    pub fn into_store(self) -> S {
        self.store
    }
}

/// Least length of the longest datagram, in bytes: header, guard and trailer around a segment.
pub(crate) const DATAGRAM_MIN: usize = 1024;

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::protection::Authentication;
    use super::*;
    use crate::memory::Config;
    use crate::memory::Store;

    #[test]
    fn a_piece_is_answered_in_parts_and_every_request_of_it_once() {
        let mut protection = Protection::new(Authentication::None);
        let mut piece = Vec::new();
        for id in 1..=5 {
            let request = Request {
                code: code::HELLO,
                space: SpaceId(1),
                id,
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
            request.emit(&mut protection, &mut piece).unwrap();
        }
        let store = Store::new(&Config::new(1 << 20));
        let mut node = Node::new(NodeConfig::new(1), store);
        let (mut ids, mut parts, mut rest) = (Vec::new(), 0, &mut piece[..]);
        while !rest.is_empty() {
            let mut replies = Datagrams::default();
            // Enough after the second.
            let enough = RESPONSE_HEADER + 25;
            let taken = node.receive_some(Instant::ZERO, rest, &mut replies, enough);
            rest = &mut rest[taken..];
            parts += 1;
            let mut bytes = replies.bytes.clone();
            let mut answers = &mut bytes[..];
            while !answers.is_empty() {
                let (response, more) = Response::parse(answers, &mut protection).unwrap();
                ids.push(response.id);
                answers = more;
            }
        }
        assert_eq!((ids, parts), (vec![1, 2, 3, 4, 5], 3));
    }

    #[test]
    fn a_write_that_goes_on_is_kept_and_its_record_outlasts_the_latest_segment() {
        const MS: u64 = 1_000_000;
        let mut protection = Protection::new(Authentication::None);
        let space = SpaceId(1);
        let mut store = Store::new(&Config::new(1 << 20));
        let alloc = Operation::Alloc {
            bytes: 4096,
            page: PageSize::Small,
            at: Some(0),
            permission: crate::operation::Permission::READ_WRITE,
            sparse: false,
        };
        for operation in [Operation::Open, alloc] {
            let done = store.execute(Instant::ZERO, space, &operation, &mut Vec::new());
            assert!(done.is_ok());
        }
        let config = NodeConfig {
            timeout: Duration::from_millis(20),
            ..NodeConfig::new(1)
        };
        let mut node = Node::new(config, store);
        let mut send = |at_ms: u64, index: u32, sent_ms: u64| {
            let request = Request {
                code: code::WRITE,
                space,
                id: 1 + u64::from(index),
                epoch: 1,
                replaced: if index == 0 { 0 } else { 1 },
                sent_ns: sent_ms * MS,
                address: 0,
                length: 3 * 512,
                offset: 512 * index,
                segment: 512,
                guard: None,
                body: &[7; 512],
            };
            let (mut datagram, mut replies) = (Vec::new(), Datagrams::default());
            request.emit(&mut protection, &mut datagram).unwrap();
            node.tick(Instant::from_nanos(at_ms * MS));
            node.receive(Instant::from_nanos(at_ms * MS), &mut datagram, &mut replies);
            let mut answer = replies.bytes.clone();
            let (response, _) = Response::parse(&mut answer, &mut protection).unwrap();
            (response.status, node.counters())
        };
        // The horizon is 60 ms, and the whole takes 100.
        assert_eq!(send(0, 0, 0).0, status::RECEIVED);
        assert_eq!(send(50, 1, 50).0, status::RECEIVED);
        let (done, counters) = send(100, 2, 100);
        assert_eq!((done, counters.abandoned), (status::DONE, 0));
        // A copy of the last segment, and one of the second after its own horizon.
        for (at, index, sent, expected) in [
            (159, 2, 100, status::DONE),
            (159, 1, 50, status::EXPIRED),
            (161, 2, 100, status::EXPIRED),
        ] {
            let (found, counters) = send(at, index, sent);
            assert_eq!((found, counters.executed), (expected, 1), "{at} {index}");
        }
    }
}
