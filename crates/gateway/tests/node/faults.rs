//! Peers that go and come, clocks that step, lines that lose, and interfaces that are taken down.

use std::time::Duration;

use tare_gateway::control::Taken;
use tare_gateway::dataplane::DropReason;
use tare_gateway::{InterfaceId, InterfaceState};
use tare_packet::ethernet::HEADER;
use tare_packet::ipv4;
use tare_sim::LineConfig;

use crate::testbed::{file, link, packet, parse, route4, Testbed, PRIVATE, PUBLIC};

#[test]
fn a_peer_that_restarts_is_followed_to_new_keys() {
    let mut testbed = Testbed::plain("");
    testbed.wait_until_up(1.0);
    for side in [1, 0, 1] {
        testbed.load(1.0, Duration::from_millis(10));
        testbed.start(side, parse(&file(side, "", &route4(side), "")));
        let took = testbed.wait_until_up(30.0);
        assert!(took < 5.0, "{took} s");
        testbed.restart_counting();
        testbed.load(20.0, Duration::from_millis(10));
        assert_eq!(testbed.lost(), [0, 0]);
    }
}

/// The peer's host has nothing to send, so a dummy packet alone tells a gateway that its peer has
/// other SAs now.
#[test]
fn a_peer_with_nothing_to_send_is_followed_within_a_second_and_a_half() {
    for (workers, top) in [(1, ""), (2, ""), (1, "negotiation-ttl 5; sa-ttl 20;")] {
        let line = LineConfig {
            delay: Duration::from_millis(1),
            ..LineConfig::new(1_000_000_000)
        };
        let mut testbed = Testbed::with_workers([workers, workers], &line, top);
        testbed.wait_until_up(1.0);
        testbed.run_for(30.0);
        for side in [1, 0, 1, 0] {
            testbed.start(side, parse(&file(side, top, &route4(side), "")));
            testbed.restart_counting();
            for tenth in 0..600 {
                for _ in 0..10 {
                    testbed.send(1 - side, false);
                    testbed.run_for(0.01);
                }
                // What was lost was lost before.
                if tenth == 14 {
                    let lost = testbed.lost()[1 - side];
                    assert!(lost < 50, "{workers} workers: {lost} packets of 10 ms");
                    testbed.restart_counting();
                }
            }
            assert_eq!(testbed.lost(), [0, 0], "{workers} workers, {top}");
        }
    }
}

#[test]
fn a_peer_that_is_gone_is_asked_for_ever_less_often_and_costs_nothing() {
    let mut testbed = Testbed::plain("");
    testbed.wait_until_up(1.0);
    testbed.stop(1);
    // Its keys end after ten minutes, its station address after a minute.
    testbed.run_for(1200.0);
    testbed.logs();
    let before = testbed.node(0).control().counters().sent;
    let hour = 3600.0;
    testbed.run_for(hour);
    let sent = testbed.node(0).control().counters().sent - before;
    assert!(sent < 3600, "{sent} frames in an hour");
    let logs = testbed.logs();
    assert!(logs.len() < 20, "{logs:?}");
    let status = testbed.node(0).control().status();
    assert!(status.routes[0].outbound.is_empty() && status.routes[0].inbound.is_empty());
    assert_eq!(testbed.taken(), 0);
    testbed.start(1, parse(&file(1, "", &route4(1), "")));
    let took = testbed.wait_until_up(60.0);
    assert!(took < 15.0, "{took} s");
}

#[test]
fn clocks_that_step_cost_at_most_a_negotiation() {
    const HOUR: i64 = 3_600_000_000_000;
    let mut testbed = Testbed::plain("negotiation-ttl 2; sa-ttl 60;");
    testbed.run_for(10.0);
    testbed.wait_until_up(1.0);
    for (side, step) in [(0, HOUR), (0, -HOUR / 2), (1, HOUR), (1, -HOUR / 2)] {
        testbed.step_clock(side, step);
        let took = testbed.wait_until_up(30.0);
        assert!(took < 5.0, "{took} s after a step of {step} ns");
        testbed.restart_counting();
        testbed.load(10.0, Duration::from_millis(10));
        assert_eq!(testbed.lost(), [0, 0], "after a step of {step} ns");
    }
}

#[test]
fn a_bad_line_loses_what_it_loses_and_everything_adds_up() {
    let bad = |seed| LineConfig {
        loss: 0.05,
        duplication: 0.05,
        reordering: 0.1,
        delay: Duration::from_millis(2),
        seed,
        ..LineConfig::new(1_000_000_000)
    };
    let top = "negotiation-ttl 2; sa-ttl 60;";
    let configs = [0, 1].map(|side| parse(&file(side, top, &route4(side), "")));
    let mut testbed = Testbed::over([&bad(1), &bad(2)], [1, 1], configs);
    testbed.wait_until_up(20.0);
    let before = [0, 1].map(|side| testbed.sent(side).dropped(DropReason::NoSa));
    testbed.load(600.0, Duration::from_millis(5));
    testbed.run_for(1.0);
    for (side, no_sa) in before.into_iter().enumerate() {
        let (there, here) = (testbed.received(1 - side), testbed.sent(side));
        let line = testbed.line(side);
        assert_eq!(line.queue_dropped, 0);
        // What left is what the line got, and what arrived is what it delivered: nothing in between
        // is unaccounted for.
        assert_eq!(testbed.sent_frames(side), line.offered);
        assert_eq!(there.received, line.delivered);
        assert_eq!(line.delivered, line.offered + line.duplicated - line.lost);
        // Every copy is known for one, and nothing else is dropped.
        let replayed = there.dropped(DropReason::Replayed);
        assert_eq!(testbed.dropped(1 - side), replayed);
        assert_eq!(there.forwarded, testbed.host(1 - side).received);
        assert_eq!(testbed.host(1 - side).twice, 0);
        // Of dummy packets too, some are lost; probes of the path are for the gateway itself.
        let control = testbed.node(1 - side).control();
        let probes = control.counters().taken(Taken::PathProbe);
        let dummies = there.dropped(DropReason::Dummy);
        let lost = here.forwarded - there.forwarded - probes - dummies;
        assert!(lost <= line.lost && replayed <= line.duplicated);
        assert!(lost > 0 && replayed > 0);
        // Ten minutes of losing agreements: no packet was without keys.
        assert_eq!(here.dropped(DropReason::NoSa), no_sa);
    }
}

