//! Pages of 1 GiB in memory that was used before.

use tare_farmem::memory::{Config, Store};
use tare_farmem::operation::{Error, Operation, PageSize, Permission};

use crate::{read, store, KIB_4, ONE, SECOND, TWO};

const MIB_2: u64 = 2 << 20;
const GIB: u64 = 1 << 30;
const AT: u64 = 1 << 40;
/// The frames of 4 KiB in 2 MiB.
const FRAMES: u64 = 512;

fn huge(store: &mut Store, sparse: bool) -> Result<u64, Error> {
    let permission = Permission::READ_WRITE;
    store.alloc(ONE, GIB, PageSize::Huge, Some(AT), permission, sparse)
}

/// A store of 1 GiB, all of which was written and is free.
fn used() -> Store {
    let mut store = store(GIB);
    huge(&mut store, false).unwrap();
    fill(&mut store, GIB);
    assert_eq!(
        (store.counts().bytes_free, store.counts().zeroed_late),
        (GIB, 0)
    );
    store
}

/// Writes all of an allocation, and frees it.
fn fill(store: &mut Store, bytes: u64) {
    let data = vec![0xa5; 16 * MIB_2 as usize];
    for at in (AT..AT + bytes).step_by(data.len()) {
        store.write(ONE, at, &data).unwrap();
    }
    store.free(ONE, AT, bytes).unwrap();
}

/// Checks that all bytes of the page are zero, but for these.
fn check(store: &Store, bytes: u64, written: &[(u64, &[u8])]) {
    let (mut data, zeros) = (vec![1; 16 * MIB_2 as usize], vec![0; 16 * MIB_2 as usize]);
    // Parts of a read, and its borders, are on none of a page.
    let mut start = 0;
    while start < bytes {
        let len = (start + data.len() as u64 - 1000).min(bytes) - start;
        let data = &mut data[..len as usize];
        store.read_into(ONE, AT + start, data).unwrap();
        for (place, bytes) in written {
            for (place, byte) in (*place..).zip(*bytes) {
                if let Some(found) = place
                    .checked_sub(start)
                    .and_then(|n| data.get_mut(n as usize))
                {
                    assert_eq!(*found, *byte, "{place:#x}");
                    *found = 0;
                }
            }
        }
        assert!(*data == zeros[..len as usize], "{start:#x}");
        start += len;
    }
}

#[test]
fn a_small_write_to_a_page_of_1_gib_zeroes_no_more_than_its_part_and_no_old_byte_shows() {
    for sparse in [false, true] {
        let mut store = used();
        huge(&mut store, sparse).unwrap();
        let late = |store: &Store| store.counts().zeroed_late;
        store.write(ONE, AT + 5 * MIB_2 + 77, &[1; 10]).unwrap();
        assert_eq!((late(&store), store.counts().bytes_free), (FRAMES, 0));
        // The same part, and another one by each other operation.
        store.write(ONE, AT + 6 * MIB_2 - 1, &[2]).unwrap();
        assert_eq!(late(&store), FRAMES);
        store.fetch_add(ONE, AT + 17 * MIB_2, 3).unwrap();
        store.compare_and_swap(ONE, AT + 8, 0, 4).unwrap();
        let token = store.lock(Default::default(), ONE, AT + 300 * MIB_2, SECOND);
        assert_eq!(late(&store), 4 * FRAMES);
        store
            .unlock(Default::default(), ONE, AT + 300 * MIB_2, token.unwrap())
            .unwrap();
        // Two parts, of which one is there.
        store.write(ONE, AT + 5 * MIB_2 - 3, &[6; 5]).unwrap();
        assert_eq!(late(&store), 5 * FRAMES);
        let written: [(u64, &[u8]); 5] = [
            (5 * MIB_2 + 77, &[1; 10]),
            (6 * MIB_2 - 1, &[2]),
            (17 * MIB_2, &[3]),
            (8, &[4]),
            (5 * MIB_2 - 3, &[6; 5]),
        ];
        check(&store, GIB, &written);
        // Idle time zeroes the rest, and nothing of what was written.
        while store.clean(MIB_2) {}
        check(&store, GIB, &written);
        store.write(ONE, AT + 100 * MIB_2, &[0]).unwrap();
        assert_eq!(late(&store), 5 * FRAMES);
        // Half clean, it is given back as a whole.
        store.free(ONE, AT, GIB).unwrap();
        let counts = store.counts();
        assert_eq!((counts.bytes_free, counts.entries), (GIB, [0; 3]));
        huge(&mut store, sparse).unwrap();
        store.write(ONE, AT, &[8]).unwrap();
        check(&store, GIB, &[(0, &[8])]);
        // Other pages in the same memory.
        store.close(ONE).unwrap();
        store.open(ONE).unwrap();
        let (size, permission) = (PageSize::Small, Permission::READ_WRITE);
        store
            .alloc(ONE, GIB, size, Some(AT), permission, false)
            .unwrap();
        for at in (AT..AT + GIB).step_by(KIB_4 as usize) {
            store.write(ONE, at, &[0]).unwrap();
        }
        check(&store, GIB, &[]);
    }
}

