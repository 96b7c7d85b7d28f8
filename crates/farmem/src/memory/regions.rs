//! Named regions: memory of one space that others may map.

use std::collections::BTreeMap;

use super::allocation::{whole_pages, Frames, PAGES_MAX};
use super::keep::Record;
use super::metadata::{GRANT, REGION};
use super::space::{Area, Kind, Space};
use super::table::{Entry, Page};
use super::{Bytes, Store};
use crate::operation::{Address, Error, PageSize, Permission, RegionId, SpaceId, NAME_MAX};

/// Regions of one space, at most.
pub const REGIONS_MAX: usize = 1024;

/// Grants of one space, over all its regions, at most.
pub const GRANTS_MAX: usize = 4096;

/// A region.
pub(super) struct Region {
    pub(super) owner: SpaceId,
    pub(super) name: Box<[u8]>,
    pub(super) address: Address,
    pub(super) end: Address,
    pub(super) page: PageSize,
    /// The access that its space has.
    pub(super) permission: Permission,
    pub(super) grants: BTreeMap<SpaceId, Grant>,
}

/// The access of another space to a region.
pub(super) struct Grant {
    pub(super) permission: Permission,
    /// The address at which the other space has mapped it.
    pub(super) mapped: Option<Address>,
}

impl<M: Bytes> Store<M> {
    /// Names a range of a space's own memory, within one allocation.
    ///
    /// # Errors
    /// As [`Operation::Region`](crate::operation::Operation::Region).
    pub fn region(
        &mut self,
        id: SpaceId,
        name: &[u8],
        address: Address,
        bytes: u64,
    ) -> Result<RegionId, Error> {
        let space = self.check_name(id, name)?;
        let (_, area) = space.area(address).ok_or(Error::Unmapped { address })?;
        let (page, multiple) = (area.page, area.page.bytes());
        if !address.is_multiple_of(multiple) {
            return Err(Error::Misaligned { multiple });
        }
        let bytes = whole_pages(bytes, page)?;
        let end = address.checked_add(bytes).ok_or(Error::Length)?;
        if bytes >> page.shift() > PAGES_MAX {
            return Err(Error::Length);
        }
        if end > area.end {
            let address = area.end;
            return Err(Error::Unmapped { address });
        }
        if matches!(area.kind, Kind::Mapped(_)) {
            return Err(Error::InUse);
        }
        self.check_metadata(REGION)?;
        self.make_room(true)?;
        self.check_room(id, address, bytes)?;
        // The frames are then the same for as long as the region exists, and mappings have them.
        self.populate(id, address, bytes, area.permission)?;
        if page == PageSize::Huge {
            for at in (address..end).step_by(page.bytes() as usize) {
                self.join_parts(id, at)?;
            }
        }
        self.last_region += 1;
        let region = RegionId(self.last_region);
        self.record(&Record::Region {
            region,
            owner: id,
            address,
            end,
            name,
        });
        self.names.insert(name.into(), region);
        self.regions.insert(
            region,
            Region {
                owner: id,
                name: name.into(),
                address,
                end,
                page,
                permission: area.permission,
                grants: BTreeMap::new(),
            },
        );
        if let Some(space) = self.spaces.get_mut(&id) {
            space.regions.insert(region);
        }
        Ok(region)
    }

