//! From the kept parts to a store.

use super::log::Log;
use super::{KeepError, Kept, Record, Restored};
use crate::memory::allocation::{CHOSEN, PAGES_MAX};
use crate::memory::locks::Locks;
use crate::memory::regions::{Grant, Region};
use crate::memory::space::{Area, Kind, Space};
use crate::memory::table::{Entry, Page};
use crate::memory::{Bytes, Preset, Store};
use crate::operation::{Address, PageSize, Permission, RegionId, SpaceId};

const NO_SPACE: KeepError = KeepError::Corrupt("a record names no space");
const NO_REGION: KeepError = KeepError::Corrupt("a record names no region");

impl<M: Bytes> Store<M> {
    /// Makes an empty store, over the page table and the pool of an earlier one, what that was.
    pub(super) fn restored(mut self, mut log: Log<M>) -> Result<(Store<M>, Restored), KeepError> {
        let mut token = self.config.last_token;
        log.replay(|record| self.apply(record, &mut token))?;
        self.order = self.spaces.keys().copied().collect();
        let grants = self.regions.values().map(|region| region.grants.len());
        self.grants = grants.sum::<usize>() as u64;
        self.locks = Locks::after(token.max(self.config.last_token));
        let dropped = self.take_entries()?;
        self.check_areas()?;
        // What is changed from here on, programs of an earlier version may not know.
        log.finish();

        let under_way = log.write_under_way()?;
        if let Some(write) = &under_way {
            let result = self.write(write.space, write.address, &write.data);
            result.map_err(|_| KeepError::Corrupt("the write under way has no memory"))?;
            log.end_write();
        }
        let token = self.locks.last_token();
        log.compact(|each| self.each_record(token, each));
        self.kept = Some(Kept::new(log, token));
        let restored = Restored {
            is_new: false,
            dropped,
            has_completed_write: under_way.is_some(),
        };
        Ok((self, restored))
    }

