//! The promises of the memory of a node.

use std::time::Duration;

use tare_farmem::memory::{
    Config, Counts, Preset, Store, GRANTS_MAX, LOCKS_MAX, PAGES_MAX, REGIONS_MAX,
};
use tare_farmem::operation::{Error, Guard, Operation, PageSize, Permission, SpaceId, Value};
use tare_sim::{Instant, Random};

const KIB_4: u64 = 4096;
const MIB_2: u64 = 2 << 20;
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

fn sparse(store: &mut Store, space: SpaceId, bytes: u64, at: u64) {
    let (page, permission) = (PageSize::Small, Permission::READ_WRITE);
    let result = store.alloc(space, bytes, page, Some(at), permission, true);
    assert_eq!(result, Ok(at));
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

#[test]
fn a_thousand_spaces_use_the_same_addresses() {
    let mut store = Store::new(&Config::new(16 << 20));
    for n in 0..1000 {
        let space = SpaceId(n);
        store.open(space).unwrap();
        assert_eq!(alloc(&mut store, space, 4 * KIB_4, Some(BASE)), Ok(BASE));
        for page in 0..4 {
            let data = (n * 4 + page).to_le_bytes();
            store
                .write(space, BASE + page * KIB_4 + 8 * page, &data)
                .unwrap();
        }
    }
    for n in 0..1000 {
        for page in 0..4 {
            let found = read(&store, SpaceId(n), BASE + page * KIB_4 + 8 * page, 8);
            assert_eq!(found, Ok((n * 4 + page).to_le_bytes().to_vec()));
        }
        assert_eq!(read(&store, SpaceId(n), BASE + 8, 8), Ok(vec![0; 8]));
    }
    let counts = store.counts();
    assert_eq!(counts.entries, [4000, 0, 0]);
    // Nearly all pages are where one cache line answers; a hash that ignored the space would put
    // all of them into the same buckets.
    assert!(counts.displaced < 400, "{counts:?}");
}

#[test]
fn freed_memory_never_shows_old_bytes() {
    for cleaning in [0, 3 * KIB_4, 64 << 20] {
        let mut store = store(8 << 20);
        let mut random = Random::new(cleaning);
        for round in 0..40 {
            let page = [PageSize::Small, PageSize::Large][random.below(2) as usize];
            let bytes = [KIB_4, 5 * KIB_4, MIB_2, 6 << 20][random.below(4) as usize];
            let (space, permission) = ([ONE, TWO][round % 2], Permission::READ_WRITE);
            let at = store.alloc(space, bytes, page, None, permission, random.chance(0.3));
            let (at, len) = (at.unwrap(), bytes as u32);
            // The last byte of each page gives it a frame and leaves the rest as the node has it.
            for page in 1..=bytes / KIB_4 {
                store.write(space, at + page * KIB_4 - 1, &[0]).unwrap();
            }
            assert!(read(&store, space, at, len)
                .unwrap()
                .iter()
                .all(|&byte| byte == 0));
            store.write(space, at, &vec![0xa5; bytes as usize]).unwrap();
            match random.chance(0.5) {
                true => store.free(space, at, bytes).unwrap(),
                false => {
                    store.close(space).unwrap();
                    store.open(space).unwrap();
                }
            }
            if cleaning > 0 {
                store.clean(cleaning);
            }
        }
        // What was zeroed ahead was not zeroed when it was taken.
        let late = store.counts().zeroed_late;
        assert_eq!(late > 0, cleaning < 64 << 20, "{late} frames late");
    }
}

#[test]
fn memory_that_was_not_zero_before_does_not_show() {
    let memory = |bytes| Ok::<_, ()>(vec![0xff; bytes]);
    let mut store = Store::in_memory(&Config::new(64 << 10), memory).unwrap();
    store.open(ONE).unwrap();
    let at = alloc(&mut store, ONE, 64 << 10, None).unwrap();
    for page in 0..16 {
        store.write(ONE, at + page * KIB_4, &[1]).unwrap();
    }
    let found = read(&store, ONE, at, 64 << 10).unwrap();
    assert_eq!(found.iter().map(|&byte| u64::from(byte)).sum::<u64>(), 16);
}

#[test]
fn a_node_without_memory_says_so_and_goes_on() {
    let mut store = store(16 * KIB_4);
    sparse(&mut store, ONE, 1 << 30, BASE);
    store.set_quota(ONE, u64::MAX).unwrap();
    store.write(ONE, BASE, &[1; 12 * KIB_4 as usize]).unwrap();
    let before = used(store.counts());
    // The first four of these pages would fit; none stays.
    let data = vec![2; 6 * KIB_4 as usize];
    let at = BASE + 12 * KIB_4;
    assert_eq!(store.write(ONE, at, &data), Err(Error::OutOfMemory));
    assert_eq!(used(store.counts()), before);
    assert_eq!(read(&store, ONE, at, 6), Ok(vec![0; 6]));
    assert_eq!(
        store.write(ONE, at - 1, &data[..3 * KIB_4 as usize]),
        Ok(())
    );
    assert_eq!(read(&store, ONE, at - 2, 3), Ok(vec![1, 2, 2]));
    assert_eq!(store.fetch_add(ONE, at + MIB_2, 1), Ok(0));
    assert_eq!(
        store.fetch_add(ONE, at + 2 * MIB_2, 1),
        Err(Error::OutOfMemory)
    );
    let now = Instant::ZERO;
    let refused = store.lock(now, ONE, at + 2 * MIB_2, SECOND);
    assert_eq!(refused, Err(Error::OutOfMemory));
    // Others read and write what they have, and freed memory is there again.
    assert_eq!(store.free(ONE, BASE, KIB_4), Ok(()));
    assert_eq!(store.fetch_add(ONE, at + 2 * MIB_2, 1), Ok(0));
    let large = store.alloc(TWO, 1, PageSize::Large, None, Permission::READ_WRITE, false);
    assert_eq!(large, Err(Error::Quota));
    store.set_quota(TWO, MIB_2).unwrap();
    let large = store.alloc(TWO, 1, PageSize::Large, None, Permission::READ_WRITE, false);
    assert_eq!(
        store.write(TWO, large.unwrap(), &[1]),
        Err(Error::OutOfMemory)
    );
}

#[test]
fn a_space_uses_no_more_than_its_quota() {
    let mut store = store(1 << 20);
    store.set_quota(ONE, 10 * KIB_4).unwrap();
    let at = alloc(&mut store, ONE, 6 * KIB_4, None).unwrap();
    assert_eq!(alloc(&mut store, ONE, 5 * KIB_4, None), Err(Error::Quota));
    // Sparse pages count when they are written, and no more when they are freed.
    sparse(&mut store, ONE, 1 << 40, BASE);
    assert_eq!(
        store.write(ONE, BASE + KIB_4 - 1, &[1; 2 + 2 * KIB_4 as usize]),
        Ok(())
    );
    assert_eq!(store.write(ONE, BASE + (1 << 39), &[1]), Err(Error::Quota));
    assert_eq!(store.write(ONE, BASE + KIB_4, &[1]), Ok(()));
    assert_eq!(store.free(ONE, BASE + KIB_4, KIB_4), Ok(()));
    assert_eq!(store.write(ONE, BASE + (1 << 39), &[1]), Ok(()));
    assert_eq!(store.write(ONE, BASE + (1 << 38), &[1]), Err(Error::Quota));
    assert_eq!(store.free(ONE, at, 6 * KIB_4), Ok(()));
    assert_eq!(store.write(ONE, BASE + (1 << 38), &[1]), Ok(()));
    assert!(alloc(&mut store, TWO, 200 * KIB_4, None).is_ok());
    assert_eq!(store.set_quota(SpaceId(3), 0), Err(Error::NoSuchSpace));
}

#[test]
fn the_preset_range_of_722_gib_is_there_and_takes_memory_when_written() {
    let config = Config {
        preset: Some(Preset::CLIO),
        ..Config::new(4 << 20)
    };
    let mut store = Store::new(&config);
    let Preset { start, end, .. } = Preset::CLIO;
    assert_eq!((end - start) >> 30, 722);
    store.open(ONE).unwrap();
    assert_eq!(read(&store, ONE, start, 16), Ok(vec![0; 16]));
    assert_eq!(read(&store, ONE, end - 16, 16), Ok(vec![0; 16]));
    assert_eq!(store.counts().entries, [0; 3]);
    for address in [start - 1, end] {
        assert_eq!(
            read(&store, ONE, address, 1),
            Err(Error::Unmapped { address })
        );
    }
    let beyond = store.write(ONE, end - 8, &[1; 16]);
    assert_eq!(beyond, Err(Error::Unmapped { address: end }));
    assert_eq!(read(&store, ONE, end - 8, 8), Ok(vec![0; 8]));
    let taken = alloc(&mut store, ONE, KIB_4, Some(end - KIB_4));
    let address = end - KIB_4;
    assert_eq!(taken, Err(Error::Overlap { address }));

    // All of memory, in pages at random addresses: a page whose home is full gets another bucket.
    let mut random = Random::new(5);
    let mut written = std::collections::BTreeMap::new();
    while written.len() < 1024 {
        let page = start + random.below((end - start) / KIB_4) * KIB_4;
        let value = random.next_u64();
        store.write(ONE, page + 40, &value.to_le_bytes()).unwrap();
        written.insert(page, value);
    }
    let counts = store.counts();
    assert_eq!((counts.entries, counts.bytes_free), ([1024, 0, 0], 0));
    assert!(counts.displaced > 0, "{counts:?}");
    for (page, value) in &written {
        let expected = value.to_le_bytes().to_vec();
        assert_eq!(read(&store, ONE, page + 40, 8), Ok(expected));
    }
    for (page, _) in written {
        assert_eq!(store.free(ONE, page, KIB_4), Ok(()));
    }
    let counts = store.counts();
    assert_eq!(
        (counts.entries[0], counts.displaced, counts.bytes_free),
        (0, 0, 4 << 20)
    );
}

#[test]
fn an_allocation_without_room_in_the_page_table_tries_elsewhere_and_counts_it() {
    // Room for 3 × 256 entries.
    let mut store = store(256 * KIB_4);
    let mut found = Vec::new();
    for n in 0..700 {
        let space = SpaceId(10 + n);
        store.open(space).unwrap();
        found.push((space, alloc(&mut store, space, KIB_4, None).unwrap()));
    }
    let counts = store.counts();
    assert_eq!(counts.entries, [700, 0, 0]);
    assert!(counts.retries > 50, "{counts:?}");
    // It chose addresses whose home had room, as long as it could.
    assert!(counts.displaced < 20, "{counts:?}");
    for &(space, at) in &found {
        assert_eq!(read(&store, space, at, 4), Ok(vec![0; 4]));
        assert_eq!(
            alloc(&mut store, space, KIB_4, Some(at)),
            Err(Error::Overlap { address: at })
        );
    }
    // When the table is full, the error says so, and nothing of the refused allocation stays.
    let mut refused = 0;
    for n in 0..100 {
        let before = store.counts();
        let result = alloc(&mut store, SpaceId(10 + n), 2 * KIB_4, None);
        if result.is_err() {
            assert_eq!(result, Err(Error::OutOfMemory));
            assert_eq!(store.counts().entries, before.entries);
            refused += 1;
        }
    }
    assert!(refused >= 66, "{refused} refused");
    for (space, at) in found {
        assert_eq!(store.free(space, at, KIB_4), Ok(()));
        store.close(space).unwrap();
    }
    assert_eq!(store.counts().entries, [0; 3]);
    assert_eq!(store.counts().displaced, 0);
}

#[test]
fn one_allocation_may_take_the_whole_memory() {
    let mut store = store(64 << 20);
    let at = alloc(&mut store, ONE, 64 << 20, None).unwrap();
    let counts = store.counts();
    assert_eq!((counts.retries, counts.displaced), (0, 0));
    let data = (0..64 << 18)
        .flat_map(|n: u32| n.to_le_bytes())
        .collect::<Vec<_>>();
    assert_eq!(store.write(ONE, at, &data), Ok(()));
    assert_eq!(store.counts().bytes_free, 0);
    assert!(read(&store, ONE, at, 64 << 20).unwrap() == data);
    assert_eq!(store.free(ONE, at + KIB_4, (64 << 20) - 2 * KIB_4), Ok(()));
    while store.clean(1 << 20) {}
    assert_eq!(store.counts().bytes_free, (64 << 20) - 2 * KIB_4);
    let address = at + KIB_4;
    assert_eq!(
        read(&store, ONE, at, 4097),
        Err(Error::Unmapped { address })
    );
    assert_eq!(read(&store, ONE, at, 4096).unwrap(), data[..4096]);
}

#[test]
fn pages_of_all_sizes_live_side_by_side() {
    // 1 GiB and one block of 2 MiB behind it.
    let mut store = store((1 << 30) + MIB_2);
    let whole = |store: &mut Store, page, at| {
        store.alloc(ONE, 1, page, Some(at), Permission::READ_WRITE, false)
    };
    let huge = 1 << 40;
    let large = huge + (1 << 30);
    assert_eq!(whole(&mut store, PageSize::Huge, huge), Ok(huge));
    store.set_quota(ONE, 4 << 30).unwrap();
    assert_eq!(whole(&mut store, PageSize::Large, large), Ok(large));
    assert_eq!(
        whole(&mut store, PageSize::Small, large + MIB_2),
        Ok(large + MIB_2)
    );
    let misaligned = whole(&mut store, PageSize::Large, huge + KIB_4 + (4 << 30));
    assert_eq!(misaligned, Err(Error::Misaligned { multiple: MIB_2 }));
    // Over both borders; there is memory for all but the small page.
    let at = large - 5;
    assert_eq!(store.write(ONE, at, b"border to a large page"), Ok(()));
    assert_eq!(
        read(&store, ONE, at, 22).unwrap(),
        b"border to a large page"
    );
    let small = large + MIB_2;
    assert_eq!(
        store.write(ONE, small - 4, &[7; 8]),
        Err(Error::OutOfMemory)
    );
    assert_eq!(read(&store, ONE, small - 4, 8), Ok(vec![0; 8]));
    assert_eq!(store.counts().entries, [1, 1, 1]);
    assert_eq!(store.counts().bytes_free, 0);
    // A huge page is split, and is whole again once its parts are free.
    assert_eq!(store.free(ONE, huge, 1), Ok(()));
    assert_eq!(store.write(ONE, small, &[7; 4096]), Ok(()));
    assert_eq!(whole(&mut store, PageSize::Huge, huge), Ok(huge));
    assert_eq!(store.write(ONE, huge, &[1]), Err(Error::OutOfMemory));
    assert_eq!(store.free(ONE, small, 1), Ok(()));
    assert_eq!(store.write(ONE, huge + 77, &[1]), Ok(()));
    assert_eq!(read(&store, ONE, huge + (1 << 29), 4096), Ok(vec![0; 4096]));
    assert_eq!(read(&store, ONE, large - 5, 5), Ok(vec![0; 5]));
}

#[test]
fn a_page_border_is_where_it_is() {
    let mut store = store(1 << 20);
    alloc(&mut store, ONE, KIB_4, Some(BASE)).unwrap();
    let (page, permission) = (PageSize::Small, Permission::READ);
    let at = BASE + KIB_4;
    store
        .alloc(ONE, KIB_4, page, Some(at), permission, false)
        .unwrap();
    let (address, next) = (at, at + KIB_4);
    assert_eq!(store.write(ONE, at - 4, &[1; 4]), Ok(()));
    assert_eq!(
        store.write(ONE, at - 4, &[2; 5]),
        Err(Error::Permission { address })
    );
    assert_eq!(read(&store, ONE, at - 4, 5), Ok(vec![1, 1, 1, 1, 0]));
    assert_eq!(read(&store, ONE, next - 1, 1), Ok(vec![0]));
    assert_eq!(
        read(&store, ONE, next - 1, 2),
        Err(Error::Unmapped { address: next })
    );
    assert_eq!(store.fetch_add(ONE, at - 8, 1), Ok(0x0101_0101 << 32));
    assert_eq!(
        store.fetch_add(ONE, at - 4, 1),
        Err(Error::Misaligned { multiple: 8 })
    );
    assert_eq!(
        store.fetch_add(ONE, at, 1),
        Err(Error::Permission { address })
    );
    for (address, len) in [
        (at, 0),
        (u64::MAX - 3, 5),
        (u64::MAX, 1),
        (at, (1 << 30) + 1),
    ] {
        let mut out = vec![3];
        assert_eq!(store.read(ONE, address, len, &mut out), Err(Error::Length));
        assert_eq!(out, [3]);
    }
}

#[test]
fn addresses_end_where_64_bits_do() {
    let mut store = store(1 << 20);
    let last = u64::MAX - KIB_4 + 1;
    assert_eq!(
        alloc(&mut store, ONE, KIB_4, Some(last)),
        Err(Error::Length)
    );
    let at = last - KIB_4;
    assert_eq!(alloc(&mut store, ONE, KIB_4, Some(at)), Ok(at));
    assert_eq!(store.write(ONE, last - 2, &[1, 2]), Ok(()));
    assert_eq!(
        store.write(ONE, last - 2, &[1, 2, 3]),
        Err(Error::Unmapped { address: last })
    );
    assert_eq!(store.fetch_add(ONE, u64::MAX - 7, 1), Err(Error::Length));
    assert_eq!(alloc(&mut store, ONE, u64::MAX, None), Err(Error::Length));
    assert_eq!(alloc(&mut store, ONE, 0, None), Err(Error::Length));
    assert_eq!(
        alloc(&mut store, ONE, (PAGES_MAX + 1) * KIB_4, None),
        Err(Error::Length)
    );
    let (page, permission) = (PageSize::Small, Permission::READ);
    for bytes in [(1 << 45) + 1, u64::MAX] {
        let result = store.alloc(ONE, bytes, page, None, permission, true);
        assert_eq!(result, Err(Error::Length));
    }
    assert_eq!(store.free(ONE, at, 0), Err(Error::Length));
    assert_eq!(store.free(ONE, at, u64::MAX), Err(Error::Length));
    // Also where the sparse area covers all that a page number can be.
    sparse(&mut store, TWO, 1 << 45, 0);
    assert_eq!(store.write(TWO, 0, &[5]), Ok(()));
    assert_eq!(read(&store, TWO, 0, 2), Ok(vec![5, 0]));
}

#[test]
fn a_dead_holder_does_not_wedge_and_a_stale_token_is_refused() {
    let mut store = store(1 << 20);
    let at = alloc(&mut store, ONE, KIB_4, None).unwrap();
    let start = Instant::ZERO + SECOND;
    let dead = store.lock(start, ONE, at, SECOND).unwrap();
    let half = start + SECOND / 2;
    let retry_after = SECOND / 2;
    let refused = store.lock(half, ONE, at, SECOND);
    assert_eq!(refused, Err(Error::Locked { retry_after }));
    let write = |token| Operation::Write {
        address: at + 64,
        data: b"guarded",
        guard: Some(Guard { lock: at, token }),
    };
    let mut out = Vec::new();
    let mut run = |store: &mut Store, now, operation: &Operation<'_>| {
        store.execute(now, ONE, operation, &mut out)
    };
    assert_eq!(run(&mut store, half, &write(dead)), Ok(Value::None));
    // The lease ends to the nanosecond, and the next holder has it at once.
    let end = start + SECOND;
    let before = end - Duration::from_nanos(1);
    assert!(matches!(
        store.lock(before, ONE, at, SECOND),
        Err(Error::Locked { .. })
    ));
    assert_eq!(run(&mut store, end, &write(dead)), Err(Error::StaleToken));
    assert_eq!(store.unlock(end, ONE, at, dead), Err(Error::StaleToken));
    let alive = store.lock(end, ONE, at, SECOND).unwrap();
    assert!(alive > dead);
    for stale in [dead, 0, alive + 1] {
        let guard = Some(Guard {
            lock: at,
            token: stale,
        });
        let cas = Operation::CompareAndSwap {
            address: at,
            expected: 0,
            new: 1,
            guard,
        };
        let add = Operation::FetchAdd {
            address: at,
            add: 1,
            guard,
        };
        for operation in [
            write(stale),
            cas,
            add,
            Operation::Unlock {
                address: at,
                token: stale,
            },
        ] {
            assert_eq!(run(&mut store, end, &operation), Err(Error::StaleToken));
        }
    }
    assert_eq!(run(&mut store, end, &write(alive)), Ok(Value::None));
    let other = Some(Guard {
        lock: at + 8,
        token: alive,
    });
    let add = Operation::FetchAdd {
        address: at,
        add: 1,
        guard: other,
    };
    assert_eq!(run(&mut store, end, &add), Err(Error::StaleToken));
    assert_eq!(store.unlock(end, ONE, at, alive), Ok(()));
    assert_eq!(store.unlock(end, ONE, at, alive), Err(Error::StaleToken));
    assert!(store.lock(end, ONE, at, SECOND).unwrap() > alive);
    assert_eq!(read(&store, ONE, at, 8), Ok(vec![0; 8]));

    for lease in [Duration::ZERO, Duration::from_secs(3601)] {
        assert_eq!(store.lock(end, ONE, at + 16, lease), Err(Error::Lease));
    }
    assert_eq!(
        store.lock(end, ONE, at + 4, SECOND),
        Err(Error::Misaligned { multiple: 8 })
    );
}

