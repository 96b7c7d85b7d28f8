//! IPv4 headers (RFC 791), checked once and then plain values.

use crate::checksum;

/// Bytes of a header without options.
pub const HEADER: usize = 20;

/// Why bytes are no IPv4 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Shorter than a header, or than the header says it is.
    Truncated,
    /// The version is not 4.
    Version,
    /// A header length below 20, or a total length below the header length.
    Length,
    /// The header's checksum is wrong.
    Checksum,
}

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4 {
    /// Bytes of the header with its options, 20 to 60.
    pub header_len: usize,
    /// Bytes of header and payload; the bytes checked have at least these.
    pub total_len: usize,
    /// DSCP (6 bits) and ECN (2 bits).
    pub tos: u8,
    /// Hops left.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Source address.
    pub src: u32,
    /// Destination address.
    pub dst: u32,
    /// Identification, flags and fragment offset, as the two words stand in the header.
    pub fragment: u32,
}

impl Ipv4 {
    /// Reads and checks the header at the start of `bytes`, which may be longer than the packet (Ethernet pads).
    ///
    /// # Errors
    /// See [`Malformed`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Ipv4, Malformed> {
        let Some(h) = bytes.first_chunk::<HEADER>() else {
            return Err(Malformed::Truncated);
        };
        if h[0] >> 4 != 4 {
            return Err(Malformed::Version);
        }
        let header_len = usize::from(h[0] & 15) * 4;
        let total_len = usize::from(u16::from_be_bytes([h[2], h[3]]));
        if header_len < HEADER || total_len < header_len {
            return Err(Malformed::Length);
        }
        if bytes.len() < total_len {
            return Err(Malformed::Truncated);
        }
        let covered = if header_len == HEADER {
            checksum::sum(h)
        } else {
            checksum::sum(&bytes[..header_len])
        };
        if checksum::finish(covered) != 0 {
            return Err(Malformed::Checksum);
        }
        let word = |at: usize| u32::from_be_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]]);
        Ok(Ipv4 {
            header_len,
            total_len,
            tos: h[1],
            ttl: h[8],
            protocol: h[9],
            src: word(12),
            dst: word(16),
            fragment: word(4),
        })
    }

    /// Whether routers must not fragment this packet.
    #[inline]
    pub fn dont_fragment(&self) -> bool {
        self.fragment & 0x4000 != 0
    }

    /// Whether this is a part of a packet: more follow, or it is not the first.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.fragment & 0x3fff != 0
    }

    /// Whether this is a part other than the first.
    #[inline]
    pub fn is_later_fragment(&self) -> bool {
        self.fragment & 0x1fff != 0
    }
}

/// Takes a hop off the packet at the start of `bytes`, and mends its checksum.
#[inline]
pub fn decrement_ttl(bytes: &mut [u8]) {
    if let Some(h) = bytes.first_chunk_mut::<HEADER>() {
        let old = u16::from_be_bytes([h[8], h[9]]);
        let new = old.wrapping_sub(0x0100);
        rewrite(h, 8, old, new);
    }
}

/// Sets DSCP and ECN of the packet at the start of `bytes`, and mends its checksum.
#[inline]
pub fn set_tos(bytes: &mut [u8], tos: u8) {
    if let Some(h) = bytes.first_chunk_mut::<HEADER>() {
        let old = u16::from_be_bytes([h[0], h[1]]);
        let new = old & 0xff00 | u16::from(tos);
        rewrite(h, 0, old, new);
    }
}

#[inline]
fn rewrite(h: &mut [u8; HEADER], at: usize, old: u16, new: u16) {
    let checksum = checksum::update(u16::from_be_bytes([h[10], h[11]]), old, new);
    h[at..at + 2].copy_from_slice(&new.to_be_bytes());
    h[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// Writes a header without options for a packet of `total_len` bytes; `fragment` as in [`Ipv4`].
#[inline]
pub fn header(
    src: u32,
    dst: u32,
    protocol: u8,
    ttl: u8,
    tos: u8,
    total_len: u16,
    fragment: u32,
) -> [u8; HEADER] {
    let mut h = [0; HEADER];
    h[0] = 0x45;
    h[1] = tos;
    h[2..4].copy_from_slice(&total_len.to_be_bytes());
    h[4..8].copy_from_slice(&fragment.to_be_bytes());
    h[8] = ttl;
    h[9] = protocol;
    h[12..16].copy_from_slice(&src.to_be_bytes());
    h[16..].copy_from_slice(&dst.to_be_bytes());
    let checksum = checksum::finish(checksum::sum(&h));
    h[10..12].copy_from_slice(&checksum.to_be_bytes());
    h
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_wrong_with_a_header_is_named() {
        let good = header(1, 2, 17, 64, 0, 20, 0);
        let with = |at: usize, value: u8| {
            let mut h = good;
            h[at] = value;
            Ipv4::parse(&h).unwrap_err()
        };
        assert_eq!(Ipv4::parse(&good[..19]), Err(Malformed::Truncated));
        assert_eq!(with(0, 0x65), Malformed::Version);
        assert_eq!(with(0, 0x44), Malformed::Length);
        assert_eq!(with(3, 19), Malformed::Length);
        assert_eq!(with(3, 21), Malformed::Truncated);
        assert_eq!(with(8, 63), Malformed::Checksum);
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_also_after_changes(
            src: u32, dst: u32, protocol: u8, ttl in 1u8.., tos: u8, new_tos: u8, fragment: u32,
        ) {
            let mut h = header(src, dst, protocol, ttl, tos, 20, fragment);
            let read = Ipv4::parse(&h).unwrap();
            prop_assert_eq!(
                (read.src, read.dst, read.protocol, read.ttl, read.tos, read.fragment),
                (src, dst, protocol, ttl, tos, fragment)
            );
            decrement_ttl(&mut h);
            set_tos(&mut h, new_tos);
            let read = Ipv4::parse(&h).unwrap();
            prop_assert_eq!((read.ttl, read.tos), (ttl - 1, new_tos));
        }

        #[test]
        fn nothing_panics(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Ipv4::parse(&bytes);
        }
    }
}
