//! Operations that are submitted, and complete later.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use super::entry::{encode, take_read};
use super::pending::Pending;
use super::{Client, Flight, LIVENESS, SPINS};
use crate::operation::{has_long_name, is_range, Error, Operation, SpaceId, Value};
use crate::protocol::codec::code;
use crate::protocol::{Completion, OperationId, OwnedWrite, SubmitError};
use crate::transport::shm::layout::{self, Entry, READ_INLINE};
use crate::transport::shm::PART_MAX;
use crate::transport::{share_processor, Channel, Direct};

/// Bytes of answers after which the caller gets its turn: to take the data while it is in the
/// caches, and to submit more while the node still has some to do.
const STEP_BYTES: u32 = 4 * PART_MAX;

/// Most bytes of the buffers that are kept to be used again.
const BUFFER_BYTES_MAX: usize = 16 << 20;

impl Channel for Client {
    fn submit(
        &mut self,
        space: SpaceId,
        operation: &Operation<'_>,
    ) -> Result<OperationId, SubmitError> {
        if self.outstanding >= self.config.operations_max {
            return Err(SubmitError::Full);
        }
        check_range(operation)?;
        if has_long_name(operation) {
            let refused = Pending::refused(space, Error::Name, self.heard);
            // In its turn, as all others.
            self.unsent += usize::from(self.unsent > 0);
            return Ok(self.enter(refused));
        }
        let mut buffer = Vec::new();
        let (head, body) = encode(operation, &mut buffer);
        let mut pending = Pending::new(space, head, self.heard);
        let number = self.number();
        if self.unsent > 0 || !self.place(&mut pending, number, body) {
            pending.body = body.to_vec();
            self.unsent += 1;
        }
        Ok(self.enter(pending))
    }

    fn submit_write(
        &mut self,
        space: SpaceId,
        write: OwnedWrite,
    ) -> Result<OperationId, (SubmitError, OwnedWrite)> {
        let operation = Operation::Write {
            address: write.address,
            data: &write.data,
            guard: write.guard,
        };
        let checked = match self.outstanding >= self.config.operations_max {
            true => Err(SubmitError::Full),
            false => check_range(&operation),
        };
        if let Err(error) = checked {
            return Err((error, write));
        }
        let mut buffer = Vec::new();
        let (head, body) = encode(&operation, &mut buffer);
        let mut pending = Pending::new(space, head, self.heard);
        pending.is_owned = true;
        let number = self.number();
        if self.unsent == 0 && self.place(&mut pending, number, body) {
            pending.data = write.data;
        } else {
            pending.body = write.data;
            self.unsent += 1;
        }
        Ok(self.enter(pending))
    }

    fn direct(
        &mut self,
        space: SpaceId,
        operation: &Operation<'_>,
        into: &mut [u8],
    ) -> io::Result<Direct> {
        Ok(match self.outstanding {
            0 => Direct::Ended(self.call(space, operation, into)),
            _ => Direct::NotTaken,
        })
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
            share_processor(now - start);
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    fn recycle(&mut self, buffer: Vec<u8>) {
        let bytes = self.buffer_bytes + buffer.capacity();
        if buffer.capacity() > 0 && bytes <= BUFFER_BYTES_MAX {
            self.buffer_bytes = bytes;
            self.buffers.push(buffer);
        }
    }

    fn outstanding(&self) -> usize {
        self.outstanding
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // It is asked for in order to sleep: from now on the node has to notify this client.
        Some(self.sleeping_descriptor())
    }

    fn next_deadline(&self) -> tare_sim::Instant {
        match self.outstanding {
            0 => tare_sim::Instant::NEVER,
            _ => tare_sim::Instant::now() + self.until_timeout(Instant::now()),
        }
    }
}

/// Checks what an operation transfers.
fn check_range(operation: &Operation<'_>) -> Result<(), SubmitError> {
    let (address, bytes) = match *operation {
        Operation::Read { address, len } => (address, len.into()),
        Operation::Write { address, data, .. } => (address, data.len() as u64),
        _ => (0, 0),
    };
    match is_range(address, bytes) {
        true => Ok(()),
        false => Err(SubmitError::Length),
    }
}

impl Client {
    /// The number of the next operation.
    fn number(&self) -> u64 {
        self.first + self.operations.len() as u64
    }

    /// Adds an operation, whose timeout counts from the next call of `progress`, which looks at the
    /// clock.
    fn enter(&mut self, pending: Pending) -> OperationId {
        let number = self.number();
        self.operations.push_back(pending);
        self.undated += 1;
        self.outstanding += 1;
        OperationId(number)
    }

    /// Takes answers, sends what there is room for and gives up what is too old. Returns true if an
    /// operation has completed.
    fn step(&mut self) -> bool {
        let before = self.completions.len();
        self.wake();
        self.date();
        self.send();
        let (mut answers, mut bytes) = (false, 0);
        while bytes < STEP_BYTES && self.has_answer() {
            answers = true;
            bytes += self.take_answer();
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

    /// Puts as much of an operation into the ring as there is room for; returns true if that is
    /// all.
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
            self.bell.stored();
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
            let vacant = Pending::sent(&Entry::default(), self.heard);
            let mut pending = std::mem::replace(&mut self.operations[index], vacant);
            let body = std::mem::take(&mut pending.body);
            let number = self.first + index as u64;
            let is_done = pending.is_reported || self.place(&mut pending, number, &body);
            if !is_done {
                pending.body = body;
            } else if pending.is_owned && !pending.is_reported {
                pending.data = body;
            }
            self.operations[index] = pending;
            if !is_done {
                return;
            }
            self.unsent -= 1;
        }
    }

    /// Takes the answer to the first entry on the way; returns the bytes that it transferred.
    fn take_answer(&mut self) -> u32 {
        let at = self.layout.completion(self.answered);
        let Some(first) = layout::first_word(&self.memory, at, self.answered) else {
            return 0;
        };
        let (status, value) = ((first >> 32) as u8, layout::word(&self.memory, at, 1));
        let Some(flight) = self.flights.pop_front() else {
            return 0;
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
                    self.buffer_bytes -= pending.data.capacity();
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
        flight.len
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
            if outcome.is_err() && !pending.is_owned {
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
}
