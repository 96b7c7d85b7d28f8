//! Long ranges that are freed: gone at once, and given back in parts.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tare_farmem::memory::{Config, Preset, Store};
use tare_farmem::operation::{Error, Operation, PageSize, Permission, SpaceId, Value};
use tare_sim::Instant;

const KIB_4: u64 = 4096;
const MIB_2: u64 = 2 << 20;
const BASE: u64 = 0x4000_0000;
const ONE: SpaceId = SpaceId(1);
const TWO: SpaceId = SpaceId(2);
const PAGES: u64 = 4096;
const PART: u64 = 64;

fn store() -> Store {
    let config = Config {
        free_pages: PART,
        ..Config::new(PAGES * KIB_4)
    };
    let mut store = Store::new(&config);
    store.open(ONE).unwrap();
    store.open(TWO).unwrap();
    store
}

fn alloc(
    store: &mut Store,
    space: SpaceId,
    at: u64,
    bytes: u64,
    sparse: bool,
) -> Result<u64, Error> {
    let (page, permission) = (PageSize::Small, Permission::READ_WRITE);
    store.alloc(space, bytes, page, Some(at), permission, sparse)
}

/// All memory, written by one space.
fn full(sparse: bool) -> Store {
    let mut store = store();
    alloc(&mut store, ONE, BASE, PAGES * KIB_4, sparse).unwrap();
    let data = vec![0xa5; (PAGES * KIB_4) as usize];
    store.write(ONE, BASE, &data).unwrap();
    assert_eq!(store.counts().bytes_free, 0);
    store
}

fn read(store: &Store, space: SpaceId, address: u64) -> Result<u8, Error> {
    let mut byte = [0];
    store.read_into(space, address, &mut byte)?;
    Ok(byte[0])
}

#[test]
fn a_long_range_is_gone_at_once_and_given_back_in_parts() {
    for sparse in [false, true] {
        let mut store = full(sparse);
        let (from, bytes) = (BASE + 8 * KIB_4, (PAGES - 16) * KIB_4);
        store.free(ONE, from, bytes).unwrap();
        // One operation has done a part.
        assert_eq!(store.counts().bytes_free, PART * KIB_4);
        assert_eq!(store.counts().spaces_freeing, 1);
        for page in 0..PAGES - 16 {
            let address = from + page * KIB_4;
            assert_eq!(read(&store, ONE, address), Err(Error::Unmapped { address }));
            let refused = store.write(ONE, address, &[1]);
            assert_eq!(refused, Err(Error::Unmapped { address }));
        }
        for address in [BASE, from - 1, from + bytes, BASE + PAGES * KIB_4 - 1] {
            assert_eq!(read(&store, ONE, address), Ok(0xa5));
        }
        // The quota is free, and the next operations and idle time do the rest.
        alloc(&mut store, ONE, 1 << 40, bytes, false).unwrap();
        assert_eq!(store.counts().bytes_free, 2 * PART * KIB_4);
        assert!(store.clean(PART * KIB_4));
        assert_eq!(store.counts().bytes_free, 3 * PART * KIB_4);
        while store.clean(MIB_2) {}
        let counts = store.counts();
        assert_eq!((counts.bytes_free, counts.spaces_freeing), (bytes, 0));
        assert_eq!(counts.entries, [PAGES, 0, 0]);
    }
}

#[test]
fn memory_that_waits_is_taken_before_a_node_says_that_it_has_none() {
    for sparse in [false, true] {
        let mut store = full(sparse);
        store.close(ONE).unwrap();
        assert_eq!(store.counts().spaces, 1);
        assert_eq!(store.counts().bytes_free, PART * KIB_4);
        alloc(&mut store, TWO, BASE, PAGES * KIB_4, false).unwrap();
        for page in 0..PAGES {
            let at = BASE + page * KIB_4;
            assert_eq!(store.write(TWO, at, &[1]), Ok(()));
            assert_eq!(read(&store, TWO, at + 1), Ok(0), "old bytes");
        }
        assert_eq!(store.counts().spaces_freeing, 0);
        assert_eq!(store.counts().bytes_free, 0);
    }
    // A large page needs many small ones that wait.
    let mut store = full(false);
    store.free(ONE, BASE, PAGES * KIB_4).unwrap();
    let (page, permission) = (PageSize::Large, Permission::READ_WRITE);
    let at = store.alloc(TWO, PAGES * KIB_4, page, None, permission, false);
    let at = at.unwrap();
    for block in 0..PAGES * KIB_4 / MIB_2 {
        assert_eq!(store.write(TWO, at + block * MIB_2, &[1]), Ok(()));
    }
}

