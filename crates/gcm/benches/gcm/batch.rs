//! 32 small packets: one call each, or a batch; under one key, or each under its own.

use crate::measure::{interleave, Cell, Random};
use crate::peers::{Message, Op};
use crate::report::{Report, Target};
use crate::Settings;
use tare_gcm::{
    open_each, seal_each, Key, Nonce, OpenPacket, SealPacket, SharedRead, SharedWrite, Tag,
};

const PACKETS: usize = 32;

pub fn run(settings: &Settings, report: &mut Report, random: &mut Random) {
    let key_bytes = |i: usize| {
        let mut key = settings.key.clone();
        key[0] = i as u8;
        key
    };
    let keys: Vec<Key> = (0..PACKETS)
        .map(|i| Key::new(&key_bytes(i)).expect("16 or 32 bytes"))
        .collect();
    for len in [48, 60, 128] {
        for op in [Op::Seal, Op::Open] {
            let cell = |mixed: bool, batched: bool| {
                let key = move |i: usize| if mixed { i } else { 0 };
                let mut messages: Vec<Message> = (0..PACKETS)
                    // Packets lie in buffers of their own, at different places in their pages, as in a ring.
                    .map(|i| Message::new(&key_bytes(key(i)), op, len, i as u8, i * 64 % 2048))
                    .collect();
                let keys = &keys;
                let mut tags = [[0; 16]; PACKETS];
                let name = format!(
                    "{}, {}",
                    if batched { "batch" } else { "single" },
                    if mixed { "a key each" } else { "one key" }
                );
                Cell {
                    name,
                    run: Box::new(move |n| {
                        for _ in 0..n {
                            match (batched, op) {
                                (true, Op::Seal) => seal_all(keys, key, &mut messages, &mut tags),
                                (true, Op::Open) => open_all(keys, key, &mut messages),
                                (false, _) => one_by_one(keys, key, op, &mut messages, &mut tags),
                            }
                        }
                    }),
                }
            };
            let cells = vec![
                cell(false, false),
                cell(false, true),
                cell(true, false),
                cell(true, true),
            ];
            let samples = interleave(cells, settings.rounds, 300, random);
            let at_least = (len == 60).then_some(1.5);
            let targets = [
                Target {
                    fast: "batch, one key",
                    slow: "single, one key",
                    at_least,
                },
                Target {
                    fast: "batch, a key each",
                    slow: "single, a key each",
                    at_least,
                },
            ];
            report.section(
                &format!("{} {PACKETS} × {len} B", op.name()),
                (PACKETS * len) as f64,
                &samples,
                &targets,
                random,
            );
        }
    }
}

fn one_by_one(
    keys: &[Key],
    key: impl Fn(usize) -> usize,
    op: Op,
    messages: &mut [Message],
    tags: &mut [[u8; 16]],
) {
    for (i, m) in messages.iter_mut().enumerate() {
        let key = &keys[key(i)];
        match op {
            Op::Seal => {
                let out = SharedWrite::from(&mut m.output[..]);
                let tag = key
                    .seal(Nonce::from(m.nonce), &m.aad, &m.input, out)
                    .expect("a short message");
                tags[i] = *tag.as_bytes();
            }
            Op::Open => {
                let input = SharedRead::from(&m.input[..]);
                key.open(
                    &Nonce::from(m.nonce),
                    &m.aad,
                    input,
                    &Tag::from(m.tag),
                    &mut m.output,
                )
                .expect("a valid tag");
            }
        }
    }
}

/// A batch, described as it goes.
fn seal_all(
    keys: &[Key],
    key: impl Fn(usize) -> usize,
    messages: &mut [Message],
    tags: &mut [[u8; 16]],
) {
    let packets = messages.iter_mut().enumerate().map(|(i, m)| {
        let out = SharedWrite::from(&mut m.output[..]);
        SealPacket::new(&keys[key(i)], Nonce::from(m.nonce), &m.aad, &m.input, out)
            .expect("a short message")
    });
    seal_each(packets, |i, tag| tags[i] = *tag.as_bytes());
}

/// The same for opening.
fn open_all(keys: &[Key], key: impl Fn(usize) -> usize, messages: &mut [Message]) {
    let packets = messages.iter_mut().enumerate().map(|(i, m)| {
        let input = SharedRead::from(&m.input[..]);
        let (nonce, tag) = (Nonce::from(m.nonce), Tag::from(m.tag));
        OpenPacket::new(&keys[key(i)], nonce, &m.aad, input, tag, &mut m.output)
            .expect("a short message")
    });
    let authentic = open_each(packets, |_, outcome| outcome.expect("a valid tag"));
    assert_eq!(authentic, PACKETS);
}
