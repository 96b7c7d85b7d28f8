//! The software benchmark, bare: sizes, packets, routes; then the cipher alone.
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
    let mut worker = bench.worker().unwrap();
    let mut cipher = bench.cipher().unwrap();
    for _ in 0..5 {
        let before = cpu();
        let done = worker.run(packets);
        let between = cpu();
        let sealed = cipher.run(packets).unwrap();
        let after = cpu();
        assert_eq!((done.packets, sealed.packets), (packets, packets));
        let (all, alone) = (
            (between - before) / packets as f64,
            (after - between) / packets as f64,
        );
        println!(
            "cpu {all:.1} ns {:.2} Mpps; cipher {alone:.1} ns, {:.2}",
            1e3 / all,
            alone / all
        );
    }
}

fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap();
    stat.split(' ').next().unwrap().parse().unwrap()
}
