//! The memory that a node needs besides its pool and its page table: what it knows of spaces,
//! allocations, locks, regions and grants. Any client can make these, so they are bounded together.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use super::space::Area;
use super::{Bytes, Store};
use crate::operation::{Address, Error};

/// The bytes that each of them takes, with its part of the collections that it is in: rounded up,
/// as those grow by doubling (a space takes 0.7 KB, an allocation 0.1).
pub(super) const SPACE: u64 = 1024;
pub(super) const AREA: u64 = 128;
pub(super) const LOCK: u64 = 256;
pub(super) const REGION: u64 = 1024;
pub(super) const GRANT: u64 = 128;

/// The number of areas of all spaces.
#[derive(Clone, Default)]
pub(super) struct AreaCount(Arc<AtomicU64>);

impl AreaCount {
    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns no areas, whose number will be counted here.
    pub(super) fn areas(&self) -> Areas {
        Areas {
            areas: BTreeMap::new(),
            all: self.clone(),
        }
    }
}

/// The areas of a space, by their first address, counted with those of all spaces.
pub(super) struct Areas {
    areas: BTreeMap<Address, Area>,
    all: AreaCount,
}

impl Areas {
    pub(super) fn insert(&mut self, start: Address, area: Area) {
        self.change(|areas| areas.insert(start, area));
    }

    pub(super) fn remove(&mut self, start: Address) -> Option<Area> {
        self.change(|areas| areas.remove(&start))
    }

    /// Takes all areas of another one.
    pub(super) fn append(&mut self, other: &mut Areas) {
        let others = other.change(std::mem::take);
        self.change(|areas| areas.extend(others));
    }

    fn change<T>(&mut self, change: impl FnOnce(&mut BTreeMap<Address, Area>) -> T) -> T {
        let before = self.areas.len() as u64;
        let result = change(&mut self.areas);
        let more = (self.areas.len() as u64).wrapping_sub(before);
        // One that is less wraps around, and so does the sum.
        self.all.0.fetch_add(more, Ordering::Relaxed);
        result
    }
}

impl Deref for Areas {
    type Target = BTreeMap<Address, Area>;

    fn deref(&self) -> &BTreeMap<Address, Area> {
        &self.areas
    }
}

impl Drop for Areas {
    fn drop(&mut self) {
        self.change(BTreeMap::clear);
    }
}

impl<M: Bytes> Store<M> {
    /// Returns the bytes of all metadata, as far as clients determine it.
    pub(super) fn metadata_bytes(&self) -> u64 {
        let spaces = (self.spaces.len() + self.closed.len()) as u64;
        spaces * SPACE
            + self.areas.get() * AREA
            + self.locks.len() as u64 * LOCK
            + self.regions.len() as u64 * REGION
            + self.grants * GRANT
    }

    /// Checks that there is room for so many bytes more.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(super) fn check_metadata(&self, bytes: u64) -> Result<(), Error> {
        match self.metadata_bytes() + bytes <= self.config.metadata_bytes {
            true => Ok(()),
            false => Err(Error::OutOfMemory),
        }
    }
}