#[test]
fn a_frame_of_1_gib_that_is_zero_is_taken_before_one_that_is_not() {
    let mut store = store(2 * GIB);
    let page = |store: &mut Store, at| {
        let permission = Permission::READ_WRITE;
        store.alloc(ONE, GIB, PageSize::Huge, Some(at), permission, false)
    };
    page(&mut store, AT).unwrap();
    store.write(ONE, AT, &[1]).unwrap();
    store.free(ONE, AT, GIB).unwrap();
    page(&mut store, AT + GIB).unwrap();
    store.write(ONE, AT + GIB, &[1]).unwrap();
    assert_eq!(store.counts().entries, [0, 0, 1]);
    assert_eq!(store.counts().zeroed_late, 0);
    page(&mut store, AT).unwrap();
    store.write(ONE, AT + 1, &[1]).unwrap();
    assert_eq!(store.counts().entries, [0, 1, 2]);
    assert_eq!(read(&store, ONE, AT, 3), Ok(vec![0, 1, 0]));
}

#[test]
fn a_write_that_is_refused_leaves_a_page_of_1_gib_without_memory() {
    for sparse in [false, true] {
        let mut store = used();
        huge(&mut store, sparse).unwrap();
        let counts = store.counts();
        let unmapped = Err(Error::Unmapped { address: AT + GIB });
        let data = vec![1; 2 * MIB_2 as usize];
        assert_eq!(store.write(ONE, AT + GIB - MIB_2 - 5, &data), unmapped);
        assert_eq!(crate::used(store.counts()), crate::used(counts));
        // Of one that has some, the others stay.
        store.write(ONE, AT + GIB - MIB_2 - 7, &[3]).unwrap();
        let counts = store.counts();
        assert_eq!(store.write(ONE, AT + GIB - MIB_2 - 5, &data), unmapped);
        assert_eq!(crate::used(store.counts()), crate::used(counts));
        check(&store, GIB, &[(GIB - MIB_2 - 7, &[3])]);
    }
}

#[test]
fn a_region_of_pages_that_have_old_bytes_is_prepared_in_parts() {
    for (size, sparse, bytes) in [
        (PageSize::Huge, false, GIB),
        (PageSize::Huge, true, GIB),
        (PageSize::Large, true, 64 * MIB_2),
        (PageSize::Small, false, 64 * MIB_2),
    ] {
        let (mut store, permission) = (store(bytes), Permission::READ_WRITE);
        let alloc = |store: &mut Store| store.alloc(ONE, bytes, size, Some(AT), permission, sparse);
        alloc(&mut store).unwrap();
        fill(&mut store, bytes);
        alloc(&mut store).unwrap();
        let region = Operation::Region {
            name: b"all",
            address: AT,
            bytes,
        };
        let parts = bytes / MIB_2;
        let (mut calls, mut late) = (1, store.counts().zeroed_late);
        while !store.prepare(ONE, &region) {
            let now = store.counts().zeroed_late;
            assert!(now - late <= FRAMES, "{size:?}");
            (calls, late) = (calls + 1, now);
            if calls == parts * 3 / 4 {
                // What it has done is taken from it.
                store.free(ONE, AT, bytes).unwrap();
                alloc(&mut store).unwrap();
            }
        }
        assert!(calls > parts * 7 / 4 - 5, "{calls}");
        store.write(ONE, AT + 9 * MIB_2, &[9]).unwrap();
        let late = store.counts().zeroed_late;
        let id = store.region(ONE, b"all", AT, bytes).unwrap();
        assert_eq!(store.counts().zeroed_late, late);
        store.grant(ONE, id, TWO, permission).unwrap();
        let at = store.map(TWO, id, None).unwrap();
        check(&store, bytes, &[(9 * MIB_2, &[9])]);
        store.write(TWO, at + 40 * MIB_2, &[4]).unwrap();
        store.write(ONE, AT + 41 * MIB_2, &[5]).unwrap();
        check(
            &store,
            bytes,
            &[(9 * MIB_2, &[9]), (40 * MIB_2, &[4]), (41 * MIB_2, &[5])],
        );
        assert_eq!(read(&store, TWO, at + 41 * MIB_2, 2), Ok(vec![5, 0]));
        // One without a name, or that is none, needs nothing.
        store.retire(ONE, id).unwrap();
        for (address, bytes) in [
            (AT + 1, bytes),
            (AT, bytes + 1),
            (AT, 0),
            (AT - 1, 5),
            (AT, u64::MAX),
        ] {
            let name = b"none";
            assert!(store.prepare(
                ONE,
                &Operation::Region {
                    name,
                    address,
                    bytes
                }
            ));
        }
    }
}