#[test]
fn locks_are_bounded_and_go_with_their_space_and_their_memory() {
    let mut store = store(1 << 20);
    let now = Instant::ZERO;
    let pages = (LOCKS_MAX as u64 * 8 + 8).div_ceil(KIB_4);
    let at = alloc(&mut store, ONE, pages * KIB_4, None).unwrap();
    for n in 0..LOCKS_MAX as u64 {
        store.lock(now, ONE, at + 8 * n, SECOND).unwrap();
    }
    let one_more = at + 8 * LOCKS_MAX as u64;
    assert_eq!(store.lock(now, ONE, one_more, SECOND), Err(Error::Quota));
    let other = alloc(&mut store, TWO, KIB_4, None).unwrap();
    store.lock(now, TWO, other, SECOND).unwrap();
    assert_eq!(store.counts().locks, LOCKS_MAX + 1);
    // Expired ones make room.
    assert!(store.lock(now + SECOND, ONE, one_more, SECOND).is_ok());
    assert_eq!(store.counts().locks, 1);
    let token = store.lock(now + SECOND, ONE, at, SECOND).unwrap();
    store.free(ONE, at, KIB_4).unwrap();
    assert_eq!(store.counts().locks, 1);
    // The next user of the frame finds no lock there.
    assert_eq!(alloc(&mut store, ONE, KIB_4, Some(at)), Ok(at));
    assert_eq!(
        store.unlock(now + SECOND, ONE, at, token),
        Err(Error::StaleToken)
    );
    assert!(store.lock(now + SECOND, ONE, at, SECOND).is_ok());
    store.close(ONE).unwrap();
    assert_eq!(store.counts().locks, 0);

    let config = Config {
        last_token: 1 << 40,
        ..Config::new(1 << 20)
    };
    let mut next = Store::new(&config);
    next.open(ONE).unwrap();
    let at = alloc(&mut next, ONE, 8, None).unwrap();
    assert!(next.lock(now, ONE, at, SECOND).unwrap() > 1 << 40);
}