    /// Calls `each` with records that make all of this. They take no more room than those of the
    /// operations that made it, so that a log can always be made shorter: the record of a space has
    /// the area that it has had from the start. Any area like it will do, since the settings of an
    /// earlier process may have been others.
    pub(super) fn each_record(&self, token: u64, each: &mut dyn FnMut(&Record<'_>)) {
        let region = self.last_region;
        each(&Record::Last { region, token });
        for (&space, of_space) in &self.spaces {
            let is_like_preset = |area: &Area| {
                area.kind == Kind::Sparse && area.permission == Permission::READ_WRITE
            };
            let mut areas = of_space.areas.iter();
            let preset = areas.find(|(_, area)| is_like_preset(area));
            let preset = preset.map(|(&start, area)| Preset {
                start,
                end: area.end,
                page: area.page,
            });
            let quota = of_space.quota;
            each(&Record::Open {
                space,
                quota,
                preset,
            });
            for (&start, area) in of_space.areas.iter() {
                let is_preset = preset.is_some_and(|preset| preset.start == start);
                if !matches!(area.kind, Kind::Mapped(_)) && !is_preset {
                    each(&Record::Alloc {
                        space,
                        start,
                        end: area.end,
                        page: area.page,
                        permission: area.permission,
                        is_sparse: area.kind == Kind::Sparse,
                    });
                }
            }
        }
        for (&region, of_region) in &self.regions {
            each(&Record::Region {
                region,
                owner: of_region.owner,
                address: of_region.address,
                end: of_region.end,
                name: &of_region.name,
            });
            for (&to, grant) in &of_region.grants {
                each(&Record::Grant {
                    region,
                    to,
                    permission: grant.permission,
                });
                if let Some(start) = grant.mapped {
                    each(&Record::Map { region, to, start });
                }
            }
        }
    }

    fn apply(&mut self, record: &Record<'_>, token: &mut u64) -> Result<(), KeepError> {
        match *record {
            Record::Open {
                space,
                quota,
                preset,
            } => {
                if self.spaces.contains_key(&space) {
                    return Err(KeepError::Corrupt("a space is opened twice"));
                }
                self.spaces
                    .insert(space, Space::new(quota, CHOSEN.start, &self.areas));
                if let Some(Preset { start, end, page }) = preset {
                    let area = Area {
                        end,
                        page,
                        permission: Permission::READ_WRITE,
                        kind: Kind::Sparse,
                    };
                    self.add_area(space, start, area)?;
                }
                Ok(())
            }
            Record::Close { space } => self.apply_close(space),
            Record::Quota { space, quota } => {
                self.spaces.get_mut(&space).ok_or(NO_SPACE)?.quota = quota;
                Ok(())
            }
            Record::Alloc {
                space,
                start,
                end,
                page,
                permission,
                is_sparse,
            } => {
                let kind = match is_sparse {
                    true => Kind::Sparse,
                    false => Kind::Dense,
                };
                let area = Area {
                    end,
                    page,
                    permission,
                    kind,
                };
                self.add_area(space, start, area)
            }
            Record::Free { space, from, to } => self.apply_free(space, from, to),
            Record::Region {
                region,
                owner,
                address,
                end,
                name,
            } => self.apply_region(region, owner, address..end, name),
            Record::Grant {
                region,
                to,
                permission,
            } => {
                self.apply_revoke(region, to)?;
                let found = self.regions.get_mut(&region).ok_or(NO_REGION)?;
                let mapped = None;
                found.grants.insert(to, Grant { permission, mapped });
                let space = self.spaces.get_mut(&to).ok_or(NO_SPACE)?;
                space.granted.insert(region);
                Ok(())
            }
            Record::Revoke { region, from } => self.apply_revoke(region, from),
            Record::Map { region, to, start } => {
                let found = self.regions.get_mut(&region).ok_or(NO_REGION)?;
                let (page, bytes) = (found.page, found.end - found.address);
                let grant = found.grants.get_mut(&to).ok_or(NO_REGION)?;
                if grant.mapped.replace(start).is_some() {
                    return Err(KeepError::Corrupt("a region is mapped twice"));
                }
                let area = Area {
                    end: start.checked_add(bytes).ok_or(NO_REGION)?,
                    page,
                    permission: grant.permission,
                    kind: Kind::Mapped(region),
                };
                self.add_area(to, start, area)
            }
            Record::Retire { region } => self.apply_retire(region),
            Record::Last {
                region,
                token: last,
            } => {
                self.last_region = self.last_region.max(region);
                *token = (*token).max(last);
                Ok(())
            }
        }
    }

    fn add_area(&mut self, id: SpaceId, start: Address, area: Area) -> Result<(), KeepError> {
        let space = self.spaces.get_mut(&id).ok_or(NO_SPACE)?;
        let page = area.page.bytes();
        let is_whole = start.is_multiple_of(page) && area.end.is_multiple_of(page);
        if start >= area.end || !is_whole || space.taken(start, area.end).is_some() {
            return Err(KeepError::Corrupt("an allocation is where none can be"));
        }
        if area.kind == Kind::Dense {
            let bytes = area.end - start;
            let used = space.used.checked_add(bytes);
            let used = used.filter(|_| bytes / page <= PAGES_MAX);
            space.used = used.ok_or(KeepError::Corrupt("an allocation is too long"))?;
        }
        if matches!(area.kind, Kind::Mapped(_)) {
            // Within the bounds of the addresses, since no areas overlap.
            space.mapped += area.end - start;
        }
        if CHOSEN.contains(&start) && area.end <= CHOSEN.end {
            space.next = space.next.max(area.end);
        }
        space.areas.insert(start, area);
        Ok(())
    }

    fn apply_free(&mut self, id: SpaceId, from: Address, to: Address) -> Result<(), KeepError> {
        let space = self.spaces.get_mut(&id).ok_or(NO_SPACE)?;
        let mut at = from;
        while at < to {
            let missing = KeepError::Corrupt("memory is freed that is none");
            let (start, area) = space.area(at).ok_or(missing)?;
            let end = area.end.min(to);
            let page = area.page.bytes();
            if !at.is_multiple_of(page) || !end.is_multiple_of(page) {
                return Err(KeepError::Corrupt("a part of a page is freed"));
            }
            space.cut(start, at, end);
            match area.kind {
                Kind::Dense => space.used -= end - at,
                Kind::Sparse => (),
                Kind::Mapped(region) => {
                    if (start, area.end) != (at, end) {
                        return Err(KeepError::Corrupt("a part of a region is unmapped"));
                    }
                    space.mapped -= end - at;
                    let region = self.regions.get_mut(&region).ok_or(NO_REGION)?;
                    region.grants.get_mut(&id).ok_or(NO_REGION)?.mapped = None;
                }
            }
            at = end;
        }
        Ok(())
    }

    fn apply_close(&mut self, id: SpaceId) -> Result<(), KeepError> {
        let space = self.spaces.get(&id).ok_or(NO_SPACE)?;
        for region in space.regions.clone() {
            self.apply_retire(region)?;
        }
        // After that, since a space may have granted a region to itself.
        let granted = self.spaces.get(&id).map(|space| space.granted.clone());
        for region in granted.unwrap_or_default() {
            self.apply_revoke(region, id)?;
        }
        self.spaces.remove(&id);
        Ok(())
    }

    fn apply_region(
        &mut self,
        region: RegionId,
        owner: SpaceId,
        range: std::ops::Range<Address>,
        name: &[u8],
    ) -> Result<(), KeepError> {
        let space = self.spaces.get_mut(&owner).ok_or(NO_SPACE)?;
        let area = space.area(range.start).filter(|(_, area)| {
            let page = area.page.bytes();
            let is_whole = range.start.is_multiple_of(page) && range.end.is_multiple_of(page);
            let is_own = !matches!(area.kind, Kind::Mapped(_));
            is_whole && is_own && range.start < range.end && range.end <= area.end
        });
        let (_, area) = area.ok_or(KeepError::Corrupt("a region has no memory"))?;
        let is_new = !self.regions.contains_key(&region) && !self.names.contains_key(name);
        if name.is_empty() || !is_new || (range.end - range.start) / area.page.bytes() > PAGES_MAX {
            return Err(KeepError::Corrupt("a region is none that can be"));
        }
        space.regions.insert(region);
        self.last_region = self.last_region.max(region.0);
        self.names.insert(name.into(), region);
        let made = Region {
            owner,
            name: name.into(),
            address: range.start,
            end: range.end,
            page: area.page,
            permission: area.permission,
            grants: Default::default(),
        };
        self.regions.insert(region, made);
        Ok(())
    }

    fn apply_revoke(&mut self, region: RegionId, from: SpaceId) -> Result<(), KeepError> {
        let found = self.regions.get_mut(&region).ok_or(NO_REGION)?;
        let bytes = found.end - found.address;
        let mapped = found.grants.remove(&from).and_then(|grant| grant.mapped);
        if let Some(space) = self.spaces.get_mut(&from) {
            space.granted.remove(&region);
            if let Some(start) = mapped {
                space.cut(start, start, start + bytes);
                space.mapped -= bytes;
            }
        }
        Ok(())
    }

    fn apply_retire(&mut self, region: RegionId) -> Result<(), KeepError> {
        let found = self.regions.get(&region).ok_or(NO_REGION)?;
        for to in found.grants.keys().copied().collect::<Vec<_>>() {
            self.apply_revoke(region, to)?;
        }
        if let Some(retired) = self.regions.remove(&region) {
            self.names.remove(&retired.name);
            if let Some(space) = self.spaces.get_mut(&retired.owner) {
                space.regions.remove(&region);
            }
        }
        Ok(())
    }

    /// Takes the frames and the written pages from the entries of the page table. Returns how many
    /// entries it dropped.
    fn take_entries(&mut self) -> Result<u64, KeepError> {
        let (spaces, pool) = (&mut self.spaces, &mut self.pool);
        let mut parts = Vec::new();
        let dropped = self.table.repair(|page, entry| {
            let start = page.number << page.size.shift();
            let Some(space) = spaces.get_mut(&page.space) else {
                return Ok(false);
            };
            let Some((_, area)) = space.area(start) else {
                return Ok(false);
            };
            let is_like = area.permission.bits() == entry.permission_bits();
            let is_part = (area.page, page.size) == (PageSize::Huge, PageSize::Large);
            if let (Some(frame), true, true) = (entry.frame(), is_part, is_like) {
                parts.push((*page, frame));
                return Ok(true);
            }
            if area.page != page.size || !is_like {
                return Err(KeepError::Corrupt("a page is not as its allocation"));
            }
            if matches!(area.kind, Kind::Mapped(_)) {
                return Ok(true);
            }
            if area.kind == Kind::Sparse {
                if entry.frame().is_none() {
                    return Err(KeepError::Corrupt("a sparse page has no memory"));
                }
                space.touched.insert(start);
                space.used = space.used.saturating_add(page.size.bytes());
            }
            match entry.frame() {
                Some(frame) if !pool.claim(frame, page.size) => Err(KeepError::Corrupt(
                    "a page has memory of another one, or none",
                )),
                _ => Ok(true),
            }
        })?;
        let in_parts = self.restore_parts(&parts);
        let wrong = KeepError::Corrupt("the parts of a page do not belong together");
        Ok(dropped + in_parts.ok_or(wrong)?)
    }

    /// Checks that each page that has to have an entry has the right one.
    fn check_areas(&self) -> Result<(), KeepError> {
        for (&space, of_space) in &self.spaces {
            for (&start, area) in of_space.areas.iter() {
                let page = |address| Page::of(space, address, area.page);
                let mut pages = (start..area.end).step_by(area.page.bytes() as usize);
                let is_complete = match area.kind {
                    Kind::Sparse => true,
                    Kind::Dense => pages.all(|at| self.table.find(&page(at)).is_some()),
                    Kind::Mapped(region) => {
                        let region = self.regions.get(&region).ok_or(NO_REGION)?;
                        pages.all(|at| {
                            let own = region.address + (at - start);
                            let own = Page::of(region.owner, own, area.page);
                            let own = self.table.find(&own).and_then(Entry::frame);
                            let other = self.table.find(&page(at)).and_then(Entry::frame);
                            own.is_some() && own == other
                        })
                    }
                };
                if !is_complete {
                    return Err(KeepError::Corrupt("an allocation has lost a page"));
                }
            }
        }
        for region in self.regions.values() {
            let pages = (region.address..region.end).step_by(region.page.bytes() as usize);
            for at in pages {
                let entry = self.table.find(&Page::of(region.owner, at, region.page));
                if entry.and_then(Entry::frame).is_none() {
                    return Err(KeepError::Corrupt("a region has lost a page"));
                }
            }
        }
        Ok(())
    }
}
