//! Frames that no station should send.

use std::time::Duration;

use tare_gateway::control::{Ignored, Taken};
use tare_gateway::dataplane::DropReason;
use tare_packet::ethernet::{self, HEADER};

use crate::neighbors::{
    arp, echo4, echo6, private_arp, private_echo4, private_solicitation, solicitation, too_big4,
    tunnel_echo4,
};
use crate::testbed::{packet, Testbed};

/// One frame of every kind that a gateway knows, and the side that it comes in by.
fn kinds(testbed: &mut Testbed) -> Vec<(bool, Vec<u8>)> {
    let sealed = {
        // A packet as it leaves the other gateway.
        testbed.send(1, false);
        let node = testbed.node(0);
        let spi = node.control().status().routes[0].inbound[0].spi;
        let mut frame = ethernet::header(
            crate::testbed::PUBLIC[0],
            crate::testbed::PUBLIC[1],
            ethernet::IPV4,
        )
        .to_vec();
        let header = tare_packet::ipv4::Repr {
            src: 0xc000_0211,
            dst: 0xc000_0210,
            protocol: 50,
            ttl: 64,
            tos: 0,
            total_len: 20 + 16 + 60 + 16,
            fragment: 0x4000,
        };
        frame.extend(header.to_bytes());
        frame.extend(spi.to_be_bytes());
        frame.extend(1000u32.to_be_bytes());
        frame.extend([7; 8 + 60 + 16]);
        frame
    };
    let spi = testbed.node(0).control().status().routes[0].outbound[0].spi;
    let message = {
        let mut udp = sealed.clone();
        udp[HEADER + 9] = 17;
        udp
    };
    vec![
        (false, packet(0, false, 0, 120)),
        (false, packet(0, true, 0, 120)),
        (false, arp(0)),
        (true, arp(0)),
        (false, solicitation(0)),
        (true, solicitation(0)),
        (false, echo4(0)),
        (true, echo4(0)),
        (true, echo6(0)),
        (true, too_big4(spi, 1200)),
        (true, sealed),
        (true, message),
    ]
}

#[test]
fn every_byte_of_every_header_changed_and_every_length_is_accounted_for() {
    let mut testbed = Testbed::plain("");
    testbed.wait_until_up(1.0);
    let mut given = 0u64;
    testbed.set_hostile(true);
    let count = |testbed: &Testbed| testbed.sent(0).received + testbed.received(0).received;
    let before = count(&testbed);
    for (public, frame) in kinds(&mut testbed) {
        let mut give = |testbed: &mut Testbed, frame: &[u8]| {
            match public {
                true => testbed.inject(0, frame),
                false => testbed.give(0, frame),
            }
            given += 1;
        };
        for at in 0..frame.len().min(90) {
            for value in [
                0,
                1,
                0x7f,
                0x80,
                0xff,
                frame[at] ^ 1,
                frame[at].wrapping_add(1),
            ] {
                let mut changed = frame.clone();
                changed[at] = value;
                give(&mut testbed, &changed);
            }
        }
        for len in 0..frame.len() {
            give(&mut testbed, &frame[..len]);
        }
        testbed.run_for(0.5);
    }
    // The line between the gateways has carried packets of its own.
    assert!(count(&testbed) - before >= given);
    for side in 0..2 {
        let node = testbed.node(side);
        assert!(node.dataplane().sent().adds_up() && node.dataplane().received().adds_up());
        assert!(node.control().counters().adds_up());
    }
    // And it still works.
    // A path that was said to be narrow is forgotten in ten minutes.
    testbed.run_for(610.0);
    testbed.set_hostile(false);
    let took = testbed.wait_until_up(30.0);
    assert!(took < 5.0, "{took}");
    testbed.restart_counting();
    testbed.load(1.0, Duration::from_millis(5));
    assert_eq!(testbed.lost(), [0, 0]);
}

#[test]
fn noise_is_dropped_by_name() {
    let mut testbed = Testbed::plain("");
    testbed.wait_until_up(1.0);
    let mut random = tare_sim::Random::new(7);
    for n in 0..50_000u32 {
        let len = (random.next_u64() % 200) as usize;
        let mut frame: Vec<u8> = (0..len).map(|_| random.next_u64() as u8).collect();
        if n % 2 == 0 && len > HEADER + 20 {
            let kind = [ethernet::IPV4, ethernet::IPV6, ethernet::ARP][n as usize / 2 % 3];
            frame[12..14].copy_from_slice(&kind.to_be_bytes());
            frame[14] = [0x45, 0x60, 0][n as usize / 2 % 3];
        }
        match random.next_u64() % 2 {
            0 => testbed.inject(0, &frame),
            _ => testbed.give(0, &frame),
        }
    }
    let received = testbed.received(0);
    assert!(received.dropped(DropReason::NotIp) > 0 && received.dropped(DropReason::Malformed) > 0);
    assert_eq!(testbed.taken(), 0);
    testbed.restart_counting();
    testbed.load(1.0, Duration::from_millis(5));
    assert_eq!(testbed.lost(), [0, 0]);
}

