//! Measures a read of 16 bytes in the memory of a node, without any network, beside what it
//! cannot do without: two loads from memory of which the second needs the first.
//!
//! ```text
//! GLIBC_TUNABLES=glibc.malloc.hugetlb=1 \
//!     cargo run --release -p tare-farmem --example lookup [ORDER…]
//! ```
//!
//! The tunable lets the C library ask for transparent huge pages, as a node does. For each order,
//! 2^ORDER pages of 4 KiB with a frame of their own are read in random order:
//! - `read`: `Store::read_into`, where the address of each read depends on the bytes of the read
//!   before, so that none begins before the last is over. What a synchronous client sees.
//! - `two loads`: the same in the least that has two dependent misses: an array as long as the page
//!   table, one line per page, that holds the place in an array as long as the pool.
//! - `batched`: 16 calls of `Store::part`, then their bytes: their misses overlap.
//!
//! The first two take turns of some milliseconds; the figures are medians, in nanoseconds.

use std::hint::black_box;
use std::time::{Duration, Instant};

use tare_farmem::memory::{Config, Store};
use tare_farmem::operation::{PageSize, Permission, SpaceId};

const PAGE: u64 = 4096;
const SPACE: SpaceId = SpaceId(7);
const TURN: Duration = Duration::from_millis(20);
const TURNS: usize = 31;
const BATCH: usize = 16;

fn main() {
    let orders = std::env::args().skip(1).map(|order| {
        order
            .parse()
            .expect("an order, such as 20 for 2^20 pages of 4 KiB")
    });
    let mut orders = orders.collect::<Vec<u32>>();
    if orders.is_empty() {
        orders = vec![0, 7, 12, 16, 20];
    }
    println!(
        "order   read  two loads  ratio  difference  batched   (ns per read of 16 bytes, median)"
    );
    for order in orders {
        measure(order);
    }
}

fn measure(order: u32) {
    let pages = 1 << order;
    let mut far = Far::new(pages);
    let mut raw = Raw::new(pages);
    let mut samples = [const { Vec::new() }; 3];
    for _ in 0..TURNS {
        samples[0].push(turn(|| far.dependent()));
        samples[1].push(turn(|| raw.dependent()));
    }
    // Apart from the others, or it would leave the page table in the cache for `read`.
    for _ in 0..TURNS {
        samples[2].push(turn(|| far.batched()));
    }
    let [read, loads, batched] = samples.map(|mut samples| {
        samples.sort_by(f64::total_cmp);
        samples[TURNS / 2]
    });
    let (ratio, difference) = (read / loads, read - loads);
    println!("{order:5}  {read:5.1}  {loads:9.1}  {ratio:5.2}  {difference:10.1}  {batched:7.1}");
}

/// Runs rounds of reads for a while; returns nanoseconds per read.
fn turn(mut round: impl FnMut() -> u64) -> f64 {
    let (start, mut reads) = (Instant::now(), 0);
    loop {
        reads += round();
        let elapsed = start.elapsed();
        if elapsed >= TURN {
            return elapsed.as_nanos() as f64 / reads as f64;
        }
    }
}

/// The next random number.
fn next(state: u64) -> u64 {
    state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407)
}

/// The place of the 16 bytes in a page: another line in each, since the same one in all of them
/// would be in few sets of the caches.
fn offset(page: u64) -> u64 {
    page % 61 * 64
}

struct Far {
    store: Store,
    start: u64,
    mask: u64,
    state: u64,
}

impl Far {
    fn new(pages: u64) -> Far {
        let mut store = Store::new(&Config::new(pages * PAGE));
        store.open(SPACE).unwrap();
        let start = 0x4000_0000;
        // An allocation has at most 2^18 pages.
        for first in (0..pages).step_by(1 << 18) {
            let bytes = (pages - first).min(1 << 18) * PAGE;
            let (at, permission) = (Some(start + first * PAGE), Permission::READ_WRITE);
            store
                .alloc(SPACE, bytes, PageSize::Small, at, permission, false)
                .unwrap();
        }
        // In an order in which neighbours do not get neighbouring frames.
        for n in 0..pages {
            let page = n.wrapping_mul(0x9e37_79b1) & (pages - 1);
            let at = start + page * PAGE + offset(page);
            store.write(SPACE, at, &[0; 16]).unwrap();
        }
        let counts = store.counts();
        assert_eq!((counts.entries[0], counts.bytes_free), (pages, 0));
        Far {
            store,
            start,
            mask: pages - 1,
            state: 1,
        }
    }

    fn address(&self, state: u64) -> u64 {
        let page = (state >> 33) & self.mask;
        self.start + page * PAGE + offset(page)
    }

    fn dependent(&mut self) -> u64 {
        for _ in 0..1024 {
            let mut bytes = [0; 16];
            let address = self.address(self.state);
            self.store.read_into(SPACE, address, &mut bytes).unwrap();
            // All bytes are 0, which the compiler does not know.
            self.state = next(self.state ^ u128::from_le_bytes(bytes) as u64);
        }
        1024
    }

    fn batched(&mut self) -> u64 {
        for _ in 0..1024 / BATCH {
            let states: [u64; BATCH] = std::array::from_fn(|_| {
                self.state = next(self.state);
                self.state
            });
            let parts =
                states.map(|state| self.store.part(SPACE, self.address(state), 16).unwrap());
            for part in parts {
                let bytes: [u8; 16] = part.try_into().unwrap();
                black_box(bytes);
            }
        }
        1024
    }
}

struct Raw {
    table: Vec<[u64; 8]>,
    pool: Vec<u8>,
    mask: u64,
    state: u64,
}

impl Raw {
    fn new(pages: u64) -> Raw {
        let line = |n: u64| {
            let page = n.wrapping_mul(0x9e37_79b1) & (pages - 1);
            [page * PAGE + offset(page); 8]
        };
        let mut pool = vec![0; (pages * PAGE) as usize];
        pool.fill(0);
        Raw {
            table: (0..pages).map(line).collect(),
            pool,
            mask: pages - 1,
            state: 1,
        }
    }

    fn dependent(&mut self) -> u64 {
        for _ in 0..1024 {
            let page = (self.state >> 33) & self.mask;
            let at = self.table[page as usize][0] as usize;
            let bytes: [u8; 16] = *self.pool[at..].first_chunk().unwrap();
            self.state = next(self.state ^ u128::from_le_bytes(bytes) as u64);
        }
        1024
    }
}
