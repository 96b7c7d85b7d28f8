//! The memory of a node as a map of bytes.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tare_farmem::operation::{Error, Guard, Operation, PageSize, Permission, RegionId, Value};
use tare_sim::Instant;

pub(crate) const KIB_4: u64 = 4096;
pub(crate) const QUOTA: u64 = 6 << 20;
pub(crate) const NAMES: [&[u8]; 3] = [b"one", b"two", b"three"];

/// 4 KiB of a space.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    /// Pieces that share memory have the same.
    pub(crate) object: u64,
    pub(crate) permission: Permission,
    pub(crate) page: PageSize,
    /// Its allocation; a number of its own for what is left on either side of a part that was
    /// freed.
    pub(crate) area: u64,
    pub(crate) is_sparse: bool,
    pub(crate) region: Option<RegionId>,
}

pub(crate) struct Region {
    pub(crate) owner: u64,
    pub(crate) name: &'static [u8],
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) grants: BTreeMap<u64, (Permission, Option<u64>)>,
}

#[derive(Default)]
pub(crate) struct Model {
    pub(crate) spaces: BTreeSet<u64>,
    pub(crate) pieces: BTreeMap<(u64, u64), Piece>,
    pub(crate) bytes: HashMap<(u64, u64), u8>,
    pub(crate) dense: HashMap<u64, u64>,
    pub(crate) touched: BTreeMap<(u64, u64), u64>,
    pub(crate) regions: BTreeMap<RegionId, Region>,
    pub(crate) locks: HashMap<(u64, u64), (u64, u64, Instant)>,
    pub(crate) last: u64,
}