#[test]
fn a_region_is_shared_as_far_as_it_is_granted() {
    let (mut store, now) = (store(1 << 20), Instant::ZERO);
    let three = SpaceId(3);
    store.open(three).unwrap();
    let at = alloc(&mut store, ONE, 4 * KIB_4, None).unwrap();
    store.write(ONE, at + KIB_4, b"shared").unwrap();
    let region = store.region(ONE, b"index", at + KIB_4, 2 * KIB_4).unwrap();
    // Not granted: not found, not mapped, and no one but the owner grants.
    assert_eq!(store.find_region(TWO, b"index"), Err(Error::NoSuchRegion));
    assert_eq!(store.map(TWO, region, None), Err(Error::NoSuchRegion));
    let granted = store.grant(TWO, region, TWO, Permission::READ);
    assert_eq!(granted, Err(Error::NoSuchRegion));
    store.grant(ONE, region, TWO, Permission::READ).unwrap();
    assert_eq!(store.find_region(TWO, b"index"), Ok(region));
    assert_eq!(store.map(three, region, None), Err(Error::NoSuchRegion));
    let theirs = store.map(TWO, region, Some(BASE)).unwrap();
    assert_eq!(read(&store, TWO, theirs, 6).unwrap(), b"shared");
    store.write(ONE, at + 3 * KIB_4 - 2, b"zz").unwrap();
    assert_eq!(read(&store, TWO, theirs + 2 * KIB_4 - 2, 2).unwrap(), b"zz");
    // What is beside it stays the owner's, and reading is not writing.
    let address = theirs + 2 * KIB_4;
    assert_eq!(
        read(&store, TWO, theirs, 8193),
        Err(Error::Unmapped { address })
    );
    assert_eq!(
        store.write(TWO, theirs, b"x"),
        Err(Error::Permission { address: theirs })
    );
    let locked = store.lock(now, TWO, theirs, SECOND);
    assert_eq!(locked, Err(Error::Permission { address: theirs }));
    // A mapped region is neither mapped again, nor freed in part, nor passed on, nor freed by its
    // owner.
    assert_eq!(store.map(TWO, region, None), Err(Error::InUse));
    assert_eq!(store.free(TWO, theirs, KIB_4), Err(Error::InUse));
    assert_eq!(store.region(TWO, b"mine", theirs, KIB_4), Err(Error::InUse));
    for (from, bytes) in [(at, 4 * KIB_4), (at + KIB_4, 1), (at, KIB_4 + 1)] {
        assert_eq!(store.free(ONE, from, bytes), Err(Error::InUse));
    }
    assert_eq!(store.free(ONE, at, KIB_4), Ok(()));

    // Another permission unmaps; with it, locks are shared.
    store
        .grant(ONE, region, TWO, Permission::READ_WRITE)
        .unwrap();
    assert_eq!(
        read(&store, TWO, theirs, 1),
        Err(Error::Unmapped { address: theirs })
    );
    let theirs = store.map(TWO, region, None).unwrap();
    store.write(TWO, theirs, b"SHARED").unwrap();
    assert_eq!(read(&store, ONE, at + KIB_4, 6).unwrap(), b"SHARED");
    let token = store.lock(now, TWO, theirs + 8, SECOND).unwrap();
    let retry_after = SECOND;
    let refused = store.lock(now, ONE, at + KIB_4 + 8, SECOND);
    assert_eq!(refused, Err(Error::Locked { retry_after }));
    // A token is the holder's alone.
    assert_eq!(
        store.unlock(now, ONE, at + KIB_4 + 8, token),
        Err(Error::StaleToken)
    );

    assert_eq!(store.revoke(TWO, region, TWO), Err(Error::NoSuchRegion));
    store.revoke(ONE, region, TWO).unwrap();
    assert_eq!(
        store.write(TWO, theirs, b"x"),
        Err(Error::Unmapped { address: theirs })
    );
    assert_eq!(store.map(TWO, region, None), Err(Error::NoSuchRegion));

    // A space that is closed takes nothing of the other space along.
    store
        .grant(ONE, region, TWO, Permission::READ_WRITE)
        .unwrap();
    store.map(TWO, region, None).unwrap();
    store.close(TWO).unwrap();
    assert_eq!(read(&store, ONE, at + KIB_4, 6).unwrap(), b"SHARED");
    store.open(TWO).unwrap();
    assert_eq!(store.map(TWO, region, None), Err(Error::NoSuchRegion));
    store.grant(ONE, region, TWO, Permission::READ).unwrap();
    let theirs = store.map(TWO, region, None).unwrap();
    store.close(ONE).unwrap();
    assert_eq!(
        read(&store, TWO, theirs, 1),
        Err(Error::Unmapped { address: theirs })
    );
    let counts = store.counts();
    assert_eq!(
        (counts.regions, counts.entries, counts.bytes_free),
        (0, [0; 3], 1 << 20)
    );
    assert_eq!(store.find_region(TWO, b"index"), Err(Error::NoSuchRegion));
}

