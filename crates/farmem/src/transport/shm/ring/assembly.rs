//! Writes in parts.
//!
//! All clients share the memory for those that are not complete. If there is too little, one that
//! has had no part for a second loses its place, and a client gets its share of the memory,
//! whatever others have of it: so that a client delays no other one by leaving writes incomplete.
//! What has lost its place never runs, and the client is told that it came too late.

use std::time::Duration;

use tare_sim::Instant;

use super::{Ring, Shared};
use crate::operation::{Address, Guard, Operation, SpaceId, LEN_MAX};
use crate::protocol::codec::{self, status};
use crate::protocol::Execute;
use crate::transport::shm::layout::flag;
use crate::transport::shm::layout::Entry;
use crate::transport::shm::Violation;

/// The time without a part after which a write gives way to another one.
const PATIENCE: Duration = Duration::from_secs(1);

/// The time for which a write waits for room at least: those that are left incomplete have given
/// way by then.
const WAIT: Duration = Duration::from_secs(2);

/// A client's write in parts.
#[derive(Default)]
pub(super) enum Assembly {
    #[default]
    None,
    /// It is not complete yet.
    Partial(Partial),
    /// There was no room for it. Further parts of it are expected.
    Lost,
}

/// A write in parts that is not complete yet.
pub(super) struct Partial {
    space: SpaceId,
    address: Address,
    length: u32,
    guard: Option<Guard>,
    data: Vec<u8>,
    /// The time of the last part.
    since: Instant,
}

/// A write for which there is no room.
#[derive(Clone, Copy, Debug)]
pub(in crate::transport::shm) struct Lack {
    pub(in crate::transport::shm) bytes: u64,
    /// The time from which on it waits.
    since: Instant,
    /// No other write has given way to it in all that time.
    is_over: bool,
}

impl Ring {
    /// Returns the bytes that the client's incomplete write takes.
    pub(in crate::transport::shm) fn assembly_bytes(&self) -> u64 {
        match &self.assembly {
            Assembly::Partial(write) => write.length.into(),
            _ => 0,
        }
    }

    /// Returns the time of the last part if the client has an incomplete write.
    pub(in crate::transport::shm) fn last_part(&self) -> Option<Instant> {
        match &self.assembly {
            Assembly::Partial(write) => Some(write.since),
            _ => None,
        }
    }

    /// Returns the write that waits for room.
    pub(in crate::transport::shm) fn lack(&self) -> Option<Lack> {
        self.lack
    }

    /// Takes note that no other write gives way to the one that waits.
    pub(in crate::transport::shm) fn find_no_room(&mut self, now: Instant) {
        if let Some(lack) = &mut self.lack {
            lack.is_over = now.since(lack.since) >= WAIT;
        }
    }

    /// Gives up the incomplete write; returns the bytes that it took.
    pub(in crate::transport::shm) fn evict(&mut self) -> u64 {
        let bytes = self.assembly_bytes();
        self.assembly = Assembly::Lost;
        bytes
    }

    /// Forgets the incomplete write, because another entry came than its next part.
    pub(super) fn forget_parts<S, C>(&mut self, shared: &mut Shared<'_, S, C>) {
        *shared.assembly_free += self.assembly_bytes();
        self.assembly = Assembly::None;
        self.lack = None;
    }

    /// Takes a part of a write; `None` if there is no room for it at present.
    pub(super) fn assemble<S: Execute, C: Fn() -> Instant>(
        &mut self,
        entry: &Entry,
        shared: &mut Shared<'_, S, C>,
    ) -> Result<Option<(u8, u64)>, Violation> {
        let (at, length) = (entry.body[0] as u32, (entry.body[0] >> 32) as u32);
        let end = at.checked_add(entry.length);
        let is_sound = entry.length > 0 && length <= LEN_MAX && end.is_some_and(|e| e <= length);
        if !is_sound || !entry.has(flag::AREA) {
            return Err(Violation::Part);
        }
        let now = shared.time();
        if at == 0 && !self.begin(entry, length, now, shared) {
            return Ok(None);
        }
        let write = match &mut self.assembly {
            Assembly::Partial(write) => write,
            Assembly::Lost => return Ok(Some((status::EXPIRED, 0))),
            Assembly::None => return Err(Violation::Part),
        };
        let shape = (write.space, write.address, write.length, write.guard);
        let expected = (entry.space(), entry.address, length, entry.guard());
        if shape != expected || write.data.len() != at as usize {
            return Err(Violation::Part);
        }
        let from = self.layout.area(&self.memory, entry.line, entry.length);
        let from = from.ok_or(Violation::Area)?;
        write.since = now;
        write.data.resize(at as usize + entry.length as usize, 0);
        let copied = from.copy_to(&mut write.data[at as usize..]);
        copied.ok_or(Violation::Area)?;
        if end != Some(length) {
            return Ok(Some((status::RECEIVED, 0)));
        }
        let data = std::mem::take(&mut write.data);
        self.forget_parts(shared);
        let operation = Operation::Write {
            address: entry.address,
            data: &data,
            guard: entry.guard(),
        };
        let space = entry.space();
        let outcome = shared.store.execute(now, space, &operation, shared.scratch);
        Ok(Some(codec::encode_outcome(outcome)))
    }

    /// Begins a write in parts; returns false if it has to wait for room.
    fn begin<S, C>(
        &mut self,
        entry: &Entry,
        length: u32,
        now: Instant,
        shared: &mut Shared<'_, S, C>,
    ) -> bool {
        let lack = self.lack;
        self.forget_parts(shared);
        let bytes = u64::from(length);
        if bytes > *shared.assembly_free {
            if lack.is_some_and(|lack| lack.is_over) {
                self.assembly = Assembly::Lost;
                return true;
            }
            self.lack = Some(Lack {
                bytes,
                since: lack.map_or(now, |lack| lack.since),
                is_over: false,
            });
            return false;
        }
        *shared.assembly_free -= bytes;
        self.assembly = Assembly::Partial(Partial {
            space: entry.space(),
            address: entry.address,
            length,
            guard: entry.guard(),
            data: Vec::new(),
            since: now,
        });
        true
    }
}

/// Chooses the write that gives way to one of `bytes`, of a client whose share is `share`.
pub(in crate::transport::shm) fn victim<'a>(
    rings: impl Iterator<Item = (usize, &'a Ring)>,
    now: Instant,
    bytes: u64,
    share: u64,
) -> Option<usize> {
    let writes = rings.filter_map(|(index, ring)| Some((index, ring, ring.last_part()?)));
    let may_give_way = writes.filter(|(_, ring, last)| {
        let has_more = bytes <= share && ring.assembly_bytes() > share;
        has_more || now.since(*last) >= PATIENCE
    });
    // The one that has waited longest for its client.
    may_give_way
        .min_by_key(|(_, _, last)| *last)
        .map(|(index, ..)| index)
}
