//! The `shm` transport between real clients and a node, in threads and in processes.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tare_farmem::memory::{Config, Store};
use tare_farmem::operation::{Error, Guard, Operation, PageSize, Permission, SpaceId, Value};
use tare_farmem::protocol::{Completion, Failure, OwnedWrite, Secret, SubmitError};
use tare_farmem::transport::shm::{
    Client, ClientConfig, ConnectError, Counters, Refusal, Server, ServerConfig, Violation,
    PART_MAX,
};
use tare_farmem::transport::Channel;
use tare_sim::Random;

#[path = "shm/asynchronous.rs"]
mod asynchronous;
#[path = "shm/descriptors.rs"]
mod descriptors;
#[path = "shm/ends.rs"]
mod ends;
#[path = "shm/hostile.rs"]
mod hostile;
#[path = "shm/service.rs"]
mod service;
#[path = "shm/sleep.rs"]
mod sleep;

const BASE: u64 = 0x4000_0000;
const BYTES: u64 = 64 << 20;

/// Long enough for a machine that is busy with other tests.
const PATIENT: ClientConfig = ClientConfig {
    timeout: Duration::from_secs(60),
    ..ClientConfig::blocking()
};

fn socket_path() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("tare-shm-{}-{n}", std::process::id());
    std::env::temp_dir().join(name)
}

fn store() -> Store {
    Store::new(&Config::new(BYTES))
}

/// A node in a thread of its own, which sleeps when there is nothing to do.
struct Node {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    /// While it is set the node does nothing.
    pause: Arc<AtomicBool>,
    /// Set by the node when it has seen the pause, after its last turn.
    paused: Arc<AtomicBool>,
    polled: Arc<AtomicU64>,
    thread: Option<JoinHandle<(Counters, Store)>>,
}

impl Node {
    fn start(config: ServerConfig) -> Node {
        let path = socket_path();
        let [stop, pause, paused] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
        let polled = Arc::new(AtomicU64::new(0));
        let mut server = Server::listen(&path, config).unwrap();
        let flags = [&stop, &pause, &paused].map(Arc::clone);
        let shared = (flags, polled.clone());
        let thread = thread::spawn(move || {
            let ([stop, pause, paused], polled) = shared;
            let mut store = store();
            let mut idle = 0;
            while !stop.load(Ordering::Relaxed) {
                let is_paused = pause.load(Ordering::Relaxed);
                paused.store(is_paused, Ordering::Relaxed);
                if is_paused {
                    thread::sleep(Duration::from_millis(1));
                    continue;
                }
                let worked = server.turn(&mut store, &tare_sim::Instant::now).unwrap();
                polled.store(server.clients_polled() as u64, Ordering::Relaxed);
                idle = if worked { 0 } else { idle + 1 };
                if idle > 50 {
                    idle = 0;
                    server.wait(Some(Duration::from_millis(20))).unwrap();
                }
            }
            (server.counters(), store)
        });
        Node {
            path,
            stop,
            pause,
            paused,
            polled,
            thread: Some(thread),
        }
    }

    fn connect(&self) -> Client {
        Client::connect(&self.path, &PATIENT).unwrap()
    }

    /// Connects a client with a short timeout to a node that answers, on a machine however busy.
    fn connect_hasty(&self, timeout: Duration) -> Client {
        let config = ClientConfig { timeout, ..PATIENT };
        loop {
            match Client::connect(&self.path, &config) {
                Err(ConnectError::Silent) => {}
                connected => return connected.unwrap(),
            }
        }
    }

