//! The contents of a key's memory when it is given back.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
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
        // SAFETY: the caller's contract.
        let block = unsafe { System.alloc(layout) };
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

/// Makes a key, and returns with it what it holds: round keys and powers of the hash key.
pub(crate) fn key_and_secrets(bytes: &[u8], path: Path) -> (Key, Vec<[u8; 16]>) {
    LAST.set((0, 0));
    let key = Key::with_path(bytes, path).expect("an available path");
    let (address, len) = LAST.get();
    let secrets = (0..len / 16).map(|i| {
        let block = std::ptr::with_exposed_provenance::<[u8; 16]>(address + 16 * i);
        // SAFETY: within the block, which the key owns. Padding, if any, is read as it is.
        unsafe { block.read_volatile() }
    });
    // Gaps and numbers of rounds are no secrets.
    let secrets: Vec<_> = secrets
        .filter(|block| block.iter().filter(|byte| **byte != 0).count() > 8)
        .collect();
    assert!(secrets.len() >= 11, "{path}: a key has eleven round keys");
    (key, secrets)
}

#[test]
fn a_dropped_key_leaves_neither_round_keys_nor_powers_of_the_hash_key() {
    for path in Path::available() {
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
            // The portable path's holds a few bytes that tell which implementation it is.
            let allowed = if path == Path::Portable { 8 } else { 0 };
            assert!(
                left <= allowed,
                "{path}, {len} bytes: {left} of {block_len} bytes left"
            );
        }
    }
}
