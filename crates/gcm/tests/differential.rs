//! Every path against aws-lc-rs, by every length and by property. On an emulated processor of
//! another family, for which that library takes minutes to build, against the portable path.

mod common;

#[cfg(not(tare_without_references))]
use aws_lc_rs::aead::{self, LessSafeKey, UnboundKey};
use common::paths;
use proptest::prelude::*;
use tare_gcm::{Error, Key, Nonce, Path, SharedRead, SharedWrite, Tag};

/// The result of the portable path, which is that of the `aes` and `ghash` crates.
#[cfg(tare_without_references)]
fn reference(key: &[u8], nonce: [u8; 12], aad: &[u8], plaintext: &[u8]) -> (Vec<u8>, [u8; 16]) {
    let key = Key::with_path(key, Path::Portable).unwrap();
    let mut data = plaintext.to_vec();
    let tag = key.seal_in_place(Nonce::from(nonce), aad, &mut data);
    (data, *tag.unwrap().as_bytes())
}

/// The result of aws-lc-rs.
#[cfg(not(tare_without_references))]
fn reference(key: &[u8], nonce: [u8; 12], aad: &[u8], plaintext: &[u8]) -> (Vec<u8>, [u8; 16]) {
    let algorithm = if key.len() == 16 {
        &aead::AES_128_GCM
    } else {
        &aead::AES_256_GCM
    };
    let key = LessSafeKey::new(UnboundKey::new(algorithm, key).unwrap());
    let mut data = plaintext.to_vec();
    let nonce = aead::Nonce::assume_unique_for_key(nonce);
    let tag = key
        .seal_in_place_separate_tag(nonce, aead::Aad::from(aad), &mut data)
        .unwrap();
    (data, tag.as_ref().try_into().unwrap())
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(101).wrapping_add((i >> 8) as u8) ^ seed)
        .collect()
}

/// A buffer whose first byte is `offset` bytes past a multiple of 64, with guards around it.
struct Aligned {
    room: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn new(content: &[u8], offset: usize) -> Self {
        let mut room = vec![0xa5; content.len() + 256];
        let start = room.as_ptr().align_offset(64) + 64 + offset;
        room[start..start + content.len()].copy_from_slice(content);
        Self {
            room,
            start,
            len: content.len(),
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.room[self.start..self.start + self.len]
    }

    /// Checks that the bytes before and after the buffer are unchanged.
    fn is_intact(&self) -> bool {
        let (before, rest) = self.room.split_at(self.start);
        before
            .iter()
            .chain(&rest[self.len..])
            .all(|byte| *byte == 0xa5)
    }
}

/// Cuts at the given places, in order; places beyond the end make empty pieces.
fn lens(total: usize, cuts: &[usize]) -> Vec<usize> {
    let mut places: Vec<usize> = cuts
        .iter()
        .map(|cut| cut % (total + 1))
        .chain([total])
        .collect();
    places.sort_unstable();
    let mut from = 0;
    places
        .into_iter()
        .map(|to| (to - std::mem::replace(&mut from, to), to).0)
        .collect()
}

fn split<'a>(mut bytes: &'a [u8], lens: &[usize]) -> Vec<&'a [u8]> {
    lens.iter()
        .map(|len| {
            let (piece, rest) = bytes.split_at(*len);
            bytes = rest;
            piece
        })
        .collect()
}

fn split_mut<'a>(mut bytes: &'a mut [u8], lens: &[usize]) -> Vec<&'a mut [u8]> {
    lens.iter()
        .map(|len| {
            let (piece, rest) = std::mem::take(&mut bytes).split_at_mut(*len);
            bytes = rest;
            piece
        })
        .collect()
}

struct Case<'a> {
    key: &'a [u8],
    aad_len: usize,
    len: usize,
    from: usize,
    to: usize,
    cuts_in: &'a [usize],
    cuts_out: &'a [usize],
}

