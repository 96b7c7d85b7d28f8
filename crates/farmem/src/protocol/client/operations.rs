//! The operations that have not completed.

use tare_sim::Instant;

use super::super::codec::Head;
use super::OperationId;
use crate::operation::SpaceId;

/// An operation that has not completed.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) id: OperationId,
    pub(super) space: SpaceId,
    pub(super) head: Head,
    /// The body to send, or the buffer of a read.
    pub(super) data: Vec<u8>,
    /// The body is the caller's, who gets it back.
    pub(super) is_owned: bool,
    /// [`Instant::NEVER`] until it is known.
    pub(super) submitted: Instant,
    /// Its first request; `None` if nothing was sent.
    pub(super) first: Option<First>,
    /// Bytes sent at least once, and bytes answered.
    pub(super) sent: u32,
    pub(super) answered: u32,
    /// Operations that it waits for.
    pub(super) blockers: u32,
    /// Operations that wait for it, by their slots.
    pub(super) dependents: Vec<u32>,
}

/// An operation that has completed.
pub(super) struct Ended {
    pub(super) id: OperationId,
    pub(super) space: SpaceId,
    pub(super) data: Vec<u8>,
    pub(super) is_owned: bool,
    pub(super) dependents: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct First {
    pub(super) id: u64,
    pub(super) at: Instant,
    /// Bytes of a request or response that carry data.
    pub(super) part: u32,
}

/// An operation in a slot, which may hold another one meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handle {
    pub(super) slot: u32,
    /// The last bits of its number.
    number: u32,
}

impl Handle {
    /// That of no operation.
    pub(super) const NONE: Handle = Handle {
        slot: NONE,
        number: 0,
    };
}

/// The operations that have not completed: in slots that are used again, and in a list by the order
/// of their submission, which is that of their ends.
#[derive(Debug)]
pub(super) struct Operations {
    slots: Vec<Slot>,
    /// The vacant slots, each with the next in `newer`.
    vacant: u32,
    oldest: u32,
    newest: u32,
    len: usize,
}

#[derive(Debug)]
struct Slot {
    active: Option<Active>,
    older: u32,
    newer: u32,
}

const NONE: u32 = u32::MAX;

impl Operations {
    pub(super) const fn new() -> Operations {
        Operations {
            slots: Vec::new(),
            vacant: NONE,
            oldest: NONE,
            newest: NONE,
            len: 0,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Asks the cache for the first slot.
    #[inline]
    pub(super) fn prefetch(&self) {
        self.slots
            .first()
            .into_iter()
            .for_each(tare_memory::prefetch);
    }

    /// All slots, of which some are vacant.
    pub(super) fn slots(&self) -> std::ops::Range<u32> {
        0..self.slots.len() as u32
    }

    /// The slot of the next operation.
    #[inline]
    pub(super) fn next_slot(&self) -> u32 {
        match self.vacant {
            NONE => self.slots.len() as u32,
            vacant => vacant,
        }
    }

    /// Adds an operation, which is the newest one, in [`Operations::next_slot`].
    #[inline]
    pub(super) fn insert(&mut self, active: Active) -> Handle {
        let handle = Handle {
            slot: self.next_slot(),
            number: active.id.0 as u32,
        };
        let older = std::mem::replace(&mut self.newest, handle.slot);
        let slot = Slot {
            active: Some(active),
            older,
            newer: NONE,
        };
        match self.slots.get_mut(self.vacant as usize) {
            Some(place) => {
                self.vacant = place.newer;
                *place = slot;
            }
            None => self.slots.push(slot),
        }
        *self.newer_of(older) = handle.slot;
        self.len += 1;
        handle
    }

    /// Removes an operation; returns what is needed of it.
    #[inline]
    pub(super) fn remove(&mut self, slot: u32) -> Option<Ended> {
        let place = self.slots.get_mut(slot as usize)?;
        let active = place.active.as_mut()?;
        let ended = Ended {
            id: active.id,
            space: active.space,
            data: std::mem::take(&mut active.data),
            is_owned: active.is_owned,
            dependents: std::mem::take(&mut active.dependents),
        };
        place.active = None;
        let (older, newer) = (place.older, place.newer);
        place.newer = std::mem::replace(&mut self.vacant, slot);
        *self.newer_of(older) = newer;
        match self.slots.get_mut(newer as usize) {
            Some(next) => next.older = older,
            None => self.newest = older,
        }
        self.len -= 1;
        Some(ended)
    }

    /// The place of the slot after this one, in the order of submission.
    #[inline]
    fn newer_of(&mut self, older: u32) -> &mut u32 {
        match self.slots.get_mut(older as usize) {
            Some(slot) => &mut slot.newer,
            None => &mut self.oldest,
        }
    }

    #[inline]
    pub(super) fn get(&self, handle: Handle) -> Option<&Active> {
        let active = self.slots.get(handle.slot as usize)?.active.as_ref();
        active.filter(|active| active.id.0 as u32 == handle.number)
    }

    #[inline]
    pub(super) fn find(&mut self, handle: Handle) -> Option<&mut Active> {
        let active = self.slots.get_mut(handle.slot as usize)?.active.as_mut();
        active.filter(|active| active.id.0 as u32 == handle.number)
    }

    #[inline]
    pub(super) fn at(&mut self, slot: u32) -> Option<(Handle, &mut Active)> {
        let active = self.slots.get_mut(slot as usize)?.active.as_mut()?;
        let number = active.id.0 as u32;
        Some((Handle { slot, number }, active))
    }

    /// The operation that was submitted first, with its slot.
    #[inline]
    pub(super) fn oldest(&self) -> Option<(u32, &Active)> {
        let oldest = self.slots.get(self.oldest as usize)?;
        Some((self.oldest, oldest.active.as_ref()?))
    }

    /// Gives the time to the newest operations, as far as they have none.
    pub(super) fn stamp(&mut self, now: Instant) {
        let mut next = self.newest;
        while let Some(slot) = self.slots.get_mut(next as usize) {
            match &mut slot.active {
                Some(active) if active.submitted == Instant::NEVER => active.submitted = now,
                _ => break,
            }
            next = slot.older;
        }
    }
}
