//! Secrets on the stack after a call: raw key bytes, and the mask of the tag, E(J0).

use aes::cipher::{Array, BlockCipherEncrypt, KeyInit};
use tare_gcm::{Key, Nonce, Path, SharedRead, SharedWrite, Tag};

use crate::stack;

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

fn holds(stack: &[u8], secret: &[u8]) -> bool {
    // Most of it was never used.
    let used = stack
        .iter()
        .position(|&byte| byte != 0)
        .unwrap_or(stack.len());
    stack[used..]
        .windows(secret.len())
        .any(|window| window == secret)
}

#[test]
fn a_new_key_leaves_no_key_bytes_on_the_stack() {
    for path in Path::available() {
        for len in [16, 32] {
            let bytes = key_bytes(len);
            let (stack, key) = stack::after(|| Key::with_path(&bytes, path).map(Box::new));
            assert!(key.is_ok());
            for half in bytes.chunks(16) {
                assert!(!holds(stack.all(), half), "{path}, {len} bytes");
            }
        }
    }
}

#[test]
fn messages_in_pieces_and_portable_ones_leave_no_tag_mask_and_no_plaintext_on_the_stack() {
    for path in Path::available() {
        for key_len in [16, 32] {
            let bytes = key_bytes(key_len);
            let mask = tag_mask(&bytes);
            let key = Key::with_path(&bytes, path).expect("an available path");
            for len in [0, 16, 100, 1000, 3000] {
                let plaintext: Vec<u8> = (0..len).map(|i| (i * i / 7 + 3 * i) as u8).collect();
                let blocks = || plaintext.chunks_exact(16);
                let mut sealed = vec![0u8; len];
                let (stack, tag) = stack::after(|| seal_in_pieces(&key, &plaintext, &mut sealed));
                assert!(
                    !holds(stack.all(), &mask),
                    "sealing, {path}, {key_len}, {len}"
                );
                assert!(!blocks().any(|block| holds(stack.all(), block)));
                let mut opened = vec![0u8; len];
                let (stack, ()) = stack::after(|| open_in_pieces(&key, &sealed, &tag, &mut opened));
                assert!(
                    !holds(stack.all(), &mask),
                    "opening, {path}, {key_len}, {len}"
                );
                assert!(!blocks().any(|block| holds(stack.all(), block)));
                assert_eq!(opened, plaintext);
                if path == Path::Portable {
                    let (stack, _) = stack::after(|| {
                        key.seal_in_place(Nonce::from(NONCE), &AAD, &mut opened)
                            .is_ok()
                    });
                    assert!(
                        !holds(stack.all(), &mask),
                        "in place, {path}, {key_len}, {len}"
                    );
                }
            }
        }
    }
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
