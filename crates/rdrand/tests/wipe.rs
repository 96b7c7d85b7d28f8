//! The contents of memory that is given back: no key is in it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use tare_rdrand::aes_ctr::{AesCtr, KEY_TURN_BYTES};

/// The system's allocator, which looks for keys in the blocks that are given back.
struct Searching;

#[global_allocator]
static ALLOCATOR: Searching = Searching;

/// Blocks that were given back with a key in them.
static FOUND: AtomicUsize = AtomicUsize::new(0);

/// The bytes that every key begins with. No other memory of this program has them in a row.
const START: usize = 12;

/// A byte of the start of a key.
fn key_byte(at: usize) -> u8 {
    (at * 29 + 7) as u8
}

// SAFETY: the system's allocator, and a look at memory that is still allocated.
unsafe impl GlobalAlloc for Searching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract. Zeros, so that all of it may be read.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: within the block; volatile, for it may be written without a reader.
        let byte = |at| unsafe { block.add(at).read_volatile() };
        let mut row = 0;
        for at in 0..layout.size() {
            let read = byte(at);
            row = match read == key_byte(row) {
                true => row + 1,
                false => usize::from(read == key_byte(0)),
            };
            if row == START {
                FOUND.fetch_add(1, Ordering::Relaxed);
                row = 0;
            }
        }
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(block, layout) }
    }
}

#[test]
fn memory_that_is_given_back_holds_no_key() {
    let mut key = [0; 32];
    for (at, byte) in key[..START].iter_mut().enumerate() {
        *byte = key_byte(at);
    }
    drop(Box::new(key));
    assert_eq!(
        FOUND.swap(0, Ordering::Relaxed),
        1,
        "what is there is found"
    );
    let nonce = [1; 16];
    // More than a vector that grows begins with.
    let keys = [(&key[..], &nonce[..]); 9];
    let cipher = AesCtr::with_keys(&keys).unwrap();
    let mut data = vec![0; keys.len() * KEY_TURN_BYTES];
    cipher.encrypt_in_place(&mut data).unwrap();
    drop(cipher);
    assert!(data.iter().any(|&byte| byte != 0));
    assert_eq!(FOUND.load(Ordering::Relaxed), 0);
    // Of wrong keys those before are wiped too.
    let wrong = [keys[0], keys[0], (&key[..20], &nonce[..10])];
    assert!(AesCtr::with_keys(&wrong).is_err());
    assert_eq!(FOUND.load(Ordering::Relaxed), 0);
}
