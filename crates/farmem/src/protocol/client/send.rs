//! The requests that a client sends, and the limits to them.

use tare_sim::Instant;

use super::super::codec::{code, Head};
use super::super::datagrams::{Datagrams, RUN_BYTES, SEND_BYTES};
use super::super::message::{Request, GUARD_LEN, REQUEST_HEADER, RESPONSE_HEADER};
use super::super::protection::Protection;
use super::operations::{Active, Handle, Operations};
use super::path::Path;
use super::{Attempt, Client, ClientConfig, Failure, First, NodeInfo, Requests, HELLO};
use crate::operation::{Error, SpaceId};

/// Bytes of an operation after which it is the turn of the next one.
const TURN_BYTES: u32 = 64 << 10;

/// Bytes on the way that are enough to do for the node while the end of a write waits: two runs.
const HOLD_BYTES: u64 = 2 * SEND_BYTES as u64;

/// The next segment of a long write.
enum Segment {
    /// One as long as the others.
    Whole,
    /// A shorter one, the last, in a request of so many bytes.
    End(usize),
}

/// Segments of long writes, in one datagram each, all of the same length. Their data is where the
/// writes have it.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    segments: &'a Segments,
    operations: &'a Operations,
}

/// The segments of a run.
#[derive(Debug, Default)]
pub(super) struct Segments {
    headers: Vec<u8>,
    /// The write of each, and which of its bytes.
    segments: Vec<(Handle, u32, u32)>,
    datagram_bytes: usize,
}

impl Segments {
    fn clear(&mut self) {
        self.headers.clear();
        self.segments.clear();
    }
}

impl<'a> Run<'a> {
    /// Header and data of each datagram.
    pub fn datagrams(&self) -> impl Iterator<Item = [&'a [u8]; 2]> {
        let Run {
            segments,
            operations,
        } = *self;
        let mut headers = &segments.headers[..];
        segments.segments.iter().map(move |&(handle, offset, len)| {
            let data = operations
                .get(handle)
                .map_or(&[][..], |active| &active.data);
            let data = data.get(offset as usize..).unwrap_or(&[]);
            let data = data.get(..len as usize).unwrap_or(data);
            let (header, rest) = headers.split_at(segments.datagram_bytes - len as usize);
            headers = rest;
            [header, data]
        })
    }

    /// Returns the bytes of each datagram.
    pub fn datagram_bytes(&self) -> usize {
        self.segments.datagram_bytes
    }
}

impl Client {
    /// Takes what is known of the node for out of date, so that it is asked for again.
    pub(super) fn ask_again(&mut self) {
        (self.node, self.hello) = (None, HELLO);
    }

