//! Another configuration while packets flow.

use std::collections::HashSet;
use std::time::Duration;

use tare_gateway::control::{RouteCounters, RouteStatus};
use tare_gateway::dataplane::DropReason;
use tare_gateway::InterfaceId;
use tare_port::{Layout, Pool};

use crate::testbed::{file, packet, parse, route4, Testbed};

/// Another route, to a peer that is not there.
fn other(side: usize, spi: u32) -> String {
    format!(
        "route {{ id other; gw-ip4 203.0.113.{}; net \"10.{side}.0.0/16\"; preshared-key {:064x}; spi {spi}; }}",
        side + 1,
        0x1234_5678
    )
}

#[test]
fn a_reload_loses_nothing_on_routes_that_stay() {
    let mut testbed = Testbed::plain("negotiation-ttl 2; sa-ttl 60;");
    testbed.wait_until_up(1.0);
    // Both have begun to negotiate, so there is a change of keys at the start.
    testbed.run_for(5.0);
    let top = "negotiation-ttl 2; sa-ttl 60;";
    let text = |side: usize, more: &str| file(side, top, &route4(side), more);
    testbed.restart_counting();
    let before = [0, 1].map(|side| testbed.node(side).control().status().routes[0].clone());
    for round in 0..40 {
        testbed.load(0.5, Duration::from_millis(2));
        let side = round % 2;
        let more = match round / 2 % 4 {
            0 => other(side, 2001),
            1 => other(side, 2002),
            2 => format!("{} mtu 1440;", other(side, 2002)),
            _ => String::new(),
        };
        let mut text = text(side, &more);
        if round % 3 == 0 {
            // The route itself, with one prefix more.
            let more = "id peer; net \"10.99.0.0/16\";";
            text = text.replace("id peer;", more);
        }
        let now = testbed.time_of(side);
        testbed.node(side).reconfigure(now, parse(&text)).unwrap();
    }
    assert_eq!(testbed.lost(), [0, 0]);
    for (side, before) in before.into_iter().enumerate() {
        // The other route's peer is beyond the next hop, which is the other gateway here.
        let received = testbed.received(side);
        let not_for_us = received.dropped(DropReason::NotForUs);
        assert_eq!(testbed.dropped(side), not_for_us);
        let after = testbed.node(side).control().status().routes[0].clone();
        let spi = |status: &RouteStatus| status.outbound[0].spi;
        assert_eq!(spi(&after), spi(&before), "the same SA");
        assert!(after.outbound[0].packets >= testbed.host(side).sent);
    }
}

#[test]
fn a_route_that_is_taken_out_ends_and_comes_back() {
    let mut testbed = Testbed::plain("");
    testbed.wait_until_up(1.0);
    let with = parse(&file(0, "", &route4(0), ""));
    let mut without = with.clone();
    without.routes.clear();
    let now = testbed.time_of(0);
    testbed.node(0).reconfigure(now, without).unwrap();
    testbed.restart_counting();
    testbed.load(0.2, Duration::from_millis(10));
    assert_eq!(testbed.host(0).received + testbed.host(1).received, 0);
    assert!(testbed.sent(0).dropped(DropReason::NoRoute) > 0);
    assert!(testbed.received(0).dropped(DropReason::UnknownSpi) > 0);
    assert!(testbed.node(0).control().status().routes.is_empty());
    let now = testbed.time_of(0);
    testbed.node(0).reconfigure(now, with).unwrap();
    let took = testbed.wait_until_up(10.0);
    assert!(took < 3.0, "{took} s");
}

#[test]
fn another_address_of_the_gateway_leaves_its_routes_working() {
    let mut testbed = Testbed::plain("");
    testbed.wait_until_up(1.0);
    for side in [0, 1] {
        // The routes of the one whose address it is read as before.
        let text = file(side, "", &route4(side), "").replace("192.0.2.16;", "192.0.2.26;");
        let now = testbed.time_of(side);
        testbed.node(side).reconfigure(now, parse(&text)).unwrap();
    }
    let took = testbed.wait_until_up(10.0);
    assert!(took < 9.0, "{took} s");
}

/// The counters of a route in both directions, without those of its SAs.
fn traffic(status: &RouteStatus) -> [RouteCounters; 2] {
    [status.sent, status.received]
}

