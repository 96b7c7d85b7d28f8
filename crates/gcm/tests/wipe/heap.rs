//! The contents of a key's memory when it is given back.

use crate::common::paths;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::os::unix::fs::FileExt as _;
use tare_gcm::{Key, Path};

/// The system's allocator; copies blocks that this thread gives back, when it is asked to.
struct Noting;

#[global_allocator]
static ALLOCATOR: Noting = Noting;

/// The bytes of a block that are copied at most.
const LEN: usize = 4096;

/// The size from which a block may be a key's.
const KEY_LEN_MIN: usize = 176;

thread_local! {
    /// The address and the length of the last block that may be a key's.
    static LAST: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    /// The contents and the length of the block given back last, once it is `Some`.
    static NOTED: RefCell<Option<([u8; LEN], usize)>> = const { RefCell::new(None) };
}

// SAFETY: the system's allocator, and a look at memory that is still allocated.
unsafe impl GlobalAlloc for Noting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract. Zeros, so that what is there later has been written.
        let block = unsafe { System.alloc_zeroed(layout) };
        if layout.size() >= KEY_LEN_MIN && layout.align() >= 16 {
            let _ = LAST.try_with(|last| last.set((block.expose_provenance(), layout.size())));
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let _ = NOTED.try_with(|noted| {
            if let Ok(mut noted) = noted.try_borrow_mut() {
                if let Some((contents, len)) = noted.as_mut() {
                    *len = layout.size().min(LEN);
                    for (i, byte) in contents[..*len].iter_mut().enumerate() {
                        // SAFETY: within the block; volatile, for it may not be initialised.
                        *byte = unsafe { block.add(i).read_volatile() };
                    }
                }
            }
        });
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(block, layout) }
    }
}

/// A byte of a key that no other test uses. Not inlined: the compiler would make the bytes a
/// constant and keep that on this test's own stack.
#[inline(never)]
fn key_byte(i: usize) -> u8 {
    (i * 29 + 7) as u8
}

/// Gives each page of this process's memory that can be written, with its address, to `look`.
fn pages(mut look: impl FnMut(usize, &[u8])) {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the list of mappings");
    let memory = std::fs::File::open("/proc/self/mem").expect("this process's memory");
    let mut page = vec![0; 4096];
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let (start, end) = line
            .split_once(' ')
            .and_then(|(range, _)| range.split_once('-'))
            .expect("a range");
        let number = |text| usize::from_str_radix(text, 16).expect("an address");
        for at in (number(start)..number(end)).step_by(page.len()) {
            // Other tests unmap their stacks meanwhile.
            if memory.read_exact_at(&mut page, at as u64).is_ok() {
                look(at, &page);
            }
            page.fill(0);
        }
    }
}

/// Returns the number of aligned blocks of this process's memory that hold the end of such a key of
/// `len` bytes: a round key is that.
fn blocks_with_key(len: usize) -> usize {
    let mut found = 0;
    pages(|_, page| {
        // Compared byte by byte: the key is to be in no place of this test's own.
        let holds = |block: &&[u8]| (0..16).all(|i| block[i] == key_byte(len - 16 + i));
        found += page.chunks_exact(16).filter(holds).count();
    });
    found
}

/// Blocks of a key in the arena in front of its round keys: powers of the hash key.
const POWERS: usize = 37;
/// Blocks of a key in the arena.
const KEY_BLOCKS: usize = POWERS + 15;

/// Makes a key, and returns with it what it holds: round keys and powers of the hash key.
pub(crate) fn key_and_secrets(bytes: &[u8], path: Path) -> (Key, Vec<[u8; 16]>) {
    LAST.set((0, 0));
    let key = Key::with_path(bytes, path).expect("an available path");
    let mut places = Vec::new();
    if path == Path::Portable {
        let (address, len) = LAST.get();
        places.push((address, len / 16));
    } else {
        // The first round key is the first half of the key, or all of it.
        pages(|page, content| {
            let found = (0..content.len() / 16).filter(|n| content[16 * n..][..16] == bytes[..16]);
            let starts = found.filter_map(|n| (page + 16 * n).checked_sub(16 * POWERS));
            places.extend(
                starts
                    .filter(|start| start % 64 == 0)
                    .map(|at| (at, KEY_BLOCKS)),
            );
        });
    }
    // Copies of the key that is given are found too, but nothing like powers is in front of them.
    let memory = std::fs::File::open("/proc/self/mem").expect("this process's memory");
    let read = |&(address, blocks): &(usize, usize)| {
        let mut blocks = vec![[0; 16]; blocks];
        for (n, block) in blocks.iter_mut().enumerate() {
            // What is not mapped stays 0.
            let _ = memory.read_exact_at(block, (address + 16 * n) as u64);
        }
        // Gaps and numbers of rounds are no secrets.
        blocks.retain(|block: &[u8; 16]| block.iter().filter(|byte| **byte != 0).count() > 8);
        blocks
    };
    let secrets = places
        .iter()
        .map(read)
        .max_by_key(Vec::len)
        .expect("the key");
    let least = if path == Path::Portable { 11 } else { 11 + 17 };
    assert!(
        secrets.len() >= least,
        "{path}: round keys and powers, not {}",
        secrets.len()
    );
    (key, secrets)
}

#[test]
fn a_dropped_key_is_nowhere_in_memory() {
    for path in paths().into_iter().filter(|&path| path != Path::Portable) {
        for len in [16, 32] {
            let mut bytes: Vec<u8> = (0..len).map(key_byte).collect();
            let key = Key::with_path(&bytes, path).expect("an available path");
            bytes.fill(0);
            std::hint::black_box(&bytes);
            assert_eq!(
                blocks_with_key(len),
                1,
                "{path}, {len} bytes: one place while it is used"
            );
            drop(key);
            assert_eq!(blocks_with_key(len), 0, "{path}, {len} bytes");
        }
    }
}

/// Keys of the other paths are in an arena, which wipes what is given back to it.
#[test]
fn a_dropped_key_leaves_neither_round_keys_nor_powers_of_the_hash_key() {
    for path in [Path::Portable] {
        for len in [16, 32] {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 37 + 11) as u8).collect();
            let key = Key::with_path(&bytes, path).expect("an available path");
            NOTED.with(|noted| *noted.borrow_mut() = Some(([0; LEN], 0)));
            drop(key);
            let noted = NOTED.with(|noted| noted.borrow_mut().take());
            let (contents, block_len) = noted.expect("it was armed");
            assert!(block_len >= 176, "{path}: a key has eleven round keys");
            let left = contents[..block_len]
                .iter()
                .filter(|&&byte| byte != 0)
                .count();
            // A few bytes tell which implementation it is.
            assert!(
                left <= 8,
                "{path}, {len} bytes: {left} of {block_len} bytes left"
            );
        }
    }
}
