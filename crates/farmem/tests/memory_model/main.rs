//! The memory of a node against a plain model: a map of bytes, and one piece for each 4 KiB of each
//! space; also when the store is kept and the process begins anew.

mod kill;
mod model;
mod part;
mod parts;

use std::time::Duration;

use proptest::prelude::*;
use tare_farmem::memory::{Config, KeepError, Store};
use tare_farmem::operation::{
    Error, Guard, Operation, PageSize, Permission, RegionId, SpaceId, Value,
};
use tare_sim::Instant;

use model::{Model, KIB_4, NAMES, QUOTA};
use part::{Machine, Part};

const BASE: u64 = 0x4000_0000;

/// An operation before it is known which addresses, tokens and regions there are.
#[derive(Clone, Debug)]
enum Step {
    Open,
    Close,
    Alloc(u64, bool, Option<Spot>, Permission, bool),
    /// Pages of 2 MiB, written and freed, and pages of 4 KiB at a spot within them.
    Replace(Spot, u64, bool, bool),
    Free(Spot, u64),
    Read(Spot, u32),
    Write(Spot, u8, usize, Option<(Spot, usize)>),
    CompareAndSwap(Spot, bool, u64),
    FetchAdd(Spot, u64, Option<(Spot, usize)>),
    Lock(Spot, u64),
    Unlock(Spot, usize),
    Region(usize, Spot, u64),
    Find(usize),
    Grant(usize, u64, Permission),
    Revoke(usize, u64),
    Map(usize, Option<Spot>),
    Retire(usize),
    Wait(u64),
    Clean(u64),
    Restart,
}

/// An address: near the fixed ones, or near one that the node chose.
#[derive(Clone, Copy, Debug)]
struct Spot {
    chosen: Option<usize>,
    page: u64,
    offset: u64,
}

fn spot(offset: impl Strategy<Value = u64>) -> impl Strategy<Value = Spot> {
    // Twelve pages of 4 KiB, and the first and last one of each of three pages of 2 MiB behind
    // them.
    let page = prop_oneof![8 => 0..4u64, 4 => 0..12u64, 2 => 512..516u64, 1 => 1023..1026u64, 1 => 1535..1538u64];
    let chosen = prop_oneof![3 => Just(None), 1 => (0..8usize).prop_map(Some)];
    (chosen, page, offset).prop_map(|(chosen, page, offset)| Spot {
        chosen,
        page,
        offset,
    })
}

fn page_spot() -> impl Strategy<Value = Spot> {
    spot(prop_oneof![30 => Just(0u64), 1 => Just(8u64)])
}

fn word_spot() -> impl Strategy<Value = Spot> {
    spot(prop_oneof![10 => Just(0u64), 10 => Just(4088u64), 5 => Just(2048u64), 1 => Just(4093u64)])
}

fn byte_spot() -> impl Strategy<Value = Spot> {
    spot(prop_oneof![
        Just(0u64),
        Just(4095u64),
        4080..4096u64,
        0..4096u64
    ])
}

fn permission() -> impl Strategy<Value = Permission> {
    prop_oneof![
        6 => Just(Permission::READ_WRITE),
        1 => Just(Permission::READ),
        1 => Just(Permission::WRITE)
    ]
}

fn length() -> impl Strategy<Value = u64> {
    prop_oneof![1..17u64, 4090..4100u64, 0..13_000u64]
}

fn pages() -> impl Strategy<Value = u64> {
    prop_oneof![10 => 1..20_000u64, 1 => Just(0u64), 2 => Just(1u64 << 21)]
}

fn guard() -> impl Strategy<Value = Option<(Spot, usize)>> {
    prop_oneof![3 => Just(None), 1 => (word_spot(), 0..3usize).prop_map(Some)]
}

