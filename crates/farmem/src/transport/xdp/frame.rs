//! Ethernet frames with UDP datagrams: written, and checked once when they come.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tare_neighbor::{is_station, ADVERTISEMENT, SOLICITATION};
use tare_packet::ethernet::{self, Mac};
use tare_packet::ipv4::{self, Ipv4};
use tare_packet::ipv6::{self, Ipv6};
use tare_packet::{checksum, frame, protocol, udp};

/// The addresses of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) mac: Mac,
    pub(super) address: SocketAddr,
}

/// The content of a frame that is for this end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Content<'a> {
    /// A datagram, and its sender.
    Datagram(SocketAddr, &'a [u8]),
    /// An ARP packet.
    Arp(&'a [u8]),
    /// A message of neighbor discovery whose checksum is right, and the station it is from.
    Discovery(Ipv6, Mac, &'a [u8]),
}

/// The reason why a frame is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It is for another station, address or port, or of a kind that nothing here takes.
    Foreign,
    /// It contradicts itself, a checksum is wrong, or it has a source that no answer can go to.
    Malformed,
}

/// Checks a frame.
#[inline]
pub(super) fn read<'a>(bytes: &'a [u8], own: &End) -> Result<Content<'a>, Refusal> {
    let (link, packet) = bytes
        .split_first_chunk::<{ ethernet::HEADER }>()
        .ok_or(Refusal::Malformed)?;
    let [to, from] = [0, 6].map(|at| -> Mac { std::array::from_fn(|n| link[at + n]) });
    if !is_station(from) || from == own.mac {
        return Err(Refusal::Malformed);
    }
    let is_own = to == own.mac;
    match (ethernet::kind(link), own.address.ip()) {
        (Some(ethernet::IPV4), IpAddr::V4(_)) if is_own => read_v4(packet, &own.address),
        (Some(ethernet::IPV6), IpAddr::V6(ip)) if is_own || is_group(to, ip) => {
            read_v6(packet, from, is_own, &own.address)
        }
        (Some(ethernet::ARP), IpAddr::V4(_)) if is_own || to == ethernet::BROADCAST => {
            Ok(Content::Arp(packet))
        }
        _ => Err(Refusal::Foreign),
    }
}

/// Returns true for the multicast MAC address that the neighbors of an address ask for it at.
fn is_group(mac: Mac, ip: Ipv6Addr) -> bool {
    let [.., a, b, c] = ip.octets();
    mac == [0x33, 0x33, 0xff, a, b, c]
}

#[inline]
fn read_v4<'a>(packet: &'a [u8], own: &SocketAddr) -> Result<Content<'a>, Refusal> {
    let ip = Ipv4::parse(packet).map_err(|_| Refusal::Malformed)?;
    let to = IpAddr::from(Ipv4Addr::from_bits(ip.dst));
    if to != own.ip() || ip.protocol != protocol::UDP {
        return Err(Refusal::Foreign);
    }
    let from = IpAddr::from(Ipv4Addr::from_bits(ip.src));
    // Datagrams here are no longer than the MTU, so no sender has a reason for fragments.
    if ip.is_fragment() || !ipv4::is_host(ip.src) || from == to {
        return Err(Refusal::Malformed);
    }
    datagram(from, own, &packet[ip.header_len..ip.total_len])
}

fn read_v6<'a>(
    packet: &'a [u8],
    station: Mac,
    is_own: bool,
    own: &SocketAddr,
) -> Result<Content<'a>, Refusal> {
    let ip = Ipv6::parse(packet).map_err(|_| Refusal::Malformed)?;
    let (from, to) = (Ipv6Addr::from_bits(ip.src), Ipv6Addr::from_bits(ip.dst));
    let body = &packet[ipv6::HEADER..ip.total_len];
    match (ip.next_header, body.first()) {
        (protocol::UDP, _) if is_own && IpAddr::from(to) == own.ip() => {
            if !ipv6::is_host(ip.src) || from == to {
                return Err(Refusal::Malformed);
            }
            datagram(from.into(), own, body)
        }
        (protocol::ICMPV6, Some(&(SOLICITATION | ADVERTISEMENT))) => {
            if frame::icmpv6_sum(from, to, body) != 0 {
                return Err(Refusal::Malformed);
            }
            Ok(Content::Discovery(ip, station, body))
        }
        _ => Err(Refusal::Foreign),
    }
}

