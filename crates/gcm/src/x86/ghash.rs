//! GHASH as sums of carry-less products that are reduced late.
//!
//! Blocks are byte-reversed, so that a register holds the bit-reflected polynomial of NIST SP
//! 800-38D. The product of two reflected polynomials is the reflected product, one bit too low; the
//! stored powers of H are one bit higher to make up for it (they are H^k/x), so the data path has
//! no shift.

use super::lanes::Lanes;
use core::arch::x86_64::*;

/// The bytes of a block in reverse order, as a `permute` order.
#[inline(always)]
pub(super) unsafe fn byte_reversal() -> __m128i {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15) }
}

/// The reduction polynomial x^128 + x^7 + x^2 + x + 1, reflected, without its lowest and highest
/// terms.
#[inline(always)]
unsafe fn polynomial<V: Lanes>() -> V {
    // SAFETY: under the contract of Lanes.
    unsafe { V::splat(_mm_set_epi64x(0xc200_0000_0000_0000_u64 as i64, 0)) }
}

/// A sum of 256-bit products that is not reduced yet: low + middle·2^64 + high·2^128.
///
/// On registers of one block, `middle` lacks low + high: it is then the sum of the products of both
/// halves added up (Karatsuba). A multiplication of 128 bits takes two cycles of the only unit on
/// Zen 4, so that three of them are worth two moves between halves. Wider registers have the same
/// multiplications for more data.
#[derive(Clone, Copy)]
pub(super) struct Sum<V> {
    pub(super) low: V,
    pub(super) middle: V,
    pub(super) high: V,
}

impl<V: Lanes> Sum<V> {
    /// The empty sum.
    #[inline(always)]
    pub(super) unsafe fn zero() -> Self {
        // SAFETY: under the contract of Lanes, as in all of this file.
        unsafe {
            Self {
                low: V::zero(),
                middle: V::zero(),
                high: V::zero(),
            }
        }
    }

    /// x·p, in every lane, with its whole middle: on registers of one block nothing is added to it.
    #[inline(always)]
    pub(super) unsafe fn of(x: V, p: V) -> Self {
        // SAFETY: as above.
        unsafe {
            Self {
                low: x.product::<0x00>(p),
                middle: x.product::<0x01>(p).xor(x.product::<0x10>(p)),
                high: x.product::<0x11>(p),
            }
        }
    }

    /// Adds x·p, in every lane.
    #[inline(always)]
    pub(super) unsafe fn add(&mut self, x: V, p: V) {
        // SAFETY: as above.
        unsafe {
            self.low = self.low.xor(x.product::<0x00>(p));
            self.high = self.high.xor(x.product::<0x11>(p));
            if V::COUNT == 1 {
                let (x, p) = (x.xor(x.swap_halves()), p.xor(p.swap_halves()));
                self.middle = self.middle.xor(x.product::<0x00>(p));
            } else {
                self.middle = self.middle.xor3(x.product::<0x01>(p), x.product::<0x10>(p));
            }
        }
    }

    /// Adds x·p + y·q, in every lane; two at once need fewer additions.
    #[inline(always)]
    pub(super) unsafe fn add2(&mut self, x: V, p: V, y: V, q: V) {
        // SAFETY: as above.
        unsafe {
            if V::COUNT == 1 {
                self.add(x, p);
                self.add(y, q);
                return;
            }
            self.low = self.low.xor3(x.product::<0x00>(p), y.product::<0x00>(q));
            self.middle = self.middle.xor3(x.product::<0x01>(p), x.product::<0x10>(p));
            self.high = self.high.xor3(x.product::<0x11>(p), y.product::<0x11>(q));
            self.middle = self.middle.xor3(y.product::<0x01>(q), y.product::<0x10>(q));
        }
    }

    /// The remainder modulo the GHASH polynomial, in every lane.
    ///
    /// The polynomial's tail times the lowest 64 bits cancels them, twice.
    #[inline(always)]
    pub(super) unsafe fn reduce(mut self) -> V {
        // SAFETY: as above.
        unsafe {
            if V::COUNT == 1 {
                self.middle = self.middle.xor3(self.low, self.high);
            }
            self.reduce_whole()
        }
    }

    /// [`Sum::reduce`] of a sum whose `middle` lacks nothing.
    #[inline(always)]
    unsafe fn reduce_whole(self) -> V {
        // SAFETY: as above.
        unsafe {
            let poly = polynomial::<V>();
            let middle = self
                .middle
                .xor3(self.low.swap_halves(), self.low.product::<0x10>(poly));
            self.high
                .xor3(middle.swap_halves(), middle.product::<0x10>(poly))
        }
    }
}

/// x·p reduced, in every lane.
#[inline(always)]
pub(super) unsafe fn multiply<V: Lanes>(x: V, p: V) -> V {
    // SAFETY: as above.
    unsafe { Sum::of(x, p).reduce_whole() }
}
