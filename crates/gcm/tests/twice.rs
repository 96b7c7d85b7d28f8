//! Opening by two readings, for comparison: the same results in memory at rest, and those of
//! whatever changed it in between.

use std::cell::Cell;

use proptest::prelude::*;
use tare_gcm::{Error, Key, Nonce, Path, SharedRead, Tag};

/// Cuts bytes at these places.
fn cut<'a>(bytes: &'a [u8], at: &[usize]) -> Vec<SharedRead<'a>> {
    let mut places: Vec<usize> = at.iter().map(|at| at % (bytes.len() + 1)).collect();
    places.extend([0, bytes.len()]);
    places.sort_unstable();
    let pairs = places.windows(2);
    pairs.map(|pair| bytes[pair[0]..pair[1]].into()).collect()
}

proptest! {
    #[test]
    fn memory_at_rest_is_opened_as_by_one_reading(
        plaintext in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..700),
            proptest::collection::vec(any::<u8>(), 0..17_000),
        ],
        places in proptest::collection::vec(any::<usize>(), 0..14),
        aad in proptest::collection::vec(any::<u8>(), 0..40),
        long_key in any::<bool>(),
        forged in any::<Option<usize>>(),
    ) {
        for path in Path::available() {
            let key = Key::with_path(if long_key { &[7; 32] } else { &[7; 16] }, path).unwrap();
            let nonce = || Nonce::from([3; 12]);
            let mut ciphertext = plaintext.clone();
            let tag = key.seal_in_place(nonce(), &aad, &mut ciphertext).unwrap();
            let mut tag = *tag.as_bytes();
            if let Some(at) = forged {
                let at = at % (ciphertext.len() + Tag::LEN);
                match ciphertext.get_mut(at) {
                    Some(byte) => *byte ^= 1,
                    None => tag[at - ciphertext.len()] ^= 1,
                }
            }
            let pieces = cut(&ciphertext, &places);
            let mut out = vec![0x99; plaintext.len()];
            let calls = Cell::new(0);
            let opened = key.open_reading_twice(
                &nonce(), &aad, &pieces, &Tag::from(tag), &mut out, || calls.set(calls.get() + 1),
            );
            if forged.is_some() {
                prop_assert_eq!((opened, calls.get()), (Err(Error::Forged), 0), "{}", path);
                prop_assert!(out.iter().all(|byte| *byte == 0), "{}", path);
            } else {
                prop_assert_eq!((opened, calls.get()), (Ok(()), 1), "{}", path);
                prop_assert_eq!(&out, &plaintext, "{}", path);
            }
        }
    }
}

#[test]
fn a_change_between_the_readings_is_accepted() {
    for path in Path::available() {
        let key = Key::with_path(&[7; 16], path).unwrap();
        let plaintext = vec![0x5a; 16_385];
        let mut ciphertext = plaintext.clone();
        let tag = key.seal_in_place(Nonce::from([3; 12]), &[], &mut ciphertext);
        let tag = tag.unwrap();
        let mut out = vec![0; plaintext.len()];
        for at in [0, 300, 5000, 16_384] {
            let bytes = Cell::from_mut(&mut ciphertext[..]).as_slice_of_cells();
            // SAFETY: the bytes live as long as `ciphertext`, and are changed through cells, on
            // this thread, while no other code runs.
            let view = unsafe { SharedRead::new(bytes.as_ptr().cast(), bytes.len()) };
            let flip = || bytes[at].set(bytes[at].get() ^ 0xff);
            key.open_reading_twice(&Nonce::from([3; 12]), &[], &[view], &tag, &mut out, flip)
                .unwrap();
            flip();
            let wrong: Vec<usize> = (0..out.len()).filter(|at| out[*at] != 0x5a).collect();
            assert_eq!(wrong, [at], "{path}");
        }
    }
}