/// One message through every way in: contiguous, in place, scattered; sealed, opened, and forged.
fn check(path: Path, ours: &Key, case: &Case<'_>) {
    let (plaintext, aad) = (bytes(case.len, 1), bytes(case.aad_len, 2));
    let nonce_bytes = [case.len as u8; 12];
    let nonce = || Nonce::from(nonce_bytes);
    let (ciphertext, tag) = reference(case.key, nonce_bytes, &aad, &plaintext);
    let tag = Tag::from(tag);
    let name = || {
        format!(
            "{path}, {} bytes, key {}, +{}→+{}",
            case.len,
            case.key.len(),
            case.from,
            case.to
        )
    };

    let mut private = Aligned::new(&plaintext, case.from);
    let mut shared = Aligned::new(&vec![0x11; case.len], case.to);
    let out = SharedWrite::from(shared.bytes());
    assert_eq!(
        ours.seal(nonce(), &aad, private.bytes(), out),
        Ok(tag),
        "{}",
        name()
    );
    assert!(
        shared.bytes() == ciphertext && shared.is_intact(),
        "{}",
        name()
    );

    let mut opened = Aligned::new(&vec![0x22; case.len], case.from);
    let result = ours.open(
        &nonce(),
        &aad,
        SharedRead::from(&*shared.bytes()),
        &tag,
        opened.bytes(),
    );
    assert_eq!(result, Ok(()), "{}", name());
    assert!(
        opened.bytes() == plaintext && opened.is_intact(),
        "{}",
        name()
    );

    assert_eq!(
        ours.seal_in_place(nonce(), &aad, private.bytes()),
        Ok(tag),
        "{}",
        name()
    );
    assert!(
        private.bytes() == ciphertext && private.is_intact(),
        "in place: {}",
        name()
    );
    assert_eq!(
        ours.open_in_place(&nonce(), &aad, private.bytes(), &tag),
        Ok(()),
        "{}",
        name()
    );
    assert!(
        private.bytes() == plaintext && private.is_intact(),
        "in place: {}",
        name()
    );

    let (lens_in, lens_out) = (lens(case.len, case.cuts_in), lens(case.len, case.cuts_out));
    let mut scattered = Aligned::new(&vec![0x33; case.len], case.to);
    let mut out: Vec<SharedWrite<'_>> = split_mut(scattered.bytes(), &lens_out)
        .into_iter()
        .map(SharedWrite::from)
        .collect();
    let made = ours.seal_scattered(nonce(), &aad, &split(&plaintext, &lens_in), &mut out);
    assert_eq!(made, Ok(tag), "{lens_in:?} → {lens_out:?}: {}", name());
    drop(out);
    assert!(
        scattered.bytes() == ciphertext && scattered.is_intact(),
        "{lens_in:?} → {lens_out:?}: {}",
        name()
    );
    let pieces: Vec<SharedRead<'_>> = split(&ciphertext, &lens_in)
        .into_iter()
        .map(SharedRead::from)
        .collect();
    let mut back = Aligned::new(&vec![0x44; case.len], case.from);
    let result = ours.open_scattered(
        &nonce(),
        &aad,
        &pieces,
        &tag,
        &mut split_mut(back.bytes(), &lens_out),
    );
    assert_eq!(result, Ok(()), "{lens_in:?} → {lens_out:?}: {}", name());
    assert!(
        back.bytes() == plaintext && back.is_intact(),
        "{lens_in:?} → {lens_out:?}: {}",
        name()
    );

    let mut forged = *tag.as_bytes();
    forged[case.len % 16] ^= 1 << (case.len % 8);
    let forged = Tag::from(forged);
    let result = ours.open(
        &nonce(),
        &aad,
        SharedRead::from(&ciphertext[..]),
        &forged,
        opened.bytes(),
    );
    assert_eq!(result, Err(Error::Forged));
    assert!(
        opened.bytes().iter().all(|b| *b == 0) && opened.is_intact(),
        "not wiped: {}",
        name()
    );
    let result = ours.open_scattered(
        &nonce(),
        &aad,
        &pieces,
        &forged,
        &mut split_mut(back.bytes(), &lens_out),
    );
    assert_eq!(result, Err(Error::Forged));
    assert!(
        back.bytes().iter().all(|b| *b == 0) && back.is_intact(),
        "not wiped: {}",
        name()
    );
}

