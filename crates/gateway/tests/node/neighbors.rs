//! Next hops, echo, and paths.

use std::net::Ipv6Addr;

use tare_gateway::control::{Ignored, Taken};
use tare_gateway::dataplane::DropReason;
use tare_gateway::InterfaceId;
use tare_packet::ethernet::{self, Mac, BROADCAST, HEADER};
use tare_packet::{checksum, ipv4, ipv6};

use crate::testbed::{file, packet, parse, route4, Testbed, HOST, PRIVATE, PUBLIC};

/// A station of the public link that is no gateway.
const STRANGER: Mac = [2, 0, 0, 0, 9, 9];

/// A question for the public address of a gateway.
pub(crate) fn arp(side: usize) -> Vec<u8> {
    arp_from(STRANGER, [192, 0, 2, 99], 1, [192, 0, 2, 16 + side as u8])
}

fn arp_from(mac: Mac, source: [u8; 4], operation: u8, target: [u8; 4]) -> Vec<u8> {
    let mut frame = ethernet::header(BROADCAST, mac, ethernet::ARP).to_vec();
    frame.extend([0, 1, 8, 0, 6, 4, 0, operation]);
    frame.extend(mac);
    frame.extend(source);
    frame.extend([0; 6]);
    frame.extend(target);
    frame.resize(60, 0);
    frame
}

/// A question of the host behind a gateway for the private address of that gateway.
pub(crate) fn private_arp(side: usize) -> Vec<u8> {
    let net = 16 + side as u8;
    arp_from(HOST[side], [172, net, 0, 5], 1, [172, net, 0, 10])
}

/// The same for the private IPv6 address.
pub(crate) fn private_solicitation(side: usize) -> Vec<u8> {
    let net = 0x16 + side as u16;
    let target = Ipv6Addr::new(0xfd00, net, 0, 0, 0, 0, 0, 0x10);
    solicitation_for(target, Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 9), 255)
}

fn own6(side: usize) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x16 + side as u16)
}

fn icmp6(to: Mac, src: Ipv6Addr, dst: Ipv6Addr, hop_limit: u8, mut message: Vec<u8>) -> Vec<u8> {
    let pseudo = checksum::pseudo_header(&src.octets(), &dst.octets(), 58, message.len());
    let sum = checksum::finish(pseudo + checksum::sum(&message));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let header = ipv6::Repr {
        src: src.to_bits(),
        dst: dst.to_bits(),
        next_header: 58,
        hop_limit,
        traffic_class: 0,
        payload_len: message.len() as u16,
    };
    let mut frame = ethernet::header(to, STRANGER, ethernet::IPV6).to_vec();
    frame.extend(header.to_bytes());
    frame.extend(message);
    frame
}

/// A question for the public IPv6 address of a gateway.
pub(crate) fn solicitation(side: usize) -> Vec<u8> {
    let source = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 9);
    solicitation_of(side, source, 255)
}

fn solicitation_of(side: usize, source: Ipv6Addr, hop_limit: u8) -> Vec<u8> {
    solicitation_for(own6(side), source, hop_limit)
}

fn solicitation_for(target: Ipv6Addr, source: Ipv6Addr, hop_limit: u8) -> Vec<u8> {
    let last = target.segments()[7];
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, last);
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend(target.octets());
    if !source.is_unspecified() {
        message.extend([1, 1]);
        message.extend(STRANGER);
    }
    let to = [0x33, 0x33, 0xff, 0, 0, last as u8];
    icmp6(to, source, group, hop_limit, message)
}

fn ip4(to: Mac, from: Mac, src: [u8; 4], dst: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let header = ipv4::Repr {
        src: u32::from_be_bytes(src),
        dst: u32::from_be_bytes(dst),
        protocol,
        ttl: 64,
        tos: 0,
        total_len: (20 + payload.len()) as u16,
        fragment: 0,
    };
    let mut frame = ethernet::header(to, from, ethernet::IPV4).to_vec();
    frame.extend(header.to_bytes());
    frame.extend(payload);
    frame
}

