//! A 64-bit checksum against accidents on lines that have none that can be trusted. It is not a
//! defence: a sender that forges a message can compute its checksum.

/// Odd multipliers, one per lane: fractional digits of the square roots of 2, 3, 5 and 7.
const MULTIPLIERS: [u64; 4] = [
    0x6a09_e667_f3bc_c909,
    0xbb67_ae85_84ca_a73b,
    0x3c6e_f372_fe94_f82b,
    0xa54f_f53a_5f1d_36f1,
];

/// The checksum of `bytes`. Each step is a bijection of its lane, so a change within one aligned
/// word of eight bytes is always seen; any other remains unseen with probability about 2⁻⁶⁴.
///
/// Four lanes, because one alone waits for its multiplication at each word.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    let mut lanes = [bytes.len() as u64, 1, 2, 3];
    let (blocks, rest) = bytes.as_chunks::<32>();
    for block in blocks {
        for (n, word) in block.as_chunks::<8>().0.iter().enumerate() {
            lanes[n] = mix(lanes[n], u64::from_le_bytes(*word), MULTIPLIERS[n]);
        }
    }
    for (n, bytes) in rest.chunks(8).enumerate() {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        lanes[n] = mix(lanes[n], u64::from_le_bytes(word), MULTIPLIERS[n]);
    }
    let fold = |sum: u64, lane: &u64| mix(sum, *lane, MULTIPLIERS[0]);
    lanes.iter().fold(0, fold)
}

#[inline]
fn mix(state: u64, word: u64, multiplier: u64) -> u64 {
    let product = (state ^ word).wrapping_mul(multiplier);
    product ^ (product >> 29)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_and_every_other_length_is_seen() {
        for len in [0, 1, 7, 8, 31, 32, 33, 72, 200] {
            let mut bytes: Vec<u8> = (0..len).map(|n| (n * 37) as u8).collect();
            let sum = checksum(&bytes);
            for bit in 0..len * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(checksum(&bytes), sum, "bit {bit} of {len} bytes");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            bytes.push(0);
            assert_ne!(checksum(&bytes), sum, "a zero behind {len} bytes");
        }
    }

    #[test]
    fn words_that_change_places_are_seen() {
        let bytes: Vec<u8> = (0..64).collect();
        for (a, b) in [(0, 8), (0, 32), (8, 56)] {
            let mut swapped = bytes.clone();
            (0..8).for_each(|n| swapped.swap(a + n, b + n));
            assert_ne!(checksum(&swapped), checksum(&bytes));
        }
    }
}