#[inline]
fn datagram<'a>(from: IpAddr, own: &SocketAddr, body: &'a [u8]) -> Result<Content<'a>, Refusal> {
    let &[high, low, to_high, to_low, ..] = body else {
        return Err(Refusal::Malformed);
    };
    if u16::from_be_bytes([to_high, to_low]) != own.port() {
        return Err(Refusal::Foreign);
    }
    let port = u16::from_be_bytes([high, low]);
    let payload = frame::udp_payload(from, own.ip(), own.port(), body);
    let payload = payload.ok_or(Refusal::Malformed)?;
    if port == 0 || payload.is_empty() {
        return Err(Refusal::Malformed);
    }
    Ok(Content::Datagram((from, port).into(), payload))
}

/// Returns the bytes of a frame in front of its datagram, for addresses of this family.
pub(super) const fn headers(address: &SocketAddr) -> usize {
    let ip = match address {
        SocketAddr::V4(_) => ipv4::HEADER,
        SocketAddr::V6(_) => ipv6::HEADER,
    };
    ethernet::HEADER + ip + udp::HEADER
}

/// Returns the bytes of a frame with a datagram of so many, padding included.
pub(super) fn len(address: &SocketAddr, datagram: usize) -> usize {
    (headers(address) + datagram).max(ethernet::MIN)
}

