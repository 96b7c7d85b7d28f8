//! IPv4 headers (RFC 791), checked once and then plain values.

use crate::checksum;

/// Bytes of a header without options.
pub const HEADER: usize = 20;

/// Version 4 and a header without options, the first byte of a header (RFC 791, 3.1).
pub const VERSION_AND_LENGTH: u8 = 0x45;

/// The flag "don't fragment" in the word of flags and fragment offset (RFC 791, 3.1).
pub const DONT_FRAGMENT: u32 = 0x4000;

/// The flag "more fragments" in that word.
pub const MORE_FRAGMENTS: u32 = 0x2000;

/// The fragment offset in that word, in units of eight bytes.
pub const FRAGMENT_OFFSET: u32 = 0x1fff;

/// The bytes that a host is sure to take (RFC 791, 3.1), and the most of an ICMP error (RFC 1812,
/// 4.3.2.3).
pub const REASSEMBLED_MIN: usize = 576;

/// Returns true if the address can be that of one host on a network: not of 0/8, 127/8, 224/4 or
/// 240/4 (RFC 1812, 5.3.7). No packet from another address is to be answered or forwarded.
#[inline]
pub const fn is_host(address: u32) -> bool {
    let network = address >> 24;
    network.wrapping_sub(1) < 0xdf && network != 127
}

/// Returns true if the address is of 169.254/16, which a router must not forward packets from or to
/// (RFC 3927, 7).
#[inline]
pub const fn is_link_local(address: u32) -> bool {
    address >> 16 == 0xa9fe
}

/// The reason that bytes are no IPv4 packet.
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

/// The fields of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4 {
    /// Bytes of the header with its options, 20 to 60.
    pub header_len: usize,
    /// Bytes of header and payload; the bytes checked have at least these.
    pub total_len: usize,
    /// DSCP (6 bits) and ECN (2 bits).
    pub tos: u8,
    /// Time to live, in hops.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Source address.
    pub src: u32,
    /// Destination address.
    pub dst: u32,
    /// Identification, flags and fragment offset, as the two words are in the header.
    pub fragment: u32,
}

/// Returns the length of the header `h` at the start of `bytes`.
#[cold]
fn check(bytes: &[u8], h: &[u8; HEADER]) -> Result<usize, Malformed> {
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
    if checksum::finish(checksum::sum(&bytes[..header_len])) != 0 {
        return Err(Malformed::Checksum);
    }
    Ok(header_len)
}

impl Ipv4 {
    /// Reads and checks the header at the start of `bytes`, which may be longer than the packet
    /// (Ethernet pads).
    ///
    /// # Errors
    /// See [`Malformed`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Ipv4, Malformed> {
        let Some(h) = bytes.first_chunk::<HEADER>() else {
            return Err(Malformed::Truncated);
        };
        let total_len = usize::from(u16::from_be_bytes([h[2], h[3]]));
        let fits = (HEADER..=bytes.len()).contains(&total_len);
        let header_len = if (h[0] == VERSION_AND_LENGTH) & fits & checksum::is_right(h) {
            HEADER
        } else {
            check(bytes, h)?
        };
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

    /// Returns true if routers must not fragment this packet.
    #[inline]
    pub fn dont_fragment(&self) -> bool {
        self.fragment & DONT_FRAGMENT != 0
    }

    /// Returns true if this is a fragment: more follow, or it is not the first.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.fragment & (MORE_FRAGMENTS | FRAGMENT_OFFSET) != 0
    }

    /// Returns true if this is a fragment other than the first.
    #[inline]
    pub fn is_later_fragment(&self) -> bool {
        self.fragment & FRAGMENT_OFFSET != 0
    }
}

/// Decrements the TTL of the packet at the start of `bytes` and updates its checksum incrementally
/// (RFC 1624): the TTL is the upper byte of a word, so the checksum grows by 0x100, with the carry
/// added again.
#[inline]
pub fn decrement_ttl(bytes: &mut [u8]) {
    if let Some(h) = bytes.first_chunk_mut::<HEADER>() {
        h[8] = h[8].wrapping_sub(1);
        let sum = u32::from(u16::from_be_bytes([h[10], h[11]])) + 0x0100;
        h[10..12].copy_from_slice(&((sum + (sum >> 16)) as u16).to_be_bytes());
    }
}

