//! Ethernet, IP and TCP headers, read once from private copies and written into private memory.
//!
//! `tare_packet` checks an IP header together with the whole packet behind it. Here only the first
//! bytes of a frame are private, so the fields are read with smoltcp's `wire` and the lengths are
//! checked against the frame's.

use std::net::IpAddr;

use tare_packet::ethernet::{self, Mac};
use tare_packet::wire::{Ipv4Packet, Ipv6Packet, TcpOption, TcpPacket};
use tare_packet::{checksum, ipv4, ipv6, protocol};

use crate::tcp::transmit::{Offload, Segmentation};

/// Bytes that are copied of each frame: Ethernet, the longest IPv4 and the longest TCP header.
pub(crate) const PREFIX: usize = ethernet::HEADER + 60 + 60;
/// Bytes of a TCP header without options.
pub(crate) const TCP: usize = 20;
/// The place of the checksum in a TCP header.
const TCP_CHECKSUM: usize = 16;

/// The addresses and ports of a connection, as its local end sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// The address of this end.
    pub local: IpAddr,
    /// The address of the peer.
    pub remote: IpAddr,
    /// The port of this end.
    pub local_port: u16,
    /// The port of the peer.
    pub remote_port: u16,
}

impl Tuple {
    /// Bytes of the IP header of its packets.
    pub(crate) fn ip_header(&self) -> usize {
        if self.local.is_ipv4() {
            ipv4::HEADER
        } else {
            ipv6::HEADER
        }
    }
}

/// The reason why a frame was dropped before it reached a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// Truncated, or it contradicts itself.
    Malformed,
    /// Not for this guest, or of a protocol that it does not have: fragments and IPv6 extension
    /// headers too.
    NotForUs,
    /// The IP or transport checksum is wrong.
    Checksum,
    /// From an address that no single host has.
    Source,
}

/// An IP packet's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ip {
    pub(crate) source: IpAddr,
    pub(crate) target: IpAddr,
    pub(crate) protocol: u8,
    /// The payload, from the start of the frame.
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Ip {
    /// Reads the header of a frame of `frame_len` bytes, of which `prefix` is the start.
    pub(crate) fn parse(prefix: &[u8], frame_len: usize) -> Result<Ip, Dropped> {
        let packet = prefix.get(ethernet::HEADER..).ok_or(Dropped::Malformed)?;
        let kind = ethernet::kind(prefix).ok_or(Dropped::Malformed)?;
        let (ip, is_host) = match kind {
            ethernet::IPV4 => Ip::parse4(packet)?,
            ethernet::IPV6 => Ip::parse6(packet)?,
            _ => return Err(Dropped::NotForUs),
        };
        if ip.end > frame_len || ip.start > ip.end {
            return Err(Dropped::Malformed);
        }
        if !is_host {
            return Err(Dropped::Source);
        }
        Ok(ip)
    }

    fn parse4(bytes: &[u8]) -> Result<(Ip, bool), Dropped> {
        if bytes.len() < ipv4::HEADER {
            return Err(Dropped::Malformed);
        }
        let packet = Ipv4Packet::new_unchecked(bytes);
        let header_len = usize::from(packet.header_len());
        if packet.version() != 4 || !(ipv4::HEADER..=bytes.len()).contains(&header_len) {
            return Err(Dropped::Malformed);
        }
        if checksum::finish(checksum::sum(&bytes[..header_len])) != 0 {
            return Err(Dropped::Checksum);
        }
        if packet.more_frags() || packet.frag_offset() != 0 {
            return Err(Dropped::NotForUs);
        }
        let source = packet.src_addr();
        let ip = Ip {
            source: source.into(),
            target: packet.dst_addr().into(),
            protocol: packet.next_header().into(),
            start: ethernet::HEADER + header_len,
            end: ethernet::HEADER + usize::from(packet.total_len()),
        };
        Ok((ip, ipv4::is_host(source.to_bits())))
    }

    fn parse6(bytes: &[u8]) -> Result<(Ip, bool), Dropped> {
        if bytes.len() < ipv6::HEADER {
            return Err(Dropped::Malformed);
        }
        let packet = Ipv6Packet::new_unchecked(bytes);
        if packet.version() != 6 {
            return Err(Dropped::Malformed);
        }
        let source = packet.src_addr();
        let start = ethernet::HEADER + ipv6::HEADER;
        let ip = Ip {
            source: source.into(),
            target: packet.dst_addr().into(),
            protocol: packet.next_header().into(),
            start,
            end: start + usize::from(packet.payload_len()),
        };
        // A station that asks whether an address is in use has none yet (RFC 4862, 5.4); the link
        // takes nothing else from there.
        let is_unspecified = source.is_unspecified() && ip.protocol == protocol::ICMPV6;
        Ok((ip, is_unspecified || ipv6::is_host(source.to_bits())))
    }

    /// Returns the sum of the pseudo-header for a payload of `len` bytes.
    pub(crate) fn pseudo_sum(&self) -> u64 {
        pseudo_sum(
            self.source,
            self.target,
            self.protocol,
            self.end - self.start,
        )
    }
}

