//! 32 small packets: one call each, or a batch; under one key, or each under its own.

use crate::ipsec_mb::{self, IpsecMb};
use crate::measure::{interleave, Cell, Random};
use crate::references::{Contender, Message, Op, AAD_LEN};
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
            let messages = |mixed: bool| -> Vec<Message> {
                (0..PACKETS)
                    // Packets lie in buffers of their own, at different places in their pages, as
                    // in a ring.
                    .map(|i| {
                        let key = key_bytes(if mixed { i } else { 0 });
                        Message::new(&key, op, len, i as u8, i * 64 % 2048)
                    })
                    .collect()
            };
            let cell = |mixed: bool, batched: bool| {
                let key = move |i: usize| if mixed { i } else { 0 };
                let mut messages = messages(mixed);
                let keys = &keys;
                let mut tags = [Tag::from([0; 16]); PACKETS];
                let name = name(mixed, batched);
                Cell {
                    name,
                    run: Box::new(move |n| {
                        let mut packets: Vec<Packet<'_>> = messages
                            .iter_mut()
                            .enumerate()
                            .map(|(i, m)| Packet::of(m, &keys[key(i)]))
                            .collect();
                        for _ in 0..n {
                            match (batched, op) {
                                (true, Op::Seal) => seal_all(&mut packets, &mut tags),
                                (true, Op::Open) => open_all(&mut packets),
                                (false, _) => one_by_one(op, &mut packets, &mut tags),
                            }
                        }
                    }),
                }
            };
            let mut cells = vec![
                cell(false, false),
                cell(false, true),
                cell(true, false),
                cell(true, true),
            ];
            let theirs = |mixed: bool, batched: bool| {
                let library = settings.ipsec_mb.map_or("", |library| &library.name);
                format!("{library}, {}", name(mixed, batched))
            };
            if let Some(library) = settings.ipsec_mb {
                let contender = |i: usize| library.contender(&key_bytes(i));
                for mixed in [false, true] {
                    let contenders = (0..PACKETS).map(contender).collect();
                    let (name, messages) = (theirs(mixed, false), messages(mixed));
                    cells.push(ipsec_mb_single(name, op, mixed, contenders, messages));
                }
                if library.has_batches() {
                    let (name, messages) = (theirs(false, true), messages(false));
                    cells.push(ipsec_mb_batch(name, op, contender(0), messages));
                }
            }
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
                    at_least: None,
                },
                Target {
                    fast: "batch, one key",
                    slow: &theirs(false, false),
                    at_least: Some(1.0),
                },
                Target {
                    fast: "batch, one key",
                    slow: &theirs(false, true),
                    at_least: Some(1.0),
                },
                Target {
                    fast: "batch, a key each",
                    slow: &theirs(true, false),
                    at_least: Some(1.0),
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

/// The name of a cell.
fn name(mixed: bool, batched: bool) -> String {
    format!(
        "{}, {}",
        if batched { "batch" } else { "single" },
        if mixed { "a key each" } else { "one key" }
    )
}

/// A call of ipsec-mb per packet.
fn ipsec_mb_single(
    name: String,
    op: Op,
    mixed: bool,
    mut contenders: Vec<IpsecMb>,
    mut messages: Vec<Message>,
) -> Cell<'static> {
    let run = Box::new(move |n| {
        for _ in 0..n {
            for (i, message) in messages.iter_mut().enumerate() {
                contenders[if mixed { i } else { 0 }].run(op, message);
            }
        }
    });
    Cell { name, run }
}

/// One call of ipsec-mb for all packets. They are described once, outside the time that is taken.
fn ipsec_mb_batch(
    name: String,
    op: Op,
    contender: IpsecMb,
    mut messages: Vec<Message>,
) -> Cell<'static> {
    let run = Box::new(move |n| {
        let batch = ipsec_mb::Batch::of(&mut messages);
        for _ in 0..n {
            contender.run_batch(op, &batch);
        }
    });
    Cell { name, run }
}

/// A message as slices.
struct Packet<'a> {
    key: &'a Key,
    nonce: [u8; 12],
    aad: [u8; AAD_LEN],
    tag: Tag,
    input: &'a [u8],
    output: &'a mut [u8],
}

impl<'a> Packet<'a> {
    fn of(m: &'a mut Message, key: &'a Key) -> Self {
        Self {
            key,
            nonce: m.nonce,
            aad: m.aad,
            tag: Tag::from(m.tag),
            input: &m.input,
            output: &mut m.output,
        }
    }
}

fn one_by_one(op: Op, packets: &mut [Packet<'_>], tags: &mut [Tag]) {
    for (p, tag) in packets.iter_mut().zip(tags) {
        let nonce = Nonce::from(p.nonce);
        match op {
            Op::Seal => {
                let out = SharedWrite::from(&mut *p.output);
                let sealed = p.key.seal(nonce, &p.aad, p.input, out);
                *tag = sealed.expect("a short message");
            }
            Op::Open => {
                let input = SharedRead::from(p.input);
                let opened = p.key.open(&nonce, &p.aad, input, &p.tag, p.output);
                opened.expect("a valid tag");
            }
        }
    }
}

/// A batch, described as it goes.
fn seal_all(packets: &mut [Packet<'_>], tags: &mut [Tag; PACKETS]) {
    let packets = packets.iter_mut().map(|p| {
        let out = SharedWrite::from(&mut *p.output);
        SealPacket::new(p.key, Nonce::from(p.nonce), &p.aad, p.input, out).expect("a short message")
    });
    seal_each(packets, |i, tag| tags[i] = tag);
}

/// A batch to be opened.
fn open_all(packets: &mut [Packet<'_>]) {
    let packets = packets.iter_mut().map(|p| {
        let input = SharedRead::from(p.input);
        OpenPacket::new(p.key, Nonce::from(p.nonce), &p.aad, input, p.tag, p.output)
            .expect("a short message")
    });
    let authentic = open_each(packets, |_, outcome| outcome.expect("a valid tag"));
    assert_eq!(authentic, PACKETS);
}
