//! Both health tests over a block of values at once, sixteen bytes at a time.

/// The findings in a block of values.
pub(super) struct Found {
    /// Bytes equal to the reference.
    pub(super) matches: u32,
    /// Some half of a value may equal the same half of the value before it. True for one
    /// block in 2²⁵ of a sound source; false means that no value repeats.
    pub(super) may_repeat: bool,
}

/// Examines every byte and every pair of neighbours of a block of at most 64 values.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn look(block: &[[u8; 8]], before: u64, reference: u8) -> Found {
    use core::arch::x86_64::{
        __m128i, _mm_add_epi64, _mm_cmpeq_epi32, _mm_cmpeq_epi8, _mm_cvtsi128_si64,
        _mm_loadu_si128, _mm_movemask_epi8, _mm_or_si128, _mm_sad_epu8, _mm_set1_epi8,
        _mm_set_epi64x, _mm_setzero_si128, _mm_sub_epi8, _mm_unpackhi_epi64,
    };

    let value = |index: usize| block.get(index).map_or(0, |word| i64::from_ne_bytes(*word));
    let pairs = block.len() / 2;
    let start = block.as_ptr().cast::<__m128i>();
    // SAFETY: SSE2 belongs to every x86-64 processor. Vector `index` covers values `2 * index`
    // and the one after it, both below `2 * pairs <= block.len()`, and its load needs no
    // alignment.
    unsafe {
        let wanted = _mm_set1_epi8(reference as i8);
        let mut counts = _mm_setzero_si128();
        let mut equal = _mm_setzero_si128();
        let mut previous = _mm_set_epi64x(before as i64, 0);
        for index in 0..pairs {
            let vector = _mm_loadu_si128(start.add(index));
            // The second value before and the first of this vector: the neighbours' left.
            let shifted = _mm_unpackhi_epi64(previous, previous);
            let left = core::arch::x86_64::_mm_unpacklo_epi64(shifted, vector);
            equal = _mm_or_si128(equal, _mm_cmpeq_epi32(vector, left));
            counts = _mm_sub_epi8(counts, _mm_cmpeq_epi8(vector, wanted));
            previous = vector;
        }
        let mut last_matches = _mm_setzero_si128();
        if block.len() % 2 == 1 {
            let last = value(block.len() - 1);
            let alone = _mm_set_epi64x(!last, last);
            let left = _mm_unpackhi_epi64(previous, previous);
            let same = _mm_cmpeq_epi32(alone, left);
            equal = _mm_or_si128(equal, _mm_set_epi64x(0, _mm_cvtsi128_si64(same)));
            let hits = _mm_cvtsi128_si64(_mm_cmpeq_epi8(alone, wanted));
            last_matches = _mm_sub_epi8(last_matches, _mm_set_epi64x(0, hits));
        }
        let zero = _mm_setzero_si128();
        let sums = _mm_add_epi64(_mm_sad_epu8(counts, zero), _mm_sad_epu8(last_matches, zero));
        let both = _mm_add_epi64(sums, _mm_unpackhi_epi64(sums, sums));
        Found {
            matches: _mm_cvtsi128_si64(both) as u32,
            may_repeat: _mm_movemask_epi8(equal) != 0,
        }
    }
}

/// [`look`] without vectors.
#[cfg(any(not(target_arch = "x86_64"), test))]
pub(super) fn look_plainly(block: &[[u8; 8]], before: u64, reference: u8) -> Found {
    let mut found = Found {
        matches: 0,
        may_repeat: false,
    };
    let mut before = before;
    for word in block {
        let value = u64::from_ne_bytes(*word);
        let difference = value ^ before;
        found.may_repeat |= difference as u32 == 0 || difference >> 32 == 0;
        found.matches += word
            .iter()
            .map(|&byte| u32::from(byte == reference))
            .sum::<u32>();
        before = value;
    }
    found
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) use look_plainly as look;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn vectors_and_plain_code_agree(
            // Few different halves, so that neighbours are often equal.
            values in prop::collection::vec((0_u64..3, 0_u64..3), 0..=64),
            before in (0_u64..3, 0_u64..3),
            reference in 0_u8..3,
        ) {
            let value = |(high, low): (u64, u64)| high << 32 | low;
            let block: std::vec::Vec<[u8; 8]> =
                values.into_iter().map(|halves| value(halves).to_ne_bytes()).collect();
            let fast = look(&block, value(before), reference);
            let plain = look_plainly(&block, value(before), reference);
            prop_assert_eq!(fast.matches, plain.matches);
            prop_assert_eq!(fast.may_repeat, plain.may_repeat);
        }
    }
}
