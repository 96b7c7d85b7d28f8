//! The Internet checksum (RFC 1071) and how it changes with what it covers (RFC 1624).

/// The sum of `bytes` as big-endian 16-bit words, not folded; an odd last byte counts as the high half of a word.
#[inline]
pub fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut sum: u64 = words
        .iter()
        .map(|w| u64::from(u32::from_be_bytes(*w)))
        .sum();
    if let Some((pair, odd)) = rest.split_first_chunk::<2>() {
        sum += u64::from(u16::from_be_bytes(*pair));
        sum += odd.first().map_or(0, |&b| u64::from(b) << 8);
    } else {
        sum += rest.first().map_or(0, |&b| u64::from(b) << 8);
    }
    sum
}

/// A sum folded to 16 bits and inverted: what stands in a checksum field.
#[inline]
pub fn finish(sum: u64) -> u16 {
    let sum = (sum >> 48) + (sum >> 32 & 0xffff) + (sum >> 16 & 0xffff) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    !(sum as u16)
}

/// The checksum after one 16-bit word that it covers changed (RFC 1624, equation 3).
#[inline]
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    finish(u64::from(!checksum) + u64::from(!old) + u64::from(new))
}

/// The sum of the pseudo-header of UDP, TCP and ICMPv6 over IPv4 or IPv6: addresses of 4 or 16 bytes each.
pub fn pseudo_header(src: &[u8], dst: &[u8], protocol: u8, len: usize) -> u64 {
    sum(src) + sum(dst) + u64::from(protocol) + len as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Word by word, as RFC 1071 tells it.
    fn plainly(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&b| u32::from(b));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn the_example_of_rfc_1071() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(finish(sum(&bytes)), !0xddf2);
    }

    proptest! {
        #[test]
        fn sums_of_wide_words_are_sums_of_narrow_ones(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            prop_assert_eq!(finish(sum(&bytes)), plainly(&bytes));
        }

        #[test]
        fn an_update_is_a_new_computation(mut header in any::<[u8; 20]>(), new in any::<u16>()) {
            header[10..12].fill(0);
            let before = finish(sum(&header));
            let old = u16::from_be_bytes([header[8], header[9]]);
            header[8..10].copy_from_slice(&new.to_be_bytes());
            let after = update(before, old, new);
            // Both zeros of ones' complement stand for the same sum.
            let same = |c: u16| if c == 0xffff { 0 } else { c };
            prop_assert_eq!(same(after), same(finish(sum(&header))));
        }
    }
}
