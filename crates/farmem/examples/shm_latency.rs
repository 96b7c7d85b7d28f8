//! Measures the `shm` transport between two processes, beside what it cannot do without.
//!
//! ```text
//! GLIBC_TUNABLES=glibc.malloc.hugetlb=1 \
//!     cargo run --release -p tare-farmem --example shm_latency [ORDER_MAX [ROUNDS [CASE…]]]
//! ```
//!
//! The node is a child process on the first processor, the client is on the second. Its references:
//! - `raw line`: a ping-pong of two cache lines, one written by each side, no PAUSE.
//! - `raw copy`: one process copies 64 KiB after 64 KiB from private memory into 16 slots of shared
//!   memory, the other one from there into private memory, both by the C library's `memcpy`; from
//!   the same 64 KiB each time, or cold, from random blocks of as much memory as there are pages,
//!   up to 1 GiB. `slots alone` is the same by the copy that the transport has for
//!   stores into the caches: its limit where it does not store past them.
//!
//! A CASE is the beginning of the name of a group: `line`, `batched`, `sessions`, `storm`, `bulk`.
//! There are 2^ORDER_MAX pages of 4 KiB, 4 GiB unless it is said otherwise; `line`, `sessions` and
//! `storm` alone need less. The node's process ends with the client's.
//!
//! The `storm` cases are the 50th and 99th percentile of single reads: alone, then each right
//! behind an operation of another client, which is a read too, the least that there can be, or
//! belongs to a cycle of 64 pages that are allocated, written for the first time and freed.
//!
//! All cases take turns of 80 ms in each round. Figures are medians over the rounds of
//! nanoseconds per operation, and of the ratio to a reference in the same round, with the lower and
//! upper quartile. Every page has its number in it, and every read is compared with it.

use std::collections::BTreeMap;
use std::fs::File;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::process::{getppid, set_parent_process_death_signal, Signal};
use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};
use tare_farmem::memory::{Config, Store};
use tare_farmem::operation::{Operation, PageSize, Permission, SpaceId};
use tare_farmem::transport::shm::{Client, ClientConfig, Server, ServerConfig};
use tare_farmem::transport::Channel;
use tare_memory::{Atomic, SharedMemory, View};

const PAGE: u64 = 4096;
const START: u64 = 0x4000_0000;
const SPACE: SpaceId = SpaceId(7);
const SESSIONS: u64 = 1000;
const TURN: Duration = Duration::from_millis(80);
const BATCH: usize = 16;
const BULK: usize = 64 << 10;
/// Bulk operations on the way.
const DEPTH: usize = 8;
/// The most memory that the cold copy is from: many times a cache.
const COLD_MAX: usize = 1 << 30;
/// The pages of the cases on single lines are 2^7.
const LINE_ORDER: u32 = 7;
/// The space beside what is measured, the pages of its cycle, and the memory for them.
const STORM: SpaceId = SpaceId(8);
const STORM_PAGES: u64 = 64;
const STORM_SPARE: u64 = 4096;

/// The control memory: what the node does, written by the client; the two lines of the ping-pong;
/// and the slots of the copy.
const MODE: usize = 0;
const PRODUCED: usize = 4096;
const CONSUMED: usize = 4096 + 256;
/// The ping-pong has another pair of lines each time: how far a line is depends on its address, and
/// the rings go through many.
const PAIR: usize = 64;
const PAIRS: usize = 32;
const LINE_PAIRS: usize = 8192;
const SLOTS: usize = 16;
const SLOT: usize = LINE_PAIRS + PAIRS * 512;
const CONTROL_BYTES: usize = SLOT + SLOTS * BULK;

