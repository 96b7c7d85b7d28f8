//! The frames and packets that a router must not forward: those of other stations, and those from
//! or to addresses that are not those of a host beyond it.

use std::net::IpAddr;

use tare_gateway::dataplane::{esp, DropReason};
use tare_packet::ethernet::{Mac, BROADCAST, HEADER};
use tare_packet::protocol;

use crate::errors::update_checksum;
use crate::pair::{bytes, sealed_by_hand, Packet, Pair, Shape, FAR_MAC, NEAR_MAC};

/// Addresses that no packet is forwarded from or to.
const MARTIANS: [&str; 21] = [
    "0.0.0.0",
    "0.1.2.3",
    "127.0.0.1",
    "127.255.255.255",
    "169.254.0.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::ffff:10.1.0.1",
    "fe80::77",
    "febf::1",
    "ff00::1",
    "ff02::1",
    "ff0e::1",
    "ffff::1",
    // Addresses of the near gateway, on its private and on its public side.
    "10.1.0.255",
    "192.168.0.1",
    "fd01::ff",
];

const GROUPS: [Mac; 3] = [BROADCAST, [1, 0, 0x5e, 0, 0, 1], [0x33, 0x33, 0, 0, 0, 1]];

/// A station for which neither frame is.
const STRANGER: Mac = [2, 0, 0, 0, 9, 9];

fn everything() -> Pair {
    Pair::new(Shape {
        everything: true,
        ..Shape::default()
    })
}

fn packet(of: IpAddr) -> Packet {
    match of {
        IpAddr::V4(_) => Packet::v4(100),
        IpAddr::V6(_) => Packet::v6(100),
    }
}

/// The payload of ESP that carries a packet.
fn payload(packet: &Packet) -> Vec<u8> {
    let mut payload = packet.bytes()[HEADER..].to_vec();
    let padding = esp::padding(payload.len()) as u8;
    payload.extend(1..=padding);
    let next_header = match packet.v6 {
        true => protocol::IPV6,
        false => protocol::IPV4,
    };
    payload.extend([padding, next_header]);
    payload
}

#[test]
fn frames_to_other_stations_or_groups_are_not_forwarded_in_either_direction() {
    let mut pair = Pair::new(Shape::default());
    let plain = [Packet::v4(100), Packet::v6(100)].map(|packet| packet.bytes());
    for frame in &plain {
        for (mac, cause) in [
            (STRANGER, DropReason::OtherStation),
            (FAR_MAC, DropReason::OtherStation),
        ]
        .into_iter()
        .chain(GROUPS.map(|mac| (mac, DropReason::LinkBroadcast)))
        {
            let mut private = frame.clone();
            private[..6].copy_from_slice(&mac);
            assert_eq!(pair.refusal_to_seal(private), cause, "{mac:?}");
        }
        let sealed = bytes(&pair.seal(std::slice::from_ref(frame)).forward).remove(0);
        for (mac, cause) in [
            (STRANGER, DropReason::OtherStation),
            (NEAR_MAC, DropReason::OtherStation),
        ]
        .into_iter()
        .chain(GROUPS.map(|mac| (mac, DropReason::LinkBroadcast)))
        {
            let mut public = sealed.clone();
            public[..6].copy_from_slice(&mac);
            assert_eq!(pair.refusal(public), cause, "{mac:?}");
        }
        assert_eq!(pair.open(&[sealed]).forward.len(), 1);
    }
}

#[test]
fn arp_and_multicast_of_neighbor_discovery_reach_the_control_side() {
    let mut pair = Pair::new(Shape::default());
    let mut arp = Packet::v4(60).bytes();
    arp[12..14].copy_from_slice(&[8, 6]);
    let solicitation = Packet {
        dst: "ff02::1:ff00:fe".parse().unwrap(),
        ..Packet::v6(86)
    };
    let mut solicitation = solicitation.bytes();
    solicitation[HEADER + 6] = protocol::ICMPV6;
    for (frame, group) in [
        (arp, BROADCAST),
        (solicitation, [0x33, 0x33, 0xff, 0, 0, 0xfe]),
    ] {
        for (near, far) in [(NEAR_MAC, FAR_MAC), (group, group)] {
            let to = |mac: Mac| [&mac[..], &frame[6..]].concat();
            assert_eq!(pair.seal(&[to(near)]).control.len(), 1);
            assert_eq!(pair.open(&[to(far)]).control.len(), 1);
        }
        let to_stranger = [&STRANGER[..], &frame[6..]].concat();
        assert_eq!(
            pair.refusal_to_seal(to_stranger.clone()),
            DropReason::OtherStation
        );
        assert_eq!(pair.refusal(to_stranger), DropReason::OtherStation);
    }
}

#[test]
fn packets_from_martians_are_not_forwarded_whatever_the_routes_say() {
    for (number, src) in (1..).zip(MARTIANS) {
        let src: IpAddr = src.parse().unwrap();
        let from = Packet { src, ..packet(src) };
        let mut pair = everything();
        assert_eq!(
            pair.refusal_to_seal(from.bytes()),
            DropReason::MartianSource,
            "{src}"
        );
        // The far gateway's own addresses are others.
        if number > 18 {
            continue;
        }
        let sealed = sealed_by_hand(&payload(&from), number);
        assert_eq!(pair.refusal(sealed), DropReason::MartianSource, "{src}");
    }
    // Addresses of the far gateway come to it through the tunnel.
    for (number, src) in (1..).zip(["10.2.0.255", "192.168.0.2", "fd02::ff"]) {
        let src: IpAddr = src.parse().unwrap();
        let from = Packet { src, ..packet(src) };
        let sealed = sealed_by_hand(&payload(&from), number);
        assert_eq!(
            everything().refusal(sealed),
            DropReason::MartianSource,
            "{src}"
        );
    }
}

