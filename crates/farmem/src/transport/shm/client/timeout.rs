//! Operations that are given up.

use std::time::{Duration, Instant};

use super::pending::Pending;
use super::Client;
use crate::protocol::codec::{self, code};
use crate::protocol::{Completion, Failure, OperationId};
use crate::transport::shm::layout::Entry;

impl Client {
    pub(super) fn until_timeout(&self, now: Instant) -> Duration {
        let oldest = self.operations.iter().find(|pending| !pending.is_reported);
        let age = oldest.map_or(Duration::ZERO, |oldest| now - oldest.since);
        self.config.timeout.saturating_sub(age)
    }

    /// Gives up what is too old; returns true if there is any.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        if !self.until_timeout(now).is_zero() {
            return false;
        }
        self.messages();
        let timeout = self.config.timeout;
        self.give_up(|pending| now - pending.since >= timeout)
    }

    pub(super) fn give_up_all(&mut self) {
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
            let data = self.operations[index].take_data();
            self.outstanding -= 1;
            self.completions.push_back(Completion {
                id,
                space,
                outcome: Err(failure),
                data,
            });
        }
        if any {
            self.retract();
        }
        any
    }

    /// The way in which an operation ends that gets no answer.
    pub(super) fn failure(&self, code: u8, is_sent: bool, submitted: Instant) -> Failure {
        if is_sent && !codec::is_idempotent(code) && code != code::FENCE {
            Failure::OutcomeUnknown
        } else if self.is_gone || self.heard <= submitted {
            Failure::NodeGone
        } else {
            Failure::Timeout
        }
    }

    /// Replaces all entries on the way of operations that were reported, from the last to the
    /// first: the node never finds a part of a write without those before it.
    pub(super) fn retract(&mut self) {
        let numbers = (0..).map(|n: u32| self.answered.wrapping_add(n));
        let flights: Vec<_> = numbers.zip(self.flights.iter()).collect();
        for (number, flight) in flights.into_iter().rev() {
            let index = (flight.operation - self.first) as usize;
            if self.operations.get(index).is_some_and(Pending::is_reported) {
                Entry::retract(&self.memory, self.layout.submission(number), number);
            }
        }
    }
}
