//! The frames of a test.

use std::net::IpAddr;

use ipnet::IpNet;
use tare_packet::imix::PacketSize;
use tare_packet::protocol::{NO_NEXT_HEADER, TTL_DEFAULT as TTL, UDP};
use tare_packet::udp::{DISCARD as PORT, DYNAMIC_FIRST as FIRST_PORT, HEADER as UDP_HEADER};
use tare_packet::{checksum, ethernet, ipv4, ipv6};

use super::{Meta, TestPrefix};

/// The load tester, where the configuration does not say where the private interface's next hop is.
const SOURCE_DEFAULT: ethernet::Mac = [2, 0, 0, 0, 0, 0];
/// Frames of a test with few routes: enough for a load balancer to see many flows.
const FRAMES_AT_LEAST: usize = 1000;

/// The frames of a test: every route sees every size of the period, equally often and in its order,
/// and neighbours are of different routes.
///
/// Each is Ethernet, IPv4 or IPv6, and UDP with zeros, without the Ethernet checksum. An IPv6 frame
/// too short for UDP has "no next header" instead.
#[derive(Clone, Debug)]
pub struct Traffic {
    destination: ethernet::Mac,
    source: ethernet::Mac,
    to: TestPrefix,
    from: TestPrefix,
    routes: u32,
    size: PacketSize,
    frames: usize,
}

impl Traffic {
    pub(super) fn new(meta: &Meta, destination: ethernet::Mac) -> Traffic {
        let once = meta.routes as usize * meta.packet_size.period().len();
        Traffic {
            destination,
            source: meta.private.nexthop_mac.unwrap_or(SOURCE_DEFAULT),
            to: meta.route_prefix,
            from: meta.source_prefix,
            routes: meta.routes,
            size: meta.packet_size,
            frames: once * (FRAMES_AT_LEAST / once).max(1),
        }
    }

    /// Returns the number of frames: at most 120,000.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Bytes of all frames.
    pub fn bytes(&self) -> u64 {
        (0..self.frames).map(|i| u64::from(self.size_of(i))).sum()
    }

    /// All frames.
    pub fn iter(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        (0..self.frames).map(|i| self.frame(i))
    }

    /// The number of the route, from 1, that frame `i` takes.
    pub fn route_of(&self, i: usize) -> u32 {
        (i % self.routes as usize) as u32 + 1
    }

    fn size_of(&self, i: usize) -> u16 {
        let round = i / self.routes as usize;
        let period = self.size.period();
        // Each route begins somewhere else in the period, so that sizes are mixed across routes
        // too.
        let at = (round + i % self.routes as usize) % period.len();
        period.get(at).copied().unwrap_or_default()
    }

    /// Frame `i`; those from [`frames`](Self::frames) on repeat.
    pub fn frame(&self, i: usize) -> Vec<u8> {
        let i = i % self.frames;
        let n = self.route_of(i);
        let (to, from) = (self.to.part(n, self.routes), self.from.part(n, self.routes));
        // Pairs of neighbours, so that a gateway that is its own peer does not see packets to and
        // from one address.
        let pair = (i / self.routes as usize) as u32 % pairs(to);
        let (dst, src) = (host(to, 1 + 2 * pair), host(from, 2 + 2 * pair));
        let port = FIRST_PORT + (i % usize::from(u16::MAX - FIRST_PORT)) as u16;
        let size = usize::from(self.size_of(i));
        let mut frame = Vec::with_capacity(size);
        let kind = match dst {
            IpAddr::V4(_) => ethernet::IPV4,
            IpAddr::V6(_) => ethernet::IPV6,
        };
        frame.extend(self.destination);
        frame.extend(self.source);
        frame.extend(kind.to_be_bytes());
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let mut header = [0; ipv4::HEADER];
                header[0] = ipv4::VERSION_AND_LENGTH;
                header[2..4].copy_from_slice(&((size - ethernet::HEADER) as u16).to_be_bytes());
                header[8] = TTL;
                header[9] = UDP;
                header[12..16].copy_from_slice(&src.octets());
                header[16..].copy_from_slice(&dst.octets());
                let sum = checksum::finish(checksum::sum(&header));
                header[10..12].copy_from_slice(&sum.to_be_bytes());
                frame.extend(header);
                datagram(&mut frame, size, port, &src.octets(), &dst.octets());
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let payload = size - ethernet::HEADER - ipv6::HEADER;
                let next = if payload < UDP_HEADER {
                    NO_NEXT_HEADER
                } else {
                    UDP
                };
                frame.extend([0x60, 0, 0, 0]);
                frame.extend((payload as u16).to_be_bytes());
                frame.extend([next, TTL]);
                frame.extend(src.octets());
                frame.extend(dst.octets());
                if next == UDP {
                    datagram(&mut frame, size, port, &src.octets(), &dst.octets());
                }
            }
            // Both prefixes are of one family.
            _ => {}
        }
        frame.resize(size, 0);
        frame
    }
}

/// Adds the UDP header of a datagram of zeros that fills the frame up to `size`.
fn datagram(frame: &mut Vec<u8>, size: usize, port: u16, src: &[u8], dst: &[u8]) {
    let len = size - frame.len();
    let words = [port, PORT, len as u16];
    let sum: u64 = words.iter().copied().map(u64::from).sum();
    // A checksum of zero would say that there is none.
    let sum = match checksum::finish(sum + checksum::pseudo_header(src, dst, UDP, len)) {
        0 => u16::MAX,
        sum => sum,
    };
    for word in words.into_iter().chain([sum]) {
        frame.extend(word.to_be_bytes());
    }
}

/// The number of pairs of hosts that are used of a network.
fn pairs(net: IpNet) -> u32 {
    const MOST: u32 = 120;
    let host_bits = net.max_prefix_len() - net.prefix_len();
    match host_bits {
        0..=8 => (((1 << host_bits) - 2) / 2).clamp(1, MOST),
        _ => MOST,
    }
}

/// The address with this number in a network.
fn host(net: IpNet, number: u32) -> IpAddr {
    match net {
        IpNet::V4(net) => IpAddr::V4((net.addr().to_bits() | number).into()),
        IpNet::V6(net) => IpAddr::V6((net.addr().to_bits() | u128::from(number)).into()),
    }
}
