//! Secrets on the stack after a call: raw key bytes, and the mask of the tag, E(J0).

use aes::cipher::{Array, BlockCipherEncrypt, KeyInit};
use std::arch::asm;
use std::collections::HashSet;
use tare_gcm::{
    open_each, seal_each, Error, Key, Nonce, OpenPacket, Path, SealPacket, SharedRead, SharedWrite,
    Tag,
};

use crate::common::paths;
use crate::{heap, stack};

const NONCE: [u8; 12] = [3; 12];
/// Not empty: the tag of a message without any bytes is the mask itself.
const AAD: [u8; 12] = [7; 12];

/// The encryption of J0 (NIST SP 800-38D, 7.1) under a key of 16 or 32 bytes.
fn tag_mask(key: &[u8]) -> [u8; 16] {
    let mut block = Array::from([3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 0, 0, 0, 1]);
    match key.len() {
        16 => aes::Aes128::new_from_slice(key)
            .expect("16 bytes")
            .encrypt_block(&mut block),
        _ => aes::Aes256::new_from_slice(key)
            .expect("32 bytes")
            .encrypt_block(&mut block),
    }
    block.into()
}

fn key_bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 37 + 11) as u8).collect()
}

/// The part of a stack that was used: most of it never was. Pages are looked at as a whole, for a
/// stack has a thousand of them.
fn used(stack: &[u8]) -> &[u8] {
    static ZEROS: [u8; 4096] = [0; 4096];
    let is_used = |page: &[u8]| *page != ZEROS[..page.len()];
    let page = stack.chunks(ZEROS.len()).position(is_used);
    let stack = &stack[page.map_or(stack.len(), |page| page * ZEROS.len())..];
    let first = stack.iter().position(|&byte| byte != 0);
    &stack[first.unwrap_or(stack.len())..]
}

/// Returns true if the used part of a stack holds a secret.
fn holds(used: &[u8], secret: &[u8]) -> bool {
    used.windows(secret.len()).any(|window| window == secret)
}

/// Returns the number of different ones of these blocks of 16 bytes that the used part of a stack
/// holds.
fn held<'a>(used: &'a [u8], blocks: impl Iterator<Item = &'a [u8]>) -> usize {
    let blocks: HashSet<&[u8]> = blocks.collect();
    let windows = used.windows(16).filter(|window| blocks.contains(*window));
    windows.collect::<HashSet<&[u8]>>().len()
}

#[test]
fn a_new_key_leaves_no_part_of_its_schedule_on_the_stack() {
    for path in paths() {
        for len in [16, 32] {
            let bytes = key_bytes(len);
            let (first, secrets) = heap::key_and_secrets(&bytes, path);
            let (stack, key) = stack::after(|| {
                let key = Key::with_path(&bytes, path);
                clear_registers();
                key
            });
            assert!(key.is_ok());
            let left = used(stack.all());
            for half in bytes.chunks(16) {
                assert!(!holds(left, half), "{path}, {len} bytes");
            }
            let left = held(left, secrets.iter().map(|it| &it[..]));
            assert_eq!(left, 0, "{path}, {len} bytes");
            drop(first);
        }
    }
}

