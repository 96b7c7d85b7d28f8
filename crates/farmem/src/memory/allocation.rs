//! Spaces, allocation and freeing.

use super::keep::Record;
use super::metadata::{AREA, SPACE};
use super::pool::Frame;
use super::space::{Area, Kind, Space};
use super::table::{Entry, Page, Room};
use super::{Bytes, Store};
use crate::operation::{Address, Error, PageSize, Permission, SpaceId};

/// Pages that one allocation, free or region has, at most; of a sparse allocation only those that
/// were written count. Longer ones take several operations, so that none holds up the others for
/// long.
pub const PAGES_MAX: u64 = 1 << 18;

/// The longest sparse allocation: 32 TiB.
pub const SPARSE_MAX: u64 = 1 << 45;

/// Allocations and mappings in one space, at most; those that were freed in part count as several.
pub const AREAS_MAX: usize = 1 << 16;

/// The addresses that the node chooses from.
pub const CHOSEN: std::ops::Range<Address> = 1 << 46..1 << 47;

/// Addresses that an allocation tries where one cache line answers for each page; after that, the
/// second buckets serve too.
const ATTEMPTS: u32 = 32;

/// The frames of the pages of a new area.
pub(super) enum Frames<'a> {
    /// The pages get entries when they are written.
    NoEntries,
    /// The pages get frames when they are written.
    Later,
    /// The pages have these.
    Are(&'a [Frame]),
}

impl<M: Bytes> Store<M> {
    /// Makes a space, unless it exists.
    ///
    /// # Errors
    /// The node has as many spaces, or as much metadata, as it may have.
    pub fn open(&mut self, id: SpaceId) -> Result<(), Error> {
        if self.spaces.contains_key(&id) {
            return Ok(());
        }
        if self.spaces.len() >= self.config.spaces_max {
            return Err(Error::OutOfMemory);
        }
        self.check_metadata(SPACE + AREA)?;
        self.make_room(true)?;
        let quota = self.config.quotas.get(&id).copied();
        let mut space = Space::new(
            quota.unwrap_or(self.config.quota),
            CHOSEN.start,
            &self.areas,
        );
        if let Some(preset) = self.config.preset {
            self.give_back_of(id, preset.start..preset.end, u64::MAX);
        }
        // What is left of an earlier space of this name.
        if let Some(closed) = self.closed.remove(&id) {
            (space.leaving, space.touched) = (closed.leaving, closed.touched);
        }
        if let Some(preset) = self.config.preset {
            let area = Area {
                end: preset.end,
                page: preset.page,
                permission: Permission::READ_WRITE,
                kind: Kind::Sparse,
            };
            space.areas.insert(preset.start, area);
        }
        self.record(&Record::Open {
            space: id,
            quota: space.quota,
            preset: self.config.preset,
        });
        self.spaces.insert(id, space);
        self.order.insert(id);
        Ok(())
    }

    /// Removes a space with its memory, its locks, its regions and what was granted to it.
    ///
    /// # Errors
    /// No such space.
    pub fn close(&mut self, id: SpaceId) -> Result<(), Error> {
        let space = self.spaces.get(&id).ok_or(Error::NoSuchSpace)?;
        let (regions, granted) = (space.regions.clone(), space.granted.clone());
        self.make_room(false)?;
        self.record(&Record::Close { space: id });
        for region in regions {
            self.end_region(id, region);
        }
        for region in granted {
            self.take_grant_back(region, id);
        }
        self.locks.forget_space(id);
        self.abandon(id);
        self.order.remove(&id);
        if let Some(mut space) = self.spaces.remove(&id) {
            space.leaving.append(&mut space.areas);
            self.leaving.insert(id);
            self.closed.insert(id, space);
            self.settle(id);
        }
        self.give_back(self.config.free_pages);
        Ok(())
    }

    /// Sets the quota of a space, in bytes. What is used stays, also if it is more.
    ///
    /// # Errors
    /// No such space.
    pub fn set_quota(&mut self, id: SpaceId, bytes: u64) -> Result<(), Error> {
        let space = self.spaces.get(&id).ok_or(Error::NoSuchSpace)?;
        if space.quota == bytes {
            return Ok(());
        }
        self.make_room(false)?;
        self.record(&Record::Quota {
            space: id,
            quota: bytes,
        });
        self.spaces.get_mut(&id).ok_or(Error::NoSuchSpace)?.quota = bytes;
        Ok(())
    }

