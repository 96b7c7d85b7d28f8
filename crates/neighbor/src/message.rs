//! ARP (RFC 826) and neighbor discovery (RFC 4861) messages.

use std::net::{Ipv4Addr, Ipv6Addr};

use tare_packet::ethernet::{self, Mac, BROADCAST, HEADER};
use tare_packet::wire::{ArpHardware, ArpOperation, ArpPacket, ArpRepr, EthernetAddress};
use tare_packet::{frame, ipv6};

/// Hop limit of neighbor discovery (RFC 4861, 7.1): a message from beyond the link has less.
pub(crate) const ND_HOP_LIMIT: u8 = 255;
/// Bytes of a neighbor solicitation or advertisement without options.
pub(crate) const ND: usize = 24;
/// ICMPv6 type of a neighbor solicitation.
pub const SOLICITATION: u8 = 135;
/// ICMPv6 type of a neighbor advertisement.
pub const ADVERTISEMENT: u8 = 136;
pub(crate) const SOURCE_OPTION: u8 = 1;
pub(crate) const TARGET_OPTION: u8 = 2;

/// Returns true for frames with ARP or neighbor discovery, which only stations of the link can have
/// sent: routers forward neither ARP nor a hop limit of 255. Nothing else is checked.
pub fn is_neighbor_frame(frame: &[u8]) -> bool {
    match ethernet::kind(frame) {
        Some(ethernet::ARP) => true,
        Some(ethernet::IPV6) => {
            let packet = frame.get(HEADER..).unwrap_or_default();
            let Some((header, message)) = packet.split_first_chunk::<{ ipv6::HEADER }>() else {
                return false;
            };
            header[6] == frame::ICMPV6
                && header[7] == ND_HOP_LIMIT
                && matches!(message.first(), Some(&(SOLICITATION | ADVERTISEMENT)))
        }
        _ => false,
    }
}

/// Returns a frame with an ARP packet.
pub(crate) fn arp_frame(
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
    frame.resize(frame.len().max(ethernet::MIN), 0);
    frame
}

/// The fields of an ARP packet that matter here.
pub(crate) struct Arp {
    pub(crate) operation: ArpOperation,
    pub(crate) source: (Mac, Ipv4Addr),
    pub(crate) target: Ipv4Addr,
}

impl Arp {
    pub(crate) fn parse(bytes: &[u8]) -> Option<Arp> {
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

/// Returns an ARP request, broadcast or to one station.
pub(crate) fn arp_request(
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

/// Returns a neighbor solicitation, to the solicited-node multicast address or to one station.
pub(crate) fn solicitation(
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
    frame::icmpv6(mac, from, source, dst, ND_HOP_LIMIT, message)
}

/// Returns a neighbor advertisement for an address of our own.
pub(crate) fn advertisement(
    to: Mac,
    from: Mac,
    (own, dst): (Ipv6Addr, Ipv6Addr),
    solicited: bool,
) -> Vec<u8> {
    let mut message = vec![0; ND];
    message[0] = ADVERTISEMENT;
    // Flags: R, we route; S, solicited; O, override.
    message[4] = 0x80 | if solicited { 0x40 } else { 0 } | 0x20;
    message[8..].copy_from_slice(&own.octets());
    option(&mut message, TARGET_OPTION, from);
    frame::icmpv6(to, from, own, dst, ND_HOP_LIMIT, message)
}

fn option(message: &mut Vec<u8>, kind: u8, mac: Mac) {
    message.extend_from_slice(&[kind, 1]);
    message.extend_from_slice(&mac);
}

/// The all-nodes multicast address.
pub(crate) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Returns the solicited-node multicast address (RFC 4291, 2.7.1).
pub(crate) fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0);
    Ipv6Addr::from_bits(group.to_bits() | address.to_bits() & 0xff_ffff)
}

/// Returns the MAC address of a multicast address (RFC 2464, 7).
pub(crate) fn multicast_mac(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

/// Returns true for the MAC address of one station: neither a group nor zero.
pub fn is_station(mac: Mac) -> bool {
    mac[0] & 1 == 0 && mac != [0; 6]
}
