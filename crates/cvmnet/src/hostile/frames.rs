//! Frames that the host changes before it puts them on the ring.

use tare_packet::{checksum, ethernet, ipv4, ipv6, protocol};
use tare_sim::Random;

use crate::ring::{Checksum, NetHeader};

/// A field of a frame of TCP over IPv4, ARP or ICMPv6, or another thing that can be wrong with one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum FrameField {
    /// The frame is cut off.
    Length,
    /// The station that it is for.
    EthernetTarget,
    /// The station that it is from.
    EthernetSource,
    /// The protocol of its payload.
    EtherType,
    /// The version of IP and the length of its header.
    IpVersion,
    /// The length of the packet.
    IpLength,
    /// The flags and the offset of a fragment.
    IpFragment,
    /// The protocol of the packet's payload.
    IpProtocol,
    /// The checksum of the header.
    IpChecksum,
    /// The address that it is from.
    IpSource,
    /// The address that it is for.
    IpTarget,
    /// The ports.
    TcpPorts,
    /// The sequence number.
    TcpSequence,
    /// The acknowledged sequence number.
    TcpAcknowledgment,
    /// The length of the header.
    TcpOffset,
    /// The flags.
    TcpFlags,
    /// The window.
    TcpWindow,
    /// The checksum.
    TcpChecksum,
    /// The options: timestamps, ranges that have arrived.
    TcpOptions,
    /// The payload of TCP, with its checksum: records of TLS.
    Payload,
    /// A field of an ARP message.
    Arp,
    /// A field of a message of ICMPv6: neighbor discovery, an echo request, an error.
    Icmp6,
    /// A whole frame of random bytes.
    Random,
    /// The whole frame, a second time.
    Replayed,
}

impl FrameField {
    /// All.
    pub const ALL: [FrameField; 24] = [
        FrameField::Length,
        FrameField::EthernetTarget,
        FrameField::EthernetSource,
        FrameField::EtherType,
        FrameField::IpVersion,
        FrameField::IpLength,
        FrameField::IpFragment,
        FrameField::IpProtocol,
        FrameField::IpChecksum,
        FrameField::IpSource,
        FrameField::IpTarget,
        FrameField::TcpPorts,
        FrameField::TcpSequence,
        FrameField::TcpAcknowledgment,
        FrameField::TcpOffset,
        FrameField::TcpFlags,
        FrameField::TcpWindow,
        FrameField::TcpChecksum,
        FrameField::TcpOptions,
        FrameField::Payload,
        FrameField::Arp,
        FrameField::Icmp6,
        FrameField::Random,
        FrameField::Replayed,
    ];
}

const IP: usize = ethernet::HEADER;
const TCP: usize = IP + ipv4::HEADER;
/// The longest frame of the link.
const FRAME: usize = 1514;

/// An ARP request for the guest's address, from no station.
const ARP: [u8; 28] = [
    0, 1, 8, 0, 6, 4, 0, 1, 0, 0, 0, 0, 0, 0, 10, 9, 0, 1, 0, 0, 0, 0, 0, 0, 10, 9, 0, 2,
];

/// A neighbor solicitation of the guest's address, fd00::2 from fd00::1, with the option of a
/// station address.
const ICMP6: [u8; 72] = [
    0x60, 0, 0, 0, 0, 32, 58, 255, // IPv6
    0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, // from
    0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, // to
    135, 0, 0, 0, 0, 0, 0, 0, // ICMPv6
    0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, // the address
    1, 1, 2, 0, 0, 0, 0, 1, // the option
];
/// Their types: packet too big, echo request, solicitation, advertisement.
const ICMP6_TYPES: [u8; 4] = [2, 128, 135, 136];
/// The place of the type in the frame.
const ICMP6_TYPE: usize = IP + ipv6::HEADER;

/// Returns the bytes of the TCP header, if the frame is TCP over IPv4 without options.
fn tcp_header(frame: &[u8]) -> Option<usize> {
    let is_tcp = frame.get(12..14)? == [8, 0] && frame.get(IP) == Some(&0x45) && frame[23] == 6;
    let len = usize::from(frame.get(TCP + 12)? >> 4) * 4;
    (is_tcp && len >= 20 && frame.len() >= TCP + len).then_some(len)
}

