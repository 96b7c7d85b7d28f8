//! Allocations that are prepared in parts, so that others do not wait for a long one.
//!
//! Before it runs an allocation, a node may call [`Store::prepare`] again and again, and serve
//! others in between. What the space has freed is then given back, and the pages are entered into
//! the page table, a bounded number with each call. No lookup finds these pages before the
//! allocation is made. If it is not made, or another one is, they leave again, as freed ones do.
//!
//! The pages of a region get their memory in the same way. They keep it if the region is not made
//! after all, as they do after a write.

use super::allocation::{whole_pages, Frames, AREAS_MAX, CHOSEN, PAGES_MAX};
use super::space::{Area, Kind};
use super::table::{Entry, Page, Room};
use super::{Bytes, Store};
use crate::operation::{Address, Operation, PageSize, Permission, SpaceId};

/// Pages that a call enters or gives back, at most, whatever the settings: some hundred
/// nanoseconds.
const PART_MAX: u64 = 16;

/// Spaces with pages that no lookup finds, above which no allocation is prepared.
const SPACES_MAX: usize = 64;

/// Calls for another allocation of the same space after which one that is being prepared, and goes
/// on no more, gives way.
const PATIENCE: u32 = 1000;

/// An allocation that is being prepared.
#[derive(Debug)]
pub(super) struct Entering {
    wanted: Wanted,
    start: Address,
    /// The first address without an entry.
    next: Address,
    /// Calls for another allocation since the last for this one.
    others: u32,
}

/// The arguments of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    bytes: u64,
    page: PageSize,
    permission: Permission,
    at: Option<Address>,
}

impl Entering {
    /// Returns true if an address belongs to a page that was entered.
    pub(super) fn has(&self, address: Address) -> bool {
        (self.start..self.next).contains(&address)
    }
}

impl<M: Bytes> Store<M> {
    /// Does a bounded part of the work of an operation ahead of it. Returns false if there is more
    /// of it. The operation itself then takes less time; its result is the same.
    pub fn prepare(&mut self, id: SpaceId, operation: &Operation<'_>) -> bool {
        let (bytes, page, at, permission, sparse) = match *operation {
            Operation::Alloc {
                bytes,
                page,
                at,
                permission,
                sparse,
            } => (bytes, page, at, permission, sparse),
            Operation::Region {
                name,
                address,
                bytes,
            } => return self.populate_ahead(id, name, address, bytes),
            _ => return true,
        };
        // What is wrong with it is for the operation to find.
        let Ok(bytes) = whole_pages(bytes, page) else {
            return true;
        };
        let part = (2 * self.config.free_pages.min(PART_MAX)).clamp(1, PART_MAX);
        if self.frees(&id) && self.give_back_of(id, 0..Address::MAX, part) == 0 {
            return false;
        }
        if sparse || bytes >> page.shift() <= part {
            return true;
        }
        let wanted = Wanted {
            bytes,
            page,
            permission,
            at,
        };
        self.enter_ahead(id, wanted, part)
    }

    fn enter_ahead(&mut self, id: SpaceId, wanted: Wanted, part: u64) -> bool {
        let Some(space) = self.spaces.get_mut(&id) else {
            return true;
        };
        match &mut space.entering {
            Some(entering) if entering.wanted != wanted => {
                entering.others += 1;
                if entering.others >= PATIENCE {
                    self.abandon(id);
                }
                return false;
            }
            Some(entering) => entering.others = 0,
            None => {
                let Wanted { bytes, page, .. } = wanted;
                let start = wanted
                    .at
                    .unwrap_or(space.next.next_multiple_of(page.bytes()));
                let end = start.checked_add(bytes);
                let is_free = |end| space.taken(start, end).is_none();
                let is_chosen = |&end: &Address| wanted.at.is_some() || end <= CHOSEN.end;
                let is_possible = bytes >> page.shift() <= PAGES_MAX
                    && space.may_use(bytes)
                    && space.areas.len() < AREAS_MAX
                    && start.is_multiple_of(page.bytes())
                    && end.filter(is_chosen).is_some_and(is_free);
                if !is_possible || self.leaving.len() >= SPACES_MAX {
                    return true;
                }
                space.entering = Some(Entering {
                    wanted,
                    start,
                    next: start,
                    others: 0,
                });
                self.leaving.insert(id);
            }
        }
        let Some(entering) = &mut space.entering else {
            return true;
        };
        let (size, end) = (wanted.page, entering.start + wanted.bytes);
        let count = ((end - entering.next) >> size.shift()).min(part);
        let room = match wanted.at {
            Some(_) => Room::Second,
            None => Room::Home,
        };
        let entry = Entry::new(size, wanted.permission, None);
        let first = Page::of(id, entering.next, size);
        if !self.table.insert_all(&first, count, room, |_| entry) {
            // The allocation looks for room elsewhere.
            self.abandon(id);
            return true;
        }
        entering.next += count << size.shift();
        entering.next == end
    }

    /// Returns the address of an allocation, if it was prepared, and the pages from then on belong
    /// to it. Another one is abandoned.
    pub(super) fn prepared(
        &mut self,
        id: SpaceId,
        bytes: u64,
        at: Option<Address>,
        area: Area,
        frames: &Frames<'_>,
    ) -> Option<Address> {
        let wanted = Wanted {
            bytes,
            page: area.page,
            permission: area.permission,
            at,
        };
        let entering = self.spaces.get(&id)?.entering.as_ref()?;
        let is_whole = entering.next == entering.start + entering.wanted.bytes;
        if entering.wanted != wanted || !is_whole || !matches!(frames, Frames::Later) {
            self.abandon(id);
            return None;
        }
        let entering = self.spaces.get_mut(&id)?.entering.take()?;
        self.settle(id);
        Some(entering.start)
    }

    /// Gives up the allocation that a space prepares, if there is one; its pages are leaving from
    /// then on.
    pub(super) fn abandon(&mut self, id: SpaceId) {
        let Some(space) = self.spaces.get_mut(&id) else {
            return;
        };
        let Some(Entering {
            wanted,
            start,
            next,
            ..
        }) = space.entering.take()
        else {
            return;
        };
        if start < next {
            let area = Area {
                end: next,
                page: wanted.page,
                permission: wanted.permission,
                kind: Kind::Dense,
            };
            space.leaving.insert(start, area);
        }
        self.settle(id);
    }
}
