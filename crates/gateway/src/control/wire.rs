//! Frames that the control side sends.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tare_packet::ethernet::{self, Mac, BROADCAST};
use tare_packet::protocol::TTL_DEFAULT as TTL;
pub(super) use tare_packet::protocol::{ICMP, ICMPV6, UDP};
use tare_packet::udp::HEADER as UDP_HEADER;
use tare_packet::wire::{ArpHardware, ArpOperation, ArpPacket, ArpRepr, EthernetAddress};
use tare_packet::{checksum, ipv4, ipv6};

/// Hops that neighbor discovery has (RFC 4861, 7.1), so that it cannot come from beyond the link.
pub(super) const ND_HOP_LIMIT: u8 = 255;

/// Bytes of a neighbor solicitation or advertisement without options.
pub(super) const ND: usize = 24;
pub(super) const SOLICITATION: u8 = 135;
pub(super) const ADVERTISEMENT: u8 = 136;
pub(super) const SOURCE_OPTION: u8 = 1;
pub(super) const TARGET_OPTION: u8 = 2;

/// An IPv4 packet in a frame.
pub(super) fn ipv4_frame(
    to: Mac,
    from: Mac,
    src: Ipv4Addr,
    dst: Ipv4Addr,
    protocol: u8,
    payload: &[u8],
) -> Vec<u8> {
    let header = ipv4::Repr {
        src: src.to_bits(),
        dst: dst.to_bits(),
        protocol,
        ttl: TTL,
        tos: 0,
        total_len: (ipv4::HEADER + payload.len()) as u16,
        // Never fragmented, so its identification need not tell it from others (RFC 6864).
        fragment: ipv4::DONT_FRAGMENT,
    };
    let mut frame = ethernet::header(to, from, ethernet::IPV4).to_vec();
    frame.extend_from_slice(&header.to_bytes());
    frame.extend_from_slice(payload);
    padded(frame)
}

/// An IPv6 packet in a frame.
pub(super) fn ipv6_frame(
    to: Mac,
    from: Mac,
    src: Ipv6Addr,
    dst: Ipv6Addr,
    (next_header, hop_limit): (u8, u8),
    payload: &[u8],
) -> Vec<u8> {
    let header = ipv6::Repr {
        src: src.to_bits(),
        dst: dst.to_bits(),
        next_header,
        hop_limit,
        traffic_class: 0,
        payload_len: payload.len() as u16,
    };
    let mut frame = ethernet::header(to, from, ethernet::IPV6).to_vec();
    frame.extend_from_slice(&header.to_bytes());
    frame.extend_from_slice(payload);
    padded(frame)
}

/// The shortest that a wire takes.
fn padded(mut frame: Vec<u8>) -> Vec<u8> {
    if frame.len() < ethernet::MIN {
        frame.resize(ethernet::MIN, 0);
    }
    frame
}

/// An ICMPv6 message in a frame; its checksum is filled in.
pub(super) fn icmpv6_frame(
    to: Mac,
    from: Mac,
    src: Ipv6Addr,
    dst: Ipv6Addr,
    hop_limit: u8,
    mut message: Vec<u8>,
) -> Vec<u8> {
    if let Some(place) = message.get_mut(2..4) {
        place.fill(0);
    }
    let sum = sum_v6(src, dst, ICMPV6, &message);
    if let Some(place) = message.get_mut(2..4) {
        place.copy_from_slice(&sum.to_be_bytes());
    }
    ipv6_frame(to, from, src, dst, (ICMPV6, hop_limit), &message)
}

/// The checksum of a message with its pseudo-header: zero where the message holds the right one.
pub(super) fn sum_v6(src: Ipv6Addr, dst: Ipv6Addr, protocol: u8, message: &[u8]) -> u16 {
    let pseudo = checksum::pseudo_header(&src.octets(), &dst.octets(), protocol, message.len());
    checksum::finish(pseudo + checksum::sum(message))
}

/// A UDP datagram in a frame; none where the families of the addresses differ.
pub(super) fn udp_frame(
    to: Mac,
    from: Mac,
    src: IpAddr,
    dst: IpAddr,
    port: u16,
    payload: &[u8],
) -> Option<Vec<u8>> {
    let len = UDP_HEADER + payload.len();
    let mut datagram = Vec::with_capacity(len);
    datagram.extend_from_slice(&port.to_be_bytes());
    datagram.extend_from_slice(&port.to_be_bytes());
    datagram.extend_from_slice(&u16::try_from(len).ok()?.to_be_bytes());
    datagram.extend_from_slice(&[0; 2]);
    datagram.extend_from_slice(payload);
    let sum = match udp_sum(src, dst, &datagram)? {
        // RFC 768: "If the computed checksum is zero, it is transmitted as all ones".
        0 => 0xffff,
        sum => sum,
    };
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Some(ipv4_frame(to, from, src, dst, UDP, &datagram)),
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            Some(ipv6_frame(to, from, src, dst, (UDP, TTL), &datagram))
        }
        _ => None,
    }
}