    /// Makes the node do nothing, and waits until no turn is under way.
    fn pause(&self) {
        self.pause.store(true, Ordering::Relaxed);
        while !self.paused.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn resume(&self) {
        self.pause.store(false, Ordering::Relaxed);
    }

    fn stop(&mut self) -> (Counters, Store) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Its socket goes with the thread, which the end of the process would cut short.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn alloc(client: &mut Client, space: SpaceId, bytes: u64) {
    let operation = Operation::Alloc {
        bytes,
        page: PageSize::Small,
        at: Some(BASE),
        permission: Permission::READ_WRITE,
        sparse: false,
    };
    client.call(space, &Operation::Open, &mut []).unwrap();
    client.call(space, &operation, &mut []).unwrap();
}

fn finish(client: &mut Client) -> Vec<Completion> {
    let mut all = Vec::from_iter(std::iter::from_fn(|| client.poll()));
    while client.outstanding() > 0 {
        client.progress(Duration::from_secs(1)).unwrap();
        all.extend(std::iter::from_fn(|| client.poll()));
    }
    all
}

/// A random operation on a few pages, some of which are not there.
fn operation<'a>(random: &mut Random, data: &'a [u8]) -> Operation<'a> {
    let address = BASE + random.below(24 * 4096);
    let aligned = address & !7;
    let len = match random.below(8) {
        0..=3 => random.below(65),
        4..=6 => random.below(5000),
        _ => random.below(data.len() as u64),
    };
    let lock = BASE + 8 * random.below(2);
    let token = random.below(6);
    let guard = (random.below(4) == 0).then_some(Guard { lock, token });
    let names: [&[u8]; 3] = [b"one", &[7; 64], b""];
    let name = names[random.below(3) as usize];
    let region = tare_farmem::operation::RegionId(random.below(4));
    match random.below(20) {
        0..=4 => Operation::Read {
            address,
            len: len as u32,
        },
        5..=9 => Operation::Write {
            address,
            data: &data[..len as usize],
            guard,
        },
        10 => Operation::CompareAndSwap {
            address: aligned,
            expected: 0,
            new: random.next_u64(),
            guard,
        },
        11 => Operation::FetchAdd {
            address: aligned,
            add: 3,
            guard,
        },
        12 => Operation::Lock {
            address: lock,
            lease: Duration::from_secs(3000),
        },
        13 => Operation::Unlock {
            address: lock,
            token,
        },
        14 => Operation::Free {
            address: address & !4095,
            bytes: 4096,
        },
        15 | 16 => Operation::Alloc {
            bytes: 4096 * (1 + random.below(6)),
            page: PageSize::Small,
            at: Some(address & !4095),
            permission: Permission::from_bits(1 + random.below(3) as u8).unwrap(),
            sparse: random.below(2) == 0,
        },
        17 => Operation::Region {
            name,
            address: BASE + 20 * 4096,
            bytes: 4096,
        },
        18 => Operation::Find { name },
        _ => match random.below(4) {
            0 => Operation::Grant {
                region,
                to: SpaceId(random.below(3)),
                permission: Permission::READ,
            },
            1 => Operation::Map {
                region,
                at: Some(address & !4095),
            },
            2 => Operation::Revoke {
                region,
                from: SpaceId(1),
            },
            _ => Operation::Close,
        },
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn every_operation_gives_what_the_memory_itself_gives(seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let mut node = Node::start(ServerConfig::new(1));
        // A small ring and a small data area, so that both are full at times.
        let config = ClientConfig { entries: 16, data_bytes: 32 << 10, ..PATIENT };
        let mut client = Client::connect(&node.path, &config).unwrap();
        let mut model = store();
        let mut data = vec![0; 150_000];
        random.fill(&mut data);
        let mut expected = Vec::new();
        let now = tare_sim::Instant::ZERO;
        for _ in 0..400 {
            let space = SpaceId(random.below(3));
            let operation = match random.below(8) {
                0 => Operation::Open,
                _ => operation(&mut random, &data),
            };
            let mut read = Vec::new();
            let outcome = model.execute(now, space, &operation, &mut read);
            if random.below(4) == 0 {
                let mut out = vec![0; 150_000];
                let got = client.call(space, &operation, &mut out);
                check(outcome, got);
                if outcome.is_ok() {
                    prop_assert_eq!(&out[..read.len()], &read[..]);
                }
            } else {
                let id = client.submit(space, &operation).unwrap();
                if outcome.is_err() {
                    read.clear();
                }
                expected.push((id, space, outcome, read));
            }
            if random.below(16) == 0 {
                client.progress(Duration::ZERO).unwrap();
            }
        }
        let done = finish(&mut client);
        prop_assert_eq!(done.len(), expected.len());
        for (done, (id, space, outcome, read)) in done.into_iter().zip(expected) {
            prop_assert_eq!((done.id, done.space), (id, space));
            check(outcome, done.outcome);
            prop_assert_eq!(done.data, read);
        }
        let (_, mut store) = node.stop();
        // The node has given some of what was freed back ahead of an allocation.
        for store in [&mut store, &mut model] {
            while store.clean(1 << 20) {}
        }
        prop_assert_eq!(store.counts(), model.counts());
    }
}

#[test]
fn names_of_any_length_beyond_the_limit_are_refused_and_take_no_room() {
    let node = Node::start(ServerConfig::new(1));
    let config = ClientConfig {
        data_bytes: 32 << 10,
        ..PATIENT
    };
    let mut client = Client::connect(&node.path, &config).unwrap();
    let space = SpaceId(1);
    alloc(&mut client, space, 64 << 10);
    let (address, bytes) = (BASE, 4096);
    let refused = Err(Failure::Refused(Error::Name));
    for round in 0..50 {
        for len in [65, 200, 247, 248, 255, 256, 2000, 100_000] {
            let name = &vec![b'x'; len][..];
            let region = Operation::Region {
                name,
                address,
                bytes,
            };
            let find = Operation::Find { name };
            for operation in [region, find] {
                let outcome = client.call(space, &operation, &mut []);
                assert_eq!(outcome, refused, "{round}: {len}");
            }
            let read = Operation::Read { address, len: 8 };
            for operation in [read, region, find, read] {
                client.submit(space, &operation).unwrap();
            }
            let ends = finish(&mut client);
            let outcomes: Vec<_> = ends.iter().map(|end| end.outcome).collect();
            let done = Ok(Value::Bytes(8));
            assert_eq!(outcomes, [done, refused, refused, done], "{round}: {len}");
        }
    }
    let data = vec![9; 60_000];
    client.write(space, BASE, &data, None).unwrap();
    let mut back = vec![0; data.len()];
    client.read_into(space, BASE, &mut back).unwrap();
    assert!(back == data);
    // Those that wait for room too, behind and in front of others.
    let write = Operation::Write {
        address,
        data: &data,
        guard: None,
    };
    let find = Operation::Find {
        name: &[b'x'; 2000],
    };
    for operation in [write, find, write, find] {
        client.submit(space, &operation).unwrap();
    }
    let ends = finish(&mut client);
    let outcomes: Vec<_> = ends.iter().map(|end| end.outcome).collect();
    let done = Ok(Value::None);
    assert_eq!(outcomes, [done, refused, done, refused]);
    let longest = [b'y'; 64];
    let name = &longest;
    let region = Operation::Region {
        name,
        address,
        bytes,
    };
    let region = client.call(space, &region, &mut []).unwrap();
    let found = client.call(space, &Operation::Find { name }, &mut []);
    assert_eq!(found, Ok(region));
}

/// Compares outcomes. The time of the model stands still, so that waiting times differ.
fn check(model: Result<Value, Error>, got: Result<Value, Failure>) {
    match (model, got) {
        (Err(Error::Locked { .. }), Err(Failure::Refused(Error::Locked { .. }))) => {}
        (model, got) => assert_eq!(got, model.map_err(Failure::Refused)),
    }
}

#[test]
fn a_long_write_is_whole_and_a_long_read_is_complete() {
    let node = Node::start(ServerConfig::new(1));
    let (mut client, space) = (node.connect(), SpaceId(5));
    alloc(&mut client, space, 8 << 20);
    let mut data = vec![0; (5 << 20) + 77];
    Random::new(9).fill(&mut data);
    client.write(space, BASE + 3, &data, None).unwrap();
    let mut out = vec![0; data.len()];
    client.read_into(space, BASE + 3, &mut out).unwrap();
    assert!(out == data);
    // The last page is missing: nothing is written.
    let refused = client.write(space, BASE + (8 << 20) - 200_000, &data[..200_001], None);
    let address = BASE + (8 << 20);
    assert_eq!(refused, Err(Failure::Refused(Error::Unmapped { address })));
    let mut out = vec![1; 200_000];
    client
        .read_into(space, address - 200_000, &mut out)
        .unwrap();
    assert!(out.iter().all(|&byte| byte == 0));
}

#[test]
fn the_bytes_of_owned_writes_come_back_also_of_those_that_wait_for_room() {
    let node = Node::start(ServerConfig::new(1));
    let (mut client, space) = (node.connect(), SpaceId(5));
    alloc(&mut client, space, 8 << 20);
    // More than the data area has room for at a time.
    let lens = [3 << 20, 70_000, 16, 1 << 20];
    for (n, len) in (1..).zip(lens) {
        let write = OwnedWrite {
            address: BASE + n,
            data: vec![n as u8; len],
            guard: None,
        };
        client.submit_write(space, write).unwrap();
    }
    let missing = OwnedWrite {
        address: BASE + (8 << 20),
        data: vec![9; 100],
        guard: None,
    };
    client.submit_write(space, missing).unwrap();
    let done = finish(&mut client);
    for ((n, len), done) in (1u8..).zip(lens).zip(&done) {
        assert_eq!(done.outcome, Ok(Value::None));
        assert!(done.data == vec![n; len], "{n}");
    }
    assert!(matches!(done[4].outcome, Err(Failure::Refused(_))));
    assert_eq!(done[4].data, [9; 100]);
    let mut out = [0; 5];
    client.read_into(space, BASE, &mut out).unwrap();
    assert_eq!(out, [0, 1, 2, 3, 4]);
    let wrong = OwnedWrite {
        address: u64::MAX,
        data: vec![1; 8],
        guard: None,
    };
    let (error, write) = client.submit_write(space, wrong).expect_err("too long");
    assert_eq!((error, write.data), (SubmitError::Length, vec![1; 8]));
}

#[test]
fn what_is_mapped_for_reading_is_not_written() {
    let node = Node::start(ServerConfig::new(1));
    let (mut client, owner, reader) = (node.connect(), SpaceId(1), SpaceId(2));
    alloc(&mut client, owner, 8192);
    client.write(owner, BASE, &[7; 8192], None).unwrap();
    client.call(reader, &Operation::Open, &mut []).unwrap();
    let region = Operation::Region {
        name: b"shared",
        address: BASE,
        bytes: 8192,
    };
    let Ok(Value::Region(region)) = client.call(owner, &region, &mut []) else {
        panic!("no region");
    };
    let grant = Operation::Grant {
        region,
        to: reader,
        permission: Permission::READ,
    };
    client.call(owner, &grant, &mut []).unwrap();
    let at = Some(BASE);
    let map = Operation::Map { region, at };
    client.call(reader, &map, &mut []).unwrap();
    // In the line, beside the rings, and over the border of two pages.
    for (address, len) in [(BASE, 16), (BASE, 500), (BASE + 4000, 500)] {
        let refused = client.write(reader, address, &vec![1; len], None);
        assert!(
            matches!(refused, Err(Failure::Refused(Error::Permission { .. }))),
            "{len}: {refused:?}"
        );
    }
    let mut bytes = [0; 8192];
    client.read_into(owner, BASE, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 8192]);
}