#[test]
fn room_in_the_page_table_that_waits_is_taken_before_a_node_says_that_it_has_none() {
    let mut store = store();
    // The table has three entries for each frame.
    for space in 10..13 {
        store.open(SpaceId(space)).unwrap();
        let (all, page) = (PAGES * KIB_4, PageSize::Small);
        for part in 0..16 {
            let at = BASE + part * all / 16;
            let permission = Permission::READ;
            let _ = store.alloc(SpaceId(space), all / 16, page, Some(at), permission, false);
        }
    }
    assert!(store.counts().entries[0] > 2 * PAGES);
    (10..13).for_each(|space| store.close(SpaceId(space)).unwrap());
    assert!(store.counts().spaces_freeing > 0);
    assert_eq!(alloc(&mut store, ONE, BASE, PAGES * KIB_4, false), Ok(BASE));
    assert_eq!(alloc(&mut store, TWO, BASE, PAGES * KIB_4, false), Ok(BASE));
}

#[test]
fn an_allocation_where_memory_waits_has_none_of_its_bytes() {
    for (sparse, again) in [(false, false), (false, true), (true, false), (true, true)] {
        for close in [false, true] {
            let mut store = full(sparse);
            if close {
                store.close(ONE).unwrap();
                store.open(ONE).unwrap();
            } else {
                store.free(ONE, BASE, PAGES * KIB_4).unwrap();
            }
            // The middle of what waits, then the rest.
            let (at, bytes) = (BASE + 1000 * KIB_4, 500 * KIB_4);
            alloc(&mut store, ONE, at, bytes, again).unwrap();
            assert!((at..at + bytes)
                .step_by(4096)
                .all(|at| read(&store, ONE, at) == Ok(0)));
            store.write(ONE, at, &vec![7; bytes as usize]).unwrap();
            while store.clean(MIB_2) {}
            for at in (at..at + bytes).step_by(4096) {
                assert_eq!(
                    read(&store, ONE, at),
                    Ok(7),
                    "what was allocated anew was freed"
                );
            }
            let address = at - 1;
            assert_eq!(read(&store, ONE, address), Err(Error::Unmapped { address }));
            assert_eq!(store.counts().bytes_free, PAGES * KIB_4 - bytes);
        }
    }
}

/// Runs something that, if it is wrong, may never end.
fn ends(run: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    let running = thread::spawn(move || {
        run();
        let _ = done.send(());
    });
    match is_done.recv_timeout(Duration::from_secs(60)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it does not end"),
        _ => running.join().unwrap(),
    }
}

/// Pages of 2 MiB over all memory, written and freed or closed; most of them wait.
fn large_that_wait(sparse: bool, close: bool) -> Store {
    let mut store = Store::new(&Config::new(PAGES * KIB_4));
    store.open(ONE).unwrap();
    let (page, permission, all) = (PageSize::Large, Permission::READ_WRITE, PAGES * KIB_4);
    store
        .alloc(ONE, all, page, Some(BASE), permission, sparse)
        .unwrap();
    for at in (BASE..BASE + all).step_by(4096) {
        store.write(ONE, at, &[0xa5]).unwrap();
    }
    if close {
        store.close(ONE).unwrap();
        store.open(ONE).unwrap();
    } else {
        store.free(ONE, BASE, all).unwrap();
    }
    assert!(store.counts().bytes_free < all);
    store
}

/// Checks that a range reads as zero, takes what is written, and stays when all else is given back.
fn check_new(store: &mut Store, at: u64, bytes: u64) {
    let pages = || (at..at + bytes).step_by(4096);
    assert!(pages().all(|at| read(store, ONE, at) == Ok(0)), "old bytes");
    for at in pages() {
        store.write(ONE, at, &[7]).unwrap();
    }
    while store.clean(MIB_2) {}
    assert!(pages().all(|at| read(store, ONE, at) == Ok(7)), "lost");
    assert_eq!(store.counts().bytes_free, PAGES * KIB_4 - bytes);
    assert_eq!(store.counts().spaces_freeing, 0);
}

