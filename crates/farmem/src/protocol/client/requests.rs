//! The requests that are not answered, and their attempts.

use std::collections::VecDeque;

use tare_sim::{EventQueue, Instant};

use super::OperationId;

/// A part of an operation that is one request, in as many attempts as it takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) operation: (u32, OperationId),
    pub(super) offset: u32,
    pub(super) length: u32,
    /// The first and the latest attempt; answers to those between are not looked for.
    pub(super) first: (u64, Instant),
    pub(super) last: (u64, Instant),
    pub(super) attempts: u32,
    /// Bytes of the request, and of the response as far as they can be foreseen.
    pub(super) request_bytes: u64,
    pub(super) response_bytes: u64,
    /// False while it waits to be sent again.
    pub(super) in_flight: bool,
}

/// The requests that are not answered.
#[derive(Debug)]
pub(super) struct Requests {
    pub(super) parts: Vec<Option<Part>>,
    free: Vec<u32>,
    /// Attempts, each at its number modulo the length: numbers of this client are consecutive. At
    /// most two of each part, so half of the places are free. It grows with the parts, because most
    /// of a hundred thousand clients never have many.
    attempts: Vec<(u64, u32)>,
    next_id: u64,
    pub(super) timers: EventQueue<(u32, u64)>,
    /// Parts to be sent again, with the attempt that was not answered.
    pub(super) again: VecDeque<(u32, u64)>,
    /// Bytes on the way, both directions, and of responses alone.
    pub(super) bytes: u64,
    pub(super) response_bytes: u64,
}

impl Requests {
    pub(super) fn new(first_id: u64) -> Requests {
        Requests {
            parts: Vec::new(),
            free: Vec::new(),
            attempts: vec![(0, 0); 4],
            next_id: first_id,
            timers: EventQueue::new(),
            again: VecDeque::new(),
            bytes: 0,
            response_bytes: 0,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.parts.len() - self.free.len()
    }

    /// A number that was not used before and whose place is free.
    #[inline]
    pub(super) fn new_id(&mut self) -> u64 {
        loop {
            let id = self.next_id;
            self.next_id = id.wrapping_add(1);
            if id != 0 && self.place(id).0 == 0 {
                return id;
            }
        }
    }

    /// The same while no request is on the way, when all places are free.
    #[inline]
    pub(super) fn new_id_alone(&mut self) -> u64 {
        let id = self.next_id.max(1);
        self.next_id = id.wrapping_add(1);
        id
    }

    #[inline]
    fn place(&self, id: u64) -> (u64, u32) {
        self.attempts[id as usize & (self.attempts.len() - 1)]
    }

    #[inline]
    fn set_place(&mut self, id: u64, attempt: (u64, u32)) {
        let index = id as usize & (self.attempts.len() - 1);
        self.attempts[index] = attempt;
    }

    /// The part that an attempt belongs to, with its index.
    #[inline]
    pub(super) fn find(&self, id: u64) -> Option<(u32, Part)> {
        let (found, index) = self.place(id);
        let part = self.parts.get(index as usize).copied().flatten();
        (found == id && id != 0).then_some((index, part?))
    }

    /// The part, if its latest attempt is this and not answered.
    pub(super) fn flying(&self, index: u32, id: u64) -> Option<Part> {
        let part = self.parts.get(index as usize).copied().flatten()?;
        (part.last.0 == id && part.in_flight).then_some(part)
    }

    /// Adds a part with its first attempt, which is on the way.
    #[inline]
    pub(super) fn insert(&mut self, part: Part) -> u32 {
        let id = part.last.0;
        self.bytes += part.request_bytes + part.response_bytes;
        self.response_bytes += part.response_bytes;
        let index = match self.free.pop() {
            Some(index) => {
                self.parts[index as usize] = Some(part);
                index
            }
            None => {
                self.parts.push(Some(part));
                self.parts.len() as u32 - 1
            }
        };
        self.set_place(id, (id, index));
        index
    }

    /// Makes room for the places of one more part, before its first attempt gets its number.
    #[inline]
    pub(super) fn make_room(&mut self) {
        if self.free.is_empty() && (self.parts.len() + 1) * 4 > self.attempts.len() {
            self.grow();
        }
    }

    /// Doubles the places. Numbers with different places have different ones after that too.
    fn grow(&mut self) {
        let places = self.attempts.len() * 2;
        let before = std::mem::replace(&mut self.attempts, vec![(0, 0); places]);
        for attempt in before {
            if attempt.0 != 0 {
                self.set_place(attempt.0, attempt);
            }
        }
    }

    /// Gives a part another attempt, of this number; returns the part as it is then.
    pub(super) fn begin_attempt(&mut self, index: u32, id: u64, now: Instant) -> Option<Part> {
        let mut part = self.parts.get(index as usize).copied().flatten()?;
        if part.last.0 != part.first.0 {
            self.set_place(part.last.0, (0, 0));
        }
        part.last = (id, now);
        part.attempts += 1;
        part.in_flight = true;
        self.bytes += part.request_bytes + part.response_bytes;
        self.response_bytes += part.response_bytes;
        self.set_place(id, (id, index));
        self.parts[index as usize] = Some(part);
        Some(part)
    }

    /// Takes a part for lost: it no longer counts as being on the way, and is to be sent again.
    pub(super) fn send_again(&mut self, index: u32) {
        if let Some(Some(part)) = self.parts.get_mut(index as usize) {
            if part.in_flight {
                part.in_flight = false;
                self.bytes -= part.request_bytes + part.response_bytes;
                self.response_bytes -= part.response_bytes;
                self.again.push_back((index, part.last.0));
            }
        }
    }

    pub(super) fn remove(&mut self, index: u32) {
        let Some(part) = self.parts.get_mut(index as usize).and_then(Option::take) else {
            return;
        };
        if part.in_flight {
            self.bytes -= part.request_bytes + part.response_bytes;
            self.response_bytes -= part.response_bytes;
        }
        self.set_place(part.first.0, (0, 0));
        self.set_place(part.last.0, (0, 0));
        self.free.push(index);
    }

    /// Forgets timers of attempts that were answered, when they are most of all.
    pub(super) fn prune_timers(&mut self) {
        if self.timers.len() > 64 + 4 * self.len() {
            let parts = &self.parts;
            self.timers.retain(|_, (index, id)| {
                let part = parts.get(*index as usize).copied().flatten();
                part.is_some_and(|part| part.last.0 == *id)
            });
        }
    }
}
