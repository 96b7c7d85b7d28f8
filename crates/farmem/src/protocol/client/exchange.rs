//! One operation at a time: a request and its answer that no table knows of.
//!
//! While an operation is the only one of its client, nothing waits for it and nothing has to be
//! found by its number. So it is entered only when that is no longer certain: if the answer is
//! late, or says something else than how the operation ended. From then on it is as if it had been
//! submitted. It saves nearly two thirds of the client's instructions for a read, and a client that
//! is in no cache needs fewer lines.

use std::time::Duration;

use tare_sim::Instant;

use super::super::codec::{self, code, Head};
use super::super::datagrams::Datagrams;
use super::super::message::{Malformed, Response};
use super::order::Footprint;
use super::send::{message_bytes, part_bytes, Message};
use super::{Attempt, Client, Failure, First, OperationId};
use crate::operation::{Operation, SpaceId, Value};

/// An operation whose request was sent, and which is in no table of its client yet. Until it has
/// ended, by [`Client::finish_exchange`], or was entered, by that or [`Client::enter_exchange`],
/// nothing else is to be done with the client. If it is dropped, the operation may run until the
/// horizon is reached, once, and has no completion.
#[derive(Debug)]
#[must_use = "the client does not know of the operation"]
pub struct Exchange {
    space: SpaceId,
    first: First,
    /// The time of the first request, by the node's clock.
    sent_ns: u64,
    /// The code of the operation.
    code: u8,
    /// Bytes of the request and of the response.
    bytes: (u64, u64),
}

impl Client {
    /// Starts a read, a write, a compare-and-swap or an addition that fits into one datagram, which
    /// is appended to `out`. `None` if it is another operation, or if it has to be submitted:
    /// others have not completed, the node or its time is not known, or it would be refused.
    #[inline]
    pub fn start_exchange(
        &mut self,
        now: Instant,
        space: SpaceId,
        operation: &Operation<'_>,
        out: &mut Datagrams,
    ) -> Option<Exchange> {
        match *operation {
            Operation::Read { address, len } => {
                self.start(now, space, &Head::of_read(address, len), &[], out)
            }
            Operation::Write {
                address,
                data,
                guard,
            } => {
                let head = Head {
                    code: code::WRITE,
                    address,
                    length: u32::try_from(data.len()).ok()?,
                    guard,
                };
                self.start(now, space, &head, data, out)
            }
            Operation::CompareAndSwap { .. } | Operation::FetchAdd { .. } => {
                let mut arguments = self.buffers.pop().unwrap_or_default();
                let head = codec::encode(operation, &mut arguments);
                let exchange = self.start(now, space, &head, &arguments, out);
                self.recycle(arguments);
                exchange
            }
            _ => None,
        }
    }

    /// Starts an operation with this head and this body. It is compiled apart for each kind of
    /// operation, so that each has little code: the kernel, which sends and receives between two
    /// calls, leaves little of it in the first cache.
    #[inline(always)]
    fn start(
        &mut self,
        now: Instant,
        space: SpaceId,
        head: &Head,
        body: &[u8],
        out: &mut Datagrams,
    ) -> Option<Exchange> {
        let is_only = self.operations.len() == 0;
        let id = self.requests.next_id().filter(|_| is_only)?;
        self.check(space, (head.address, head.length.into())).ok()?;
        let node = self.node.as_ref()?;
        // No node looks at the age of a read.
        if head.code != code::READ && node.is_silent(now) {
            return None;
        }
        let longest = self.datagram_bytes.min(node.datagram_bytes);
        let trailer = self.protection.trailer_len();
        let part = part_bytes(head, longest, trailer);
        let is_short = head.length <= part;
        if !is_short || (head.code == code::WRITE && u64::from(head.length) > node.write_max) {
            return None;
        }
        let first = First { id, at: now, part };
        let sent_ns = node.time_at(now);
        let message = Message {
            epoch: self.epoch,
            space,
            head,
            first: &first,
            sent_ns,
        };
        if !message.emit(id, (0, head.length), body, &mut self.protection, out) {
            return None;
        }
        out.end();
        // From now on the node may know it: no other operation gets its number, also if the
        // exchange is dropped.
        self.requests.pass(id);
        self.counters.requests += 1;
        Some(Exchange {
            space,
            first,
            sent_ns,
            code: head.code,
            bytes: message_bytes(head, trailer, body.len(), head.length),
        })
    }

