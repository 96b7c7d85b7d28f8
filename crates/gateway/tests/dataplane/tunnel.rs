//! Packets come out of the tunnel as they went in.

use std::slice::from_ref;

use proptest::prelude::*;
use tare_gateway::dataplane::DropReason;
use tare_gateway::dataplane::{ecn, esp};
use tare_packet::ethernet::HEADER;
use tare_packet::ipv4::{self, Ipv4};
use tare_packet::ipv6::Ipv6;

use crate::errors::update_checksum;
use crate::pair::{bytes, sealed_by_hand, Packet, Pair, Shape, HOST};

/// The packet that is expected behind both gateways: two hops less, new stations, and all else as
/// it was.
fn after_both(packet: &Packet) -> Vec<u8> {
    let ttl = packet.ttl - 2;
    let mut bytes = Packet { ttl, ..*packet }.bytes();
    bytes[..6].copy_from_slice(&HOST);
    bytes[6..12].copy_from_slice(&[2, 0, 0, 0, 1, 1]);
    bytes
}

#[test]
fn every_length_comes_out_as_it_went_in_over_every_kind_of_tunnel() {
    for shape in Shape::all() {
        let mut pair = Pair::new(shape);
        // The longest inner packet is 1,446 bytes over IPv4 and 1,426 over IPv6.
        for size in (60..1400).chain([1414, 1420, 1440]) {
            let packets = [Packet::v4(size), Packet::v6(size.max(74))];
            let sent = packets.map(|p| p.bytes());
            let received = pair.through(&sent);
            assert_eq!(
                received,
                packets.map(|p| after_both(&p)),
                "{shape:?} {size}"
            );
        }
        assert_eq!(pair.near.sent().dropped_total(), 0);
        assert_eq!(pair.far.received().dropped_total(), 0);
    }
}

#[test]
fn a_frame_of_60_bytes_is_114_on_the_public_wire() {
    let mut pair = Pair::new(Shape::default());
    let sealed = pair.seal(&[Packet::v4(60).bytes()]);
    assert_eq!(sealed.forward[0].len(), 114);
    assert_eq!(pair.near.sent().forwarded_bytes, 114);
}

#[test]
fn no_plaintext_is_on_the_public_wire() {
    let mut pair = Pair::new(Shape::default());
    let sent = Packet::v4(1000).bytes();
    let sealed = bytes(&pair.seal(from_ref(&sent)).forward);
    for window in sent[HEADER..].windows(8) {
        assert!(!sealed[0].windows(8).any(|w| w == window));
    }
}

#[test]
fn what_ethernet_padded_is_not_carried() {
    let mut pair = Pair::new(Shape::default());
    let mut frame = Packet::v4(50).bytes();
    let sealed = bytes(&pair.seal(from_ref(&frame)).forward);
    frame.resize(60, 0xee);
    let padded = bytes(&pair.seal(from_ref(&frame)).forward);
    assert_eq!(padded[0].len(), sealed[0].len());
    let received = bytes(&pair.open(&padded).forward);
    assert_eq!(received[0].len(), 50);
}

#[test]
fn what_hides_the_length_is_taken_off() {
    // RFC 4303, 2.7: bytes behind the inner packet, within what is encrypted. Sealed by hand, as
    // the near gateway would take them for padding of Ethernet.
    let mut pair = Pair::new(Shape::default());
    let packet = Packet::v4(100);
    let mut inner = packet.bytes()[HEADER..].to_vec();
    inner.resize(400, 0);
    inner.extend([1, 2, 2, esp::INNER_IPV4]);
    let received = pair.open(&[sealed_by_hand(&inner, 1)]);
    assert_eq!(
        received.forward[0][HEADER + 20..],
        packet.bytes()[HEADER + 20..]
    );
    assert_eq!(received.forward[0].len(), 100);
    drop(received);
    // A dummy is authentic, and nothing.
    let dummy = sealed_by_hand(&[0, 0, 0, 0, 0, 0, 0, esp::DUMMY], 2);
    assert_eq!(pair.refusal(dummy), DropReason::Dummy);
    // Padding longer than the payload, a next header that is no IP, an inner packet longer than its
    // carrier.
    let mut cut = packet.bytes()[HEADER..HEADER + 60].to_vec();
    cut.extend([1, 2, 2, esp::INNER_IPV4]);
    for (number, inner) in [vec![0, 0, 200, 4], vec![0, 0, 0, 6], cut]
        .iter()
        .enumerate()
    {
        let frame = sealed_by_hand(inner, 3 + number as u64);
        assert_eq!(pair.refusal(frame), DropReason::InnerMalformed, "{inner:?}");
    }
}