/// Returns how often idle time zeroes 2 MiB.
fn to_clean(store: &mut Store) -> u64 {
    std::iter::from_fn(|| store.clean(MIB_2).then_some(())).count() as u64
}

#[test]
fn memory_that_was_taken_for_a_write_that_is_refused_is_as_clean_as_it_was() {
    let data = vec![1; 2 * MIB_2 as usize];
    for (size, bytes) in [
        (PageSize::Small, MIB_2),
        (PageSize::Large, 2 * MIB_2),
        (PageSize::Huge, GIB),
    ] {
        for sparse in [false, true] {
            let (mut store, permission) = (store(bytes), Permission::READ_WRITE);
            let alloc =
                |store: &mut Store| store.alloc(ONE, bytes, size, Some(AT), permission, sparse);
            alloc(&mut store).unwrap();
            let from = AT + bytes - MIB_2;
            let unmapped = Err(Error::Unmapped {
                address: AT + bytes,
            });
            assert_eq!(store.write(ONE, from, &data), unmapped);
            assert_eq!(store.counts().bytes_free, bytes);
            assert_eq!(to_clean(&mut store), 0, "{size:?}");
        }
    }
    // Of a page with old bytes the others have to be zeroed still.
    let mut store = used();
    huge(&mut store, true).unwrap();
    assert!(store.write(ONE, AT + GIB - MIB_2, &data).is_err());
    assert_eq!(to_clean(&mut store), GIB / MIB_2 - 1);
    huge_is_zero(&mut store);
}

/// Checks that a page of 1 GiB has no old byte.
fn huge_is_zero(store: &mut Store) {
    store.write(ONE, AT, &[8]).unwrap();
    check(store, GIB, &[(0, &[8])]);
}

#[test]
fn a_region_for_which_there_is_no_room_takes_and_zeroes_nothing() {
    const POOL: u64 = 16 * MIB_2;
    let permission = Permission::READ_WRITE;
    let region = |bytes| Operation::Region {
        name: b"all",
        address: AT,
        bytes,
    };
    for (size, quota, error) in [
        (PageSize::Small, POOL, Error::Quota),
        (PageSize::Small, 2 * POOL, Error::OutOfMemory),
        (PageSize::Large, POOL - 1, Error::Quota),
        (PageSize::Large, 2 * POOL, Error::OutOfMemory),
    ] {
        let mut store = Store::new(&Config {
            quota,
            ..Config::new(POOL)
        });
        store.open(ONE).unwrap();
        let fits = quota.min(POOL) & !(MIB_2 - 1);
        store
            .alloc(ONE, fits, size, Some(AT), permission, false)
            .unwrap();
        let data = vec![5; fits as usize];
        store.write(ONE, AT, &data).unwrap();
        store.free(ONE, AT, fits).unwrap();
        store
            .alloc(ONE, 2 * POOL, size, Some(AT), permission, true)
            .unwrap();
        // What is leaving counts as free, and what has memory needs none.
        store.write(ONE, AT + 3 * MIB_2, &[1]).unwrap();
        let before = (
            crate::used(store.counts()),
            store.counts().zeroed_late,
            store.counts().spaces_freeing,
        );
        let too_long = region(fits + size.bytes());
        assert!(store.prepare(ONE, &too_long), "{size:?} {quota}");
        let refused = store.region(ONE, b"all", AT, fits + size.bytes());
        assert_eq!(refused, Err(error), "{size:?} {quota}");
        let after = (
            crate::used(store.counts()),
            store.counts().zeroed_late,
            store.counts().spaces_freeing,
        );
        assert_eq!(after, before, "{size:?} {quota}");
        while !store.prepare(ONE, &region(fits)) {}
        store.region(ONE, b"all", AT, fits).unwrap();
    }
}
