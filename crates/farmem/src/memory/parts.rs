//! Pages of 1 GiB whose memory has old bytes, which are zeroed in parts.
//!
//! Zeroing 1 GiB takes a third of a second, for which all others would have to wait. So a page that
//! gets such a frame has no entry with it, but an entry for each part of 2 MiB that was written, as
//! a page of 2 MiB has one, by which lookups find it without a further step. A part is zeroed just
//! before it gets its entry, and one without an entry reads as zero. Idle time zeroes the others.

use std::collections::BTreeMap;

use super::pool::{self, Frame};
use super::space::Kind;
use super::table::{Entry, Page, Table};
use super::{Bytes, Store};
use crate::memory::allocation::{whole_pages, PAGES_MAX};
use crate::operation::{Address, Error, PageSize, SpaceId};

/// Parts of a page.
const PARTS: u64 = PageSize::Huge.bytes() / PageSize::Large.bytes();

/// The frames of 4 KiB that [`Store::populate_ahead`] zeroes at a time: 2 MiB.
const ZEROED_MAX: u64 = PageSize::Large.bytes() / PageSize::Small.bytes();

/// The frames of the pages in parts, by space and number of the page.
pub(super) type Parted = BTreeMap<(SpaceId, u64), Frame>;

/// The memory that an operation made of a page that had none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    /// All of the page.
    Page,
    /// A part of a page that had another one.
    Part,
    /// The first part of a page.
    FirstPart,
}

/// A region whose pages get memory ahead.
#[derive(Clone, Copy, Debug)]
pub(super) struct Populating {
    start: Address,
    end: Address,
    /// The first address of which it is not known whether it has memory.
    next: Address,
}

/// Takes a page from those in parts, and its entries from the page table. Returns its frame.
pub(super) fn remove<M: Bytes>(
    parted: &mut Parted,
    table: &mut Table<M>,
    page: &Page,
) -> Option<Frame> {
    let frame = parted.remove(&(page.space, page.number))?;
    table.remove_all(&first_part(page), PARTS, |_| ());
    Some(frame)
}

/// Returns the first part of a page.
fn first_part(page: &Page) -> Page {
    Page {
        number: page.number * PARTS,
        size: PageSize::Large,
        ..*page
    }
}

/// Returns the place of a part in its page, in frames.
fn place_of(part: &Page) -> Frame {
    (part.number % PARTS) as Frame * pool::FRAMES
}

impl<M: Bytes> Store<M> {
    /// Returns true if a page is one in parts.
    pub(super) fn has_parts(&self, page: &Page) -> bool {
        self.parted.contains_key(&(page.space, page.number))
    }

    /// Lets a page be one in parts, none of which is there yet.
    pub(super) fn begin_parts(&mut self, page: &Page, frame: Frame) {
        self.parted.insert((page.space, page.number), frame);
    }

    /// Gives back the frame of a page of which no part is there any more, and none was written.
    pub(super) fn end_parts(&mut self, page: &Page) {
        if let Some(frame) = self.parted.remove(&(page.space, page.number)) {
            self.pool.put_back(frame, page.size);
        }
    }

    /// Zeroes a part of a page, and enters it.
    pub(super) fn populate_part(&mut self, id: SpaceId, address: Address) -> Result<(), Error> {
        let page = Page::of(id, address, PageSize::Huge);
        let part = Page::of(id, address, PageSize::Large);
        let (_, area) = self.space_area(id, address)?;
        let frame = self.parted.get(&(id, page.number));
        let frame = frame.ok_or(Error::Unmapped { address })? + place_of(&part);
        self.pool.zero_block(frame);
        self.insert(&part, Entry::new(part.size, area.permission, Some(frame)))
    }

