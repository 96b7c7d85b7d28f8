//! Pages of 1 GiB in parts, in a store that is killed.

use tare_farmem::memory::{Config, KeepError, Store};
use tare_farmem::operation::{Operation, PageSize, Permission, SpaceId};

use crate::part::{Machine, Part};

const ONE: SpaceId = SpaceId(1);
const AT: u64 = 1 << 40;
const GIB: u64 = 1 << 30;
const MIB_2: u64 = 2 << 20;

fn config() -> Config {
    Config {
        key: [3, 5],
        ..Config::new(GIB)
    }
}

/// A machine with a page of 1 GiB that was full of bytes, was freed, and is allocated again.
fn used(sparse: bool) -> Machine {
    let machine = Machine::default();
    let (mut store, _) = machine.open(&config()).unwrap();
    store.open(ONE).unwrap();
    let alloc = |store: &mut Store<Part>, sparse| {
        let permission = Permission::READ_WRITE;
        store.alloc(ONE, GIB, PageSize::Huge, Some(AT), permission, sparse)
    };
    alloc(&mut store, false).unwrap();
    let data = vec![0xa5; 32 * MIB_2 as usize];
    for at in (AT..AT + GIB).step_by(data.len()) {
        store.write(ONE, at, &data).unwrap();
    }
    store.free(ONE, AT, GIB).unwrap();
    alloc(&mut store, sparse).unwrap();
    drop(store);
    machine
}

/// Checks that all bytes of the page are zero, but for these.
fn check(store: &Store<Part>, written: &[u64]) {
    let (mut data, zeros) = (vec![1; 32 * MIB_2 as usize], vec![0; 32 * MIB_2 as usize]);
    for start in (0..GIB).step_by(data.len()) {
        store.read_into(ONE, AT + start, &mut data).unwrap();
        for place in written {
            if let Some(found) = place
                .checked_sub(start)
                .and_then(|n| data.get_mut(n as usize))
            {
                assert_eq!(*found, 7, "{place:#x}");
                *found = 0;
            }
        }
        assert!(data == zeros, "{start:#x}");
    }
}

#[test]
fn a_page_in_parts_is_the_same_after_a_process_that_was_killed_anywhere() {
    for sparse in [false, true] {
        let machine = used(sparse);
        let mut written = Vec::new();
        // 512 changes are the zeroing of a part.
        for (n, changes) in (1..).zip([300, 511, 512, 513, 514, 515, 516, 517, 518]) {
            let place = 3 * n * MIB_2 + MIB_2 - 1;
            let (mut store, restored) = machine.open(&config()).unwrap();
            assert!(!restored.is_new);
            let done = machine.kill_before(changes, || store.write(ONE, AT + place, &[7]));
            drop(store);
            let (store, _) = machine.open(&config()).unwrap();
            let mut byte = [0];
            store.read_into(ONE, AT + place, &mut byte).unwrap();
            assert!(done.is_none() || byte == [7]);
            written.extend((byte == [7]).then_some(place));
            if !written.is_empty() {
                assert_eq!(store.spaces_after(None, 1)[0].bytes, GIB);
            }
            if changes % 2 == 0 {
                check(&store, &written);
            }
        }
        assert!((2..9).contains(&written.len()), "{}", written.len());
        // The making of a region enters all parts, four changes for each, and then joins them: one
        // change, and one for each that is removed.
        let (mut store, _) = machine.open(&config()).unwrap();
        for changes in [1000, 1000, 300] {
            while store.clean(16 * MIB_2) {}
            let done = machine.kill_before(changes, || store.region(ONE, b"all", AT, GIB));
            assert!(done.is_none(), "{changes}");
            drop(store);
            store = machine.open(&config()).unwrap().0;
            check(&store, &written);
        }
        store.region(ONE, b"all", AT, GIB).unwrap();
        check(&store, &written);
        assert_eq!(store.counts().entries, [0, 0, 1]);
        // Nothing is counted that is not there.
        store.close(ONE).unwrap();
        while store.clean(16 * MIB_2) {}
        let counts = store.counts();
        assert_eq!((counts.entries, counts.bytes_free), ([0; 3], GIB));
    }
}

