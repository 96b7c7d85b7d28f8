//! Reads, writes, atomic operations and locks.

use std::time::Duration;

use tare_memory::publish;
use tare_sim::Instant;

use super::metadata::LOCK;
use super::parts::Made;
use super::pool::place;
use super::space::Area;
use super::table::{Entry, Page, Room};
use super::{Bytes, Store};
use crate::operation::{Address, Error, Guard, PageSize, Permission, SpaceId, LEN_MAX};

/// The bytes of a page that was never written.
static ZEROS: [u8; PageSize::Small.bytes() as usize] = [0; PageSize::Small.bytes() as usize];

/// Pages of a write that are looked up at once: 64 KiB at any address.
const PARTS_MAX: usize = 17;

impl<M: Bytes> Store<M> {
    /// Asks the cache for the place of an address in the page table, and does not wait for it.
    #[inline]
    pub fn prefetch(&self, space: SpaceId, address: Address) {
        self.table
            .prefetch(&Page::of(space, address, PageSize::Small));
    }

    /// Returns the first bytes of a range, at least one and at most `len`, as they are in memory:
    /// those up to the end of the page, or less where the page was never written. The bytes
    /// themselves are not loaded yet, so the misses of calls for several ranges overlap.
    ///
    /// # Errors
    /// No such space, unmapped, or no permission, at this first address.
    #[inline]
    pub fn part(&self, space: SpaceId, address: Address, len: u32) -> Result<&[u8], Error> {
        match self.find(space, address) {
            Some(entry) => {
                if !entry.allows(Permission::READ) {
                    return Err(Error::Permission { address });
                }
                Ok(match entry.frame() {
                    Some(frame) => {
                        let (offset, len) = within(address, len.into(), entry.size());
                        self.pool.bytes(frame, offset, len)
                    }
                    None => zeros(address, len),
                })
            }
            None => {
                let (_, area) = self.space_area(space, address)?;
                if !area.permission.allows(Permission::READ) {
                    return Err(Error::Permission { address });
                }
                Ok(zeros(address, len))
            }
        }
    }

    /// Fills `out` with the bytes at an address.
    ///
    /// # Errors
    /// As [`Operation::Read`](crate::operation::Operation::Read); what `out` then has is of the
    /// range's first bytes.
    #[inline]
    pub fn read_into(&self, space: SpaceId, address: Address, out: &mut [u8]) -> Result<(), Error> {
        let len = checked_len(address, out.len())?;
        let mut done = 0;
        while done < len {
            let part = self.part(space, address + u64::from(done), len - done)?;
            out[done as usize..][..part.len()].copy_from_slice(part);
            done += part.len() as u32;
        }
        Ok(())
    }