    /// Asks the node for its epoch, for a space that an operation waits for: every key belongs to
    /// one.
    pub(super) fn greet(&mut self, now: Instant, datagram: &mut Datagrams) {
        if self.hello.id == 0 {
            self.hello.id = self.requests.new_id();
            let first = self.operations.oldest();
            self.hello.space = first.map_or(SpaceId(0), |(_, active)| active.space);
        }
        let request = Request {
            code: code::HELLO,
            space: self.hello.space,
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
        // A space has a capability since the operation was taken.
        let _ = request.emit(&mut self.protection, &mut datagram.bytes);
        self.hello.next = now + self.path.timeout(self.hello.attempts);
        self.hello.attempts += 1;
        self.counters.requests += 1;
    }

    /// Sends a part again, if there is one and room for it; returns false if not.
    pub(super) fn transmit_again(
        &mut self,
        now: Instant,
        longest: usize,
        datagram: &mut Datagrams,
    ) -> bool {
        let Some(&id) = self.requests.again.front() else {
            return false;
        };
        if let Some(&attempt) = self.requests.find(id) {
            let bytes = (attempt.request_bytes.into(), attempt.response_bytes.into());
            let active = self.operations.get(attempt.operation);
            let sent = active.and_then(|active| Some((active, active.first.as_ref()?)));
            let Some((active, first)) = sent else {
                self.requests.remove(id);
                self.requests.again.pop_front();
                return true;
            };
            if !in_window(&self.requests, &self.path, &self.config, bytes) {
                self.is_blocked = true;
                return false;
            }
            if !fits(bytes.0, longest, datagram) {
                return false;
            }
            if let Some((id, attempt)) = self.requests.retry(id, now) {
                let part = (attempt.offset, attempt.length);
                let message = Message::new(self.epoch, active, first, attempt.sent_ns);
                message.emit(id, part, &active.data, &mut self.protection, datagram);
                self.counters.retransmissions += 1;
                self.counters.requests += 1;
            }
        }
        self.requests.again.pop_front();
        true
    }

    /// Sends parts of the first operation in the queue: as many as there is room for in the
    /// datagram and, of a long write, in datagrams of the same run; returns false if there is room
    /// for none. Operations take turns, so that a long one does not hold up the others. A turn is
    /// not a single part, because operations that were submitted together would then end together,
    /// with nothing on the way until others are submitted.
    pub(super) fn transmit_first(
        &mut self,
        now: Instant,
        node: &NodeInfo,
        longest: usize,
        datagram: &mut Datagrams,
    ) -> bool {
        if self.ready.len() > 1 && datagram.open_bytes() == 0 {
            self.order_ends(longest, datagram.bytes());
        }
        let Some(&handle) = self.ready.front() else {
            return false;
        };
        let Some(active) = self.operations.find(handle) else {
            self.ready.pop_front();
            return true;
        };
        let head = active.head;
        if head.code == code::WRITE && u64::from(head.length) > node.write_max {
            self.ready.pop_front();
            self.finish(handle.slot, Err(Failure::Refused(Error::Length)));
            return true;
        }
        let trailer = self.config.authentication.trailer_len();
        let part = match active.first {
            None if head.code != code::READ && node.is_silent(now) => {
                datagram.end();
                self.ask_again();
                self.greet(now, datagram);
                return false;
            }
            None => part_bytes(&head, longest, trailer),
            Some(first) => first.part,
        };
        let mut is_sent = false;
        loop {
            let offset = active.sent;
            let length = part.min(head.length - offset);
            let bytes = message_bytes(&head, trailer, active.data.len(), length);
            if self.requests.len() >= self.config.requests_max {
                return is_sent;
            }
            if !in_window(&self.requests, &self.path, &self.config, bytes) {
                self.is_blocked = true;
                return is_sent;
            }
            if !fits(bytes.0, longest, datagram) {
                // Not the last datagram of a run, which may be another operation's.
                let run = datagram.bytes() + longest;
                let is_whole = head.code == code::WRITE && length == part;
                if !is_sent || !is_whole || run >= SEND_BYTES || run + longest > RUN_BYTES {
                    return is_sent;
                }
                datagram.end();
            }
            let sent_ns = node.time_at(now);
            let attempt = Attempt::first(handle, (offset, length), (now, sent_ns), bytes);
            let id = self.requests.insert(&attempt);
            active.sent = offset + length;
            let first = *active.first.get_or_insert(First { id, at: now, part });
            let message = Message::new(self.epoch, active, &first, sent_ns);
            let part = (offset, length);
            message.emit(id, part, &active.data, &mut self.protection, datagram);
            self.counters.requests += 1;
            if active.sent == head.length {
                self.ready.pop_front();
                return true;
            }
            if active.sent / TURN_BYTES != offset / TURN_BYTES {
                self.ready.rotate_left(1);
                return true;
            }
            is_sent = true;
        }
    }

    /// Returns segments of long writes to be sent to the node, if they are what is to be sent next:
    /// as [`Client::transmit`] would, but with the data where the writes have it. Segments have
    /// `least` bytes of data or more.
    ///
    /// Messages with a trailer are made in one piece, and the end of a write may share a datagram
    /// with other messages, so that it returns none of those.
    pub fn transmit_run(&mut self, now: Instant, least: u32) -> Option<Run<'_>> {
        let node = self.node?;
        self.ready.front()?;
        if self.protection.trailer_len() > 0 || !self.requests.again.is_empty() {
            return None;
        }
        self.stamp(now);
        if self.waits_for_burst() {
            return None;
        }
        let longest = self.datagram_bytes.min(node.datagram_bytes);
        self.run.clear();
        let sent_ns = node.time_at(now);
        let mut bytes = 0;
        while bytes + longest <= RUN_BYTES {
            let Some(&handle) = self.ready.front() else {
                break;
            };
            let Some(active) = self.operations.find(handle) else {
                break;
            };
            let head = active.head;
            let part = match active.first {
                None if node.is_silent(now) => break,
                None => part_bytes(&head, longest, 0),
                Some(first) => first.part,
            };
            let offset = active.sent;
            let is_whole = head.code == code::WRITE && head.length - offset >= part;
            if !is_whole || part < least || u64::from(head.length) > node.write_max {
                break;
            }
            let message = message_bytes(&head, 0, 0, part);
            if self.requests.len() >= self.config.requests_max {
                break;
            }
            if !in_window(&self.requests, &self.path, &self.config, message) {
                self.is_blocked = true;
                break;
            }
            // They differ where the limit of datagrams has changed since a write began.
            let size = message.0 as usize;
            if self.run.segments.is_empty() {
                self.run.datagram_bytes = size;
            } else if size != self.run.datagram_bytes {
                break;
            }
            let attempt = Attempt::first(handle, (offset, part), (now, sent_ns), message);
            let id = self.requests.insert(&attempt);
            active.sent = offset + part;
            let first = *active.first.get_or_insert(First { id, at: now, part });
            let message = Message::new(self.epoch, active, &first, sent_ns);
            let request = message.request(id, (offset, part), &active.data);
            request.emit_header(&self.protection, &mut self.run.headers);
            self.run.segments.push((handle, offset, part));
            self.counters.requests += 1;
            bytes += size;
            if active.sent == head.length {
                self.ready.pop_front();
            } else if active.sent / TURN_BYTES != offset / TURN_BYTES {
                self.ready.rotate_left(1);
            }
        }
        (!self.run.segments.is_empty()).then_some(Run {
            segments: &self.run,
            operations: &self.operations,
        })
    }