#[test]
fn the_description_of_a_page_is_that_of_its_bytes_whether_it_is_in_parts_or_not() {
    let machine = used(true);
    let (mut in_parts, _) = machine.open(&config()).unwrap();
    let mut whole = Store::new(&config());
    whole.open(ONE).unwrap();
    let (size, permission) = (PageSize::Huge, Permission::READ_WRITE);
    whole
        .alloc(ONE, GIB, size, Some(AT), permission, true)
        .unwrap();
    assert_eq!(in_parts.describe(), whole.describe());
    let mut last = whole.describe();
    // The first part has no memory in the beginning, and the last one no neighbour.
    for part in [4, 9, 0, 511] {
        let at = AT + part * MIB_2 + 5000;
        in_parts.write(ONE, at, &[7]).unwrap();
        let described = in_parts.describe();
        assert_ne!(described, last, "{part}");
        whole.write(ONE, at, &[7]).unwrap();
        assert_eq!(described, whole.describe(), "{part}");
        last = described;
    }
    assert_eq!(in_parts.counts().entries, [0, 4, 0]);
    assert_eq!(whole.counts().entries, [0, 0, 1]);
    drop(in_parts);
    let (in_parts, _) = machine.open(&config()).unwrap();
    assert_eq!(in_parts.describe(), last);
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let machine = used(false);
    let (mut store, _) = machine.open(&config()).unwrap();
    for part in [4, 9] {
        store.write(ONE, AT + part * MIB_2, &[7]).unwrap();
    }
    drop(store);
    // The frame of the entry of the first one.
    machine.edit(1, |table| {
        let word = ((AT >> 21) + 4) << 12;
        let mut lines = table.chunks_exact_mut(64);
        let found = lines.find_map(|line| {
            let way = (0..3).find(|way| {
                let at = 8 * (3 + way);
                let value = u64::from_ne_bytes(line[at..at + 8].try_into().unwrap());
                value & !0xfff == word && value & 0xc == 4
            })?;
            Some((line, way))
        });
        let (line, way) = found.unwrap();
        line[4 * (12 + way)..][..4].copy_from_slice(&(5u32 * 512).to_ne_bytes());
    });
    let refused = machine.open(&config()).map(drop);
    assert!(matches!(refused, Err(KeepError::Corrupt(_))), "{refused:?}");
}

#[test]
fn a_region_that_is_refused_is_not_prepared() {
    const PAGE: u64 = 4096;
    let mut store = Store::new(&Config::new(16 * PAGE));
    store.open(ONE).unwrap();
    let permission = Permission::READ_WRITE;
    // Fewer pages have memory than the sparse range is long.
    let allocated = store.alloc(ONE, 32 * PAGE, PageSize::Small, Some(AT), permission, true);
    allocated.unwrap();
    store.region(ONE, b"one", AT, PAGE).unwrap();
    let used = |store: &Store| (store.counts().entries, store.counts().bytes_free);
    let before = used(&store);
    for (name, pages) in [
        (&b"one"[..], 2),
        (&b""[..], 2),
        (&[b'n'; 65][..], 2),
        (&b"two"[..], 17),
    ] {
        let (address, bytes) = (AT + PAGE, pages * PAGE);
        let region = Operation::Region {
            name,
            address,
            bytes,
        };
        assert!(store.prepare(ONE, &region), "{name:?}");
        assert_eq!(used(&store), before, "{name:?}");
        assert!(store.region(ONE, name, address, bytes).is_err(), "{name:?}");
        assert_eq!(used(&store), before, "{name:?}");
    }
    let (name, address, bytes) = (b"two", AT + PAGE, 2 * PAGE);
    assert!(store.prepare(
        ONE,
        &Operation::Region {
            name,
            address,
            bytes
        }
    ));
    assert_eq!(used(&store).1, before.1 - 2 * PAGE);
}
