//! Another configuration while packets flow.

use std::time::Duration;

use tare_gateway::control::RouteStatus;
use tare_gateway::dataplane::DropReason;

use crate::testbed::{file, parse, route4, Testbed};

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
    // Taken out, and put in again; then with another window, so that it is another SA with the same
    // key.
    let mut none = configs[0].clone();
    none.routes.clear();
    let mut window = configs[0].clone();
    window.routes[0].window = 64;
    for config in [none, configs[0].clone(), window] {
        let now = testbed.time_of(0);
        testbed.node(0).reconfigure(now, config).unwrap();
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
