//! Keys are agreed on and changed, and no packet notices.

use std::time::Duration;

use tare_gateway::control::RouteStatus;
use tare_gateway::exchange::{DropReason, PORT};
use tare_packet::frame;
use tare_sim::{LineConfig, Random};

use crate::testbed::{file, parse, route4, Testbed, KEY, PUBLIC};

/// Short lives, so that hours hold many.
const SHORT: &str = "negotiation-ttl 2; sa-ttl 16;";

#[test]
fn two_gateways_find_each_other_agree_on_keys_and_carry_packets_both_ways() {
    let mut testbed = Testbed::plain("");
    let took = testbed.wait_until_up(1.0);
    assert!(took < 0.5, "{took} s");
    testbed.restart_counting();
    testbed.load(1.0, Duration::from_millis(1));
    assert_eq!(testbed.lost(), [0, 0]);
    assert!(testbed.host(0).received >= 1000);
    assert_eq!(testbed.host(0).twice + testbed.host(1).twice, 0);
    assert_eq!(testbed.taken(), 0);
}

#[test]
fn packets_of_both_families_go_over_both_families() {
    for route in [route4, |side: usize| {
        format!("gw-ip6 2001:db8::{}; {KEY}", 17 - side)
    }] {
        let mut testbed = Testbed::new([0, 1].map(|side| parse(&file(side, "", &route(side), ""))));
        testbed.wait_until_up(1.0);
        testbed.restart_counting();
        for n in 0..1000 {
            testbed.send(n % 2, n % 4 > 1);
            testbed.run_for(0.001);
        }
        assert_eq!(testbed.lost(), [0, 0]);
    }
}

#[test]
fn hours_of_changing_keys_lose_no_packet() {
    let mut testbed = Testbed::plain(SHORT);
    testbed.wait_until_up(1.0);
    testbed.restart_counting();
    let hours = 2.0;
    testbed.load(hours * 3600.0, Duration::from_millis(20));
    assert_eq!(testbed.lost(), [0, 0]);
    assert!(testbed.host(0).received >= 360_000);
    let agreed = testbed.node(0).control().exchange_counters();
    let pairs = agreed.agreements + agreed.proposals;
    assert!(pairs > 600, "{pairs} pairs of keys in {hours} hours");
    for side in 0..2 {
        assert_eq!(testbed.dropped(side), 0);
        let status = testbed.node(side).control().status();
        assert!(status.routes[0].inbound.len() <= 4);
    }
    assert_eq!(testbed.taken(), 0);
}

/// The data plane is asked whether packets of the peer arrive, which marks its proposals: those
/// without a mark are not worth a look then.
#[test]
fn forged_proposals_get_few_looks_while_the_peer_s_packets_arrive() {
    let mut testbed = Testbed::plain("");
    testbed.wait_until_up(1.0);
    testbed.restart_counting();
    // The SAs are beyond doubt, so nothing else watches them.
    testbed.load(20.0, Duration::from_millis(10));
    let mut random = Random::new(7);
    let mut flood = |testbed: &mut Testbed| -> u64 {
        let looks = |testbed: &mut Testbed| {
            let counters = testbed.node(0).control().exchange_counters();
            counters.dropped(DropReason::Authentication)
        };
        let before = looks(testbed);
        for n in 0..10_000 {
            let mut message = [1001u32.to_be_bytes(), [13, 0, 0, 0]].concat();
            let mut body = [0; 80];
            random.fill(&mut body);
            message.extend(body);
            let (src, dst) = ("192.0.2.17".parse().unwrap(), "192.0.2.16".parse().unwrap());
            let frame = frame::udp(PUBLIC[0], PUBLIC[1], src, dst, PORT, &message).unwrap();
            testbed.inject(0, &frame);
            if n % 4 == 0 {
                testbed.run_for(0.001);
            }
            if n % 40 == 0 {
                testbed.send(1, false);
            }
        }
        looks(testbed) - before
    };
    flood(&mut testbed);
    // A second's, and what was saved up for the first.
    let looks = flood(&mut testbed);
    assert!(looks < 2_700, "{looks} of 10,000");
    assert_eq!(testbed.lost(), [0, 0]);
}

/// Vita writes padding of zeros, and manual keys are for peers that follow RFC 4303.
#[test]
fn padding_of_zeros_is_accepted_where_keys_are_negotiated() {
    let zeros = |testbed: &mut Testbed| -> Vec<bool> {
        let tables = testbed.node(0).control().tables();
        let sas = tables.inbound.iter();
        sas.map(|sa| sa.accepts_zeros_as_padding()).collect()
    };
    let mut testbed = Testbed::plain("");
    testbed.wait_until_up(1.0);
    let sas = zeros(&mut testbed);
    assert!(!sas.is_empty() && sas.iter().all(|&zeros| zeros));
    let mut testbed = manual_testbed();
    testbed.wait_until_up(1.0);
    assert_eq!(zeros(&mut testbed), [false]);
}

/// Two gateways with manual keys.
fn manual_testbed() -> Testbed {
    let manual = |side: usize| {
        let sa = |name, spi| {
            format!(
                "{name} {{ spi {spi}; aead aes-128-gcm; key {}; salt {spi:08}; }}",
                "0a".repeat(16)
            )
        };
        let (inbound, outbound) = (
            sa("inbound-sa", 3001 + side),
            sa("outbound-sa", 3002 - side),
        );
        format!("gw-ip4 192.0.2.{}; {inbound} {outbound}", 17 - side)
    };
    Testbed::new([0, 1].map(|side| parse(&file(side, "", &manual(side), ""))))
}

