//! The promises of the memory of a node.

mod metadata;
mod pages;
mod parts;
mod sharing;

use std::time::Duration;

use tare_farmem::memory::{Config, Counts, Store};
use tare_farmem::operation::{Error, PageSize, Permission, SpaceId};

const KIB_4: u64 = 4096;
const BASE: u64 = 0x4000_0000;
const ONE: SpaceId = SpaceId(1);
const TWO: SpaceId = SpaceId(2);
const SECOND: Duration = Duration::from_secs(1);

fn store(bytes: u64) -> Store {
    let mut store = Store::new(&Config::new(bytes));
    store.open(ONE).unwrap();
    store.open(TWO).unwrap();
    store
}

/// Allocates small readable and writable pages.
fn alloc(store: &mut Store, space: SpaceId, bytes: u64, at: Option<u64>) -> Result<u64, Error> {
    store.alloc(
        space,
        bytes,
        PageSize::Small,
        at,
        Permission::READ_WRITE,
        false,
    )
}

fn read(store: &Store, space: SpaceId, address: u64, len: u32) -> Result<Vec<u8>, Error> {
    let mut out = Vec::new();
    store.read(space, address, len, &mut out)?;
    let mut other = vec![0; len as usize];
    assert_eq!(store.read_into(space, address, &mut other), Ok(()));
    assert_eq!(out, other);
    Ok(out)
}

/// The counts that an operation without effect leaves as they are.
fn used(counts: Counts) -> ([u64; 3], u64, usize, usize) {
    let Counts {
        entries,
        bytes_free,
        locks,
        regions,
        ..
    } = counts;
    (entries, bytes_free, locks, regions)
}
