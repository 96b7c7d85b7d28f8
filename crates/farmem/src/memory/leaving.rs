//! Freed memory that is given back in parts.
//!
//! Freeing a long range, or closing a space, takes the range from the client at once; its pages
//! leave the page table later, a bounded number with each operation. As long as there are such
//! pages, a lookup asks first whether the address is in a range that is leaving. No allocation
//! overlaps one: it gives that part back before.

use std::ops::Range;

use super::locks::Locks;
use super::parts::{self, Parted};
use super::pool::{place, Frame, Pool};
use super::space::{Kind, Space};
use super::table::{Page, Table};
use super::{Bytes, Store};
use crate::operation::{Address, PageSize, SpaceId};

/// Pages for which there is room at once among those that are given back.
const BATCH: u64 = 256;

impl<M: Bytes> Store<M> {
    /// Returns true if an address belongs to memory that was freed, and not given back yet, or to
    /// an allocation that is being prepared.
    #[inline(never)]
    pub(super) fn is_leaving(&self, id: SpaceId, address: Address) -> bool {
        let of = |space: &Space| {
            let before = space.leaving.range(..=address).next_back();
            let is_freed = before.is_some_and(|(_, area)| address < area.end);
            is_freed || matches!(&space.entering, Some(entering) if entering.has(address))
        };
        self.leaving.contains(&id)
            && (self.spaces.get(&id).is_some_and(of) || self.closed.get(&id).is_some_and(of))
    }

    /// Gives back pages that are leaving: as many small ones, or fewer larger ones. Returns how
    /// many there were not.
    pub(super) fn give_back(&mut self, mut pages: u64) -> u64 {
        while pages > 0 {
            let Some(&id) = self.leaving.iter().find(|id| self.frees(id)) else {
                break;
            };
            pages = self.give_back_of(id, 0..Address::MAX, pages);
        }
        pages
    }

    /// Returns true if a space, open or closed, has freed memory that is not given back yet.
    pub(super) fn frees(&self, id: &SpaceId) -> bool {
        let frees = |space: &Space| !space.leaving.is_empty();
        self.spaces.get(id).is_some_and(frees) || self.closed.get(id).is_some_and(frees)
    }

    /// Returns the most bytes of memory that freed pages can have which are not given back yet, as
    /// far as it is below `enough`.
    pub(super) fn bytes_leaving(&self, enough: u64) -> u64 {
        let mut bytes = 0;
        for id in &self.leaving {
            let spaces = [self.spaces.get(id), self.closed.get(id)];
            for space in spaces.into_iter().flatten() {
                for (&start, area) in space.leaving.iter() {
                    if bytes >= enough {
                        return bytes;
                    }
                    let pages = ((enough - bytes) >> area.page.shift()) as usize + 1;
                    bytes += match area.kind {
                        Kind::Sparse => {
                            let touched = space.touched.range(start..area.end).take(pages);
                            (touched.count() as u64) << area.page.shift()
                        }
                        Kind::Dense => area.end - start,
                        Kind::Mapped(_) => 0,
                    };
                }
            }
        }
        bytes
    }

    /// Gives back pages because there is no room without. Returns false if there are none.
    pub(super) fn find_room(&mut self, pages: u64) -> bool {
        let Some(&id) = self.leaving.first() else {
            return false;
        };
        if self.give_back(pages) == pages {
            // Nothing is freed, so what there is, is prepared.
            self.abandon(id);
        }
        true
    }

    /// Takes a space from those with pages that no lookup finds, unless it has some.
    pub(super) fn settle(&mut self, id: SpaceId) {
        let prepares = |space: &Space| space.entering.is_some();
        if !self.frees(&id) && !self.spaces.get(&id).is_some_and(prepares) {
            self.closed.remove(&id);
            self.leaving.remove(&id);
        }
    }

