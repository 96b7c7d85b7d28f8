//! The operation that is alone: while no other is outstanding there is no order to keep, no window
//! to share and no queue to wait in, so that its state is one record beside those of all others.

use tare_sim::Instant;

use super::super::codec::{self, code, Head};
use super::super::datagrams::Datagrams;
use super::super::message::{Request, Response};
use super::order::Footprint;
use super::requests::Part;
use super::{nanos, Client, Completion, Failure, First, NodeInfo, OperationId};
use crate::operation::{SpaceId, Value};

/// An operation that was taken, and is not among others yet.
#[derive(Debug)]
pub(super) struct Fresh {
    pub(super) id: OperationId,
    pub(super) space: SpaceId,
    pub(super) head: Head,
    pub(super) footprint: Footprint,
    /// The body to send, or the buffer of a read.
    pub(super) data: Vec<u8>,
    /// `None` if the clock was not read for it.
    pub(super) submitted: Option<Instant>,
}

/// The only operation outstanding, which takes one request. The node is known then.
#[derive(Debug)]
pub(super) struct Lone {
    fresh: Fresh,
    /// The time at which it is given up, if its time runs already.
    end: Instant,
    /// Bytes of its request, and of the response as far as they can be foreseen.
    bytes: (u64, u64),
    sent: Option<Sent>,
}

/// The first attempt.
#[derive(Clone, Copy, Debug)]
struct Sent {
    id: u64,
    at: Instant,
    /// The same by the node's clock.
    at_ns: u64,
    /// The time at which it counts as lost.
    timer: Instant,
}

impl Client {
    /// Returns true if an operation would be the only one, and one request is enough for it.
    #[inline]
    pub(super) fn is_alone(&self, head: &Head, data: usize) -> bool {
        let Some(node) = &self.node else {
            return false;
        };
        if self.active > 0 || self.requests.len() > 0 || head.code == code::FENCE {
            return false;
        }
        let longest = self.config.datagram_bytes.min(node.datagram_bytes);
        let (request, _) = self.message_bytes(head, data, head.length);
        head.length <= self.part(head, longest)
            && request <= longest as u64
            && u64::from(head.length) <= node.write_max
    }

    /// Takes an operation as the only one.
    #[inline]
    pub(super) fn enter_alone(&mut self, fresh: Fresh) {
        self.active = 1;
        self.lone.reserve_exact(1);
        let bytes = self.message_bytes(&fresh.head, fresh.data.len(), fresh.head.length);
        self.lone.push(Lone {
            bytes,
            end: match fresh.submitted {
                Some(submitted) => submitted + self.timeout(),
                None => Instant::NEVER,
            },
            sent: None,
            fresh,
        });
    }

    /// Sends the operation that is alone, if it was not; returns false if there is nothing to send,
    /// and `None` if no operation is alone.
    #[inline]
    pub(super) fn transmit_alone(
        &mut self,
        now: Instant,
        node: &NodeInfo,
        datagram: &mut Datagrams,
    ) -> Option<bool> {
        let lone = self.lone.first_mut()?;
        if lone.sent.is_some() {
            return Some(false);
        }
        if lone.fresh.submitted.is_none() {
            lone.fresh.submitted = Some(now);
            lone.end = now + self.config.timeout.min(node.timeout);
        }
        let sent = Sent {
            id: self.requests.new_id_alone(),
            at: now,
            at_ns: node.time_ns.saturating_add(nanos(now.since(node.at))),
            timer: now + self.path.timeout(0),
        };
        lone.sent = Some(sent);
        let fresh = &lone.fresh;
        let request = Request {
            code: fresh.head.code,
            space: fresh.space,
            id: sent.id,
            epoch: self.epoch,
            replaced: 0,
            sent_ns: sent.at_ns,
            address: fresh.head.address,
            length: fresh.head.length,
            offset: 0,
            segment: 0,
            guard: fresh.head.guard,
            body: &fresh.data,
        };
        // A space has a capability since the operation was taken.
        let _ = request.emit(&mut self.protection, &mut datagram.bytes);
        self.counters.requests += 1;
        datagram.end();
        Some(true)
    }

    /// The time at which the operation that is alone needs more than an answer.
    #[inline]
    pub(super) fn lone_deadline(&self) -> Option<Instant> {
        let lone = self.lone.first()?;
        let timer = lone.sent.map_or(Instant::NEVER, |sent| sent.timer);
        Some(timer.min(lone.end))
    }

    /// Ends the operation that is alone by its answer; returns false if the message is anything
    /// else.
    #[inline]
    pub(super) fn answer_alone(&mut self, now: Instant, response: &Response<'_>) -> bool {
        let Some(lone) = self.lone.first() else {
            return false;
        };
        let Some(sent) = lone.sent.filter(|sent| sent.id == response.id) else {
            return false;
        };
        if response.space != lone.fresh.space || response.epoch != self.epoch {
            return false;
        }
        let head = &lone.fresh.head;
        let outcome = codec::decode_outcome(head.code, response.status, response.value);
        let is_read = matches!(outcome, Some(Ok(Value::Bytes(_))));
        let length = if is_read { head.length as usize } else { 0 };
        let Some(outcome) = outcome.filter(|_| response.body.len() == length) else {
            return false;
        };
        let Some(lone) = self.lone.pop() else {
            return false;
        };
        self.active = 0;
        self.hear(now, response.time_ns);
        let (head, data) = (lone.fresh.head, lone.fresh.data);
        let (to, back) = lone.bytes;
        self.path
            .answered(now, now.since(sent.at), to + back, to + back);
        let outcome = match outcome {
            Ok(Value::Bytes(_)) => Ok(Value::Bytes(head.length)),
            outcome => outcome.map_err(Failure::Refused),
        };
        let mut data = data;
        data.clear();
        if is_read {
            data.extend_from_slice(response.body);
        } else {
            self.recycle(std::mem::take(&mut data));
        }
        self.completions.push_back(Completion {
            id: lone.fresh.id,
            space: lone.fresh.space,
            outcome,
            data,
        });
        true
    }

    /// Puts the operation that is alone among others, because another one comes, or something
    /// other than its answer.
    pub(super) fn join(&mut self, now: Instant) {
        let Some(lone) = self.lone.pop() else {
            return;
        };
        self.active = 0;
        let (head, id) = (lone.fresh.head, lone.fresh.id);
        let slot = self.enter(now, lone.fresh);
        let (Some(sent), Some(node)) = (lone.sent, &self.node) else {
            return;
        };
        let longest = self.config.datagram_bytes.min(node.datagram_bytes);
        let part = self.part(&head, longest);
        let (request_bytes, response_bytes) = lone.bytes;
        // It entered the queue of those that are to be sent as the last one.
        self.ready.pop_back();
        if let Some(Some(active)) = self.operations.get_mut(slot as usize) {
            active.sent = head.length;
            active.first = Some(First {
                id: sent.id,
                at: sent.at,
                at_ns: sent.at_ns,
                part,
            });
            if head.code == code::READ {
                active.data.resize(head.length as usize, 0);
            }
        }
        let part = Part {
            operation: (slot, id),
            offset: 0,
            length: head.length,
            first: (sent.id, sent.at),
            last: (sent.id, sent.at),
            attempts: 1,
            request_bytes,
            response_bytes,
            in_flight: true,
        };
        let index = self.requests.insert(part);
        self.requests.timers.push(sent.timer, (index, sent.id));
    }
}
