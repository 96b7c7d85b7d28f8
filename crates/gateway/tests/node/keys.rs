//! Keys are agreed on and changed, and no packet notices.

use std::time::Duration;

use tare_gateway::control::RouteStatus;
use tare_sim::LineConfig;

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

fn status(bed: &mut Bed, side: usize) -> RouteStatus {
    bed.node(side).control().status().routes.remove(0)
}

/// SAs of their own for two workers, at one end or at both; more workers share two.
#[test]
fn workers_have_sas_of_their_own_and_no_change_of_keys_loses_a_packet() {
    for (workers, wanted) in [
        ([2, 2], [2, 2]),
        ([2, 1], [2, 1]),
        ([1, 2], [1, 2]),
        ([5, 2], [2, 2]),
    ] {
        let line = LineConfig {
            delay: Duration::from_millis(1),
            ..LineConfig::new(1_000_000_000)
        };
        let mut bed = Bed::with_workers(workers, &line, SHORT);
        bed.wait_until_up(1.0);
        bed.restart_counting();
        // The second SA is used when the peer has had time for its own.
        bed.load(5.0, Duration::from_millis(1));
        for (side, &wanted) in wanted.iter().enumerate() {
            let sas = status(&mut bed, side).outbound;
            assert_eq!(sas.len(), wanted, "{workers:?}: {sas:?}");
        }
        // All of them carry.
        let before = [0, 1].map(|side| status(&mut bed, side).outbound);
        bed.load(0.5, Duration::from_millis(1));
        for (side, before) in before.iter().enumerate() {
            for (sa, before) in status(&mut bed, side).outbound.iter().zip(before) {
                assert_eq!(sa.spi, before.spi);
                assert!(sa.packets > before.packets + 100, "{workers:?}: {sa:?}");
            }
        }
        bed.load(1800.0, Duration::from_millis(20));
        assert_eq!(bed.lost(), [0, 0], "{workers:?}");
        let agreed = bed.node(0).control().exchange_counters();
        let pairs = agreed.agreements + agreed.proposals;
        assert!(pairs > 150 && pairs < 800, "{workers:?}: {pairs} pairs");
        assert_eq!(agreed.outbound_expired, 0);
        for (side, &wanted) in wanted.iter().enumerate() {
            assert_eq!(bed.received(side).dropped_total(), 0);
            let status = status(&mut bed, side);
            assert_eq!(status.outbound.len(), wanted);
            assert!(status.inbound.len() <= 4 * wanted, "{status:?}");
        }
        assert_eq!(bed.taken(), 0);
    }
}

/// A worker of the peer that has nothing to send proves nothing: what it would use waits, and is
/// used in time.
#[test]
fn a_worker_with_nothing_to_send_holds_nobody_up() {
    let line = LineConfig {
        delay: Duration::from_millis(1),
        ..LineConfig::new(1_000_000_000)
    };
    let mut bed = Bed::with_workers([2, 2], &line, SHORT);
    bed.wait_until_up(1.0);
    bed.restart_counting();
    let mut shared = 0;
    for second in 0..600 {
        for _ in 0..50 {
            // Of two bursts, the second is lost before it gets to its worker.
            for side in 0..2 {
                bed.send(side, false);
                bed.skip(side);
            }
            bed.run_for(0.02);
        }
        for side in 0..2 {
            let sas = status(&mut bed, side).outbound.len();
            assert!(sas > 0);
            shared += usize::from(sas < 2 && second > 5);
        }
    }
    assert_eq!(bed.lost(), [0, 0]);
    assert!(shared < 120, "{shared} of 1200 s with one SA");
}

#[test]
fn a_reload_keeps_the_sas_of_all_workers_and_a_peer_that_restarts_is_followed() {
    let line = LineConfig::new(1_000_000_000);
    let mut bed = Bed::with_workers([2, 2], &line, "");
    bed.wait_until_up(1.0);
    bed.restart_counting();
    bed.load(10.0, Duration::from_millis(10));
    let before = [0, 1].map(|side| status(&mut bed, side).outbound);
    for round in 0..20 {
        let side = round % 2;
        let more = "route { id other; gw-ip4 203.0.113.1; net-cidr4 \"10.1.0.0/16\"; spi 1002;
            preshared-key 1111111111111111111111111111111111111111111111111111111111111111; }";
        let more = if round % 4 < 2 { more } else { "" };
        let config = parse(&file(side, "", &route4(side), more));
        let now = bed.time_of(side);
        bed.node(side).reconfigure(now, config).unwrap();
        bed.load(0.2, Duration::from_millis(1));
    }
    assert_eq!(bed.lost(), [0, 0]);
    for (side, before) in before.iter().enumerate() {
        let spis = |sas: &[tare_gateway::control::SaStatus]| -> Vec<u32> {
            sas.iter().map(|sa| sa.spi).collect()
        };
        assert_eq!(spis(&status(&mut bed, side).outbound), spis(before));
        assert_eq!(before.len(), 2);
    }
    bed.start(1, parse(&file(1, "", &route4(1), "")));
    bed.wait_until_up(5.0);
    bed.load(30.0, Duration::from_millis(10));
    bed.restart_counting();
    bed.load(30.0, Duration::from_millis(10));
    assert_eq!(bed.lost(), [0, 0]);
    for side in 0..2 {
        assert_eq!(status(&mut bed, side).outbound.len(), 2);
    }
}