/// A nonce that is used twice gives a key away, and a manual key outlives the process.
#[test]
fn a_manual_key_has_no_nonce_twice_after_a_restart_and_negotiated_ones_begin_at_1() {
    let ivs = |testbed: &mut Testbed| {
        testbed.wait_until_up(1.0);
        testbed.load(1.0, Duration::from_millis(1));
        testbed.ivs(0)
    };
    let mut highest = 0;
    for _ in 0..3 {
        let (low, high) = ivs(&mut manual_testbed());
        assert!(low > highest && high >= low + 900, "{low} to {high}");
        highest = high;
    }
    let (low, high) = ivs(&mut Testbed::plain(""));
    assert!(low == 1 && high < 2000, "{low} to {high}");
}

fn status(testbed: &mut Testbed, side: usize) -> RouteStatus {
    testbed.node(side).control().status().routes.remove(0)
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
        let mut testbed = Testbed::with_workers(workers, &line, SHORT);
        testbed.wait_until_up(1.0);
        testbed.restart_counting();
        // The second SA is used when the peer has had time for its own.
        testbed.load(5.0, Duration::from_millis(1));
        for (side, &wanted) in wanted.iter().enumerate() {
            let sas = status(&mut testbed, side).outbound;
            assert_eq!(sas.len(), wanted, "{workers:?}: {sas:?}");
        }
        // All of them carry.
        let before = [0, 1].map(|side| status(&mut testbed, side).outbound);
        testbed.load(0.5, Duration::from_millis(1));
        for (side, before) in before.iter().enumerate() {
            for (sa, before) in status(&mut testbed, side).outbound.iter().zip(before) {
                assert_eq!(sa.spi, before.spi);
                assert!(sa.packets > before.packets + 100, "{workers:?}: {sa:?}");
            }
        }
        testbed.load(1800.0, Duration::from_millis(20));
        assert_eq!(testbed.lost(), [0, 0], "{workers:?}");
        let agreed = testbed.node(0).control().exchange_counters();
        let pairs = agreed.agreements + agreed.proposals;
        assert!(pairs > 150 && pairs < 800, "{workers:?}: {pairs} pairs");
        assert_eq!(agreed.outbound_expired, 0);
        for (side, &wanted) in wanted.iter().enumerate() {
            assert_eq!(testbed.dropped(side), 0);
            let status = status(&mut testbed, side);
            assert_eq!(status.outbound.len(), wanted);
            assert!(status.inbound.len() <= 4 * wanted, "{status:?}");
        }
        assert_eq!(testbed.taken(), 0);
    }
}

/// A worker of the peer that has nothing to send proves nothing: what it would use waits, and is
/// used in time.
#[test]
fn a_worker_with_nothing_to_send_delays_no_other() {
    let line = LineConfig {
        delay: Duration::from_millis(1),
        ..LineConfig::new(1_000_000_000)
    };
    let mut testbed = Testbed::with_workers([2, 2], &line, SHORT);
    testbed.wait_until_up(1.0);
    testbed.restart_counting();
    let mut shared = 0;
    for second in 0..600 {
        for _ in 0..50 {
            // Of two bursts, the second is lost before it gets to its worker.
            for side in 0..2 {
                testbed.send(side, false);
                testbed.skip(side);
            }
            testbed.run_for(0.02);
        }
        for side in 0..2 {
            let sas = status(&mut testbed, side).outbound.len();
            assert!(sas > 0);
            shared += usize::from(sas < 2 && second > 5);
        }
    }
    assert_eq!(testbed.lost(), [0, 0]);
    assert!(shared < 120, "{shared} of 1200 s with one SA");
}

#[test]
fn a_reload_keeps_the_sas_of_all_workers_and_a_peer_that_restarts_is_followed() {
    let line = LineConfig::new(1_000_000_000);
    let mut testbed = Testbed::with_workers([2, 2], &line, "");
    testbed.wait_until_up(1.0);
    testbed.restart_counting();
    testbed.load(10.0, Duration::from_millis(10));
    let before = [0, 1].map(|side| status(&mut testbed, side).outbound);
    for round in 0..20 {
        let side = round % 2;
        let more = "route { id other; gw-ip4 203.0.113.1; net-cidr4 \"10.1.0.0/16\"; spi 1002;
            preshared-key 1111111111111111111111111111111111111111111111111111111111111111; }";
        let more = if round % 4 < 2 { more } else { "" };
        let config = parse(&file(side, "", &route4(side), more));
        let now = testbed.time_of(side);
        testbed.node(side).reconfigure(now, config).unwrap();
        testbed.load(0.2, Duration::from_millis(1));
    }
    assert_eq!(testbed.lost(), [0, 0]);
    for (side, before) in before.iter().enumerate() {
        let spis = |sas: &[tare_gateway::control::SaStatus]| -> Vec<u32> {
            sas.iter().map(|sa| sa.spi).collect()
        };
        assert_eq!(spis(&status(&mut testbed, side).outbound), spis(before));
        assert_eq!(before.len(), 2);
    }
    testbed.start(1, parse(&file(1, "", &route4(1), "")));
    testbed.wait_until_up(5.0);
    testbed.load(30.0, Duration::from_millis(10));
    testbed.restart_counting();
    testbed.load(30.0, Duration::from_millis(10));
    assert_eq!(testbed.lost(), [0, 0]);
    for side in 0..2 {
        assert_eq!(status(&mut testbed, side).outbound.len(), 2);
    }
}
