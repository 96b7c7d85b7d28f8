//! Paths that take less than the interface, found without ICMP.

use std::time::Duration;

use tare_gateway::dataplane::DropReason;
use tare_gateway::{InterfaceId, InterfaceState};
use tare_packet::ethernet::HEADER;

use crate::neighbors::{outbound, path_mtu, too_big4_about};
use crate::testbed::{file, link, packet, parse, route4, Testbed, KEY, PUBLIC};

/// Bytes by which the path MTU that is found may be below the true one.
const CLOSE: u16 = 8;

#[test]
fn a_path_that_takes_less_is_found_without_icmp() {
    let route6 = |side: usize| format!("gw-ip6 2001:db8::{}; {KEY}", 17 - side);
    for takes in [1300, 1400, 1492] {
        for route in [route4, route6] {
            let configs = [0, 1].map(|side| parse(&file(side, "", &route(side), "")));
            let mut testbed = Testbed::new(configs);
            testbed.set_path(0, takes.into());
            testbed.run_for(40.0);
            let found = path_mtu(&mut testbed);
            assert!(
                found <= takes && takes - found <= CLOSE,
                "{found} of {takes}"
            );
            let other = testbed.node(1).control().status().routes[0].path_mtu;
            assert_eq!(other, 1500, "the way back takes more");
            // What is still sent gets through, the longest packet among it.
            testbed.restart_counting();
            testbed.load(5.0, Duration::from_millis(5));
            let before = testbed.sent(0).dropped(DropReason::TooBig);
            let inner = testbed.node(0).control().status().routes[0].inner_mtu;
            testbed.host(0).sent += 1;
            let number = testbed.host(0).sent + 1000;
            testbed.give(0, &packet(0, false, number, HEADER + usize::from(inner)));
            let too_big = testbed.sent(0).dropped(DropReason::TooBig) - before;
            assert_eq!(too_big, 0);
            let refused = testbed.sent(0).dropped(DropReason::TooBig);
            assert_eq!(testbed.lost(), [refused, 0]);
            assert_eq!(testbed.taken(), 0);
        }
    }
}

#[test]
fn a_route_that_became_too_narrow_for_ipv6_is_told() {
    let mut testbed = Testbed::plain("");
    testbed.wait_until_up(1.0);
    let told = |testbed: &mut Testbed| {
        let logs = testbed.logs();
        let status = testbed.node(0).control().status();
        let record = |line: &&String| line.contains("event=ipv6_too_narrow route=peer routes=1");
        (
            logs.iter().filter(record).count(),
            status.routes[0].ipv6_too_narrow,
        )
    };
    assert_eq!(told(&mut testbed), (0, false));
    testbed.set_path(0, 1300);
    testbed.run_for(60.0);
    assert_eq!(told(&mut testbed), (1, true));
    testbed.run_for(60.0);
    assert_eq!(told(&mut testbed), (0, true));
}

#[test]
fn a_path_that_becomes_narrow_is_noticed_and_one_that_becomes_wide_is_used() {
    let mut testbed = Testbed::plain("");
    testbed.wait_until_up(1.0);
    testbed.run_for(100.0);
    assert_eq!(path_mtu(&mut testbed), 1500);
    testbed.set_path(0, 1400);
    // It stays for longer than a router's report would.
    for seconds in [70.0, 3600.0] {
        testbed.run_for(seconds);
        let found = path_mtu(&mut testbed);
        assert!((1400 - CLOSE..=1400).contains(&found), "{found}");
    }
    testbed.set_path(0, usize::MAX);
    testbed.run_for(620.0);
    assert_eq!(path_mtu(&mut testbed), 1500);
}

/// A probe longer than a frame cannot be sent, and must not count as lost on the path.
#[test]
fn an_interface_that_takes_more_than_a_frame_holds_narrows_no_path() {
    let mut testbed = Testbed::plain("");
    testbed.wait_until_up(1.0);
    for side in [0, 1] {
        let now = testbed.time_of(side);
        let wide = InterfaceState {
            mtu: 9000,
            ..link(PUBLIC[side])
        };
        let node = testbed.node(side);
        node.interface_changed(now, InterfaceId::Public, wide);
    }
    for _ in 0..60 {
        testbed.run_for(1.0);
        let found = path_mtu(&mut testbed);
        assert!((1500..2048).contains(&found), "{found}");
    }
}

#[test]
fn a_forged_report_that_guesses_right_is_refuted_within_a_round_trip() {
    let mut testbed = Testbed::plain("");
    testbed.wait_until_up(1.0);
    testbed.run_for(5.0);
    testbed.load(1.0, Duration::from_millis(5));
    let (spi, last) = outbound(&mut testbed)[0];
    testbed.inject(0, &too_big4_about(spi, last, 576));
    testbed.run_for(0.01);
    assert_eq!(path_mtu(&mut testbed), 1500);
    // A true one is not.
    testbed.set_path(0, 1400);
    testbed.load(1.0, Duration::from_millis(5));
    let (spi, last) = outbound(&mut testbed)[0];
    testbed.inject(0, &too_big4_about(spi, last, 1400));
    testbed.run_for(30.0);
    let found = path_mtu(&mut testbed);
    assert!((1400 - CLOSE..=1400).contains(&found), "{found}");
}

#[test]
fn a_peer_that_is_gone_narrows_no_path_and_is_found_again() {
    let mut testbed = Testbed::plain("");
    testbed.wait_until_up(1.0);
    testbed.set_path(0, 0);
    testbed.run_for(100.0);
    assert_eq!(path_mtu(&mut testbed), 1500);
    testbed.set_path(0, 1400);
    testbed.run_for(700.0);
    let found = path_mtu(&mut testbed);
    assert!((1400 - CLOSE..=1400).contains(&found), "{found}");
}

#[test]
fn an_outage_that_ends_at_any_time_narrows_no_path() {
    // The size in use is confirmed at 90, 91 and 92 s.
    for tenth in 900..=960 {
        let mut testbed = Testbed::plain("");
        testbed.wait_until_up(1.0);
        let until = |tenth: u64| tare_sim::Instant::ZERO + Duration::from_millis(100 * tenth);
        testbed.run(until(850));
        testbed.set_path(0, 0);
        testbed.run(until(tenth));
        testbed.set_path(0, usize::MAX);
        for later in tenth..tenth + 100 {
            testbed.run(until(later));
            let found = path_mtu(&mut testbed);
            assert_eq!(found, 1500, "at {later}, up again at {tenth}");
        }
        let logs = testbed.logs();
        assert!(!logs.iter().any(|log| log.contains("path_mtu")), "{logs:?}");
    }
}
