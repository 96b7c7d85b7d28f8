//! Clients cannot make a node use more memory than it may by what needs no pages.

use super::*;

// The bytes that are counted for each.
const SPACE: u64 = 1024;
const AREA: u64 = 128;
const LOCK: u64 = 256;
const REGION: u64 = 1024;
const GRANT: u64 = 128;

fn store_with(metadata_bytes: u64) -> Store {
    let mut store = Store::new(&Config {
        metadata_bytes,
        ..Config::new(1 << 20)
    });
    store.open(ONE).unwrap();
    store
}

fn sparse(store: &mut Store) -> Result<u64, Error> {
    let (page, permission) = (PageSize::Small, Permission::READ_WRITE);
    store.alloc(ONE, KIB_4, page, None, permission, true)
}

#[test]
fn spaces_are_refused_beyond_the_memory_for_metadata_and_those_there_go_on() {
    let mut store = store_with(100 * SPACE);
    let address = alloc(&mut store, ONE, KIB_4, None).unwrap();
    let opened = (10..1000).take_while(|&n| store.open(SpaceId(n)).is_ok());
    assert_eq!(opened.count(), 98);
    assert_eq!(store.open(SpaceId(2000)), Err(Error::OutOfMemory));
    assert_eq!(store.open(ONE), Ok(()), "it exists");
    store.write(ONE, address, b"still").unwrap();
    assert_eq!(read(&store, ONE, address, 5).unwrap(), b"still");
    store.close(SpaceId(10)).unwrap();
    assert_eq!(store.open(SpaceId(2000)), Ok(()));
    assert_eq!(store.counts().metadata_bytes, 99 * SPACE + AREA);
}

#[test]
fn allocations_without_pages_are_refused_and_freeing_one_makes_room() {
    let mut store = store_with(SPACE + 50 * AREA);
    let made: Vec<u64> = std::iter::from_fn(|| sparse(&mut store).ok()).collect();
    assert_eq!(made.len(), 50);
    assert_eq!(sparse(&mut store), Err(Error::OutOfMemory));
    assert_eq!(alloc(&mut store, ONE, KIB_4, None), Err(Error::OutOfMemory));
    assert_eq!(store.counts().entries, [0; 3]);
    for _ in 0..3 {
        store.free(ONE, made[7], KIB_4).unwrap();
        let (page, permission) = (PageSize::Small, Permission::READ_WRITE);
        let again = store.alloc(ONE, KIB_4, page, Some(made[7]), permission, true);
        assert_eq!(again, Ok(made[7]));
    }
}

#[test]
fn a_part_in_the_middle_is_not_freed_where_there_is_no_room_for_two_allocations() {
    let mut store = store_with(SPACE + AREA);
    let address = alloc(&mut store, ONE, 3 * KIB_4, None).unwrap();
    let middle = address + KIB_4;
    assert_eq!(store.free(ONE, middle, KIB_4), Err(Error::OutOfMemory));
    assert_eq!(read(&store, ONE, middle, 1).unwrap(), [0]);
    store.free(ONE, address, KIB_4).unwrap();
    store.free(ONE, middle, 2 * KIB_4).unwrap();
    while store.clean(1 << 20) {}
    assert_eq!(store.counts().metadata_bytes, SPACE);
}

#[test]
fn locks_are_refused_and_one_that_is_held_still_says_so() {
    let mut store = store_with(2 * SPACE + AREA + 3 * LOCK);
    store.open(TWO).unwrap();
    let address = alloc(&mut store, ONE, 2 * KIB_4, None).unwrap();
    let mut lock = |n: u64, now: u64| {
        let now = tare_sim::Instant::ZERO + now as u32 * SECOND;
        store.lock(now, ONE, address + 8 * n, 5 * SECOND)
    };
    let tokens = [0, 1, 2].map(|n| lock(n, 0).unwrap());
    assert_eq!(lock(3, 0), Err(Error::OutOfMemory));
    assert_eq!(lock(600, 0), Err(Error::OutOfMemory));
    assert!(matches!(lock(2, 0), Err(Error::Locked { .. })));
    assert!(
        lock(2, 6).unwrap() > tokens[2],
        "those that expired are forgotten"
    );
    assert!(lock(3, 6).is_ok());
    // The second page got no memory by a lock that was refused.
    assert_eq!(store.counts().bytes_free, (1 << 20) - KIB_4);
}

#[test]
fn regions_and_grants_are_refused_and_all_is_given_back() {
    let mut store = store_with(3 * SPACE + 3 * AREA + REGION + GRANT);
    store.open(TWO).unwrap();
    store.open(SpaceId(3)).unwrap();
    let address = alloc(&mut store, ONE, 2 * KIB_4, None).unwrap();
    let region = store.region(ONE, b"a", address, KIB_4).unwrap();
    // There would be room for allocations, not for a region.
    let second = store.region(ONE, b"b", address + KIB_4, KIB_4);
    assert_eq!(second, Err(Error::OutOfMemory));
    let grant = |store: &mut Store, to| store.grant(ONE, region, to, Permission::READ);
    grant(&mut store, TWO).unwrap();
    grant(&mut store, SpaceId(3)).unwrap();
    store.map(TWO, region, None).unwrap();
    assert_eq!(store.map(SpaceId(3), region, None), Err(Error::OutOfMemory));
    store.revoke(ONE, region, SpaceId(3)).unwrap();
    assert_eq!(
        store.map(SpaceId(3), region, None),
        Err(Error::NoSuchRegion)
    );
    for space in [ONE, TWO, SpaceId(3)] {
        store.close(space).unwrap();
    }
    while store.clean(1 << 20) {}
    assert_eq!(store.counts().metadata_bytes, 0);
}
