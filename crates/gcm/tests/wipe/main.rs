//! Calls leave nothing behind that they should wipe: `main.rs` looks for the plaintext of forged
//! messages in buffers that die at once, `secrets.rs` for secrets on the stack.
//!
//! A store to memory that is never read again may be dropped by the compiler, and a local variable
//! is never read again once its function returns. So each call here is made by a function whose
//! output is a local array, on a thread whose stack is memory of this test, which is read when the
//! thread has ended.

#[path = "../common/mod.rs"]
mod common;
mod heap;
mod secrets;
mod stack;

use common::paths;
use tare_gcm::{
    open_batch, open_each, Error, Key, Nonce, OpenPacket, Path, SharedRead, SharedWrite, Tag,
};

const NONCE: [u8; 12] = [3; 12];
const AAD: [u8; 12] = [7; 12];
const LEN_MAX: usize = 2048;
/// Packets in a batch: four that are worked on together, and one that is left over.
const BATCH: usize = 5;

struct Case {
    key: Key,
    plaintext: Vec<u8>,
    ciphertext: Vec<u8>,
    forged: Tag,
}

impl Case {
    fn new(path: Path, key_len: usize, len: usize) -> Case {
        let key = Key::with_path(&vec![9; key_len], path).expect("an available path");
        // No byte is zero, and no two words are equal.
        let plaintext: Vec<u8> = (0..len)
            .map(|i| ((i * 7 + i / 251) % 255 + 1) as u8)
            .collect();
        let mut ciphertext = vec![0; len];
        let out = SharedWrite::from(&mut ciphertext[..]);
        let tag = key.seal(Nonce::from(NONCE), &AAD, &plaintext, out);
        let mut forged = *tag.expect("a short message").as_bytes();
        forged[15] ^= 1;
        Case {
            key,
            plaintext,
            ciphertext,
            forged: Tag::from(forged),
        }
    }

    fn shared(&self) -> SharedRead<'_> {
        SharedRead::from(&self.ciphertext[..])
    }
}

/// Opens a forged message into a local array and returns the address of its output, or the
/// addresses, as many as [`BATCH`].
type Open = fn(&Case) -> [usize; BATCH];

#[inline(never)]
fn open(case: &Case) -> [usize; BATCH] {
    let mut out = [0; LEN_MAX];
    let out = &mut out[..case.plaintext.len()];
    let address = out.as_ptr().addr();
    let nonce = Nonce::from(NONCE);
    let opened = case
        .key
        .open(&nonce, &AAD, case.shared(), &case.forged, out);
    assert_eq!(opened, Err(Error::Forged));
    [address; BATCH]
}

#[inline(never)]
fn open_in_place(case: &Case) -> [usize; BATCH] {
    let mut data = [0; LEN_MAX];
    let data = &mut data[..case.plaintext.len()];
    data.copy_from_slice(&case.ciphertext);
    let address = data.as_ptr().addr();
    let nonce = Nonce::from(NONCE);
    let opened = case.key.open_in_place(&nonce, &AAD, data, &case.forged);
    assert_eq!(opened, Err(Error::Forged));
    [address; BATCH]
}

#[inline(never)]
fn open_scattered(case: &Case) -> [usize; BATCH] {
    let mut out = [0; LEN_MAX];
    let out = &mut out[..case.plaintext.len()];
    let address = out.as_ptr().addr();
    let (first, second) = out.split_at_mut(case.plaintext.len() / 3);
    let nonce = Nonce::from(NONCE);
    let pieces = &mut [first, second];
    let opened = case
        .key
        .open_scattered(&nonce, &AAD, &[case.shared()], &case.forged, pieces);
    assert_eq!(opened, Err(Error::Forged));
    [address; BATCH]
}

