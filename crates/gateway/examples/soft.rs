//! The software benchmark, bare.
use tare_gateway::bench::{Bench, Setup};
use tare_gateway::sa::Counting;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let sizes: Vec<u16> = args[1].split(',').map(|s| s.parse().unwrap()).collect();
    let packets: u64 = args[2].parse().unwrap();
    let routes: usize = args[3].parse().unwrap();
    let setup = Setup {
        sizes,
        routes,
        key_bytes: 16,
        counting: Counting::Extended,
        workers: 1,
    };
    let bench = Bench::new(&setup).unwrap();
    for _ in 0..3 {
        let o = bench.run(packets, |_| {}).unwrap();
        let s = o.elapsed.as_secs_f64();
        println!(
            "{} ok {} wrong {:.3} Mpps {:.1} ns {:.2} Gb/s {:?}",
            o.packets,
            o.wrong,
            o.packets as f64 / s / 1e6,
            s * 1e9 / o.packets as f64,
            o.bytes as f64 * 8e-9 / s,
            if o.wrong > 0 {
                Some((o.sent, o.received))
            } else {
                None
            }
        );
    }
}