#[test]
fn messages_in_pieces_and_portable_ones_leave_no_tag_mask_and_no_plaintext_on_the_stack() {
    for path in paths() {
        for key_len in [16, 32] {
            let bytes = key_bytes(key_len);
            let mask = tag_mask(&bytes);
            let key = Key::with_path(&bytes, path).expect("an available path");
            for len in [0, 16, 100, 1000, 3000] {
                let plaintext: Vec<u8> = (0..len).map(|i| (i * i / 7 + 3 * i) as u8).collect();
                let blocks = || plaintext.chunks_exact(16);
                let mut sealed = vec![0u8; len];
                let (stack, tag) = stack::after(|| seal_in_pieces(&key, &plaintext, &mut sealed));
                let left = used(stack.all());
                assert!(!holds(left, &mask), "sealing, {path}, {key_len}, {len}");
                assert_eq!(held(left, blocks()), 0);
                let mut opened = vec![0u8; len];
                let (stack, ()) = stack::after(|| open_in_pieces(&key, &sealed, &tag, &mut opened));
                let left = used(stack.all());
                assert!(!holds(left, &mask), "opening, {path}, {key_len}, {len}");
                assert_eq!(held(left, blocks()), 0);
                assert_eq!(opened, plaintext);
                if path == Path::Portable {
                    let (stack, _) = stack::after(|| {
                        key.seal_in_place(Nonce::from(NONCE), &AAD, &mut opened)
                            .is_ok()
                    });
                    let left = used(stack.all());
                    assert!(!holds(left, &mask), "in place, {path}, {key_len}, {len}");
                }
            }
        }
    }
}

/// A call for whole messages, on a stack of its own.
type Call = fn(&Key, &[u8], &[u8], &Tag);

fn seal(key: &Key, plaintext: &[u8], _: &[u8], _: &Tag) {
    let mut out = vec![0; plaintext.len()];
    let to = SharedWrite::from(&mut out[..]);
    let tag = key.seal(Nonce::from(NONCE), &AAD, plaintext, to);
    assert!(tag.is_ok());
}

fn open(key: &Key, _: &[u8], sealed: &[u8], tag: &Tag) {
    let mut out = vec![0; sealed.len()];
    let opened = key.open(
        &Nonce::from(NONCE),
        &AAD,
        SharedRead::from(sealed),
        tag,
        &mut out,
    );
    assert_eq!(opened, Ok(()));
}

/// More additional data than is hashed one block after the other.
const MUCH: [u8; 1500] = [7; 1500];

fn seal_after_much(key: &Key, plaintext: &[u8], _: &[u8], _: &Tag) {
    let mut out = vec![0; plaintext.len()];
    let to = SharedWrite::from(&mut out[..]);
    let tag = key.seal(Nonce::from(NONCE), &MUCH, plaintext, to);
    assert!(tag.is_ok());
}

/// The tag is of other additional data, so this is a forgery, which is decrypted all the same.
fn open_after_much(key: &Key, _: &[u8], sealed: &[u8], tag: &Tag) {
    let mut out = vec![0; sealed.len()];
    let from = SharedRead::from(sealed);
    let opened = key.open(&Nonce::from(NONCE), &MUCH, from, tag, &mut out);
    assert_eq!(opened, Err(Error::Forged));
}

fn seal_five(key: &Key, plaintext: &[u8], _: &[u8], _: &Tag) {
    let mut outs = vec![vec![0; plaintext.len()]; 5];
    let packets = outs.iter_mut().map(|out| {
        let to = SharedWrite::from(&mut out[..]);
        SealPacket::new(key, Nonce::from(NONCE), &AAD, plaintext, to).expect("equal lengths")
    });
    seal_each(packets, |_, _| {});
}

fn open_five(key: &Key, _: &[u8], sealed: &[u8], tag: &Tag) {
    let mut outs = vec![vec![0; sealed.len()]; 5];
    let packets = outs.iter_mut().map(|out| {
        let from = SharedRead::from(sealed);
        OpenPacket::new(key, Nonce::from(NONCE), &AAD, from, *tag, out).expect("equal lengths")
    });
    assert_eq!(open_each(packets, |_, _| {}), 5);
}

/// The lengths of five packets that share a key with none of their neighbours.
fn lengths(len: usize) -> [usize; 5] {
    [len, len, len - len / 4, len, len / 2]
}

/// A key that takes turns with the one whose secrets are looked for.
fn other_key(key: &Key, len: usize) -> Key {
    let bytes: Vec<u8> = key_bytes(len).iter().map(|byte| !byte).collect();
    Key::with_path(&bytes, key.path()).expect("an available path")
}