fn summed(mut message: Vec<u8>) -> Vec<u8> {
    let sum = checksum::finish(checksum::sum(&message));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

fn echo() -> Vec<u8> {
    summed([&[8, 0, 0, 0, 0x12, 0x34, 0, 1], &b"how far is it?"[..]].concat())
}

/// An echo request to the public address of a gateway.
pub(crate) fn echo4(side: usize) -> Vec<u8> {
    let own = [192, 0, 2, 16 + side as u8];
    ip4(PUBLIC[side], STRANGER, [192, 0, 2, 99], own, 1, &echo())
}

/// An echo request of the host behind a gateway to the private address of that gateway.
pub(crate) fn private_echo4(side: usize) -> Vec<u8> {
    let net = 16 + side as u8;
    let (src, dst) = ([172, net, 0, 5], [172, net, 0, 10]);
    ip4(PRIVATE[side], HOST[side], src, dst, 1, &echo())
}

/// An echo request of the host behind a gateway to the private address of the other one.
pub(crate) fn tunnel_echo4(side: usize) -> Vec<u8> {
    let (own, peer) = (16 + side as u8, 17 - side as u8);
    let (src, dst) = ([172, own, 0, 5], [172, peer, 0, 10]);
    ip4(PRIVATE[side], HOST[side], src, dst, 1, &echo())
}

/// An echo request to the public IPv6 address of a gateway.
pub(crate) fn echo6(side: usize) -> Vec<u8> {
    let source = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x99);
    let message = vec![128, 0, 0, 0, 0x12, 0x34, 0, 1, 1, 2, 3];
    icmp6(PUBLIC[side], source, own6(side), 64, message)
}

/// A router says that the first packet of the first gateway's SA was too long.
pub(crate) fn too_big4(spi: u32, mtu: u16) -> Vec<u8> {
    too_big4_about(spi, 1, mtu)
}

/// The same of the packet with this sequence number, which had 1500 bytes.
pub(crate) fn too_big4_about(spi: u32, sequence: u32, mtu: u16) -> Vec<u8> {
    let mut message = vec![3, 4, 0, 0, 0, 0];
    message.extend(mtu.to_be_bytes());
    let quoted = ip4(
        [0; 6],
        [0; 6],
        [192, 0, 2, 16],
        [192, 0, 2, 17],
        50,
        &[0; 1480],
    );
    message.extend(&quoted[HEADER..HEADER + 20]);
    message.extend(spi.to_be_bytes());
    message.extend(sequence.to_be_bytes());
    ip4(
        PUBLIC[0],
        STRANGER,
        [203, 0, 113, 1],
        [192, 0, 2, 16],
        1,
        &summed(message),
    )
}

fn ignored(testbed: &mut Testbed, why: Ignored) -> u64 {
    testbed.node(0).control().counters().ignored(why)
}

fn taken(testbed: &mut Testbed, why: Taken) -> u64 {
    testbed.node(0).control().counters().taken(why)
}

#[test]
fn every_station_is_answered_and_only_the_next_hop_is_remembered() {
    let mut testbed = Testbed::plain("");
    testbed.wait_until_up(1.0);
    let before = testbed.node(0).control().status().neighbors;
    let asked = taken(&mut testbed, Taken::NeighborAsked);
    testbed.inject(0, &arp(0));
    testbed.inject(0, &solicitation(0));
    testbed.inject(0, &solicitation_of(0, Ipv6Addr::UNSPECIFIED, 255));
    assert_eq!(taken(&mut testbed, Taken::NeighborAsked) - asked, 3);
    // Others tell about themselves, or of others.
    for n in 0..200 {
        testbed.inject(
            0,
            &arp_from(
                [2, 0, 0, 1, 0, n],
                [192, 0, 2, n / 2 + 100],
                2,
                [192, 0, 2, 16],
            ),
        );
    }
    assert_eq!(testbed.node(0).control().status().neighbors, before);
    assert!(ignored(&mut testbed, Ignored::NotNeighbor) >= 200);
    // From beyond the link.
    let hops = ignored(&mut testbed, Ignored::HopLimit);
    testbed.inject(
        0,
        &solicitation_of(0, Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9), 254),
    );
    assert_eq!(ignored(&mut testbed, Ignored::HopLimit) - hops, 1);
    // A station claims our address: it is not believed, and is answered.
    let source = ignored(&mut testbed, Ignored::Source);
    testbed.inject(0, &arp_from(STRANGER, [192, 0, 2, 16], 1, [192, 0, 2, 16]));
    assert_eq!(ignored(&mut testbed, Ignored::Source) - source, 1);
    testbed.restart_counting();
    testbed.load(1.0, std::time::Duration::from_millis(10));
    assert_eq!(testbed.lost(), [0, 0]);
}

