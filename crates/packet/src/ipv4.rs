//! IPv4 headers (RFC 791), checked once and then plain values.

use std::ops::RangeInclusive;

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
        if let Some(ip) = Ipv4::without_options(h, HEADER..=bytes.len()) {
            return Ok(ip);
        }
        let header_len = check(bytes, h)?;
        Ok(Ipv4::fields(h, header_len))
    }

    /// Reads and checks a header without options, of a packet whose bytes are within `lengths`.
    /// Returns `None` if it has options or is malformed; [`Ipv4::parse`] tells which.
    #[inline]
    pub fn without_options(h: &[u8; HEADER], lengths: RangeInclusive<usize>) -> Option<Ipv4> {
        let ip = Ipv4::fields(h, HEADER);
        let fits = lengths.contains(&ip.total_len);
        (h[0] == VERSION_AND_LENGTH && fits && checksum::is_right(h)).then_some(ip)
    }

    #[inline(always)]
    fn fields(h: &[u8; HEADER], header_len: usize) -> Ipv4 {
        let word = |at: usize| u32::from_be_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]]);
        Ipv4 {
            header_len,
            total_len: usize::from(u16::from_be_bytes([h[2], h[3]])),
            tos: h[1],
            ttl: h[8],
            protocol: h[9],
            src: word(12),
            dst: word(16),
            fragment: word(4),
        }
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
/// added again. That is 1 where the word is read the other way around (RFC 1071, 2 B).
#[inline]
pub fn decrement_ttl(bytes: &mut [u8]) {
    if let Some(h) = bytes.first_chunk_mut::<HEADER>() {
        h[8] = h[8].wrapping_sub(1);
        let (sum, carry) = u16::from_le_bytes([h[10], h[11]]).overflowing_add(1);
        h[10..12].copy_from_slice(&(sum + u16::from(carry)).to_le_bytes());
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
    /// Returns the sum of the words that neither DSCP, ECN nor the total length are in, in memory's
    /// order of bytes, for [`Repr::write_with`].
    pub fn partial_sum(&self) -> u16 {
        let rest = &self.words()[1..];
        !checksum::finish(rest.iter().map(|&w| u64::from(w)).sum())
    }

    /// Writes the header.
    #[inline]
    pub fn write(&self, to: &mut [u8; HEADER]) {
        self.write_with(self.partial_sum(), to);
    }

    /// Writes the header of which `partial` is the [`Repr::partial_sum`], word by word: built
    /// elsewhere and then copied, it would be loaded wider than it was stored, and such a load
    /// waits until the stores have reached the cache.
    #[inline]
    pub fn write_with(&self, partial: u16, to: &mut [u8; HEADER]) {
        // As the bytes stand in memory, where the order makes no difference to a sum (RFC 1071,
        // 2 B), and the checksum in the upper half of its word.
        let words = self.words();
        let sum = u32::from(partial) + (words[0] & 0xffff) + (words[0] >> 16);
        // Twice, as the first carry may give another one.
        let checksum = !sum.wrapping_add(sum.rotate_left(16)) & 0xffff_0000;
        to[..4].copy_from_slice(&words[0].to_le_bytes());
        to[4..8].copy_from_slice(&words[1].to_le_bytes());
        to[8..12].copy_from_slice(&(words[2] | checksum).to_le_bytes());
        to[12..16].copy_from_slice(&words[3].to_le_bytes());
        to[16..].copy_from_slice(&words[4].to_le_bytes());
    }

    /// Returns the header with a checksum of zero, as little-endian words.
    #[inline(always)]
    fn words(&self) -> [u32; 5] {
        let [high, low] = self.total_len.to_be_bytes();
        [
            u32::from_le_bytes([VERSION_AND_LENGTH, self.tos, high, low]),
            self.fragment.swap_bytes(),
            u32::from_le_bytes([self.ttl, self.protocol, 0, 0]),
            self.src.swap_bytes(),
            self.dst.swap_bytes(),
        ]
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
        let mut zeros = 0;
        for identification in 0..=0xffff {
            let mut h = repr(64, 20, identification << 16).to_bytes();
            // A checksum of 0 may also be written with all ones, and the sum has a carry then.
            if h[10..12] == [0, 0] {
                zeros += 1;
                h[10..12].copy_from_slice(&[0xff, 0xff]);
                assert!(Ipv4::parse(&h).is_ok());
            }
            decrement_ttl(&mut h);
            assert_eq!(Ipv4::parse(&h).map(|read| read.ttl), Ok(63));
        }
        assert_eq!(zeros, 1);
    }

    #[test]
    fn the_second_carry_of_a_new_header_counts() {
        let repr = Repr {
            src: 0xffff_0000,
            dst: 0,
            protocol: 0,
            ttl: 0,
            tos: 0xff,
            total_len: 0xbb00,
            fragment: 0,
        };
        assert_eq!(repr.partial_sum(), 0xffff);
        assert!(checksum::is_right(&repr.to_bytes()));
    }

    proptest! {
        /// However large the sum, and both for a header and for one like it.
        #[test]
        fn a_header_written_with_its_partial_sum_has_the_checksum_of_all_its_words(
            (src, dst, fragment) in any::<(u32, u32, u32)>(),
            (protocol, ttl) in any::<(u8, u8)>(),
            tos in prop_oneof![any::<u8>(), Just(0), Just(255)],
            total_len in prop_oneof![any::<u16>(), Just(0), Just(u16::MAX)],
        ) {
            let repr = Repr { src, dst, protocol, ttl, tos, total_len, fragment };
            let partial = Repr { tos: !tos, total_len: !total_len, ..repr }.partial_sum();
            let mut bytes = [0; HEADER];
            repr.write_with(partial, &mut bytes);
            prop_assert!(checksum::is_right(&bytes));
            prop_assert_eq!(bytes, repr.to_bytes());
            // As RFC 791 has it: the ones' complement of the sum of the other words.
            bytes[10..12].fill(0);
            let checksum = checksum::finish(checksum::sum(&bytes));
            prop_assert_eq!(&repr.to_bytes()[10..12], checksum.to_be_bytes());
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