#[test]
fn an_allocation_of_small_pages_where_large_ones_wait_ends_and_has_none_of_their_bytes() {
    for case in 0..32 {
        let has = move |bit| case >> bit & 1 == 1;
        ends(move || {
            let mut store = large_that_wait(has(0), has(1));
            // At the border of a large page, within one, and over borders.
            let (at, bytes) = match (has(3), has(4)) {
                (false, false) => (BASE + 6 * MIB_2, KIB_4),
                (false, true) => (BASE + 6 * MIB_2 + 8 * KIB_4, KIB_4),
                (true, false) => (BASE + 6 * MIB_2, MIB_2 + KIB_4),
                (true, true) => (BASE + 6 * MIB_2 - KIB_4, MIB_2 + 2 * KIB_4),
            };
            alloc(&mut store, ONE, at, bytes, has(2)).unwrap();
            check_new(&mut store, at, bytes);
        });
    }
    // At an address that the node chooses, which is where the one before was.
    ends(|| {
        let config = Config::new(64 << 20);
        let mut store = Store::new(&config);
        store.open(ONE).unwrap();
        let permission = Permission::READ_WRITE;
        let alloc =
            |store: &mut Store, bytes, page| store.alloc(ONE, bytes, page, None, permission, false);
        let before = alloc(&mut store, 64 << 20, PageSize::Large).unwrap();
        store.close(ONE).unwrap();
        store.open(ONE).unwrap();
        let at = alloc(&mut store, (40 << 20) + KIB_4, PageSize::Small);
        assert_eq!(at, Ok(before));
    });
}

#[test]
fn a_space_whose_preset_begins_and_ends_within_large_pages_that_wait_is_empty() {
    for sparse in [false, true] {
        ends(move || {
            // The preset is where large pages cannot be, until it is freed.
            let (start, end) = (BASE + 3 * KIB_4, BASE + 5 * MIB_2 + KIB_4);
            let page = PageSize::Small;
            let config = Config {
                preset: Some(Preset { start, end, page }),
                ..Config::new(PAGES * KIB_4)
            };
            let mut store = Store::new(&config);
            store.open(ONE).unwrap();
            store.free(ONE, start, end - start).unwrap();
            let (page, permission) = (PageSize::Large, Permission::READ_WRITE);
            let bytes = 6 * MIB_2;
            store
                .alloc(ONE, bytes, page, Some(BASE), permission, sparse)
                .unwrap();
            for at in (BASE..BASE + bytes).step_by(4096) {
                store.write(ONE, at, &[0xa5]).unwrap();
            }
            store.close(ONE).unwrap();
            store.open(ONE).unwrap();
            check_new(&mut store, start, end - start);
        });
    }
}

#[test]
fn a_space_that_is_opened_again_while_its_memory_waits_is_empty() {
    let (start, end, page) = (BASE, BASE + PAGES * KIB_4, PageSize::Small);
    let config = Config {
        preset: Some(Preset { start, end, page }),
        free_pages: PART,
        ..Config::new(PAGES * KIB_4)
    };
    let mut store = Store::new(&config);
    for round in 0..5 {
        store.open(ONE).unwrap();
        assert_eq!(read(&store, ONE, BASE), Ok(0));
        assert_eq!(read(&store, ONE, end - 1), Ok(0));
        let data = vec![round + 1; (PAGES * KIB_4) as usize];
        assert_eq!(store.write(ONE, BASE, &data), Ok(()));
        store.close(ONE).unwrap();
        assert_eq!(read(&store, ONE, BASE), Err(Error::NoSuchSpace));
        assert_eq!(store.counts().spaces, 0);
    }
    while store.clean(MIB_2) {}
    assert_eq!(store.counts().bytes_free, PAGES * KIB_4);
}

#[test]
fn a_region_that_is_revoked_is_unmapped_at_once_and_its_memory_stays() {
    let mut store = full(false);
    let region = store.region(ONE, b"all", BASE, PAGES * KIB_4).unwrap();
    store.grant(ONE, region, TWO, Permission::READ).unwrap();
    store.map(TWO, region, Some(BASE)).unwrap();
    assert_eq!(read(&store, TWO, BASE + 4000 * KIB_4), Ok(0xa5));
    store.revoke(ONE, region, TWO).unwrap();
    for page in 0..PAGES {
        let address = BASE + page * KIB_4;
        assert_eq!(read(&store, TWO, address), Err(Error::Unmapped { address }));
        assert_eq!(read(&store, ONE, address), Ok(0xa5));
    }
    while store.clean(MIB_2) {}
    assert_eq!(store.counts().entries, [PAGES, 0, 0]);
    assert_eq!(store.counts().bytes_free, 0);
}