    /// Allocates memory that reads as zero; returns its first address.
    ///
    /// # Errors
    /// As [`Operation::Alloc`](crate::operation::Operation::Alloc).
    pub fn alloc(
        &mut self,
        id: SpaceId,
        bytes: u64,
        page: PageSize,
        at: Option<Address>,
        permission: Permission,
        sparse: bool,
    ) -> Result<Address, Error> {
        let space = self.spaces.get(&id).ok_or(Error::NoSuchSpace)?;
        let bytes = whole_pages(bytes, page)?;
        let (kind, frames) = if sparse {
            if bytes > SPARSE_MAX {
                return Err(Error::Length);
            }
            (Kind::Sparse, Frames::NoEntries)
        } else {
            if bytes >> page.shift() > PAGES_MAX {
                return Err(Error::Length);
            }
            if !space.may_use(bytes) {
                return Err(Error::Quota);
            }
            (Kind::Dense, Frames::Later)
        };
        let area = Area {
            end: 0,
            page,
            permission,
            kind,
        };
        self.make_room(true)?;
        self.give_back(self.config.free_pages);
        let start = self.reserve(id, bytes, at, area, &frames)?;
        self.record(&Record::Alloc {
            space: id,
            start,
            end: start + bytes,
            page,
            permission,
            is_sparse: kind == Kind::Sparse,
        });
        if let (Kind::Dense, Some(space)) = (kind, self.spaces.get_mut(&id)) {
            space.used += bytes;
        }
        Ok(start)
    }

    /// Adds an area of so many bytes to a space, and its entries to the page table. Freed memory
    /// that was not given back yet is, before there is no room.
    pub(super) fn reserve(
        &mut self,
        id: SpaceId,
        bytes: u64,
        at: Option<Address>,
        area: Area,
        frames: &Frames<'_>,
    ) -> Result<Address, Error> {
        loop {
            match self.try_reserve(id, bytes, at, area, frames) {
                Err(Error::OutOfMemory) => {
                    let pages = (bytes >> area.page.shift()).max(self.config.free_pages);
                    if !self.find_room(pages.max(1)) {
                        return Err(Error::OutOfMemory);
                    }
                }
                result => return result,
            }
        }
    }

    /// Adds an area, and sets its end.
    fn try_reserve(
        &mut self,
        id: SpaceId,
        bytes: u64,
        at: Option<Address>,
        mut area: Area,
        frames: &Frames<'_>,
    ) -> Result<Address, Error> {
        let space = self.spaces.get(&id).ok_or(Error::NoSuchSpace)?;
        if space.areas.len() >= AREAS_MAX {
            return Err(Error::Quota);
        }
        self.check_metadata(AREA)?;
        let start = match (self.prepared(id, bytes, at, area, frames), at) {
            (Some(start), _) => start,
            (None, Some(at)) => {
                let multiple = area.page.bytes();
                if !at.is_multiple_of(multiple) {
                    return Err(Error::Misaligned { multiple });
                }
                let end = at.checked_add(bytes).ok_or(Error::Length)?;
                let space = self.spaces.get(&id).ok_or(Error::NoSuchSpace)?;
                if let Some(address) = space.taken(at, end) {
                    return Err(Error::Overlap { address });
                }
                if !self.enter(id, at, bytes, area, frames, Room::Second) {
                    return Err(Error::OutOfMemory);
                }
                at
            }
            (None, None) => self.choose(id, bytes, area, frames)?,
        };
        area.end = start + bytes;
        let space = self.spaces.get_mut(&id).ok_or(Error::NoSuchSpace)?;
        space.areas.insert(start, area);
        if at.is_none() {
            space.next = area.end;
        }
        Ok(start)
    }

    /// Chooses an address at which every page has room in its home bucket, and enters the pages.
    /// The first candidate is the end of the last allocation, since consecutive pages fill
    /// consecutive buckets; further ones are random.
    fn choose(
        &mut self,
        id: SpaceId,
        bytes: u64,
        area: Area,
        frames: &Frames<'_>,
    ) -> Result<Address, Error> {
        let page = area.page.bytes();
        let space = self.spaces.get(&id).ok_or(Error::NoSuchSpace)?;
        let mut candidate = space.next.next_multiple_of(page);
        for attempt in 0..=ATTEMPTS {
            let space = self.spaces.get(&id).ok_or(Error::NoSuchSpace)?;
            let end = candidate + bytes;
            if end <= CHOSEN.end && space.taken(candidate, end).is_none() {
                let room = if attempt < ATTEMPTS {
                    Room::Home
                } else {
                    Room::Second
                };
                if self.enter(id, candidate, bytes, area, frames, room) {
                    return Ok(candidate);
                }
                self.retries += 1;
            }
            let last = (CHOSEN.end - CHOSEN.start).saturating_sub(bytes);
            candidate = CHOSEN.start + self.random.below(last / page + 1) * page;
        }
        Err(Error::OutOfMemory)
    }

