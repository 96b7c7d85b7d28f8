//! A message over 4 GiB, and the longest, 64 GiB less 32 bytes. The same pages are mapped again and
//! again, so that they take little memory, but they take seconds: `cargo test -p tare-gcm --test
//! longest -- --ignored`.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

use aes::cipher::{Array, BlockCipherEncrypt, KeyInit};
use std::ptr;
use tare_gcm::{Key, Nonce, Path, SharedWrite, MESSAGE_LEN_MAX};

const LEN: usize = MESSAGE_LEN_MAX as usize;
/// Bytes of memory behind the output.
const WINDOW: usize = 64 << 20;

fn map(at: *mut libc::c_void, len: usize, access: i32, flags: i32, file: i32) -> *mut libc::c_void {
    // SAFETY: a new mapping, or one over a part of the room that this test has made.
    let start = unsafe { libc::mmap(at, len, access, flags, file, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    start
}

/// Returns a source of zeros and a destination of at least so many bytes.
fn source_and_destination(len: usize) -> (*const u8, *mut u8) {
    let room = len.next_multiple_of(WINDOW);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // Zeros: never written, so the kernel's own zero page.
    let source = map(ptr::null_mut(), room, libc::PROT_READ, flags, -1);
    // SAFETY: the mapping, whole; the name ends with a zero.
    let file = unsafe {
        libc::madvise(source, room, libc::MADV_HUGEPAGE);
        libc::memfd_create(c"longest".as_ptr(), 0)
    };
    // SAFETY: a descriptor of this test.
    assert_eq!(unsafe { libc::ftruncate(file, WINDOW as i64) }, 0);
    let target = map(ptr::null_mut(), room, libc::PROT_NONE, flags, -1);
    for at in (0..room).step_by(WINDOW) {
        let (access, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED,
        );
        map(target.wrapping_byte_add(at), WINDOW, access, flags, file);
    }
    (source.cast(), target.cast())
}

fn fast_paths() -> impl Iterator<Item = Path> {
    Path::available().filter(|path| *path != Path::Portable)
}

#[test]
#[ignore = "4 GiB twice on every fast path"]
fn a_message_over_4_gib_has_the_same_tag_in_one_piece_and_in_two() {
    let len = (4 << 30) + 1037;
    let (source, target) = source_and_destination(len);
    for path in fast_paths() {
        let key = Key::with_path(&[5; 16], path).unwrap();
        // SAFETY: both are mapped that far, and apart.
        let [whole, pieces] = unsafe {
            let plaintext = std::slice::from_raw_parts(source, len);
            let out = |from, len| SharedWrite::new(target.add(from), len);
            let whole = key.seal(Nonce::from([3; 12]), &[], plaintext, out(0, len));
            let out = &mut [out(0, 1000), out(1000, len - 1000)];
            [
                whole,
                key.seal_scattered(Nonce::from([3; 12]), &[], &[plaintext], out),
            ]
        };
        assert!(whole.is_ok() && whole == pieces, "{path}");
    }
}

#[test]
#[ignore = "64 GiB on every fast path"]
fn the_longest_message_uses_every_counter_once() {
    let (source, target) = source_and_destination(LEN);
    let mut tags = Vec::new();
    for path in fast_paths() {
        let began = std::time::Instant::now();
        let key = Key::with_path(&[5; 16], path).unwrap();
        // SAFETY: both are mapped that far, and apart.
        let tag = unsafe {
            let plaintext = std::slice::from_raw_parts(source, LEN);
            let out = SharedWrite::new(target, LEN);
            key.seal(Nonce::from([3; 12]), &[], plaintext, out).unwrap()
        };
        let aes = aes::Aes128::new_from_slice(&[5; 16]).unwrap();
        for counter in [
            u32::MAX,
            u32::MAX - 1,
            u32::MAX - 1000,
            u32::MAX - 4_000_000,
        ] {
            let mut block = Array::from([3; 16]);
            block[12..].copy_from_slice(&counter.to_be_bytes());
            aes.encrypt_block(&mut block);
            let at = (u64::from(counter) - 2) as usize * 16;
            // SAFETY: within the message.
            let found = unsafe { target.add(at).cast::<[u8; 16]>().read_unaligned() };
            assert_eq!(found, <[u8; 16]>::from(block), "{path}, {counter}");
        }
        println!("{path}: {:.1} s", began.elapsed().as_secs_f64());
        tags.push(tag);
    }
    // A tag over a length or blocks that one path lost would differ from the others'.
    assert!(tags.windows(2).all(|two| two[0] == two[1]), "{tags:?}");
}