    /// Makes one entry of those of a page that has all its parts.
    pub(super) fn join_parts(&mut self, id: SpaceId, address: Address) -> Result<(), Error> {
        let page = Page::of(id, address, PageSize::Huge);
        let Some(&frame) = self.parted.get(&(id, page.number)) else {
            return Ok(());
        };
        // A process that is killed leaves both, of which the first one counts.
        if self.table.find(&page).is_some() {
            self.table.set_frame(&page, Some(frame));
        } else {
            let (_, area) = self.space_area(id, address)?;
            self.insert(&page, Entry::new(page.size, area.permission, Some(frame)))?;
        }
        remove(&mut self.parted, &mut self.table, &page);
        Ok(())
    }

    /// Gives memory to the pages of a region that is to be made, of which it zeroes a bounded part
    /// with each call. Returns false if there is more of it. What is wrong with the region is for
    /// the operation to find.
    pub(super) fn populate_ahead(
        &mut self,
        id: SpaceId,
        name: &[u8],
        start: Address,
        bytes: u64,
    ) -> bool {
        if self.check_name(id, name).is_err() {
            return true;
        }
        let Ok((_, area)) = self.space_area(id, start) else {
            return true;
        };
        let Ok(bytes) = whole_pages(bytes, area.page) else {
            return true;
        };
        let end = start.checked_add(bytes).filter(|&end| end <= area.end);
        let (Some(end), false) = (end, matches!(area.kind, Kind::Mapped(_))) else {
            return true;
        };
        if !start.is_multiple_of(area.page.bytes()) || bytes >> area.page.shift() > PAGES_MAX {
            return true;
        }
        let Some(space) = self.spaces.get_mut(&id) else {
            return true;
        };
        let before = space.populating.take();
        let before = before.filter(|before| (before.start, before.end) == (start, end));
        let mut next = before.map_or(start, |before| before.next);
        if next == start && self.check_room(id, start, bytes).is_err() {
            return true;
        }
        let zeroed = self.pool.late();
        let mut made = Vec::new();
        loop {
            let from = next;
            while next < end {
                let Ok((size, what)) = self.populate_page(id, next, area.permission) else {
                    self.unpopulate(id, made);
                    return true;
                };
                made.extend(what.map(|what| (next, what)));
                next = ((next >> size.shift()) + 1) << size.shift();
                if self.pool.late() - zeroed >= ZEROED_MAX {
                    let populating = Populating { start, end, next };
                    if let Some(space) = self.spaces.get_mut(&id) {
                        space.populating = Some(populating);
                    }
                    return false;
                }
            }
            if from == start {
                return true;
            }
            // What had memory before may have been freed, and allocated again.
            next = start;
        }
    }

    /// Finds in a store that was kept which pages are in parts, from the entries of these. Returns
    /// how many of them were of a page that has an entry of its own.
    pub(super) fn restore_parts(&mut self, parts: &[(Page, Frame)]) -> Option<u64> {
        let mut dropped = 0;
        for (part, frame) in parts {
            let start = part.number << PageSize::Large.shift();
            let page = Page::of(part.space, start, PageSize::Huge);
            let first = frame.checked_sub(place_of(part))?;
            if let Some(whole) = self.table.find(&page).and_then(Entry::frame) {
                // It was killed before it removed its parts.
                if whole != first {
                    return None;
                }
                self.table.remove(part);
                dropped += 1;
                continue;
            }
            match self.parted.insert((page.space, page.number), first) {
                Some(other) if other != first => return None,
                Some(_) => {}
                None => {
                    if !self.pool.claim(first, page.size) {
                        return None;
                    }
                    // A dense page has an entry, also without memory.
                    if self.table.find(&page).is_none() {
                        let space = self.spaces.get_mut(&page.space)?;
                        space.touched.insert(page.number << page.size.shift());
                        space.used = space.used.saturating_add(page.size.bytes());
                    }
                }
            }
        }
        for (&(space, number), &frame) in &self.parted {
            let size = PageSize::Huge;
            let page = Page {
                space,
                number,
                size,
            };
            for part in (0..PARTS).map(|n| first_part(&page).after(n)) {
                if self.table.find(&part).is_none() {
                    self.pool.mark_block(frame + place_of(&part));
                }
            }
        }
        Some(dropped)
    }
}
