//! Work for valgrind: run by `tests/memcheck.rs`.
//!
//! Keys and plaintext are marked as undefined, so that memcheck reports every branch and every
//! address that depends on them (the method of ctgrind), besides what it reports anyway. Only the
//! paths that valgrind can run take part.

use tare_gcm::{Key, Nonce, Path, SharedRead, SharedWrite};

/// A request to valgrind; does nothing anywhere else.
#[cfg(target_arch = "x86_64")]
fn request(code: u64, bytes: &mut [u8]) {
    let arguments = [code, bytes.as_mut_ptr() as u64, bytes.len() as u64, 0, 0, 0];
    // SAFETY: four rotations that add up to none and an exchange of a register with itself:
    // valgrind's marker. The arguments are alive; the result comes in rdx.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
            inout("rdx") 0u64 => _, in("rax") &raw const arguments, in("rdi") 0u64,
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn request(_: u64, _: &mut [u8]) {}

const MAKE_MEM_UNDEFINED: u64 = 0x4d43_0001;
const MAKE_MEM_DEFINED: u64 = 0x4d43_0002;

fn main() {
    for path in [Path::AesNi, Path::Portable] {
        if !path.is_available() {
            println!("NOT TESTED: the {path} path is not available here");
            continue;
        }
        let mut opened_count = 0;
        for key_len in [16, 32] {
            let mut key_bytes = vec![7; key_len];
            request(MAKE_MEM_UNDEFINED, &mut key_bytes);
            let key = Key::with_path(&key_bytes, path).expect("a path that is available");
            for len in [0usize, 1, 15, 16, 60, 96, 127, 255, 256, 1000] {
                // Exact allocations: an access past either end is reported.
                let mut plaintext = vec![9; len];
                request(MAKE_MEM_UNDEFINED, &mut plaintext);
                let mut shared = vec![0; len];
                let sealed = key.seal(
                    Nonce::from([1; 12]),
                    b"additional",
                    &plaintext,
                    SharedWrite::from(&mut shared[..]),
                );
                let mut tag = sealed.expect("a short message");
                let halves = [&plaintext[..len / 2], &plaintext[len / 2..]];
                let mut again = vec![0; len];
                key.seal_scattered(
                    Nonce::from([1; 12]),
                    b"additional",
                    &halves,
                    &mut [SharedWrite::from(&mut again[..])],
                )
                .expect("a short message");
                // Ciphertext and tag are public.
                request(MAKE_MEM_DEFINED, &mut shared);
                let mut bytes = *tag.as_bytes();
                request(MAKE_MEM_DEFINED, &mut bytes);
                tag = bytes.into();
                let mut opened = vec![0; len];
                let ciphertext = SharedRead::from(&shared[..]);
                // Whether the tag matched is public too, but valgrind cannot know: the test allows
                // that one branch.
                key.open(
                    &Nonce::from([1; 12]),
                    b"additional",
                    ciphertext,
                    &tag,
                    &mut opened,
                )
                .expect("a valid tag");
                opened_count += 1;
            }
        }
        println!("ran: {path}, messages opened: {opened_count}");
    }
}
