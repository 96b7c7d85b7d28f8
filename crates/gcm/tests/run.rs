//! A run of packets gives what single calls give.

use std::panic::{catch_unwind, AssertUnwindSafe};

use tare_gcm::{open_keyed, open_run, seal_keyed, seal_run, Key, Nonce, Path, RunPacket, ShortAad};

const TAG: usize = 16;

fn nonce(i: usize) -> Nonce {
    Nonce::from([i as u8; 12])
}

/// Of a run some have extended numbers, so that the lengths of additional data differ.
fn aad(i: usize) -> ShortAad {
    match i % 13 {
        12 => ShortAad::short(i as u32, !i as u32),
        _ => ShortAad::long(i as u32, 0x0102_0304_0506_0708 + i as u64),
    }
}

/// Messages with room for their tags, each `skew` bytes further from the start of its memory than
/// the one before.
struct Messages {
    memory: Vec<u8>,
    places: Vec<(usize, usize)>,
}

impl Messages {
    fn new(lens: &[usize], skew: usize) -> Messages {
        let mut places = Vec::new();
        let mut at = 0;
        for (i, len) in lens.iter().enumerate() {
            at += i * skew % 64;
            places.push((at, len + TAG));
            at += len + TAG;
        }
        Messages {
            memory: (0..at).map(|b| (b * 7) as u8).collect(),
            places,
        }
    }

    fn each(&mut self) -> Vec<&mut [u8]> {
        let (mut rest, mut from) = (&mut self.memory[..], 0);
        let mut all = Vec::new();
        for &(at, len) in &self.places {
            let (_, behind) = rest.split_at_mut(at - from);
            let (message, behind) = behind.split_at_mut(len);
            all.push(message);
            (rest, from) = (behind, at + len);
        }
        all
    }
}

fn packets<'a>(all: Vec<&'a mut [u8]>) -> impl Iterator<Item = RunPacket<'a>> {
    let all = all.into_iter().enumerate();
    all.map(|(i, message)| RunPacket::new(nonce(i), aad(i), message).unwrap())
}

/// The packets with the keys in turn.
fn keyed<'a>(
    keys: &'a [Key],
    all: Vec<&'a mut [u8]>,
) -> impl Iterator<Item = (&'a Key, RunPacket<'a>)> {
    packets(all)
        .zip(keys.iter().cycle())
        .map(|(packet, key)| (key, packet))
}

/// The same packets, one at a time and as a run, must have the same ciphertext and tags, and no
/// byte between them may change.
fn check(keys: &[Key], lens: &[usize], skew: usize) {
    let key = |i: usize| &keys[i % keys.len()];
    let plain = Messages::new(lens, skew);
    let mut expected = Messages::new(lens, skew);
    for (i, message) in expected.each().into_iter().enumerate() {
        let (data, tag) = message.split_last_chunk_mut::<TAG>().unwrap();
        let sealed = key(i).seal_in_place(nonce(i), aad(i).as_bytes(), data);
        *tag = *sealed.unwrap().as_bytes();
    }
    let mut run = Messages::new(lens, skew);
    assert_eq!(seal_keyed(keyed(keys, run.each())), lens.len());
    assert!(run.memory == expected.memory, "{keys:?}: {lens:?}");
    if let [one] = keys {
        let mut run = Messages::new(lens, skew);
        assert_eq!(seal_run(one, packets(run.each())), lens.len());
        assert!(run.memory == expected.memory, "{keys:?}: {lens:?}");
    }

    // Every fifth packet is forged: it alone must be refused, and wiped.
    let is_forged = |i: usize| i % 5 == 2;
    for (i, message) in run.each().into_iter().enumerate() {
        let at = message.len() - 1 - i % TAG;
        message[at] ^= u8::from(is_forged(i));
    }
    let mut expected = Messages::new(lens, skew);
    let sealed = run.memory.clone();
    for (i, &(at, len)) in plain.places.iter().enumerate() {
        let data = at..at + len - TAG;
        if is_forged(i) {
            expected.memory[data.clone()].fill(0);
        }
        let tag = data.end..at + len;
        expected.memory[tag.clone()].copy_from_slice(&sealed[tag]);
    }
    let forged: Vec<usize> = (0..lens.len()).filter(|&i| is_forged(i)).collect();
    for is_keyed in [true, false] {
        run.memory.copy_from_slice(&sealed);
        let mut found = Vec::new();
        let count = match keys {
            [one] if !is_keyed => open_run(one, packets(run.each()), |i| found.push(i)),
            _ => open_keyed(keyed(keys, run.each()), |i| found.push(i)),
        };
        assert_eq!(count, lens.len());
        found.sort_unstable();
        assert_eq!(found, forged, "{keys:?}: {lens:?}");
        assert!(run.memory == expected.memory, "{keys:?}: {lens:?}");
    }
}

#[test]
fn a_run_equals_single_calls() {
    for path in Path::available() {
        let key = |seed: u8, len: usize| Key::with_path(&vec![seed; len], path).unwrap();
        let one = [key(1, 16)];
        let one_of_256 = [key(2, 32)];
        let same_size = [key(1, 16), key(2, 16), key(3, 16)];
        let both_sizes = [key(1, 16), key(2, 16), key(3, 32), key(4, 16), key(5, 32)];
        for keys in [&one[..], &one_of_256[..], &same_size[..], &both_sizes[..]] {
            for len in 0..=140 {
                check(keys, &[len; 6], 0);
                check(keys, &[len; 9], 1);
            }
            let short: Vec<usize> = (0..150).map(|i| (i * 37 + i / 13) % 66).collect();
            let both: Vec<usize> = (0..300)
                .map(|i| (i * 37 + i / 13) % 64 + 65 * (i / [1, 3, 5, 7][i / 75] % 2))
                .collect();
            // Beyond a page, at whose end packets go alone.
            check(keys, &[60; 200], 5);
            check(keys, &short, 7);
            check(keys, &both, 3);
            check(keys, &[], 0);
        }
    }
}

#[test]
fn a_callback_that_panics_leaves_no_plaintext_of_forged_packets() {
    for path in Path::available() {
        let key = Key::with_path(&[1; 16], path).unwrap();
        let mut run = Messages::new(&[48; 4], 0);
        assert_eq!(seal_run(&key, packets(run.each())), 4);
        for message in &mut run.each()[1..] {
            message[48] ^= 1;
        }
        let sealed: Vec<Vec<u8>> = run.each().iter().map(|message| message.to_vec()).collect();
        let opened = catch_unwind(AssertUnwindSafe(|| {
            open_run(&key, packets(run.each()), |_| panic!("on purpose"))
        }));
        assert!(opened.is_err());
        for (message, sealed) in run.each().iter().zip(sealed).skip(1) {
            let is_wiped = message[..48] == [0; 48];
            assert!(is_wiped || message[..48] == sealed[..48], "{path}");
        }
    }
}

#[test]
fn additional_data_is_in_network_order() {
    let long = ShortAad::long(0x0102_0304, 0x0506_0708_090a_0b0c);
    assert_eq!(long.as_bytes(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    let short = ShortAad::short(0x0102_0304, 0x0506_0708);
    assert_eq!(short.as_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn a_message_without_room_for_a_tag_is_none() {
    let mut message = [0; TAG];
    assert!(RunPacket::new(nonce(0), aad(0), &mut message).is_some());
    assert!(RunPacket::new(nonce(0), aad(0), &mut message[1..]).is_none());
}
