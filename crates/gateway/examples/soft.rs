//! The software benchmark, bare: sizes, packets, routes.
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
    for _ in 0..5 {
        let before = cpu();
        let o = bench.run(packets, |_| {}).unwrap();
        let c = (cpu() - before) / packets as f64;
        println!("cpu {c:.1} ns {:.2} Mpps, wrong {}", 1e3 / c, o.wrong);
    }
}
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap();
    stat.split(' ').next().unwrap().parse().unwrap()
}
