//! The node's side of one region.

mod assembly;
mod change;
mod read;

use std::collections::HashSet;

use tare_memory::{Copier, SharedMemory};
use tare_sim::Instant;

pub(super) use self::assembly::victim;
use self::assembly::{Assembly, Lack};
use super::bell::Bell;
use super::layout::{self, Entry, Layout, CLIENT, FIRST, NODE, RETRACTED};
use super::{Violation, BATCH, PART_MAX};
use crate::operation::SpaceId;
use crate::protocol::codec::code;
use crate::protocol::Execute;

/// Bytes of data after which the node looks at the next client.
const TURN_BYTES: u64 = 4 * PART_MAX as u64;

/// A region as the node sees it, and what the node keeps of its client.
pub(super) struct Ring {
    memory: SharedMemory,
    layout: Layout,
    /// The number of the next entry.
    next: u32,
    bell: Bell,
    /// For what is read.
    copier: Copier,
    assembly: Assembly,
    /// The write in parts that waits for room.
    lack: Option<Lack>,
    /// The spaces whose capability was shown.
    pub(super) attached: HashSet<SpaceId>,
}

/// The state of the node that the rings share.
pub(super) struct Shared<'a, S, C> {
    pub(super) store: &'a mut S,
    pub(super) clock: &'a C,
    /// The last time that was asked for.
    pub(super) now: &'a mut Instant,
    /// True if spaces must be attached.
    pub(super) is_restricted: bool,
    /// Bytes that further writes in parts may take.
    pub(super) assembly_free: &'a mut u64,
    pub(super) scratch: &'a mut Vec<u8>,
    /// The entries of a turn.
    pub(super) batch: &'a mut [Entry; BATCH],
}

impl<S, C: Fn() -> Instant> Shared<'_, S, C> {
    fn time(&mut self) -> Instant {
        *self.now = (self.clock)();
        *self.now
    }
}

/// The result of a turn.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turn {
    /// Entries answered.
    pub(super) entries: u32,
    /// Among them are some that may take long, whatever their bytes.
    pub(super) is_long: bool,
    /// Bytes to be read and written.
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
    /// The client is asleep, and has to be notified of completions.
    pub(super) must_notify: bool,
}

impl Ring {
    pub(super) fn new(memory: SharedMemory, layout: Layout) -> Ring {
        layout.initialize(&memory);
        Ring {
            memory,
            layout,
            next: FIRST,
            bell: Bell::new(NODE, CLIENT),
            copier: Copier::default(),
            assembly: Assembly::None,
            lack: None,
            attached: HashSet::new(),
        }
    }

    pub(super) fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    #[inline]
    pub(super) fn has_entry(&self) -> bool {
        let at = self.layout.submission(self.next);
        layout::first_word(&self.memory, at, self.next).is_some()
    }

    /// From now on the client has to notify the node. Returns false, and changes that back, if
    /// there is something to do already.
    pub(super) fn park(&self) -> bool {
        let at = self.layout.submission(self.next);
        self.bell.park(&self.memory, at, self.next)
    }

    /// From now on the node looks at the ring by itself.
    pub(super) fn unpark(&self) {
        self.bell.unpark(&self.memory);
    }

    /// Answers entries, at most [`BATCH`].
    #[inline]
    pub(super) fn turn<S: Execute, C: Fn() -> Instant>(
        &mut self,
        shared: &mut Shared<'_, S, C>,
    ) -> Result<Turn, Violation> {
        match self.has_entry() {
            true => self.serve(shared),
            false => Ok(self.rest()),
        }
    }

    /// A turn without entries.
    #[inline]
    pub(super) fn rest(&mut self) -> Turn {
        // The fence only now, when the client has what it waits for: it is only needed before the
        // node stops looking.
        Turn {
            must_notify: self.bell.must_notify_for_certain(&self.memory),
            ..Turn::default()
        }
    }

    fn serve<S: Execute, C: Fn() -> Instant>(
        &mut self,
        shared: &mut Shared<'_, S, C>,
    ) -> Result<Turn, Violation> {
        let (mut count, mut violation) = (0, None);
        while count < BATCH {
            let number = self.next.wrapping_add(count as u32);
            match Entry::load(&self.memory, self.layout.submission(number), number) {
                None => break,
                Some(Ok(entry)) => shared.batch[count] = entry,
                Some(Err(found)) => {
                    violation = Some(found);
                    break;
                }
            }
            count += 1;
        }
        let mut at = 0;
        let mut turn = Turn::default();
        while at < count && turn.read_bytes + turn.written_bytes < TURN_BYTES {
            let batch = &shared.batch[at..count];
            let reads = batch.iter().take_while(|entry| entry.code == code::READ);
            let reads = reads.count();
            if reads > 0 {
                turn.read_bytes += batch[..reads].iter().map(counted_bytes).sum::<u64>();
                self.read(at, reads, shared)?;
                at += reads;
                continue;
            }
            let entry = batch[0];
            let Some((status, value)) = self.other(&entry, shared)? else {
                // Not yet: nothing of this ring goes on before that.
                break;
            };
            turn.written_bytes += counted_bytes(&entry);
            turn.is_long |= may_take_long(entry.code);
            self.complete(status, &[value]);
            at += 1;
        }
        match violation {
            Some(violation) if at == count => Err(violation),
            _ => {
                self.bell.stored();
                turn.entries = at as u32;
                turn.must_notify = self.bell.must_notify(&self.memory);
                Ok(turn)
            }
        }
    }

    #[inline]
    fn complete(&mut self, status: u8, words: &[u64]) {
        let first = u64::from(self.next) | u64::from(status) << 32;
        layout::store_line(
            &self.memory,
            self.layout.completion(self.next),
            first,
            words,
        );
        self.next = self.next.wrapping_add(1);
    }

    fn is_allowed<S, C>(&self, space: SpaceId, shared: &Shared<'_, S, C>) -> bool {
        !shared.is_restricted || self.attached.contains(&space)
    }
}

/// Returns the bytes that an entry counts for, in 64 bits. Its length is the client's word, which
/// has no bound where the operation is refused.
fn counted_bytes(entry: &Entry) -> u64 {
    entry.length.min(PART_MAX).into()
}

/// Returns true if an operation can take longer than a copy of its bytes: those on spaces,
/// allocations and regions.
fn may_take_long(code: u8) -> bool {
    !matches!(
        code,
        code::READ
            | code::WRITE
            | code::COMPARE_AND_SWAP
            | code::FETCH_ADD
            | code::LOCK
            | code::UNLOCK
            | RETRACTED
    )
}
