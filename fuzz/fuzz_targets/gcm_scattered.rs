//! Lists of pieces, cut by the fuzzer: every path must agree with the contiguous call, both ways,
//! and refuse a forgery.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tare_gcm::{Error, Key, Nonce, Path, SharedRead, SharedWrite, Tag};

/// Consumes bytes of the input as the lengths of pieces that add up to `total`.
fn cut(input: &mut &[u8], mut total: usize) -> Vec<usize> {
    let mut lens = Vec::new();
    while total > 0 && lens.len() < 64 {
        let Some((first, rest)) = input.split_first() else {
            break;
        };
        *input = rest;
        // Mostly short pieces, some that cross several steps, some empty.
        let len = (usize::from(*first) * if first % 5 == 0 { 9 } else { 1 }).min(total);
        lens.push(len);
        total -= len;
    }
    lens.push(total);
    lens
}

fuzz_target!(|input: &[u8]| {
    let mut input = input;
    let Some((head, rest)) = input.split_at_checked(4) else {
        return;
    };
    input = rest;
    let len = usize::from(u16::from_le_bytes([head[0], head[1]])) % 5000;
    let aad = &[7u8; 64][..usize::from(head[2]) % 64];
    let key_len = if head[3] & 1 == 0 { 16 } else { 32 };
    let (lens_in, lens_out) = (cut(&mut input, len), cut(&mut input, len));
    let plaintext: Vec<u8> = (0..len)
        .map(|i| (i as u8) ^ input.get(i % input.len().max(1)).unwrap_or(&0))
        .collect();

    let reference = Key::with_path(&vec![1; key_len], Path::Portable).unwrap();
    let mut expected = plaintext.clone();
    let tag = reference
        .seal_in_place(Nonce::from([head[0]; 12]), aad, &mut expected)
        .unwrap();
    for path in Path::available() {
        let key = Key::with_path(&vec![1; key_len], path).unwrap();
        let nonce = || Nonce::from([head[0]; 12]);
        let mut ins = Vec::new();
        let mut rest = &plaintext[..];
        for len in &lens_in {
            let (piece, after) = rest.split_at(*len);
            ins.push(piece);
            rest = after;
        }
        let mut sealed = vec![0; len];
        let mut outs = Vec::new();
        let mut rest = Some(SharedWrite::from(&mut sealed[..]));
        for len in &lens_out {
            let (piece, after) = rest.take().unwrap().split_at(*len).unwrap();
            outs.push(piece);
            rest = Some(after);
        }
        assert_eq!(key.seal_scattered(nonce(), aad, &ins, &mut outs), Ok(tag));
        assert_eq!(sealed, expected);

        let mut reads = Vec::new();
        let mut rest = SharedRead::from(&sealed[..]);
        for len in &lens_out {
            let (piece, after) = rest.split_at(*len).unwrap();
            reads.push(piece);
            rest = after;
        }
        let mut opened = vec![0xaa; len];
        let mut into = Vec::new();
        let mut rest = &mut opened[..];
        for len in &lens_in {
            let (piece, after) = rest.split_at_mut(*len);
            into.push(piece);
            rest = after;
        }
        assert_eq!(
            key.open_scattered(&nonce(), aad, &reads, &tag, &mut into),
            Ok(())
        );
        let mut forged = *tag.as_bytes();
        forged[usize::from(head[3]) % 16] ^= 1;
        let mut wiped = vec![0xaa; len];
        let result = key.open_scattered(
            &nonce(),
            aad,
            &reads,
            &Tag::from(forged),
            &mut [&mut wiped[..]],
        );
        assert_eq!(result, Err(Error::Forged));
        assert!(wiped.iter().all(|byte| *byte == 0));
        assert_eq!(opened, plaintext);
    }
});
