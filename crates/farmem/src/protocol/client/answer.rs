//! The responses of the node, and a restart of it.

use std::time::Duration;

use tare_sim::Instant;

use super::super::codec::{self, code, status};
use super::super::message::{Response, RECEIVED_MAX};
use super::super::node::DATAGRAM_MIN;
use super::{nanos, Attempt, Client, Failure, NodeInfo, HELLO, RECKON_TIMEOUTS};
use crate::operation::Value;

impl Client {
    /// Learns what node there is.
    pub(super) fn welcome(&mut self, now: Instant, response: &Response<'_>) {
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
        let timeout_ns = u64::from_le_bytes(*timeout);
        self.node = Some(NodeInfo {
            datagram_bytes: usize::try_from(datagram_bytes).unwrap_or(usize::MAX),
            timeout_ns: timeout_ns.min(nanos(self.config.timeout)),
            write_max: u64::from_le_bytes(*write_max),
            time_ns: response.time_ns,
            at: now,
            reckon_ns: timeout_ns.saturating_mul(RECKON_TIMEOUTS),
        });
        let before = std::mem::replace(&mut self.epoch, response.epoch);
        self.protection.set_epoch(response.epoch);
        if before != 0 && before != response.epoch {
            self.counters.restarts += 1;
            let up = Duration::from_nanos(response.time_ns.saturating_sub(response.value));
            self.restart(match response.epoch > before {
                // A thousandth, because the two clocks need not run at the same rate.
                true => now - (up - up / 1000),
                // It was there before the node that this client knew, which may have run all that
                // was sent since.
                false => Instant::NEVER,
            });
        }
    }

    /// Ends or repeats what was sent. The node that it was sent to ran nothing that was sent after
    /// `started`.
    fn restart(&mut self, started: Instant) {
        for slot in self.operations.slots() {
            let Some((handle, active)) = self.operations.at(slot) else {
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
            (active.first, active.sent, active.answered) = (None, 0, 0);
            self.ready.retain(|ready| *ready != handle);
            self.ready.push_back(handle);
        }
        for id in self.requests.ids() {
            let Some(attempt) = self.requests.find(id) else {
                continue;
            };
            match self.operations.get(attempt.operation) {
                Some(active) if active.first.is_some() => self.requests.send_again(id),
                _ => self.requests.remove(id),
            }
        }
    }

    /// Takes note of an answer of the node, and of its time.
    #[inline]
    pub(super) fn hear(&mut self, now: Instant, time_ns: u64) {
        self.heard = Some(now);
        if let Some(node) = self.node.as_mut() {
            if time_ns > node.time_ns {
                (node.time_ns, node.at) = (time_ns, now);
            }
        }
    }

    /// Takes the response to a request of an operation.
    pub(super) fn answer(&mut self, now: Instant, response: &Response<'_>) {
        let id = response.id;
        let Some(&part) = self.requests.find(id) else {
            self.counters.unmatched += 1;
            return;
        };
        let slot = part.operation.slot;
        let Some(active) = self.operations.get(part.operation) else {
            self.requests.remove(id);
            self.counters.unmatched += 1;
            return;
        };
        let (code, whole) = (active.head.code, active.head.length);
        if active.space != response.space {
            self.counters.malformed += 1;
            return;
        }
        if response.epoch != self.epoch {
            if response.status == status::EPOCH && self.node.is_some() {
                // The answer to a question that is asked from now on comes from that node or a
                // later one, whatever else is still on the way.
                self.ask_again();
            }
            return;
        }
        self.hear(now, response.time_ns);
        if part.was_lost() {
            self.path.found(part.is_lost(), part.retries == 0);
        }
        let rtt_ns = now.as_nanos().saturating_sub(part.at.as_nanos());
        match response.status {
            status::BUSY => {
                // Sent again when its timer fires.
                self.counters.busy += 1;
                if code == code::REGION {
                    // The node has prepared a part of it, and goes on when it is asked again.
                    self.progress = now.max(self.progress);
                    self.requests.refuse(id, part.at + self.path.timeout(0));
                    return;
                }
                let timeout = self.path.timeout(part.retries.into());
                self.requests.refuse(id, part.at + timeout);
                self.path.refused(now, part.at);
                return;
            }
            status::EPOCH => return,
            status::EXPIRED => {
                if codec::is_idempotent(code) {
                    // No node looks at their age: the request is sent again when its timer fires.
                    self.counters.malformed += 1;
                    return;
                }
                self.requests.remove(id);
                return self.finish(slot, Err(Failure::OutcomeUnknown));
            }
            status::RECEIVED if code == code::WRITE => {
                // The last answer comes when the node has copied all of it.
                let run = Duration::from_nanos(whole.into());
                self.progress = self.progress.max(now + run);
                self.requests.answer(id);
                self.answered = (rtt_ns, self.answered.1 + part.bytes());
                for before in 1..=response.value.min(RECEIVED_MAX) {
                    let id = id.wrapping_sub(before);
                    let earlier = self.requests.find(id).copied();
                    let is_part = |earlier: &Attempt| earlier.operation == part.operation;
                    if let Some(earlier) = earlier.filter(is_part) {
                        self.requests.answer(id);
                        self.answered.1 += earlier.bytes();
                    }
                }
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
        self.requests.answer(id);
        self.answered = (rtt_ns, self.answered.1 + part.bytes());
        if !is_read {
            return self.finish(slot, outcome.map_err(Failure::Refused));
        }
        let Some((_, active)) = self.operations.at(slot) else {
            return;
        };
        if active.answered == 0 {
            active.data = self.buffers.pop().unwrap_or_default();
            if active.data.capacity() < active.head.length as usize {
                active.data.reserve_exact(active.head.length as usize);
            }
        }
        match active.data.len() == part.offset as usize {
            true => active.data.extend_from_slice(response.body),
            false => put(&mut active.data, part.offset as usize, response.body),
        }
        active.answered += part.length;
        if active.answered == active.head.length {
            let length = active.head.length;
            self.finish_read(slot, length);
        } else {
            self.progress = self.progress.max(now);
        }
    }
}

/// Puts a part of a read that is not the next one where it belongs. Parts come in their order, but
/// for those that were lost or overtaken, so what is behind the last one is not written twice: only
/// what is left open in front of a part is filled with zeros until its own part comes.
fn put(data: &mut Vec<u8>, offset: usize, part: &[u8]) {
    if data.len() < offset {
        data.resize(offset, 0);
    }
    let (over, behind) = part.split_at(part.len().min(data.len() - offset));
    data[offset..][..over.len()].copy_from_slice(over);
    data.extend_from_slice(behind);
}