#[test]
fn the_counters_of_a_route_survive_its_sas_and_count_the_same_at_both_ends() {
    for workers in [[1, 1], [2, 2]] {
        let line = tare_sim::LineConfig {
            delay: Duration::from_millis(1),
            ..tare_sim::LineConfig::new(1_000_000_000)
        };
        let top = "negotiation-ttl 1; sa-ttl 8;";
        let mut testbed = Testbed::with_workers(workers, &line, top);
        testbed.wait_until_up(1.0);
        let status = |testbed: &mut Testbed, side: usize| {
            testbed.node(side).control().status().routes[0].clone()
        };
        let mut before = [0, 1].map(|side| status(&mut testbed, side));
        let mut spis = HashSet::new();
        for round in 0..40 {
            testbed.load(1.0, Duration::from_millis(10));
            if round == 20 {
                testbed.run_for(20.0);
                // All has arrived, and no SA that carried it is left.
                let ends = [0, 1].map(|side| status(&mut testbed, side));
                let counted = |counters: RouteCounters| (counters.packets, counters.bytes);
                for [from, to] in [[0, 1], [1, 0]] {
                    let [sent, received] = [ends[from].sent, ends[to].received];
                    assert!(sent.packets > 2000, "{sent:?}");
                    assert_eq!(counted(sent), counted(received));
                    assert!(ends[from].outbound.iter().all(|sa| sa.bytes == 0));
                }
                // Other SAs, as another window is; the route is the same by its name.
                for side in [0, 1] {
                    let mut config = testbed.node(side).control().config().clone();
                    config.routes[0].window = 128;
                    let now = testbed.time_of(side);
                    testbed.node(side).reconfigure(now, config).unwrap();
                }
                testbed.wait_until_up(10.0);
            }
            for (side, before) in before.iter_mut().enumerate() {
                let now = status(&mut testbed, side);
                for (now, before) in traffic(&now).iter().zip(traffic(before)) {
                    assert!(now.packets >= before.packets && now.bytes >= before.bytes);
                }
                spis.extend(now.outbound.iter().map(|sa| sa.spi));
                assert!(now.handshake_age_s.is_some_and(|age| age <= 8));
                *before = now;
            }
        }
        assert!(spis.len() > 10, "{spis:?}");
    }
}

#[test]
fn drops_are_counted_by_route_and_reason() {
    let mut testbed = Testbed::plain("");
    // Before there are keys.
    testbed.load(0.01, Duration::from_millis(1));
    testbed.wait_until_up(1.0);
    let dropped = |testbed: &mut Testbed| {
        let route = testbed.node(0).control().status().routes[0].clone();
        [route.sent.dropped, route.received.dropped]
    };
    assert!(dropped(&mut testbed)[0].get(DropReason::NoSa) > 0);
    // The peer proves with a dummy that its SA is in use.
    let [_, inbound] = dropped(&mut testbed);
    assert_eq!(inbound.total(), inbound.get(DropReason::Dummy));
    // Packets of the peer's: one comes twice, the next with another bit.
    let pool = Pool::new(8, 2048, Layout::Spread).unwrap();
    let now = testbed.time_of(1);
    let mut sealed = |number| {
        let packet = pool.copy(&packet(1, false, number, 120)).unwrap();
        let peer = testbed.node(1);
        peer.receive(now, InterfaceId::Private, &mut vec![packet]);
        peer.leaving(InterfaceId::Public).pop().unwrap().to_vec()
    };
    let (frame, mut changed) = (sealed(0), sealed(1));
    *changed.last_mut().unwrap() ^= 1;
    for frame in [&frame, &frame, &changed] {
        testbed.inject(0, frame);
    }
    let [_, inbound] = dropped(&mut testbed);
    let reasons = [DropReason::Replayed, DropReason::Forged];
    assert_eq!(
        reasons.map(|reason| inbound.get(reason)),
        [1, 1],
        "{inbound:?}"
    );
}