const QUIT: u64 = 1;
const SERVE: u64 = 2;
const LINES: u64 = 3;
const COPY: u64 = 4;
const COPY_COLD: u64 = 5;
const SLOTS_ALONE: u64 = 6;
const SLOTS_ALONE_COLD: u64 = 7;
const STOP: u64 = u64::MAX;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().map(String::as_str) == Some("node") {
        // Whatever ends the client: the node waits for no one else, on a processor of its own.
        set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
        if getppid().map(|parent| parent.to_string()).as_ref() != arguments.get(4) {
            return;
        }
        return node(&arguments[1], &arguments[2], arguments[3].parse().unwrap());
    }
    let number = |n: usize, default| arguments.get(n).map_or(default, |a| a.parse().unwrap());
    let (order_max, rounds) = (number(0, 20), number(1, 31) as usize);
    let cases = arguments.get(2..).unwrap_or_default();
    let needs_all = |case: &String| {
        ["batched", "bulk"]
            .iter()
            .any(|name| name.starts_with(case))
    };
    let order = match cases.is_empty() || cases.iter().any(needs_all) {
        true => order_max.max(LINE_ORDER),
        false => LINE_ORDER,
    };
    let mut bench = Bench::new(order);
    bench.run(rounds, cases);
}

fn pin(index: usize) {
    let allowed = sched_getaffinity(None).unwrap();
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|&n| allowed.is_set(n))
        .collect();
    let mut set = CpuSet::new();
    set.set(cpus[index % cpus.len()]);
    sched_setaffinity(None, &set).unwrap();
}

fn load(view: View<'_>, at: usize) -> u64 {
    view.atomic::<u64>(at).unwrap().load(Ordering::Acquire)
}

fn store(view: View<'_>, at: usize, value: u64) {
    view.atomic::<u64>(at)
        .unwrap()
        .store(value, Ordering::Release);
}

/// The place of the bytes in a page: another line in each.
fn address(page: u64) -> u64 {
    START + page * PAGE + page % 61 * 64
}

fn node(control: &str, socket: &str, order_max: u32) {
    pin(0);
    let memory = SharedMemory::open(
        File::options()
            .read(true)
            .write(true)
            .open(control)
            .unwrap()
            .into(),
    );
    let memory = memory.unwrap();
    let mut server = Server::listen(Path::new(socket), ServerConfig::new(1)).unwrap();
    let pages = 1u64 << order_max;
    let mut store = Store::new(&Config::new((pages + SESSIONS + STORM_SPARE) * PAGE));
    let alloc = |store: &mut Store, space, at: u64, bytes| {
        let (at, permission) = (Some(at), Permission::READ_WRITE);
        store
            .alloc(space, bytes, PageSize::Small, at, permission, false)
            .unwrap();
    };
    store.open(SPACE).unwrap();
    for first in (0..pages).step_by(1 << 18) {
        let bytes = (pages - first).min(1 << 18) * PAGE;
        alloc(&mut store, SPACE, START + first * PAGE, bytes);
    }
    // In order of address, so that what is transferred at once is together in memory.
    for page in 0..pages {
        let bytes: Vec<u8> = (0..8).flat_map(|_| page.to_le_bytes()).collect();
        store.write(SPACE, address(page), &bytes).unwrap();
    }
    for session in 0..SESSIONS {
        let space = SpaceId(1000 + session);
        store.open(space).unwrap();
        alloc(&mut store, space, START, PAGE);
        let bytes = u128::from(session).to_le_bytes();
        store
            .write(space, START + session % 64 * 64, &bytes)
            .unwrap();
    }
    let mut source = vec![7; BULK + PAGE as usize];
    let source = aligned(&mut source);
    let mut cold = Vec::new();
    let mut position = 0;
    println!("ready");
    let clock = || tare_sim::Instant::now();
    let view = memory.view();
    loop {
        match load(view, MODE) {
            QUIT => return,
            SERVE => {
                while load(view, MODE) == SERVE {
                    server.turn(&mut store, &clock).unwrap();
                }
            }
            LINES => pong(view),
            mode @ (COPY | SLOTS_ALONE) => produce(view, source, &mut position, mode == COPY),
            mode @ (COPY_COLD | SLOTS_ALONE_COLD) => {
                // Only now: other cases do without it.
                if cold.is_empty() {
                    cold = vec![7; (BULK << order_max.saturating_sub(4)).min(COLD_MAX)];
                }
                produce(view, &cold, &mut position, mode == COPY_COLD);
            }
            _ => std::hint::spin_loop(),
        }
    }
}

