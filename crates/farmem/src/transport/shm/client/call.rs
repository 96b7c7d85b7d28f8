//! One operation at a time: an entry past the queues, if they are empty.

use std::time::Instant;

use super::entry::{encode, outcome, take_read};
use super::pending::Pending;
use super::{Client, Flight, SPINS};
use crate::operation::{has_long_name, Address, Error, Guard, Operation, SpaceId, Value};
use crate::protocol::codec::code;
use crate::protocol::{Failure, OperationId};
use crate::transport::shm::layout::{self, flag, Entry, READ_INLINE};
use crate::transport::Channel;

impl Client {
    /// Fills `out` with the bytes at an address, and waits for it.
    ///
    /// # Errors
    /// As [`Operation::Read`].
    #[inline]
    pub fn read_into(
        &mut self,
        space: SpaceId,
        address: Address,
        out: &mut [u8],
    ) -> Result<(), Failure> {
        let len = u32::try_from(out.len()).map_err(|_| Failure::Refused(Error::Length))?;
        if !self.is_idle() || len > self.part_max {
            let operation = Operation::Read { address, len };
            return self.call_queued(space, &operation, out).map(drop);
        }
        let mut entry = Entry {
            code: code::READ,
            space: space.0,
            address,
            length: len,
            ..Entry::default()
        };
        let mut lines = 0;
        if len as usize > READ_INLINE {
            entry.flags = flag::AREA;
            let taken = self.area.take(len);
            // Everything is free.
            (entry.line, lines) = taken.ok_or(Failure::OutcomeUnknown)?;
        }
        self.exchange(&entry, lines, out).map(drop)
    }

    /// Writes bytes, and waits for it.
    ///
    /// # Errors
    /// As [`Operation::Write`].
    #[inline]
    pub fn write(
        &mut self,
        space: SpaceId,
        address: Address,
        data: &[u8],
        guard: Option<Guard>,
    ) -> Result<(), Failure> {
        let operation = Operation::Write {
            address,
            data,
            guard,
        };
        self.call_one(space, &operation, &mut Vec::new()).map(drop)
    }

    /// Runs any operation, and waits for it. What is read is put into `out`.
    ///
    /// # Errors
    /// As the operation; [`Error::Length`] if `out` is too short.
    pub fn call(
        &mut self,
        space: SpaceId,
        operation: &Operation<'_>,
        out: &mut [u8],
    ) -> Result<Value, Failure> {
        match *operation {
            Operation::Read { address, len } => {
                let out = out.get_mut(..len as usize);
                let out = out.ok_or(Failure::Refused(Error::Length))?;
                self.read_into(space, address, out)?;
                Ok(Value::Bytes(len))
            }
            _ => {
                let mut buffer = self.buffers.pop().unwrap_or_default();
                self.buffer_bytes -= buffer.capacity();
                buffer.clear();
                let result = self.call_one(space, operation, &mut buffer);
                self.recycle(buffer);
                result
            }
        }
    }

    /// Returns true if nothing is on the way, so that an entry can be sent past the queues.
    #[inline]
    fn is_idle(&self) -> bool {
        self.operations.is_empty() && !self.is_gone
    }

    /// Runs an operation that reads nothing, past the queues if it is of one entry and they are
    /// empty.
    #[inline]
    fn call_one<'a>(
        &mut self,
        space: SpaceId,
        operation: &Operation<'a>,
        buffer: &'a mut Vec<u8>,
    ) -> Result<Value, Failure> {
        if has_long_name(operation) {
            return Err(Failure::Refused(Error::Name));
        }
        let (head, body) = encode(operation, buffer);
        let is_one = body.len() <= self.part_max as usize && head.code != code::FENCE;
        if !self.is_idle() || !is_one {
            return self.call_queued(space, operation, &mut []);
        }
        let Some((entry, lines)) = self.entry(space, &head, body, 0) else {
            return Err(Failure::Refused(Error::Length));
        };
        self.exchange(&entry, lines, &mut [])
    }

    /// Runs an operation by the queues, behind all that is on the way.
    #[inline(never)]
    fn call_queued(
        &mut self,
        space: SpaceId,
        operation: &Operation<'_>,
        out: &mut [u8],
    ) -> Result<Value, Failure> {
        let id = loop {
            match self.submit(space, operation) {
                Ok(id) => break id,
                Err(crate::protocol::SubmitError::Length) => {
                    return Err(Failure::Refused(Error::Length));
                }
                // The node would not run it either.
                Err(crate::protocol::SubmitError::Unauthorized) => {
                    return Err(Failure::Refused(Error::NoSuchSpace));
                }
                Err(crate::protocol::SubmitError::Full) => {
                    let timeout = self.config.timeout;
                    self.progress(timeout).map_err(|_| Failure::NodeGone)?;
                }
            }
        };
        self.wait_for(id, out)
    }

    /// Waits for the end of an operation of the queues.
    fn wait_for(&mut self, id: OperationId, out: &mut [u8]) -> Result<Value, Failure> {
        loop {
            let ours = self.completions.iter().rposition(|done| done.id == id);
            if let Some(done) = ours.and_then(|n| self.completions.remove(n)) {
                let len = done.data.len().min(out.len());
                out[..len].copy_from_slice(&done.data[..len]);
                self.recycle(done.data);
                return done.outcome;
            }
            if self.progress(self.config.timeout).is_err() {
                return Err(Failure::OutcomeUnknown);
            }
        }
    }

    /// Stores an entry, past the queues, and waits for its answer; what is read is put into `out`.
    /// The data area is then free. Always inline, so that each caller's code is known in it.
    #[inline(always)]
    fn exchange(&mut self, entry: &Entry, lines: u32, out: &mut [u8]) -> Result<Value, Failure> {
        let number = self.next;
        entry.store(&self.memory, self.layout.submission(number), number);
        self.next = number.wrapping_add(1);
        // Without a fence this may be old; `exchange_slowly` looks again behind one.
        self.notify();
        let at = self.layout.completion(number);
        for _ in 0..SPINS {
            if let Some(first) = layout::first_word(&self.memory, at, number) {
                self.answered = self.next;
                self.area.clear();
                let value = layout::word(&self.memory, at, 1);
                let result = outcome(entry.code, (first >> 32) as u8, value)?;
                if entry.code == code::READ {
                    if value != u64::from(entry.length) {
                        return Err(Failure::OutcomeUnknown);
                    }
                    let is_inline = entry.flags == 0;
                    take_read(&self.memory, self.layout, is_inline, at, entry.line, out);
                }
                return Ok(result);
            }
        }
        self.exchange_slowly(entry, lines, out)
    }

    /// Makes an entry that was stored past the queues an operation of them, and waits for it.
    #[cold]
    fn exchange_slowly(
        &mut self,
        entry: &Entry,
        lines: u32,
        out: &mut [u8],
    ) -> Result<Value, Failure> {
        self.heard = Instant::now();
        self.bell.stored();
        self.flights.push_back(Flight {
            operation: self.first,
            len: entry.length,
            line: entry.line,
            lines,
        });
        self.operations.push_back(Pending::sent(entry, self.heard));
        self.outstanding += 1;
        self.wait_for(OperationId(self.first), out)
    }
}