#[test]
fn a_space_that_does_not_exist_gets_nothing() {
    let mut store = store(1 << 20);
    let at = alloc(&mut store, ONE, KIB_4, None).unwrap();
    store.write(ONE, at, b"secret").unwrap();
    let region = store.region(ONE, b"region", at, 1).unwrap();
    let unknown = SpaceId(0);
    let operations = [
        Operation::Close,
        Operation::Alloc {
            bytes: 1,
            page: PageSize::Small,
            at: None,
            permission: Permission::READ,
            sparse: true,
        },
        Operation::Free {
            address: at,
            bytes: 1,
        },
        Operation::Read {
            address: at,
            len: 6,
        },
        Operation::Read { address: 0, len: 6 },
        Operation::Write {
            address: at,
            data: b"x",
            guard: None,
        },
        Operation::FetchAdd {
            address: at,
            add: 1,
            guard: None,
        },
        Operation::Lock {
            address: at,
            lease: SECOND,
        },
        Operation::Unlock {
            address: at,
            token: 1,
        },
        Operation::Fence,
        Operation::Region {
            name: b"other",
            address: at,
            bytes: 1,
        },
        Operation::Find { name: b"region" },
        Operation::Grant {
            region,
            to: unknown,
            permission: Permission::READ,
        },
        Operation::Revoke { region, from: ONE },
        Operation::Map { region, at: None },
        Operation::Retire { region },
    ];
    for operation in &operations {
        let mut out = Vec::new();
        let result = store.execute(Instant::ZERO, unknown, operation, &mut out);
        assert_eq!(result, Err(Error::NoSuchSpace), "{operation:?}");
        assert!(out.is_empty());
    }
    let to = store.grant(ONE, region, unknown, Permission::READ);
    assert_eq!(to, Err(Error::NoSuchSpace));
    let mut few = Store::new(&Config {
        spaces_max: 1,
        ..Config::new(0)
    });
    assert_eq!(
        (few.open(ONE), few.open(ONE), few.open(TWO)),
        (Ok(()), Ok(()), Err(Error::OutOfMemory))
    );
    assert_eq!(alloc(&mut few, ONE, 1, None), Err(Error::Quota));
}

