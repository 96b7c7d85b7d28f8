//! The Internet checksum (RFC 1071) and its incremental update (RFC 1624).

/// Returns the sum of `bytes` as big-endian 16-bit words, or a number that [`finish`] takes for the
/// same; an odd last byte counts as the high half of a word.
#[inline]
pub fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    // In the order of the processor's bytes, which every x86-64 processor sums in registers of 128
    // bits; the halves of the words are swapped once at the end (RFC 1071, 2 B).
    let native: u64 = words
        .iter()
        .map(|w| u64::from(u32::from_ne_bytes(*w)))
        .sum();
    let mut sum = of_native(native);
    if let Some((pair, odd)) = rest.split_first_chunk::<2>() {
        sum += u64::from(u16::from_be_bytes(*pair));
        sum += odd.first().map_or(0, |&b| u64::from(b) << 8);
    } else {
        sum += rest.first().map_or(0, |&b| u64::from(b) << 8);
    }
    sum
}

/// Returns what [`sum`] returns for bytes of which the 32-bit words, in the processor's order of
/// bytes, have the sum `native`.
#[inline]
pub fn of_native(native: u64) -> u64 {
    u64::from(u16::from_be(!finish(native)))
}

/// Returns a sum folded to 16 bits and inverted, as in a checksum field.
#[inline]
pub fn finish(sum: u64) -> u16 {
    // The upper half of a number plus the same with its halves swapped is the sum of its halves,
    // carry added again.
    let sum = (sum.wrapping_add(sum.rotate_left(32)) >> 32) as u32;
    let sum = (sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16;
    !sum
}

/// Returns true if the checksum of an IPv4 header without options is right.
#[inline]
pub fn is_right(header: &[u8; 20]) -> bool {
    // Both zeros of ones' complement are multiples of 2¹⁶ - 1, and the order of the bytes does not
    // matter (RFC 1071, 2 B). A header is not all zero. The widest words, as each takes an addition
    // and a carry one more.
    let word = |at: usize| {
        let [a, b, c, d, e, f, g, h] = *header[at..].first_chunk().unwrap_or(&[0; 8]);
        u64::from_ne_bytes([a, b, c, d, e, f, g, h])
    };
    let [.., w, x, y, z] = *header;
    let last = u64::from(u32::from_ne_bytes([w, x, y, z]));
    let (sum, carry) = word(0).overflowing_add(word(8));
    let (sum, again) = sum.overflowing_add(last + u64::from(carry));
    (sum + u64::from(again)).is_multiple_of(0xffff)
}

/// Returns the checksum after one 16-bit word that it covers changed (RFC 1624, equation 3).
#[inline]
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    finish(u64::from(!checksum) + u64::from(!old) + u64::from(new))
}

/// Returns the sum of the pseudo-header of UDP, TCP and ICMPv6 over IPv4 or IPv6: addresses of 4 or
/// 16 bytes each.
pub fn pseudo_header(src: &[u8], dst: &[u8], protocol: u8, len: usize) -> u64 {
    sum(src) + sum(dst) + u64::from(protocol) + len as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The checksum word by word, as in RFC 1071.
    fn plainly(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&b| u32::from(b));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn carries_of_every_addition_count() {
        let all = |bytes: [u8; 4]| {
            let mut header = [0xff; 20];
            header[16..].copy_from_slice(&bytes);
            header
        };
        let mut second = [0xff; 20];
        second[8..16].fill(0);
        // Of any words, and the largest sum there is.
        for header in [all([0xff; 4]), second, all(1u32.to_ne_bytes()), all([0; 4])] {
            assert_eq!(is_right(&header), plainly(&header) == 0, "{header:x?}");
        }
    }

    #[test]
    fn a_pseudo_header_has_both_addresses_the_protocol_and_the_length() {
        let sum = pseudo_header(&[1, 2, 3, 4], &[5, 6, 7, 8], 17, 9);
        assert_eq!(finish(sum), !(0x1014 + 17 + 9));
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
        fn a_header_is_right_if_its_sum_is_zero(mut header in any::<[u8; 20]>(), valid in any::<bool>()) {
            header[0] |= 0x40;
            if valid {
                header[10..12].fill(0);
                let checksum = finish(sum(&header));
                header[10..12].copy_from_slice(&checksum.to_be_bytes());
            }
            prop_assert_eq!(is_right(&header), plainly(&header) == 0);
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
