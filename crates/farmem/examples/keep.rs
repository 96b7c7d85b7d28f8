//! Measures what it costs to keep a store in a file, and the longest operations, without any
//! network.
//!
//! ```text
//! cargo run --release -p tare-farmem --example keep
//! ```
//!
//! Reads and writes of 16 bytes in 2^7 and 2^20 pages of 4 KiB take turns of some milliseconds in a
//! store of anonymous memory and in one of a memfd, both in transparent huge pages where the kernel
//! has them; the figures are medians, in nanoseconds. Then each long operation once in each of
//! three rounds, in milliseconds.

use std::time::{Duration, Instant};

use tare_farmem::memory::{Config, Store, PAGES_MAX};
use tare_farmem::operation::{PageSize, Permission, SpaceId};
use tare_memory::{Mapping, OwnedFile, Pages};

const PAGE: u64 = 4096;
const SPACE: SpaceId = SpaceId(7);
const BASE: u64 = 0x4000_0000;
const TURN: Duration = Duration::from_millis(20);
const TURNS: usize = 31;

fn main() {
    println!("order  operation  bytes  anonymous  kept  difference  (ns, medians)");
    for order in [7, 20] {
        let mut stores =
            [false, true].map(|is_kept| filled(store(1 << order, is_kept), 1 << order));
        for (what, len) in [
            ("read", 16),
            ("write", 16),
            ("write", 1400),
            ("write", 4096),
        ] {
            let mut samples = [const { Vec::new() }; 2];
            for _ in 0..TURNS {
                for (store, samples) in stores.iter_mut().zip(&mut samples) {
                    samples.push(turn(store, (1 << order) - 1, what, len));
                }
            }
            let [anonymous, kept] = samples.map(|mut samples| {
                samples.sort_by(f64::total_cmp);
                samples[TURNS / 2]
            });
            let more = kept - anonymous;
            println!("{order:5}  {what:9}  {len:5}  {anonymous:9.1}  {kept:4.1}  {more:10.1}");
        }
    }
    println!("\nlongest operations, 2^20 pages (ms)");
    for is_kept in [false, true] {
        for _ in 0..3 {
            longest(is_kept);
        }
    }
}

fn store(pages: u64, is_kept: bool) -> Store<Mapping> {
    let config = Config::new(pages * PAGE);
    if is_kept {
        let file = OwnedFile::memfd("keep", Pages::Transparent).unwrap();
        return Store::open_kept(&config, file).unwrap().0;
    }
    Store::in_memory(&config, |len| Mapping::anonymous(len, Pages::Transparent)).unwrap()
}

fn filled(mut store: Store<Mapping>, pages: u64) -> Store<Mapping> {
    store.open(SPACE).unwrap();
    for first in (0..pages).step_by(PAGES_MAX as usize) {
        let bytes = (pages - first).min(PAGES_MAX) * PAGE;
        alloc(&mut store, BASE + first * PAGE, bytes, false);
    }
    // In an order in which neighbours do not get neighbouring frames.
    for n in 0..pages {
        let page = n.wrapping_mul(0x9e37_79b1) & (pages - 1);
        store.write(SPACE, BASE + page * PAGE, &[0; 16]).unwrap();
    }
    store
}

fn alloc(store: &mut Store<Mapping>, at: u64, bytes: u64, sparse: bool) {
    let (page, permission) = (PageSize::Small, Permission::READ_WRITE);
    let result = store.alloc(SPACE, bytes, page, Some(at), permission, sparse);
    assert_eq!(result, Ok(at));
}

/// Reads or writes at random pages for a while; returns nanoseconds each.
fn turn(store: &mut Store<Mapping>, mask: u64, what: &str, len: usize) -> f64 {
    let (start, mut done, mut state) = (Instant::now(), 0, 1u64);
    let mut bytes = vec![0; len];
    loop {
        for _ in 0..1024 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let page = (state >> 33) & mask;
            // Another line in each page, or all would be in few sets of the caches.
            let room = (PAGE - len as u64) / 64;
            let at = BASE + page * PAGE + page % (room + 1) * 64;
            match what {
                "read" => store.read_into(SPACE, at, &mut bytes).unwrap(),
                _ => store.write(SPACE, at, &bytes).unwrap(),
            }
            state ^= u64::from(bytes[0]);
        }
        done += 1024;
        let elapsed = start.elapsed();
        if elapsed >= TURN {
            return elapsed.as_nanos() as f64 / f64::from(done);
        }
    }
}

fn longest(is_kept: bool) {
    let pages = 1 << 20;
    let mut store = filled(store(pages, is_kept), pages);
    let mut line = format!("kept {is_kept:5}");
    let mut timed = |what: &str, store: &mut Store<Mapping>, run: &dyn Fn(&mut Store<Mapping>)| {
        let start = Instant::now();
        run(store);
        line += &format!("  {what} {:.2}", start.elapsed().as_secs_f64() * 1e3);
    };
    let part = PAGES_MAX * PAGE;
    timed("free 2^18", &mut store, &|store| {
        store.free(SPACE, BASE, part).unwrap();
    });
    while store.clean(64 << 20) {}
    timed("alloc 2^18", &mut store, &|store| {
        alloc(store, BASE, part, false);
    });
    for page in 0..PAGES_MAX {
        store.write(SPACE, BASE + page * PAGE, &[1]).unwrap();
    }
    timed("region 2^18", &mut store, &|store| {
        let region = store.region(SPACE, b"name", BASE, part).unwrap();
        store.open(SpaceId(8)).unwrap();
        store.set_quota(SpaceId(8), 0).unwrap();
        store
            .grant(SPACE, region, SpaceId(8), Permission::READ)
            .unwrap();
    });
    let region = store.find_region(SPACE, b"name").unwrap();
    timed("map 2^18", &mut store, &|store| {
        store.map(SpaceId(8), region, Some(BASE)).unwrap();
    });
    timed("retire 2^18", &mut store, &|store| {
        store.retire(SPACE, region).unwrap();
    });
    timed("close 2^20", &mut store, &|store| {
        store.close(SPACE).unwrap();
    });
    while store.clean(64 << 20) {}
    store.open(SPACE).unwrap();
    alloc(&mut store, BASE, part, true);
    for page in 0..PAGES_MAX {
        store.write(SPACE, BASE + page * PAGE, &[1]).unwrap();
    }
    timed("free 2^18 sparse", &mut store, &|store| {
        store.free(SPACE, BASE, part).unwrap();
    });
    println!("{line}");
}