/// Returns packets that a gateway has sealed and that have not arrived.
fn record(testbed: &mut Testbed, side: usize, packets: u32) -> Vec<Vec<u8>> {
    let pool = Pool::new(8, 2048, Layout::Spread).unwrap();
    let now = testbed.time_of(side);
    let sealed = (0..packets).map(|number| {
        let packet = pool.copy(&packet(side, false, number.into(), 120)).unwrap();
        let node = testbed.node(side);
        node.receive(now, InterfaceId::Private, &mut vec![packet]);
        node.leaving(InterfaceId::Public).pop().unwrap().to_vec()
    });
    sealed.collect()
}

#[test]
fn given_keys_never_use_a_number_twice_whatever_is_reloaded() {
    let keys = |side: usize| {
        let [inbound, outbound] = if side == 0 {
            [3001, 3002]
        } else {
            [3002, 3001]
        };
        let gateway = 17 - side;
        format!(
            "gw-ip4 192.0.2.{gateway};
             inbound-sa {{ spi {inbound}; aead aes-128-gcm; key {inbound:032x}; salt 01020304; }}
             outbound-sa {{ spi {outbound}; aead aes-128-gcm; key {outbound:032x}; salt 01020304; }}"
        )
    };
    let configs = [0, 1].map(|side| parse(&file(side, "", &keys(side), "")));
    let mut testbed = Testbed::new(configs.clone());
    testbed.wait_until_up(3.0);
    testbed.restart_counting();
    testbed.load(1.0, Duration::from_millis(1));
    assert_eq!(testbed.lost(), [0, 0]);
    let packets = |testbed: &mut Testbed| {
        let status = testbed.node(0).control().status();
        status.routes[0].outbound[0].packets
    };
    assert!(packets(&mut testbed) > 0);
    let recorded = record(&mut testbed, 1, 40);
    for frame in &recorded {
        testbed.inject(0, frame);
    }
    let refused = |testbed: &mut Testbed| {
        let received = testbed.received(0);
        received.dropped(DropReason::Replayed) + received.dropped(DropReason::TooOld)
    };
    assert_eq!(refused(&mut testbed), 0);
    // Taken out, and put in again; then with another window, so that it is another SA with the same
    // key.
    let mut none = configs[0].clone();
    none.routes.clear();
    let mut window = configs[0].clone();
    window.routes[0].window = 64;
    for config in [none, configs[0].clone(), window] {
        let now = testbed.time_of(0);
        testbed.node(0).reconfigure(now, config.clone()).unwrap();
        if config.routes.is_empty() {
            continue;
        }
        // What was accepted before is not accepted again.
        let before = refused(&mut testbed);
        for frame in &recorded {
            testbed.inject(0, frame);
        }
        assert_eq!(refused(&mut testbed) - before, 40);
    }
    // Its own packets, whatever numbers they have.
    assert_eq!(packets(&mut testbed), 0);
    testbed.restart_counting();
    testbed.load(1.0, Duration::from_millis(1));
    // Were a number used again, the other end would take it for a replay.
    let lost = testbed.lost();
    assert_eq!(
        lost,
        [0, 0],
        "{:?} {:?}",
        testbed.sent(0),
        testbed.received(1)
    );
    assert_eq!(testbed.received(1).dropped_total(), 0);
}

#[test]
fn ten_thousand_routes_come_up_and_are_reloaded() {
    let routes = |side: usize| -> String {
        (0..10_000)
            .map(|n| {
                format!(
                    "route {{ id r{n}; gw-ip4 192.0.2.{}; net \"10.{}.{}.0/24\"; preshared-key {:064x}; spi {}; }}\n",
                    17 - side,
                    n / 256 + 64 * (1 - side),
                    n % 256,
                    n + 1,
                    10_000 + n
                )
            })
            .collect()
    };
    let configs = [0, 1].map(|side| parse(&file(side, "", &route4(side), &routes(side))));
    let mut testbed = Testbed::new(configs.clone());
    testbed.run_for(60.0);
    for side in 0..2 {
        let status = testbed.node(side).control().status();
        let up = status
            .routes
            .iter()
            .filter(|route| route.state == "up")
            .count();
        assert_eq!(up, 10_001);
    }
    testbed.restart_counting();
    testbed.load(0.5, Duration::from_millis(5));
    let now = testbed.time_of(0);
    testbed
        .node(0)
        .reconfigure(now, configs[0].clone())
        .unwrap();
    testbed.load(0.5, Duration::from_millis(5));
    assert_eq!(testbed.lost(), [0, 0]);
}