#[test]
fn congestion_and_class_go_through_the_tunnel() {
    for v6 in [false, true] {
        for inner in [0b0000, 0b0001, 0b0010, 0b0011, 0b1011_1001u8] {
            for marked in 0..4u8 {
                let mut pair = Pair::new(Shape::default());
                let size = 100;
                let packet = if v6 {
                    Packet::v6(size)
                } else {
                    Packet::v4(size)
                };
                let packet = Packet {
                    tos: inner,
                    ..packet
                };
                let mut sealed = bytes(&pair.seal(&[packet.bytes()]).forward);
                let outer = Ipv4::parse(&sealed[0][HEADER..]).unwrap();
                assert_eq!(outer.tos, inner, "entering copies");
                // A router between the gateways marks it.
                tare_packet::ipv4::set_tos(&mut sealed[0][HEADER..], inner & !3 | marked);
                let received = pair.open(&sealed);
                let Some(expected) = ecn::leaving(inner, marked) else {
                    assert_eq!(pair.far.received().dropped(DropReason::EcnIllegal), 1);
                    continue;
                };
                let ip = &received.forward[0][HEADER..];
                let found = if v6 {
                    Ipv6::parse(ip).unwrap().traffic_class
                } else {
                    Ipv4::parse(ip).unwrap().tos
                };
                assert_eq!(found, expected, "{inner:08b} {marked:02b}");
            }
        }
    }
}

#[test]
fn long_packets_that_may_be_fragmented_are_and_come_out_whole() {
    let mut pair = Pair::new(Shape {
        path_mtu: 600,
        ..Shape::default()
    });
    let packet = Packet {
        df: false,
        ..Packet::v4(1514)
    };
    let sent = packet.bytes();
    let output = pair.seal(from_ref(&sent));
    for frame in &output.forward {
        assert!(frame.len() - HEADER <= 600, "{}", frame.len());
    }
    assert_eq!(pair.near.sent().fragments, output.forward.len() as u64 - 1);
    assert_eq!(pair.near.sent().forwarded, output.forward.len() as u64);
    let sealed = bytes(&output.forward);
    drop(output);
    let mut payload = vec![0; 1514 - HEADER - 20];
    for frame in bytes(&pair.open(&sealed).forward) {
        let ip = Ipv4::parse(&frame[HEADER..]).unwrap();
        let at = (ip.fragment & 0x1fff) as usize * 8;
        let piece = &frame[HEADER + 20..HEADER + ip.total_len];
        payload[at..at + piece.len()].copy_from_slice(piece);
        let last = at + piece.len() == payload.len();
        assert_eq!(ip.fragment & 0x2000 == 0, last);
    }
    assert_eq!(payload, sent[HEADER + 20..]);
}