/// Writes a frame into a place of [`len`] bytes. The addresses are of one family.
#[inline]
pub(super) fn write(place: &mut [u8], from: &End, to: &End, payload: &[u8]) {
    let udp_len = udp::HEADER + payload.len();
    let Some((link, rest)) = place.split_first_chunk_mut::<{ ethernet::HEADER }>() else {
        return;
    };
    let (ends, body) = match (from.address.ip(), to.address.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            *link = ethernet::header(to.mac, from.mac, ethernet::IPV4);
            let Some((ip, body)) = rest.split_first_chunk_mut::<{ ipv4::HEADER }>() else {
                return;
            };
            let header = ipv4::Repr {
                src: src.to_bits(),
                dst: dst.to_bits(),
                protocol: protocol::UDP,
                ttl: protocol::TTL_DEFAULT,
                tos: 0,
                total_len: (ipv4::HEADER + udp_len) as u16,
                // Never fragmented, so its identification need not tell it from others (RFC 6864).
                fragment: ipv4::DONT_FRAGMENT,
            };
            header.write(ip);
            (checksum::sum(&ip[12..]), body)
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            *link = ethernet::header(to.mac, from.mac, ethernet::IPV6);
            let Some((ip, body)) = rest.split_first_chunk_mut::<{ ipv6::HEADER }>() else {
                return;
            };
            let header = ipv6::Repr {
                src: src.to_bits(),
                dst: dst.to_bits(),
                next_header: protocol::UDP,
                hop_limit: protocol::TTL_DEFAULT,
                traffic_class: 0,
                payload_len: udp_len as u16,
            };
            header.write(ip);
            (checksum::sum(&ip[8..]), body)
        }
        _ => return,
    };
    let (datagram, padding) = body.split_at_mut(udp_len);
    padding.fill(0);
    let (header, data) = datagram.split_at_mut(udp::HEADER);
    let words = [from.address.port(), to.address.port(), udp_len as u16, 0];
    for (place, word) in header.chunks_exact_mut(2).zip(words) {
        place.copy_from_slice(&word.to_be_bytes());
    }
    data.copy_from_slice(payload);
    let sum = ends + u64::from(protocol::UDP) + udp_len as u64 + checksum::sum(datagram);
    let sum = match checksum::finish(sum) {
        // RFC 768: "If the computed checksum is zero, it is transmitted as all ones".
        0 => 0xffff,
        sum => sum,
    };
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn end(last: u8, address: &str) -> End {
        End {
            mac: [2, 0, 0, 0, 0, last],
            address: address.parse().unwrap(),
        }
    }

    fn pairs() -> [[End; 2]; 2] {
        [
            [end(1, "192.0.2.1:7311"), end(2, "192.0.2.2:50000")],
            [end(1, "[2001:db8::1]:7311"), end(2, "[2001:db8::2]:50000")],
        ]
    }

    fn written(from: &End, to: &End, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0xee; len(&to.address, payload.len())];
        write(&mut frame, from, to, payload);
        frame
    }

    #[test]
    fn a_datagram_is_read_as_it_was_written_and_as_by_the_other_implementation() {
        for [node, client] in pairs() {
            for payload in [vec![7; 1], vec![8; 19], (0..=255).collect()] {
                let frame = written(&client, &node, &payload);
                let expected = Content::Datagram(client.address, &payload);
                assert_eq!(read(&frame, &node), Ok(expected));
                let same_port = End {
                    address: (client.address.ip(), 7311).into(),
                    ..client
                };
                let (src, dst) = (client.address.ip(), node.address.ip());
                let other = frame::udp(node.mac, client.mac, src, dst, 7311, &payload).unwrap();
                assert_eq!(written(&same_port, &node, &payload), other);
            }
        }
    }

    #[test]
    fn a_frame_for_another_station_address_port_or_family_is_foreign() {
        let [[node, client], [node6, client6]] = pairs();
        let payload = [1; 64];
        let others = [
            End {
                mac: [2; 6],
                ..node
            },
            end(1, "192.0.2.3:7311"),
            end(1, "192.0.2.1:7312"),
        ];
        for other in others {
            let frame = written(&client, &other, &payload);
            assert_eq!(read(&frame, &node), Err(Refusal::Foreign), "{other:?}");
        }
        let frame = written(&client6, &node6, &payload);
        assert_eq!(read(&frame, &node), Err(Refusal::Foreign));
        let frame = written(&client, &node, &payload);
        assert_eq!(read(&frame, &node6), Err(Refusal::Foreign));
        let mut vlan = frame.clone();
        vlan[12..14].copy_from_slice(&ethernet::VLAN.to_be_bytes());
        assert_eq!(read(&vlan, &node), Err(Refusal::Foreign));
        let mut tcp = frame::ipv4(
            node.mac,
            client.mac,
            Ipv4Addr::new(192, 0, 2, 2),
            Ipv4Addr::new(192, 0, 2, 1),
            protocol::TCP,
            &payload,
        );
        assert_eq!(read(&tcp, &node), Err(Refusal::Foreign));
        tcp[0] |= 1;
        assert_eq!(read(&tcp, &node), Err(Refusal::Foreign));
    }

    #[test]
    fn sources_that_no_answer_can_go_to_are_malformed() {
        let [[node, client], [node6, client6]] = pairs();
        let malformed = |from: End, to: End| {
            let frame = written(&from, &to, &[1; 64]);
            assert_eq!(read(&frame, &to), Err(Refusal::Malformed), "{from:?}");
        };
        for from in [
            "0.0.0.0:9",
            "127.0.0.1:9",
            "224.0.0.1:9",
            "255.255.255.255:9",
        ] {
            malformed(end(2, from), node);
        }
        malformed(end(2, "192.0.2.1:9"), node);
        malformed(end(2, "192.0.2.2:0"), node);
        for from in ["[::]:9", "[::1]:9", "[ff02::1]:9", "[2001:db8::1]:9"] {
            malformed(end(2, from), node6);
        }
        for mac in [[0; 6], [0xff; 6], [1, 0, 0, 0, 0, 9], node.mac] {
            malformed(End { mac, ..client }, node);
            malformed(End { mac, ..client6 }, node6);
        }
    }

    #[test]
    fn every_changed_byte_and_every_cut_of_a_frame_is_refused() {
        for [node, client] in pairs() {
            let frame = written(&client, &node, &[0x5a; 33]);
            for at in (0..frame.len()).filter(|at| !(6..12).contains(at)) {
                let mut damaged = frame.clone();
                damaged[at] ^= 0x10;
                // Traffic class, flow label and hop limit of IPv6 are in no checksum.
                let is_free = node.address.is_ipv6() && (matches!(at, 14..=17 | 21));
                let is_read = matches!(read(&damaged, &node), Ok(Content::Datagram(..)));
                assert!(!is_read || (is_free && at != 14), "byte {at}");
            }
            for len in 0..frame.len() {
                assert!(read(&frame[..len], &node).is_err(), "{len} bytes");
            }
        }
    }

    #[test]
    fn fragments_are_refused_and_options_are_not() {
        let [[node, client], _] = pairs();
        let frame = written(&client, &node, &[1; 64]);
        for fragment in [1 << 13, 1, 0x1fff] {
            let mut part = frame.clone();
            let header = ipv4::Repr {
                src: 0xc000_0202,
                dst: 0xc000_0201,
                protocol: protocol::UDP,
                ttl: 1,
                tos: 0,
                total_len: (frame.len() - 14) as u16,
                fragment,
            };
            part[14..34].copy_from_slice(&header.to_bytes());
            assert_eq!(read(&part, &node), Err(Refusal::Malformed), "{fragment:x}");
        }
        let mut with_options = frame.clone();
        with_options.splice(34..34, [1; 4]);
        with_options[14] = 0x46;
        with_options[16..18].copy_from_slice(&((frame.len() - 14 + 4) as u16).to_be_bytes());
        with_options[24..26].fill(0);
        let sum = checksum::finish(checksum::sum(&with_options[14..38]));
        with_options[24..26].copy_from_slice(&sum.to_be_bytes());
        let expected = Content::Datagram(client.address, &[1; 64]);
        assert_eq!(read(&with_options, &node), Ok(expected));
    }

    #[test]
    fn discovery_comes_to_the_own_station_and_its_group_and_with_the_right_checksum() {
        let [_, [node, client]] = pairs();
        let (IpAddr::V6(src), IpAddr::V6(dst)) = (client.address.ip(), node.address.ip()) else {
            panic!("IPv6");
        };
        let group = [0x33, 0x33, 0xff, 0, 0, 1];
        for kind in [SOLICITATION, ADVERTISEMENT] {
            let mut message = vec![0; 24];
            message[0] = kind;
            for to in [
                node.mac,
                group,
                [0x33, 0x33, 0xff, 0, 0, 2],
                ethernet::BROADCAST,
            ] {
                let is_own = to == node.mac || to == group;
                let mut frame = frame::icmpv6(to, client.mac, src, dst, 255, message.clone());
                let found = read(&frame, &node);
                match found {
                    Ok(Content::Discovery(ip, from, found)) => {
                        assert!(is_own && ip.hop_limit == 255 && from == client.mac);
                        assert_eq!(found[0], kind);
                    }
                    found => assert!(!is_own && found == Err(Refusal::Foreign), "{found:?}"),
                }
                if is_own {
                    frame[60] ^= 1;
                    assert_eq!(read(&frame, &node), Err(Refusal::Malformed));
                }
            }
        }
        let echo = frame::icmpv6(node.mac, client.mac, src, dst, 255, vec![128; 24]);
        assert_eq!(read(&echo, &node), Err(Refusal::Foreign));
    }

    #[test]
    fn over_ipv4_a_datagram_may_lack_a_checksum_and_over_ipv6_it_may_not() {
        for [node, client] in pairs() {
            let mut frame = written(&client, &node, &[1; 64]);
            let place = headers(&node.address) - 2;
            frame[place..place + 2].fill(0);
            assert_eq!(read(&frame, &node).is_ok(), node.address.is_ipv4());
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(
            bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0..5usize, v6: bool,
        ) {
            let own = pairs()[usize::from(v6)][0];
            let mut bytes = bytes;
            let kinds = [ethernet::IPV4, ethernet::IPV6, ethernet::ARP, ethernet::VLAN];
            if let (Some(link), Some(kind)) = (bytes.get_mut(..14), kinds.get(kind)) {
                link.copy_from_slice(&ethernet::header(own.mac, [2; 6], *kind));
            }
            let _ = read(&bytes, &own);
        }
    }
}