fn seal_mixed<const KEY_LEN: usize>(key: &Key, plaintext: &[u8], _: &[u8], _: &Tag) {
    let other = other_key(key, KEY_LEN);
    let mut outs = lengths(plaintext.len()).map(|len| vec![0; len]);
    let packets = outs.iter_mut().enumerate().map(|(i, out)| {
        let key = [key, &other][i % 2];
        let plaintext = &plaintext[..out.len()];
        let to = SharedWrite::from(&mut out[..]);
        SealPacket::new(key, Nonce::from(NONCE), &AAD, plaintext, to).expect("equal lengths")
    });
    seal_each(packets, |_, _| {});
}

/// All but the first are forged, and decrypted all the same.
fn open_mixed<const KEY_LEN: usize>(key: &Key, _: &[u8], sealed: &[u8], tag: &Tag) {
    let other = other_key(key, KEY_LEN);
    let mut outs = lengths(sealed.len()).map(|len| vec![0; len]);
    let packets = outs.iter_mut().enumerate().map(|(i, out)| {
        let key = [key, &other][i % 2];
        let from = SharedRead::from(&sealed[..out.len()]);
        OpenPacket::new(key, Nonce::from(NONCE), &AAD, from, *tag, out).expect("equal lengths")
    });
    assert!(open_each(packets, |_, _| {}) >= 1);
}

/// The right tag is all that a forgery lacks: a ciphertext that comes with another one must not
/// leave it. (The portable path holds it over its wipe of the stack.)
#[test]
fn a_forgery_leaves_no_right_tag_on_the_stack() {
    for path in paths().into_iter().filter(|path| *path != Path::Portable) {
        for key_len in [16, 32] {
            let key = Key::with_path(&key_bytes(key_len), path).expect("an available path");
            for len in [0, 1, 16, 60, 64, 100, 256, 300, 512, 1000, 3000] {
                let mut sealed = vec![0x5a; len];
                let right = key.seal_in_place(Nonce::from(NONCE), &AAD, &mut sealed);
                let right = *right.expect("a short message").as_bytes();
                let wrong = Tag::from(right.map(|byte| !byte));
                let mut out = vec![0; len];
                let (stack, opened) = stack::after(|| {
                    let from = SharedRead::from(&sealed[..]);
                    key.open(&Nonce::from(NONCE), &AAD, from, &wrong, &mut out)
                });
                assert_eq!(opened, Err(Error::Forged));
                // Halves too, for tags are compared as words.
                let used = used(stack.all());
                let left = right.chunks(8).any(|half| holds(used, half));
                assert!(!left, "{path}, {key_len}, {len}");
            }
        }
    }
}

/// A control: a secret that is not wiped must be found.
fn keep_a_block(_: &Key, plaintext: &[u8], _: &[u8], _: &Tag) {
    let mut block = [0u8; 64];
    let len = plaintext.len().min(64);
    block[..len].copy_from_slice(&plaintext[..len]);
    std::hint::black_box(&mut block);
}

