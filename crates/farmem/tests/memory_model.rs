//! The memory of a node against a plain model: a map of bytes, and one piece for each 4 KiB of each
//! space.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use proptest::prelude::*;
use tare_farmem::memory::{Config, Store};
use tare_farmem::operation::{
    Error, Guard, Operation, PageSize, Permission, RegionId, SpaceId, Value,
};
use tare_sim::Instant;

const KIB_4: u64 = 4096;
const BASE: u64 = 0x4000_0000;
const QUOTA: u64 = 6 << 20;
const NAMES: [&[u8]; 3] = [b"one", b"two", b"three"];

/// 4 KiB of a space.
#[derive(Clone, Copy)]
struct Piece {
    /// Pieces that share memory have the same.
    object: u64,
    permission: Permission,
    page: PageSize,
    /// Its allocation; a number of its own for what is left on either side of a part that was
    /// freed.
    area: u64,
    is_sparse: bool,
    region: Option<RegionId>,
}

struct Region {
    owner: u64,
    name: &'static [u8],
    address: u64,
    bytes: u64,
    grants: BTreeMap<u64, (Permission, Option<u64>)>,
}

#[derive(Default)]
struct Model {
    spaces: BTreeSet<u64>,
    pieces: BTreeMap<(u64, u64), Piece>,
    bytes: HashMap<(u64, u64), u8>,
    dense: HashMap<u64, u64>,
    touched: BTreeMap<(u64, u64), u64>,
    regions: BTreeMap<RegionId, Region>,
    locks: HashMap<(u64, u64), (u64, u64, Instant)>,
    last: u64,
}

impl Model {
    fn fresh(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn piece(&self, space: u64, address: u64) -> Result<Piece, Error> {
        if !self.spaces.contains(&space) {
            return Err(Error::NoSuchSpace);
        }
        let piece = self.pieces.get(&(space, address / KIB_4)).copied();
        piece.ok_or(Error::Unmapped { address })
    }

    /// The first address of the page, of a range, that is refused, as the node sees it: page by
    /// page.
    fn check(&self, space: u64, address: u64, len: u64, what: Permission) -> Result<(), Error> {
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

    fn used(&self, space: u64) -> u64 {
        let touched = self.touched.range((space, 0)..=(space, u64::MAX));
        self.dense.get(&space).copied().unwrap_or(0) + touched.map(|(_, bytes)| bytes).sum::<u64>()
    }

    /// Charges the sparse pages of a range, all or none.
    fn touch(&mut self, space: u64, address: u64, len: u64, what: Permission) -> Result<(), Error> {
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

    fn byte(&mut self, space: u64, address: u64) -> &mut u8 {
        let object = self.pieces[&(space, address / KIB_4)].object;
        self.bytes.entry((object, address % KIB_4)).or_default()
    }

    fn word(&mut self, space: u64, address: u64) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|n| {
            *self.byte(space, address + n as u64)
        }))
    }

    fn store(&mut self, space: u64, address: u64, data: &[u8]) {
        for (at, &byte) in (address..).zip(data) {
            *self.byte(space, at) = byte;
        }
    }

    fn lock_at(&self, space: u64, address: u64) -> (u64, u64) {
        let object = self.pieces[&(space, address / KIB_4)].object;
        (object, address % KIB_4)
    }

    fn check_token(&self, now: Instant, space: u64, at: u64, token: u64) -> Result<(), Error> {
        self.piece(space, at)?;
        match self.locks.get(&self.lock_at(space, at)) {
            Some(&(by, given, until)) if by == space && given == token && now < until => Ok(()),
            _ => Err(Error::StaleToken),
        }
    }

    fn add(&mut self, space: u64, at: u64, bytes: u64, new: impl Fn(u64) -> Piece) {
        for n in 0..bytes / KIB_4 {
            let piece = new(n);
            self.pieces.insert((space, at / KIB_4 + n), piece);
        }
    }

