//! Operations that are submitted, and complete later.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::{outcome, take_read, Client, Entry, Flight, LIVENESS, SPINS};
use crate::operation::{Operation, SpaceId, Value, LEN_MAX};
use crate::protocol::codec::{self, code, status, Head};
use crate::protocol::{Completion, Failure, OperationId, SubmitError};
use crate::transport::shm::layout::{self, READ_INLINE};
use crate::transport::Channel;

/// Most buffers that are kept to be used again.
const BUFFERS_MAX: usize = 64;

/// An operation that is not over.
#[derive(Debug)]
pub(super) struct Pending {
    space: SpaceId,
    head: Head,
    /// The body, unless all of it is in the ring.
    body: Vec<u8>,
    /// Bytes that are in the ring; that all are, if `is_sent`.
    sent: u32,
    is_sent: bool,
    /// Entries on the way.
    entries: u32,
    /// Bytes that were read.
    received: u32,
    /// What was read.
    data: Vec<u8>,
    outcome: Result<Value, Failure>,
    submitted: Instant,
    /// The time from which on its timeout counts.
    since: Instant,
    is_reported: bool,
}

impl Pending {
    /// An operation of one entry whose end the caller knows already.
    pub(super) fn reported(entry: &Entry, now: Instant) -> Pending {
        Pending {
            space: entry.space(),
            head: Head {
                code: entry.code,
                address: entry.address,
                length: entry.length,
                guard: None,
            },
            body: Vec::new(),
            sent: entry.length,
            is_sent: true,
            entries: 1,
            received: 0,
            data: Vec::new(),
            outcome: Ok(Value::None),
            submitted: now,
            since: now,
            is_reported: true,
        }
    }

    pub(super) fn is_reported(&self) -> bool {
        self.is_reported
    }

    fn is_over(&self) -> bool {
        self.entries == 0 && (self.is_sent || self.is_reported)
    }
}

impl Channel for Client {
    fn submit(
        &mut self,
        space: SpaceId,
        operation: &Operation<'_>,
    ) -> Result<OperationId, SubmitError> {
        if self.outstanding >= self.config.operations_max {
            return Err(SubmitError::Full);
        }
        let (address, len) = match *operation {
            Operation::Read { address, len } => (address, len as usize),
            Operation::Write { address, data, .. } => (address, data.len()),
            _ => (0, 0),
        };
        if len > LEN_MAX as usize || address.checked_add(len as u64).is_none() {
            return Err(SubmitError::Length);
        }
        let (head, encoded);
        let body = match *operation {
            Operation::Write {
                address,
                data,
                guard,
            } => {
                let length = data.len() as u32;
                head = Head {
                    code: code::WRITE,
                    address,
                    length,
                    guard,
                };
                data
            }
            _ => {
                let mut buffer = Vec::new();
                head = codec::encode(operation, &mut buffer);
                encoded = buffer;
                &encoded
            }
        };
        let mut pending = Pending {
            space,
            head,
            body: Vec::new(),
            sent: 0,
            is_sent: head.code == code::FENCE,
            entries: 0,
            received: 0,
            data: Vec::new(),
            outcome: Ok(Value::None),
            // The timeout counts from the next call of `progress`, which looks at the clock.
            submitted: self.heard,
            since: self.heard,
            is_reported: false,
        };
        let number = self.first + self.operations.len() as u64;
        if self.unsent > 0 || !self.place(&mut pending, number, body) {
            pending.body = body.to_vec();
            self.unsent += 1;
        }
        self.operations.push_back(pending);
        self.undated += 1;
        self.outstanding += 1;
        Ok(OperationId(number))
    }

