//! The accesses to every byte of every call, on every path, for every length that has code of its
//! own: one load of each byte of the source, one store of each byte of the destination, and no
//! other access to either, nor to anything around them.

use crate::common::paths;
use crate::watch::{Count, Watch, LEN, PAGE};
use tare_gcm::{
    open_batch, open_each, seal_batch, seal_each, Error, Key, Nonce, OpenPacket, SealPacket,
    SharedRead, SharedWrite, Tag,
};

const AAD: &[u8] = b"twelve bytes";

/// Both halves of the watched memory end at the end of a page.
const HALF: usize = LEN / 2;

fn nonce(i: usize) -> Nonce {
    Nonce::from([i as u8; 12])
}

fn plaintext(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// A message in the watched memory: its bytes at `src`, room for its output at `dst`.
struct Place {
    src: usize,
    dst: usize,
    len: usize,
}

impl Place {
    fn source<'a>(&self, watch: &Watch) -> &'a [u8] {
        // SAFETY: within the watched memory, which outlives the call that this is for, and which
        // nothing else accesses meanwhile.
        unsafe { std::slice::from_raw_parts(watch.at(self.src), self.len) }
    }

    fn destination<'a>(&self, watch: &Watch) -> &'a mut [u8] {
        // SAFETY: as above; source and destination do not overlap unless they are the same.
        unsafe { std::slice::from_raw_parts_mut(watch.at(self.dst), self.len) }
    }
}

/// Asserts that the bytes of these places were loaded and stored once, that nothing else was
/// accessed, and that no masked access went on into a page that it does not need. How much time one
/// takes there if the page is not mapped depends on the processor (`tests/page_end.rs`); that there
/// is none does not.
fn assert_once(watch: &Watch, places: &[Place], what: &dyn Fn() -> String) {
    let mut expected = vec![Count::default(); LEN];
    for place in places {
        for i in 0..place.len {
            expected[place.src + i].loads += 1;
            expected[place.dst + i].stores += 1;
        }
    }
    let found = watch.counts();
    if let Some(at) = (0..LEN).find(|&at| found[at] != expected[at]) {
        let (found, expected) = (found[at], expected[at]);
        let byte = |start: usize| at as isize - start as isize;
        let of: Vec<_> = places.iter().map(|p| (byte(p.src), byte(p.dst))).collect();
        panic!(
            "{}: byte (of source, of destination) {of:?}: found {found:?}, expected {expected:?}",
            what()
        );
    }
    let reaching = watch.reaching();
    assert_eq!(reaching, 0, "{}: masked accesses past a page's end", what());
}

/// All lengths of short messages, heads, steps and ends, and some of several rounds of the bulk
/// loop.
fn lengths() -> impl Iterator<Item = usize> {
    (0..=560).chain([1025, 1440, 2047, 2288, 2300, 4100, 5000])
}

#[test]
fn each_byte_of_a_message_is_loaded_once_and_stored_once() {
    let mut watch = Watch::new();
    for path in paths() {
        for key_len in [16, 32] {
            let key = Key::with_path(&vec![1; key_len], path).unwrap();
            for len in lengths() {
                // At the end of a page, where kernels may have other code; and anywhere.
                let end = (HALF - len, LEN - len);
                let anywhere = (HALF - len - len * 7 % 64, HALF + len * 11 % PAGE);
                for (src, dst) in [end, anywhere] {
                    if dst + len <= LEN && (len <= 300 || (src, dst) == end) {
                        whole(&mut watch, &key, &Place { src, dst, len });
                    }
                }
            }
        }
        println!("{path}: {} instructions so far", watch.instructions());
    }
    report();
}

/// Seals and opens a message.
fn whole(watch: &mut Watch, key: &Key, place: &Place) {
    let Place { src, dst, len } = *place;
    let plaintext = plaintext(len);
    let mut ciphertext = plaintext.clone();
    let tag = key.seal_in_place(nonce(2), AAD, &mut ciphertext).unwrap();
    let places = std::slice::from_ref(place);
    let what = |call: &str| format!("{} {call}, {len} bytes, {src} to {dst}", key.path());

    watch.write(src, &plaintext);
    let (from, to) = (place.source(watch), place.destination(watch));
    let sealed = watch.count(|| key.seal(nonce(2), AAD, from, SharedWrite::from(to)));
    assert_once(watch, places, &|| what("seal"));
    assert_eq!(sealed, Ok(tag));
    assert_eq!(watch.read(dst, len), ciphertext);

    watch.write(src, &ciphertext);
    let (from, to) = (place.source(watch), place.destination(watch));
    let opened = watch.count(|| key.open(&nonce(2), AAD, SharedRead::from(from), &tag, to));
    assert_once(watch, places, &|| what("open"));
    assert_eq!(opened, Ok(()));
    assert_eq!(watch.read(dst, len), plaintext);

    // A forgery is loaded once too, and wiped in a way that is not counted.
    let forged = Tag::from([0; 16]);
    let (from, mut private) = (SharedRead::from(place.source(watch)), vec![0; len]);
    let opened = watch.count(|| key.open(&nonce(2), AAD, from, &forged, &mut private));
    assert_eq!(opened, Err(Error::Forged));
    let once = Count {
        loads: 1,
        stores: 0,
    };
    let counts = &watch.counts()[src..src + len];
    assert!(
        counts.iter().all(|count| *count == once),
        "{}",
        what("forgery")
    );

    let in_place = [Place { src: dst, dst, len }];
    watch.write(dst, &plaintext);
    let data = place.destination(watch);
    let sealed = watch.count(|| key.seal_in_place(nonce(2), AAD, data));
    assert_once(watch, &in_place, &|| what("seal in place"));
    assert_eq!(sealed, Ok(tag));
    let data = place.destination(watch);
    let opened = watch.count(|| key.open_in_place(&nonce(2), AAD, data, &tag));
    assert_once(watch, &in_place, &|| what("open in place"));
    assert_eq!(opened, Ok(()));
}

/// Cuts `len` bytes into pieces, some of them empty.
fn cuts(len: usize, kind: usize) -> Vec<usize> {
    let mut pieces = match kind {
        0 => vec![len / 3, 0, len - len / 3 - len / 7, len / 7],
        1 => vec![0, len.min(1), len - len.min(1)],
        _ => (0..).map(|i| 1 + i * 5 % 37).take(len / 8).collect(),
    };
    let mut left = len;
    for piece in &mut pieces {
        *piece = left.min(*piece);
        left -= *piece;
    }
    pieces.push(left);
    pieces
}

#[test]
fn each_byte_of_a_message_in_pieces_is_loaded_once_and_stored_once() {
    let mut watch = Watch::new();
    for path in paths() {
        for key_len in [16, 32] {
            let key = Key::with_path(&vec![1; key_len], path).unwrap();
            for len in lengths().filter(|len| len % 3 == 0 || *len < 40) {
                for kind in 0..3 {
                    scattered(&mut watch, &key, len, kind);
                }
            }
        }
    }
}

fn scattered(watch: &mut Watch, key: &Key, len: usize, kind: usize) {
    let plaintext = plaintext(len);
    let mut ciphertext = plaintext.clone();
    let tag = key.seal_in_place(nonce(2), AAD, &mut ciphertext).unwrap();
    let (src, dst) = (HALF - len, HALF + len % 61);
    let place = Place { src, dst, len };
    let what = || format!("{} in pieces ({kind}), {len} bytes", key.path());
    let inputs = |watch: &Watch, kind| -> Vec<&[u8]> {
        let mut rest = place.source(watch);
        let cut = |len| rest.split_off(..len).unwrap();
        cuts(len, kind).into_iter().map(cut).collect()
    };
    let outputs = |watch: &Watch, kind| -> Vec<&mut [u8]> {
        let mut rest = place.destination(watch);
        let cut = |len| rest.split_off_mut(..len).unwrap();
        cuts(len, kind).into_iter().map(cut).collect()
    };

    watch.write(src, &plaintext);
    let from = inputs(watch, kind);
    let mut to: Vec<_> = outputs(watch, (kind + 1) % 3)
        .into_iter()
        .map(SharedWrite::from)
        .collect();
    let sealed = watch.count(|| key.seal_scattered(nonce(2), AAD, &from, &mut to));
    assert_once(watch, std::slice::from_ref(&place), &what);
    assert_eq!(sealed, Ok(tag));
    assert_eq!(watch.read(dst, len), ciphertext);

    watch.write(src, &ciphertext);
    let from: Vec<_> = inputs(watch, kind)
        .into_iter()
        .map(SharedRead::from)
        .collect();
    let mut to = outputs(watch, (kind + 1) % 3);
    let opened = watch.count(|| key.open_scattered(&nonce(2), AAD, &from, &tag, &mut to));
    assert_once(watch, std::slice::from_ref(&place), &what);
    assert_eq!(opened, Ok(()));
    assert_eq!(watch.read(dst, len), plaintext);
}

/// Packets in a batch: four that are worked on together, and one that is left over.
const BATCH: usize = 5;

#[test]
fn each_byte_of_a_batch_is_loaded_once_and_stored_once() {
    let mut watch = Watch::new();
    for path in paths() {
        let key = |len: usize, byte: u8| Key::with_path(&vec![byte; len], path).unwrap();
        let keys = [key(16, 1), key(16, 2), key(32, 3), key(32, 4)];
        // One key, two of a size, sizes mixed.
        let choices = [
            [0; BATCH],
            [2; BATCH],
            [0, 1, 0, 1, 1],
            [3, 2, 2, 3, 2],
            [0, 2, 1, 3, 0],
        ];
        for len in 0..=80 {
            for (choice, keys_of) in choices.iter().enumerate() {
                for (mixed, lie) in [false, true]
                    .into_iter()
                    .flat_map(|mixed| [0, 1, 2].map(|lie| (mixed, lie)))
                {
                    let keys: Vec<&Key> = keys_of.iter().map(|&i| &keys[i]).collect();
                    let place = |i: usize| {
                        let len = if mixed { (len + 17 * i) % 81 } else { len };
                        // Each source or destination ends with a page, and the packets go one at
                        // a time; or some destinations do, of sources on lines; or none does, and
                        // four go at a time.
                        let ends = [PAGE - len, 100, 2 * PAGE - len, PAGE + 1000, HALF - len];
                        let lines = [64, 320, PAGE + 128, PAGE + 1024, 2 * PAGE + 512];
                        let within = [64, 300, PAGE + 100, PAGE + 1000, 2 * PAGE + 500];
                        let src = [ends, lines, within][lie][i];
                        let dst = HALF + [ends, ends, within][lie][(i + 1) % BATCH];
                        Place { src, dst, len }
                    };
                    let places: Vec<Place> = (0..BATCH).map(place).collect();
                    batch(&mut watch, &keys, &places, choice % 2 == 0);
                }
            }
        }
    }
}

fn batch(watch: &mut Watch, keys: &[&Key], places: &[Place], each: bool) {
    let what = || {
        let lens: Vec<usize> = places.iter().map(|place| place.len).collect();
        format!("{} batch of {lens:?}", keys[0].path())
    };
    let mut tags = [Tag::from([0; 16]); BATCH];
    let mut ciphertexts = Vec::new();
    for (i, place) in places.iter().enumerate() {
        let mut ciphertext = plaintext(place.len);
        tags[i] = keys[i]
            .seal_in_place(nonce(i), AAD, &mut ciphertext)
            .unwrap();
        watch.write(place.src, &plaintext(place.len));
        ciphertexts.push(ciphertext);
    }
    let mut packets = Vec::new();
    for (i, place) in places.iter().enumerate() {
        let (from, to) = (
            place.source(watch),
            SharedWrite::from(place.destination(watch)),
        );
        packets.push(SealPacket::new(keys[i], nonce(i), AAD, from, to).unwrap());
    }
    let mut sealed = [None; BATCH];
    watch.count(|| {
        if each {
            seal_each(packets, |i, tag| sealed[i] = Some(tag));
        } else {
            seal_batch(&mut packets);
            sealed
                .iter_mut()
                .zip(&packets)
                .for_each(|(tag, packet)| *tag = packet.tag());
        }
    });
    assert_once(watch, places, &|| format!("seal, {}", what()));
    for (i, place) in places.iter().enumerate() {
        assert_eq!(sealed[i], Some(tags[i]));
        assert_eq!(watch.read(place.dst, place.len), ciphertexts[i]);
        watch.write(place.src, &ciphertexts[i]);
    }
    let mut packets = Vec::new();
    for (i, place) in places.iter().enumerate() {
        let (from, to) = (
            SharedRead::from(place.source(watch)),
            place.destination(watch),
        );
        packets.push(OpenPacket::new(keys[i], nonce(i), AAD, from, tags[i], to).unwrap());
    }
    let authentic = watch.count(|| {
        if each {
            open_each(packets, |_, _| {})
        } else {
            open_batch(&mut packets)
        }
    });
    assert_once(watch, places, &|| format!("open, {}", what()));
    assert_eq!(authentic, BATCH);
    for place in places {
        assert_eq!(watch.read(place.dst, place.len), plaintext(place.len));
    }
}

#[test]
fn each_byte_of_a_tag_is_loaded_once_and_stored_once() {
    let mut watch = Watch::new();
    for at in [PAGE - 16, PAGE - 5, PAGE + 3] {
        watch.write(at, &[9; 16]);
        let place = Place {
            src: at,
            dst: HALF + at,
            len: 16,
        };
        let (from, to) = (place.source(&watch), place.destination(&watch));
        watch.count(|| {
            let tag = Tag::load(SharedRead::from(from)).unwrap();
            tag.store(SharedWrite::from(to)).unwrap();
        });
        assert_once(&watch, &[place], &|| "tag".to_owned());
    }
}

/// The control: accesses of many kinds are counted as what they are.
#[cfg(target_arch = "x86_64")]
#[test]
fn repeated_accesses_are_counted() {
    let mut watch = Watch::new();
    let p = watch.at(104);
    let count = |loads, stores| Count { loads, stores };
    watch.count(|| {
        // SAFETY: watched memory, which is there.
        unsafe {
            let _ = (p.read_volatile(), p.cast::<u64>().read_volatile());
            p.add(6).cast::<u16>().write_volatile(3);
            core::arch::asm!("add byte ptr [{}], 1", in(reg) p.add(20));
            core::arch::asm!("movdqu xmm0, xmmword ptr [{}]", in(reg) p.add(30), out("xmm0") _);
        }
    });
    let expected = |i: usize| match i {
        0 => count(2, 0),
        1..6 => count(1, 0),
        6 | 7 => count(1, 1),
        20 => count(1, 1),
        30..46 => count(1, 0),
        _ => count(0, 0),
    };
    let wrong = (0..50).find(|&i| watch.counts()[104 + i] != expected(i));
    assert_eq!(wrong, None);
    if std::arch::is_x86_feature_detected!("avx512bw") {
        // SAFETY: as above; the processor has the instructions.
        watch.count(|| unsafe { masked_loads(p) });
        let found: Vec<u8> = watch.counts()[104..144]
            .iter()
            .map(|count| count.loads)
            .collect();
        assert_eq!(found[..8], [1, 1, 1, 1, 2, 2, 2, 2]);
        assert!(found[8..32].iter().all(|loads| *loads == 1));
        assert!(found[32..].iter().all(|loads| *loads == 0));
        assert_eq!(watch.reaching(), 0);
        // Up to the end of a page with what the masks select, and one operand beyond.
        let p = watch.at(PAGE - 32);
        // SAFETY: as above.
        watch.count(|| unsafe { masked_loads(p) });
        assert_eq!(watch.reaching(), 1);
        // What the masks select goes beyond, too.
        let p = watch.at(PAGE - 6);
        // SAFETY: as above.
        watch.count(|| unsafe { masked_loads(p) });
        assert_eq!(watch.reaching(), 0);
    }
}

/// The same of AArch64.
#[cfg(target_arch = "aarch64")]
#[test]
fn repeated_accesses_are_counted() {
    use core::arch::asm;
    let mut watch = Watch::new();
    let p = watch.at(104);
    let count = |loads, stores| Count { loads, stores };
    watch.count(|| {
        // SAFETY: watched memory, which is there.
        unsafe {
            let _ = (p.read_volatile(), p.cast::<u64>().read_volatile());
            p.add(6).cast::<u16>().write_volatile(3);
            asm!("ld1 {{v0.16b}}, [{}]", in(reg) p.add(30), out("v0") _);
            asm!("str q0, [{}, {}]", in(reg) p, in(reg) 40_u64);
            asm!("ldp x0, x1, [{}, #-8]", in(reg) p.add(88), out("x0") _, out("x1") _);
            asm!("stp w0, w1, [{}], #8", inout(reg) p.add(100) => _);
            asm!("ldrsb x0, [{}, #-1]!", inout(reg) p.add(111) => _, out("x0") _);
            asm!("ldr d0, [{}, {:w}, uxtw #3]", in(reg) p, in(reg) 15_u64, out("v0") _);
        }
    });
    let expected = |i: usize| match i {
        0 => count(2, 0),
        1..6 => count(1, 0),
        6 | 7 => count(1, 1),
        30..40 => count(1, 0),
        40..46 => count(1, 1),
        46..56 => count(0, 1),
        80..96 => count(1, 0),
        100..108 => count(0, 1),
        110 => count(1, 0),
        120..128 => count(1, 0),
        _ => count(0, 0),
    };
    let wrong = (0..140).find(|&i| watch.counts()[104 + i] != expected(i));
    assert_eq!(wrong, None);
    assert_eq!(watch.instructions(), 9);
}

/// Loads four bytes, and 32.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn masked_loads(p: *const u8) {
    // SAFETY: the caller's memory.
    unsafe {
        core::arch::asm!("vmovdqu8 {v} {{{k}}}{{z}}, zmmword ptr [{p}]",
            "vbroadcasti64x4 {v} {{{k}}}{{z}}, ymmword ptr [{p}]",
            v = out(zmm_reg) _, k = in(kreg) 0xf0_u64, p = in(reg) p);
    }
}

#[test]
#[should_panic(expected = "accesses could not be counted")]
fn an_access_that_cannot_be_counted_is_reported() {
    let mut watch = Watch::new();
    let p = watch.at(104);
    watch.count(|| {
        // SAFETY: bytes of watched memory.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            core::arch::asm!("rep movsb", inout("rcx") 8 => _, inout("rsi") p => _, inout("rdi") p.add(8) => _);
            #[cfg(target_arch = "aarch64")]
            core::arch::asm!("ldxrb w0, [{p}]", "clrex", p = in(reg) p, out("x0") _);
        }
    });
}

/// Tells `cargo xtask` which paths were counted here.
fn report() {
    use std::io::Write as _;
    if let Some(file) = std::env::var_os("TARE_EXERCISED") {
        let file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(file);
        let lines: String = paths()
            .into_iter()
            .map(|path| format!("gcm counted {path}\n"))
            .collect();
        file.unwrap().write_all(lines.as_bytes()).unwrap();
    }
}