fn step() -> impl Strategy<Value = Step> {
    let at = || prop_oneof![3 => page_spot().prop_map(Some), 1 => Just(None)];
    prop_oneof![
        2 => Just(Step::Open),
        1 => Just(Step::Close),
        12 => (pages(), prop::bool::weighted(0.2), at(), permission(), any::<bool>())
            .prop_map(|(bytes, large, at, permission, sparse)| {
                Step::Alloc(bytes, large, at, permission, sparse)
            }),
        3 => (page_spot(), pages(), any::<bool>(), any::<bool>())
            .prop_map(|(at, bytes, sparse, again)| Step::Replace(at, bytes, sparse, again)),
        8 => (page_spot(), pages()).prop_map(|(at, bytes)| Step::Free(at, bytes)),
        30 => (byte_spot(), length()).prop_map(|(at, len)| Step::Read(at, len as u32)),
        30 => (byte_spot(), any::<u8>(), length(), guard())
            .prop_map(|(at, byte, len, guard)| Step::Write(at, byte, len as usize, guard)),
        5 => (word_spot(), any::<bool>(), any::<u64>())
            .prop_map(|(at, is_right, new)| Step::CompareAndSwap(at, is_right, new)),
        5 => (word_spot(), any::<u64>(), guard())
            .prop_map(|(at, add, guard)| Step::FetchAdd(at, add, guard)),
        8 => (word_spot(), 0..40u64).prop_map(|(at, lease)| Step::Lock(at, lease)),
        4 => (word_spot(), 0..4usize).prop_map(|(at, token)| Step::Unlock(at, token)),
        6 => (0..3usize, page_spot(), prop_oneof![9 => 1..9000u64, 1 => Just(2u64 << 21)])
            .prop_map(|(name, at, bytes)| Step::Region(name, at, bytes)),
        2 => (0..3usize).prop_map(Step::Find),
        8 => (0..3usize, 0..3u64, permission()).prop_map(|(n, to, how)| Step::Grant(n, to, how)),
        2 => (0..3usize, 0..3u64).prop_map(|(n, from)| Step::Revoke(n, from)),
        8 => (0..3usize, at()).prop_map(|(n, at)| Step::Map(n, at)),
        1 => (0..3usize).prop_map(Step::Retire),
        8 => (0..30u64).prop_map(Step::Wait),
        4 => (0..20_000u64).prop_map(Step::Clean),
        2 => Just(Step::Restart),
    ]
}

/// The store and the model, side by side.
struct Both {
    machine: Machine,
    /// The settings of the store that survives the process, if it does.
    kept: Option<Config>,
    store: Option<Store<Part>>,
    model: Model,
    now: Instant,
    chosen: Vec<u64>,
    tokens: Vec<u64>,
    named: [RegionId; 3],
}

impl Both {
    fn new(is_kept: bool, free_pages: u64) -> Both {
        let config = Config {
            free_pages,
            quota: QUOTA,
            ..Config::new(32 << 20)
        };
        let machine = Machine::default();
        let mut number = 0..;
        let memory = |len| Ok::<_, KeepError>(machine.part(number.next().unwrap(), len));
        let store = match is_kept {
            true => machine.open(&config).map(|(store, _)| store),
            false => Store::in_memory(&config, memory),
        };
        let mut both = Both {
            store: Some(store.unwrap()),
            machine,
            kept: is_kept.then_some(config),
            model: Model::default(),
            now: Instant::ZERO,
            chosen: vec![1 << 50],
            tokens: vec![7],
            named: [RegionId(u64::MAX); 3],
        };
        // Other bytes than zero in all of memory, from a space that is gone.
        let (gone, page, permission) = (SpaceId(9), PageSize::Large, Permission::READ_WRITE);
        let store = both.store();
        store.open(gone).unwrap();
        store.set_quota(gone, 32 << 20).unwrap();
        let at = store.alloc(gone, 32 << 20, page, None, permission, false);
        store.write(gone, at.unwrap(), &[0xff; 32 << 20]).unwrap();
        store.close(gone).unwrap();
        // Something to begin with: pages of all three, and one that two share.
        (0..3).for_each(|space| both.execute(space, &Operation::Open));
        let (page, permission) = (
            Spot {
                chosen: None,
                page: 0,
                offset: 0,
            },
            Permission::READ_WRITE,
        );
        let sparse = Spot { page: 6, ..page };
        for space in 0..3 {
            both.run(
                space,
                &Step::Alloc(4 * KIB_4, false, Some(page), permission, false),
            );
            both.run(
                space,
                &Step::Alloc(4 * KIB_4, false, Some(sparse), permission, true),
            );
        }
        both.run(0, &Step::Region(0, page, 1));
        both.run(0, &Step::Grant(0, 1, permission));
        both.run(1, &Step::Map(0, Some(Spot { page: 4, ..page })));
        both
    }

    fn store(&mut self) -> &mut Store<Part> {
        self.store.as_mut().unwrap()
    }