#[test]
fn an_interface_that_goes_down_comes_back_as_it_was_or_with_another_address() {
    let mut testbed = Testbed::plain("");
    testbed.wait_until_up(1.0);
    for (round, mac) in [PUBLIC[0], [2, 0, 0, 0, 1, 7]].into_iter().enumerate() {
        let now = testbed.time_of(0);
        let down = InterfaceState {
            up: false,
            ..link(PUBLIC[0])
        };
        testbed
            .node(0)
            .interface_changed(now, InterfaceId::Public, down);
        testbed.run_for(30.0);
        let now = testbed.time_of(0);
        testbed
            .node(0)
            .interface_changed(now, InterfaceId::Public, link(mac));
        testbed.run_for(0.1);
        testbed.restart_counting();
        testbed.load(5.0, Duration::from_millis(10));
        assert_eq!(testbed.lost(), [0, 0], "round {round}");
        let neighbors = testbed.node(1).control().status().neighbors;
        let text = mac.map(|byte| format!("{byte:02x}")).join(":");
        assert!(
            neighbors.iter().any(|n| n.mac == Some(text.clone())),
            "{neighbors:?}"
        );
    }
    let now = testbed.time_of(0);
    testbed.node(0).interface_changed(
        now,
        InterfaceId::Private,
        InterfaceState {
            mtu: 1600,
            ..link(PRIVATE[0])
        },
    );
    assert_eq!(testbed.node(0).control().tables().private.mtu, 1600);
}

#[test]
fn a_packet_in_a_routing_loop_ends_by_its_ttl() {
    // Each has a route to everything by the other.
    let configs = [0, 1].map(|side| {
        let route = route4(side).replace("gw-ip4", "net \"10.0.0.0/8\"; gw-ip4");
        parse(&file(side, "", &route, ""))
    });
    let mut testbed = Testbed::new(configs);
    testbed.wait_until_up(1.0);
    let mut frame = packet(0, false, 0, 100);
    let (src, dst) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    frame[HEADER + 12..HEADER + 16].copy_from_slice(&src);
    frame[HEADER + 16..HEADER + 20].copy_from_slice(&dst);
    frame[HEADER + 10..HEADER + 12].fill(0);
    let sum = tare_packet::checksum::sum(&frame[HEADER..HEADER + ipv4::HEADER]);
    let sum = tare_packet::checksum::finish(sum);
    frame[HEADER + 10..HEADER + 12].copy_from_slice(&sum.to_be_bytes());
    testbed.set_echo_back(true);
    let before = [testbed.sent(0).forwarded, testbed.sent(1).forwarded];
    testbed.give(0, &frame);
    testbed.run_for(5.0);
    testbed.set_echo_back(false);
    let after = [testbed.sent(0).forwarded, testbed.sent(1).forwarded];
    let hops = after[0] + after[1] - before[0] - before[1];
    assert!((30..40).contains(&hops), "{hops} hops");
    let exceeded = |testbed: &Testbed, side| {
        testbed.sent(side).dropped(DropReason::TtlExceeded)
            + testbed.received(side).dropped(DropReason::TtlExceeded)
    };
    assert!(exceeded(&testbed, 0) + exceeded(&testbed, 1) >= 1);
}

#[test]
fn an_interface_that_was_down_carries_as_soon_as_it_is_up() {
    // Whether a next hop answers is another matter.
    let config = |side: usize| {
        let peer = 17 - side;
        let hops = format!("nexthop-ip4 192.0.2.{peer}; nexthop-ip6 2001:db8::{peer};");
        let mac = format!("nexthop-mac 02:00:00:00:0{}:02;", 2 - side);
        parse(&file(side, "", &route4(side), "").replace(&hops, &mac))
    };
    let mut testbed = Testbed::new([0, 1].map(config));
    testbed.wait_until_up(1.0);
    // Longer than an SA lives, and than the longest pause between negotiations.
    for down in [0.3, 20.0, 3600.0] {
        testbed.run_for(400.0);
        testbed.set_cut(true);
        testbed.run_for(down);
        testbed.set_cut(false);
        testbed.restart_counting();
        testbed.load(10.0, Duration::from_millis(10));
        let [lost, lost_back] = testbed.lost();
        // Keys are agreed on while the first packets wait for nothing.
        let most = if down < 60.0 { 0 } else { 2 };
        assert!(
            lost <= most && lost_back <= most,
            "{lost} {lost_back} after {down} s"
        );
    }
}
