//! The contents of a key's memory when it is given back.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::RefCell;
use std::os::unix::fs::FileExt as _;
use tare_gcm::{Key, Path};

/// The system's allocator; copies blocks that this thread gives back, when it is asked to.
struct Noting;

#[global_allocator]
static ALLOCATOR: Noting = Noting;

/// The bytes of a block that are copied at most.
const LEN: usize = 4096;

thread_local! {
    /// The contents and the length of the block given back last, once it is `Some`.
    static NOTED: RefCell<Option<([u8; LEN], usize)>> = const { RefCell::new(None) };
}

// SAFETY: the system's allocator, and a look at memory that is still allocated.
unsafe impl GlobalAlloc for Noting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
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

/// A byte of a key that no other test uses.
fn key_byte(i: usize) -> u8 {
    (i * 29 + 7) as u8
}

/// Returns the number of aligned blocks of this process's memory that hold the end of such a key of
/// `len` bytes: a round key is that.
fn blocks_with_key(len: usize) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the list of mappings");
    let memory = std::fs::File::open("/proc/self/mem").expect("this process's memory");
    let mut page = vec![0; 4096];
    let mut found = 0;
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let (start, end) = line
            .split_once(' ')
            .and_then(|(range, _)| range.split_once('-'))
            .expect("a range");
        let number = |text| usize::from_str_radix(text, 16).expect("an address");
        for at in (number(start)..number(end)).step_by(page.len()) {
            // Other tests unmap their stacks meanwhile.
            if memory.read_exact_at(&mut page, at as u64).is_ok() {
                // Compared byte by byte: the key is to be in no place of this test's own.
                let holds = |block: &&[u8]| (0..16).all(|i| block[i] == key_byte(len - 16 + i));
                found += page.chunks_exact(16).filter(holds).count();
            }
            page.fill(0);
        }
    }
    found
}

#[test]
fn a_dropped_key_is_nowhere_in_memory() {
    for path in Path::available().filter(|&path| path != Path::Portable) {
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