    /// Gives back pages of one range of a space that are leaving, at most so many.
    pub(super) fn give_back_of(
        &mut self,
        id: SpaceId,
        range: Range<Address>,
        mut pages: u64,
    ) -> u64 {
        if !self.leaving.contains(&id) {
            return pages;
        }
        let is_leaving = |space: &&mut Space| !space.leaving.is_empty();
        let open = self.spaces.get_mut(&id).filter(is_leaving);
        let Some(space) = open.or_else(|| self.closed.get_mut(&id)) else {
            self.settle(id);
            return pages;
        };
        let mut physical = Physical {
            table: &mut self.table,
            pool: &mut self.pool,
            locks: &mut self.locks,
            parted: &mut self.parted,
        };
        while pages > 0 {
            let Some((start, from, to)) = space.first_leaving(&range) else {
                break;
            };
            let Some(area) = space.leaving.get(&start).copied() else {
                break;
            };
            let (size, cost) = (area.page, cost(area.page));
            // Whole pages of the area, whose borders are some: a range may begin or end within one.
            let bytes = size.bytes();
            let (from, to) = (from & !(bytes - 1), to.next_multiple_of(bytes));
            // At least one page.
            let count = pages.div_ceil(cost);
            let done = if area.kind == Kind::Sparse {
                let touched = space.touched.range(from..to).copied();
                let touched: Vec<_> = touched
                    .take(usize::try_from(count).unwrap_or(usize::MAX))
                    .collect();
                for &at in &touched {
                    space.touched.remove(&at);
                    drop_pages(&mut physical, &Page::of(id, at, size), 1, area.kind);
                }
                // An empty range costs something too.
                pages = pages.saturating_sub((touched.len() as u64).max(1) * cost);
                match touched.last() {
                    Some(&last) if touched.len() as u64 == count => last + size.bytes(),
                    _ => to,
                }
            } else {
                let count = count.min((to - from) >> size.shift());
                drop_pages(&mut physical, &Page::of(id, from, size), count, area.kind);
                pages = pages.saturating_sub(count * cost);
                from + (count << size.shift())
            };
            space.cut_leaving(start, from, done);
        }
        if space.leaving.is_empty() {
            self.settle(id);
        }
        pages
    }

    /// Takes a frame; freed memory that was not given back yet is, before there is none.
    pub(super) fn take_frame(&mut self, size: PageSize) -> Option<Frame> {
        loop {
            match self.pool.take(size) {
                None if self.find_room(self.config.free_pages.max(1)) => {}
                frame => return frame,
            }
        }
    }
}

/// Returns how many small pages take as long to give back.
fn cost(size: PageSize) -> u64 {
    match size {
        PageSize::Small => 1,
        PageSize::Large => 2,
        PageSize::Huge => 512,
    }
}

/// All that knows of a page's memory.
struct Physical<'a, M> {
    table: &'a mut Table<M>,
    pool: &'a mut Pool<M>,
    locks: &'a mut Locks,
    parted: &'a mut Parted,
}

fn drop_pages<M: Bytes>(physical: &mut Physical<'_, M>, first: &Page, count: u64, kind: Kind) {
    let Physical {
        table,
        pool,
        locks,
        parted,
    } = physical;
    // Those of 4 KiB are mostly neighbours, which go back together.
    let mut small = Vec::with_capacity(count.min(BATCH) as usize);
    table.remove_all(first, count, |entry| {
        let Some(frame) = entry.frame().filter(|_| !matches!(kind, Kind::Mapped(_))) else {
            return;
        };
        let start = place(frame, 0);
        locks.forget(start..start + first.size.bytes());
        match first.size {
            PageSize::Small => small.push(frame),
            size => pool.give_back(frame, size),
        }
    });
    pool.give_back_small(&small);
    if first.size == PageSize::Huge && !parted.is_empty() {
        for page in (0..count).map(|n| first.after(n)) {
            if let Some(frame) = parts::remove(parted, table, &page) {
                let start = place(frame, 0);
                locks.forget(start..start + page.size.bytes());
                pool.give_back(frame, page.size);
            }
        }
    }
}
