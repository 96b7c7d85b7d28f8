//! Allocation, translation and freeing.

use std::collections::BTreeMap;

use tare_farmem::memory::{Config, Preset, Store, PAGES_MAX};
use tare_farmem::operation::{Error, PageSize, Permission, SpaceId};
use tare_sim::{Instant, Random};

use super::{alloc, read, store, used, BASE, KIB_4, ONE, SECOND, TWO};

const MIB_2: u64 = 2 << 20;

fn sparse(store: &mut Store, space: SpaceId, bytes: u64, at: u64) {
    let (page, permission) = (PageSize::Small, Permission::READ_WRITE);
    let result = store.alloc(space, bytes, page, Some(at), permission, true);
    assert_eq!(result, Ok(at));
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
fn a_space_that_is_named_has_its_own_quota_whenever_it_is_made() {
    let config = Config {
        quota: 4 * KIB_4,
        quotas: BTreeMap::from([(TWO, 8 * KIB_4)]),
        ..Config::new(1 << 20)
    };
    let mut store = Store::in_memory(&config, |bytes| Ok::<_, ()>(vec![0; bytes])).unwrap();
    for _ in 0..2 {
        store.open(ONE).unwrap();
        store.open(TWO).unwrap();
        for (space, quota) in [(ONE, 4), (TWO, 8)] {
            let more = alloc(&mut store, space, (quota + 1) * KIB_4, None);
            assert_eq!(more, Err(Error::Quota));
            assert!(alloc(&mut store, space, quota * KIB_4, None).is_ok());
            store.close(space).unwrap();
        }
    }
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

/// The place of a page in the page table depends on the secret key, and so does it whether spaces
/// meet there. Four of a quarter of the pool each do so with one key in sixteen.
#[test]
fn the_quotas_of_a_full_pool_are_available_at_given_addresses_whatever_the_key() {
    let frames = 1024;
    let fill = |random: &mut Random, config: &Config, spaces: u64, at: &dyn Fn(u64) -> u64| {
        let key = [random.next_u64(), random.next_u64()];
        let config = Config {
            key,
            quota: config.bytes / spaces,
            ..config.clone()
        };
        let mut store = Store::new(&config);
        for n in 0..spaces {
            store.open(SpaceId(n)).unwrap();
        }
        let (mut displaced, pages) = (0, frames / spaces);
        for n in 0..spaces {
            if at(1) - at(0) == KIB_4 {
                let result = alloc(&mut store, SpaceId(n), config.quota, Some(at(0)));
                assert_eq!(result, Ok(at(0)), "space {n}, key {key:x?}");
            } else {
                for page in 0..pages {
                    let result = alloc(&mut store, SpaceId(n), KIB_4, Some(at(page)));
                    assert_eq!(result, Ok(at(page)), "space {n}, key {key:x?}");
                }
            }
            displaced = store.counts().displaced.max(displaced);
        }
        for n in 0..spaces {
            for page in 0..pages {
                let word = (n * pages + page).to_le_bytes();
                store.write(SpaceId(n), at(page) + 8, &word).unwrap();
            }
        }
        assert_eq!(store.counts().bytes_free, 0);
        for n in 0..spaces {
            for page in 0..pages {
                let word = (n * pages + page).to_le_bytes();
                let found = read(&store, SpaceId(n), at(page) + 8, 8);
                assert_eq!(found, Ok(word.to_vec()));
            }
        }
        for n in 0..spaces {
            store.close(SpaceId(n)).unwrap();
        }
        while store.clean(1 << 20) {}
        assert_eq!(
            (store.counts().displaced, store.counts().entries),
            (0, [0; 3])
        );
        displaced
    };
    let mut random = Random::new(14);
    let config = Config::new(frames * KIB_4);
    let mut crowded = 0;
    for _ in 0..400 {
        let displaced = fill(&mut random, &config, 4, &|page| BASE + page * KIB_4);
        crowded += u64::from(displaced > 32);
    }
    assert!(crowded > 10, "spaces met with {crowded} keys only");
    // Pages that lie as far apart as the table is long: the sixteen of a space have one home.
    for _ in 0..40 {
        fill(&mut random, &config, 64, &|page| {
            BASE + page * frames * KIB_4
        });
    }
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
