use core::mem::ManuallyDrop;
use std::io::Write as _;
use std::vec;

use super::*;
use crate::scripted::{Carry, ScriptedRdrand, Values};

fn hex<const N: usize>(text: &str) -> [u8; N] {
    core::array::from_fn(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap())
}

fn generator() -> Generator<ScriptedRdrand> {
    Generator::with_source_untested(ScriptedRdrand::healthy(1))
}

/// One key and nonce of these bytes.
fn keys(key: u8, nonce: u8) -> Vec<Key> {
    let mut keys = Vec::new();
    Key::push(&mut keys, &[key; 32], &[nonce; 16]).unwrap();
    keys
}

const PLAIN: &str =
    "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e5130c81c46a35ce411\
                     e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710";

#[test]
fn aes_256_agrees_with_sp_800_38a() {
    // SP 800-38A, F.5.5.
    let key = hex::<32>("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4");
    let nonce = hex::<16>("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff");
    let expected = hex::<64>(
        "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c52b0930daa23de94ce87017ba\
         2d84988ddfc9c58db67aada613c2dd08457941a6",
    );
    let cipher = AesCtr::with_keys(&[(&key, &nonce)]).unwrap();
    let mut got = [0; 64];
    cipher.encrypt(&mut got, &hex::<64>(PLAIN)).unwrap();
    assert_eq!(got, expected);
    // In pieces of whole blocks it is the same stream, and it decrypts.
    let cipher = AesCtr::with_keys(&[(&key, &nonce)]).unwrap();
    let mut plain = [0; 64];
    cipher.encrypt(&mut plain[..32], &expected[..32]).unwrap();
    cipher.encrypt(&mut plain[32..], &expected[32..]).unwrap();
    assert_eq!(plain, hex::<64>(PLAIN));
}

#[test]
fn aes_128_and_192_agree_with_sp_800_38a() {
    // F.5.1 and F.5.3 have counters that no nonce of half a key's length gives, so this goes
    // one room further in.
    let counter = hex::<16>("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff");
    let mut data: [u8; 16] = hex(PLAIN);
    apply::<aes::Aes128>(
        &hex::<16>("2b7e151628aed2a6abf7158809cf4f3c"),
        counter,
        &mut data,
    );
    assert_eq!(data, hex("874d6191b620e3261bef6864990db6ce"));
    let mut data: [u8; 16] = hex(PLAIN);
    let key = hex::<24>("8e73b0f7da0e6452c810f32b809079e562f8ead2522c6b7b");
    apply::<aes::Aes192>(&key, counter, &mut data);
    assert_eq!(data, hex("1abc932417521ca24f2b0459fe7e6e0b"));
}

#[test]
fn keys_take_turns_and_no_keystream_comes_twice() {
    for length in [16, 24, 32] {
        let keys: Vec<(Vec<u8>, Vec<u8>)> = (1..4)
            .map(|k| (vec![k; length], vec![k; length / 2]))
            .collect();
        let keys: Vec<(&[u8], &[u8])> = keys.iter().map(|(k, n)| (&k[..], &n[..])).collect();
        let cipher = AesCtr::with_keys(&keys).unwrap();
        let mut stream = vec![0; 6 * KEY_TURN_BYTES];
        let zeros = stream.clone();
        cipher.encrypt(&mut stream, &zeros).unwrap();
        let single = AesCtr::with_keys(&keys[1..2]).unwrap();
        let mut second = vec![0; 2 * KEY_TURN_BYTES];
        single
            .encrypt(&mut second, &zeros[..2 * KEY_TURN_BYTES])
            .unwrap();
        let turn = |n: usize| n * KEY_TURN_BYTES..(n + 1) * KEY_TURN_BYTES;
        assert_eq!(stream[turn(1)], second[turn(0)]);
        assert_eq!(stream[turn(4)], second[turn(1)]);
        let mut blocks: Vec<&[u8]> = stream.chunks(16).collect();
        blocks.sort_unstable();
        blocks.dedup();
        assert_eq!(blocks.len(), 6 * KEY_TURN_BYTES / 16);
    }
}