/// The two lines of a ping-pong.
fn pair(view: View<'_>) -> [Atomic<'_, u64>; 2] {
    let at = LINE_PAIRS + load(view, PAIR) as usize % PAIRS * 512;
    [at, at + 256].map(|at| view.atomic(at).unwrap())
}

fn pong(view: View<'_>) {
    let [ping, pong] = pair(view);
    let mut last = 0;
    while load(view, MODE) == LINES {
        for _ in 0..1 << 16 {
            let value = ping.load(Ordering::Acquire);
            if value == STOP {
                pong.store(STOP, Ordering::Release);
                break;
            }
            if value != last {
                last = value;
                pong.store(value, Ordering::Release);
            }
        }
    }
}

/// Copies blocks of the source, in a random order that goes on from call to call at `position`.
fn produce(view: View<'_>, source: &[u8], position: &mut u64, by_memcpy: bool) {
    let mut n = 0;
    loop {
        let consumed = load(view, CONSUMED);
        if consumed == STOP {
            // What it produced last is not for the next turn.
            store(view, PRODUCED, STOP);
            return;
        }
        if n < consumed + SLOTS as u64 {
            *position += 1;
            let block = position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let at = block as usize % (source.len() / BULK) * BULK;
            let (slot, source) = (slot(view, n), &source[at..at + BULK]);
            match by_memcpy {
                true => slot.memcpy_from(source).unwrap(),
                false => slot.copy_from(source).unwrap(),
            }
            n += 1;
            store(view, PRODUCED, n);
        }
    }
}

/// The 64 KiB at the first border of a page: `memcpy` depends on it.
fn aligned(bytes: &mut [u8]) -> &mut [u8] {
    let start = bytes.as_ptr().align_offset(PAGE as usize);
    &mut bytes[start..][..BULK]
}

