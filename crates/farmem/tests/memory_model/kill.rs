//! A store that is killed at any change of its memory.

use std::time::Duration;

use tare_farmem::memory::{Config, KeepError, Preset, Store, WHOLE_WRITE_MAX};
use tare_farmem::operation::{Operation, PageSize, Permission, RegionId, SpaceId};
use tare_sim::{Instant, Random};

use crate::part::{Machine, Part};

const KIB_4: u64 = 4096;
const BASE: u64 = 0x4000_0000;
const NAMES: [&[u8]; 3] = [
    b"one",
    b"the second",
    b"a name of more than two words of the log",
];

fn config() -> Config {
    let (start, end, page) = (1 << 40, 1 << 41, PageSize::Small);
    Config {
        quota: 64 * KIB_4,
        preset: Some(Preset { start, end, page }),
        key: [3, 5],
        free_pages: 2,
        ..Config::new(96 * KIB_4)
    }
}

/// An operation, with the bytes that it would write.
struct Step {
    space: SpaceId,
    operation: Operation<'static>,
    data: Option<Vec<u8>>,
    quota: Option<u64>,
}

/// Chooses an operation; many are refused.
fn step(random: &mut Random, n: u64) -> Step {
    let space = SpaceId(random.below(3));
    let page = |random: &mut Random| match random.below(5) {
        0 => (1 << 40) + random.below(6) * KIB_4,
        1 => (1 << 46) + random.below(6) * KIB_4,
        _ => BASE + random.below(12) * KIB_4,
    };
    let address = page(random);
    let bytes = 1 + random.below(5 * KIB_4);
    let permission = match random.below(4) {
        0 => Permission::READ,
        _ => Permission::READ_WRITE,
    };
    let (region, to) = (
        RegionId(1 + random.below(n / 8 + 2)),
        SpaceId(random.below(3)),
    );
    let word = address + 8 * random.below(512);
    let mut data = None;
    let operation = match random.below(40) {
        0..=1 => Operation::Open,
        2 => Operation::Close,
        3..=8 => Operation::Alloc {
            bytes,
            page: PageSize::Small,
            at: random.chance(0.8).then_some(address),
            permission,
            sparse: random.chance(0.5),
        },
        9..=12 => Operation::Free { address, bytes },
        13..=14 => Operation::FetchAdd {
            address: word,
            add: n,
            guard: None,
        },
        15 => Operation::Lock {
            address: word,
            lease: Duration::from_secs(1),
        },
        16..=18 => Operation::Region {
            name: NAMES[random.below(3) as usize],
            address,
            bytes,
        },
        19..=21 => Operation::Grant {
            region,
            to,
            permission,
        },
        22 => Operation::Revoke { region, from: to },
        23..=25 => Operation::Map {
            region,
            at: random.chance(0.8).then_some(address),
        },
        26 => Operation::Retire { region },
        _ => {
            data = Some(vec![n as u8 | 1; bytes as usize]);
            Operation::Write {
                address: address + random.below(KIB_4),
                data: &[],
                guard: None,
            }
        }
    };
    let quota = random.chance(0.02).then(|| random.below(80) * KIB_4);
    Step {
        space,
        operation,
        data,
        quota,
    }
}

fn run<M: tare_farmem::memory::Bytes>(store: &mut Store<M>, step: &Step) {
    let mut operation = step.operation;
    if let (Operation::Write { data, .. }, Some(bytes)) = (&mut operation, &step.data) {
        *data = bytes;
    }
    match step.quota {
        Some(quota) => drop(store.set_quota(step.space, quota)),
        None => drop(store.execute(Instant::ZERO, step.space, &operation, &mut Vec::new())),
    }
}

/// Checks that nothing is counted that is not there.
fn check_empty(store: &mut Store<Part>) {
    for space in 0..3 {
        let _ = store.close(SpaceId(space));
    }
    while store.clean(1 << 20) {}
    let counts = store.counts();
    assert_eq!(counts.bytes_free, 96 * KIB_4);
    assert_eq!((counts.entries, counts.displaced), ([0; 3], 0));
    assert_eq!((counts.spaces, counts.regions, counts.locks), (0, 0, 0));
}

