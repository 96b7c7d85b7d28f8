//! The address space of one client: which ranges are allocated, and what it has used.

use std::collections::BTreeSet;
use std::ops::Range;

use super::ahead::Entering;
use super::metadata::{AreaCount, Areas};
use super::parts::Populating;
use crate::operation::{Address, PageSize, Permission, RegionId};

/// An address space.
pub(super) struct Space {
    /// The most bytes that it may use.
    pub(super) quota: u64,
    /// The bytes of its dense areas, and of the pages of its sparse areas that were written.
    pub(super) used: u64,
    /// The bytes of the regions that it has mapped, at most as many again. They use no memory, but
    /// entries of the page table.
    pub(super) mapped: u64,
    /// By the first address; they do not overlap.
    pub(super) areas: Areas,
    /// The areas that were freed and have not left the page table yet; none overlaps another area.
    pub(super) leaving: Areas,
    /// The allocation that is being prepared; it overlaps no area.
    pub(super) entering: Option<Entering>,
    /// The region whose pages get memory ahead.
    pub(super) populating: Option<Populating>,
    /// The first addresses of the pages of sparse areas, leaving ones too, that have an entry in
    /// the page table, or a part that has one.
    pub(super) touched: BTreeSet<Address>,
    /// The place of the next allocation, if there is room.
    pub(super) next: Address,
    /// The regions that belong to the space.
    pub(super) regions: BTreeSet<RegionId>,
    /// The regions that are granted to the space.
    pub(super) granted: BTreeSet<RegionId>,
}

/// An allocated range of addresses, or a part of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    /// The first address after it.
    pub(super) end: Address,
    pub(super) page: PageSize,
    pub(super) permission: Permission,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Every page has an entry in the page table.
    Dense,
    /// A page has an entry once it was written.
    Sparse,
    /// A region of another space: every page has an entry, and the frame belongs to that space.
    Mapped(RegionId),
}

impl Space {
    pub(super) fn new(quota: u64, next: Address, count: &AreaCount) -> Space {
        Space {
            quota,
            used: 0,
            mapped: 0,
            areas: count.areas(),
            leaving: count.areas(),
            entering: None,
            populating: None,
            touched: BTreeSet::new(),
            next,
            regions: BTreeSet::new(),
            granted: BTreeSet::new(),
        }
    }

    /// Returns the area that has an address, and its first address.
    pub(super) fn area(&self, address: Address) -> Option<(Address, Area)> {
        let (&start, area) = self.areas.range(..=address).next_back()?;
        (address < area.end).then_some((start, *area))
    }

    /// Returns the first address of a range that is allocated.
    pub(super) fn taken(&self, start: Address, end: Address) -> Option<Address> {
        if self.area(start).is_some() {
            return Some(start);
        }
        self.areas.range(start..end).next().map(|(&taken, _)| taken)
    }

    /// Takes a range out of the area that begins at `start`.
    pub(super) fn cut(&mut self, start: Address, from: Address, to: Address) {
        cut(&mut self.areas, start, from, to);
    }

    /// Takes a range out of the leaving area that begins at `start`.
    pub(super) fn cut_leaving(&mut self, start: Address, from: Address, to: Address) {
        cut(&mut self.leaving, start, from, to);
    }

    /// Returns the first part of a range that is leaving, after the start of its area.
    pub(super) fn first_leaving(
        &self,
        range: &Range<Address>,
    ) -> Option<(Address, Address, Address)> {
        let before = self.leaving.range(..=range.start).next_back();
        let before = before.filter(|(_, area)| range.start < area.end);
        let (&start, area) = before.or_else(|| self.leaving.range(range.clone()).next())?;
        Some((start, start.max(range.start), area.end.min(range.end)))
    }

    /// Returns true if so many more bytes are within the quota.
    pub(super) fn may_use(&self, bytes: u64) -> bool {
        self.used
            .checked_add(bytes)
            .is_some_and(|used| used <= self.quota)
    }

    /// Returns true if it may map so many more bytes, of a memory of `all`.
    pub(super) fn may_map(&self, bytes: u64, all: u64) -> bool {
        self.mapped
            .checked_add(bytes)
            .is_some_and(|mapped| mapped <= self.quota.min(all))
    }
}

fn cut(areas: &mut Areas, start: Address, from: Address, to: Address) {
    let Some(area) = areas.remove(start) else {
        return;
    };
    if start < from {
        areas.insert(start, Area { end: from, ..area });
    }
    if to < area.end {
        areas.insert(to, area);
    }
}