#[test]
fn packets_to_martians_are_not_forwarded_whatever_the_routes_say() {
    for (number, dst) in (1..).zip(&MARTIANS[..18]) {
        let dst: IpAddr = dst.parse().unwrap();
        let to = Packet { dst, ..packet(dst) };
        let mut pair = everything();
        // Multicast is for the control side there: neighbor discovery is.
        let multicast = matches!(dst, IpAddr::V6(dst) if dst.is_multicast());
        match multicast {
            true => assert_eq!(pair.seal(&[to.bytes()]).control.len(), 1),
            false => {
                let cause = pair.refusal_to_seal(to.bytes());
                assert_eq!(cause, DropReason::MartianDestination, "{dst}");
            }
        }
        let sealed = sealed_by_hand(&payload(&to), number);
        assert_eq!(
            pair.refusal(sealed),
            DropReason::MartianDestination,
            "{dst}"
        );
    }
}

#[test]
fn addresses_beside_those_of_martians_are_forwarded() {
    for address in [
        "1.0.0.1",
        "126.255.255.255",
        "128.0.0.1",
        "169.253.255.255",
        "169.255.0.1",
        "223.255.255.255",
        "10.1.0.253",
        "100::1",
        "64:ff9b::1",
        "fe7f::1",
        "fec0::1",
        "feff::1",
        "2001:db8::1",
    ] {
        let address: IpAddr = address.parse().unwrap();
        let from = Packet {
            src: address,
            ..packet(address)
        };
        let to = Packet {
            dst: address,
            ..packet(address)
        };
        let through = everything().through(&[from.bytes(), to.bytes()]);
        assert_eq!(through.len(), 2, "{address}");
    }
}

#[test]
fn outer_packets_from_addresses_that_no_peer_has_are_dropped() {
    let v4: [[u8; 4]; 6] = [
        [0, 0, 0, 0],
        [127, 0, 0, 1],
        [224, 0, 0, 1],
        [240, 0, 0, 1],
        [255, 255, 255, 255],
        [192, 168, 0, 2],
    ];
    let v6 = ["::", "::1", "ff02::1", "fe80::2"];
    let mut pair = Pair::new(Shape::default());
    let sealed = bytes(&pair.seal(&[Packet::v4(100).bytes()]).forward).remove(0);
    for src in v4 {
        let mut frame = sealed.clone();
        frame[HEADER + 12..HEADER + 16].copy_from_slice(&src);
        update_checksum(&mut frame);
        assert_eq!(pair.refusal(frame), DropReason::MartianSource, "{src:?}");
    }
    assert_eq!(pair.open(&[sealed]).forward.len(), 1);
    let mut pair = Pair::new(Shape {
        outer_v6: true,
        ..Shape::default()
    });
    let sealed = bytes(&pair.seal(&[Packet::v4(100).bytes()]).forward).remove(0);
    for src in v6 {
        let mut frame = sealed.clone();
        let address: std::net::Ipv6Addr = src.parse().unwrap();
        frame[HEADER + 8..HEADER + 24].copy_from_slice(&address.octets());
        assert_eq!(pair.refusal(frame), DropReason::MartianSource, "{src}");
    }
    let mut other = sealed.clone();
    other[HEADER + 39] ^= 1;
    assert_eq!(pair.refusal(other), DropReason::NotForUs);
    assert_eq!(pair.open(&[sealed]).forward.len(), 1);
}

#[test]
fn padding_that_does_not_count_up_is_dropped() {
    let mut number = 0;
    let mut open = |pair: &mut Pair, padding: &[u8]| {
        let mut payload = Packet::v4(HEADER + 46).bytes()[HEADER..].to_vec();
        payload.extend(padding);
        payload.extend([padding.len() as u8, protocol::IPV4]);
        number += 1;
        let frame = sealed_by_hand(&payload, number);
        let before = pair.far.received().dropped(DropReason::Padding);
        let forwarded = pair.open(&[frame]).forward.len();
        let dropped = pair.far.received().dropped(DropReason::Padding) - before;
        assert_eq!(forwarded + dropped as usize, 1);
        forwarded == 1
    };
    let mut pair = Pair::new(Shape::default());
    for len in (0..=255_usize).step_by(4).chain([1, 2, 3, 255]) {
        let right: Vec<u8> = (1..=len as u8).collect();
        assert!(open(&mut pair, &right), "{len}");
        for at in [0, len / 2, len.saturating_sub(1)] {
            let mut wrong = right.clone();
            let Some(byte) = wrong.get_mut(at) else {
                continue;
            };
            *byte ^= 0x40;
            assert!(!open(&mut pair, &wrong), "byte {at} of {len}");
        }
        assert!(len == 0 || !open(&mut pair, &vec![0; len]), "{len} zeros");
    }
    let mut pair = Pair::new(Shape {
        zeros: true,
        ..Shape::default()
    });
    for (padding, accepted) in [
        (&[0, 0][..], true),
        (&[1, 2], true),
        (&[0; 200], true),
        (&[0, 2], false),
        (&[1, 0], false),
        (&[0, 0, 0, 1], false),
    ] {
        assert_eq!(open(&mut pair, padding), accepted, "{padding:?}");
    }
    // Nor is a dummy exempt.
    let dummy = sealed_by_hand(&[7, 7, 2, esp::DUMMY], 1_000_000);
    assert_eq!(pair.refusal(dummy), DropReason::Padding);
}
