//! side by side
mod measure;
mod peers;
use measure::*;
use peers::*;
use tare_gcm::{Key, Path};

fn main() {
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