fn slot(view: View<'_>, n: u64) -> View<'_> {
    let at = SLOT + n as usize % SLOTS * BULK;
    view.range(at, BULK).unwrap()
}

/// The operations of another client.
#[derive(Clone, Copy)]
enum Beside {
    Read,
    Pages,
}

struct Bench {
    control: SharedMemory,
    node: Child,
    client: Client,
    other: Client,
    beside: u64,
    order_max: u32,
    state: u64,
    sink: Vec<u8>,
    socket: PathBuf,
}

impl Bench {
    fn new(order_max: u32) -> Bench {
        let control = SharedMemory::create("control", CONTROL_BYTES).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&control.fd());
        let path = format!("/proc/{}/fd/{fd}", std::process::id());
        let socket = std::env::temp_dir().join(format!("tare-shm-{}", std::process::id()));
        store(control.view(), MODE, SERVE);
        let mut node = Command::new(std::env::current_exe().unwrap())
            .arg("node")
            .args([&path, socket.to_str().unwrap(), &order_max.to_string()])
            .arg(std::process::id().to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        pin(1);
        let mut line = String::new();
        let mut output = BufReader::new(node.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let config = ClientConfig {
            timeout: Duration::from_secs(5),
            ..ClientConfig::busy()
        };
        let [client, mut other] = [(); 2].map(|()| Client::connect(&socket, &config).unwrap());
        other.call(STORM, &Operation::Open, &mut []).unwrap();
        Bench {
            control,
            node,
            client,
            other,
            beside: 0,
            order_max,
            state: 1,
            sink: vec![0; BULK + PAGE as usize],
            socket,
        }
    }

    fn mode(&self, mode: u64) {
        store(self.control.view(), MODE, mode);
    }

    fn run(&mut self, rounds: usize, cases: &[String]) {
        let mut samples: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        let wanted =
            |name: &str| cases.is_empty() || cases.iter().any(|c| name.starts_with(c.as_str()));
        let orders: Vec<u32> = [0, 7, 12, 16, 20]
            .into_iter()
            .filter(|&o| o <= self.order_max)
            .collect();
        for _ in 0..rounds {
            let mut add =
                |name: &str, ns: f64| samples.entry(name.to_owned()).or_default().push(ns);
            if wanted("line") {
                add("raw line", self.raw_line());
                add("line: read 16 B, in the entry", self.read(16, LINE_ORDER));
                add("line: read 64 B, data area", self.read(64, LINE_ORDER));
                add("line: write 16 B, in the entry", self.write(16, LINE_ORDER));
                add("line: write 64 B, data area", self.write(64, LINE_ORDER));
            }
            if wanted("batched") {
                for &order in &orders {
                    add(&format!("batched: order {order:2}"), self.batched(order));
                }
            }
            if wanted("sessions") {
                add("sessions:    1", self.sessions(1));
                add("sessions: 1000", self.sessions(SESSIONS));
            }
            if wanted("storm") {
                for (name, beside) in [
                    ("alone", None),
                    ("beside a read", Some(Beside::Read)),
                    ("beside pages", Some(Beside::Pages)),
                ] {
                    let [half, most] = self.storm(beside);
                    add(&format!("storm: p50 {name}"), half);
                    add(&format!("storm: p99 {name}"), most);
                }
            }
            if wanted("bulk") {
                add("raw copy", self.raw_copy(COPY));
                add("cold: raw copy", self.raw_copy(COPY_COLD));
                add("bulk: slots alone, hot", self.raw_copy(SLOTS_ALONE));
                add("cold: slots alone", self.raw_copy(SLOTS_ALONE_COLD));
                add("bulk: read 64 KiB, hot", self.bulk(4, false));
                add("bulk: write 64 KiB, hot", self.bulk(4, true));
                add("cold: read 64 KiB", self.bulk(self.order_max, false));
                add("cold: write 64 KiB", self.bulk(self.order_max, true));
            }
        }
        println!(
            "{:34} {:>8} {:>8}   ratio in the round [quartiles]   of the lower quartiles",
            "case", "ns q1", "median"
        );
        for (name, values) in &samples {
            let reference = match name.split(':').next() {
                Some("line") => "raw line",
                Some("bulk") => "raw copy",
                Some("cold") => "cold: raw copy",
                Some("batched") => "batched: order  0",
                Some("sessions") => "sessions:    1",
                Some("storm") if name.contains("p99") => "storm: p99 alone",
                Some("storm") => "storm: p50 alone",
                _ => name,
            };
            let reference = &samples[reference];
            // Of one copy the time is shorter where the rate is higher: a rate's ratio is inverse.
            let is_rate = name.starts_with("bulk") || name.starts_with("cold");
            let ratios = values.iter().zip(reference);
            let ratios = ratios.map(|(v, r)| if is_rate { r / v } else { v / r });
            let ratios = quartiles(ratios.collect());
            let ns = quartiles(values.clone());
            let best = quartiles(reference.clone())[0] / ns[0];
            let best = if is_rate { best } else { 1.0 / best };
            println!(
                "{name:34} {:8.1} {:8.1}   {:.3} [{:.3} {:.3}]   {best:.3}",
                ns[0], ns[1], ratios[1], ratios[0], ratios[2]
            );
        }
        let _ = std::io::stdout().flush();
    }

    fn raw_line(&mut self) -> f64 {
        let view = self.control.view();
        store(view, PAIR, load(view, PAIR) + 1);
        let [ping, pong] = pair(view);
        ping.store(0, Ordering::Release);
        pong.store(0, Ordering::Release);
        self.mode(LINES);
        let mut n = 0;
        let ns = turn(|| {
            for _ in 0..256 {
                n += 1;
                ping.store(n, Ordering::Release);
                while pong.load(Ordering::Acquire) != n {}
            }
            256
        });
        ping.store(STOP, Ordering::Release);
        while pong.load(Ordering::Acquire) != STOP {}
        self.mode(SERVE);
        ns
    }

    fn page(&mut self, order: u32) -> u64 {
        let next = self.state.wrapping_mul(6_364_136_223_846_793_005);
        self.state = next.wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) & ((1 << order) - 1)
    }

    fn read(&mut self, len: usize, order: u32) -> f64 {
        let mut bytes = [0; 64];
        turn(|| {
            for _ in 0..256 {
                let page = self.page(order);
                let out = &mut bytes[..len];
                self.client.read_into(SPACE, address(page), out).unwrap();
                assert_eq!(out[..8], page.to_le_bytes());
            }
            256
        })
    }

    fn write(&mut self, len: usize, order: u32) -> f64 {
        turn(|| {
            for _ in 0..256 {
                let page = self.page(order);
                let bytes: [[u8; 8]; 8] = [page.to_le_bytes(); 8];
                let data = &bytes.as_flattened()[..len];
                self.client.write(SPACE, address(page), data, None).unwrap();
            }
            256
        })
    }

    fn sessions(&mut self, sessions: u64) -> f64 {
        let mut session = 0;
        turn(|| {
            for _ in 0..256 {
                session = (session + 1) % sessions;
                let mut out = [0; 16];
                let (space, at) = (SpaceId(1000 + session), START + session % 64 * 64);
                self.client.read_into(space, at, &mut out).unwrap();
                assert_eq!(u128::from_le_bytes(out), u128::from(session));
            }
            256
        })
    }

    /// Returns the percentiles of single reads, in nanoseconds.
    fn storm(&mut self, beside: Option<Beside>) -> [f64; 2] {
        let mut times = Vec::new();
        turn(|| {
            for _ in 0..256 {
                if let Some(beside) = beside {
                    self.step_beside(beside);
                }
                let page = self.page(LINE_ORDER);
                let mut out = [0; 16];
                let start = Instant::now();
                self.client
                    .read_into(SPACE, address(page), &mut out)
                    .unwrap();
                times.push(start.elapsed().as_nanos() as u32);
                assert_eq!(out[..8], page.to_le_bytes());
            }
            256
        });
        while self.other.outstanding() > 0 {
            self.take_beside();
        }
        times.sort_unstable();
        [50, 99].map(|percent| f64::from(times[times.len() * percent / 100]))
    }

    /// Submits the next operation of the other client if the last one has completed.
    fn step_beside(&mut self, beside: Beside) {
        self.take_beside();
        if self.other.outstanding() > 0 {
            return;
        }
        let bytes = STORM_PAGES * PAGE;
        let operation = match (beside, self.beside % (STORM_PAGES + 2)) {
            (Beside::Read, _) => Operation::Read {
                address: START,
                len: 16,
            },
            (Beside::Pages, 0) => Operation::Alloc {
                bytes,
                page: PageSize::Small,
                at: Some(START),
                permission: Permission::READ_WRITE,
                sparse: false,
            },
            (Beside::Pages, n) if n <= STORM_PAGES => Operation::Write {
                address: START + (n - 1) * PAGE,
                data: b"touched!",
                guard: None,
            },
            (Beside::Pages, _) => Operation::Free {
                address: START,
                bytes,
            },
        };
        let space = match beside {
            Beside::Read => SpaceId(1000),
            Beside::Pages => {
                self.beside += 1;
                STORM
            }
        };
        self.other.submit(space, &operation).unwrap();
        self.other.progress(Duration::ZERO).unwrap();
    }

    fn take_beside(&mut self) {
        self.other.progress(Duration::ZERO).unwrap();
        while let Some(completion) = self.other.poll() {
            completion.outcome.unwrap();
            self.other.recycle(completion.data);
        }
    }

    /// Batches of 16 reads; the next batch begins when the last is over.
    fn batched(&mut self, order: u32) -> f64 {
        turn(|| {
            for _ in 0..16 {
                let pages: [u64; BATCH] = std::array::from_fn(|_| self.page(order));
                for page in pages {
                    let read = Operation::Read {
                        address: address(page),
                        len: 16,
                    };
                    self.client.submit(SPACE, &read).unwrap();
                }
                let mut pages = pages.into_iter();
                while self.client.outstanding() > 0 {
                    self.client.progress(Duration::from_secs(1)).unwrap();
                    while let Some(done) = self.client.poll() {
                        done.outcome.unwrap();
                        assert_eq!(done.data[..8], pages.next().unwrap().to_le_bytes());
                        self.client.recycle(done.data);
                    }
                }
            }
            16 * BATCH as u64
        })
    }

    /// 64 KiB operations on 2^order pages, 8 at a time.
    fn bulk(&mut self, order: u32, is_write: bool) -> f64 {
        let data = vec![7; BULK];
        let mut done = 0;
        let ns = turn(|| {
            let before = done;
            while done < before + 32 {
                while self.client.outstanding() < DEPTH {
                    let page = self.page(order) & !15;
                    let (address, len) = (START + page * PAGE, BULK as u32);
                    let operation = match is_write {
                        true => Operation::Write {
                            address,
                            data: &data,
                            guard: None,
                        },
                        false => Operation::Read { address, len },
                    };
                    self.client.submit(SPACE, &operation).unwrap();
                }
                done += self.complete();
            }
            done - before
        });
        while self.client.outstanding() > 0 {
            self.complete();
        }
        if is_write {
            self.restore(order);
        }
        ns
    }

    /// Puts the numbers back into the pages that are read by number.
    fn restore(&mut self, order: u32) {
        for page in 0..1u64 << order {
            let bytes: [[u8; 8]; 8] = [page.to_le_bytes(); 8];
            let data = bytes.as_flattened();
            let write = Operation::Write {
                address: address(page),
                data,
                guard: None,
            };
            while self.client.submit(SPACE, &write).is_err() {
                self.complete();
            }
        }
        while self.client.outstanding() > 0 {
            self.complete();
        }
    }

    /// Takes completions; returns how many.
    fn complete(&mut self) -> u64 {
        self.client.progress(Duration::from_secs(1)).unwrap();
        let mut done = 0;
        while let Some(completion) = self.client.poll() {
            completion.outcome.unwrap();
            black_box(&completion.data);
            self.client.recycle(completion.data);
            done += 1;
        }
        done
    }

    fn raw_copy(&mut self, mode: u64) -> f64 {
        let view = self.control.view();
        store(view, CONSUMED, 0);
        store(view, PRODUCED, 0);
        self.mode(mode);
        let sink = aligned(&mut self.sink);
        let mut n = 0;
        let ns = turn(|| {
            for _ in 0..32 {
                while load(view, PRODUCED) <= n {}
                match mode {
                    COPY | COPY_COLD => slot(view, n).memcpy_to(sink).unwrap(),
                    _ => slot(view, n).copy_to(sink).unwrap(),
                }
                n += 1;
                store(view, CONSUMED, n);
            }
            black_box(&*sink);
            32
        });
        self.mode(SERVE);
        store(view, CONSUMED, STOP);
        while load(view, PRODUCED) != STOP {}
        ns
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.mode(QUIT);
        let _ = self.node.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Runs rounds of operations for a while; returns nanoseconds per operation.
fn turn(mut round: impl FnMut() -> u64) -> f64 {
    // The first is for the caches and for the node to notice.
    round();
    let (start, mut operations) = (Instant::now(), 0);
    loop {
        operations += round();
        let elapsed = start.elapsed();
        if elapsed >= TURN {
            return elapsed.as_nanos() as f64 / operations as f64;
        }
    }
}

fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|n| values[(values.len() - 1) * n / 4])
}