    /// Returns true while all that is to be sent is the end of a long write, less than a run of
    /// datagrams, and the node has enough to do until it is answered: the end then leaves with the
    /// next operation, in one system call for each side, or when less is on the way (as with the
    /// algorithm of Nagle, RFC 896).
    pub(super) fn holds_end(&self) -> bool {
        if self.requests.bytes < HOLD_BYTES || self.ready.len() != 1 {
            return false;
        }
        let active = self.ready.front().and_then(|one| self.operations.get(*one));
        let is_end = active.is_some_and(|active| {
            let left = active.head.length - active.sent;
            active.head.code == code::WRITE && active.sent > 0 && (left as usize) < RUN_BYTES / 2
        });
        is_end && self.requests.again.is_empty()
    }

    /// Sees to it that the last segment of a long write, which is shorter than the others, is the
    /// last datagram of a run, if there is another long write: it ends the run that it is in.
    fn order_ends(&mut self, longest: usize, run: usize) {
        let (Some(one), Some(other)) = (self.segment(0), self.segment(1)) else {
            return;
        };
        let run = run + longest;
        let has_room = |end: usize| run < SEND_BYTES && run + end <= RUN_BYTES;
        let is_swapped = match (one, other) {
            (Segment::End(end), Segment::Whole) => has_room(end),
            (Segment::Whole, Segment::End(end)) => run > longest && !has_room(end),
            _ => false,
        };
        if is_swapped {
            self.ready.swap(0, 1);
        }
    }

    /// Returns the next segment of an operation in the queue, if it is a long write of which
    /// something was sent, or which has not begun.
    fn segment(&self, place: usize) -> Option<Segment> {
        let active = self.operations.get(*self.ready.get(place)?)?;
        let (head, first) = (active.head, active.first);
        if head.code != code::WRITE {
            return None;
        }
        let rest = head.length - active.sent;
        match first {
            Some(first) if head.length > first.part && rest < first.part => {
                let trailer = self.config.authentication.trailer_len();
                let (request, _) = message_bytes(&head, trailer, 0, rest);
                Some(Segment::End(request as usize))
            }
            Some(first) if rest >= first.part => Some(Segment::Whole),
            None if u64::from(rest) >= RUN_BYTES as u64 / 2 => Some(Segment::Whole),
            _ => None,
        }
    }
}

