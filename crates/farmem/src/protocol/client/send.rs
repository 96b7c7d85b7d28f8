//! The requests that a client sends, and the limits to them.

use tare_sim::Instant;

use super::super::codec::{code, Head};
use super::super::datagrams::{Datagrams, RUN_BYTES, SEND_BYTES};
use super::super::message::{Request, GUARD_LEN, REQUEST_HEADER, RESPONSE_HEADER};
use super::{Attempt, Client, Failure, First, Handle, NodeInfo, Requests};
use crate::operation::{Error, SpaceId};

/// Bytes of an operation after which it is the turn of the next one.
const TURN_BYTES: u32 = 64 << 10;

/// The next segment of a long write.
enum Segment {
    /// One as long as the others.
    Whole,
    /// A shorter one, the last, in a request of so many bytes.
    End(usize),
}

impl Client {
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
            if self.operations.get(attempt.operation).is_none() {
                self.requests.remove(id);
            } else if !self.has_room(
                (attempt.request_bytes.into(), attempt.response_bytes.into()),
                longest,
                datagram,
            ) {
                return false;
            } else if let Some((id, attempt)) = self.requests.retry(id, now) {
                self.counters.retransmissions += 1;
                let part = (attempt.offset, attempt.length);
                self.emit(id, attempt.operation, part, datagram);
            }
        }
        self.requests.again.pop_front();
        true
    }

    /// Sends the next part of the first operation in the queue, if there is room for it; returns
    /// false if not. Operations take turns, so that a long one does not hold up the others. A turn
    /// is not a single part, because operations that were submitted together would then end
    /// together, with nothing on the way until others are submitted.
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
        let Some(active) = self.operations.get(handle) else {
            self.ready.pop_front();
            return true;
        };
        let head = active.head;
        if head.code == code::WRITE && u64::from(head.length) > node.write_max {
            self.ready.pop_front();
            self.finish(handle.slot, Err(Failure::Refused(Error::Length)));
            return true;
        }
        let part = match active.first {
            None => self.part(&head, longest),
            Some(first) => first.part,
        };
        let offset = active.sent;
        let length = part.min(head.length - offset);
        let bytes = self.message_bytes(&head, active.data.len(), length);
        if self.requests.len() >= self.config.requests_max
            || !self.has_room(bytes, longest, datagram)
        {
            return false;
        }
        let attempt = Attempt::first(handle, (offset, length), now, bytes);
        let id = self.requests.insert(&attempt);
        let passed_ns = now.as_nanos().saturating_sub(node.at.as_nanos());
        let at_ns = node.time_ns.saturating_add(passed_ns);
        if let Some((_, active)) = self.operations.at(handle.slot) {
            active.sent += length;
            active.first.get_or_insert(First {
                id,
                at: now,
                at_ns,
                part,
            });
            let is_over = active.sent / TURN_BYTES != offset / TURN_BYTES;
            if active.sent == head.length {
                self.ready.pop_front();
            } else if is_over {
                self.ready.rotate_left(1);
            }
        }
        self.emit(id, handle, (offset, length), datagram);
        true
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
                let (request, _) = self.message_bytes(&head, 0, rest);
                Some(Segment::End(request as usize))
            }
            Some(first) if rest >= first.part => Some(Segment::Whole),
            None if u64::from(rest) >= RUN_BYTES as u64 / 2 => Some(Segment::Whole),
            _ => None,
        }
    }

    /// Returns the bytes of a request or response that carry data, in datagrams of up to `longest`.
    #[inline]
    pub(super) fn part(&self, head: &Head, longest: usize) -> u32 {
        let trailer = self.config.authentication.trailer_len();
        let around = match head.code {
            code::READ => RESPONSE_HEADER,
            _ => REQUEST_HEADER + guard_len(head),
        };
        ((longest - around - trailer) & !7) as u32
    }

    /// Returns the bytes of a request for `length` bytes, and of its response as far as they can be
    /// foreseen. `data` is the length of what is sent behind the header if that is no part of a
    /// write.
    #[inline]
    pub(super) fn message_bytes(&self, head: &Head, data: usize, length: u32) -> (u64, u64) {
        let trailer = self.config.authentication.trailer_len();
        let request = REQUEST_HEADER + guard_len(head) + trailer;
        let response = RESPONSE_HEADER + trailer;
        let (request, response) = match head.code {
            code::READ => (request, response + length as usize),
            code::WRITE => (request + length as usize, response),
            _ => (request + data, response),
        };
        (request as u64, response as u64)
    }

    fn has_room(
        &mut self,
        (request, response): (u64, u64),
        longest: usize,
        datagram: &Datagrams,
    ) -> bool {
        let Requests {
            bytes,
            response_bytes,
            ..
        } = self.requests;
        // One request is always allowed, however long the response.
        let in_window = bytes == 0
            || (bytes + request + response <= self.path.window()
                && response_bytes + response <= self.config.response_bytes_max);
        self.is_blocked |= !in_window;
        in_window && datagram.open_bytes() as u64 + request <= longest as u64
    }

    /// Appends an attempt to a datagram.
    #[inline]
    fn emit(
        &mut self,
        id: u64,
        handle: Handle,
        (offset, part): (u32, u32),
        datagram: &mut Datagrams,
    ) {
        let active = self.operations.get(handle);
        let Some((active, first)) = active.and_then(|active| Some((active, active.first?))) else {
            return;
        };
        let head = active.head;
        let (address, length, body) = match head.code {
            code::READ => (head.address + u64::from(offset), part, &[][..]),
            code::WRITE => {
                let body = active.data.get(offset as usize..);
                let body = body.and_then(|body| body.get(..part as usize));
                (head.address, head.length, body.unwrap_or(&[]))
            }
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
            offset: if is_segment { offset } else { 0 },
            segment: if is_segment { first.part } else { 0 },
            guard: head.guard,
            body,
        };
        // As above.
        let _ = request.emit(&mut self.protection, &mut datagram.bytes);
        self.counters.requests += 1;
    }
}

fn guard_len(head: &Head) -> usize {
    if head.guard.is_some() {
        GUARD_LEN
    } else {
        0
    }
}
