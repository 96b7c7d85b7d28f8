//! Measures what the number of clients over shared memory costs each of them.
//!
//! ```text
//! cargo run --release -p tare-farmem --example shm_clients [ROUNDS [CLIENTS…]]
//! ```
//!
//! The node is a thread on the first processor, all clients are a thread on the second, each with a
//! ring of its own. One read of 16 bytes is under way at a time:
//! - `in turn`: by one client after the other, always in the same order.
//! - `at random`: by any of them.
//! - `one`: by the last one, while the others are idle, and polled.
//!
//! The three take turns of 60 ms in each round. Figures are medians over the rounds of nanoseconds
//! per read, with the least and the most. Every read is compared with what was written.

use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};
use tare_farmem::memory::{Config, Store};
use tare_farmem::operation::{PageSize, Permission, SpaceId};
use tare_farmem::transport::shm::{Client, ClientConfig, Server, ServerConfig};
use tare_sim::Random;

const SPACE: SpaceId = SpaceId(7);
const START: u64 = 0x4000_0000;
const BYTES: u64 = 1 << 20;
const READ: usize = 16;
const TURN: Duration = Duration::from_millis(60);
/// Reads between two looks at the clock.
const GROUP: u64 = 32;

fn main() {
    let arguments = std::env::args().skip(1).map(|it| it.parse().unwrap());
    let arguments: Vec<usize> = arguments.collect();
    let rounds = arguments.first().copied().unwrap_or(7).max(1);
    let counts = match arguments.get(1..) {
        Some(counts) if !counts.is_empty() => counts,
        _ => &[1, 10, 100, 1000],
    };
    let folder = std::env::temp_dir();
    let path = folder.join(format!("tare-shm-clients-{}", std::process::id()));
    let config = ServerConfig {
        clients_max: counts.iter().copied().max().unwrap_or(0),
        // All are polled, however long they are idle.
        idle_rounds: u32::MAX,
        ..ServerConfig::new(1)
    };
    let server = Server::listen(&path, config).unwrap();
    thread::spawn(move || node(server));
    pin(1);
    let config = ClientConfig {
        entries: 16,
        data_bytes: 16 << 10,
        timeout: Duration::from_secs(60),
        ..ClientConfig::busy()
    };
    println!("clients   in turn              at random            one");
    for &count in counts {
        let connect = |_| Client::connect(&path, &config).expect("enough descriptors (ulimit -n)");
        let mut clients: Vec<Client> = (0..count.max(1)).map(connect).collect();
        let mut random = Random::new(1);
        let mut times = [const { Vec::new() }; 3];
        for _ in 0..rounds {
            let count = clients.len();
            let orders: [&mut dyn FnMut(u64) -> usize; 3] = [
                &mut |n| n as usize % count,
                &mut |_| random.below(count as u64) as usize,
                &mut |_| count - 1,
            ];
            for (times, next) in times.iter_mut().zip(orders) {
                times.push(turn(&mut clients, next));
            }
        }
        let figures = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            let (least, most) = (times[0], times[times.len() - 1]);
            format!("{:.0} [{least:.0}, {most:.0}] ns", times[times.len() / 2])
        });
        let [in_turn, random, one] = figures;
        println!("{count:7}   {in_turn:20} {random:20} {one}");
    }
    std::fs::remove_file(&path).unwrap();
}

fn node(mut server: Server) {
    pin(0);
    let mut store = Store::new(&Config::new(64 << 20));
    store.open(SPACE).unwrap();
    let (at, permission) = (Some(START), Permission::READ_WRITE);
    store
        .alloc(SPACE, BYTES, PageSize::Small, at, permission, false)
        .unwrap();
    for address in (START..START + BYTES).step_by(READ) {
        let bytes = u128::from(address).to_le_bytes();
        store.write(SPACE, address, &bytes).unwrap();
    }
    loop {
        if server.look().unwrap() {
            server.turn(&mut store, &tare_sim::Instant::now).unwrap();
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Reads for as long as a turn; returns nanoseconds per read.
fn turn(clients: &mut [Client], next: &mut dyn FnMut(u64) -> usize) -> f64 {
    let (start, mut reads) = (Instant::now(), 0);
    while start.elapsed() < TURN {
        for _ in 0..GROUP {
            let address = START + reads * 64 % BYTES;
            let mut bytes = [0; READ];
            let client = &mut clients[next(reads)];
            client.read_into(SPACE, address, &mut bytes).unwrap();
            assert_eq!(u128::from_le_bytes(bytes), u128::from(address));
            reads += 1;
        }
    }
    start.elapsed().as_nanos() as f64 / reads as f64
}

fn pin(index: usize) {
    let allowed = sched_getaffinity(None).unwrap();
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|&n| allowed.is_set(n));
    let cpu = cpus.clone().nth(index).or(cpus.next()).unwrap();
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).unwrap();
}