#[test]
fn a_store_that_is_killed_anywhere_has_each_operation_as_a_whole_or_not_at_all() {
    let (mut killed, mut dropped, mut completed) = (0, 0, 0);
    for seed in 0..2500 {
        let mut random = Random::new(seed);
        let machine = Machine::default();
        let mut store = machine.open(&config()).unwrap().0;
        // The same without anything kept, which says what each operation does.
        let mut twin = Store::new(&config());
        for space in 0..3 {
            store.open(SpaceId(space)).unwrap();
            twin.open(SpaceId(space)).unwrap();
        }
        let steps = 5 + random.below(80);
        for n in 0..steps {
            let step = step(&mut random, n);
            run(&mut store, &step);
            run(&mut twin, &step);
        }
        let token = store.counts().last_token;
        let mut fuse = match random.below(2) {
            0 => random.below(60),
            _ => random.below(600),
        };
        let (mut n, mut done) = (steps, Some(()));
        let (mut before, mut what) = (twin.describe(), None);
        while done.is_some() && n < steps + 100 {
            let step = step(&mut random, n);
            done = machine.kill_within(&mut fuse, || run(&mut store, &step));
            before = twin.describe();
            run(&mut twin, &step);
            n += 1;
            what = Some((seed, n, step.space, step.operation, step.quota));
        }
        drop(store);

        let (mut store, restored) = machine.open(&config()).unwrap();
        let (found, after) = (store.describe(), twin.describe());
        match done {
            Some(()) => assert_eq!(found, after, "{what:?}"),
            None => {
                killed += 1;
                dropped += u64::from(restored.dropped > 0);
                completed += u64::from(restored.has_completed_write);
                assert!(
                    found == before || found == after,
                    "{what:?}: {found}\n{before}"
                );
            }
        }
        let counts = store.counts();
        assert!(counts.last_token >= token, "{counts:?}");
        assert_eq!(counts.locks, 0);
        check_empty(&mut store);
    }
    // It happened in the middle of something.
    assert!(
        killed > 1500 && dropped > 150 && completed > 150,
        "{killed} {dropped} {completed}"
    );
}

#[test]
fn a_store_that_is_killed_while_it_is_made_or_restored_is_opened_again() {
    let machine = Machine::default();
    let made = (0..).find(|&changes| {
        let opened = machine.kill_before(changes, || drop(machine.open(&config()).unwrap()));
        opened.is_some()
    });
    assert!(made > Some(5), "{made:?}");
    let (mut store, restored) = machine.open(&config()).unwrap();
    assert!(!restored.is_new);
    let mut random = Random::new(1);
    store.open(SpaceId(0)).unwrap();
    for n in 0..300 {
        run(&mut store, &step(&mut random, n));
    }
    // A write, killed when it is under way.
    let data = vec![9; WHOLE_WRITE_MAX];
    store.set_quota(SpaceId(0), 64 * KIB_4).unwrap();
    let at = (1 << 40) + 100 * KIB_4;
    store
        .write(SpaceId(0), at, &[1; 80_000][..WHOLE_WRITE_MAX])
        .unwrap();
    let pages = WHOLE_WRITE_MAX as u64 / KIB_4;
    machine.kill_before(2 + pages / 2, || store.write(SpaceId(0), at, &data));
    drop(store);
    for changes in 0.. {
        let opened = machine.kill_before(changes, || machine.open(&config()).unwrap().0);
        if let Some(mut store) = opened {
            let mut found = vec![0; data.len()];
            store.read_into(SpaceId(0), at, &mut found).unwrap();
            assert!(found == data);
            store.free(SpaceId(0), at, data.len() as u64).unwrap();
            assert!(changes > 5);
            break;
        }
    }
}

#[test]
fn a_damaged_store_is_refused_or_harmless() {
    let machine = Machine::default();
    let mut store = machine.open(&config()).unwrap().0;
    let mut random = Random::new(2);
    (0..3).for_each(|space| store.open(SpaceId(space)).unwrap());
    for n in 0..400 {
        run(&mut store, &step(&mut random, n));
    }
    assert!(store.counts().regions > 0 && store.counts().entries[0] > 20);
    drop(store);
    let (mut refused, mut opened) = (0, 0);
    for seed in 0..3000 {
        let mut random = Random::new(seed);
        let copy = machine.copy();
        let part = random.below(2) as usize;
        copy.edit(part, |bytes| {
            for _ in 0..1 + random.below(4) {
                // Where something is; the parts are mostly empty.
                let used: Vec<usize> = (0..bytes.len() - 64).filter(|&n| bytes[n] != 0).collect();
                let at = used[random.below(used.len() as u64) as usize];
                bytes[at] = match random.below(3) {
                    0 => random.next_u64() as u8,
                    1 => bytes[at] ^ 1 << random.below(8),
                    _ => 0,
                };
            }
        });
        match copy.open(&config()) {
            Err(error) => {
                assert!(!error.to_string().is_empty());
                refused += 1;
            }
            Ok((mut store, _)) => {
                opened += 1;
                for n in 0..50 {
                    run(&mut store, &step(&mut random, n));
                }
                check_empty(&mut store);
            }
        };
    }
    assert!(
        refused > 1000 && opened > 10,
        "{refused} refused, {opened} opened"
    );
}

