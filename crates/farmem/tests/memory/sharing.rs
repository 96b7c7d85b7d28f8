//! Locks, regions, and the borders between spaces.

use std::time::Duration;

use tare_farmem::memory::{Config, Store, GRANTS_MAX, LOCKS_MAX, REGIONS_MAX};
use tare_farmem::operation::{
    Error, Guard, Operation, PageSize, Permission, SpaceId, Value, LEASE_MAX,
};
use tare_sim::Instant;

use super::{alloc, read, store, BASE, KIB_4, ONE, SECOND, TWO};

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
fn a_space_that_loses_a_mapping_loses_the_locks_it_took_there() {
    let mut store = store(1 << 20);
    let at = alloc(&mut store, ONE, KIB_4, None).unwrap();
    let own = alloc(&mut store, TWO, KIB_4, None).unwrap();
    let region = store.region(ONE, b"shared", at, KIB_4).unwrap();
    let now = Instant::ZERO;
    for is_freed in [false, true] {
        let write = Permission::READ_WRITE;
        store.grant(ONE, region, TWO, write).unwrap();
        let mapped = store.map(TWO, region, None).unwrap();
        let there = store.lock(now, TWO, mapped + 8, LEASE_MAX).unwrap();
        let elsewhere = store.lock(now, TWO, own, LEASE_MAX).unwrap();
        let owners = store.lock(now, ONE, at, LEASE_MAX).unwrap();
        assert!(matches!(
            store.lock(now, ONE, at + 8, SECOND),
            Err(Error::Locked { .. })
        ));
        match is_freed {
            true => store.free(TWO, mapped, KIB_4).unwrap(),
            false => store.revoke(ONE, region, TWO).unwrap(),
        }
        let again = store.lock(now, ONE, at + 8, SECOND).unwrap();
        assert!(again > there);
        store.unlock(now, ONE, at + 8, again).unwrap();
        store.unlock(now, TWO, own, elsewhere).unwrap();
        store.unlock(now, ONE, at, owners).unwrap();
    }
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
    for n in 0..100 {
        store.lock(now, TWO, other + 8 * n, SECOND / 2).unwrap();
    }
    assert_eq!(store.counts().locks, LOCKS_MAX + 100);
    // Expired ones make room for their space, and are no locks for others, but of those that expire
    // together only some are forgotten at a time, the oldest first, and one of a full space.
    assert!(store.lock(now + SECOND, ONE, one_more, SECOND).is_ok());
    assert_eq!(store.counts().locks, LOCKS_MAX + 100 - 64);
    assert!(store
        .lock(now + SECOND, TWO, other + 8 * 99, SECOND)
        .is_ok());
    assert_eq!(store.counts().locks, LOCKS_MAX + 100 - 2 * 64 + 1);
    store.free(TWO, other, KIB_4).unwrap();
    let token = store.lock(now + SECOND, ONE, at, SECOND).unwrap();
    store.free(ONE, at, KIB_4).unwrap();
    // Those of the pages that are left.
    assert_eq!(store.counts().locks, LOCKS_MAX - KIB_4 as usize / 8 + 1);
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
fn a_lock_that_has_expired_is_free_before_it_is_forgotten() {
    let (mut store, now) = (store(1 << 20), Instant::ZERO);
    let at = alloc(&mut store, ONE, KIB_4, None).unwrap();
    let mut tokens = Vec::new();
    for n in 0..300 {
        // The last one expires last.
        let lease = SECOND + Duration::from_nanos(n);
        tokens.push(store.lock(now, ONE, at + 8 * n, lease).unwrap());
    }
    let last = at + 8 * 299;
    let until = now + SECOND + Duration::from_nanos(299);
    let retry_after = Duration::from_nanos(1);
    let early = store.lock(until - retry_after, TWO, last, SECOND);
    assert!(matches!(early, Err(Error::Unmapped { .. })));
    let early = store.lock(until - retry_after, ONE, last, SECOND);
    assert_eq!(early, Err(Error::Locked { retry_after }));
    let token = store.lock(until, ONE, last, SECOND).unwrap();
    assert!(token > tokens[299]);
    assert!(store.counts().locks > 100);
    let stale = store.unlock(until, ONE, last, tokens[299]);
    assert_eq!(stale, Err(Error::StaleToken));
    assert_eq!(store.unlock(until, ONE, last, token), Ok(()));
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
    while store.clean(1 << 20) {}
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
fn a_space_that_maps_much_leaves_room_in_the_page_table_for_others() {
    let (all, quota) = (4096 * KIB_4, 1024 * KIB_4);
    let mut store = Store::new(&Config {
        quota,
        ..Config::new(all)
    });
    (1..=4).for_each(|n| store.open(SpaceId(n)).unwrap());
    let at = alloc(&mut store, ONE, quota, Some(BASE)).unwrap();
    let regions = (0..16u64).map(|n| {
        let region = store.region(ONE, &n.to_le_bytes(), at, quota).unwrap();
        let permission = Permission::READ_WRITE;
        store.grant(ONE, region, ONE, permission).unwrap();
        region
    });
    let regions: Vec<_> = regions.collect();
    // As much as its quota, beside as much memory of its own.
    let place = |n: usize| Some((n as u64 + 1) << 40);
    assert_eq!(store.map(ONE, regions[0], place(0)), Ok(1 << 40));
    for (n, region) in regions.iter().enumerate().skip(1) {
        let refused = store.map(ONE, *region, place(n));
        assert_eq!(refused, Err(Error::Quota), "mapping {n}");
    }
    for n in 2..=4 {
        let at = alloc(&mut store, SpaceId(n), quota, Some(BASE));
        assert_eq!(at, Ok(BASE), "space {n}");
    }
    // What ends a mapping makes room for another one.
    let part = store.region(ONE, b"part", at, quota / 4).unwrap();
    store.grant(ONE, part, ONE, Permission::READ).unwrap();
    let ends: [&dyn Fn(&mut Store); 3] = [
        &|store| store.free(ONE, 1 << 40, quota).unwrap(),
        &|store| store.revoke(ONE, regions[1], ONE).unwrap(),
        &|store| store.retire(ONE, regions[2]).unwrap(),
    ];
    for (n, end) in ends.into_iter().enumerate() {
        assert_eq!(store.map(ONE, part, None), Err(Error::Quota));
        end(&mut store);
        for _ in 0..5 {
            let mapped = store.map(ONE, part, None).unwrap();
            store.free(ONE, mapped, quota / 4).unwrap();
        }
        let next = store.map(ONE, regions[n + 1], Some(1 << 40));
        assert_eq!(next, Ok(1 << 40));
    }
    // A space without a quota may map as much as there is.
    store.set_quota(ONE, u64::MAX).unwrap();
    let mapped = regions[4..].iter().enumerate();
    let mapped = mapped.map(|(n, region)| store.map(ONE, *region, place(n + 4)));
    assert_eq!(mapped.take_while(Result::is_ok).count(), 3);
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
