//! The memory of a node: the address spaces of all clients over one page table and one pool of
//! physical memory.
//!
//! A [`Store`] reads no clock and does no I/O. It belongs to one thread; a node with several has a
//! store for each, and spreads the spaces over them, or a lock.

mod access;
mod ahead;
mod allocation;
mod keep;
mod leaving;
mod locks;
mod metadata;
mod parts;
mod pool;
mod regions;
mod space;
mod table;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use tare_sim::{Instant, Random};

use crate::operation::{Address, Error, Operation, PageSize, RegionId, SpaceId, Value};
pub use allocation::{AREAS_MAX, CHOSEN, PAGES_MAX, SPARSE_MAX};
pub use keep::{KeepError, Parts, Restored, WHOLE_WRITE_MAX};
pub use locks::LOCKS_MAX;
pub use regions::{GRANTS_MAX, REGIONS_MAX};

use keep::Kept;
use locks::Locks;
use metadata::AreaCount;
use parts::Parted;
use pool::Pool;
use regions::Region;
use space::Space;
use table::Table;

/// Memory that a store may use: bytes at one place, such as `Vec<u8>` or a mapping of huge pages.
pub trait Bytes: AsRef<[u8]> + AsMut<[u8]> {}

impl<M: AsRef<[u8]> + AsMut<[u8]>> Bytes for M {}

/// The settings of a [`Store`].
#[derive(Clone, Debug)]
pub struct Config {
    /// The bytes of the pool of physical memory, at most 16 TiB. The page table takes 64 to 128
    /// bytes more for each 4 KiB.
    pub bytes: u64,
    /// The bytes that a space may use, unless it has another quota; it may map as many bytes of
    /// regions beside them. An allocation that is not sparse and a mapping take their entries of
    /// the page table at once, for which there is room as long as what spaces use and map is no
    /// more than `bytes` together, and mostly up to twice as much, which it is if the quotas are no
    /// more than `bytes` together.
    pub quota: u64,
    /// The quotas of the spaces that have another one, in bytes.
    pub quotas: BTreeMap<SpaceId, u64>,
    /// The most spaces.
    pub spaces_max: usize,
    /// The bytes that what the node knows of spaces, allocations, locks, regions and grants takes
    /// at most, besides `bytes` and the page table. It is counted by upper bounds, such as 1024
    /// bytes for a space, 128 for an allocation and 256 for a lock.
    pub metadata_bytes: u64,
    /// A sparse range that each space has from the start.
    pub preset: Option<Preset>,
    /// The secret key of the page table's hash, random where clients are not trusted.
    pub key: [u64; 2],
    /// Fencing tokens are greater than this. A node that starts again sets it to a value that no
    /// token has reached, for example its start time in nanoseconds.
    pub last_token: u64,
    /// The pages of 4 KiB that an operation gives back of what was freed, by itself or others. The
    /// rest waits for later operations, for [`Store::clean`], or until memory runs out: so the
    /// others do not wait for a long one. [`Store::prepare`] does twice as much at a time, at most
    /// 16.
    pub free_pages: u64,
}

impl Config {
    /// Returns settings for so many bytes: no quotas below that, 2^20 spaces, 1 GiB of metadata,
    /// nothing preset, and a key that is no secret.
    pub fn new(bytes: u64) -> Config {
        Config {
            bytes,
            quota: bytes,
            quotas: BTreeMap::new(),
            spaces_max: 1 << 20,
            metadata_bytes: 1 << 30,
            preset: None,
            key: [0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03],
            last_token: 0,
            free_pages: 4,
        }
    }
}

/// A sparse range of readable and writable memory that each space has from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// The first address, a multiple of the page size.
    pub start: Address,
    /// The first address after it, a multiple of the page size.
    pub end: Address,
    /// The size of its pages.
    pub page: PageSize,
}

impl Preset {
    /// The range of the Clio document: 722 GiB, here in pages of 4 KiB.
    pub const CLIO: Preset = Preset {
        start: 0x4000_0000,
        end: 0xb4_c000_0000,
        page: PageSize::Small,
    };
}