    /// Ends the process, and starts another one with what is kept.
    fn restart(&mut self) {
        let Some(config) = &self.kept else {
            return;
        };
        let store = self.store.take().unwrap();
        let is_freed = store.counts().spaces_freeing == 0;
        let locks = store.counts().locks as u64;
        let metadata = store.counts().metadata_bytes - 256 * locks;
        let before = store.describe();
        drop(store);
        let (store, restored) = self.machine.open(config).unwrap();
        assert_eq!(store.describe(), before);
        assert!(!restored.is_new);
        if is_freed {
            assert_eq!(
                store.counts().metadata_bytes,
                metadata,
                "locks are not kept"
            );
            assert_eq!(restored.dropped, 0);
        }
        self.store = Some(store);
        self.model.locks.clear();
    }

    fn address(&self, spot: Spot) -> u64 {
        let base = spot
            .chosen
            .map_or(BASE, |n| self.chosen[n % self.chosen.len()]);
        base + spot.page * KIB_4 + spot.offset
    }

    /// A token: the last one, one before it, or one that never was.
    fn token(&self, back: usize) -> u64 {
        let index = self.tokens.len().checked_sub(back + 1);
        index.map_or(u64::MAX, |index| self.tokens[index])
    }

    fn guard(&self, guard: Option<(Spot, usize)>) -> Option<Guard> {
        guard.map(|(spot, back)| Guard {
            lock: self.address(spot),
            token: self.token(back),
        })
    }

    fn run(&mut self, space: u64, step: &Step) {
        match *step {
            Step::Open => self.execute(space, &Operation::Open),
            Step::Close => self.execute(space, &Operation::Close),
            Step::Alloc(bytes, large, at, permission, sparse) => {
                let page = [PageSize::Small, PageSize::Large][usize::from(large)];
                let at = at.map(|spot| self.address(spot) & !(u64::from(large) * 0x1f_ffff));
                let operation = Operation::Alloc {
                    bytes,
                    page,
                    at,
                    permission,
                    sparse,
                };
                // Half of them are prepared, and some of these only in part, or for nothing.
                let calls = [0, bytes as usize % 5, 0, usize::MAX][bytes as usize / 5 % 4];
                let space_id = SpaceId(space);
                let mut ahead = (0..calls).map(|_| self.store().prepare(space_id, &operation));
                let _ = ahead.find(|is_done| *is_done);
                if bytes % 11 != 0 {
                    self.execute(space, &operation);
                }
            }
            Step::Replace(spot, bytes, sparse, again) => {
                let permission = Permission::READ_WRITE;
                // Behind the pages that there are from the start.
                let spot = Spot {
                    page: spot.page % 512 + 512 * (1 + bytes % 2),
                    ..spot
                };
                let large = Spot {
                    page: spot.page & !511,
                    offset: 0,
                    ..spot
                };
                self.run(
                    space,
                    &Step::Alloc(2 << 21, true, Some(large), permission, sparse),
                );
                for page in [large.page, spot.page, large.page + 512] {
                    let spot = Spot { page, ..large };
                    self.run(space, &Step::Write(spot, page as u8, 2000, None));
                }
                self.run(space, &Step::Free(large, 2 << 21));
                self.run(
                    space,
                    &Step::Alloc(bytes, false, Some(spot), permission, again),
                );
                self.run(space, &Step::Read(spot, 5000));
            }
            Step::Free(spot, bytes) => {
                let address = self.address(spot);
                self.execute(space, &Operation::Free { address, bytes });
            }
            Step::Read(spot, len) => {
                let address = self.address(spot);
                self.execute(space, &Operation::Read { address, len });
            }
            Step::Write(spot, byte, len, guard) => {
                let data = (0..len).map(|n| byte.wrapping_add(n as u8) | 1);
                let operation = Operation::Write {
                    address: self.address(spot),
                    data: &data.collect::<Vec<_>>(),
                    guard: self.guard(guard),
                };
                self.execute(space, &operation);
            }
            Step::CompareAndSwap(spot, is_right, new) => {
                let address = self.address(spot);
                let expected = match self.model.piece(space, address) {
                    Ok(_) if is_right && address.is_multiple_of(8) => {
                        self.model.word(space, address)
                    }
                    _ => 0,
                };
                let operation = Operation::CompareAndSwap {
                    address,
                    expected,
                    new,
                    guard: None,
                };
                self.execute(space, &operation);
            }
            Step::FetchAdd(spot, add, guard) => {
                let operation = Operation::FetchAdd {
                    address: self.address(spot),
                    add,
                    guard: self.guard(guard),
                };
                self.execute(space, &operation);
            }
            Step::Lock(spot, lease) => {
                let operation = Operation::Lock {
                    address: self.address(spot),
                    lease: Duration::from_nanos(lease),
                };
                self.execute(space, &operation);
            }
            Step::Unlock(spot, back) => {
                let operation = Operation::Unlock {
                    address: self.address(spot),
                    token: self.token(back),
                };
                self.execute(space, &operation);
            }
            Step::Region(name, spot, bytes) => {
                let operation = Operation::Region {
                    name: NAMES[name],
                    address: self.address(spot),
                    bytes,
                };
                self.execute(space, &operation);
            }
            Step::Find(name) => self.execute(space, &Operation::Find { name: NAMES[name] }),
            Step::Grant(name, to, permission) => {
                let operation = Operation::Grant {
                    region: self.named[name],
                    to: SpaceId(to),
                    permission,
                };
                self.execute(space, &operation);
            }
            Step::Revoke(name, from) => {
                let (region, from) = (self.named[name], SpaceId(from));
                self.execute(space, &Operation::Revoke { region, from });
            }
            Step::Map(name, at) => {
                let (region, at) = (self.named[name], at.map(|spot| self.address(spot)));
                self.execute(space, &Operation::Map { region, at });
            }
            Step::Retire(name) => {
                let region = self.named[name];
                self.execute(space, &Operation::Retire { region });
            }
            Step::Wait(ns) => self.now += Duration::from_nanos(ns),
            Step::Clean(bytes) => {
                self.store().clean(bytes);
            }
            Step::Restart => self.restart(),
        }
    }