#[test]
fn odd_lengths_never_reuse_a_block() {
    let cipher = AesCtr::with_keys(&[(&[1; 16], &[2; 8])]).unwrap();
    let mut seen = Vec::new();
    for length in (1..200).chain([4095, 4097, 9000]) {
        let mut stream = vec![0; length];
        cipher.encrypt(&mut stream, &vec![0; length]).unwrap();
        seen.extend(
            stream
                .chunks(16)
                .filter(|block| block.len() == 16)
                .map(Vec::from),
        );
    }
    let all = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), all);
}

#[test]
fn wrong_keys_and_lengths_are_refused() {
    assert_eq!(AesCtr::with_keys(&[]).err(), Some(Error::NoKey));
    for (key, nonce) in [(0, 0), (15, 7), (16, 16), (17, 8), (32, 8), (64, 32)] {
        let made = AesCtr::with_keys(&[(&vec![0; key], &vec![0; nonce])]);
        assert_eq!(made.err(), Some(Error::KeyLength { key, nonce }));
    }
    let cipher = AesCtr::with_keys(&[(&[1; 16], &[2; 8])]).unwrap();
    let result = cipher.encrypt(&mut [0; 3], &[0; 4]);
    assert_eq!(
        result,
        Err(Error::Length {
            source: 4,
            destination: 3
        })
    );
}

#[test]
fn an_exhausted_key_stops_instead_of_starting_over() {
    let cipher = AesCtr::with_keys(&[(&[1; 24], &[2; 12])]).unwrap();
    cipher.state.lock().keys[0].blocks_left = 2;
    assert_eq!(cipher.encrypt(&mut [0; 32], &[0; 32]), Ok(()));
    let mut out = [9; 16];
    assert_eq!(cipher.encrypt(&mut out, &[1; 16]), Err(Error::KeyExhausted));
    assert_eq!(out, [0; 16]);
}

#[test]
fn the_output_is_the_encrypted_output_of_the_generator() {
    let (key, nonce) = ([7; 32], [8; 16]);
    let mut output = vec![0; 10_001];
    let cipher = AesCtr::with_keys(&[(&key, &nonce)]).unwrap();
    cipher.fill_bytes(&mut generator(), &mut output).unwrap();
    let mut raw = vec![0; 10_001];
    generator().fill_bytes(&mut raw).unwrap();
    assert_ne!(output, raw);
    let mut decrypted = vec![0; 10_001];
    let cipher = AesCtr::with_keys(&[(&key, &nonce)]).unwrap();
    cipher.encrypt(&mut decrypted, &output).unwrap();
    assert_eq!(decrypted, raw);
}

#[test]
fn an_underflow_leaves_encrypted_bytes_and_zeros() {
    let script = ScriptedRdrand::new(Values::Healthy(1), Carry::Until(700));
    let mut dry = Generator::with_source_untested(script);
    let mut output = vec![0xee; 10_000];
    let cipher = AesCtr::with_keys(&[(&[1; 16], &[2; 8])]).unwrap();
    let error = cipher.fill_bytes(&mut dry, &mut output).unwrap_err();
    assert_eq!(error.written(), 5600);
    assert!(output[5600..8192].iter().all(|&byte| byte == 0));
    let mut raw = vec![0; 5600];
    generator().fill_bytes(&mut raw).unwrap();
    assert!(
        output[..5600]
            .iter()
            .zip(&raw)
            .filter(|(a, b)| a == b)
            .count()
            < 100
    );
}

/// A cipher as with a random key, which is known here.
fn with_known_random_key() -> AesCtr {
    let mut state = State::new(keys(7, 0), true);
    state.left = RANDOM_KEY_BYTES;
    AesCtr {
        state: ForkLock::new(state),
        own: None,
    }
}