#[test]
fn forged_packets_are_counted_and_do_not_move_the_window() {
    let mut testbed = Testbed::plain("");
    testbed.wait_until_up(1.0);
    let (_, sealed) = kinds(&mut testbed).swap_remove(10);
    testbed.run_for(0.1);
    let before = testbed.received(0).dropped(DropReason::Forged);
    for n in 0..1000u32 {
        let mut frame = sealed.clone();
        frame[HEADER + 24..HEADER + 28].copy_from_slice(&(1000 + n * 1000).to_be_bytes());
        testbed.inject(0, &frame);
    }
    assert_eq!(
        testbed.received(0).dropped(DropReason::Forged) - before,
        1000
    );
    let status = testbed.node(0).control().status();
    let forged: u64 = status.routes[0].inbound.iter().map(|sa| sa.forged).sum();
    assert!(forged >= 1000);
    testbed.restart_counting();
    testbed.load(1.0, Duration::from_millis(5));
    assert_eq!(testbed.lost(), [0, 0]);
}

#[test]
fn a_flood_of_questions_is_answered_at_a_bounded_rate() {
    let mut testbed = Testbed::plain("");
    testbed.wait_until_up(1.0);
    testbed.run_for(5.0);
    let before = testbed.sent_frames(0);
    for _ in 0..10_000 {
        testbed.inject(0, &arp(0));
        testbed.inject(0, &echo4(0));
    }
    let counters = *testbed.node(0).control().counters();
    assert!(counters.taken(Taken::Echo) > 10 && counters.taken(Taken::NeighborAsked) > 10);
    assert!(counters.ignored(Ignored::Rate) > 19_000);
    // A burst of 50 each.
    let sent = testbed.sent_frames(0) - before;
    assert!(sent <= 110, "{sent} answers");
}

#[test]
fn a_flood_of_pings_costs_no_answer_to_a_neighbor() {
    const SECONDS: u64 = 10;
    // The pings come from the public link, from the private one and through the tunnel.
    let cases = [
        ("public", echo4(0), [arp(0), solicitation(0)]),
        ("private", private_echo4(0), private_questions()),
        ("tunnel", tunnel_echo4(1), private_questions()),
    ];
    for (name, ping, questions) in cases {
        let mut testbed = Testbed::plain("");
        testbed.wait_until_up(1.0);
        testbed.run_for(5.0);
        let before = *testbed.node(0).control().counters();
        let answered = |testbed: &mut Testbed| {
            let counters = testbed.node(0).control().counters();
            counters.taken(Taken::NeighborAsked) - before.taken(Taken::NeighborAsked)
        };
        for ms in 0..SECONDS * 1000 {
            for _ in 0..10 {
                match name {
                    "public" => testbed.inject(0, &ping),
                    "private" => testbed.give(0, &ping),
                    _ => testbed.give(1, &ping),
                }
            }
            testbed.run_for(0.001);
            if ms % 1000 == 500 {
                for question in &questions {
                    let before = answered(&mut testbed);
                    match name {
                        "public" => testbed.inject(0, question),
                        _ => testbed.give(0, question),
                    }
                    assert_eq!(answered(&mut testbed) - before, 1, "{name} {ms}");
                }
            }
        }
        assert_eq!(answered(&mut testbed), 2 * SECONDS, "{name}");
        let counters = testbed.node(0).control().counters();
        let replies = counters.taken(Taken::Echo) - before.taken(Taken::Echo);
        assert!((1000..=1051).contains(&replies), "{name} {replies}");
    }
}

#[test]
fn pings_of_one_side_cost_no_echo_reply_on_another() {
    let mut testbed = Testbed::plain("");
    testbed.wait_until_up(1.0);
    testbed.run_for(5.0);
    let echoes = |testbed: &mut Testbed| testbed.node(0).control().counters().taken(Taken::Echo);
    for _ in 0..1000 {
        testbed.inject(0, &echo4(0));
        testbed.give(1, &tunnel_echo4(1));
        testbed.run_for(0.000_01);
    }
    let before = echoes(&mut testbed);
    testbed.give(0, &private_echo4(0));
    assert_eq!(echoes(&mut testbed) - before, 1);
}

fn private_questions() -> [Vec<u8>; 2] {
    [private_arp(0), private_solicitation(0)]
}