#[test]
fn regions_and_grants_are_bounded() {
    let mut store = Store::new(&Config::new(1 << 20));
    for n in 0..=GRANTS_MAX as u64 + 2 {
        store.open(SpaceId(n)).unwrap();
    }
    let at = alloc(&mut store, ONE, KIB_4, None).unwrap();
    let name = |n: usize| n.to_le_bytes();
    let regions = (0..REGIONS_MAX).map(|n| store.region(ONE, &name(n), at, 1).unwrap());
    let regions = regions.collect::<Vec<_>>();
    let one_more = store.region(ONE, &name(REGIONS_MAX), at, 1);
    assert_eq!(one_more, Err(Error::Quota));
    let grant = |store: &mut Store, n: usize| {
        let to = SpaceId(2 + n as u64);
        store.grant(ONE, regions[n % 7], to, Permission::READ)
    };
    for n in 0..GRANTS_MAX {
        assert_eq!(grant(&mut store, n), Ok(()));
    }
    assert_eq!(grant(&mut store, GRANTS_MAX), Err(Error::Quota));
    // One that exists may still change, and one that is taken back makes room.
    let changed = store.grant(ONE, regions[0], TWO, Permission::READ_WRITE);
    assert_eq!(changed, Ok(()));
    store.retire(ONE, regions[3]).unwrap();
    assert_eq!(grant(&mut store, GRANTS_MAX), Ok(()));
    for name in [&b""[..], &[7; 65]] {
        assert_eq!(store.region(ONE, name, at, 1), Err(Error::Name));
    }
    let again = store.region(ONE, &name(3), at, 1).unwrap();
    assert!(!regions.contains(&again));
    assert_eq!(store.region(TWO, &name(3), at, 1), Err(Error::Name));
}
