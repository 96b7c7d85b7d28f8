//! GHASH as sums of carry-less products that are reduced late.
//!
//! As on x86-64, blocks are byte-reversed, so that a register holds the bit-reflected polynomial of
//! NIST SP 800-38D, and the stored powers of H are H^k/x: the product of two reflected polynomials
//! is one bit too low, and they are one bit higher.

use super::once::from_words;
use core::arch::aarch64::*;

/// The reduction polynomial x^128 + x^7 + x^2 + x + 1, reflected, without its lowest and highest
/// terms: the upper half of a register.
const POLYNOMIAL: u64 = 0xc2 << 56;

/// The bytes of a block in reverse order.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn reversed(v: uint8x16_t) -> uint8x16_t {
    swapped(vrev64q_u8(v))
}

/// The halves of a register swapped.
#[inline]
#[target_feature(enable = "neon")]
fn swapped(v: uint8x16_t) -> uint8x16_t {
    vextq_u8::<8>(v, v)
}

/// The carry-less product of the lower halves.
#[inline]
#[target_feature(enable = "neon,aes")]
fn product_low(x: uint8x16_t, p: uint8x16_t) -> uint8x16_t {
    let (x, p) = (vreinterpretq_u64_u8(x), vreinterpretq_u64_u8(p));
    vreinterpretq_u8_p128(vmull_p64(vgetq_lane_u64::<0>(x), vgetq_lane_u64::<0>(p)))
}

/// The carry-less product of the upper halves.
#[inline]
#[target_feature(enable = "neon,aes")]
fn product_high(x: uint8x16_t, p: uint8x16_t) -> uint8x16_t {
    let (x, p) = (vreinterpretq_p64_u8(x), vreinterpretq_p64_u8(p));
    vreinterpretq_u8_p128(vmull_high_p64(x, p))
}

/// A sum of 256-bit products that is not reduced yet: low + middle·2^64 + high·2^128, where
/// `middle` lacks low + high. It is the sum of the products of both halves added up (Karatsuba),
/// three multiplications in place of four.
#[derive(Clone, Copy)]
pub(super) struct Sum {
    pub(super) low: uint8x16_t,
    pub(super) middle: uint8x16_t,
    pub(super) high: uint8x16_t,
}

impl Sum {
    /// The empty sum.
    #[inline(always)]
    pub(super) fn zero() -> Self {
        let zero = from_words(0, 0);
        Self {
            low: zero,
            middle: zero,
            high: zero,
        }
    }

    /// Adds x·p.
    #[inline]
    #[target_feature(enable = "neon,aes")]
    pub(super) fn add(&mut self, x: uint8x16_t, p: uint8x16_t) {
        self.low = veorq_u8(self.low, product_low(x, p));
        self.high = veorq_u8(self.high, product_high(x, p));
        let (x, p) = (veorq_u8(x, swapped(x)), veorq_u8(p, swapped(p)));
        self.middle = veorq_u8(self.middle, product_low(x, p));
    }

    /// The remainder modulo the GHASH polynomial: its tail times the lowest 64 bits cancels them,
    /// twice.
    #[inline]
    #[target_feature(enable = "neon,aes")]
    pub(super) fn reduced(self) -> uint8x16_t {
        let polynomial = from_words(POLYNOMIAL, 0);
        let fold = |v| veorq_u8(swapped(v), product_low(v, polynomial));
        let middle = veorq_u8(self.middle, veorq_u8(self.low, self.high));
        let middle = veorq_u8(middle, fold(self.low));
        veorq_u8(self.high, fold(middle))
    }
}

/// x·p reduced.
#[inline]
#[target_feature(enable = "neon,aes")]
pub(super) fn multiply(x: uint8x16_t, p: uint8x16_t) -> uint8x16_t {
    let mut sum = Sum::zero();
    sum.add(x, p);
    sum.reduced()
}
