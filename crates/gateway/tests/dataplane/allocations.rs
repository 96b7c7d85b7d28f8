//! No packet costs an allocation.

use tare_gateway::dataplane::SequenceMode;
use tare_gateway::tools::bench::{Bench, Setup};

#[test]
fn a_million_packets_allocate_nothing() {
    let setup = Setup {
        sizes: vec![60, 590, 60, 1514],
        routes: 100,
        key_bytes: 16,
        sequence_mode: SequenceMode::Extended,
        workers: 1,
    };
    let bench = Bench::new(&setup).unwrap();
    let mut worker = bench.worker().unwrap();
    let mut allocations = |packets| {
        let counted =
            allocation_counter::measure(|| assert_eq!(worker.run(packets).packets, packets));
        counted.count_total
    };
    assert_eq!(allocations(1_000_000), 0);
}
