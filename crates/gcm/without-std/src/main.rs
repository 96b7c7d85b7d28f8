//! `tare-gcm` without its feature `std`: every path of this processor seals and opens, and memory
//! that held a key is zero when it is freed. `cargo xtask test` runs it, built apart from the
//! workspace, since one crate that wants `std` turns it on for all.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use tare_gcm::{Error, Key, Nonce, Path, SharedRead, SharedWrite, Tag};

/// The system's allocator, which looks at what is freed.
struct Watched;

/// The alignment of an expanded key, which nothing else here has.
const KEY_ALIGN: usize = 64;

static FREED: AtomicUsize = AtomicUsize::new(0);
static DIRTY: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract. Zeros, so that all bytes can be read when it is freed.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if layout.align() == KEY_ALIGN {
            FREED.fetch_add(1, Ordering::Relaxed);
            let dirty = (0..layout.size()).any(|at| {
                // SAFETY: within the block, which is still allocated and was zeroed at first.
                unsafe { block.add(at).read_volatile() != 0 }
            });
            DIRTY.fetch_add(usize::from(dirty), Ordering::Relaxed);
        }
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// "The Galois/Counter Mode of Operation" (McGrew and Viega), test cases 3 and 15: key, ciphertext
/// and tag. Nonce and plaintext are the same.
const CASES: [(&str, &str, &str); 2] = [
    (
        "feffe9928665731c6d6a8f9467308308",
        "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e\
         21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091473f5985",
        "4d5c2af327cd64a62cf35abd2ba6fab4",
    ),
    (
        "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308",
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa\
         8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015ad",
        "b094dac5d93471bdec1a502270e3cc6c",
    ),
];
const NONCE: &str = "cafebabefacedbaddecaf888";
const PLAINTEXT: &str = "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72\
                         1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pairs = digits.chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).unwrap_or_default();
        u8::from_str_radix(pair, 16).unwrap_or_default()
    });
    pairs.collect()
}

fn check(path: Path) -> Result<(), Error> {
    let nonce = || Nonce::try_from(&bytes(NONCE)[..]);
    let plaintext = bytes(PLAINTEXT);
    for (key, ciphertext, tag) in CASES {
        let key = Key::with_path(&bytes(key), path)?;
        let mut sealed = vec![0; plaintext.len()];
        let out = SharedWrite::from(&mut sealed[..]);
        let computed = key.seal(nonce()?, &[], &plaintext, out)?;
        assert_eq!(sealed, bytes(ciphertext), "{path}");
        assert_eq!(computed.as_bytes()[..], bytes(tag)[..], "{path}");
        let mut opened = vec![0; plaintext.len()];
        let ciphertext = SharedRead::from(&sealed[..]);
        key.open(&nonce()?, &[], ciphertext, &computed, &mut opened)?;
        assert_eq!(opened, plaintext, "{path}");
        let mut forged = *computed.as_bytes();
        forged[0] ^= 1;
        let forged = key.open(&nonce()?, &[], ciphertext, &Tag::from(forged), &mut opened);
        assert_eq!(forged, Err(Error::Forged), "{path}");
        assert!(opened.iter().all(|byte| *byte == 0), "{path}");
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    let mut expanded = 0;
    for path in Path::available() {
        check(path)?;
        // The portable path has no schedule.
        if path != Path::Portable {
            expanded += CASES.len();
        }
        println!("{path}: sealed and opened");
    }
    assert_eq!(FREED.load(Ordering::Relaxed), expanded, "keys on the heap");
    assert_eq!(DIRTY.load(Ordering::Relaxed), 0, "keys freed, not wiped");
    println!("{expanded} keys freed, all of them wiped");
    Ok(())
}
