//! An operation that is not over.

use std::ops::Range;
use std::time::Instant;

use super::entry::outcome;
use super::Flight;
use crate::operation::{Error, SpaceId, Value};
use crate::protocol::codec::{code, status, Head};
use crate::protocol::Failure;
use crate::transport::shm::layout::Entry;

/// An operation that is not over.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) space: SpaceId,
    pub(super) head: Head,
    /// The body, unless all of it is in the ring.
    pub(super) body: Vec<u8>,
    /// Bytes that are in the ring; that all are, if `is_sent`.
    pub(super) sent: u32,
    pub(super) is_sent: bool,
    /// Entries on the way.
    pub(super) entries: u32,
    /// Bytes that were read.
    pub(super) received: u32,
    /// The bytes that were read.
    pub(super) data: Vec<u8>,
    /// The body is the caller's; it is in `data` once all of it is in the ring.
    pub(super) is_owned: bool,
    pub(super) outcome: Result<Value, Failure>,
    pub(super) submitted: Instant,
    /// The time from which on its timeout counts.
    pub(super) since: Instant,
    pub(super) is_reported: bool,
}

impl Pending {
    /// An operation of which nothing is in the ring.
    pub(super) fn new(space: SpaceId, head: Head, now: Instant) -> Pending {
        Pending {
            space,
            is_sent: head.code == code::FENCE,
            head,
            body: Vec::new(),
            sent: 0,
            entries: 0,
            received: 0,
            data: Vec::new(),
            is_owned: false,
            outcome: Ok(Value::None),
            submitted: now,
            since: now,
            is_reported: false,
        }
    }

    /// An operation that no node would run. It is not sent, as a fence is not.
    pub(super) fn refused(space: SpaceId, error: Error, now: Instant) -> Pending {
        let head = Head {
            code: code::FENCE,
            ..Head::default()
        };
        Pending {
            outcome: Err(Failure::Refused(error)),
            ..Pending::new(space, head, now)
        }
    }

    /// An operation of one entry, which is in the ring.
    pub(super) fn sent(entry: &Entry, now: Instant) -> Pending {
        let head = Head {
            code: entry.code,
            address: entry.address,
            length: entry.length,
            guard: None,
        };
        Pending {
            sent: entry.length,
            is_sent: true,
            entries: 1,
            ..Pending::new(entry.space(), head, now)
        }
    }

    /// Returns the caller's bytes, if it gave them; what was read so far is dropped.
    pub(super) fn take_data(&mut self) -> Vec<u8> {
        let data = std::mem::take(&mut self.data);
        match (self.is_owned, data.is_empty()) {
            (false, _) => Vec::new(),
            (true, true) => std::mem::take(&mut self.body),
            (true, false) => data,
        }
    }

    pub(super) fn is_reported(&self) -> bool {
        self.is_reported
    }

    pub(super) fn is_over(&self) -> bool {
        self.entries == 0 && (self.is_sent || self.is_reported)
    }

    /// Takes the status of an entry. Returns the place of the bytes that were read.
    pub(super) fn take(&mut self, flight: &Flight, status: u8, value: u64) -> Range<usize> {
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