/// Says that the next hop of the first gateway has this MAC address.
fn advertisement(mac: Mac, solicited: bool) -> Vec<u8> {
    let mut message = vec![136, 0, 0, 0, if solicited { 0x60 } else { 0x20 }, 0, 0, 0];
    message.extend(own6(1).octets());
    message.extend([2, 1]);
    message.extend(mac);
    icmp6(PUBLIC[0], own6(1), own6(0), 255, message)
}

fn next_hops(testbed: &mut Testbed) -> [Option<Mac>; 2] {
    testbed.run_for(0.001);
    let public = testbed.node(0).control().tables().public;
    [public.next_hop4, public.next_hop6]
}

#[test]
fn unsolicited_messages_move_no_next_hop() {
    let mut testbed = Testbed::plain("");
    testbed.wait_until_up(1.0);
    testbed.restart_counting();
    let known = [Some(PUBLIC[1]); 2];
    assert_eq!(next_hops(&mut testbed), known);
    let before = ignored(&mut testbed, Ignored::Unsolicited);
    let hop = [192, 0, 2, 17];
    // A second of such messages, while packets flow.
    for _ in 0..100 {
        // Announcements, an answer to a request that was not made, and a request.
        testbed.inject(0, &arp_from(STRANGER, hop, 1, hop));
        testbed.inject(0, &arp_from(STRANGER, hop, 2, hop));
        testbed.inject(0, &arp_from(STRANGER, hop, 2, [192, 0, 2, 16]));
        testbed.inject(0, &arp_from(STRANGER, hop, 1, [192, 0, 2, 16]));
        testbed.inject(0, &advertisement(STRANGER, false));
        testbed.inject(0, &advertisement(STRANGER, true));
        testbed.inject(0, &solicitation_of(0, own6(1), 255));
        assert_eq!(next_hops(&mut testbed), known);
        testbed.load(0.01, std::time::Duration::from_millis(1));
    }
    assert_eq!(testbed.lost(), [0, 0]);
    assert!(ignored(&mut testbed, Ignored::Unsolicited) - before >= 500);
    assert_eq!(taken(&mut testbed, Taken::NeighborMoved), 0);
}

#[test]
fn a_next_hop_that_is_silent_and_answers_from_another_address_is_followed_counted_and_logged() {
    let mut testbed = Testbed::plain("");
    testbed.wait_until_up(1.0);
    testbed.stop(1);
    testbed.logs();
    let hop = [192, 0, 2, 17];
    // Three requests go to the known station alone before all are asked.
    testbed.run_for(62.5);
    testbed.inject(0, &arp_from(STRANGER, hop, 2, [192, 0, 2, 16]));
    assert_eq!(next_hops(&mut testbed)[0], Some(PUBLIC[1]));
    testbed.run_for(2.0);
    // A group, the unspecified address and our own are no stations.
    for mac in [[3, 0, 0, 0, 0, 1], [0; 6], PUBLIC[0]] {
        testbed.inject(0, &arp_from(mac, hop, 2, [192, 0, 2, 16]));
        assert_eq!(next_hops(&mut testbed)[0], Some(PUBLIC[1]));
    }
    testbed.inject(0, &arp_from(STRANGER, hop, 2, [192, 0, 2, 16]));
    assert_eq!(next_hops(&mut testbed), [Some(STRANGER), Some(PUBLIC[1])]);
    testbed.inject(0, &advertisement(STRANGER, true));
    assert_eq!(next_hops(&mut testbed), [Some(STRANGER); 2]);
    assert_eq!(taken(&mut testbed, Taken::NeighborMoved), 2);
    let logs = testbed.logs();
    let moved = |log: &&String| {
        log.contains("neighbor_moved")
            && log.contains("02:00:00:00:02:02")
            && log.contains("02:00:00:00:09:09")
    };
    assert_eq!(logs.iter().filter(moved).count(), 2, "{logs:?}");
}