/// Five packets over five local arrays.
fn packets<'a>(
    case: &'a Case,
    outs: &'a mut [[u8; LEN_MAX]; BATCH],
    in_place: bool,
) -> [OpenPacket<'a>; BATCH] {
    outs.each_mut().map(|out| {
        let out = &mut out[..case.plaintext.len()];
        let nonce = Nonce::from(NONCE);
        let packet = if in_place {
            out.copy_from_slice(&case.ciphertext);
            OpenPacket::in_place(&case.key, nonce, &AAD, out, case.forged)
        } else {
            OpenPacket::new(&case.key, nonce, &AAD, case.shared(), case.forged, out)
        };
        packet.expect("equal lengths")
    })
}

#[inline(never)]
fn each(case: &Case) -> [usize; BATCH] {
    let mut outs = [[0; LEN_MAX]; BATCH];
    let addresses = outs.each_ref().map(|out| out.as_ptr().addr());
    let authentic = open_each(packets(case, &mut outs, false), |_, _| {});
    assert_eq!(authentic, 0);
    addresses
}

#[inline(never)]
fn each_in_place(case: &Case) -> [usize; BATCH] {
    let mut outs = [[0; LEN_MAX]; BATCH];
    let addresses = outs.each_ref().map(|out| out.as_ptr().addr());
    let authentic = open_each(packets(case, &mut outs, true), |_, _| {});
    assert_eq!(authentic, 0);
    addresses
}

#[inline(never)]
fn batch(case: &Case) -> [usize; BATCH] {
    let mut outs = [[0; LEN_MAX]; BATCH];
    let addresses = outs.each_ref().map(|out| out.as_ptr().addr());
    assert_eq!(open_batch(&mut packets(case, &mut outs, false)), 0);
    addresses
}

#[inline(never)]
fn batch_in_place(case: &Case) -> [usize; BATCH] {
    let mut outs = [[0; LEN_MAX]; BATCH];
    let addresses = outs.each_ref().map(|out| out.as_ptr().addr());
    assert_eq!(open_batch(&mut packets(case, &mut outs, true)), 0);
    addresses
}

/// A control: plaintext that is not wiped must be found.
#[inline(never)]
fn open_and_keep(case: &Case) -> [usize; BATCH] {
    let mut out = [0; LEN_MAX];
    out[..case.plaintext.len()].copy_from_slice(&case.plaintext);
    std::hint::black_box(&mut out);
    [out.as_ptr().addr(); BATCH]
}

/// Runs `open` on a stack of its own and returns what is left in its output, or its outputs.
fn leftovers(open: Open, case: &Case) -> Vec<Vec<u8>> {
    let (stack, addresses) = stack::after(|| open(case));
    let len = case.plaintext.len();
    addresses
        .map(|address| stack.bytes(address, len).to_vec())
        .to_vec()
}

/// The number of bytes of plaintext that are still there, in runs of four and more.
fn plaintext_bytes(left: &[u8], plaintext: &[u8]) -> usize {
    left.iter()
        .zip(plaintext)
        .map(|(a, b)| a == b)
        .collect::<Vec<bool>>()
        .chunk_by(|a, b| a == b)
        .filter(|run| run[0] && run.len() >= 4)
        .map(<[bool]>::len)
        .sum()
}

#[test]
fn a_forgery_leaves_no_plaintext_in_a_buffer_that_dies() {
    let calls: [(&str, Open); 7] = [
        ("open", open),
        ("open_in_place", open_in_place),
        ("open_scattered", open_scattered),
        ("open_each", each),
        ("open_each in place", each_in_place),
        ("open_batch", batch),
        ("open_batch in place", batch_in_place),
    ];
    let mut found = Vec::new();
    for path in paths() {
        for key_len in [16, 32] {
            for len in [16, 48, 60, 64, 65, 112, 128, 200, 600, 1500, 2048] {
                let case = Case::new(path, key_len, len);
                let control = leftovers(open_and_keep, &case);
                assert_eq!(plaintext_bytes(&control[0], &case.plaintext), len);
                for (name, open) in calls {
                    let bytes: usize = leftovers(open, &case)
                        .iter()
                        .map(|left| plaintext_bytes(left, &case.plaintext))
                        .sum();
                    if bytes > 0 {
                        let bits = 8 * key_len;
                        found.push(format!("{path}, AES-{bits}, {name}, {len} B: {bytes} left"));
                    }
                }
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