/// Counts of a [`Store`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Spaces.
    pub spaces: usize,
    /// Regions.
    pub regions: usize,
    /// Locks that are held. One that has expired counts until it or some others are taken: each
    /// time 64 of those that have expired are forgotten.
    pub locks: usize,
    /// Entries of the page table, by size of the page.
    pub entries: [u64; 3],
    /// Entries that are not in their home bucket, since it was full and the address was given.
    pub displaced: u64,
    /// Addresses at which an allocation found no room in the page table and tried another one.
    pub retries: u64,
    /// Bytes of metadata, of at most [`Config::metadata_bytes`].
    pub metadata_bytes: u64,
    /// Bytes of physical memory that are free.
    pub bytes_free: u64,
    /// Spaces, open or closed, with freed memory that is not given back yet, or with an allocation
    /// that is being prepared. What that is counts in `entries`, and not in `bytes_free`.
    pub spaces_freeing: usize,
    /// Frames of 4 KiB that were zeroed only when they were taken, since [`Store::clean`] had not
    /// come to them.
    pub zeroed_late: u64,
    /// The last fencing token.
    pub last_token: u64,
}

/// The memory that a space uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceUse {
    /// The space.
    pub space: SpaceId,
    /// The bytes that count for its quota: those that it has allocated, or, of sparse ranges, the
    /// pages that were written.
    pub bytes: u64,
    /// Its quota, in bytes.
    pub quota: u64,
}

/// The memory of a node.
pub struct Store<M = Vec<u8>> {
    config: Config,
    table: Table<M>,
    pool: Pool<M>,
    spaces: HashMap<SpaceId, Space>,
    /// The number of their areas.
    areas: AreaCount,
    /// The same spaces in their order, for [`Store::spaces_after`].
    order: BTreeSet<SpaceId>,
    regions: HashMap<RegionId, Region>,
    names: HashMap<Box<[u8]>, RegionId>,
    last_region: u64,
    /// The number of grants of all regions.
    grants: u64,
    locks: Locks,
    parted: Parted,
    random: Random,
    retries: u64,
    kept: Option<Kept<M>>,
    /// The spaces with pages that no lookup finds: with memory that was freed and not given back
    /// yet, or with an allocation that is being prepared.
    leaving: BTreeSet<SpaceId>,
    /// Those of them that are closed, and not open again.
    closed: BTreeMap<SpaceId, Space>,
}

impl Store {
    /// Makes a store in ordinary memory.
    ///
    /// # Panics
    /// If the preset is not of whole pages, or there is not as much memory.
    pub fn new(config: &Config) -> Store {
        let memory = |bytes| Ok::<_, std::convert::Infallible>(vec![0; bytes]);
        match Store::in_memory(config, memory) {
            Ok(store) => store,
            Err(never) => match never {},
        }
    }
}

impl<M: Bytes> Store<M> {
    /// Makes a store in memory that `memory` returns for a number of bytes, once for the page table
    /// and once for the pool. All of it is written here, so that no later access waits for the
    /// kernel.
    ///
    /// # Errors
    /// Those of `memory`.
    ///
    /// # Panics
    /// If the preset is not of whole pages, or `memory` returns less.
    pub fn in_memory<E>(
        config: &Config,
        mut memory: impl FnMut(usize) -> Result<M, E>,
    ) -> Result<Store<M>, E> {
        let frames = config.bytes.min(pool::BYTES_MAX) >> PageSize::Small.shift();
        let table = memory(table::bytes(frames))?;
        let pool = memory((frames << PageSize::Small.shift()) as usize)?;
        let (table, pool) = (Table::new(table, frames, config.key), Pool::new(pool));
        Ok(Store::of(config, table, pool))
    }

    /// Returns the bytes that a store takes for its pool and its page table.
    pub fn needed_bytes(config: &Config) -> u64 {
        let frames = config.bytes.min(pool::BYTES_MAX) >> PageSize::Small.shift();
        (frames << PageSize::Small.shift()) + table::bytes(frames) as u64
    }

    fn of(config: &Config, table: Table<M>, pool: Pool<M>) -> Store<M> {
        if let Some(preset) = config.preset {
            let is_border = |address: Address| address.is_multiple_of(preset.page.bytes());
            let is_whole = is_border(preset.start) && is_border(preset.end);
            assert!(is_whole && preset.start < preset.end, "whole pages");
        }
        Store {
            table,
            pool,
            spaces: HashMap::new(),
            areas: AreaCount::default(),
            order: BTreeSet::new(),
            regions: HashMap::new(),
            names: HashMap::new(),
            last_region: 0,
            grants: 0,
            locks: Locks::after(config.last_token),
            parted: Parted::new(),
            // Clients see what it chooses, so it has nothing of the key.
            random: Random::new(0),
            retries: 0,
            kept: None,
            leaving: BTreeSet::new(),
            closed: BTreeMap::new(),
            config: config.clone(),
        }
    }