#[test]
fn a_next_hop_whose_mac_address_is_given_never_moves() {
    let given = |side: usize| {
        let text = file(side, "", &route4(side), "");
        let hop = format!("nexthop-ip4 192.0.2.{};", 17 - side);
        let mac = format!("{hop} nexthop-mac 02:00:00:00:0{}:02;", 2 - side);
        assert!(text.contains(&hop));
        parse(&text.replacen(&hop, &mac, 1))
    };
    let mut testbed = Testbed::new([given(0), given(1)]);
    testbed.wait_until_up(1.0);
    let hop = [192, 0, 2, 17];
    for seconds in [0.0, 61.0, 64.0] {
        testbed.run_for(seconds);
        for operation in [1, 2] {
            testbed.inject(0, &arp_from(STRANGER, hop, operation, [192, 0, 2, 16]));
            testbed.inject(0, &arp_from(STRANGER, hop, operation, hop));
        }
        testbed.inject(0, &advertisement(STRANGER, true));
        testbed.inject(0, &advertisement(STRANGER, false));
        assert_eq!(next_hops(&mut testbed), [Some(PUBLIC[1]); 2]);
    }
}

#[test]
fn echo_is_answered_on_both_sides_and_through_the_tunnel() {
    let mut testbed = Testbed::plain("");
    testbed.wait_until_up(1.0);
    let before = taken(&mut testbed, Taken::Echo);
    testbed.inject(0, &echo4(0));
    testbed.inject(0, &echo6(0));
    // On the private side, from the host.
    testbed.host(0).other.clear();
    testbed.give(0, &private_echo4(0));
    let reply = testbed.host(0).other.pop().expect("a reply");
    assert_eq!(
        (&reply[..6], &reply[6..12]),
        (&HOST[0][..], &PRIVATE[0][..])
    );
    assert_eq!(
        reply[HEADER + 12..HEADER + 20],
        [172, 16, 0, 10, 172, 16, 0, 5]
    );
    assert_eq!(reply[HEADER + 20], 0);
    assert!(reply[..HEADER + 42].ends_with(b"how far is it?"));
    assert_eq!(taken(&mut testbed, Taken::Echo) - before, 3);
    // From the host behind the other gateway, whose reply comes back through the tunnel.
    testbed.give(1, &tunnel_echo4(1));
    testbed.run_for(0.1);
    let reply = testbed
        .host(1)
        .other
        .pop()
        .expect("a reply through the tunnel");
    assert_eq!(
        reply[HEADER + 12..HEADER + 20],
        [172, 16, 0, 10, 172, 17, 0, 5]
    );
    assert!(reply[..HEADER + 42].ends_with(b"how far is it?"));
    // In the clear, the private address does not exist.
    let hidden = testbed.received(0).control;
    testbed.inject(
        0,
        &ip4(
            PUBLIC[0],
            STRANGER,
            [192, 0, 2, 99],
            [172, 16, 0, 10],
            1,
            &echo(),
        ),
    );
    assert_eq!(testbed.received(0).control - hidden, 1);
    assert_eq!(ignored(&mut testbed, Ignored::NotForUs), 1);
    // Nor is a reply sent to a group, to broadcast, or to ourselves.
    let before = taken(&mut testbed, Taken::Echo);
    for source in [
        [224, 0, 0, 1],
        [255; 4],
        [0; 4],
        [192, 0, 2, 16],
        [127, 0, 0, 1],
    ] {
        testbed.inject(
            0,
            &ip4(PUBLIC[0], STRANGER, source, [192, 0, 2, 16], 1, &echo()),
        );
    }
    assert_eq!(taken(&mut testbed, Taken::Echo), before);
}

