//! IPv6 headers (RFC 8200), checked once and then plain values.

/// Bytes of a header.
pub const HEADER: usize = 40;

/// The bytes of a packet that every link takes (RFC 8200, section 5), and the most of an ICMPv6
/// error (RFC 4443, 2.4).
pub const MTU_MIN: usize = 1280;

/// Returns true if the address is of ff00::/8 (RFC 4291, 2.7).
#[inline]
pub const fn is_multicast(address: u128) -> bool {
    address >> 120 == 0xff
}

/// Returns true if the address can be that of one host on a network: neither multicast nor of
/// ::/64, where the unspecified address, the loopback address and IPv4 addresses in IPv6 form are
/// (RFC 4291, 2.5). No packet from another address is to be answered or forwarded.
#[inline]
pub const fn is_host(address: u128) -> bool {
    address >> 64 != 0 && !is_multicast(address)
}

/// Returns true if the address is of fe80::/10, which a router must not forward packets from or to
/// (RFC 4291, 2.5.6).
#[inline]
pub const fn is_link_local(address: u128) -> bool {
    address >> 118 == 0xfe80 >> 6
}

/// The reason that bytes are no IPv6 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Shorter than a header, or than the header says it is.
    Truncated,
    /// The version is not 6.
    Version,
}

/// The fields of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6 {
    /// Bytes of header and payload; the bytes checked have at least these.
    pub total_len: usize,
    /// DSCP (6 bits) and ECN (2 bits).
    pub traffic_class: u8,
    /// The flow that the packet belongs to, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Protocol of the payload, or of the first extension header.
    pub next_header: u8,
    /// Source address.
    pub src: u128,
    /// Destination address.
    pub dst: u128,
}

impl Ipv6 {
    /// Reads and checks the header at the start of `bytes`, which may be longer than the packet
    /// (Ethernet pads).
    ///
    /// # Errors
    /// See [`Malformed`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Ipv6, Malformed> {
        let Some(h) = bytes.first_chunk::<HEADER>() else {
            return Err(Malformed::Truncated);
        };
        let first = u32::from_be_bytes([h[0], h[1], h[2], h[3]]);
        if first >> 28 != 6 {
            return Err(Malformed::Version);
        }
        let total_len = HEADER + usize::from(u16::from_be_bytes([h[4], h[5]]));
        if bytes.len() < total_len {
            return Err(Malformed::Truncated);
        }
        let address = |at: usize| {
            let mut bytes = [0; 16];
            bytes.copy_from_slice(&h[at..at + 16]);
            u128::from_be_bytes(bytes)
        };
        Ok(Ipv6 {
            total_len,
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            hop_limit: h[7],
            next_header: h[6],
            src: address(8),
            dst: address(24),
        })
    }
}

/// Decrements the hop limit of the packet at the start of `bytes`.
#[inline]
pub fn decrement_hop_limit(bytes: &mut [u8]) {
    if let Some(hop_limit) = bytes.get_mut(7) {
        *hop_limit = hop_limit.wrapping_sub(1);
    }
}

/// Sets DSCP and ECN of the packet at the start of `bytes`.
#[inline]
pub fn set_traffic_class(bytes: &mut [u8], class: u8) {
    if let Some(h) = bytes.first_chunk_mut::<2>() {
        h[0] = h[0] & 0xf0 | class >> 4;
        h[1] = h[1] & 0x0f | class << 4;
    }
}

/// The fields of a new header; see [`Ipv6`]. The flow label is 0.
#[derive(Clone, Copy, Debug)]
pub struct Repr {
    /// Source address.
    pub src: u128,
    /// Destination address.
    pub dst: u128,
    /// Protocol of the payload.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Bytes behind the header.
    pub payload_len: u16,
}

impl Repr {
    /// Writes the header, word by word.
    #[inline]
    pub fn write(&self, to: &mut [u8; HEADER]) {
        let first = 6 << 28 | u32::from(self.traffic_class) << 20;
        let second = u32::from(self.payload_len) << 16
            | u32::from(self.next_header) << 8
            | u32::from(self.hop_limit);
        to[..4].copy_from_slice(&first.to_be_bytes());
        to[4..8].copy_from_slice(&second.to_be_bytes());
        to[8..24].copy_from_slice(&self.src.to_be_bytes());
        to[24..].copy_from_slice(&self.dst.to_be_bytes());
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
            ("::", false, false),
            ("::1", false, false),
            ("::ffff:192.0.2.1", false, false),
            ("64:ff9b::192.0.2.1", true, false),
            ("2001:db8::1", true, false),
            ("fe7f:ffff::1", true, false),
            ("fe80::1", true, true),
            ("febf:ffff::1", true, true),
            ("fec0::1", true, false),
            ("feff:ffff::1", true, false),
            ("ff00::", false, false),
            ("ff02::1", false, false),
        ] {
            let bits = address.parse::<std::net::Ipv6Addr>().unwrap().to_bits();
            let found = (is_host(bits), is_link_local(bits));
            assert_eq!(found, (host, link_local), "{address}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_header_is_named() {
        let good = Repr {
            src: 1,
            dst: 2,
            next_header: 17,
            hop_limit: 64,
            traffic_class: 0,
            payload_len: 0,
        };
        let good = good.to_bytes();
        assert_eq!(Ipv6::parse(&good[..39]), Err(Malformed::Truncated));
        let mut h = good;
        h[5] = 1;
        assert_eq!(Ipv6::parse(&h), Err(Malformed::Truncated));
        let mut h = good;
        h[0] = 0x45;
        assert_eq!(Ipv6::parse(&h), Err(Malformed::Version));
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_also_after_changes(
            src: u128, dst: u128, next: u8, hops in 1u8.., class: u8, new: u8,
        ) {
            let header = Repr {
                src, dst, next_header: next, hop_limit: hops, traffic_class: class, payload_len: 0,
            };
            let mut h = header.to_bytes();
            let read = Ipv6::parse(&h).unwrap();
            prop_assert_eq!(
                (read.src, read.dst, read.next_header, read.hop_limit, read.traffic_class),
                (src, dst, next, hops, class)
            );
            decrement_hop_limit(&mut h);
            set_traffic_class(&mut h, new);
            let read = Ipv6::parse(&h).unwrap();
            prop_assert_eq!((read.hop_limit, read.traffic_class, read.flow_label), (hops - 1, new, 0));
        }
    }
}
