//! side by side
mod measure;
mod peers;
use measure::*;
use peers::*;
use tare_gcm::{Key, Path};

fn main() {
    batch();
    if std::env::args().any(|a| a == "--batch") { return; }
    let rounds = 21;
    let mut random = Random(1);
    let key = [9u8; 16];
    for len in [48, 60, 576, 1440, 8192, 16384] {
        for op in [Op::Seal, Op::Open] {
            let mut list: Vec<Box<dyn Peer>> = Vec::new();
            for path in Path::available() {
                if path != Path::Portable { list.push(Box::new(Ours(Key::with_path(&key, path).unwrap()))); }
            }
            list.push(Box::new(AwsLc::new(&key)));
            list.push(Box::new(Ring::new(&key)));
            if let Some(p) = IpsecMb::load(&key) { list.push(Box::new(p)); }
            let cells = list.into_iter().map(|mut peer| {
                let mut message = Message::new(&key, op, len, 3);
                Cell { name: peer.name(), run: Box::new(move |n| for _ in 0..n { peer.run(op, &mut message); }) }
            }).collect();
            let samples = interleave(cells, rounds, 500, &mut random);
            print!("{len:6} {op:?} ");
            for n in &samples.names {
                print!("{n} {:.1}", samples.median_ns(n).unwrap());
                if n != "vaes512" { let e = samples.speedup("vaes512", n, &mut random).unwrap(); print!(" ({:.2} [{:.2},{:.2}])", e.median, e.low, e.high); }
                print!("  ");
            }
            println!();
        }
    }
}

fn batch() {
    use tare_gcm::*;
    let mut random = Random(1);
    for len in [48usize, 60, 100, 128] { for op in [Op::Seal, Op::Open] { 
        let keys: Vec<Key> = (0..32).map(|i| Key::new(&[i as u8; 16]).unwrap()).collect();
        let mk = |key: usize, i: usize| Message::new(&[key as u8; 16], op, len, i as u8);
        let cell = |name: &str, mixed: bool, batched: bool| {
            let mut messages: Vec<Message> = (0..32).map(|i| mk(if mixed { i } else { 0 }, i)).collect();
            let keys = &keys;
            Cell { name: name.into(), run: Box::new(move |n| for _ in 0..n {
                if batched && op == Op::Seal {
                    let mut p: [SealPacket<'_>; 32] = { let mut it = messages.iter_mut().enumerate(); std::array::from_fn(|_| { let (i, m) = it.next().unwrap();
                        SealPacket::new(&keys[if mixed { i } else { 0 }], Nonce::from(m.nonce), &m.aad, &m.input, SharedWrite::from(&mut m.output[..])).unwrap() }) };
                    seal_batch(&mut p);
                    std::hint::black_box(&p);
                } else if batched {
                    let mut p: [OpenPacket<'_>; 32] = { let mut it = messages.iter_mut().enumerate(); std::array::from_fn(|_| { let (i, m) = it.next().unwrap();
                        OpenPacket::new(&keys[if mixed { i } else { 0 }], Nonce::from(m.nonce), &m.aad, SharedRead::from(&m.input[..]), Tag::from(m.tag), &mut m.output[..]).unwrap() }) };
                    assert_eq!(open_batch(&mut p), 32);
                } else {
                    for (i, m) in messages.iter_mut().enumerate() {
                        let key = &keys[if mixed { i } else { 0 }];
                        if op == Op::Seal { m.tag = *key.seal(Nonce::from(m.nonce), &m.aad, &m.input, SharedWrite::from(&mut m.output[..])).unwrap().as_bytes(); }
                        else { key.open(&Nonce::from(m.nonce), &m.aad, SharedRead::from(&m.input[..]), &Tag::from(m.tag), &mut m.output).unwrap(); }
                    }
                }
            }) }
        };
        let s = interleave(vec![cell("single", false, false), cell("batch", false, true), cell("single mixed", true, false), cell("batch mixed", true, true)], 31, 300, &mut random);
        for (a, b) in [("batch", "single"), ("batch mixed", "single mixed")] {
            let e = s.speedup(a, b, &mut random).unwrap();
            println!("{len} {op:?} {a}: {:.1} ns vs {:.1}: {:.2} [{:.2},{:.2}]", s.median_ns(a).unwrap() / 32., s.median_ns(b).unwrap() / 32., e.median, e.low, e.high);
        }
    } }
}
