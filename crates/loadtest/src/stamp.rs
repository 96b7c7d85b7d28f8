//! The stamp in each frame: its trial, stream and sequence, and the time when it was sent.
//!
//! A stamp is the last 18 bytes of an IP packet, all the payload that UDP has in the shortest
//! Ethernet frame. It is found by the IP header's length alone, so a gateway may change everything
//! that a gateway changes, and padding may follow.
//!
//! | bytes | what |
//! |---|---|
//! | 2 | magic |
//! | 2 | trial |
//! | 1 | stream |
//! | 5 | sequence |
//! | 6 | nanoseconds from the start of the trial to sending |
//! | 2 | check over the stamp and the payload in front of it |

use tare_packet::{checksum, ethernet, ipv4, ipv6};

/// Bytes of a stamp.
pub const LEN: usize = 18;

/// Sequences are below this: 40 bits.
pub const SEQUENCES: u64 = 1 << 40;

/// Times are below this: 48 bits of nanoseconds, 78 hours.
pub const TIMES_NS: u64 = 1 << 48;

const MAGIC: u64 = 0x7a3e;

/// The first bytes of an IP payload, which the check leaves out: ports and checksums (that of TCP
/// ends at 18) are a translator's to change.
pub(crate) const TRANSLATED: usize = 20;

/// One frame's stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The trial, warm-ups included.
    pub trial: u16,
    /// The stream.
    pub stream: u8,
    /// The number of the frame among the stamped frames of its stream and trial, below
    /// [`SEQUENCES`].
    pub sequence: u64,
    /// From the start of the trial to sending, in nanoseconds, below [`TIMES_NS`].
    pub time_ns: u64,
}

/// The contents of the place of a stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A stamp whose check is right.
    Stamp(Stamp),
    /// A stamp, but it or the payload in front of it was changed in the network.
    Damaged,
    /// No stamp.
    Nothing,
}

/// The place of a stamp in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The first byte of the IP payload.
    pub(crate) payload: usize,
    /// The stamp's first byte, at or behind `payload`.
    pub(crate) at: usize,
}

impl Place {
    /// The bytes in front of the stamp that its check covers, folded to 16 bits.
    pub(crate) fn covered(&self, frame: &[u8]) -> u16 {
        let start = (self.payload + TRANSLATED).min(self.at);
        checksum::finish(checksum::sum(frame.get(start..self.at).unwrap_or_default()))
    }
}

/// The place of the stamp of `frame`, if it has one: its IP packet is whole, no fragment, and long
/// enough.
#[inline]
pub(crate) fn place(frame: &[u8]) -> Option<Place> {
    let packet = IpPacket::of(frame)?;
    let at = packet.end.checked_sub(LEN)?;
    (at >= packet.payload && !packet.fragment).then_some(Place {
        payload: packet.payload,
        at,
    })
}

/// Reads the stamp of a frame.
#[inline]
pub fn read(frame: &[u8]) -> Found {
    let Some(place) = place(frame) else {
        return Found::Nothing;
    };
    let Some(bytes) = frame
        .get(place.at..)
        .and_then(|rest| rest.first_chunk::<LEN>())
    else {
        return Found::Nothing;
    };
    let (first, second) = words(bytes);
    if first >> 48 != MAGIC {
        return Found::Nothing;
    }
    let check = u16::from_be_bytes([bytes[16], bytes[17]]);
    if check != mix(first, second, place.covered(frame)) {
        return Found::Damaged;
    }
    Found::Stamp(Stamp {
        trial: (first >> 32) as u16,
        stream: (first >> 24) as u8,
        sequence: (first & 0xff_ffff) << 16 | second >> 48,
        time_ns: second & (TIMES_NS - 1),
    })
}

/// The bytes of a stamp behind a payload that folds to `covered`.
#[inline]
pub(crate) fn encode(stamp: &Stamp, covered: u16) -> [u8; LEN] {
    let sequence = stamp.sequence & (SEQUENCES - 1);
    let first =
        MAGIC << 48 | u64::from(stamp.trial) << 32 | u64::from(stamp.stream) << 24 | sequence >> 16;
    let second = sequence << 48 | (stamp.time_ns & (TIMES_NS - 1));
    let mut bytes = [0; LEN];
    bytes[..8].copy_from_slice(&first.to_be_bytes());
    bytes[8..16].copy_from_slice(&second.to_be_bytes());
    bytes[16..].copy_from_slice(&mix(first, second, covered).to_be_bytes());
    bytes
}

fn words(bytes: &[u8; LEN]) -> (u64, u64) {
    let (words, _) = bytes.as_chunks::<8>();
    (u64::from_be_bytes(words[0]), u64::from_be_bytes(words[1]))
}

/// 16 bits that any one changed bit changes half of.
#[inline]
fn mix(first: u64, second: u64, covered: u16) -> u16 {
    // The finalizer of SplitMix64 (Steele, Lea, Flood 2014), twice.
    let scramble = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    scramble(scramble(first) ^ second.wrapping_add(u64::from(covered) << 48 | 1)) as u16
}

/// The offsets of the IP packet in a frame that finding a stamp needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IpPacket {
    /// The first byte of the IP header.
    pub(crate) header: usize,
    /// The first byte behind the IP header; IPv6 extension headers count as payload.
    pub(crate) payload: usize,
    /// The first byte behind the packet, within the frame.
    pub(crate) end: usize,
    /// 4 or 6.
    pub(crate) version: u8,
    /// An IPv4 fragment, which has only a part of what its checksum covers.
    pub(crate) fragment: bool,
}

impl IpPacket {
    /// The packet of a frame, behind up to two VLAN tags; `None` if it is no IP or does not fit
    /// into the frame.
    #[inline]
    pub(crate) fn of(frame: &[u8]) -> Option<IpPacket> {
        let (ethertype, header) = ethertype(frame)?;
        let ip = frame.get(header..)?;
        let (version, payload, length, fragment) = match ethertype {
            ethernet::IPV4 => {
                let fixed = ip.first_chunk::<{ ipv4::HEADER }>()?;
                let payload = usize::from(fixed[0] & 0xf) * 4;
                if fixed[0] >> 4 != 4 || payload < ipv4::HEADER {
                    return None;
                }
                let fragment = u16::from_be_bytes([fixed[6], fixed[7]]) & 0x3fff != 0;
                (
                    4,
                    payload,
                    usize::from(u16::from_be_bytes([fixed[2], fixed[3]])),
                    fragment,
                )
            }
            ethernet::IPV6 => {
                let fixed = ip.first_chunk::<{ ipv6::HEADER }>()?;
                if fixed[0] >> 4 != 6 {
                    return None;
                }
                (
                    6,
                    ipv6::HEADER,
                    ipv6::HEADER + usize::from(u16::from_be_bytes([fixed[4], fixed[5]])),
                    false,
                )
            }
            _ => return None,
        };
        (length >= payload && length <= ip.len()).then_some(IpPacket {
            header,
            payload: header + payload,
            end: header + length,
            version,
            fragment,
        })
    }
}

/// The EtherType behind up to two VLAN tags, and where what it names begins.
#[inline]
pub(crate) fn ethertype(frame: &[u8]) -> Option<(u16, usize)> {
    let mut at = 12;
    loop {
        let ethertype = u16::from_be_bytes(*frame.get(at..)?.first_chunk()?);
        if !matches!(ethertype, ethernet::VLAN | ethernet::SERVICE_VLAN) || at >= 20 {
            return Some((ethertype, at + 2));
        }
        at += ethernet::VLAN_TAG;
    }
}