/// Returns the sum of a pseudo-header; both addresses are of one family.
pub(crate) fn pseudo_sum(source: IpAddr, target: IpAddr, protocol: u8, len: usize) -> u64 {
    let mut addresses = [0; 32];
    for (address, place) in [source, target].iter().zip(addresses.chunks_mut(16)) {
        match address {
            IpAddr::V4(address) => place[..4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => place.copy_from_slice(&address.octets()),
        }
    }
    checksum::pseudo_header(&addresses[..16], &addresses[16..], protocol, len)
}

/// The options of a segment; what is malformed ends the list, as in other stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) mss: Option<u16>,
    pub(crate) scale: Option<u8>,
    pub(crate) sack_permitted: bool,
    pub(crate) sack: [Option<(u32, u32)>; 3],
    /// TSval and TSecr.
    pub(crate) timestamps: Option<(u32, u32)>,
}

impl Options {
    fn parse(mut bytes: &[u8]) -> Options {
        let mut options = Options::default();
        while let Ok((rest, option)) = TcpOption::parse(bytes) {
            match option {
                TcpOption::EndOfList => break,
                TcpOption::MaxSegmentSize(mss) => options.mss = Some(mss),
                // RFC 7323, 2.3: a shift of more than 14 is to be taken as 14.
                TcpOption::WindowScale(scale) => options.scale = Some(scale.min(14)),
                TcpOption::SackPermitted => options.sack_permitted = true,
                TcpOption::SackRange(ranges) => options.sack = ranges,
                TcpOption::TimeStamp { tsval, tsecr } => options.timestamps = Some((tsval, tsecr)),
                _ => {}
            }
            bytes = rest;
        }
        options
    }

    /// Writes the options, padded to a multiple of four, and returns their length.
    pub(crate) fn write(&self, to: &mut [u8; 40]) -> usize {
        let mut len = 0;
        let mut put = |option: TcpOption<'_>, padding: usize| {
            to[len..len + padding].fill(1);
            option.emit(&mut to[len + padding..]);
            len += padding + option.buffer_len();
        };
        if let Some(mss) = self.mss {
            put(TcpOption::MaxSegmentSize(mss), 0);
        }
        if let Some(scale) = self.scale {
            put(TcpOption::WindowScale(scale), 1);
        }
        if self.sack_permitted {
            put(TcpOption::SackPermitted, 2);
        }
        if let Some((tsval, tsecr)) = self.timestamps {
            put(TcpOption::TimeStamp { tsval, tsecr }, 2);
        }
        if self.sack[0].is_some() {
            put(TcpOption::SackRange(self.sack), 2);
        }
        len
    }
}

/// A TCP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) source_port: u16,
    pub(crate) target_port: u16,
    pub(crate) seq: u32,
    /// The acknowledgment number, if the flag ACK is set.
    pub(crate) ack: Option<u32>,
    pub(crate) syn: bool,
    pub(crate) fin: bool,
    pub(crate) rst: bool,
    pub(crate) psh: bool,
    pub(crate) window: u16,
    pub(crate) options: Options,
}

impl Segment {
    /// Reads the header at the start of `bytes` and returns it with its length.
    pub(crate) fn parse(bytes: &[u8]) -> Result<(Segment, usize), Dropped> {
        let packet = TcpPacket::new_checked(bytes).map_err(|_| Dropped::Malformed)?;
        let segment = Segment {
            source_port: packet.src_port(),
            target_port: packet.dst_port(),
            seq: packet.seq_number().0 as u32,
            ack: packet.ack().then(|| packet.ack_number().0 as u32),
            syn: packet.syn(),
            fin: packet.fin(),
            rst: packet.rst(),
            psh: packet.psh(),
            window: packet.window_len(),
            options: Options::parse(packet.options()),
        };
        if segment.source_port == 0 || segment.target_port == 0 {
            return Err(Dropped::Malformed);
        }
        Ok((segment, usize::from(packet.header_len())))
    }

    /// Returns the sequence numbers that the segment takes with `len` bytes of payload.
    pub(crate) fn length(&self, len: usize) -> u32 {
        len as u32 + u32::from(self.syn) + u32::from(self.fin)
    }
}

/// The headers of a packet to be sent.
pub(crate) struct Headers {
    bytes: [u8; PREFIX],
    len: usize,
}