    fn execute(&mut self, space: u64, operation: &Operation<'_>) {
        let (mut out, mut expected_out) = (vec![9], vec![9]);
        let before = self.store().counts();
        let now = self.now;
        let result = self
            .store()
            .execute(now, SpaceId(space), operation, &mut out);
        let chosen = result.ok();
        match (operation, result) {
            // Only the store knows which address it chooses, so a refusal has to be predicted
            // first.
            (Operation::Alloc { at: None, .. } | Operation::Map { at: None, .. }, Ok(value)) => {
                let Value::Address(at) = value else {
                    panic!("{value:?}");
                };
                self.chosen.push(at);
            }
            (_, Ok(Value::Token(token))) => self.tokens.push(token),
            (&Operation::Region { name, .. }, Ok(Value::Region(id))) => {
                let n = NAMES.iter().position(|known| *known == name).unwrap();
                self.named[n] = id;
            }
            _ => (),
        }
        let chosen = chosen.or(Some(match operation {
            Operation::Region { .. } => Value::Region(RegionId(0)),
            Operation::Lock { .. } => Value::Token(u64::MAX),
            _ => Value::Address(1 << 60),
        }));
        let expected = self
            .model
            .execute(self.now, space, operation, chosen, &mut expected_out);
        // What is wrong in itself may be refused before the space is looked for.
        let is_wrong = matches!(
            result,
            Err(Error::Misaligned { multiple: 8 } | Error::Length | Error::Lease)
        );
        if !(expected == Err(Error::NoSuchSpace) && is_wrong) {
            assert_eq!(result, expected, "{operation:?} of space {space}");
        }
        assert_eq!(out, expected_out, "{operation:?} of space {space}");
        if result.is_err() {
            let after = self.store().counts();
            let locks = before.locks;
            if before.spaces_freeing == 0 {
                assert_eq!(after.entries, before.entries, "{operation:?}: {result:?}");
            }
            assert!(after.locks <= locks, "{operation:?}: {result:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_operation_does_what_it_does_to_a_map_of_bytes(
        is_kept in any::<bool>(), free_pages in 0..4u64, steps in prop::collection::vec((0..3u64, step()), 1..150)
    ) {
        let mut both = Both::new(is_kept, [0, 1, 3, 2048][free_pages as usize]);
        for (space, step) in &steps {
            both.run(*space, step);
        }
        // In the end everything can be freed, and then nothing is left.
        for space in 0..3 {
            both.run(space, &Step::Open);
            both.run(space, &Step::Close);
        }
        while both.store().clean(1 << 20) {}
        let counts = both.store().counts();
        prop_assert_eq!(counts.spaces_freeing, 0);
        prop_assert_eq!(counts.bytes_free, 32 << 20);
        prop_assert_eq!(counts.entries, [0; 3]);
        prop_assert_eq!(counts.metadata_bytes, 0);
        prop_assert_eq!((counts.spaces, counts.regions, counts.locks, counts.displaced), (0, 0, 0, 0));
    }
}
