//! The promises of the calls apart from their arithmetic.

use aead::inout::InOutBuf;
use tare_gcm::{
    open_batch, seal_batch, Error, Key, Nonce, NonceScheme, OpenPacket, Path, SealPacket,
    SealingContext, SharedRead, SharedWrite, Tag,
};

/// Prints past the test runner's capture: what is not tested must be seen.
macro_rules! eprint_always {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

#[test]
fn wrong_lengths_are_refused_before_anything_is_touched() {
    let key = Key::new(&[1; 16]).unwrap();
    let nonce = || Nonce::from([0; 12]);
    let input = [0; 4];
    let mut outs = [7; 5];
    for output in [3, 5] {
        let out = &mut outs[..output];
        let mismatch = Error::LengthMismatch { input: 4, output };
        assert_eq!(
            key.seal(nonce(), &[], &[0; 4], SharedWrite::from(&mut *out)),
            Err(mismatch)
        );
        let tag = Tag::from([0; 16]);
        assert_eq!(
            key.open(&nonce(), &[], SharedRead::from(&input[..]), &tag, out),
            Err(mismatch)
        );
        let pieces = [&input[..2], &input[2..]];
        let scattered =
            key.seal_scattered(nonce(), &[], &pieces, &mut [SharedWrite::from(&mut *out)]);
        assert_eq!(scattered, Err(mismatch));
    }
    assert_eq!(outs, [7; 5]);
    for len in [0, 15, 17, 24, 31, 33] {
        assert_eq!(
            Key::new(&vec![0; len]).err(),
            Some(Error::KeyLength { found: len })
        );
    }
    assert_eq!(
        Tag::load(SharedRead::from(&input[..])),
        Err(Error::TagLength { found: 4 })
    );
    assert_eq!(
        Nonce::try_from(&input[..]),
        Err(Error::NonceLength { found: 4 })
    );
}

/// 2^36 − 31 bytes are not at hand; a view that merely claims them is refused without an access.
#[test]
fn a_message_over_the_limit_is_refused() {
    let key = Key::new(&[1; 16]).unwrap();
    let mut byte = 0u8;
    let chunk = (tare_gcm::MESSAGE_LEN_MAX / 2) as usize;
    // SAFETY: the total of three such pieces is over the limit, so none of them is accessed.
    let mut pieces = [0; 3].map(|_| unsafe { SharedWrite::new(&raw mut byte, chunk) });
    let bytes = [0u8; 1];
    let result = key.seal_scattered(Nonce::from([0; 12]), &[], &[&bytes], &mut pieces);
    assert_eq!(
        result,
        Err(Error::LengthMismatch {
            input: 1,
            output: 3 * chunk
        })
    );
    // SAFETY: as above.
    let reads = [0; 3].map(|_| unsafe { SharedRead::new(&raw const byte, usize::MAX / 2) });
    let result = key.open_scattered(
        &Nonce::from([0; 12]),
        &[],
        &reads,
        &Tag::from([0; 16]),
        &mut [],
    );
    assert_eq!(
        result,
        Err(Error::LengthMismatch {
            input: usize::MAX,
            output: 0
        })
    );
}

/// Views of memory that another party shares may be made anywhere; one byte in common is refused on
/// every path, none and all are not. Of short messages all is loaded first.
#[test]
fn a_destination_that_overlaps_its_source_in_part_is_refused() {
    const LEN: usize = 100;
    let content: Vec<u8> = (0..3 * LEN).map(|i| i as u8).collect();
    short_overlaps(&content);
    let nonce = || Nonce::from([0; 12]);
    for path in Path::available() {
        let key = Key::with_path(&[1; 16], path).unwrap();
        for at in [0, 1, 50, 99, 100, 101, 150, 199, 200] {
            let mut memory = content.clone();
            let start = memory.as_mut_ptr();
            let mut sealed = content[LEN..2 * LEN].to_vec();
            let tag = key.seal_in_place(nonce(), &[], &mut sealed).unwrap();
            // SAFETY: within the memory, which nothing else uses; an overlap is what this is about.
            let (from, to) = unsafe {
                let from = std::slice::from_raw_parts(start.add(LEN), LEN);
                (from, SharedWrite::new(start.add(at), LEN))
            };
            let result = key.seal(nonce(), &[], from, to);
            if at == LEN || at.abs_diff(LEN) >= LEN {
                assert_eq!(result, Ok(tag), "{path}, {at}");
                assert_eq!(memory[at..at + LEN], sealed);
            } else {
                assert_eq!(result, Err(Error::Overlap), "{path}, {at}");
                // SAFETY: as above.
                let (from, to) = unsafe {
                    let from = SharedRead::new(start.add(LEN), LEN);
                    (from, std::slice::from_raw_parts_mut(start.add(at), LEN))
                };
                let opened = key.open(&nonce(), &[], from, &tag, to);
                assert_eq!(opened, Err(Error::Overlap), "{path}, {at}");
                assert_eq!(memory, content, "{path}, {at}");
            }
        }
    }
}

fn short_overlaps(content: &[u8]) {
    const LEN: usize = 64;
    let nonce = || Nonce::from([0; 12]);
    for path in Path::available() {
        let key = Key::with_path(&[1; 32], path).unwrap();
        for at in 1..2 * LEN {
            let mut memory = content.to_vec();
            let start = memory.as_mut_ptr();
            let mut sealed = content[LEN..2 * LEN].to_vec();
            let tag = key.seal_in_place(nonce(), &[], &mut sealed).unwrap();
            // SAFETY: within the memory, which nothing else uses; an overlap is what this is about.
            let (from, to) = unsafe {
                let from = std::slice::from_raw_parts(start.add(LEN), LEN);
                (from, SharedWrite::new(start.add(at), LEN))
            };
            assert_eq!(key.seal(nonce(), &[], from, to), Ok(tag), "{path}, {at}");
            assert_eq!(memory[at..at + LEN], sealed, "{path}, {at}");
        }
    }
}

/// One mebibyte, named as often as it takes.
#[test]
fn a_message_one_byte_over_the_limit_is_refused() {
    let key = Key::new(&[1; 16]).unwrap();
    let total = tare_gcm::MESSAGE_LEN_MAX as usize + 1;
    let len = 1 << 20;
    let lens = || std::iter::repeat_n(len, total / len).chain([total % len]);
    let mut out = vec![0u8; len];
    let start = out.as_mut_ptr();
    // SAFETY: each piece is within the mebibyte, which no reference uses.
    let mut outs: Vec<_> = lens()
        .map(|len| unsafe { SharedWrite::new(start, len) })
        .collect();
    let plaintext = vec![0u8; len];
    let pieces: Vec<&[u8]> = lens().map(|len| &plaintext[..len]).collect();
    let sealed = key.seal_scattered(Nonce::from([0; 12]), &[], &pieces, &mut outs);
    let found = total as u64;
    assert_eq!(sealed, Err(Error::MessageTooLong { found }));
}

#[test]
fn a_context_gives_each_number_once_and_stops() {
    let scheme = NonceScheme::Salt([9; 4]);
    let mut sealing =
        SealingContext::new(Key::new(&[1; 16]).unwrap(), scheme, u64::MAX - 1, u64::MAX);
    let mut data = *b"one";
    let (first, tag) = sealing
        .seal_in_place(|n| n.to_be_bytes(), &mut data)
        .unwrap();
    assert_eq!(first, u64::MAX - 1);
    let key = Key::new(&[1; 16]).unwrap();
    key.open_in_place(&scheme.nonce(first), &first.to_be_bytes(), &mut data, &tag)
        .unwrap();
    assert_eq!(&data, b"one");
    assert_eq!(sealing.next_sequence(), Some(u64::MAX));
    assert_eq!(sealing.take().unwrap().0, u64::MAX);
    assert_eq!(sealing.take(), Err(Error::NoncesExhausted));
    let refused = sealing.seal(|_| [], b"x", SharedWrite::from(&mut [0u8; 1][..]));
    assert_eq!(refused, Err(Error::NoncesExhausted));
    let mut early = SealingContext::new(key, scheme, 6, 7);
    let taken = [(); 3].map(|()| early.take().map(|(number, _)| number));
    assert_eq!(taken, [Ok(6), Ok(7), Err(Error::NoncesExhausted)]);
}

#[test]
fn a_nonce_of_parts_is_the_salt_and_the_vector_in_network_order() {
    let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
    let nonce = Nonce::from_parts([1, 2, 3, 4], 0x0506_0708_090a_0b0c);
    assert_eq!(nonce.as_bytes(), &bytes);
    assert_eq!(nonce, Nonce::from(bytes));
    assert_eq!(nonce, Nonce::try_from(&bytes[..]).unwrap());
    let salt = NonceScheme::Salt([1, 2, 3, 4]);
    assert_eq!(salt.nonce(0x0506_0708_090a_0b0c), nonce);
    let xor = NonceScheme::Xor([1, 2, 3, 4, 0xff, 6, 7, 8, 9, 10, 11, 0]);
    assert_eq!(xor.nonce(0xfa00_0000_0000_000c), nonce);
    assert_eq!(
        format!("{nonce:?}"),
        "Nonce([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])"
    );
    assert_eq!(Tag::from([3; 16]).as_bytes(), &[3; 16]);
}

#[test]
fn a_key_may_be_fetched_ahead_for_any_length() {
    for path in Path::available() {
        for key_len in [16, 32] {
            let key = Key::with_path(&vec![1; key_len], path).unwrap();
            for len in [0, 1, 48, 64, 240, 288, 289, 1440, usize::MAX] {
                key.prefetch(len);
            }
        }
    }
}

#[test]
fn the_best_path_is_available_and_fixed() {
    assert!(Path::best().is_available());
    assert_eq!(Path::best(), Path::available().next().unwrap());
    assert_eq!(Key::new(&[0; 32]).unwrap().path(), Path::best());
    for path in Path::ALL {
        assert_eq!(Path::by_name(path.name()), Some(path));
        assert_eq!(path.is_available(), Key::with_path(&[0; 16], path).is_ok());
        if !path.is_available() {
            eprint_always!("NOT TESTED: this processor cannot run the {path} path");
        }
    }
}

#[test]
fn a_key_shows_its_size_and_path_and_a_key_of_aes_192_is_refused_by_name() {
    for path in Path::available() {
        for (byte, len) in [(0xa5, 16), (0x5a, 32)] {
            let shown = format!("{:?}", Key::with_path(&vec![byte; len], path).unwrap());
            let expected = format!("Key {{ bits: {}, path: {path:?}, .. }}", 8 * len);
            assert_eq!(shown, expected);
        }
    }
    let refused = Key::new(&[0; 24]).unwrap_err().to_string();
    assert!(refused.contains("AES-192"), "{refused}");
}

/// The traits of the `aead` crate give what a key gives, in place and from one buffer to another.
fn has_the_traits<C: aead::KeyInit + aead::AeadInOut>(key: &[u8]) {
    let cipher = C::new_from_slice(key).unwrap();
    let nonce = aead::Nonce::<C>::try_from(&[3; 12][..]).unwrap();
    for len in [0, 1, 60, 300, 5000] {
        let plaintext: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let mut data = plaintext.clone();
        let buffer = InOutBuf::from(&mut data[..]);
        let tag = cipher.encrypt_inout_detached(&nonce, b"aad", buffer);
        let tag = tag.unwrap();
        let mut expected = plaintext.clone();
        let own = Key::new(key).unwrap();
        let own_tag = own
            .seal_in_place(Nonce::from([3; 12]), b"aad", &mut expected)
            .unwrap();
        assert_eq!((&data, &tag[..]), (&expected, &own_tag.as_bytes()[..]));

        let mut apart = vec![9; len];
        let buffer = InOutBuf::new(&plaintext, &mut apart).unwrap();
        let again = cipher.encrypt_inout_detached(&nonce, b"aad", buffer);
        assert_eq!((apart, again), (expected, Ok(tag.clone())));
        let mut with_tag = plaintext.clone();
        cipher
            .encrypt_in_place(&nonce, b"aad", &mut with_tag)
            .unwrap();
        assert_eq!(with_tag, [&data[..], &tag[..]].concat());

        let mut forged = vec![9; len];
        let buffer = InOutBuf::new(&data, &mut forged).unwrap();
        let wrong = cipher.decrypt_inout_detached(&nonce, b"bad", buffer, &tag);
        assert_eq!((wrong, forged), (Err(aead::Error), vec![0; len]));
        let mut forged = data.clone();
        let buffer = InOutBuf::from(&mut forged[..]);
        let wrong = cipher.decrypt_inout_detached(&nonce, b"bad", buffer, &tag);
        assert!(wrong.is_err());
        assert_eq!(forged, vec![0; len], "plaintext of a forgery");
        let mut opened = vec![9; len];
        let buffer = InOutBuf::new(&data, &mut opened).unwrap();
        let right = cipher.decrypt_inout_detached(&nonce, b"aad", buffer, &tag);
        assert_eq!((right, &opened), (Ok(()), &plaintext));
        let buffer = InOutBuf::from(&mut data[..]);
        let right = cipher.decrypt_inout_detached(&nonce, b"aad", buffer, &tag);
        assert_eq!((right, &data), (Ok(()), &plaintext));
    }
    assert!(C::new_from_slice(&key[1..]).is_err());
}

#[test]
fn the_traits_of_the_aead_crate_give_what_a_key_gives() {
    has_the_traits::<tare_gcm::aead::Aes128Gcm>(&[7; 16]);
    has_the_traits::<tare_gcm::aead::Aes256Gcm>(&[7; 32]);
}

#[test]
fn debug_shows_lengths_and_numbers_and_no_secret() {
    let scheme = NonceScheme::Salt([0xd7; 4]);
    let context = SealingContext::new(Key::new(&[0xd1; 16]).unwrap(), scheme, 1, 9);
    let path = Path::best();
    assert_eq!(
        format!("{context:?}"),
        format!(
            "SealingContext {{ key: Key {{ bits: 128, path: {path:?}, .. }}, scheme: Salt(..), \
             next: Some(1), last: 9 }}"
        )
    );
    assert_eq!(format!("{:?}", NonceScheme::Xor([0xd7; 12])), "Xor(..)");
    let mut data = [0xd3; 5];
    let read = format!("{:?}", SharedRead::from(&data[..]));
    let write = format!("{:?}", SharedWrite::from(&mut data[..]));
    assert_eq!(
        (&*read, &*write),
        ("SharedRead(5 bytes)", "SharedWrite(5 bytes)")
    );
    let (key, nonce) = (context.key(), || Nonce::from([0xd5; 12]));
    let mut packet = [SealPacket::in_place(key, nonce(), &[0xd6; 3], &mut data).unwrap()];
    assert_eq!(
        format!("{:?}", packet[0]),
        "SealPacket { aad_len: 3, len: 5, is_sealed: false, .. }"
    );
    seal_batch(&mut packet);
    assert_eq!(
        format!("{:?}", packet[0]),
        "SealPacket { aad_len: 3, len: 5, is_sealed: true, .. }"
    );
    let tag = packet[0].tag().unwrap();
    let mut packet = [OpenPacket::in_place(key, nonce(), &[0xd6; 3], &mut data, tag).unwrap()];
    assert_eq!(
        format!("{:?}", packet[0]),
        "OpenPacket { aad_len: 3, len: 5, outcome: None, .. }"
    );
    open_batch(&mut packet);
    assert_eq!(
        format!("{:?}", packet[0]),
        "OpenPacket { aad_len: 3, len: 5, outcome: Some(Ok(())), .. }"
    );
}

/// A reader copies what is shown, without what rustdoc hides; that it compiles is a test of the
/// documentation.
#[test]
fn the_example_of_the_readme_is_a_whole_program() {
    let (_, example) = include_str!("../README.md")
        .split_once("```rust\n")
        .unwrap();
    let (example, _) = example.split_once("```").unwrap();
    assert!(example.contains("\nfn main() -> Result<"));
    assert!(example.lines().all(|line| !line.starts_with('#')));
}

#[test]
fn errors_are_sentences() {
    for error in [
        Error::Forged,
        Error::KeyLength { found: 3 },
        Error::KeyLength { found: 24 },
        Error::NonceLength { found: 3 },
        Error::TagLength { found: 3 },
        Error::LengthMismatch {
            input: 1,
            output: 2,
        },
        Error::Overlap,
        Error::MessageTooLong { found: 1 << 40 },
        Error::AadTooLong { found: 1 << 62 },
        Error::NoncesExhausted,
        Error::PathUnavailable {
            path: Path::Vaes512,
        },
    ] {
        assert!(error.to_string().len() > 30, "{error:?}: {error}");
    }
}