/// Returns the bytes of a request or response that carry data, in datagrams of up to `longest`.
#[inline]
pub(super) fn part_bytes(head: &Head, longest: usize, trailer: usize) -> u32 {
    let around = match head.code {
        code::READ => RESPONSE_HEADER,
        _ => REQUEST_HEADER + guard_len(head),
    };
    ((longest - around - trailer) & !7) as u32
}

/// Returns the bytes of a request for `length` bytes, and of its response as far as they can be
/// foreseen. `data` is the length of what is sent behind the header if that is no part of a write.
#[inline]
pub(super) fn message_bytes(head: &Head, trailer: usize, data: usize, length: u32) -> (u64, u64) {
    let request = REQUEST_HEADER + guard_len(head) + trailer;
    let response = RESPONSE_HEADER + trailer;
    let (request, response) = match head.code {
        code::READ => (request, response + length as usize),
        code::WRITE => (request + length as usize, response),
        _ => (request + data, response),
    };
    (request as u64, response as u64)
}

/// Returns true if so many bytes of a request and its response may be on the way beside all others.
#[inline]
fn in_window(
    requests: &Requests,
    path: &Path,
    config: &ClientConfig,
    (request, response): (u64, u64),
) -> bool {
    let (bytes, response_bytes) = (requests.bytes, requests.response_bytes);
    // One request is always allowed, however long the response.
    bytes == 0
        || (bytes + request + response <= path.window()
            && response_bytes + response <= config.response_bytes_max)
}

/// Returns true if a datagram has room for a request of so many bytes.
#[inline]
fn fits(request: u64, longest: usize, datagram: &Datagrams) -> bool {
    datagram.open_bytes() as u64 + request <= longest as u64
}

/// The parts that all requests of an operation share.
pub(super) struct Message<'a> {
    pub(super) epoch: u64,
    pub(super) space: SpaceId,
    pub(super) head: &'a Head,
    pub(super) first: &'a First,
    /// The time when the first attempt of the part was sent, by the node's clock.
    pub(super) sent_ns: u64,
}

impl<'a> Message<'a> {
    #[inline(always)]
    fn new(epoch: u64, active: &'a Active, first: &'a First, sent_ns: u64) -> Message<'a> {
        Message {
            epoch,
            space: active.space,
            head: &active.head,
            first,
            sent_ns,
        }
    }

    /// Appends the attempt with this number to a datagram. `data` is the whole body of the
    /// operation. Returns false if the client has no capability for the space.
    #[inline(always)]
    pub(super) fn emit(
        &self,
        id: u64,
        (offset, part): (u32, u32),
        data: &[u8],
        protection: &mut Protection,
        datagram: &mut Datagrams,
    ) -> bool {
        let request = self.request(id, (offset, part), data);
        request.emit(protection, &mut datagram.bytes).is_ok()
    }

    /// The request of this attempt.
    #[inline(always)]
    fn request<'d>(&self, id: u64, (offset, part): (u32, u32), data: &'d [u8]) -> Request<'d> {
        let (head, first) = (self.head, self.first);
        let (address, length, body) = match head.code {
            code::READ => (head.address + u64::from(offset), part, &[][..]),
            code::WRITE => {
                let body = data.get(offset as usize..);
                let body = body.and_then(|body| body.get(..part as usize));
                (head.address, head.length, body.unwrap_or(&[]))
            }
            _ => (head.address, 0, data),
        };
        let is_segment = head.code == code::WRITE && head.length > first.part;
        Request {
            code: head.code,
            space: self.space,
            id,
            epoch: self.epoch,
            replaced: if first.id == id { 0 } else { first.id },
            sent_ns: self.sent_ns,
            address,
            length,
            offset: if is_segment { offset } else { 0 },
            segment: if is_segment { first.part } else { 0 },
            guard: head.guard,
            body,
        }
    }
}

fn guard_len(head: &Head) -> usize {
    if head.guard.is_some() {
        GUARD_LEN
    } else {
        0
    }
}