    /// Checks, before the first page of a region gets memory, that there can be enough for all. The
    /// error is that of the first page that would get none.
    pub(super) fn check_room(
        &self,
        id: SpaceId,
        address: Address,
        bytes: u64,
    ) -> Result<(), Error> {
        let space = self.spaces.get(&id).ok_or(Error::NoSuchSpace)?;
        let (_, area) = space.area(address).ok_or(Error::Unmapped { address })?;
        let left = match area.kind {
            Kind::Sparse => space.quota.saturating_sub(space.used) & !(area.page.bytes() - 1),
            _ => u64::MAX,
        };
        let free = self.pool.bytes_free();
        if bytes <= left.min(free) {
            return Ok(());
        }
        let pages = (address..address + bytes).step_by(area.page.bytes() as usize);
        let missing = pages.filter(|&at| {
            let page = Page::of(id, at, area.page);
            let has_frame = |entry: Entry| entry.frame().is_some();
            !self.table.find(&page).is_some_and(has_frame) && !self.has_parts(&page)
        });
        let missing = missing.count() as u64 * area.page.bytes();
        let more = missing.min(left).saturating_sub(free);
        if more > self.bytes_leaving(more) {
            return Err(Error::OutOfMemory);
        }
        match missing > left {
            true => Err(Error::Quota),
            false => Ok(()),
        }
    }

    /// Checks what does not depend on the memory of a region that is to be made.
    pub(super) fn check_name(&self, id: SpaceId, name: &[u8]) -> Result<&Space, Error> {
        let space = self.spaces.get(&id).ok_or(Error::NoSuchSpace)?;
        if name.is_empty() || name.len() > NAME_MAX || self.names.contains_key(name) {
            return Err(Error::Name);
        }
        match space.regions.len() >= REGIONS_MAX {
            true => Err(Error::Quota),
            false => Ok(space),
        }
    }

    /// Looks up a region that belongs or is granted to a space.
    ///
    /// # Errors
    /// As [`Operation::Find`](crate::operation::Operation::Find).
    pub fn find_region(&self, id: SpaceId, name: &[u8]) -> Result<RegionId, Error> {
        if !self.spaces.contains_key(&id) {
            return Err(Error::NoSuchSpace);
        }
        let found = self.names.get(name).copied();
        let found = found.filter(|region| {
            let region = self.regions.get(region);
            region.is_some_and(|region| region.owner == id || region.grants.contains_key(&id))
        });
        found.ok_or(Error::NoSuchRegion)
    }

    /// Lets another space map a region.
    ///
    /// # Errors
    /// As [`Operation::Grant`](crate::operation::Operation::Grant).
    pub fn grant(
        &mut self,
        id: SpaceId,
        region: RegionId,
        to: SpaceId,
        permission: Permission,
    ) -> Result<(), Error> {
        let granted = self.own_region(id, region)?;
        if !granted.permission.allows(permission) {
            let address = granted.address;
            return Err(Error::Permission { address });
        }
        let before = granted.grants.get(&to).map(|grant| grant.permission);
        if before == Some(permission) {
            return Ok(());
        }
        if !self.spaces.contains_key(&to) {
            return Err(Error::NoSuchSpace);
        }
        let own = self
            .spaces
            .get(&id)
            .into_iter()
            .flat_map(|space| &space.regions);
        let own = own.filter_map(|region| self.regions.get(region));
        if before.is_none() && own.map(|region| region.grants.len()).sum::<usize>() >= GRANTS_MAX {
            return Err(Error::Quota);
        }
        if before.is_none() {
            self.check_metadata(GRANT)?;
        }
        self.make_room(true)?;
        self.record(&Record::Grant {
            region,
            to,
            permission,
        });
        self.take_grant_back(region, to);
        self.give_back(self.config.free_pages);
        let grant = Grant {
            permission,
            mapped: None,
        };
        self.own_region(id, region)?.grants.insert(to, grant);
        self.grants += 1;
        if let Some(space) = self.spaces.get_mut(&to) {
            space.granted.insert(region);
        }
        Ok(())
    }

    /// Takes a grant back, and unmaps the region from the other space.
    ///
    /// # Errors
    /// As [`Operation::Revoke`](crate::operation::Operation::Revoke).
    pub fn revoke(&mut self, id: SpaceId, region: RegionId, from: SpaceId) -> Result<(), Error> {
        if !self.own_region(id, region)?.grants.contains_key(&from) {
            return Ok(());
        }
        self.make_room(false)?;
        self.record(&Record::Revoke { region, from });
        self.take_grant_back(region, from);
        self.give_back(self.config.free_pages);
        Ok(())
    }