/// Sets DSCP and ECN of the packet at the start of `bytes` and updates its checksum incrementally.
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

/// The fields of a new header without options; see [`Ipv4`].
#[derive(Clone, Copy, Debug)]
pub struct Repr {
    /// Source address.
    pub src: u32,
    /// Destination address.
    pub dst: u32,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Time to live, in hops.
    pub ttl: u8,
    /// DSCP and ECN.
    pub tos: u8,
    /// Bytes of header and payload.
    pub total_len: u16,
    /// Identification, flags and fragment offset.
    pub fragment: u32,
}

impl Repr {
    /// Writes the header, word by word: built elsewhere and then copied, it would be loaded wider
    /// than it was stored, and such a load waits until the stores have reached the cache.
    #[inline]
    pub fn write(&self, to: &mut [u8; HEADER]) {
        let words = [
            u32::from(VERSION_AND_LENGTH) << 24
                | u32::from(self.tos) << 16
                | u32::from(self.total_len),
            self.fragment,
            u32::from(self.ttl) << 24 | u32::from(self.protocol) << 16,
            self.src,
            self.dst,
        ];
        let checksum = checksum::finish(words.iter().map(|&w| u64::from(w)).sum());
        to[..4].copy_from_slice(&words[0].to_be_bytes());
        to[4..8].copy_from_slice(&words[1].to_be_bytes());
        to[8..12].copy_from_slice(&(words[2] | u32::from(checksum)).to_be_bytes());
        to[12..16].copy_from_slice(&words[3].to_be_bytes());
        to[16..].copy_from_slice(&words[4].to_be_bytes());
    }

    /// Returns the header's bytes.
    pub fn to_bytes(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        self.write(&mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_that_no_host_has_are_told_from_others() {
        for (address, host, link_local) in [
            ("0.0.0.0", false, false),
            ("0.255.255.255", false, false),
            ("1.0.0.0", true, false),
            ("126.255.255.255", true, false),
            ("127.0.0.0", false, false),
            ("127.255.255.255", false, false),
            ("128.0.0.0", true, false),
            ("169.253.255.255", true, false),
            ("169.254.0.0", true, true),
            ("169.254.255.255", true, true),
            ("169.255.0.0", true, false),
            ("223.255.255.255", true, false),
            ("224.0.0.0", false, false),
            ("240.0.0.0", false, false),
            ("255.255.255.255", false, false),
        ] {
            let bits = address.parse::<std::net::Ipv4Addr>().unwrap().to_bits();
            let found = (is_host(bits), is_link_local(bits));
            assert_eq!(found, (host, link_local), "{address}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_header_is_named() {
        let good = Repr {
            src: 1,
            dst: 2,
            protocol: 17,
            ttl: 64,
            tos: 0,
            total_len: 20,
            fragment: 0,
        };
        let good = good.to_bytes();
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

    #[test]
    fn bounds_fragments_and_carries_are_exact() {
        let repr = |ttl, total_len, fragment| Repr {
            src: 1,
            dst: 2,
            protocol: 17,
            ttl,
            tos: 0,
            total_len,
            fragment,
        };
        let longer = repr(64, 21, 0).to_bytes();
        assert_eq!(Ipv4::parse(&longer), Err(Malformed::Truncated));
        for fragment in [0, DONT_FRAGMENT, MORE_FRAGMENTS, 1] {
            let read = Ipv4::parse(&repr(64, 20, fragment).to_bytes()).unwrap();
            assert_eq!(
                read.is_fragment(),
                fragment != 0 && fragment != DONT_FRAGMENT
            );
        }
        // One of these identifications makes a checksum whose upper byte is full.
        for identification in 0..=0xffff {
            let mut h = repr(64, 20, identification << 16).to_bytes();
            decrement_ttl(&mut h);
            assert_eq!(Ipv4::parse(&h).map(|read| read.ttl), Ok(63));
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_also_after_changes(
            src: u32, dst: u32, protocol: u8, ttl in 1u8.., tos: u8, new_tos: u8, fragment: u32,
        ) {
            let mut h = Repr { src, dst, protocol, ttl, tos, total_len: 20, fragment }.to_bytes();
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