/// A fragment as of a packet that is longer than one can be: its pieces would have offsets that the
/// header has no room for.
#[test]
fn a_fragment_that_ends_where_no_packet_does_is_not_cut_but_dropped() {
    // Bytes of the packet, its offset in units of 8, and whether it ends in time.
    for (size, offset, is_cut) in [
        (1500, 0x1fff, false),
        (1500, (65_536 - 1500) / 8 + 1, false),
        (1500, (65_536 - 1500) / 8, true),
        (1200, (65_536 - 1200) / 8, false),
        (1200, (65_536 - 1200) / 8 - 1, true),
    ] {
        let mut pair = Pair::new(Shape {
            private_mtu: 1000,
            ..Shape::default()
        });
        let mut packet = Packet {
            df: false,
            ..Packet::v4(size + HEADER)
        }
        .bytes();
        packet[HEADER + 6..HEADER + 8].copy_from_slice(&(offset as u16).to_be_bytes());
        update_checksum(&mut packet);
        // The longer ones are cut before they are sealed, the others by the other gateway.
        let received = pair.through(from_ref(&packet));
        assert_eq!(!received.is_empty(), is_cut, "{size} {offset:#x}");
        let ends = received.iter().map(|frame| {
            let ip = Ipv4::parse(&frame[HEADER..]).unwrap();
            (ip.fragment & 0x1fff) as usize * 8 + ip.total_len - 20
        });
        let end = offset * 8 + size - 20;
        assert_eq!(ends.max().unwrap_or(end), end);
        let sent = pair.near.sent().dropped(DropReason::Malformed);
        let received = pair.far.received().dropped(DropReason::InnerMalformed);
        let dropped = u64::from(!is_cut);
        match size {
            1500 => assert_eq!([sent, received], [dropped, 0]),
            _ => assert_eq!([sent, received], [0, dropped]),
        }
    }
}

#[test]
fn what_leaves_the_tunnel_fits_the_private_side() {
    let mut pair = Pair::new(Shape {
        private_mtu: 700,
        path_mtu: 1600,
        ..Shape::default()
    });
    let received = pair.through(&[Packet {
        df: false,
        ..Packet::v4(1400)
    }
    .bytes()]);
    assert!(received.len() > 1);
    assert!(received.iter().all(|frame| frame.len() <= 714));
    assert_eq!(pair.far.received().forwarded, received.len() as u64);
    assert!(pair.through(&[Packet::v4(1400).bytes()]).is_empty());
    assert_eq!(pair.far.received().dropped(DropReason::TooBig), 1);
}

#[test]
fn sequence_numbers_cross_four_billion() {
    let mut far = Pair::new(Shape::default());
    let packets = [Packet::v4(100), Packet::v6(100)].repeat(20);
    let sent: Vec<_> = packets.iter().map(Packet::bytes).collect();
    let expected: Vec<_> = packets.iter().map(after_both).collect();
    // A receiver finds the upper half for numbers that are less than 2^32 ahead.
    for skipped in [1 << 31, (1 << 32) - 20] {
        let mut near = Pair::new(Shape {
            skipped,
            ..Shape::default()
        });
        let sealed = bytes(&near.seal(&sent).forward);
        for (number, frame) in (skipped + 1..).zip(&sealed) {
            // The IV, which is a part of the nonce: no two packets may have the same.
            let iv = &frame[HEADER + ipv4::HEADER + 8..][..8];
            assert_eq!(iv, number.to_be_bytes(), "{number}");
        }
        assert_eq!(bytes(&far.open(&sealed).forward), expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn bursts_of_any_mix_keep_their_order(sizes in proptest::collection::vec((74usize..1400, any::<bool>()), 0..200)) {
        let mut pair = Pair::new(Shape::default());
        let packets: Vec<Packet> = sizes.iter().zip(0u8..=255).map(|(&(size, v6), seed)| {
            let packet = if v6 { Packet::v6(size) } else { Packet::v4(size) };
            Packet { seed, ..packet }
        }).collect();
        let sent: Vec<_> = packets.iter().map(Packet::bytes).collect();
        let expected: Vec<_> = packets.iter().map(after_both).collect();
        prop_assert_eq!(pair.through(&sent), expected);
    }
}

#[test]
fn a_padded_payload_ends_on_four_bytes() {
    for inner in 20..2000 {
        assert_eq!((inner + esp::padding(inner) + esp::TRAILER) % 4, 0);
        assert!(esp::padding(inner) < 4);
    }
}