    /// Enters the pages of an area into the page table: all of them, or none if one has no room.
    fn enter(
        &mut self,
        id: SpaceId,
        start: Address,
        bytes: u64,
        area: Area,
        frames: &Frames<'_>,
        room: Room,
    ) -> bool {
        self.give_back_of(id, start..start + bytes, u64::MAX);
        if matches!(frames, Frames::NoEntries) {
            return true;
        }
        let first = Page::of(id, start, area.page);
        let pages = bytes >> area.page.shift();
        self.table.insert_all(&first, pages, room, |n| {
            let frame = match frames {
                Frames::Are(frames) => frames.get(n as usize).copied(),
                _ => None,
            };
            Entry::new(area.page, area.permission, frame)
        })
    }

    /// Frees whole pages, or unmaps a region.
    ///
    /// # Errors
    /// As [`Operation::Free`](crate::operation::Operation::Free).
    pub fn free(&mut self, id: SpaceId, address: Address, bytes: u64) -> Result<(), Error> {
        let space = self.spaces.get(&id).ok_or(Error::NoSuchSpace)?;
        if bytes == 0 {
            return Err(Error::Length);
        }
        let wanted = address.checked_add(bytes).ok_or(Error::Length)?;
        let (mut pieces, mut pages) = (Vec::new(), 0);
        let (mut at, mut splits) = (address, false);
        while at < wanted {
            let (start, area) = space.area(at).ok_or(Error::Unmapped { address: at })?;
            let multiple = area.page.bytes();
            if !at.is_multiple_of(multiple) {
                return Err(Error::Misaligned { multiple });
            }
            let end = area.end.min(
                wanted
                    .checked_next_multiple_of(multiple)
                    .unwrap_or(area.end),
            );
            if matches!(area.kind, Kind::Mapped(_)) && (start, area.end) != (at, end) {
                return Err(Error::InUse);
            }
            let is_split = start < at && end < area.end;
            splits |= is_split;
            if is_split && space.areas.len() >= AREAS_MAX {
                return Err(Error::Quota);
            }
            let used = match area.kind {
                Kind::Sparse => {
                    let touched = space.touched.range(at..end);
                    touched.take(PAGES_MAX as usize + 1).count() as u64
                }
                _ => (end - at) >> area.page.shift(),
            };
            pages += used;
            pieces.push((start, at, end, used << area.page.shift()));
            at = end;
        }
        if pages > PAGES_MAX {
            return Err(Error::Length);
        }
        let mut regions = space.regions.iter().filter_map(|id| self.regions.get(id));
        if regions.any(|region| region.address < at && address < region.end) {
            return Err(Error::InUse);
        }
        if splits {
            self.check_metadata(AREA)?;
        }
        self.make_room(splits)?;
        self.record(&Record::Free {
            space: id,
            from: address,
            to: at,
        });
        for (start, from, to, used) in pieces {
            self.release(id, start, from, to, used);
        }
        self.give_back(self.config.free_pages);
        Ok(())
    }

    /// Takes a range, which uses so many bytes, out of the area that begins at `start`. Its pages
    /// are leaving from then on.
    pub(super) fn release(
        &mut self,
        id: SpaceId,
        start: Address,
        from: Address,
        to: Address,
        used: u64,
    ) {
        let Some(space) = self.spaces.get_mut(&id) else {
            return;
        };
        let Some(&area) = space.areas.get(&start) else {
            return;
        };
        space.cut(start, from, to);
        match area.kind {
            Kind::Dense | Kind::Sparse => space.used -= used,
            Kind::Mapped(region) => {
                space.mapped -= to - from;
                let region = self.regions.get_mut(&region);
                if let Some(grant) = region.and_then(|region| region.grants.get_mut(&id)) {
                    grant.mapped = None;
                }
                // Its memory stays, in which the locks would last until their leases end.
                self.locks.forget_addresses(id, &(from..to));
            }
        }
        space.leaving.insert(from, Area { end: to, ..area });
        self.leaving.insert(id);
    }
}

/// Rounds a length up to whole pages.
pub(super) fn whole_pages(bytes: u64, page: PageSize) -> Result<u64, Error> {
    match bytes.checked_next_multiple_of(page.bytes()) {
        Some(bytes) if bytes > 0 => Ok(bytes),
        _ => Err(Error::Length),
    }
}
