//! Whole frames with one packet: what a control plane sends and receives, one at a time. Packets by
//! the million are written in place, with [`crate::ipv4`] and [`crate::ipv6`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::checksum;
use crate::ethernet::{self, Mac};

/// IP protocol number of ICMP.
pub const ICMP: u8 = 1;
/// IP protocol number of UDP.
pub const UDP: u8 = 17;
/// Next header of ICMPv6.
pub const ICMPV6: u8 = 58;

/// TTL and hop limit of packets that are not restricted to the link.
pub const TTL: u8 = 64;

const UDP_HEADER: usize = 8;

/// Returns a frame with an IPv4 packet.
pub fn ipv4(
    to: Mac,
    from: Mac,
    src: Ipv4Addr,
    dst: Ipv4Addr,
    protocol: u8,
    payload: &[u8],
) -> Vec<u8> {
    let header = crate::ipv4::Repr {
        src: src.to_bits(),
        dst: dst.to_bits(),
        protocol,
        ttl: TTL,
        tos: 0,
        total_len: (crate::ipv4::HEADER + payload.len()) as u16,
        // Never fragmented, so its identification need not tell it from others (RFC 6864).
        fragment: 0x4000,
    };
    let mut frame = ethernet::header(to, from, ethernet::IPV4).to_vec();
    frame.extend_from_slice(&header.to_bytes());
    frame.extend_from_slice(payload);
    padded(frame)
}

/// Returns a frame with an IPv6 packet; the pair is its next header and hop limit.
pub fn ipv6(
    to: Mac,
    from: Mac,
    src: Ipv6Addr,
    dst: Ipv6Addr,
    (next_header, hop_limit): (u8, u8),
    payload: &[u8],
) -> Vec<u8> {
    let header = crate::ipv6::Repr {
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

/// Pads to the shortest frame that Ethernet allows.
fn padded(mut frame: Vec<u8>) -> Vec<u8> {
    if frame.len() < ethernet::MIN {
        frame.resize(ethernet::MIN, 0);
    }
    frame
}

/// Returns a frame with an ICMPv6 message, whose checksum is filled in.
pub fn icmpv6(
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
    let sum = icmpv6_sum(src, dst, &message);
    if let Some(place) = message.get_mut(2..4) {
        place.copy_from_slice(&sum.to_be_bytes());
    }
    ipv6(to, from, src, dst, (ICMPV6, hop_limit), &message)
}

/// Returns the checksum of an ICMPv6 message with its pseudo-header: 0 if the message holds the
/// right one.
pub fn icmpv6_sum(src: Ipv6Addr, dst: Ipv6Addr, message: &[u8]) -> u16 {
    let pseudo = checksum::pseudo_header(&src.octets(), &dst.octets(), ICMPV6, message.len());
    checksum::finish(pseudo + checksum::sum(message))
}

/// Returns a frame with a UDP datagram from and to the same port; `None` if the families of the
/// addresses differ.
pub fn udp(
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
        (IpAddr::V4(src), IpAddr::V4(dst)) => Some(ipv4(to, from, src, dst, UDP, &datagram)),
        (IpAddr::V6(src), IpAddr::V6(dst)) => Some(ipv6(to, from, src, dst, (UDP, TTL), &datagram)),
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

/// Returns the payload of a datagram to `port`, if its length and checksum are right.
pub fn udp_payload(src: IpAddr, dst: IpAddr, port: u16, bytes: &[u8]) -> Option<&[u8]> {
    let header = bytes.first_chunk::<UDP_HEADER>()?;
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let datagram = bytes.get(..usize::from(word(4)))?;
    let payload = datagram.get(UDP_HEADER..)?;
    // RFC 768: "An all zero transmitted checksum value means that the transmitter generated no
    // checksum"; RFC 8200, 8.1, wants one over IPv6.
    let unsummed = word(6) == 0 && src.is_ipv4();
    (word(2) == port && (unsummed || udp_sum(src, dst, datagram) == Some(0))).then_some(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: (Mac, Ipv4Addr) = ([2; 6], Ipv4Addr::new(192, 0, 2, 1));
    const B: (Mac, Ipv4Addr) = ([4; 6], Ipv4Addr::new(192, 0, 2, 2));

    #[test]
    fn a_datagram_is_read_as_it_was_written_and_no_other_way() {
        let (src, dst) = (IpAddr::V4(A.1), IpAddr::V4(B.1));
        let frame = udp(B.0, A.0, src, dst, 303, b"message").unwrap();
        assert_eq!(frame.len(), ethernet::MIN);
        let datagram = &frame[ethernet::HEADER + crate::ipv4::HEADER..];
        assert_eq!(udp_payload(src, dst, 303, datagram), Some(&b"message"[..]));
        assert_eq!(udp_payload(src, dst, 304, datagram), None);
        for len in 0..15 {
            assert_eq!(udp_payload(src, dst, 303, &datagram[..len]), None, "{len}");
        }
        let mut damaged = datagram.to_vec();
        damaged[9] ^= 1;
        assert_eq!(udp_payload(src, dst, 303, &damaged), None);
        assert_eq!(
            udp(B.0, A.0, src, Ipv6Addr::LOCALHOST.into(), 303, b""),
            None
        );
    }

    #[test]
    fn an_icmpv6_message_holds_the_right_checksum() {
        let (src, dst) = (Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED);
        let frame = icmpv6(
            [2; 6],
            [4; 6],
            src,
            dst,
            TTL,
            vec![128, 0, 9, 9, 1, 2, 3, 4, 5],
        );
        let message = &frame[ethernet::HEADER + crate::ipv6::HEADER..][..9];
        assert_eq!(icmpv6_sum(src, dst, message), 0);
        assert_ne!(icmpv6_sum(src, dst, &message[..8]), 0);
    }
}