#[test]
fn under_a_random_key_every_block_is_a_nonce_and_a_counter_encrypted() {
    for length in [
        0,
        1,
        8,
        15,
        16,
        17,
        100,
        4096,
        CHUNK_BYTES + 5,
        2 * CHUNK_BYTES,
    ] {
        let mut source = generator();
        let mut output = vec![0; length];
        with_known_random_key()
            .fill_bytes(&mut source, &mut output)
            .unwrap();
        // The model draws the same numbers, and needs no tricks.
        let (mut raw, cipher) = (generator(), aes::Aes256Enc::new(&[7; 32].into()));
        let mut expected = Vec::new();
        let mut counter = 0_u32;
        for chunk in output.chunks(CHUNK_BYTES) {
            let whole = chunk.len() / BLOCK;
            let mut nonces = vec![0; whole * NONCE];
            raw.fill_bytes(&mut nonces).unwrap();
            let mut last = vec![0; (chunk.len() % BLOCK).min(NONCE)];
            raw.fill_bytes(&mut last).unwrap();
            for nonce in nonces
                .chunks(NONCE)
                .chain((!last.is_empty()).then_some(&last[..]))
            {
                let mut block = [0; BLOCK];
                block[..nonce.len()].copy_from_slice(nonce);
                block[NONCE..].copy_from_slice(&counter.to_be_bytes());
                counter += 1;
                let mut block = block.into();
                cipher.encrypt_block(&mut block);
                expected.extend_from_slice(&block);
            }
            expected.truncate(expected.len() - (BLOCK - chunk.len() % BLOCK) % BLOCK);
        }
        assert_eq!(output, expected, "{length} bytes");
        assert_eq!(source.source().executed(), raw.source().executed());
    }
}

#[test]
fn under_a_random_key_hardware_that_repeats_gives_no_block_twice() {
    let script = ScriptedRdrand::new(Values::Cycle { seed: 1, length: 6 }, Carry::Always);
    let mut repeating = Generator::with_source_untested(script);
    let cipher = with_known_random_key();
    let mut blocks = Vec::new();
    for length in [32, 16, 5, 48, 100] {
        let mut output = vec![0; length];
        cipher.fill_bytes(&mut repeating, &mut output).unwrap();
        cipher
            .encrypt(
                &mut output[..BLOCK.min(length)],
                &vec![0; BLOCK.min(length)],
            )
            .unwrap();
        blocks.extend(output.chunks_exact(BLOCK).map(Vec::from));
    }
    let all = blocks.len();
    blocks.sort_unstable();
    blocks.dedup();
    assert_eq!(blocks.len(), all);
}

#[test]
fn an_underflow_under_a_random_key_leaves_whole_blocks_and_zeros() {
    let script = ScriptedRdrand::new(Values::Healthy(1), Carry::Until(700));
    let mut dry = Generator::with_source_untested(script);
    let mut output = vec![0xee; 10_000];
    let error = with_known_random_key()
        .fill_bytes(&mut dry, &mut output)
        .unwrap_err();
    // 5,600 bytes make 466 nonces of twelve.
    assert_eq!(error.written(), 466 * BLOCK);
    let mut good = vec![0; 466 * BLOCK];
    with_known_random_key()
        .fill_bytes(&mut generator(), &mut good)
        .unwrap();
    assert_eq!(output[..good.len()], good);
    assert!(output[good.len()..].iter().all(|&byte| byte == 0));
}

#[test]
fn a_failed_health_test_zeroes_everything_also_what_was_encrypted_before() {
    let values = Values::Burst {
        seed: 1,
        healthy: 3000,
        value: 0,
        count: 9,
    };
    let known = AesCtr::with_keys(&[(&[1; 16], &[2; 8])]).unwrap();
    for cipher in [with_known_random_key(), known] {
        let script = ScriptedRdrand::new(values, Carry::Always);
        let mut stuck = Generator::with_source_untested(script);
        let mut output = vec![0xee; 64 * 1024];
        let result = cipher.fill_bytes(&mut stuck, &mut output);
        assert!(matches!(result, Err(Error::Health { .. })));
        assert!(output.iter().all(|&byte| byte == 0));
    }
}