    /// Appends bytes at an address to `out`.
    ///
    /// # Errors
    /// As [`Operation::Read`](crate::operation::Operation::Read); `out` is then as before.
    #[inline]
    pub fn read(
        &self,
        space: SpaceId,
        address: Address,
        len: u32,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let len = checked_len(address, len as usize)?;
        let before = out.len();
        let mut done = 0;
        while done < len {
            match self.part(space, address + u64::from(done), len - done) {
                Ok(part) => {
                    out.extend_from_slice(part);
                    done += part.len() as u32;
                }
                Err(error) => {
                    out.truncate(before);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Writes bytes at an address.
    ///
    /// # Errors
    /// As [`Operation::Write`](crate::operation::Operation::Write).
    #[inline]
    pub fn write(&mut self, space: SpaceId, address: Address, data: &[u8]) -> Result<(), Error> {
        let len = checked_len(address, data.len())?;
        // Nearly always it is one page, which has a frame: then this is the only lookup.
        if let Some(entry) = self.find(space, address) {
            if let (true, Some(frame)) = (entry.allows(Permission::WRITE), entry.frame()) {
                let (offset, there) = within(address, len.into(), entry.size());
                if there == data.len() {
                    self.begin_write(space, address, data);
                    self.pool
                        .bytes_mut(frame, offset, there)
                        .copy_from_slice(data);
                    self.end_write();
                    return Ok(());
                }
            }
        }
        let mut rest = data;
        if self.kept.is_none() {
            return self.write_with(space, address, len, |to| {
                let (now, later) = rest.split_at(to.len());
                to.copy_from_slice(now);
                rest = later;
            });
        }
        // Whatever can fail comes before the first byte is written.
        self.populate(space, address, len.into(), Permission::WRITE)?;
        self.begin_write(space, address, data);
        let mut at = address;
        while !rest.is_empty() {
            let to = self.populated(space, at, rest.len() as u64)?;
            let (now, later) = rest.split_at(to.len());
            to.copy_from_slice(now);
            at += now.len() as u64;
            rest = later;
        }
        self.end_write();
        Ok(())
    }

    /// Writes bytes that `fill` puts in place, which is called for consecutive parts of the range
    /// once all of it can be written.
    ///
    /// # Errors
    /// As [`Operation::Write`](crate::operation::Operation::Write).
    #[inline]
    pub fn write_with(
        &mut self,
        space: SpaceId,
        address: Address,
        len: u32,
        mut fill: impl FnMut(&mut [u8]),
    ) -> Result<(), Error> {
        let len = u64::from(checked_len(address, len as usize)?);
        if self.kept.is_some() {
            // What is kept is told of the bytes before the first of them is written.
            let mut data = self.gathering();
            data.resize(len as usize, 0);
            fill(&mut data);
            let written = self.write(space, address, &data);
            self.set_gathering(data);
            return written;
        }
        // Nearly always all pages are there, and mostly it is one: then these are the only lookups.
        if let Some(entry) = self.find(space, address) {
            let (offset, there) = within(address, len, entry.size());
            if let (true, Some(frame)) = (entry.allows(Permission::WRITE), entry.frame()) {
                if there as u64 == len {
                    fill(self.pool.bytes_mut(frame, offset, there));
                    return Ok(());
                }
            }
        }
        let mut parts = [(0, 0, 0); PARTS_MAX];
        let (mut count, mut end) = (0, 0);
        while let (true, Some(part)) = (end < len, parts.get_mut(count)) {
            let Some(entry) = self.find(space, address + end) else {
                break;
            };
            let (true, Some(frame)) = (entry.allows(Permission::WRITE), entry.frame()) else {
                break;
            };
            let (offset, there) = within(address + end, len - end, entry.size());
            *part = (frame, offset, there);
            (count, end) = (count + 1, end + there as u64);
        }
        if end == len {
            for &(frame, offset, there) in &parts[..count] {
                fill(self.pool.bytes_mut(frame, offset, there));
            }
            return Ok(());
        }
        // Whatever can fail comes before the first byte is written.
        self.populate(space, address, len, Permission::WRITE)?;
        let mut done = 0;
        while done < len {
            let to = self.populated(space, address + done, len - done)?;
            done += to.len() as u64;
            fill(to);
        }
        Ok(())
    }

    /// Stores `new` if the little-endian value at an address is `expected`; returns the value
    /// before.
    ///
    /// # Errors
    /// As [`Operation::CompareAndSwap`](crate::operation::Operation::CompareAndSwap).
    pub fn compare_and_swap(
        &mut self,
        space: SpaceId,
        address: Address,
        expected: u64,
        new: u64,
    ) -> Result<u64, Error> {
        self.update(space, address, |old| (old == expected).then_some(new))
    }

    /// Adds to the little-endian value at an address, with wrap-around; returns the value before.
    ///
    /// # Errors
    /// As [`Operation::FetchAdd`](crate::operation::Operation::FetchAdd).
    pub fn fetch_add(&mut self, space: SpaceId, address: Address, add: u64) -> Result<u64, Error> {
        self.update(space, address, |old| Some(old.wrapping_add(add)))
    }

    fn update(
        &mut self,
        space: SpaceId,
        address: Address,
        change: impl FnOnce(u64) -> Option<u64>,
    ) -> Result<u64, Error> {
        aligned(address)?;
        self.populate(space, address, 8, Permission::READ_WRITE)?;
        let is_kept = self.kept.is_some();
        let bytes = self.populated(space, address, 8)?;
        // Aligned, so it is within one page.
        let Some(word) = bytes.first_chunk_mut::<8>() else {
            return Err(Error::Misaligned { multiple: 8 });
        };
        let old = u64::from_le_bytes(*word);
        if let Some(new) = change(old) {
            match is_kept {
                true => publish(word, u64::from_ne_bytes(new.to_le_bytes())),
                false => *word = new.to_le_bytes(),
            }
        }
        Ok(old)
    }

    /// Takes the lock of an address until `now + lease`; returns its fencing token.
    ///
    /// # Errors
    /// As [`Operation::Lock`](crate::operation::Operation::Lock).
    pub fn lock(
        &mut self,
        now: Instant,
        space: SpaceId,
        address: Address,
        lease: Duration,
    ) -> Result<u64, Error> {
        aligned(address)?;
        self.locks.check_new(now, space, lease)?;
        let before = self.physical(space, address);
        if !before.is_ok_and(|at| self.locks.has(at)) {
            self.check_metadata(LOCK)?;
        }
        self.set_tokens_aside()?;
        // The lock belongs to the physical memory, so there must be some.
        self.populate(space, address, 8, Permission::WRITE)?;
        let at = self.physical(space, address)?;
        self.locks.lock(now, space, (address, at), lease)
    }

    /// Gives a lock back.
    ///
    /// # Errors
    /// As [`Operation::Unlock`](crate::operation::Operation::Unlock).
    pub fn unlock(
        &mut self,
        now: Instant,
        space: SpaceId,
        address: Address,
        token: u64,
    ) -> Result<(), Error> {
        let at = self.physical(space, address)?;
        self.locks.unlock(now, space, at, token)
    }

    /// Checks that the space holds a lock under this token, and that its lease has not expired.
    ///
    /// # Errors
    /// [`Error::StaleToken`], or the lock's address is not one.
    pub fn check_guard(
        &self,
        now: Instant,
        space: SpaceId,
        guard: Option<Guard>,
    ) -> Result<(), Error> {
        let Some(Guard { lock, token }) = guard else {
            return Ok(());
        };
        let at = self.physical(space, lock)?;
        self.locks.check(now, space, at, token)
    }

    /// Finds the entry of the page that an address is in. Sizes that are not in use are not looked
    /// for, so this is mostly one bucket.
    #[inline(always)]
    pub(super) fn find(&self, space: SpaceId, address: Address) -> Option<Entry> {
        if !self.leaving.is_empty() && self.is_leaving(space, address) {
            return None;
        }
        let page = Page::of(space, address, PageSize::Small);
        match self.table.find(&page) {
            None => self.find_larger(space, address),
            found => found,
        }
    }

    #[inline(never)]
    fn find_larger(&self, space: SpaceId, address: Address) -> Option<Entry> {
        [PageSize::Large, PageSize::Huge]
            .into_iter()
            .filter(|&size| self.table.count(size) > 0)
            .find_map(|size| self.table.find(&Page::of(space, address, size)))
    }

    /// Returns the area of an address, and its first address. Where the page table has no entry it
    /// is a sparse one.
    #[cold]
    pub(super) fn space_area(
        &self,
        space: SpaceId,
        address: Address,
    ) -> Result<(Address, Area), Error> {
        let space = self.spaces.get(&space).ok_or(Error::NoSuchSpace)?;
        space.area(address).ok_or(Error::Unmapped { address })
    }

    /// Sees to it that every page of a range is allowed and has a frame. A failure leaves all pages
    /// as they were.
    pub(super) fn populate(
        &mut self,
        space: SpaceId,
        address: Address,
        len: u64,
        permission: Permission,
    ) -> Result<(), Error> {
        let mut made = Vec::new();
        let (mut at, end) = (address, address + len);
        while at < end {
            match self.populate_page(space, at, permission) {
                Ok((size, what)) => {
                    made.extend(what.map(|what| (at, what)));
                    at = ((at >> size.shift()) + 1) << size.shift();
                }
                Err(error) => {
                    self.unpopulate(space, made);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Sees to it that a page, or the part of one of 1 GiB that an address is in, is allowed and
    /// has a frame. Returns its size, and what it made.
    pub(super) fn populate_page(
        &mut self,
        id: SpaceId,
        address: Address,
        permission: Permission,
    ) -> Result<(PageSize, Option<Made>), Error> {
        let (size, area) = match self.find(id, address) {
            Some(entry) => {
                let size = entry.size();
                if !entry.allows(permission) {
                    return Err(Error::Permission { address });
                }
                if entry.frame().is_some() {
                    return Ok((size, None));
                }
                (size, None)
            }
            None => {
                let (_, area) = self.space_area(id, address)?;
                if !area.permission.allows(permission) {
                    return Err(Error::Permission { address });
                }
                (area.page, Some(area))
            }
        };
        let page = Page::of(id, address, size);
        if size == PageSize::Huge && self.has_parts(&page) {
            self.populate_part(id, address)?;
            return Ok((PageSize::Large, Some(Made::Part)));
        }
        let space = self.spaces.get(&id).ok_or(Error::NoSuchSpace)?;
        if area.is_some() && !space.may_use(size.bytes()) {
            return Err(Error::Quota);
        }
        let frame = self.take_frame(size).ok_or(Error::OutOfMemory)?;
        let is_in_parts = size == PageSize::Huge && !self.pool.is_clean(frame);
        if is_in_parts {
            self.begin_parts(&page, frame);
            if let Err(error) = self.populate_part(id, address) {
                self.end_parts(&page);
                return Err(error);
            }
        } else if let Some(area) = area {
            let entry = Entry::new(size, area.permission, Some(frame));
            if let Err(error) = self.insert(&page, entry) {
                self.pool.put_back(frame, size);
                return Err(error);
            }
        } else {
            self.table.set_frame(&page, Some(frame));
        }
        if area.is_some() {
            let space = self.spaces.get_mut(&id).ok_or(Error::NoSuchSpace)?;
            space.used += size.bytes();
            space.touched.insert(address & !(size.bytes() - 1));
        }
        Ok(match is_in_parts {
            true => (PageSize::Large, Some(Made::FirstPart)),
            false => (size, Some(Made::Page)),
        })
    }

    /// Adds an entry to the page table. Freed memory that was not given back yet is, before there
    /// is no room.
    pub(super) fn insert(&mut self, page: &Page, entry: Entry) -> Result<(), Error> {
        while !self.table.insert(page, entry, Room::Second) {
            if !self.find_room(self.config.free_pages.max(1)) {
                return Err(Error::OutOfMemory);
            }
        }
        Ok(())
    }

    /// Undoes what calls of [`Store::populate_page`] made, at these addresses.
    pub(super) fn unpopulate(&mut self, id: SpaceId, made: Vec<(Address, Made)>) {
        for (at, what) in made.into_iter().rev() {
            self.unpopulate_page(id, at, what);
        }
    }

    fn unpopulate_page(&mut self, id: SpaceId, address: Address, made: Made) {
        let Some(entry) = self.find(id, address) else {
            return;
        };
        let page = Page::of(id, address, entry.size());
        match (made, entry.frame()) {
            (Made::Page, Some(frame)) => self.pool.put_back(frame, page.size),
            (Made::Page, None) => {}
            (Made::Part | Made::FirstPart, _) => {
                self.table.remove(&page);
            }
        }
        let page = match made {
            Made::Part => return,
            Made::Page => page,
            Made::FirstPart => Page::of(id, address, PageSize::Huge),
        };
        if made == Made::FirstPart {
            self.end_parts(&page);
        }
        let Some(space) = self.spaces.get_mut(&id) else {
            return;
        };
        let bytes = page.size.bytes();
        if space.touched.remove(&(address & !(bytes - 1))) {
            space.used -= bytes;
            self.table.remove(&page);
        } else {
            self.table.set_frame(&page, None);
        }
    }

    /// Returns the first bytes of a range whose pages have frames, up to the end of the page.
    fn populated(
        &mut self,
        space: SpaceId,
        address: Address,
        len: u64,
    ) -> Result<&mut [u8], Error> {
        let entry = self.find(space, address);
        let entry = entry.ok_or(Error::Unmapped { address })?;
        let frame = entry.frame().ok_or(Error::Unmapped { address })?;
        let (offset, len) = within(address, len, entry.size());
        Ok(self.pool.bytes_mut(frame, offset, len))
    }

    /// Returns the physical address of a lock; a page that was never written has none.
    fn physical(&self, space: SpaceId, address: Address) -> Result<u64, Error> {
        let Some(entry) = self.find(space, address) else {
            self.space_area(space, address)?;
            return Err(Error::StaleToken);
        };
        let frame = entry.frame().ok_or(Error::StaleToken)?;
        Ok(place(frame, within(address, 1, entry.size()).0))
    }
}

/// Returns the first bytes of a range that has no memory: those up to the next multiple of 4 KiB,
/// since a part of the same page may have some.
#[inline]
fn zeros(address: Address, len: u32) -> &'static [u8] {
    &ZEROS[..within(address, len.into(), PageSize::Small).1]
}

/// Returns the offset of an address in its page, and how many of `len` bytes are in this page.
#[inline]
fn within(address: Address, len: u64, size: PageSize) -> (u64, usize) {
    let offset = address & (size.bytes() - 1);
    (offset, len.min(size.bytes() - offset) as usize)
}

#[inline]
fn checked_len(address: Address, len: usize) -> Result<u32, Error> {
    let len = u32::try_from(len).map_err(|_| Error::Length)?;
    if len == 0 || len > LEN_MAX || address.checked_add(len.into()).is_none() {
        return Err(Error::Length);
    }
    Ok(len)
}

fn aligned(address: Address) -> Result<(), Error> {
    if !address.is_multiple_of(8) {
        return Err(Error::Misaligned { multiple: 8 });
    }
    if address > u64::MAX - 8 {
        return Err(Error::Length);
    }
    Ok(())
}