impl Model {
    pub(crate) fn fresh(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub(crate) fn piece(&self, space: u64, address: u64) -> Result<Piece, Error> {
        if !self.spaces.contains(&space) {
            return Err(Error::NoSuchSpace);
        }
        let piece = self.pieces.get(&(space, address / KIB_4)).copied();
        piece.ok_or(Error::Unmapped { address })
    }

    /// The first address of the page, of a range, that is refused, as the node sees it: page by
    /// page.
    pub(crate) fn check(
        &self,
        space: u64,
        address: u64,
        len: u64,
        what: Permission,
    ) -> Result<(), Error> {
        if len == 0 {
            return Err(Error::Length);
        }
        let mut at = address;
        while at < address + len {
            let piece = self.piece(space, at)?;
            if !piece.permission.allows(what) {
                return Err(Error::Permission { address: at });
            }
            at = (at / piece.page.bytes() + 1) * piece.page.bytes();
        }
        Ok(())
    }

    pub(crate) fn used(&self, space: u64) -> u64 {
        let touched = self.touched.range((space, 0)..=(space, u64::MAX));
        self.dense.get(&space).copied().unwrap_or(0) + touched.map(|(_, bytes)| bytes).sum::<u64>()
    }

    /// Charges the sparse pages of a range, all or none.
    pub(crate) fn touch(
        &mut self,
        space: u64,
        address: u64,
        len: u64,
        what: Permission,
    ) -> Result<(), Error> {
        if len == 0 {
            return Err(Error::Length);
        }
        let before = self.touched.clone();
        let mut at = address;
        while at < address + len {
            let piece = self.piece(space, at);
            let piece = piece.and_then(|piece| match piece.permission.allows(what) {
                true => Ok(piece),
                false => Err(Error::Permission { address: at }),
            });
            let size = piece.as_ref().map_or(1, |piece| piece.page.bytes());
            let page = at / size * size;
            let result = piece.and_then(|piece| {
                if piece.is_sparse && !self.touched.contains_key(&(space, page)) {
                    if self.used(space) + size > QUOTA {
                        return Err(Error::Quota);
                    }
                    self.touched.insert((space, page), size);
                }
                Ok(())
            });
            if let Err(error) = result {
                self.touched = before;
                return Err(error);
            }
            at = page + size;
        }
        Ok(())
    }

    pub(crate) fn byte(&mut self, space: u64, address: u64) -> &mut u8 {
        let object = self.pieces[&(space, address / KIB_4)].object;
        self.bytes.entry((object, address % KIB_4)).or_default()
    }

    pub(crate) fn word(&mut self, space: u64, address: u64) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|n| {
            *self.byte(space, address + n as u64)
        }))
    }

    pub(crate) fn store(&mut self, space: u64, address: u64, data: &[u8]) {
        for (at, &byte) in (address..).zip(data) {
            *self.byte(space, at) = byte;
        }
    }

    pub(crate) fn lock_at(&self, space: u64, address: u64) -> (u64, u64) {
        let object = self.pieces[&(space, address / KIB_4)].object;
        (object, address % KIB_4)
    }

    pub(crate) fn check_token(
        &self,
        now: Instant,
        space: u64,
        at: u64,
        token: u64,
    ) -> Result<(), Error> {
        self.piece(space, at)?;
        match self.locks.get(&self.lock_at(space, at)) {
            Some(&(by, given, until)) if by == space && given == token && now < until => Ok(()),
            _ => Err(Error::StaleToken),
        }
    }

    pub(crate) fn add(&mut self, space: u64, at: u64, bytes: u64, new: impl Fn(u64) -> Piece) {
        for n in 0..bytes / KIB_4 {
            let piece = new(n);
            self.pieces.insert((space, at / KIB_4 + n), piece);
        }
    }

    pub(crate) fn remove(&mut self, space: u64, from: u64, to: u64) {
        for number in from / KIB_4..to / KIB_4 {
            let Some(piece) = self.pieces.remove(&(space, number)) else {
                continue;
            };
            if piece.region.is_none() {
                self.locks.retain(|&(object, _), _| object != piece.object);
                if !piece.is_sparse {
                    *self.dense.entry(space).or_default() -= KIB_4;
                }
            }
            self.touched.remove(&(space, number * KIB_4));
        }
    }

    pub(crate) fn ungrant(&mut self, region: RegionId, from: u64) {
        let Some(found) = self.regions.get_mut(&region) else {
            return;
        };
        let bytes = found.bytes;
        if let Some((_, Some(at))) = found.grants.remove(&from) {
            self.remove(from, at, at + bytes);
        }
    }

    pub(crate) fn own(&mut self, space: u64, region: RegionId) -> Result<&mut Region, Error> {
        if !self.spaces.contains(&space) {
            return Err(Error::NoSuchSpace);
        }
        let found = self.regions.get_mut(&region);
        found
            .filter(|region| region.owner == space)
            .ok_or(Error::NoSuchRegion)
    }

    pub(crate) fn retire(&mut self, space: u64, region: RegionId) -> Result<(), Error> {
        let grants = self.own(space, region)?.grants.keys().copied();
        for to in grants.collect::<Vec<_>>() {
            self.ungrant(region, to);
        }
        self.regions.remove(&region);
        Ok(())
    }

    /// Returns the first and the last address of the area that has an address.
    pub(crate) fn area(&self, space: u64, address: u64) -> (u64, u64) {
        let id = self.pieces[&(space, address / KIB_4)].area;
        let is_same = |number: &u64| {
            let piece = self.pieces.get(&(space, *number));
            piece.is_some_and(|piece| piece.area == id)
        };
        let here = address / KIB_4;
        let start = (0..=here).rev().take_while(is_same).last();
        let end = (here..).take_while(is_same).last();
        (start.unwrap() * KIB_4, (end.unwrap() + 1) * KIB_4)
    }

    /// Returns the result of an operation, if the node chose this address or number.
    pub(crate) fn execute(
        &mut self,
        now: Instant,
        space: u64,
        operation: &Operation<'_>,
        chosen: Option<Value>,
        out: &mut Vec<u8>,
    ) -> Result<Value, Error> {
        let known = self.spaces.contains(&space);
        match *operation {
            Operation::Open => {
                self.spaces.insert(space);
                Ok(Value::None)
            }
            _ if !known => Err(Error::NoSuchSpace),
            Operation::Close => {
                let own = self.regions.iter().filter(|(_, r)| r.owner == space);
                for region in own.map(|(&id, _)| id).collect::<Vec<_>>() {
                    self.retire(space, region)?;
                }
                for region in self.regions.keys().copied().collect::<Vec<_>>() {
                    self.ungrant(region, space);
                }
                let numbers = self.pieces.range((space, 0)..=(space, u64::MAX));
                for (_, n) in numbers.map(|(&key, _)| key).collect::<Vec<_>>() {
                    self.remove(space, n * KIB_4, (n + 1) * KIB_4);
                }
                self.locks.retain(|_, lock| lock.0 != space);
                self.spaces.remove(&space);
                Ok(Value::None)
            }
            Operation::Alloc {
                bytes,
                page,
                at,
                permission,
                sparse,
            } => {
                if bytes == 0 {
                    return Err(Error::Length);
                }
                let bytes = bytes.next_multiple_of(page.bytes());
                if !sparse && self.used(space) + bytes > QUOTA {
                    return Err(Error::Quota);
                }
                let start = match (at, chosen) {
                    (Some(at), _) => at,
                    (None, Some(Value::Address(at))) => at,
                    _ => panic!("no address"),
                };
                self.vacant(space, start, bytes, page)?;
                let area = self.fresh();
                if !sparse {
                    *self.dense.entry(space).or_default() += bytes;
                }
                let first = self.last + 1;
                self.last += bytes / KIB_4;
                self.add(space, start, bytes, |n| Piece {
                    object: first + n,
                    permission,
                    page,
                    area,
                    is_sparse: sparse,
                    region: None,
                });
                Ok(Value::Address(start))
            }
            Operation::Free { address, bytes } => {
                self.free(space, address, bytes).map(|()| Value::None)
            }
            Operation::Read { address, len } => {
                self.check(space, address, len.into(), Permission::READ)?;
                for at in address..address + u64::from(len) {
                    out.push(*self.byte(space, at));
                }
                Ok(Value::Bytes(len))
            }
            Operation::Write {
                address,
                data,
                guard,
            } => {
                self.guard(now, space, guard)?;
                self.touch(space, address, data.len() as u64, Permission::WRITE)?;
                self.store(space, address, data);
                Ok(Value::None)
            }
            Operation::CompareAndSwap {
                address,
                expected,
                new,
                guard,
            } => {
                self.guard(now, space, guard)?;
                self.update(
                    space,
                    address,
                    |old| if old == expected { new } else { old },
                )
            }
            Operation::FetchAdd {
                address,
                add,
                guard,
            } => {
                self.guard(now, space, guard)?;
                self.update(space, address, |old| old.wrapping_add(add))
            }
            Operation::Lock { address, lease } => {
                if !address.is_multiple_of(8) {
                    return Err(Error::Misaligned { multiple: 8 });
                }
                if lease.is_zero() {
                    return Err(Error::Lease);
                }
                self.touch(space, address, 8, Permission::WRITE)?;
                let at = self.lock_at(space, address);
                if let Some(&(_, _, until)) = self.locks.get(&at) {
                    if now < until {
                        let retry_after = until.since(now);
                        return Err(Error::Locked { retry_after });
                    }
                }
                let Some(Value::Token(token)) = chosen else {
                    panic!("no token");
                };
                assert!(self.locks.values().all(|lock| lock.1 < token));
                self.locks.insert(at, (space, token, now + lease));
                Ok(Value::Token(token))
            }
            Operation::Unlock { address, token } => {
                self.check_token(now, space, address, token)?;
                let at = self.lock_at(space, address);
                self.locks.remove(&at);
                Ok(Value::None)
            }
            Operation::Fence => Ok(Value::None),
            Operation::Region {
                name,
                address,
                bytes,
            } => {
                let name = NAMES.into_iter().find(|known| *known == name).unwrap();
                if self.regions.values().any(|region| region.name == name) {
                    return Err(Error::Name);
                }
                let piece = self.piece(space, address)?;
                if !address.is_multiple_of(piece.page.bytes()) {
                    let multiple = piece.page.bytes();
                    return Err(Error::Misaligned { multiple });
                }
                if bytes == 0 {
                    return Err(Error::Length);
                }
                let bytes = bytes.next_multiple_of(piece.page.bytes());
                let (_, end) = self.area(space, address);
                if address + bytes > end {
                    return Err(Error::Unmapped { address: end });
                }
                if piece.region.is_some() {
                    return Err(Error::InUse);
                }
                self.touch(space, address, bytes, piece.permission)?;
                let Some(Value::Region(id)) = chosen else {
                    panic!("no number");
                };
                let region = Region {
                    owner: space,
                    name,
                    address,
                    bytes,
                    grants: BTreeMap::new(),
                };
                assert!(self.regions.insert(id, region).is_none());
                Ok(Value::Region(id))
            }
            Operation::Find { name } => {
                let mut found = self.regions.iter().filter(|(_, region)| {
                    let is_known = region.owner == space || region.grants.contains_key(&space);
                    region.name == name && is_known
                });
                let found = found.next().ok_or(Error::NoSuchRegion)?;
                Ok(Value::Region(*found.0))
            }
            Operation::Grant {
                region,
                to,
                permission,
            } => {
                let address = self.own(space, region)?.address;
                if !self.piece(space, address)?.permission.allows(permission) {
                    return Err(Error::Permission { address });
                }
                let before = self.own(space, region)?.grants.get(&to.0);
                if before.is_some_and(|before| before.0 == permission) {
                    return Ok(Value::None);
                }
                if !self.spaces.contains(&to.0) {
                    return Err(Error::NoSuchSpace);
                }
                self.ungrant(region, to.0);
                let grants = &mut self.own(space, region)?.grants;
                grants.insert(to.0, (permission, None));
                Ok(Value::None)
            }
            Operation::Revoke { region, from } => {
                self.own(space, region)?;
                self.ungrant(region, from.0);
                Ok(Value::None)
            }
            Operation::Map { region, at } => {
                let found = self.regions.get(&region).ok_or(Error::NoSuchRegion)?;
                let &(permission, mapped) = found.grants.get(&space).ok_or(Error::NoSuchRegion)?;
                if mapped.is_some() {
                    return Err(Error::InUse);
                }
                let (owner, from, bytes) = (found.owner, found.address, found.bytes);
                let all = self.pieces.range((space, 0)..=(space, u64::MAX));
                let mapped = all.filter(|(_, piece)| piece.region.is_some()).count() as u64;
                if mapped * KIB_4 + bytes > QUOTA {
                    return Err(Error::Quota);
                }
                let page = self.piece(owner, from)?.page;
                let start = match (at, chosen) {
                    (Some(at), _) => at,
                    (None, Some(Value::Address(at))) => at,
                    _ => panic!("no address"),
                };
                self.vacant(space, start, bytes, page)?;
                let area = self.fresh();
                for n in 0..bytes / KIB_4 {
                    let object = self.pieces[&(owner, from / KIB_4 + n)].object;
                    let piece = Piece {
                        object,
                        permission,
                        page,
                        area,
                        is_sparse: false,
                        region: Some(region),
                    };
                    self.pieces.insert((space, start / KIB_4 + n), piece);
                }
                let grants = &mut self.regions.get_mut(&region).unwrap().grants;
                grants.get_mut(&space).unwrap().1 = Some(start);
                Ok(Value::Address(start))
            }
            Operation::Retire { region } => self.retire(space, region).map(|()| Value::None),
        }
    }

    pub(crate) fn guard(
        &self,
        now: Instant,
        space: u64,
        guard: Option<Guard>,
    ) -> Result<(), Error> {
        guard.map_or(Ok(()), |guard| {
            self.check_token(now, space, guard.lock, guard.token)
        })
    }

    pub(crate) fn vacant(
        &self,
        space: u64,
        at: u64,
        bytes: u64,
        page: PageSize,
    ) -> Result<(), Error> {
        if !at.is_multiple_of(page.bytes()) {
            let multiple = page.bytes();
            return Err(Error::Misaligned { multiple });
        }
        let pages = at / KIB_4..(at + bytes) / KIB_4;
        for number in pages {
            if self.pieces.contains_key(&(space, number)) {
                let address = number * KIB_4;
                return Err(Error::Overlap { address });
            }
        }
        Ok(())
    }

    pub(crate) fn update(
        &mut self,
        space: u64,
        address: u64,
        change: impl FnOnce(u64) -> u64,
    ) -> Result<Value, Error> {
        if !address.is_multiple_of(8) {
            return Err(Error::Misaligned { multiple: 8 });
        }
        self.touch(space, address, 8, Permission::READ_WRITE)?;
        let old = self.word(space, address);
        self.store(space, address, &change(old).to_le_bytes());
        Ok(Value::Old(old))
    }

    pub(crate) fn free(&mut self, space: u64, address: u64, bytes: u64) -> Result<(), Error> {
        if bytes == 0 {
            return Err(Error::Length);
        }
        let mut at = address;
        while at < address + bytes {
            let piece = self.piece(space, at)?;
            let (start, end) = self.area(space, at);
            let multiple = piece.page.bytes();
            if !at.is_multiple_of(multiple) {
                return Err(Error::Misaligned { multiple });
            }
            let to = end.min((address + bytes).next_multiple_of(multiple));
            if piece.region.is_some() && (start, end) != (at, to) {
                return Err(Error::InUse);
            }
            at = to;
        }
        let mut own = self.regions.values().filter(|r| r.owner == space);
        if own.any(|r| r.address < at && address < r.address + r.bytes) {
            return Err(Error::InUse);
        }
        // What is left behind the part is another allocation from now on.
        let last = (space, at / KIB_4 - 1);
        if let Some(piece) = self.pieces.get(&last).copied() {
            let other = self.fresh();
            let (_, end) = self.area(space, at - 1);
            for number in at / KIB_4..end / KIB_4 {
                let left = self.pieces.get_mut(&(space, number)).unwrap();
                assert_eq!(left.area, piece.area);
                left.area = other;
            }
        }
        let mapped = self.pieces.range((space, address / KIB_4)..=last);
        let mapped = mapped.filter_map(|(_, piece)| piece.region);
        for region in mapped.collect::<BTreeSet<_>>() {
            let grants = &mut self.regions.get_mut(&region).unwrap().grants;
            grants.get_mut(&space).unwrap().1 = None;
        }
        self.remove(space, address, at);
        Ok(())
    }
}