#[test]
fn a_narrow_path_is_believed_for_ten_minutes_and_not_from_strangers() {
    let mut testbed = Testbed::plain("");
    // A peer that answers probes would say within a round trip that it is not narrow.
    testbed.silence(1);
    testbed.wait_until_up(1.0);
    let mtu = |testbed: &mut Testbed| testbed.node(0).control().status().routes[0].path_mtu;
    testbed.load(0.1, std::time::Duration::from_millis(5));
    let (spi, last) = outbound(&mut testbed)[0];
    testbed.inject(0, &too_big4_about(spi ^ 1, last, 1000));
    assert_eq!(
        (mtu(&mut testbed), ignored(&mut testbed, Ignored::NotOurs)),
        (1500, 1)
    );
    testbed.inject(0, &too_big4_about(spi, last, 1400));
    assert_eq!(mtu(&mut testbed), 1400);
    // What does not fit is now refused where it comes from, and what does goes through.
    let before = testbed.sent(0).dropped(DropReason::TooBig);
    testbed.give(0, &packet(0, false, 0, 1400));
    assert_eq!(testbed.sent(0).dropped(DropReason::TooBig) - before, 1);
    let error = testbed.host(0).other.pop().expect("an error");
    assert_eq!(error[HEADER + 20..HEADER + 22], [3, 4]);
    let told = u16::from_be_bytes([error[HEADER + 26], error[HEADER + 27]]);
    assert_eq!(told, 1346);
    testbed.give(0, &packet(0, false, 0, HEADER + 1346));
    assert_eq!(testbed.sent(0).dropped(DropReason::TooBig) - before, 1);
    // Wider again is not for a router to say, and there is an end downwards.
    testbed.inject(0, &too_big4(spi, 1450));
    assert_eq!(mtu(&mut testbed), 1400);
    testbed.inject(0, &too_big4(spi, 68));
    assert_eq!(mtu(&mut testbed), 576);
    testbed.run_for(599.0);
    assert_eq!(mtu(&mut testbed), 576);
    testbed.run_for(2.0);
    assert_eq!(mtu(&mut testbed), 1500);
}

/// The same over IPv6, about a packet of so many bytes.
fn too_big6(spi: u32, sequence: u32, len: u16, mtu: u32) -> Vec<u8> {
    let quoted = ipv6::Repr {
        src: own6(0).to_bits(),
        dst: own6(1).to_bits(),
        next_header: 50,
        hop_limit: 60,
        traffic_class: 0,
        payload_len: len - ipv6::HEADER as u16,
    };
    let mut message = vec![2, 0, 0, 0];
    message.extend(mtu.to_be_bytes());
    message.extend(quoted.to_bytes());
    message.extend(spi.to_be_bytes());
    message.extend(sequence.to_be_bytes());
    message.extend([0; 100]);
    let router = Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 1);
    icmp6(PUBLIC[0], router, own6(0), 64, message)
}

/// The outbound SAs of the first gateway, as SPI and packets sent.
pub(crate) fn outbound(testbed: &mut Testbed) -> Vec<(u32, u32)> {
    let status = testbed.node(0).control().status();
    let sas = status.routes[0].outbound.iter();
    sas.map(|sa| (sa.spi, sa.packets as u32)).collect()
}

pub(crate) fn path_mtu(testbed: &mut Testbed) -> u16 {
    testbed.node(0).control().status().routes[0].path_mtu
}

#[test]
fn a_report_is_believed_if_it_quotes_a_packet_of_the_last_seconds() {
    for workers in [1, 2] {
        let line = tare_sim::LineConfig::new(1_000_000_000);
        let mut testbed = Testbed::with_workers([workers; 2], &line, "");
        testbed.wait_until_up(1.0);
        testbed.load(20.0, std::time::Duration::from_millis(5));
        let sas = outbound(&mut testbed);
        assert_eq!(sas.len(), workers);
        for (spi, last) in sas {
            // At 200 packets per second over all SAs, the last two seconds have at most 400.
            let before = ignored(&mut testbed, Ignored::NotRecent);
            let old = [0, 1, 2, last / 2, last - 401];
            let coming = [last + 1, last + 2, last + 1000, 1 << 31, u32::MAX];
            for sequence in old.into_iter().chain(coming) {
                testbed.inject(0, &too_big4_about(spi, sequence, 576));
            }
            assert_eq!(ignored(&mut testbed, Ignored::NotRecent) - before, 10);
            assert_eq!(path_mtu(&mut testbed), 1500);
        }
        // The lowest first, as a report of more than is known changes nothing.
        for (n, (spi, last)) in outbound(&mut testbed).into_iter().enumerate() {
            for (m, sequence) in [last - 100 / workers as u32, last].into_iter().enumerate() {
                let mtu = 1400 - 100 * n as u16 - 10 * m as u16;
                testbed.inject(0, &too_big4_about(spi, sequence, mtu));
                assert_eq!(
                    path_mtu(&mut testbed),
                    mtu,
                    "{workers} {sequence} of {last}"
                );
            }
        }
        assert_eq!(taken(&mut testbed, Taken::PathMtu), 2 * workers as u64);
    }
}