fn udp_sum(src: IpAddr, dst: IpAddr, datagram: &[u8]) -> Option<u16> {
    let pseudo = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            checksum::pseudo_header(&src.octets(), &dst.octets(), UDP, datagram.len())
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            checksum::pseudo_header(&src.octets(), &dst.octets(), UDP, datagram.len())
        }
        _ => return None,
    };
    Some(checksum::finish(pseudo + checksum::sum(datagram)))
}

/// The payload of a datagram to `port`, if it is sound: its length and checksum are right.
pub(super) fn udp_payload(src: IpAddr, dst: IpAddr, port: u16, bytes: &[u8]) -> Option<&[u8]> {
    let header = bytes.first_chunk::<UDP_HEADER>()?;
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let datagram = bytes.get(..usize::from(word(4)))?;
    let payload = datagram.get(UDP_HEADER..)?;
    // RFC 768: "An all zero transmitted checksum value means that the transmitter generated no
    // checksum"; RFC 8200, 8.1, wants one over IPv6.
    let unsummed = word(6) == 0 && src.is_ipv4();
    (word(2) == port && (unsummed || udp_sum(src, dst, datagram) == Some(0))).then_some(payload)
}

/// An ARP packet in a frame.
pub(super) fn arp_frame(
    to: Mac,
    from: Mac,
    operation: ArpOperation,
    source: Ipv4Addr,
    target: (Mac, Ipv4Addr),
) -> Vec<u8> {
    let repr = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(from),
        source_protocol_addr: source,
        target_hardware_addr: EthernetAddress(target.0),
        target_protocol_addr: target.1,
    };
    let mut frame = ethernet::header(to, from, ethernet::ARP).to_vec();
    let mut packet = vec![0; repr.buffer_len()];
    repr.emit(&mut ArpPacket::new_unchecked(&mut packet));
    frame.extend_from_slice(&packet);
    padded(frame)
}

/// An ARP packet, as far as it is of interest.
pub(super) struct Arp {
    pub(super) operation: ArpOperation,
    pub(super) source: (Mac, Ipv4Addr),
    pub(super) target: Ipv4Addr,
}

impl Arp {
    pub(super) fn parse(bytes: &[u8]) -> Option<Arp> {
        let packet = ArpPacket::new_checked(bytes).ok()?;
        // Other kinds of hardware have addresses of other lengths.
        let ethernet = packet.hardware_type() == ArpHardware::Ethernet;
        match ArpRepr::parse(&packet).ok()? {
            ArpRepr::EthernetIpv4 {
                operation,
                source_hardware_addr,
                source_protocol_addr,
                target_protocol_addr,
                ..
            } if ethernet => Some(Arp {
                operation,
                source: (source_hardware_addr.0, source_protocol_addr),
                target: target_protocol_addr,
            }),
            _ => None,
        }
    }
}

/// A question for a station, to all or to one.
pub(super) fn arp_request(
    to: Option<Mac>,
    from: Mac,
    source: Ipv4Addr,
    target: Ipv4Addr,
) -> Vec<u8> {
    let operation = ArpOperation::Request;
    arp_frame(
        to.unwrap_or(BROADCAST),
        from,
        operation,
        source,
        ([0; 6], target),
    )
}

/// A neighbor solicitation, to all that the target may be or to one.
pub(super) fn solicitation(
    to: Option<Mac>,
    from: Mac,
    source: Ipv6Addr,
    target: Ipv6Addr,
) -> Vec<u8> {
    let mut message = vec![0; ND];
    message[0] = SOLICITATION;
    message[8..].copy_from_slice(&target.octets());
    option(&mut message, SOURCE_OPTION, from);
    let (mac, dst) = match to {
        Some(mac) => (mac, target),
        None => {
            let group = solicited_node(target);
            (multicast_mac(group), group)
        }
    };
    icmpv6_frame(mac, from, source, dst, ND_HOP_LIMIT, message)
}

/// A neighbor advertisement for an address of our own.
pub(super) fn advertisement(
    to: Mac,
    from: Mac,
    (own, dst): (Ipv6Addr, Ipv6Addr),
    solicited: bool,
) -> Vec<u8> {
    let mut message = vec![0; ND];
    message[0] = ADVERTISEMENT;
    // R: we route. S: an answer. O: it replaces what was known.
    message[4] = 0x80 | if solicited { 0x40 } else { 0 } | 0x20;
    message[8..].copy_from_slice(&own.octets());
    option(&mut message, TARGET_OPTION, from);
    icmpv6_frame(to, from, own, dst, ND_HOP_LIMIT, message)
}

fn option(message: &mut Vec<u8>, kind: u8, mac: Mac) {
    message.extend_from_slice(&[kind, 1]);
    message.extend_from_slice(&mac);
}

/// All nodes of the link.
pub(super) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The group that asks for an address (RFC 4291, 2.7.1).
pub(super) fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0);
    Ipv6Addr::from_bits(group.to_bits() | address.to_bits() & 0xff_ffff)
}

/// The station address of a group (RFC 2464, 7).
pub(super) fn multicast_mac(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

/// Whether a frame may be sent to this station as to one.
pub(super) fn is_station(mac: Mac) -> bool {
    mac[0] & 1 == 0 && mac != [0; 6]
}