#[test]
fn a_store_of_another_kind_version_or_length_is_refused_with_what_was_found() {
    let machine = Machine::default();
    drop(machine.open(&config()).unwrap());
    let refused = |edit: fn(&mut [u8]), config: &Config| {
        let copy = machine.copy();
        copy.edit(0, edit);
        let refused = copy.open(config).err().unwrap();
        (refused.to_string(), refused)
    };
    let (text, error) = refused(|bytes| bytes[0] = 3, &config());
    assert!(
        matches!(
            error,
            KeepError::Version {
                found: 3,
                expected: 2
            }
        ),
        "{text}"
    );
    let (text, error) = refused(|bytes| bytes[5] = 2, &config());
    assert!(matches!(error, KeepError::NotKept), "{text}");
    let (text, error) = refused(|bytes| bytes[20] ^= 1, &config());
    assert!(matches!(error, KeepError::Corrupt(_)), "{text}");
    let other = Config::new(95 * KIB_4);
    let (text, error) = refused(|_| (), &other);
    assert!(matches!(error, KeepError::Bytes { .. }), "{text}");
    assert_eq!(
        text,
        "found a store of 393216 bytes, expected 389120: ask for 393216 bytes, or use another file"
    );
    // What an earlier version has kept is of this version from then on.
    let earlier = machine.copy();
    earlier.edit(0, |bytes| bytes[0] = 1);
    assert!(earlier
        .open(&config())
        .is_ok_and(|(_, found)| !found.is_new));
    earlier.edit(0, |bytes| assert_eq!(bytes[0], 2));
    assert!(earlier.open(&config()).is_ok());
    // The key is that of the store.
    let other = Config {
        key: [1, 1],
        ..config()
    };
    assert!(machine.copy().open(&other).is_ok());
}

#[test]
fn a_log_that_is_full_refuses_what_makes_it_longer_and_nothing_else() {
    let machine = Machine::default();
    let config = Config {
        preset: None,
        ..config()
    };
    let mut store = machine.open(&config).unwrap().0;
    let mut spaces = 0;
    while store.open(SpaceId(spaces)).is_ok() {
        spaces += 1;
        assert!(spaces < 1 << 20, "the log is never full");
    }
    assert!(spaces > 1000, "{spaces}");
    let refused = store.open(SpaceId(spaces));
    assert_eq!(refused, Err(tare_farmem::operation::Error::OutOfMemory));
    drop(store);
    let mut store = machine.open(&config).unwrap().0;
    assert_eq!(store.counts().spaces as u64, spaces);
    for round in 0..3000 {
        // Changes that need no room are recorded again and again.
        store.set_quota(SpaceId(5), round).unwrap();
    }
    for space in 6..spaces {
        store.close(SpaceId(space)).unwrap();
    }
    assert_eq!(store.open(SpaceId(spaces)), Ok(()));
    drop(store);
    let store = machine.open(&config).unwrap().0;
    assert_eq!(store.counts().spaces, 7);
    assert!(store.describe().contains("space 5 quota 2999"));
}

#[test]
fn a_log_that_is_full_of_spaces_with_a_preset_can_always_be_emptied() {
    let machine = Machine::default();
    let mut store = machine.open(&config()).unwrap().0;
    let mut spaces = 0;
    while store.open(SpaceId(spaces)).is_ok() {
        spaces += 1;
        assert!(spaces < 1 << 20, "the log is never full");
    }
    assert!(spaces > 1000, "{spaces}");
    // Of a store that begins anew the log says too which tokens there were.
    store.close(SpaceId(0)).unwrap();
    // Also if they have something else from the start by then, or nothing.
    let presets = [config().preset, None, Some(Preset::CLIO)];
    for (round, preset) in presets.into_iter().cycle().take(6).enumerate() {
        for n in 0..600 {
            let space = SpaceId(1 + n * 7 % (spaces - 1));
            assert_eq!(store.close(space), Ok(()), "{n} of round {round}");
            assert_eq!(store.open(space), Ok(()), "{n} of round {round}");
        }
        let before = store.describe();
        drop(store);
        store = machine.open(&Config { preset, ..config() }).unwrap().0;
        assert_eq!(store.describe(), before);
    }
    for space in 1..spaces {
        assert_eq!(store.close(SpaceId(space)), Ok(()));
    }
    check_empty(&mut store);
}

#[test]
fn tokens_after_a_restart_are_greater_than_all_before() {
    let machine = Machine::default();
    let mut last = 0;
    for round in 0..4 {
        let mut store = machine.open(&config()).unwrap().0;
        store.open(SpaceId(1)).unwrap();
        for _ in 0..10 * round {
            let (now, lease) = (Instant::ZERO, Duration::from_secs(1));
            let token = store.lock(now, SpaceId(1), 1 << 40, lease).unwrap();
            assert!(token > last, "{token} after {last}");
            last = token;
            if round != 3 {
                store.unlock(now, SpaceId(1), 1 << 40, token).unwrap();
            } else {
                // A lock that is held is not restored.
                break;
            }
        }
    }
    let store = machine.open(&config()).unwrap().0;
    assert_eq!(store.counts().locks, 0);
}