    /// Executes an operation of a space, as a whole or not at all. What is read is appended to
    /// `out`. `now` never goes back.
    ///
    /// # Errors
    /// The operation is refused, and changed nothing.
    #[inline]
    pub fn execute(
        &mut self,
        now: Instant,
        space: SpaceId,
        operation: &Operation<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Value, Error> {
        match *operation {
            Operation::Read { address, len } => self
                .read(space, address, len, out)
                .map(|()| Value::Bytes(len)),
            _ => self.execute_other(now, space, operation, out),
        }
    }

    /// The rest of [`Store::execute`], whose many cases would make a read longer.
    #[inline(never)]
    fn execute_other(
        &mut self,
        now: Instant,
        space: SpaceId,
        operation: &Operation<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Value, Error> {
        match *operation {
            Operation::Open => self.open(space).map(|()| Value::None),
            Operation::Close => self.close(space).map(|()| Value::None),
            Operation::Alloc {
                bytes,
                page,
                at,
                permission,
                sparse,
            } => self
                .alloc(space, bytes, page, at, permission, sparse)
                .map(Value::Address),
            Operation::Free { address, bytes } => {
                self.free(space, address, bytes).map(|()| Value::None)
            }
            Operation::Read { address, len } => self
                .read(space, address, len, out)
                .map(|()| Value::Bytes(len)),
            Operation::Write {
                address,
                data,
                guard,
            } => {
                self.check_guard(now, space, guard)?;
                self.write(space, address, data).map(|()| Value::None)
            }
            Operation::CompareAndSwap {
                address,
                expected,
                new,
                guard,
            } => {
                self.check_guard(now, space, guard)?;
                self.compare_and_swap(space, address, expected, new)
                    .map(Value::Old)
            }
            Operation::FetchAdd {
                address,
                add,
                guard,
            } => {
                self.check_guard(now, space, guard)?;
                self.fetch_add(space, address, add).map(Value::Old)
            }
            Operation::Lock { address, lease } => {
                self.lock(now, space, address, lease).map(Value::Token)
            }
            Operation::Unlock { address, token } => self
                .unlock(now, space, address, token)
                .map(|()| Value::None),
            Operation::Fence => match self.spaces.contains_key(&space) {
                true => Ok(Value::None),
                false => Err(Error::NoSuchSpace),
            },
            Operation::Region {
                name,
                address,
                bytes,
            } => self.region(space, name, address, bytes).map(Value::Region),
            Operation::Find { name } => self.find_region(space, name).map(Value::Region),
            Operation::Grant {
                region,
                to,
                permission,
            } => self
                .grant(space, region, to, permission)
                .map(|()| Value::None),
            Operation::Revoke { region, from } => {
                self.revoke(space, region, from).map(|()| Value::None)
            }
            Operation::Map { region, at } => self.map(space, region, at).map(Value::Address),
            Operation::Retire { region } => self.retire(space, region).map(|()| Value::None),
        }
    }

    /// Gives freed memory back, and zeroes it ahead of its next use, at most so many bytes and at
    /// least one page. The node calls it when there is nothing else to do. Returns false if there
    /// is no more to do.
    pub fn clean(&mut self, bytes: u64) -> bool {
        let frames = (bytes >> PageSize::Small.shift()).max(1);
        let frames = self.give_back(frames);
        self.pool.clean(frames) == frames
    }

    /// Returns what the pool of physical memory is made of.
    pub(crate) fn pool_memory(&self) -> &M {
        self.pool.memory()
    }

    /// Returns the bytes of the pool of physical memory.
    pub fn bytes(&self) -> u64 {
        self.config.bytes
    }

    /// Returns what spaces use, in the order of their numbers: those after `after`, or from the
    /// first one on, at most `max` of them.
    pub fn spaces_after(&self, after: Option<SpaceId>, max: usize) -> Vec<SpaceUse> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let spaces = self.order.range((from, Bound::Unbounded)).take(max);
        let spaces = spaces.filter_map(|id| Some((*id, self.spaces.get(id)?)));
        let used = spaces.map(|(space, of)| SpaceUse {
            space,
            bytes: of.used,
            quota: of.quota,
        });
        used.collect()
    }

    /// Returns what there is and what has happened.
    pub fn counts(&self) -> Counts {
        Counts {
            spaces: self.spaces.len(),
            regions: self.regions.len(),
            locks: self.locks.len(),
            entries: PageSize::ALL.map(|size| self.table.count(size)),
            displaced: self.table.displaced(),
            retries: self.retries,
            metadata_bytes: self.metadata_bytes(),
            bytes_free: self.pool.bytes_free(),
            spaces_freeing: self.leaving.len(),
            zeroed_late: self.pool.late(),
            last_token: self.locks.last_token(),
        }
    }
}