#[test]
fn numbers_wrap_around_and_nothing_is_lost() {
    let node = Node::start(ServerConfig::new(1));
    let config = ClientConfig {
        entries: 16,
        ..PATIENT
    };
    let mut client = Client::connect(&node.path, &config).unwrap();
    alloc(&mut client, SpaceId(1), 4096);
    let add = Operation::FetchAdd {
        address: BASE,
        add: 1,
        guard: None,
    };
    for n in 0..5000 {
        if n % 3 == 0 {
            assert_eq!(client.call(SpaceId(1), &add, &mut []), Ok(Value::Old(n)));
        } else {
            client.submit(SpaceId(1), &add).unwrap();
            let done = finish(&mut client);
            assert_eq!(done[0].outcome, Ok(Value::Old(n)));
        }
    }
}

#[test]
fn no_wakeup_is_lost_in_either_direction() {
    // Both sides sleep as soon as they can, and the client's pauses are about as long as the node
    // takes to fall asleep.
    let mut node = Node::start(ServerConfig {
        idle_rounds: 3,
        ..ServerConfig::new(1)
    });
    let config = ClientConfig {
        busy: Duration::ZERO,
        ..PATIENT
    };
    let mut client = Client::connect(&node.path, &config).unwrap();
    alloc(&mut client, SpaceId(1), 4096);
    let add = Operation::FetchAdd {
        address: BASE,
        add: 1,
        guard: None,
    };
    let mut random = Random::new(4);
    let mut longest = Duration::ZERO;
    for n in 0..20_000 {
        let order = random.below(12);
        for _ in 0..random.below(1 << order) {
            std::hint::spin_loop();
        }
        let start = Instant::now();
        if random.below(2) == 0 {
            assert_eq!(client.call(SpaceId(1), &add, &mut []), Ok(Value::Old(n)));
        } else {
            client.submit(SpaceId(1), &add).unwrap();
            assert_eq!(finish(&mut client)[0].outcome, Ok(Value::Old(n)));
        }
        longest = longest.max(start.elapsed());
    }
    // A lost one costs the 60 s of the timeout.
    assert!(longest < Duration::from_secs(55), "{longest:?}");
    let (counters, _) = node.stop();
    assert!(
        counters.notifications > 100 && counters.wakeups > 100,
        "{counters:?}"
    );
}

#[test]
fn idle_clients_are_not_polled_and_still_served() {
    let mut node = Node::start(ServerConfig {
        idle_rounds: 100,
        ..ServerConfig::new(1)
    });
    let config = ClientConfig {
        entries: 16,
        data_bytes: 16 << 10,
        ..PATIENT
    };
    let mut clients: Vec<_> = (0..100)
        .map(|_| Client::connect(&node.path, &config).unwrap())
        .collect();
    let start = Instant::now();
    while node.polled.load(Ordering::Relaxed) > 0 {
        assert!(start.elapsed() < Duration::from_secs(60));
        thread::yield_now();
    }
    for (n, client) in (0..).zip(&mut clients) {
        alloc(client, SpaceId(n), 4096);
        client
            .write(SpaceId(n), BASE, &[n as u8; 16], None)
            .unwrap();
    }
    drop(clients);
    let (counters, _) = node.stop();
    assert_eq!((counters.connected, counters.cut_off), (100, 0));
}
