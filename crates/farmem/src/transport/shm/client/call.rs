//! One operation at a time: an entry past the queues, if they are empty.

use std::time::Instant;

use super::entry::{outcome, take_read};
use super::pending::Pending;
use super::{Client, Flight, LIVENESS, SPINS};
use crate::operation::{Address, Error, Guard, Operation, SpaceId, Value};
use crate::protocol::codec::{self, code, Head};
use crate::protocol::Failure;
use crate::transport::shm::layout::{self, flag, Entry, LINE, READ_INLINE};
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
        let is_inline = len as usize <= READ_INLINE;
        let mut entry = Entry {
            code: code::READ,
            space: space.0,
            address,
            length: len,
            ..Entry::default()
        };
        let mut lines = 0;
        if !is_inline {
            // Everything is free, so the first line is.
            entry.flags = flag::AREA;
            lines = len.div_ceil(LINE as u32);
        }
        let (status, value) = self.exchange(&entry, lines)?;
        outcome(code::READ, status, value)?;
        if value != u64::from(len) {
            return Err(Failure::OutcomeUnknown);
        }
        let at = self.layout.completion(self.answered.wrapping_sub(1));
        take_read(&self.memory, self.layout, is_inline, at, 0, out);
        Ok(())
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
        if !self.is_idle() || data.len() > self.part_max as usize {
            return self.call_queued(space, &operation, &mut []).map(drop);
        }
        let head = Head {
            code: code::WRITE,
            address,
            length: data.len() as u32,
            guard,
        };
        self.call_one(space, &head, data).map(drop)
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
            Operation::Write {
                address,
                data,
                guard,
            } => {
                self.write(space, address, data, guard)?;
                Ok(Value::None)
            }
            _ if self.is_idle() && *operation != Operation::Fence => {
                let mut body = self.buffers.pop().unwrap_or_default();
                body.clear();
                let head = codec::encode(operation, &mut body);
                let result = self.call_one(space, &head, &body);
                self.recycle(body);
                result
            }
            _ => self.call_queued(space, operation, out),
        }
    }

    /// Returns true if nothing is on the way, so that an entry can be sent past the queues.
    #[inline]
    fn is_idle(&self) -> bool {
        self.operations.is_empty() && !self.is_gone
    }

    /// Runs an operation of one entry.
    fn call_one(&mut self, space: SpaceId, head: &Head, body: &[u8]) -> Result<Value, Failure> {
        let Some((entry, lines)) = self.entry(space, head, body, 0) else {
            return Err(Failure::Refused(Error::Length));
        };
        let (status, value) = self.exchange(&entry, lines)?;
        outcome(head.code, status, value)
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
                    self.progress(LIVENESS).map_err(|_| Failure::NodeGone)?;
                }
            }
        };
        loop {
            let ours = self.completions.iter().rposition(|done| done.id == id);
            if let Some(done) = ours.and_then(|n| self.completions.remove(n)) {
                let len = done.data.len().min(out.len());
                out[..len].copy_from_slice(&done.data[..len]);
                self.recycle(done.data);
                return done.outcome;
            }
            if self.progress(LIVENESS).is_err() {
                return Err(Failure::OutcomeUnknown);
            }
        }
    }

    /// Stores an entry, past the queues, and waits for its answer. The data area is then free.
    #[inline]
    fn exchange(&mut self, entry: &Entry, lines: u32) -> Result<(u8, u64), Failure> {
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
                return Ok(((first >> 32) as u8, layout::word(&self.memory, at, 1)));
            }
        }
        self.exchange_slowly(entry, lines)
    }

    #[cold]
    fn exchange_slowly(&mut self, entry: &Entry, lines: u32) -> Result<(u8, u64), Failure> {
        let (number, start) = (self.answered, Instant::now());
        let at = self.layout.completion(number);
        self.heard = start;
        self.is_fence_due = true;
        self.ring_doorbell();
        let mut seen_alive = start;
        loop {
            if let Some(first) = layout::first_word(&self.memory, at, number) {
                self.answered = self.next;
                self.area.clear();
                return Ok(((first >> 32) as u8, layout::word(&self.memory, at, 1)));
            }
            let now = Instant::now();
            let age = now - start;
            if now - seen_alive >= LIVENESS {
                seen_alive = now;
                self.messages();
            }
            if age >= self.config.timeout || self.is_gone {
                break;
            }
            if age >= self.config.busy {
                let left = self.config.timeout - age;
                if self.sleep(left).is_err() {
                    self.is_gone = true;
                }
                continue;
            }
            for _ in 0..SPINS {
                if layout::first_word(&self.memory, at, number).is_some() {
                    break;
                }
                std::hint::spin_loop();
            }
        }
        // From here on it is an operation of the queues whose end was reported.
        self.flights.push_back(Flight {
            operation: self.first,
            len: entry.length,
            line: entry.line,
            lines,
        });
        let failure = self.failure(entry.code, true, start);
        self.operations.push_back(Pending::reported(entry, start));
        self.retract();
        Err(failure)
    }
}
