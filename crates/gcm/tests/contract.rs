//! The promises of the calls apart from their arithmetic.

use tare_gcm::{
    Error, Key, Nonce, NonceScheme, Path, SealingContext, SharedRead, SharedWrite, Tag,
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
    let mut out = [7; 5];
    let mismatch = Error::LengthMismatch {
        input: 4,
        output: 5,
    };
    assert_eq!(
        key.seal(nonce(), &[], &[0; 4], SharedWrite::from(&mut out[..])),
        Err(mismatch)
    );
    let input = [0; 4];
    let tag = Tag::from([0; 16]);
    assert_eq!(
        key.open(&nonce(), &[], SharedRead::from(&input[..]), &tag, &mut out),
        Err(mismatch)
    );
    let pieces = [&input[..2], &input[2..]];
    let scattered = key.seal_scattered(
        nonce(),
        &[],
        &pieces,
        &mut [SharedWrite::from(&mut out[..])],
    );
    assert_eq!(scattered, Err(mismatch));
    assert_eq!(out, [7; 5]);
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

/// A mapping of 64 GiB that no access may touch.
struct Reserved(*mut u8);

impl Reserved {
    const LEN: usize = tare_gcm::MESSAGE_LEN_MAX as usize + 1;

    fn new() -> Option<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                Self::LEN,
                libc::PROT_READ,
                flags,
                -1,
                0,
            )
        };
        (start != libc::MAP_FAILED).then_some(Self(start.cast()))
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, whole.
        unsafe { libc::munmap(self.0.cast(), Self::LEN) };
    }
}

#[test]
fn a_message_one_byte_over_the_limit_is_refused() {
    let key = Key::new(&[1; 16]).unwrap();
    let tag = Tag::from([0; 16]);
    let nonce = || Nonce::from([0; 12]);
    let refused = Error::MessageTooLong {
        found: tare_gcm::MESSAGE_LEN_MAX + 1,
    };
    // One mebibyte, named as often as it takes.
    let (mut mebibyte, len) = (vec![0u8; 1 << 20], 1 << 20);
    let start = mebibyte.as_mut_ptr();
    let count = Reserved::LEN / len;
    let lens = || std::iter::repeat_n(len, count).chain([Reserved::LEN % len]);
    // SAFETY: each piece is within the mebibyte.
    let mut outs: Vec<_> = lens()
        .map(|len| unsafe { SharedWrite::new(start, len) })
        .collect();
    let plain = vec![0u8; len];
    let plain: Vec<&[u8]> = lens().map(|len| &plain[..len]).collect();
    let sealed = key.seal_scattered(nonce(), &[], &plain, &mut outs);
    assert_eq!(sealed, Err(refused));
    let Some(reserved) = Reserved::new() else {
        eprint_always!("NOT TESTED: no 64 GiB of address space for messages over the limit");
        return;
    };
    // SAFETY: mapped and readable for as long as `reserved`. It is not written to: the call refuses.
    let (plaintext, out) = unsafe {
        (
            std::slice::from_raw_parts(reserved.0, Reserved::LEN),
            SharedWrite::new(start, Reserved::LEN),
        )
    };
    assert_eq!(key.seal(nonce(), &[], plaintext, out), Err(refused));
    // SAFETY: as above; an exclusive borrow of memory that is mapped but never accessed.
    let data = unsafe { std::slice::from_raw_parts_mut(reserved.0, Reserved::LEN) };
    assert_eq!(key.seal_in_place(nonce(), &[], data), Err(refused));
    assert_eq!(key.open_in_place(&nonce(), &[], data, &tag), Err(refused));
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
fn errors_are_sentences() {
    for error in [
        Error::Forged,
        Error::KeyLength { found: 3 },
        Error::NonceLength { found: 3 },
        Error::TagLength { found: 3 },
        Error::LengthMismatch {
            input: 1,
            output: 2,
        },
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