    fn remove(&mut self, space: u64, from: u64, to: u64) {
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

    fn ungrant(&mut self, region: RegionId, from: u64) {
        let Some(found) = self.regions.get_mut(&region) else {
            return;
        };
        let bytes = found.bytes;
        if let Some((_, Some(at))) = found.grants.remove(&from) {
            self.remove(from, at, at + bytes);
        }
    }

    fn own(&mut self, space: u64, region: RegionId) -> Result<&mut Region, Error> {
        if !self.spaces.contains(&space) {
            return Err(Error::NoSuchSpace);
        }
        let found = self.regions.get_mut(&region);
        found
            .filter(|region| region.owner == space)
            .ok_or(Error::NoSuchRegion)
    }

    fn retire(&mut self, space: u64, region: RegionId) -> Result<(), Error> {
        let grants = self.own(space, region)?.grants.keys().copied();
        for to in grants.collect::<Vec<_>>() {
            self.ungrant(region, to);
        }
        self.regions.remove(&region);
        Ok(())
    }

    /// Returns the first and the last address of the area that has an address.
    fn area(&self, space: u64, address: u64) -> (u64, u64) {
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
    fn execute(
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

    fn guard(&self, now: Instant, space: u64, guard: Option<Guard>) -> Result<(), Error> {
        guard.map_or(Ok(()), |guard| {
            self.check_token(now, space, guard.lock, guard.token)
        })
    }

    fn vacant(&self, space: u64, at: u64, bytes: u64, page: PageSize) -> Result<(), Error> {
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

    fn update(
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

    fn free(&mut self, space: u64, address: u64, bytes: u64) -> Result<(), Error> {
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

/// An operation before it is known which addresses, tokens and regions there are.
#[derive(Clone, Debug)]
enum Step {
    Open,
    Close,
    Alloc(u64, bool, Option<Spot>, Permission, bool),
    Free(Spot, u64),
    Read(Spot, u32),
    Write(Spot, u8, usize, Option<(Spot, usize)>),
    CompareAndSwap(Spot, bool, u64),
    FetchAdd(Spot, u64, Option<(Spot, usize)>),
    Lock(Spot, u64),
    Unlock(Spot, usize),
    Region(usize, Spot, u64),
    Find(usize),
    Grant(usize, u64, Permission),
    Revoke(usize, u64),
    Map(usize, Option<Spot>),
    Retire(usize),
    Wait(u64),
    Clean(u64),
}

/// An address: near the fixed ones, or near one that the node chose.
#[derive(Clone, Copy, Debug)]
struct Spot {
    chosen: Option<usize>,
    page: u64,
    offset: u64,
}

fn spot(offset: impl Strategy<Value = u64>) -> impl Strategy<Value = Spot> {
    // Twelve pages of 4 KiB, and the first and last one of each of three pages of 2 MiB behind
    // them.
    let page = prop_oneof![8 => 0..4u64, 4 => 0..12u64, 1 => 512..514u64, 1 => 1023..1026u64, 1 => 1535..1538u64];
    let chosen = prop_oneof![3 => Just(None), 1 => (0..8usize).prop_map(Some)];
    (chosen, page, offset).prop_map(|(chosen, page, offset)| Spot {
        chosen,
        page,
        offset,
    })
}

fn page_spot() -> impl Strategy<Value = Spot> {
    spot(prop_oneof![30 => Just(0u64), 1 => Just(8u64)])
}

fn word_spot() -> impl Strategy<Value = Spot> {
    spot(prop_oneof![10 => Just(0u64), 10 => Just(4088u64), 5 => Just(2048u64), 1 => Just(4093u64)])
}

fn byte_spot() -> impl Strategy<Value = Spot> {
    spot(prop_oneof![
        Just(0u64),
        Just(4095u64),
        4080..4096u64,
        0..4096u64
    ])
}

fn permission() -> impl Strategy<Value = Permission> {
    prop_oneof![
        6 => Just(Permission::READ_WRITE),
        1 => Just(Permission::READ),
        1 => Just(Permission::WRITE)
    ]
}

fn length() -> impl Strategy<Value = u64> {
    prop_oneof![1..17u64, 4090..4100u64, 0..13_000u64]
}

fn pages() -> impl Strategy<Value = u64> {
    prop_oneof![10 => 1..20_000u64, 1 => Just(0u64), 2 => Just(1u64 << 21)]
}

fn guard() -> impl Strategy<Value = Option<(Spot, usize)>> {
    prop_oneof![3 => Just(None), 1 => (word_spot(), 0..3usize).prop_map(Some)]
}

fn step() -> impl Strategy<Value = Step> {
    let at = || prop_oneof![3 => page_spot().prop_map(Some), 1 => Just(None)];
    prop_oneof![
        2 => Just(Step::Open),
        1 => Just(Step::Close),
        12 => (pages(), prop::bool::weighted(0.2), at(), permission(), any::<bool>())
            .prop_map(|(bytes, large, at, permission, sparse)| {
                Step::Alloc(bytes, large, at, permission, sparse)
            }),
        8 => (page_spot(), pages()).prop_map(|(at, bytes)| Step::Free(at, bytes)),
        30 => (byte_spot(), length()).prop_map(|(at, len)| Step::Read(at, len as u32)),
        30 => (byte_spot(), any::<u8>(), length(), guard())
            .prop_map(|(at, byte, len, guard)| Step::Write(at, byte, len as usize, guard)),
        5 => (word_spot(), any::<bool>(), any::<u64>())
            .prop_map(|(at, is_right, new)| Step::CompareAndSwap(at, is_right, new)),
        5 => (word_spot(), any::<u64>(), guard())
            .prop_map(|(at, add, guard)| Step::FetchAdd(at, add, guard)),
        8 => (word_spot(), 0..40u64).prop_map(|(at, lease)| Step::Lock(at, lease)),
        4 => (word_spot(), 0..4usize).prop_map(|(at, token)| Step::Unlock(at, token)),
        6 => (0..3usize, page_spot(), 1..9000u64)
            .prop_map(|(name, at, bytes)| Step::Region(name, at, bytes)),
        2 => (0..3usize).prop_map(Step::Find),
        8 => (0..3usize, 0..3u64, permission()).prop_map(|(n, to, how)| Step::Grant(n, to, how)),
        2 => (0..3usize, 0..3u64).prop_map(|(n, from)| Step::Revoke(n, from)),
        8 => (0..3usize, at()).prop_map(|(n, at)| Step::Map(n, at)),
        1 => (0..3usize).prop_map(Step::Retire),
        8 => (0..30u64).prop_map(Step::Wait),
        4 => (0..20_000u64).prop_map(Step::Clean),
    ]
}

/// The store and the model, side by side.
struct Both {
    store: Store,
    model: Model,
    now: Instant,
    chosen: Vec<u64>,
    tokens: Vec<u64>,
    named: [RegionId; 3],
}

impl Both {
    fn new() -> Both {
        let config = Config {
            quota: QUOTA,
            ..Config::new(32 << 20)
        };
        let mut both = Both {
            store: Store::new(&config),
            model: Model::default(),
            now: Instant::ZERO,
            chosen: vec![1 << 50],
            tokens: vec![7],
            named: [RegionId(u64::MAX); 3],
        };
        // Other bytes than zero in all of memory, from a space that is gone.
        let (gone, page, permission) = (SpaceId(9), PageSize::Large, Permission::READ_WRITE);
        both.store.open(gone).unwrap();
        both.store.set_quota(gone, 32 << 20).unwrap();
        let at = both
            .store
            .alloc(gone, 32 << 20, page, None, permission, false);
        both.store
            .write(gone, at.unwrap(), &[0xff; 32 << 20])
            .unwrap();
        both.store.close(gone).unwrap();
        // Something to begin with: pages of all three, and one that two share.
        (0..3).for_each(|space| both.execute(space, &Operation::Open));
        let (page, permission) = (
            Spot {
                chosen: None,
                page: 0,
                offset: 0,
            },
            Permission::READ_WRITE,
        );
        let sparse = Spot { page: 6, ..page };
        for space in 0..3 {
            both.run(
                space,
                &Step::Alloc(4 * KIB_4, false, Some(page), permission, false),
            );
            both.run(
                space,
                &Step::Alloc(4 * KIB_4, false, Some(sparse), permission, true),
            );
        }
        both.run(0, &Step::Region(0, page, 1));
        both.run(0, &Step::Grant(0, 1, permission));
        both.run(1, &Step::Map(0, Some(Spot { page: 4, ..page })));
        both
    }

    fn address(&self, spot: Spot) -> u64 {
        let base = spot
            .chosen
            .map_or(BASE, |n| self.chosen[n % self.chosen.len()]);
        base + spot.page * KIB_4 + spot.offset
    }

    /// A token: the last one, one before it, or one that never was.
    fn token(&self, back: usize) -> u64 {
        let index = self.tokens.len().checked_sub(back + 1);
        index.map_or(u64::MAX, |index| self.tokens[index])
    }

    fn guard(&self, guard: Option<(Spot, usize)>) -> Option<Guard> {
        guard.map(|(spot, back)| Guard {
            lock: self.address(spot),
            token: self.token(back),
        })
    }

    fn run(&mut self, space: u64, step: &Step) {
        match *step {
            Step::Open => self.execute(space, &Operation::Open),
            Step::Close => self.execute(space, &Operation::Close),
            Step::Alloc(bytes, large, at, permission, sparse) => {
                let page = [PageSize::Small, PageSize::Large][usize::from(large)];
                let at = at.map(|spot| self.address(spot) & !(u64::from(large) * 0x1f_ffff));
                let operation = Operation::Alloc {
                    bytes,
                    page,
                    at,
                    permission,
                    sparse,
                };
                self.execute(space, &operation);
            }
            Step::Free(spot, bytes) => {
                let address = self.address(spot);
                self.execute(space, &Operation::Free { address, bytes });
            }
            Step::Read(spot, len) => {
                let address = self.address(spot);
                self.execute(space, &Operation::Read { address, len });
            }
            Step::Write(spot, byte, len, guard) => {
                let data = (0..len).map(|n| byte.wrapping_add(n as u8) | 1);
                let operation = Operation::Write {
                    address: self.address(spot),
                    data: &data.collect::<Vec<_>>(),
                    guard: self.guard(guard),
                };
                self.execute(space, &operation);
            }
            Step::CompareAndSwap(spot, is_right, new) => {
                let address = self.address(spot);
                let expected = match self.model.piece(space, address) {
                    Ok(_) if is_right && address.is_multiple_of(8) => {
                        self.model.word(space, address)
                    }
                    _ => 0,
                };
                let operation = Operation::CompareAndSwap {
                    address,
                    expected,
                    new,
                    guard: None,
                };
                self.execute(space, &operation);
            }
            Step::FetchAdd(spot, add, guard) => {
                let operation = Operation::FetchAdd {
                    address: self.address(spot),
                    add,
                    guard: self.guard(guard),
                };
                self.execute(space, &operation);
            }
            Step::Lock(spot, lease) => {
                let operation = Operation::Lock {
                    address: self.address(spot),
                    lease: Duration::from_nanos(lease),
                };
                self.execute(space, &operation);
            }
            Step::Unlock(spot, back) => {
                let operation = Operation::Unlock {
                    address: self.address(spot),
                    token: self.token(back),
                };
                self.execute(space, &operation);
            }
            Step::Region(name, spot, bytes) => {
                let operation = Operation::Region {
                    name: NAMES[name],
                    address: self.address(spot),
                    bytes,
                };
                self.execute(space, &operation);
            }
            Step::Find(name) => self.execute(space, &Operation::Find { name: NAMES[name] }),
            Step::Grant(name, to, permission) => {
                let operation = Operation::Grant {
                    region: self.named[name],
                    to: SpaceId(to),
                    permission,
                };
                self.execute(space, &operation);
            }
            Step::Revoke(name, from) => {
                let (region, from) = (self.named[name], SpaceId(from));
                self.execute(space, &Operation::Revoke { region, from });
            }
            Step::Map(name, at) => {
                let (region, at) = (self.named[name], at.map(|spot| self.address(spot)));
                self.execute(space, &Operation::Map { region, at });
            }
            Step::Retire(name) => {
                let region = self.named[name];
                self.execute(space, &Operation::Retire { region });
            }
            Step::Wait(ns) => self.now += Duration::from_nanos(ns),
            Step::Clean(bytes) => {
                self.store.clean(bytes);
            }
        }
    }

    fn execute(&mut self, space: u64, operation: &Operation<'_>) {
        let (mut out, mut expected_out) = (vec![9], vec![9]);
        let before = self.store.counts();
        let result = self
            .store
            .execute(self.now, SpaceId(space), operation, &mut out);
        let chosen = result.ok();
        match (operation, result) {
            // Only the store knows which address it chooses, so a refusal has to be predicted
            // first.
            (Operation::Alloc { at: None, .. } | Operation::Map { at: None, .. }, Ok(value)) => {
                let Value::Address(at) = value else {
                    panic!("{value:?}");
                };
                self.chosen.push(at);
            }
            (_, Ok(Value::Token(token))) => self.tokens.push(token),
            (&Operation::Region { name, .. }, Ok(Value::Region(id))) => {
                let n = NAMES.iter().position(|known| *known == name).unwrap();
                self.named[n] = id;
            }
            _ => (),
        }
        let chosen = chosen.or(Some(match operation {
            Operation::Region { .. } => Value::Region(RegionId(0)),
            Operation::Lock { .. } => Value::Token(u64::MAX),
            _ => Value::Address(1 << 60),
        }));
        let expected = self
            .model
            .execute(self.now, space, operation, chosen, &mut expected_out);
        // What is wrong in itself may be refused before the space is looked for.
        let is_wrong = matches!(
            result,
            Err(Error::Misaligned { multiple: 8 } | Error::Length | Error::Lease)
        );
        if !(expected == Err(Error::NoSuchSpace) && is_wrong) {
            assert_eq!(result, expected, "{operation:?} of space {space}");
        }
        assert_eq!(out, expected_out, "{operation:?} of space {space}");
        if result.is_err() {
            let after = self.store.counts();
            let locks = before.locks;
            assert_eq!(after.entries, before.entries, "{operation:?}: {result:?}");
            assert!(after.locks <= locks, "{operation:?}: {result:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_operation_does_what_it_does_to_a_map_of_bytes(
        steps in prop::collection::vec((0..3u64, step()), 1..150)
    ) {
        let mut both = Both::new();
        for (space, step) in &steps {
            both.run(*space, step);
        }
        // In the end everything can be freed, and then nothing is left.
        for space in 0..3 {
            both.run(space, &Step::Open);
            both.run(space, &Step::Close);
        }
        let counts = both.store.counts();
        prop_assert_eq!(counts.bytes_free, 32 << 20);
        prop_assert_eq!(counts.entries, [0; 3]);
        prop_assert_eq!((counts.spaces, counts.regions, counts.locks, counts.displaced), (0, 0, 0, 0));
    }
}