    /// Returns the time for which an answer is to be waited for, from the start on. After that the
    /// operation is to be entered, by [`Client::enter_exchange`].
    #[inline]
    pub fn exchange_timeout(&self) -> Duration {
        Duration::from_nanos(self.path.timeout_ns(0).min(self.timeout_ns()))
    }

    /// Takes a datagram from the node, which it decrypts in place. If it is the answer, returns the
    /// outcome, and puts what was read into `into`, which has to be as long. If not, the operation
    /// is entered, as if it had been submitted when it was started, and then the datagram is
    /// received.
    ///
    /// # Errors
    /// The number of the operation, which has been entered, and whose completion may be there.
    #[inline]
    pub fn finish_exchange(
        &mut self,
        now: Instant,
        exchange: Exchange,
        operation: &Operation<'_>,
        datagram: &mut [u8],
        into: &mut [u8],
    ) -> Result<Result<Value, Failure>, OperationId> {
        let parsed = Response::parse(datagram, &mut self.protection);
        if let Ok((response, [])) = &parsed {
            if let Some(outcome) = self.ending(&exchange, response, into) {
                let at = exchange.first.at;
                self.requests.passed(at);
                self.counters.submitted += 1;
                self.hear(now, response.time_ns);
                let rtt_ns = now.as_nanos().saturating_sub(at.as_nanos());
                let bytes = exchange.bytes.0 + exchange.bytes.1;
                self.path.answered(now, rtt_ns, bytes, bytes);
                return Ok(outcome);
            }
        }
        Err(self.enter_and_receive(now, exchange, operation, parsed))
    }

    /// Returns how the operation ended, if a response says that, and takes what was read.
    #[inline(always)]
    fn ending(
        &self,
        exchange: &Exchange,
        response: &Response<'_>,
        into: &mut [u8],
    ) -> Option<Result<Value, Failure>> {
        let is_its_own = response.id == exchange.first.id
            && response.space == exchange.space
            && response.epoch == self.epoch;
        if !is_its_own {
            return None;
        }
        let outcome = codec::decode_outcome(exchange.code, response.status, response.value)?;
        let read = match outcome {
            Ok(Value::Bytes(_)) => into,
            _ => &mut [],
        };
        if response.body.len() != read.len() {
            return None;
        }
        read.copy_from_slice(response.body);
        Some(outcome.map_err(Failure::Refused))
    }

    /// Enters an operation whose answer something else has come for, and receives that.
    #[cold]
    fn enter_and_receive<'d>(
        &mut self,
        now: Instant,
        exchange: Exchange,
        operation: &Operation<'_>,
        parsed: Result<(Response<'d>, &'d mut [u8]), Malformed>,
    ) -> OperationId {
        let id = self.enter_exchange(exchange, operation);
        let outstanding = self.requests.bytes;
        self.answered = (0, 0);
        let mut rest = self.take_response(now, parsed);
        while let Some(datagram) = rest.filter(|rest| !rest.is_empty()) {
            let parsed = Response::parse(datagram, &mut self.protection);
            rest = self.take_response(now, parsed);
        }
        self.end_answers(now, outstanding);
        id
    }

    /// Enters an operation that has not been answered, as if it had been submitted when it was
    /// started; returns its number. `operation` is the one that it was started with.
    #[cold]
    pub fn enter_exchange(&mut self, exchange: Exchange, operation: &Operation<'_>) -> OperationId {
        let Exchange {
            space,
            first,
            sent_ns,
            bytes,
            ..
        } = exchange;
        let mut data = self.buffers.pop().unwrap_or_default();
        let head = codec::encode(operation, &mut data);
        let footprint = Footprint::new(operation, &head);
        let id = self.enter(first.at, space, head, footprint, data, false);
        // It is the newest, and need not be sent.
        if let Some(handle) = self.ready.pop_back() {
            let attempt = Attempt::first(handle, (0, head.length), (first.at, sent_ns), bytes);
            self.requests.take_back(first.id);
            let request = self.requests.insert(&attempt);
            debug_assert_eq!(request, first.id);
            if let Some(active) = self.operations.find(handle) {
                (active.first, active.sent) = (Some(first), head.length);
            }
        }
        id
    }
}
