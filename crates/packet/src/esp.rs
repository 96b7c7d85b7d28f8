//! ESP in tunnel mode with AES-GCM (RFC 4303, RFC 4106): the lengths of its parts.
//!
//! ```text
//! outer IPv4 20 or IPv6 40 | SPI 4, sequence number 4 | IV 8 | inner packet
//!                          | padding 0 to 3, pad length 1, next header 1 | ICV 16
//! ```

/// Bytes of SPI, sequence number (RFC 4303, 2.1 and 2.2) and IV (RFC 4106, 3.1).
pub const HEADER: usize = 16;

/// Bytes of the integrity check value (RFC 4106, 6).
pub const ICV: usize = 16;

/// Bytes of pad length and next header (RFC 4303, 2.5 and 2.6).
pub const TRAILER: usize = 2;

/// Returns the bytes of padding of an inner packet. RFC 4303, 2.4: the ciphertext is to end "on a
/// 4-byte boundary".
#[inline]
pub const fn padding(inner: usize) -> usize {
    (inner + TRAILER).wrapping_neg() & 3
}

/// Returns the bytes of ESP around an inner packet of `inner` bytes, the outer IP header left out.
#[inline]
pub const fn overhead(inner: usize) -> usize {
    HEADER + padding(inner) + TRAILER + ICV
}

/// Returns the longest inner packet whose outer packet fits `mtu`, for an outer IP header of
/// `outer_header` bytes.
pub const fn inner_max(mtu: usize, outer_header: usize) -> usize {
    let payload = mtu.saturating_sub(outer_header + HEADER + ICV) & !3;
    payload.saturating_sub(TRAILER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_inner_packet_fits_and_the_next_does_not() {
        for outer_header in [crate::ipv4::HEADER, crate::ipv6::HEADER] {
            for mtu in 100..1600 {
                let inner = inner_max(mtu, outer_header);
                let outer = |inner: usize| outer_header + inner + overhead(inner);
                assert!(outer(inner) <= mtu && outer(inner + 1) > mtu, "{mtu}");
                assert!((inner + padding(inner) + TRAILER).is_multiple_of(4));
            }
        }
    }
}