/// The allocation of so many pages, which is prepared in several parts.
fn wanted(at: Option<u64>, pages: u64) -> Operation<'static> {
    Operation::Alloc {
        bytes: pages * KIB_4,
        page: PageSize::Small,
        at,
        permission: Permission::READ_WRITE,
        sparse: false,
    }
}

fn run(store: &mut Store, operation: &Operation<'_>) -> Result<Value, Error> {
    store.execute(Instant::ZERO, ONE, operation, &mut Vec::new())
}

#[test]
fn a_long_allocation_is_prepared_in_parts_and_there_as_a_whole() {
    for at in [None, Some(BASE)] {
        let mut store = store();
        let operation = wanted(at, 1000);
        let mut entries = 0;
        while !store.prepare(ONE, &operation) {
            let now = store.counts().entries[0];
            assert!(now > entries && now <= entries + PART, "a part each time");
            entries = now;
            for at in [BASE, 1 << 46] {
                let unmapped = Err(Error::Unmapped { address: at });
                assert_eq!(read(&store, ONE, at), unmapped);
                assert_eq!(store.write(ONE, at, &[1]), unmapped.map(drop));
            }
        }
        assert_eq!(store.counts().entries[0], 1000);
        let Ok(Value::Address(start)) = run(&mut store, &operation) else {
            panic!("no address");
        };
        assert_eq!(store.counts().entries[0], 1000);
        assert_eq!(store.counts().spaces_freeing, 0);
        for page in [0, 1, 500, 999] {
            assert_eq!(read(&store, ONE, start + page * KIB_4), Ok(0));
            assert_eq!(store.write(ONE, start + page * KIB_4, &[1]), Ok(()));
        }
        let address = start + 1000 * KIB_4;
        assert_eq!(read(&store, ONE, address), Err(Error::Unmapped { address }));
    }
}

#[test]
fn what_was_prepared_for_nothing_leaves_again() {
    let prepare = |store: &mut Store| {
        let operation = wanted(Some(BASE), 2000);
        for _ in 0..50 {
            assert!(!store.prepare(ONE, &operation));
        }
        assert!(store.counts().entries[0] > 0);
    };
    // Another allocation comes, at the same place; or the space is closed; or there is no room
    // for the pages of another one.
    let mut store = store();
    prepare(&mut store);
    assert_eq!(alloc(&mut store, ONE, BASE, KIB_4, false), Ok(BASE));
    while store.clean(1 << 20) {}
    assert_eq!(store.counts().entries[0], 1);
    store.free(ONE, BASE, KIB_4).unwrap();
    prepare(&mut store);
    store.close(ONE).unwrap();
    while store.clean(1 << 20) {}
    assert_eq!(store.counts().entries[0], 0);
    store.open(ONE).unwrap();
    prepare(&mut store);
    // All that the page table has room for.
    let room = (0..4).map(|n| {
        store.set_quota(TWO, u64::MAX).unwrap();
        let at = BASE + (n << 40);
        alloc(&mut store, TWO, at, PAGES * KIB_4, false)
    });
    let room = room.take_while(Result::is_ok).count() as u64;
    assert!(room >= 2);
    assert_eq!(store.counts().entries[0], room * PAGES);
}

#[test]
fn an_allocation_that_another_one_of_the_space_holds_up_is_made_in_the_end() {
    let mut store = store();
    let (one, other) = (wanted(Some(BASE), 2000), wanted(Some(2 * BASE), 100));
    assert!(!store.prepare(ONE, &one));
    // The client of the first one is gone.
    let calls = (0..10_000).take_while(|_| !store.prepare(ONE, &other));
    assert!((100..5000).contains(&calls.count()));
    assert_eq!(run(&mut store, &other), Ok(Value::Address(2 * BASE)));
}

#[test]
fn memory_that_a_space_has_freed_goes_before_its_next_allocation() {
    let mut store = full(false);
    store.free(ONE, BASE, PAGES * KIB_4).unwrap();
    let operation = wanted(Some(BASE), 1);
    let mut free = store.counts().bytes_free;
    while !store.prepare(ONE, &operation) {
        let now = store.counts().bytes_free;
        assert!(now > free && now <= free + PART * KIB_4, "a part each time");
        free = now;
    }
    assert_eq!(free, PAGES * KIB_4);
    // Others do not wait for it.
    let mut store = full(false);
    store.free(ONE, BASE, PAGES * KIB_4).unwrap();
    assert!(store.prepare(TWO, &operation));
}
