//! 32 small packets in place, each with its tag behind it as in an ESP packet: one call each, or
//! one for all; under one key, or each under its own.
//!
//! Opening in place leaves nothing to open again, so it is measured after sealing: `seal, open`.

use crate::measure::{interleave, Cell, Random};
use crate::report::{Report, Target};
use crate::Settings;
use tare_gcm::{open_keyed, open_run, seal_keyed, seal_run, Key, Nonce, RunPacket, ShortAad, Tag};

const PACKETS: usize = 32;

/// The salt and the SPI of all packets.
const SALT: [u8; 4] = [7; 4];
const SPI: u32 = 0x0102_0304;

/// Bytes between the starts of two packets: of a frame, with room around it.
const STRIDE: usize = 2048 + 64;

pub fn run(settings: &Settings, report: &mut Report, random: &mut Random) {
    let keys: Vec<Key> = (0..PACKETS)
        .map(|i| {
            let mut key = settings.key.clone();
            key[0] = i as u8;
            Key::new(&key).expect("16 or 32 bytes")
        })
        .collect();
    for len in [48, 60, 128] {
        for is_opened in [false, true] {
            let cell = |is_keyed, is_run| Cell {
                name: name(is_keyed, is_run),
                run: work(&keys, len, is_opened, is_keyed, is_run),
            };
            let cells = [(false, false), (false, true), (true, false), (true, true)];
            let cells = cells.map(|(is_keyed, is_run)| cell(is_keyed, is_run));
            let samples = interleave(cells.into(), settings.rounds, 300, random);
            let target = |fast, slow, at_least| Target {
                fast,
                slow,
                at_least,
            };
            let at_least = (len >= 60).then_some(1.5);
            let targets = [
                target("run, one key", "single, one key", at_least),
                target("run, a key each", "single, a key each", None),
            ];
            let what = match is_opened {
                true => format!("seal, open {PACKETS} × {len} B in place"),
                false => format!("seal {PACKETS} × {len} B in place"),
            };
            let bytes = PACKETS * len * (1 + usize::from(is_opened));
            report.section(&what, bytes as f64, &samples, &targets, random);
        }
    }
}

/// The name of a cell.
fn name(is_keyed: bool, is_run: bool) -> String {
    let calls = if is_run { "run" } else { "single" };
    let keys = if is_keyed { "a key each" } else { "one key" };
    format!("{calls}, {keys}")
}

/// Returns the work of a cell, on packets of its own.
fn work(
    keys: &[Key],
    len: usize,
    is_opened: bool,
    is_keyed: bool,
    is_run: bool,
) -> Box<dyn FnMut(u32) + '_> {
    let mut packets = Packets::new(len);
    let key = move |i: usize| &keys[if is_keyed { i } else { 0 }];
    Box::new(move |n| {
        for _ in 0..n {
            match (is_run, is_keyed) {
                (true, true) => seal_keyed(keys.iter().zip(packets.in_run())),
                (true, false) => seal_run(&keys[0], packets.in_run()),
                (false, _) => packets.alone().map(|(i, it)| it.seal(key(i))).sum(),
            };
            if is_opened {
                let forged = |_| panic!("a forgery");
                match (is_run, is_keyed) {
                    (true, true) => open_keyed(keys.iter().zip(packets.in_run()), forged),
                    (true, false) => open_run(&keys[0], packets.in_run(), forged),
                    (false, _) => packets.alone().map(|(i, it)| it.open(key(i))).sum(),
                };
            }
            packets.first += PACKETS as u64;
        }
    })
}

/// Packets of one length, numbered one after the other.
struct Packets {
    room: Vec<u8>,
    /// The place of the first, at the start of a page.
    start: usize,
    /// Bytes with the tag.
    len: usize,
    /// The number of the first.
    first: u64,
}

impl Packets {
    fn new(len: usize) -> Packets {
        let room = vec![0; PACKETS * STRIDE + 4096];
        let start = room.as_ptr().align_offset(4096);
        let len = len + Tag::LEN;
        let first = 1;
        Packets {
            room,
            start,
            len,
            first,
        }
    }

    fn messages(&mut self) -> impl Iterator<Item = (u64, &mut [u8])> {
        let rooms = self.room[self.start..].chunks_exact_mut(STRIDE);
        let messages = rooms.take(PACKETS).map(|room| &mut room[..self.len]);
        (self.first..).zip(messages)
    }

    fn in_run(&mut self) -> impl Iterator<Item = RunPacket<'_>> {
        self.messages().map(|(number, message)| {
            let (nonce, aad) = (Nonce::from_parts(SALT, number), ShortAad::long(SPI, number));
            RunPacket::new(nonce, aad, message).expect("a short message")
        })
    }

    fn alone(&mut self) -> impl Iterator<Item = (usize, Alone<'_>)> {
        let messages = self.messages().enumerate();
        messages.map(|(i, (number, message))| (i, Alone { number, message }))
    }
}

/// A packet that is worked on alone. Both calls return 1.
struct Alone<'a> {
    number: u64,
    message: &'a mut [u8],
}

impl<'a> Alone<'a> {
    /// Returns nonce, additional data, data and tag.
    #[inline(always)]
    fn parts(self) -> (Nonce, ShortAad, &'a mut [u8], &'a mut [u8]) {
        let nonce = Nonce::from_parts(SALT, self.number);
        let aad = ShortAad::long(SPI, self.number);
        let (data, tag) = self.message.split_at_mut(self.message.len() - Tag::LEN);
        (nonce, aad, data, tag)
    }

    #[inline(always)]
    fn seal(self, key: &Key) -> usize {
        let (nonce, aad, data, tag) = self.parts();
        let sealed = key.seal_in_place(nonce, aad.as_bytes(), data);
        tag.copy_from_slice(sealed.expect("a short message").as_bytes());
        1
    }

    #[inline(always)]
    fn open(self, key: &Key) -> usize {
        let (nonce, aad, data, tag) = self.parts();
        let tag: [u8; Tag::LEN] = (&*tag).try_into().expect("its length");
        let opened = key.open_in_place(&nonce, aad.as_bytes(), data, &Tag::from(tag));
        opened.expect("a valid tag");
        1
    }
}
