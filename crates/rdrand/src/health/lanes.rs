//! Eight counters of one byte each, one per byte lane of a value.

use super::ONES;

const LOW_BITS: u64 = 0x7f7f_7f7f_7f7f_7f7f;

/// Returns 1 in every byte lane where `a` and `b` are equal, 0 elsewhere; no carry between lanes.
#[inline(always)]
pub(super) fn equal_lanes(a: u64, b: u64) -> u64 {
    let difference = a ^ b;
    let some_bit = ((difference & LOW_BITS) + LOW_BITS) | difference;
    (!some_bit >> 7) & ONES
}

#[cfg(target_arch = "x86_64")]
pub(super) use vectors::{Lanes, Pattern};

/// In vector registers: three instructions per value instead of nine that wait for each other.
#[cfg(target_arch = "x86_64")]
mod vectors {
    use core::arch::x86_64::{
        __m128i, _mm_cmpeq_epi8, _mm_cvtsi128_si64, _mm_cvtsi64_si128, _mm_sub_epi8,
    };

    /// The reference byte in every lane.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Pattern(__m128i);

    /// The counters.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Lanes(__m128i);

    impl Pattern {
        #[inline(always)]
        pub(in super::super) fn new(pattern: u64) -> Self {
            Pattern(low_half(pattern))
        }
    }

    impl Lanes {
        #[inline(always)]
        pub(in super::super) fn new(lanes: u64) -> Self {
            Lanes(low_half(lanes))
        }

        #[inline(always)]
        pub(in super::super) fn bytes(self) -> u64 {
            // SAFETY: SSE2 belongs to every x86-64 processor, and no memory is touched.
            unsafe { _mm_cvtsi128_si64(self.0) as u64 }
        }

        /// Adds 1 to the lanes in which `value` has the reference byte.
        #[inline(always)]
        pub(in super::super) fn count(&mut self, value: u64, pattern: Pattern) {
            // SAFETY: as above. Equal lanes are −1; the upper halves are never looked at.
            self.0 = unsafe { _mm_sub_epi8(self.0, _mm_cmpeq_epi8(low_half(value), pattern.0)) };
        }
    }

    #[inline(always)]
    fn low_half(value: u64) -> __m128i {
        // SAFETY: SSE2 belongs to every x86-64 processor, and no memory is touched.
        unsafe { _mm_cvtsi64_si128(value as i64) }
    }
}

#[cfg(any(not(target_arch = "x86_64"), test))]
mod plain {
    /// The reference byte in every lane.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Pattern(u64);

    /// The counters.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Lanes(u64);

    impl Pattern {
        #[inline(always)]
        pub(in super::super) fn new(pattern: u64) -> Self {
            Pattern(pattern)
        }
    }

    impl Lanes {
        #[inline(always)]
        pub(in super::super) fn new(lanes: u64) -> Self {
            Lanes(lanes)
        }

        #[inline(always)]
        pub(in super::super) fn bytes(self) -> u64 {
            self.0
        }

        /// Adds 1 to the lanes in which `value` has the reference byte.
        #[inline(always)]
        pub(in super::super) fn count(&mut self, value: u64, pattern: Pattern) {
            self.0 += super::equal_lanes(value, pattern.0);
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) use plain::{Lanes, Pattern};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::healthy_value;

    #[test]
    fn lanes_compare_without_carries() {
        assert_eq!(equal_lanes(0, 0), ONES);
        assert_eq!(equal_lanes(0x8000_0000_0000_0001, 0), 0x0001_0101_0101_0100);
        assert_eq!(
            equal_lanes(u64::MAX, 0x7fff_ffff_ffff_fffe),
            0x0001_0101_0101_0100
        );
    }

    #[test]
    fn vectors_and_plain_code_count_the_same() {
        let (mut vector, mut one_by_one) = (0, 0);
        for index in 0..2000 {
            if index % 63 == 0 {
                (vector, one_by_one) = (0, 0);
            }
            let pattern = healthy_value(11, index);
            // Some bytes of another value, so that some lanes are equal.
            let mask = (healthy_value(12, index) & ONES) * 0xff;
            let value = (pattern & mask) | (healthy_value(13, index) & !mask);

            let mut lanes = Lanes::new(vector);
            lanes.count(value, Pattern::new(pattern));
            vector = lanes.bytes();
            let mut lanes = plain::Lanes::new(one_by_one);
            lanes.count(value, plain::Pattern::new(pattern));
            one_by_one = lanes.bytes();
            assert_eq!(vector, one_by_one);
        }
    }
}