#[test]
fn whole_messages_and_batches_leave_no_secrets_on_the_stack() {
    let mut found = Vec::new();
    for path in paths() {
        for key_len in [16, 32] {
            let mixed: [Call; 2] = match key_len {
                16 => [seal_mixed::<16>, open_mixed::<16>],
                _ => [seal_mixed::<32>, open_mixed::<32>],
            };
            let calls: [(&str, Call); 8] = [
                ("seal", seal),
                ("open", open),
                ("seal after much additional data", seal_after_much),
                ("open after much additional data", open_after_much),
                ("seal_each", seal_five),
                ("open_each", open_five),
                ("seal_each of several keys and lengths", mixed[0]),
                ("open_each of several keys and lengths", mixed[1]),
            ];
            let bytes = key_bytes(key_len);
            let (key, mut secrets) = heap::key_and_secrets(&bytes, path);
            secrets.push(tag_mask(&bytes));
            // What a block's counter and the first round key make.
            secrets.extend((0..10).map(|counter| {
                let mut block: [u8; 16] = bytes[..16].try_into().expect("16 bytes");
                block[..12].iter_mut().for_each(|byte| *byte ^= NONCE[0]);
                block[15] ^= counter;
                block
            }));
            for len in [
                1, 16, 48, 60, 64, 65, 96, 100, 112, 128, 200, 255, 500, 1440, 4100, 9000,
            ] {
                let plaintext: Vec<u8> = (0..len).map(|i| (i * i / 7 + 3 * i) as u8).collect();
                let mut sealed = plaintext.clone();
                let tag = key.seal_in_place(Nonce::from(NONCE), &AAD, &mut sealed);
                let tag = tag.expect("a short message");
                let count = |call: Call| {
                    let (stack, ()) = stack::after(|| {
                        call(&key, &plaintext, &sealed, &tag);
                        clear_registers();
                    });
                    let used = used(stack.all());
                    let secrets = held(used, secrets.iter().map(|secret| &secret[..]));
                    (secrets, held(used, plaintext.chunks_exact(16)))
                };
                assert!(len < 64 || count(keep_a_block).1 > 0);
                for (name, call) in calls {
                    let (secrets, plaintext) = count(call);
                    if secrets + plaintext > 0 {
                        found.push(format!(
                            "{path}, {key_len}, {name}, {len} bytes: {secrets} blocks of secrets, {plaintext} of \
                             plaintext"
                        ));
                    }
                }
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Clears the vector registers, which the end of a thread saves on its stack.
#[inline(never)]
#[cfg(target_arch = "x86_64")]
fn clear_registers() {
    use std::arch::is_x86_feature_detected as has;
    // SAFETY: the processor has the instructions; the blocks name what they change.
    unsafe {
        if has!("avx512f") {
            clear_upper_16();
        }
        if has!("avx") {
            asm!("vzeroall", clobber_abi("C"));
        }
    }
}

/// Those that only AVX-512 has.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn clear_upper_16() {
    macro_rules! clear {
        ($($register:literal)*) => {
            // SAFETY: registers only.
            unsafe { asm!($(concat!("vpxorq ", $register, ", ", $register, ", ", $register),)* clobber_abi("C")) }
        };
    }
    clear!("zmm16" "zmm17" "zmm18" "zmm19" "zmm20" "zmm21" "zmm22" "zmm23");
    clear!("zmm24" "zmm25" "zmm26" "zmm27" "zmm28" "zmm29" "zmm30" "zmm31");
}

/// The same of AArch64, but for those that a function gives back as they were: to save these takes
/// the stack that is looked at.
#[inline(never)]
#[cfg(target_arch = "aarch64")]
fn clear_registers() {
    macro_rules! clear {
        ($($register:tt)*) => {
            // SAFETY: registers only.
            unsafe { asm!($(concat!("movi ", $register, ".16b, #0"),)* $(out($register) _,)*) }
        };
    }
    clear!("v0" "v1" "v2" "v3" "v4" "v5" "v6" "v7" "v16" "v17" "v18" "v19" "v20" "v21");
    clear!("v22" "v23" "v24" "v25" "v26" "v27" "v28" "v29" "v30" "v31");
}

fn seal_in_pieces(key: &Key, plaintext: &[u8], sealed: &mut [u8]) -> Tag {
    let (a, b) = sealed.split_at_mut(plaintext.len() / 3);
    let out = &mut [SharedWrite::from(a), SharedWrite::from(b)];
    let tag = key.seal_scattered(Nonce::from(NONCE), &AAD, &[plaintext], out);
    tag.expect("equal lengths")
}

fn open_in_pieces(key: &Key, sealed: &[u8], tag: &Tag, opened: &mut [u8]) {
    let (a, b) = opened.split_at_mut(sealed.len() / 3);
    let from = &[SharedRead::from(sealed)];
    let result = key.open_scattered(&Nonce::from(NONCE), &AAD, from, tag, &mut [a, b]);
    result.expect("an authentic message");
}
