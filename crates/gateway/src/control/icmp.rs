//! ICMP to this gateway: echo, and paths that take less than was thought.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tare_packet::{checksum, ipv4, ipv6};

use crate::dataplane::esp;

pub(super) const ECHO_REQUEST4: u8 = 8;
pub(super) const UNREACHABLE4: u8 = 3;
pub(super) const ECHO_REQUEST6: u8 = 128;
pub(super) const TOO_BIG6: u8 = 2;

const FRAGMENTATION_NEEDED: u8 = 4;

/// The reply to an echo request, with checksum.
pub(super) fn reply4(request: &[u8]) -> Vec<u8> {
    let mut reply = request.to_vec();
    if let Some(start) = reply.first_chunk_mut::<4>() {
        *start = [0; 4];
    }
    let sum = checksum::finish(checksum::sum(&reply));
    if let Some(place) = reply.get_mut(2..4) {
        place.copy_from_slice(&sum.to_be_bytes());
    }
    reply
}

/// The reply to an echo request, without checksum.
pub(super) fn reply6(request: &[u8]) -> Vec<u8> {
    let mut reply = request.to_vec();
    if let Some(start) = reply.first_chunk_mut::<4>() {
        *start = [129, 0, 0, 0];
    }
    reply
}

/// An ESP packet that was too long for its path.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooBig {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    pub(super) spi: u32,
    /// The lower half of its sequence number.
    pub(super) sequence: u32,
    /// Its bytes.
    pub(super) len: u32,
    /// Bytes that the path takes; 0 where the router does not say.
    pub(super) mtu: u32,
}

impl TooBig {
    /// Of an ICMP message "fragmentation needed" (RFC 1191, 4).
    pub(super) fn v4(message: &[u8]) -> Option<TooBig> {
        let (head, quoted) = message.split_first_chunk::<8>()?;
        if head[..2] != [UNREACHABLE4, FRAGMENTATION_NEEDED] {
            return None;
        }
        let ip = quoted.first_chunk::<{ ipv4::HEADER }>()?;
        let address = |at: usize| Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]);
        // Our packets have no options; a fragment of them is none of ours.
        let ours = ip[0] == ipv4::VERSION_AND_LENGTH
            && ip[9] == esp::PROTOCOL
            && ip[6] & 0x3f == 0
            && ip[7] == 0;
        let (spi, sequence) = esp_header(quoted.get(ipv4::HEADER..)?)?;
        Some(TooBig {
            src: address(12).into(),
            dst: address(16).into(),
            spi,
            sequence,
            len: u16::from_be_bytes([ip[2], ip[3]]).into(),
            mtu: u16::from_be_bytes([head[6], head[7]]).into(),
        })
        .filter(|_| ours)
    }

    /// Of an ICMPv6 message "packet too big" (RFC 4443, 3.2).
    pub(super) fn v6(message: &[u8]) -> Option<TooBig> {
        let (head, quoted) = message.split_first_chunk::<8>()?;
        let ip = quoted.first_chunk::<{ ipv6::HEADER }>()?;
        let address = |bytes: &[u8]| Some(Ipv6Addr::from(*bytes.first_chunk::<16>()?));
        let ours = ip[0] >> 4 == 6 && ip[6] == esp::PROTOCOL;
        let (spi, sequence) = esp_header(quoted.get(ipv6::HEADER..)?)?;
        Some(TooBig {
            src: address(&ip[8..])?.into(),
            dst: address(&ip[24..])?.into(),
            spi,
            sequence,
            len: ipv6::HEADER as u32 + u32::from(u16::from_be_bytes([ip[4], ip[5]])),
            mtu: u32::from_be_bytes([head[4], head[5], head[6], head[7]]),
        })
        .filter(|_| ours && head[..2] == [TOO_BIG6, 0])
    }
}

/// Returns SPI and sequence number of a quoted packet, which are all of it that RFC 792 has quoted.
fn esp_header(quoted: &[u8]) -> Option<(u32, u32)> {
    let header = quoted.first_chunk::<8>()?;
    let word = |at: usize| {
        u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    Some((word(0), word(4)))
}