    /// Maps a region that is granted to a space; returns the first address.
    ///
    /// # Errors
    /// As [`Operation::Map`](crate::operation::Operation::Map).
    pub fn map(
        &mut self,
        id: SpaceId,
        region: RegionId,
        at: Option<Address>,
    ) -> Result<Address, Error> {
        let space = self.spaces.get(&id).ok_or(Error::NoSuchSpace)?;
        let mapped = self.regions.get(&region).ok_or(Error::NoSuchRegion)?;
        let grant = mapped.grants.get(&id).ok_or(Error::NoSuchRegion)?;
        if grant.mapped.is_some() {
            return Err(Error::InUse);
        }
        let (page, bytes) = (mapped.page, mapped.end - mapped.address);
        if !space.may_map(bytes, self.config.bytes) {
            return Err(Error::Quota);
        }
        let pages = (mapped.address..mapped.end).step_by(page.bytes() as usize);
        let frames = pages.filter_map(|address| self.find(mapped.owner, address)?.frame());
        let frames = frames.collect::<Vec<_>>();
        let area = Area {
            end: 0,
            page,
            permission: grant.permission,
            kind: Kind::Mapped(region),
        };
        self.make_room(true)?;
        let start = self.reserve(id, bytes, at, area, &Frames::Are(&frames))?;
        self.record(&Record::Map {
            region,
            to: id,
            start,
        });
        if let Some(space) = self.spaces.get_mut(&id) {
            space.mapped += bytes;
        }
        let region = self.regions.get_mut(&region);
        if let Some(grant) = region.and_then(|region| region.grants.get_mut(&id)) {
            grant.mapped = Some(start);
        }
        Ok(start)
    }

    /// Ends a region, with all grants and mappings; the memory stays.
    ///
    /// # Errors
    /// As [`Operation::Retire`](crate::operation::Operation::Retire).
    pub fn retire(&mut self, id: SpaceId, region: RegionId) -> Result<(), Error> {
        self.own_region(id, region)?;
        self.make_room(false)?;
        self.record(&Record::Retire { region });
        self.end_region(id, region);
        self.give_back(self.config.free_pages);
        Ok(())
    }

    /// Removes a region of a space, with all grants and mappings.
    pub(super) fn end_region(&mut self, id: SpaceId, region: RegionId) {
        let grants = self.regions.get(&region).map(|region| &region.grants);
        let grants = grants.into_iter().flat_map(|grants| grants.keys());
        for to in grants.copied().collect::<Vec<_>>() {
            self.take_grant_back(region, to);
        }
        if let Some(retired) = self.regions.remove(&region) {
            self.names.remove(&retired.name);
        }
        if let Some(space) = self.spaces.get_mut(&id) {
            space.regions.remove(&region);
        }
    }

    /// Removes a grant, if there is one, and its mapping.
    pub(super) fn take_grant_back(&mut self, region: RegionId, from: SpaceId) {
        let Some(found) = self.regions.get_mut(&region) else {
            return;
        };
        let bytes = found.end - found.address;
        let removed = found.grants.remove(&from);
        self.grants -= u64::from(removed.is_some());
        if let Some(start) = removed.and_then(|grant| grant.mapped) {
            self.release(from, start, start, start + bytes, 0);
        }
        if let Some(space) = self.spaces.get_mut(&from) {
            space.granted.remove(&region);
        }
    }

    fn own_region(&mut self, id: SpaceId, region: RegionId) -> Result<&mut Region, Error> {
        if !self.spaces.contains_key(&id) {
            return Err(Error::NoSuchSpace);
        }
        let region = self.regions.get_mut(&region);
        let region = region.filter(|region| region.owner == id);
        region.ok_or(Error::NoSuchRegion)
    }
}
