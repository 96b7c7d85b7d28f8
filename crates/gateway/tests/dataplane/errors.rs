//! Errors about packets that cannot be forwarded.

use std::net::IpAddr;
use std::time::Duration;

use tare_gateway::dataplane::{DropReason, Output, ERROR_BURST, ERROR_INTERVAL};
use tare_packet::ethernet::HEADER;
use tare_packet::ipv4::Ipv4;
use tare_packet::ipv6::Ipv6;
use tare_packet::wire::{Icmpv4Message, Icmpv4Packet, Icmpv6Message, Icmpv6Packet};
use tare_packet::{checksum, ethernet};
use tare_sim::{Instant, TokenBucket};

use crate::pair::{bytes, Packet, Pair, Shape, FAR4, FAR_MAC, HOST, NEAR4, NEAR6};

/// Type, code, second word and quoted bytes of an ICMP error, whose addresses and checksums are
/// checked.
fn error(frame: &[u8]) -> (u8, u8, u32, Vec<u8>) {
    assert_eq!(frame[..6], HOST, "it goes back to the station it came from");
    if ethernet::kind(frame) == Some(ethernet::IPV4) {
        let ip = Ipv4::parse(&frame[HEADER..]).unwrap();
        assert_eq!((ip.src, ip.dst), (NEAR4 + 0xfe, NEAR4));
        let message = &frame[HEADER + 20..];
        assert_eq!(checksum::finish(checksum::sum(message)), 0);
        let icmp = Icmpv4Packet::new_checked(message).unwrap();
        assert!(matches!(
            icmp.msg_type(),
            Icmpv4Message::DstUnreachable | Icmpv4Message::TimeExceeded
        ));
        parts(message)
    } else {
        let ip = Ipv6::parse(&frame[HEADER..]).unwrap();
        assert_eq!((ip.src, ip.dst), (NEAR6 + 0xfe, NEAR6));
        let message = &frame[HEADER + 40..];
        let icmp = Icmpv6Packet::new_checked(message).unwrap();
        assert!(icmp.msg_type().is_error() || icmp.msg_type() == Icmpv6Message::PktTooBig);
        assert!(icmp.verify_checksum(&ip.src.into(), &ip.dst.into()));
        parts(message)
    }
}

fn parts(message: &[u8]) -> (u8, u8, u32, Vec<u8>) {
    let word = u32::from_be_bytes(message[4..8].try_into().unwrap());
    (message[0], message[1], word, message[8..].to_vec())
}

#[test]
fn a_packet_with_no_hop_left_is_answered() {
    let mut pair = Pair::new(Shape::default());
    for ttl in [0, 1] {
        let packets = [
            Packet {
                ttl,
                ..Packet::v4(100)
            },
            Packet {
                ttl,
                ..Packet::v6(100)
            },
        ];
        let output = pair.seal(&packets.map(|p| p.bytes()));
        let found: Vec<_> = output.back.iter().map(|frame| error(frame)).collect();
        assert_eq!(found[0], (11, 0, 0, packets[0].bytes()[HEADER..].to_vec()));
        assert_eq!(found[1], (3, 0, 0, packets[1].bytes()[HEADER..].to_vec()));
    }
    assert_eq!(pair.near.sent().dropped(DropReason::TtlExceeded), 4);
    assert_eq!(pair.near.sent().errors_sent, 4);
}

#[test]
fn a_packet_with_no_route_is_answered() {
    let mut pair = Pair::new(Shape::default());
    let packet = Packet {
        dst: "10.9.9.9".parse().unwrap(),
        ..Packet::v4(100)
    };
    let output = pair.seal(&[packet.bytes()]);
    let (kind, code, ..) = error(&output.back[0]);
    assert_eq!((kind, code), (3, 0));
    assert_eq!(pair.near.sent().dropped(DropReason::NoRoute), 1);
}

#[test]
fn a_packet_that_is_too_long_is_answered_with_what_would_fit() {
    let mut pair = Pair::new(Shape::default());
    let output = pair.seal(&[Packet::v4(1514).bytes(), Packet::v6(1514).bytes()]);
    let (v4, v6) = (error(&output.back[0]), error(&output.back[1]));
    assert_eq!((v4.0, v4.1, v4.2), (3, 4, 1446));
    assert_eq!((v6.0, v6.1, v6.2), (2, 0, 1446));
    assert_eq!(pair.near.sent().dropped(DropReason::TooBig), 2);
    // What would fit does.
    assert_eq!(pair.seal(&[Packet::v4(1446 + 14).bytes()]).forward.len(), 1);
    assert_eq!(pair.seal(&[Packet::v4(1447 + 14).bytes()]).forward.len(), 0);
}

