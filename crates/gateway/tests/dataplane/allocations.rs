//! No packet costs an allocation.

use tare_gateway::bench::{Bench, Setup};
use tare_gateway::sa::Counting;

#[test]
fn a_million_packets_allocate_no_more_than_ten_thousand() {
    let setup = Setup {
        sizes: vec![60, 590, 60, 1514],
        routes: 100,
        key_bytes: 16,
        counting: Counting::Extended,
        workers: 1,
    };
    let bench = Bench::new(&setup).unwrap();
    let allocations = |packets| {
        allocation_counter::measure(|| {
            let outcome = bench.run(packets, |_| {}).unwrap();
            assert_eq!((outcome.packets, outcome.wrong), (packets, 0));
        })
        .count_total
    };
    let few = allocations(10_000);
    assert_eq!(allocations(1_000_000), few);
}