fn keys() -> [Vec<u8>; 2] {
    [bytes(16, 9), bytes(32, 8)]
}

#[test]
fn every_length_to_4096() {
    for path in paths() {
        for key in keys() {
            let ours = Key::with_path(&key, path).unwrap();
            for len in 0..=4096 {
                let (cuts_in, cuts_out) = (
                    [len * 3 / 7, len / 2, len * 5 / 7],
                    [len / 3, len * 29 / 31],
                );
                let case = Case {
                    key: &key,
                    aad_len: [0, 5, 8, 12, 13, 16, 20, 100][len % 8],
                    len,
                    from: len % 64,
                    to: (len / 64 + 7) % 64,
                    cuts_in: &cuts_in,
                    cuts_out: &cuts_out,
                };
                check(path, &ours, &case);
            }
        }
    }
}

/// The counter's low byte, low 16 bits and low 20 bits, and those beyond, all carry at some length.
#[test]
fn long_messages_carry_the_counter() {
    for path in paths() {
        for key in keys() {
            let ours = Key::with_path(&key, path).unwrap();
            for len in [16 * 254, 16 * 65_534 + 5, 1 << 21, (1 << 24) + 4101] {
                let (cuts_in, cuts_out) = ([1, 100_000], [65_536, 65_537]);
                let case = Case {
                    key: &key,
                    aad_len: 5,
                    len,
                    from: 1,
                    to: 2,
                    cuts_in: &cuts_in,
                    cuts_out: &cuts_out,
                };
                check(path, &ours, &case);
            }
        }
    }
}

/// Additional data beyond a few blocks is hashed with sums of products: whole registers, what is
/// left of one, and sums one after the other.
#[test]
fn every_length_of_additional_data_to_2100() {
    for path in paths() {
        for key in keys() {
            let ours = Key::with_path(&key, path).unwrap();
            for aad_len in 0..=2100 {
                // A short message, one of a head and more, and none.
                let len = [60, 300, 0][aad_len % 3];
                let case = Case {
                    key: &key,
                    aad_len,
                    len,
                    from: 1,
                    to: 2,
                    cuts_in: &[7],
                    cuts_out: &[48],
                };
                check(path, &ours, &case);
            }
        }
    }
}

/// Additional data has no length that a protocol with 16-bit lengths would have.
#[test]
fn additional_data_may_be_longer_than_64_kib() {
    for path in paths() {
        for key in keys() {
            let ours = Key::with_path(&key, path).unwrap();
            for aad_len in (65_515..65_565).chain([(1 << 20) + 3]) {
                let case = Case {
                    key: &key,
                    aad_len,
                    // A short message, and one of a head and more.
                    len: [60, 300][aad_len % 2],
                    from: 1,
                    to: 2,
                    cuts_in: &[7],
                    cuts_out: &[48],
                };
                check(path, &ours, &case);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_length_alignment_and_split(
        len in prop_oneof![0usize..600, 0usize..4097, 4000usize..20_000],
        key in 0usize..2,
        aad_len in 0usize..80,
        from in 0usize..64,
        to in 0usize..64,
        cuts_in in prop::collection::vec(0usize..20_000, 0..12),
        cuts_out in prop::collection::vec(0usize..20_000, 0..12),
    ) {
        let key = &keys()[key];
        for path in paths() {
            let ours = Key::with_path(key, path).unwrap();
            let case = Case { key, aad_len, len, from, to, cuts_in: &cuts_in, cuts_out: &cuts_out };
            check(path, &ours, &case);
        }
    }
}