#[test]
fn keys_are_wiped_when_they_are_dropped() {
    let mut key = ManuallyDrop::new(keys(0xa5, 0xa5).remove(0));
    let mut reserved = ManuallyDrop::new(key.reserve(16).unwrap());
    let (bytes, copy) = (&raw const key.bytes, &raw const reserved.key);
    // SAFETY: dropped once and not used as a `Key` afterwards; the array has no drop of its
    // own, so its memory, which lives until the end of this function, may still be read.
    let left = unsafe {
        ManuallyDrop::drop(&mut key);
        ManuallyDrop::drop(&mut reserved);
        [
            core::ptr::read_volatile(bytes),
            core::ptr::read_volatile(copy),
        ]
    };
    assert_eq!(left, [[0; 32]; 2]);
}

#[test]
fn round_keys_are_wiped_when_the_cipher_is_dropped() {
    let mut cipher = ManuallyDrop::new(aes::Aes256Enc::new(&[0xa5; 32].into()));
    let start = (&raw const *cipher).cast::<u8>();
    let written = |bytes: &[u8]| bytes.iter().filter(|&&byte| byte != 0).count();
    // SAFETY: the cipher is plain memory of this size that outlives the reads; bytes read as
    // `MaybeUninit` would be enough for padding, of which this type has none that is read.
    let read = |start: *const u8| unsafe {
        (0..size_of::<aes::Aes256Enc>())
            .map(|i| core::ptr::read_volatile(start.add(i)))
            .collect()
    };
    let before: Vec<u8> = read(start);
    // SAFETY: dropped once and not used as a cipher afterwards.
    unsafe { ManuallyDrop::drop(&mut cipher) };
    let after: Vec<u8> = read(start);
    // Fifteen round keys of 16 bytes at least; without AES-NI they have another order of bits.
    assert!(written(&before) > 200, "{before:?}");
    assert!(written(&after) < 16, "{after:?}");
}

/// A cipher with a random key; `None`, and a note, where this processor cannot make one.
fn with_random_key() -> Option<AesCtr> {
    match AesCtr::with_random_key() {
        Ok(cipher) => Some(cipher),
        Err(error @ Error::Unsupported { .. }) => {
            let _ = std::io::stderr()
                .write_all(std::format!("\nNOT TESTED: random keys: {error}\n").as_bytes());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_new_process_gets_other_counters_and_other_random_keys() {
    let Some(random) = with_random_key() else {
        return;
    };
    let keyed = AesCtr::with_keys(&[(&[1; 16], &[2; 8])]).unwrap();
    for cipher in [random, keyed] {
        let seen = |cipher: &AesCtr| {
            let state = cipher.state.lock();
            (state.keys[0].bytes, state.keys[0].counter)
        };
        let before = seen(&cipher);
        // What a child finds: a state of another process.
        let mut state = cipher.state.lock();
        let here = state.here;
        state.process = here.wrapping_sub(1);
        drop(state);
        cipher.encrypt(&mut [0; 16], &[0; 16]).unwrap();
        let (bytes, counter) = seen(&cipher);
        assert_ne!((bytes, counter.wrapping_sub(1)), before);
        assert_eq!(cipher.state.lock().process, here);
    }
}

#[test]
fn a_random_key_is_replaced_in_time_and_the_seeder_is_not() {
    let Some(cipher) = with_random_key() else {
        return;
    };
    let key = || cipher.state.lock().keys[0].bytes;
    let seeder_draws = || cipher.state.lock().seeder.as_ref().map(Seeder::draws);
    let mut output = vec![0; RANDOM_KEY_BYTES as usize];
    let first = key();
    cipher.fill_bytes(&mut generator(), &mut output).unwrap();
    assert_eq!(key(), first);
    for _ in 0..4 {
        let (before, draws) = (key(), seeder_draws().unwrap());
        cipher.fill_bytes(&mut generator(), &mut output).unwrap();
        assert_ne!(key(), before);
        // Four values of RDSEED, or 2 + 2 * 1024 of RDRAND where there is none or it is busy. The
        // two self-tests that a new seeder begins with are not among them.
        let drawn = seeder_draws().unwrap() - draws;
        assert!(
            drawn == 4 || (2050..2054).contains(&drawn),
            "{drawn} draws for a key"
        );
    }
}