    fn progress(&mut self, wait: Duration) -> io::Result<()> {
        if self.step() || wait.is_zero() {
            return Ok(());
        }
        if self.outstanding == 0 {
            return Ok(());
        }
        let start = Instant::now();
        let mut seen_alive = start;
        loop {
            for _ in 0..SPINS {
                if self.has_answer() {
                    self.step();
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            let now = Instant::now();
            if now - seen_alive >= LIVENESS {
                seen_alive = now;
                self.messages();
            }
            if self.is_gone || now - start >= wait || self.expire(now) {
                self.step();
                return Ok(());
            }
            if now - start >= self.config.busy {
                let left = (wait - (now - start)).min(self.until_timeout(now));
                self.sleep(left)?;
                self.step();
                return Ok(());
            }
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    fn recycle(&mut self, buffer: Vec<u8>) {
        if self.buffers.len() < BUFFERS_MAX && buffer.capacity() > 0 {
            self.buffers.push(buffer);
        }
    }

    fn outstanding(&self) -> usize {
        self.outstanding
    }
}

impl Client {
    /// Takes answers, sends what there is room for and gives up what is too old. Returns true if an
    /// operation has completed.
    fn step(&mut self) -> bool {
        let before = self.completions.len();
        self.date();
        self.send();
        let mut answers = false;
        while self.has_answer() {
            answers = true;
            self.take_answer();
            if self.unsent > 0 {
                self.send();
            }
        }
        self.ring_doorbell();
        if answers {
            self.heard = Instant::now();
        } else if self.outstanding > 0 {
            if self.is_gone {
                self.give_up_all();
            } else {
                self.expire(Instant::now());
            }
        }
        self.report();
        self.completions.len() > before
    }

    /// Sets the time from which on the timeouts of new operations count.
    fn date(&mut self) {
        let undated = std::mem::take(&mut self.undated);
        if undated > 0 {
            let now = Instant::now();
            for pending in self.operations.iter_mut().rev().take(undated) {
                (pending.submitted, pending.since) = (now, now);
            }
        }
    }

    #[inline]
    fn has_answer(&self) -> bool {
        let at = self.layout.completion(self.answered);
        !self.flights.is_empty() && layout::first_word(&self.memory, at, self.answered).is_some()
    }

    /// Puts as much of an operation into the ring as there is room for; returns true if that is all.
    fn place(&mut self, pending: &mut Pending, number: u64, body: &[u8]) -> bool {
        let length = match pending.head.code {
            code::READ => pending.head.length,
            _ => body.len() as u32,
        };
        while !pending.is_sent {
            if self.next.wrapping_sub(self.answered) >= self.layout.entries || self.is_gone {
                return false;
            }
            let Some((entry, lines)) = self.entry(pending.space, &pending.head, body, pending.sent)
            else {
                return false;
            };
            let len = entry.length.max(entry.arguments.into());
            self.flights.push_back(Flight {
                operation: number,
                len: entry.length,
                line: entry.line,
                lines,
            });
            entry.store(&self.memory, self.layout.submission(self.next), self.next);
            self.next = self.next.wrapping_add(1);
            self.is_fence_due = true;
            pending.sent += len;
            pending.entries += 1;
            pending.is_sent = pending.sent >= length;
        }
        true
    }

    /// Sends what waits for room.
    fn send(&mut self) {
        while self.unsent > 0 {
            let index = self.operations.len() - self.unsent;
            let vacant = Pending::reported(&Entry::default(), self.heard);
            let mut pending = std::mem::replace(&mut self.operations[index], vacant);
            let body = std::mem::take(&mut pending.body);
            let number = self.first + index as u64;
            let is_done = pending.is_reported || self.place(&mut pending, number, &body);
            if !is_done {
                pending.body = body;
            }
            self.operations[index] = pending;
            if !is_done {
                return;
            }
            self.unsent -= 1;
        }
    }

    /// Takes the answer to the first entry on the way.
    fn take_answer(&mut self) {
        let at = self.layout.completion(self.answered);
        let Some(first) = layout::first_word(&self.memory, at, self.answered) else {
            return;
        };
        let (status, value) = ((first >> 32) as u8, layout::word(&self.memory, at, 1));
        let Some(flight) = self.flights.pop_front() else {
            return;
        };
        self.answered = self.answered.wrapping_add(1);
        let index = (flight.operation - self.first) as usize;
        if let Some(pending) = self.operations.get_mut(index) {
            pending.entries -= 1;
            if !pending.is_reported {
                if pending.data.capacity() == 0 && pending.head.code == code::READ {
                    // Only now, so that few are in use, which stay in the caches. Not cleared, so
                    // that one that is used again is not filled with zeros.
                    pending.data = self.buffers.pop().unwrap_or_default();
                    pending.data.truncate(pending.head.length as usize);
                }
                let place = pending.take(&flight, status, value);
                let is_inline = flight.len as usize <= READ_INLINE;
                if let Some(to) = pending.data.get_mut(place) {
                    take_read(&self.memory, self.layout, is_inline, at, flight.line, to);
                }
            }
        }
        self.area.give_back(flight.lines);
        self.report();
    }

    /// Completes operations from the front, as far as they are over.
    fn report(&mut self) {
        while self.operations.front().is_some_and(Pending::is_over) {
            let Some(pending) = self.operations.pop_front() else {
                return;
            };
            let id = OperationId(self.first);
            self.first += 1;
            if pending.is_reported {
                continue;
            }
            let outcome = match (pending.head.code, pending.outcome) {
                (code::READ, Ok(_)) => Ok(Value::Bytes(pending.head.length)),
                (_, outcome) => outcome,
            };
            let mut data = pending.data;
            if outcome.is_err() {
                data.clear();
            }
            self.outstanding -= 1;
            self.completions.push_back(Completion {
                id,
                space: pending.space,
                outcome,
                data,
            });
        }
    }

    fn until_timeout(&self, now: Instant) -> Duration {
        let oldest = self.operations.iter().find(|pending| !pending.is_reported);
        let age = oldest.map_or(Duration::ZERO, |oldest| now - oldest.since);
        self.config.timeout.saturating_sub(age)
    }

    /// Gives up what is too old; returns true if there is any.
    fn expire(&mut self, now: Instant) -> bool {
        if !self.until_timeout(now).is_zero() {
            return false;
        }
        self.messages();
        let timeout = self.config.timeout;
        self.give_up(|pending| now - pending.since >= timeout)
    }

    fn give_up_all(&mut self) {
        self.give_up(|_| true);
        // No answer comes any more.
        self.flights.clear();
        self.answered = self.next;
        self.first += self.operations.len() as u64;
        self.operations.clear();
        self.unsent = 0;
        self.area.clear();
    }

    fn give_up(&mut self, is_too_old: impl Fn(&Pending) -> bool) -> bool {
        let mut any = false;
        for index in 0..self.operations.len() {
            let pending = &self.operations[index];
            if pending.is_reported || !is_too_old(pending) {
                continue;
            }
            any = true;
            // A write in parts of which the last is not in the ring never runs.
            let is_sent = match pending.head.code {
                code::WRITE => pending.is_sent,
                _ => pending.entries > 0 || pending.is_sent,
            };
            let failure = self.failure(pending.head.code, is_sent, pending.submitted);
            let (id, space) = (OperationId(self.first + index as u64), pending.space);
            self.operations[index].is_reported = true;
            self.operations[index].data = Vec::new();
            self.outstanding -= 1;
            self.completions.push_back(Completion {
                id,
                space,
                outcome: Err(failure),
                data: Vec::new(),
            });
        }
        if any {
            self.retract();
        }
        any
    }
}

impl Pending {
    /// Takes the status of an entry. Returns the place of the bytes that were read.
    fn take(&mut self, flight: &Flight, status: u8, value: u64) -> Range<usize> {
        if !self.is_sent || self.entries > 0 {
            self.since = Instant::now();
        }
        if self.outcome.is_err() || status == status::RECEIVED {
            return 0..0;
        }
        self.outcome = match outcome(self.head.code, status, value) {
            Ok(Value::Bytes(len)) if len != flight.len => Err(Failure::OutcomeUnknown),
            other => other,
        };
        if self.head.code != code::READ || self.outcome.is_err() {
            return 0..0;
        }
        // Answers come in order, so all bytes before these are there.
        let start = self.received as usize;
        self.received += flight.len;
        let end = self.received as usize;
        if self.data.len() < end {
            self.data.resize(end, 0);
        }
        start..end
    }
}