#[test]
fn forged_reports_keep_no_real_one_out() {
    let mut testbed = Testbed::plain("");
    testbed.wait_until_up(1.0);
    testbed.load(5.0, std::time::Duration::from_millis(5));
    let (spi, last) = outbound(&mut testbed)[0];
    for n in 0..10_000 {
        testbed.inject(0, &too_big4_about(spi ^ (n & 1), last + 1 + n, 576));
    }
    assert_eq!(path_mtu(&mut testbed), 1500);
    assert_eq!(ignored(&mut testbed, Ignored::Rate), 0);
    testbed.inject(0, &too_big4_about(spi, last, 1400));
    assert_eq!(path_mtu(&mut testbed), 1400);
}

#[test]
fn a_report_about_a_packet_that_would_have_fitted_is_not_believed() {
    let route = |side: usize| format!("gw-ip6 2001:db8::{}; {}", 17 - side, crate::testbed::KEY);
    let mut testbed = Testbed::new([0, 1].map(|side| parse(&file(side, "", &route(side), ""))));
    testbed.wait_until_up(1.0);
    testbed.load(0.1, std::time::Duration::from_millis(5));
    let (spi, last) = outbound(&mut testbed)[0];
    // RFC 8201, 4: less than what every link takes is no report.
    for (len, mtu) in [(1300, 1300), (1300, 1400), (1500, 1279), (1500, 0)] {
        testbed.inject(0, &too_big6(spi, last, len, mtu));
        assert_eq!(path_mtu(&mut testbed), 1500, "{len} {mtu}");
    }
    assert_eq!(ignored(&mut testbed, Ignored::NotOurs), 4);
    testbed.inject(0, &too_big6(spi, last, 1301, 1300));
    assert_eq!(path_mtu(&mut testbed), 1300);
}

#[test]
fn other_addresses_of_a_reload_are_announced_and_the_same_are_not() {
    let mut testbed = Testbed::plain("");
    testbed.wait_until_up(1.0);
    let before = testbed.node(0).control().config().clone();
    let mut other_mac = before.clone();
    other_mac.private.mac = Some([2, 0, 0, 0, 7, 7]);
    let mut other_address = other_mac.clone();
    other_address.private.ip4 = Some("172.16.0.77".parse().unwrap());
    other_address.private.ip6 = Some("fd00:16::77".parse().unwrap());
    for (config, announced) in [
        (before, false),
        (other_mac.clone(), true),
        (other_mac, false),
        (other_address, true),
    ] {
        let private = config.private.clone();
        let now = testbed.time_of(0);
        let node = testbed.node(0);
        node.leaving(InterfaceId::Private).clear();
        node.reconfigure(now, config).unwrap();
        node.tick(now);
        let own = node.leaving(InterfaceId::Private).drain(..);
        let own: Vec<_> = own.map(|frame| frame.to_vec()).collect();
        let is_announcement = |frame: &&Vec<u8>| {
            let ip4 = private.ip4.unwrap().octets();
            let arp = frame[28..32] == ip4 && frame[38..42] == ip4;
            let ndp = frame.len() > 78 && frame[54] == 136;
            let is_to_all = frame[..6] == BROADCAST || frame[..2] == [0x33, 0x33];
            (arp || ndp) && is_to_all && private.mac.is_none_or(|mac| frame[6..12] == mac)
        };
        let found = own.iter().filter(is_announcement).count();
        assert_eq!(found, if announced { 2 } else { 0 }, "{own:?}");
    }
}

#[test]
fn nothing_is_sent_before_the_next_hop_is_known_and_everything_after() {
    let mut testbed = Testbed::plain("");
    testbed.stop(1);
    testbed.run_for(10.0);
    testbed.send(0, false);
    assert_eq!(
        testbed.sent(0).dropped(DropReason::NoSa)
            + testbed.sent(0).dropped(DropReason::NextHopUnknown),
        1
    );
    assert!(testbed.node(0).control().counters().unsent > 0);
    // Questions alone: no message can be sent.
    assert!(testbed.sent_frames(0) < 15);
    testbed.start(1, parse(&file(1, "", &route4(1), "")));
    testbed.wait_until_up(20.0);
}
