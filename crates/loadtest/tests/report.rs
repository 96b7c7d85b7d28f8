//! The reports.

mod network;

use std::time::Duration;

use network::both_ways;
use tare_loadtest::simulate::{self, Simulation};
use tare_loadtest::{report, Load, Options, PortRecord, Rate, Step, StreamRecord, Tester, Trial};

/// A trial with every kind of trouble.
fn troubled() -> Trial {
    let stream = StreamRecord {
        name: "node1".into(),
        tx_packets: 930_058,
        tx_bytes: 55_803_480,
        rx_packets: 907_731,
        rx_bytes: 54_463_860,
        lost: 22_327,
        ingress_drop: 27,
        duplicates: 3,
        reordered: 2,
        ..StreamRecord::default()
    };
    Trial {
        number: 7,
        load: Rate::from_bits(625_000_000),
        duration: Duration::from_secs(1),
        invalid: vec!["node1: 0.500000 Gb/s offered of 0.625000 Gb/s asked".into()],
        streams: vec![stream],
        ports: vec![PortRecord {
            stray: 4,
            foreign: 1,
            egress_drop: 5,
            ..PortRecord::default()
        }],
    }
}

#[test]
fn a_search_reads_as_that_of_the_original() {
    let streams = both_ways(&[network::udp4(60, 1)]);
    let testbed = simulate::gateways(&Simulation::new(1_000_000_000), &streams).unwrap();
    let options = Options {
        frames: 1 << 12,
        ..network::quick()
    };
    let mut tester = Tester::new(testbed, streams, options).unwrap();
    let mut text = String::new();
    for (gbps, step) in [(0.5, Step::Passed), (0.625, Step::Failed)] {
        let rate = Rate::from_f64(gbps * 1e9);
        let trial = tester
            .trial(&Load::new(rate, Duration::from_secs(1)))
            .unwrap();
        assert_eq!(trial.is_lossless(), step == Step::Passed);
        text += &format!(
            "{}\n{}{}\n",
            report::applying(rate),
            report::trial(&trial, false),
            report::verdict(step)
        );
    }
    text += &report::figure(Rate::from_bits(609_000_000));
    let expected = "\
Applying 0.500000 Gbps of load.
  node1:
    TX 744048 packets (0.744048 MPPS), 44642880 bytes (0.500000 Gbps)
    RX 744048 packets (0.744048 MPPS), 44642880 bytes (0.500000 Gbps)
    Loss: 0 ingress drop + 0 packets lost (0.000000%)
  node2:
    TX 744048 packets (0.744048 MPPS), 44642880 bytes (0.500000 Gbps)
    RX 744048 packets (0.744048 MPPS), 44642880 bytes (0.500000 Gbps)
    Loss: 0 ingress drop + 0 packets lost (0.000000%)
Success.
Applying 0.625000 Gbps of load.
  node1:
    TX 930060 packets (0.930060 MPPS), 55803600 bytes (0.625000 Gbps)
    RX 906309 packets (0.906309 MPPS), 54378540 bytes (0.609040 Gbps)
    Loss: 0 ingress drop + 23751 packets lost (2.553706%)
  node2:
    TX 930060 packets (0.930060 MPPS), 55803600 bytes (0.625000 Gbps)
    RX 906309 packets (0.906309 MPPS), 54378540 bytes (0.609040 Gbps)
    Loss: 0 ingress drop + 23751 packets lost (2.553706%)
Failed.
0.609";
    assert_eq!(text, expected);
}

#[test]
fn what_the_three_lines_cannot_state_has_lines_of_its_own() {
    let expected = "\
Invalid result: node1: 0.500000 Gb/s offered of 0.625000 Gb/s asked.
  node1:
    TX 930058 packets (0.930058 MPPS), 55803480 bytes (0.624999 Gbps)
    RX 907731 packets (0.907731 MPPS), 54463860 bytes (0.609995 Gbps)
    Loss: 27 ingress drop + 22300 packets lost (2.400603%)
    Also: 3 duplicates, 2 reordered
  Dropped by sending interfaces: 5 packets
  Not counted: 4 of an earlier trial, 1 foreign
";
    assert_eq!(report::trial(&troubled(), true), expected);
    assert_eq!(
        report::verdict(Step::Retry { remaining: 2 }),
        "Failed; 2 retries remaining."
    );
}

#[test]
fn csv_has_the_columns_and_figures_of_the_original() {
    assert_eq!(
        report::CSV_HEADER,
        "load_gbps,stream,tx_packets,tx_mpps,tx_bytes,tx_gbps,rx_packets,rx_mpps,rx_bytes,rx_gbps,ingress_drop,lost_packets,lost_percent"
    );
    let mut trial = troubled();
    trial.streams[0].name = "NIC 1, \"left\"".into();
    let expected = "0.625000,\"NIC 1, \"\"left\"\"\",930058,0.930058,55803480,0.624999,907731,0.907731,54463860,0.609995,27,22300,2.400603\n";
    assert_eq!(report::csv(&trial), expected);
    assert!(report::hydra(&troubled()).contains("node1_rx_mpps,1,0.907731,mpps\n"));
}

#[test]
fn json_names_units_and_has_null_where_nothing_was_measured() {
    let json = serde_json::to_value(troubled()).unwrap();
    assert_eq!(json["load_bits_per_second"], 625_000_000);
    assert_eq!(json["duration_ns"], 1_000_000_000);
    assert_eq!(json["streams"][0]["latency"], serde_json::Value::Null);
    assert_eq!(json["streams"][0]["lost"], 22_327);
    assert_eq!(json["ports"][0]["stray"], 4);
}