impl Headers {
    /// Writes the headers of a segment with `payload` bytes behind it. The checksum is that of the
    /// header alone until [`Headers::finish`].
    pub(crate) fn new(
        macs: (Mac, Mac),
        tuple: &Tuple,
        segment: &Segment,
        payload: usize,
    ) -> Headers {
        let mut options = [0; 40];
        let tcp_len = TCP + segment.options.write(&mut options);
        let ip_len = tuple.ip_header();
        let mut headers = Headers {
            bytes: [0; PREFIX],
            len: ethernet::HEADER + ip_len + tcp_len,
        };
        let (link, rest) = headers.bytes.split_at_mut(ethernet::HEADER);
        let kind = write_ip(rest, tuple, tcp_len + payload);
        link.copy_from_slice(&ethernet::header(macs.0, macs.1, kind));
        let tcp = &mut rest[ip_len..ip_len + tcp_len];
        tcp[..2].copy_from_slice(&segment.source_port.to_be_bytes());
        tcp[2..4].copy_from_slice(&segment.target_port.to_be_bytes());
        tcp[4..8].copy_from_slice(&segment.seq.to_be_bytes());
        tcp[8..12].copy_from_slice(&segment.ack.unwrap_or(0).to_be_bytes());
        tcp[12] = (tcp_len as u8 / 4) << 4;
        tcp[13] = u8::from(segment.fin)
            | u8::from(segment.syn) << 1
            | u8::from(segment.rst) << 2
            | u8::from(segment.psh) << 3
            | u8::from(segment.ack.is_some()) << 4;
        tcp[14..16].copy_from_slice(&segment.window.to_be_bytes());
        tcp[TCP..].copy_from_slice(&options[..tcp_len - TCP]);
        headers
    }

    /// Fills in the checksum, over a payload with this sum.
    pub(crate) fn finish(&mut self, tuple: &Tuple, payload: usize, payload_sum: u64) {
        let start = ethernet::HEADER + tuple.ip_header();
        let len = self.len - start + payload;
        let pseudo = pseudo_sum(tuple.local, tuple.remote, protocol::TCP, len);
        let sum = pseudo + checksum::sum(&self.bytes[start..self.len]) + payload_sum;
        self.set_checksum(start, checksum::finish(sum));
    }

    /// Leaves the checksum, and with `segment_bytes` the segmentation, to the device.
    pub(crate) fn offload(
        &mut self,
        tuple: &Tuple,
        payload: usize,
        segment_bytes: Option<usize>,
    ) -> Offload {
        let start = ethernet::HEADER + tuple.ip_header();
        let len = self.len - start + payload;
        let pseudo = pseudo_sum(tuple.local, tuple.remote, protocol::TCP, len);
        // The device sums what is in the field too, so it holds the sum and not its complement.
        self.set_checksum(start, !checksum::finish(pseudo));
        Offload {
            needs_checksum: true,
            checksum_start: start as u16,
            checksum_offset: TCP_CHECKSUM as u16,
            segmentation: match segment_bytes {
                None => Segmentation::None,
                Some(_) if tuple.local.is_ipv4() => Segmentation::Tcp4,
                Some(_) => Segmentation::Tcp6,
            },
            segment_bytes: segment_bytes.unwrap_or(0) as u16,
            header_bytes: self.len as u16,
        }
    }

    fn set_checksum(&mut self, start: usize, sum: u16) {
        let at = start + TCP_CHECKSUM;
        self.bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }

    /// Returns the bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Writes the IP header of a packet with `payload` bytes behind it, and returns its EtherType. A
/// tuple whose addresses differ in family does not occur: its connection could not have been made.
fn write_ip(to: &mut [u8], tuple: &Tuple, payload: usize) -> u16 {
    match (tuple.local, tuple.remote) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            let header = ipv4::Repr {
                src: source.to_bits(),
                dst: target.to_bits(),
                protocol: protocol::TCP,
                ttl: protocol::TTL_DEFAULT,
                tos: 0,
                total_len: (ipv4::HEADER + payload) as u16,
                fragment: ipv4::DONT_FRAGMENT,
            };
            to[..ipv4::HEADER].copy_from_slice(&header.to_bytes());
            ethernet::IPV4
        }
        (source, target) => {
            let bits = |address: IpAddr| match address {
                IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
                IpAddr::V6(address) => address.to_bits(),
            };
            let header = ipv6::Repr {
                src: bits(source),
                dst: bits(target),
                next_header: protocol::TCP,
                hop_limit: protocol::TTL_DEFAULT,
                traffic_class: 0,
                payload_len: payload as u16,
            };
            to[..ipv6::HEADER].copy_from_slice(&header.to_bytes());
            ethernet::IPV6
        }
    }
}