#[test]
fn some_packets_are_never_answered() {
    let mut pair = Pair::new(Shape::default());
    let silent: [IpAddr; 4] =
        ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255"].map(|a| a.parse().unwrap());
    for src in silent {
        let output = pair.seal(&[Packet {
            src,
            ttl: 1,
            ..Packet::v4(100)
        }
        .bytes()]);
        assert!(output.back.is_empty(), "{src}");
    }
    // An ICMP error, and a fragment that is not the first.
    let mut about = Packet {
        ttl: 1,
        ..Packet::v4(100)
    }
    .bytes();
    about[HEADER + 9] = 1;
    about[HEADER + 20] = 3;
    update_checksum(&mut about);
    let mut later = Packet {
        ttl: 1,
        df: false,
        ..Packet::v4(100)
    }
    .bytes();
    later[HEADER + 7] = 5;
    update_checksum(&mut later);
    assert!(pair.seal(&[about, later]).back.is_empty());
    assert_eq!(pair.near.sent().dropped(DropReason::MartianSource), 4);
    assert_eq!(pair.near.sent().dropped(DropReason::TtlExceeded), 2);
}

/// Makes the header's checksum right again.
pub(crate) fn update_checksum(frame: &mut [u8]) {
    let header = &mut frame[HEADER..HEADER + 20];
    header[10..12].fill(0);
    let sum = checksum::finish(checksum::sum(header));
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

#[test]
fn errors_about_what_came_through_the_tunnel_go_back_through_it() {
    let mut pair = Pair::new(Shape::default());
    let sealed = bytes(
        &pair
            .seal(&[Packet {
                ttl: 2,
                ..Packet::v4(100)
            }
            .bytes()])
            .forward,
    );
    let output = pair.open(&sealed);
    assert_eq!(pair.far.received().dropped(DropReason::TtlExceeded), 1);
    assert_eq!(output.tunnel.len(), 1);
    let ip = Ipv4::parse(&output.tunnel[0][HEADER..]).unwrap();
    assert_eq!((ip.src, ip.dst, ip.protocol), (FAR4 + 0xfe, NEAR4, 1));
    // The far gateway has a route for it.
    let mut tunnel = output.tunnel;
    let mut out = tare_gateway::dataplane::Output::default();
    pair.far.outbound_own(pair.now, &mut tunnel, &mut out);
    assert_eq!(out.forward.len(), 1);
}

#[test]
fn errors_through_the_tunnel_need_no_next_hop_of_the_private_side() {
    let mut pair = Pair::new(Shape {
        next_hops: [false, true],
        ..Shape::default()
    });
    let dying = [Packet::v4(100), Packet::v6(100)].map(|packet| Packet { ttl: 2, ..packet });
    let sealed = bytes(&pair.seal(&dying.map(|packet| packet.bytes())).forward);
    let mut tunnel = pair.open(&sealed).tunnel;
    let kinds: Vec<_> = tunnel.iter().map(|frame| ethernet::kind(frame)).collect();
    assert_eq!(kinds, [Some(ethernet::IPV4), Some(ethernet::IPV6)]);
    let mut out = Output::default();
    pair.far.outbound_own(pair.now, &mut tunnel, &mut out);
    assert_eq!(out.forward.len(), 2);
}

#[test]
fn an_own_packet_that_is_too_long_is_dropped_without_a_report() {
    let mut pair = Pair::new(Shape::default());
    for packet in [Packet::v4(1514), Packet::v6(1514)] {
        let mut burst = vec![pair.pool.copy(&packet.bytes()).unwrap()];
        let mut out = Output::default();
        pair.near.outbound_own(pair.now, &mut burst, &mut out);
        assert_eq!([&out.forward, &out.back, &out.tunnel].map(Vec::len), [0; 3]);
    }
    let sent = pair.near.sent();
    assert_eq!(sent.dropped(DropReason::TooBig), 2);
    assert_eq!((sent.errors_sent, sent.errors_suppressed), (0, 0));
}

#[test]
fn an_own_packet_with_no_hop_left_or_no_route_is_dropped_without_a_report() {
    let mut pair = Pair::new(Shape::default());
    for packet in [Packet::v4(100), Packet::v6(100)] {
        let dst = match packet.dst {
            IpAddr::V4(_) => "10.9.9.9".parse().unwrap(),
            IpAddr::V6(_) => "fd09::9".parse().unwrap(),
        };
        for own in [Packet { ttl: 1, ..packet }, Packet { dst, ..packet }] {
            let mut burst = vec![pair.pool.copy(&own.bytes()).unwrap()];
            let mut out = Output::default();
            pair.near.outbound_own(pair.now, &mut burst, &mut out);
            assert_eq!([&out.forward, &out.back, &out.tunnel].map(Vec::len), [0; 3]);
        }
    }
    let sent = pair.near.sent();
    let reasons = [DropReason::TtlExceeded, DropReason::NoRoute];
    assert_eq!(reasons.map(|reason| sent.dropped(reason)), [2; 2]);
    assert_eq!((sent.errors_sent, sent.errors_suppressed), (0, 0));
}

#[test]
fn while_the_next_hop_is_unknown_no_number_is_used() {
    for outer_v6 in [false, true] {
        let mut pair = Pair::new(Shape {
            outer_v6,
            next_hops: [true, false],
            ..Shape::default()
        });
        let output = pair.seal(&vec![Packet::v4(200).bytes(); 100]);
        assert!(output.forward.is_empty());
        assert_eq!(pair.near.sent().dropped(DropReason::NextHopUnknown), 100);
        assert_eq!((pair.sas[0].packets(), pair.sas[0].bytes()), (0, 0));
    }
}

#[test]
fn errors_come_at_a_bounded_rate() {
    let mut limit = TokenBucket::new(ERROR_INTERVAL, ERROR_BURST);
    let mut now = Instant::from_nanos(5_000_000_000);
    let sent = |limit: &mut TokenBucket, now| (0..1000).filter(|_| limit.take(now)).count();
    assert_eq!(sent(&mut limit, now), ERROR_BURST as usize);
    now += Duration::from_millis(100);
    assert_eq!(sent(&mut limit, now), 10);
    // The clock is set back, and goes on from there.
    now = Instant::from_nanos(1_000_000_000);
    assert_eq!(sent(&mut limit, now), 0);
    now += Duration::from_millis(100);
    assert_eq!(sent(&mut limit, now), 10);
}

#[test]
fn a_flood_of_other_errors_suppresses_no_packet_too_big() {
    let mut pair = Pair::new(Shape::default());
    let dying = Packet {
        ttl: 1,
        ..Packet::v4(100)
    }
    .bytes();
    let unroutable = Packet {
        dst: "10.9.9.9".parse().unwrap(),
        ..Packet::v4(100)
    }
    .bytes();
    let long = Packet::v4(1514).bytes();
    for second in 0..10 {
        for _ in 0..1000 {
            pair.now += Duration::from_millis(1);
            for _ in 0..5 {
                pair.seal(&[dying.clone(), unroutable.clone()]);
            }
        }
        let output = pair.seal(std::slice::from_ref(&long));
        let found: Vec<_> = output.back.iter().map(|frame| error(frame)).collect();
        assert_eq!(found.len(), 1, "second {second}");
        assert_eq!((found[0].0, found[0].1), (3, 4));
    }
    // The flood is answered at the rate of one limit.
    let sent = pair.near.sent().errors_sent;
    assert!((1000..=1061).contains(&sent), "{sent}");
}

#[test]
fn errors_through_the_tunnel_use_up_none_of_the_other_side_and_no_packet_too_big() {
    let mut pair = Pair::new(Shape {
        private_mtu: 1000,
        ..Shape::default()
    });
    let dying = Packet {
        ttl: 2,
        ..Packet::v4(100)
    }
    .bytes();
    let long = Packet::v4(1214).bytes();
    for second in 0..3 {
        for _ in 0..1000 {
            pair.now += Duration::from_millis(1);
            let sealed = bytes(&pair.seal(&vec![dying.clone(); 10]).forward);
            pair.open(&sealed);
        }
        let before = pair.far.sent().errors_sent;
        let sealed = bytes(&pair.seal(std::slice::from_ref(&long)).forward);
        let output = pair.open(&sealed);
        assert_eq!(output.tunnel.len(), 1, "second {second}");
        assert_eq!(output.tunnel[0][HEADER + 20..HEADER + 22], [3, 4]);
        assert_eq!(pair.far.sent().errors_sent - before, 1);
        // A packet of the far gateway's own private side.
        let expired = Packet {
            ttl: 1,
            src: IpAddr::V4(FAR4.into()),
            dst: IpAddr::V4(NEAR4.into()),
            ..Packet::v4(100)
        };
        let mut frame = expired.bytes();
        frame[..6].copy_from_slice(&FAR_MAC);
        let mut burst = vec![pair.pool.copy(&frame).unwrap()];
        let mut output = tare_gateway::dataplane::Output::default();
        pair.far.outbound(pair.now, &mut burst, &mut output);
        assert_eq!(output.back.len(), 1, "second {second}");
    }
}
