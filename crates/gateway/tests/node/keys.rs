//! Keys are agreed on and changed, and no packet notices.

use std::time::Duration;

use crate::bed::{file, parse, route4, Bed, KEY};

/// Short lives, so that hours hold many.
const SHORT: &str = "negotiation-ttl 2; sa-ttl 16;";

#[test]
fn two_gateways_find_each_other_agree_on_keys_and_carry_packets_both_ways() {
    let mut bed = Bed::plain("");
    let took = bed.wait_until_up(1.0);
    assert!(took < 0.5, "{took} s");
    bed.restart_counting();
    bed.load(1.0, Duration::from_millis(1));
    assert_eq!(bed.lost(), [0, 0]);
    assert!(bed.hosts[0].received >= 1000);
    assert_eq!(bed.hosts[0].twice + bed.hosts[1].twice, 0);
    assert_eq!(bed.taken(), 0);
}

#[test]
fn packets_of_both_families_go_over_both_families() {
    for route in [route4, |side: usize| {
        format!("gw-ip6 2001:db8::{}; {KEY}", 17 - side)
    }] {
        let mut bed = Bed::new([0, 1].map(|side| parse(&file(side, "", &route(side), ""))));
        bed.wait_until_up(1.0);
        bed.restart_counting();
        for n in 0..1000 {
            bed.send(n % 2, n % 4 > 1);
            bed.run_for(0.001);
        }
        assert_eq!(bed.lost(), [0, 0]);
    }
}

#[test]
fn hours_of_changing_keys_lose_no_packet() {
    let mut bed = Bed::plain(SHORT);
    bed.wait_until_up(1.0);
    bed.restart_counting();
    let hours = 2.0;
    bed.load(hours * 3600.0, Duration::from_millis(20));
    assert_eq!(bed.lost(), [0, 0]);
    assert!(bed.hosts[0].received >= 360_000);
    let agreed = bed.node(0).control().exchange_counters();
    let pairs = agreed.agreements + agreed.proposals;
    assert!(pairs > 600, "{pairs} pairs of keys in {hours} hours");
    for side in 0..2 {
        assert_eq!(bed.received(side).dropped_total(), 0);
        let status = bed.node(side).control().status();
        assert!(status.routes[0].inbound.len() <= 4);
    }
    assert_eq!(bed.taken(), 0);
}