/// Changes a field of a frame; returns which one, and the header of the device, which may say that
/// the checksum was looked at. `None` if the frame has no such field, or its bytes stayed the same.
pub(super) fn change(frame: &mut Vec<u8>, random: &mut Random) -> Option<(FrameField, NetHeader)> {
    let before = frame.clone();
    let which = FrameField::ALL[random.below(FrameField::ALL.len() as u64) as usize];
    let header = tcp_header(frame);
    let range = match which {
        FrameField::Length => {
            frame.truncate(random.below(frame.len() as u64 + 1) as usize);
            0..0
        }
        FrameField::Random => {
            frame.resize(14 + random.below((FRAME - 13) as u64) as usize, 0);
            0..frame.len()
        }
        FrameField::EthernetTarget => 0..6,
        FrameField::EthernetSource => 6..12,
        FrameField::EtherType => 12..14,
        FrameField::Arp => {
            // A request or an answer that has come instead; some of its fields are right.
            frame.resize(ethernet::HEADER + ARP.len(), 0);
            frame[12..14].copy_from_slice(&ethernet::ARP.to_be_bytes());
            frame[14..].copy_from_slice(&ARP);
            frame[21] = 1 + random.below(2) as u8;
            let at = 14 + random.below(ARP.len() as u64) as usize;
            at..(at + 6).min(frame.len())
        }
        FrameField::Icmp6 => {
            frame.resize(ethernet::HEADER, 0);
            frame[12..].copy_from_slice(&ethernet::IPV6.to_be_bytes());
            frame.extend_from_slice(&ICMP6);
            frame[ICMP6_TYPE] = ICMP6_TYPES[random.below(4) as usize];
            let at = IP + random.below(ICMP6.len() as u64) as usize;
            at..(at + 1 + random.below(6) as usize).min(frame.len())
        }
        FrameField::Replayed => return None,
        _ => {
            let end = TCP + header?;
            match which {
                FrameField::IpVersion => IP..IP + 1,
                FrameField::IpLength => IP + 2..IP + 4,
                FrameField::IpFragment => IP + 6..IP + 8,
                FrameField::IpProtocol => IP + 9..IP + 10,
                FrameField::IpChecksum => IP + 10..IP + 12,
                FrameField::IpSource => IP + 12..IP + 16,
                FrameField::IpTarget => IP + 16..IP + 20,
                FrameField::TcpPorts => TCP..TCP + 4,
                FrameField::TcpSequence => TCP + 4..TCP + 8,
                FrameField::TcpAcknowledgment => TCP + 8..TCP + 12,
                FrameField::TcpOffset => TCP + 12..TCP + 13,
                FrameField::TcpFlags => TCP + 13..TCP + 14,
                FrameField::TcpWindow => TCP + 14..TCP + 16,
                FrameField::TcpChecksum => TCP + 16..TCP + 18,
                FrameField::TcpOptions => TCP + 20..end,
                // A few bytes of it, often those of a record's header.
                _ => {
                    let len = frame.len() - end;
                    let at = random.below(len as u64 + 1) as usize;
                    let at = end + if random.chance(0.3) { 0 } else { at };
                    at..(at + 1 + random.below(5) as usize).min(frame.len())
                }
            }
        }
    };
    let bytes = frame.get_mut(range)?;
    match (bytes, random.below(2)) {
        // Near to what it was: a sequence number within the window.
        ([_, _, rest @ ..], 0) if rest.len() == 2 => random.fill(rest),
        ([first], 0) => *first ^= 1 << random.below(8),
        (bytes, _) => random.fill(bytes),
    }
    if *frame == before {
        return None;
    }
    // Most have the checksums that belong to them, and are not noticed by those.
    if which == FrameField::Icmp6 && random.chance(0.8) {
        repair_icmp6(frame);
    } else if which != FrameField::IpChecksum && random.chance(0.8) {
        repair_ip(frame);
    }
    let is_trusted = which != FrameField::Payload && random.chance(0.5);
    if which == FrameField::Payload {
        repair_tcp(frame);
    }
    let checksum = match is_trusted {
        true => Checksum::Verified,
        false => Checksum::Unverified,
    };
    let segments = None;
    Some((which, NetHeader { checksum, segments }))
}

fn repair_ip(frame: &mut [u8]) {
    let Some(header) = frame.get_mut(IP..IP + ipv4::HEADER) else {
        return;
    };
    header[10..12].fill(0);
    let sum = checksum::finish(checksum::sum(header));
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

fn repair_icmp6(frame: &mut [u8]) {
    let (from, to) = (IP + 8..IP + 24, IP + 24..IP + 40);
    frame[ICMP6_TYPE + 2..ICMP6_TYPE + 4].fill(0);
    let len = frame.len() - ICMP6_TYPE;
    let pseudo = checksum::pseudo_header(&frame[from], &frame[to], protocol::ICMPV6, len);
    let sum = checksum::finish(pseudo + checksum::sum(&frame[ICMP6_TYPE..]));
    frame[ICMP6_TYPE + 2..ICMP6_TYPE + 4].copy_from_slice(&sum.to_be_bytes());
}

fn repair_tcp(frame: &mut [u8]) {
    let end = IP + usize::from(u16::from_be_bytes([frame[IP + 2], frame[IP + 3]]));
    if end > frame.len() {
        return;
    }
    frame[TCP + 16..TCP + 18].fill(0);
    let addresses = IP + 12..IP + 16;
    let pseudo = checksum::pseudo_header(
        &frame[addresses.clone()],
        &frame[addresses.end..addresses.end + 4],
        6,
        end - TCP,
    );
    let sum = checksum::finish(pseudo + checksum::sum(&frame[TCP..end]));
    frame[TCP + 16..TCP + 18].copy_from_slice(&sum.to_be_bytes());
}
