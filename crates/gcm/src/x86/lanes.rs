//! One algorithm, three register widths: a vector of 1, 2 or 4 blocks of 128 bits.

use super::once;
use super::schedule::Block;
use core::arch::x86_64::*;

/// A register of [`Lanes::COUNT`] blocks.
///
/// # Safety
/// Every function must be called, inlined, from a function that enables the instructions of the
/// implementing type; pointers must be good for the bytes that the function names.
pub(super) unsafe trait Lanes: Copy {
    /// 128-bit blocks in a register.
    const COUNT: usize;

    /// All bits zero.
    unsafe fn zero() -> Self;
    /// One block in every lane.
    unsafe fn splat(block: __m128i) -> Self;
    /// One block of key material from memory in every lane.
    unsafe fn splat_from(p: *const Block) -> Self;
    /// `COUNT` blocks of private memory.
    unsafe fn load_private(p: *const Block) -> Self;
    /// `COUNT` blocks to private memory.
    unsafe fn store_private(p: *mut Block, v: Self);
    /// One block in lane 0, zero in the others.
    unsafe fn in_first_lane(block: __m128i) -> Self;
    /// Lane 0.
    unsafe fn first_lane(self) -> __m128i;
    /// The sum (exclusive or) of all lanes.
    unsafe fn sum_of_lanes(self) -> __m128i;
    /// Loads the `I`-th `COUNT` blocks from memory that may be shared, once.
    unsafe fn load_once<const I: usize>(p: *const u8) -> Self;
    /// Stores the `I`-th `COUNT` blocks to memory that may be shared, once.
    unsafe fn store_once<const I: usize>(p: *mut u8, v: Self);
    /// Exclusive or.
    unsafe fn xor(self, other: Self) -> Self;
    /// Exclusive or of three.
    unsafe fn xor3(self, b: Self, c: Self) -> Self;
    /// Adds 32-bit words.
    unsafe fn add_words(self, other: Self) -> Self;
    /// Adds one to the last 32-bit word of lane 0, two in lane 1, and so on.
    unsafe fn lane_numbers() -> Self;
    /// Permutes the bytes of every lane by the same `order`.
    unsafe fn permute(self, order: Self) -> Self;
    /// Swaps the 64-bit halves of every lane.
    unsafe fn swap_halves(self) -> Self;
    /// A middle round of AES.
    unsafe fn aes(self, key: Self) -> Self;
    /// The last round of AES.
    unsafe fn aes_last(self, key: Self) -> Self;
    /// Carry-less product of a half of each; bit 0 of `HALVES` picks the upper half of `self`, bit 4 of `other`.
    unsafe fn product<const HALVES: i32>(self, other: Self) -> Self;
}

/// Four blocks: AVX-512 with VAES and VPCLMULQDQ.
#[derive(Clone, Copy)]
pub(super) struct Quad(pub(super) __m512i);

/// Two blocks: AVX2 with VAES and VPCLMULQDQ.
#[derive(Clone, Copy)]
pub(super) struct Pair(pub(super) __m256i);

/// One block: AES-NI and PCLMULQDQ.
#[derive(Clone, Copy)]
pub(super) struct Single(pub(super) __m128i);

// SAFETY: each function is the intrinsic that its name says, under the trait's contract.
#[rustfmt::skip]
unsafe impl Lanes for Quad {
    const COUNT: usize = 4;
    #[inline(always)] unsafe fn zero() -> Self { unsafe { Self(_mm512_setzero_si512()) } }
    #[inline(always)] unsafe fn splat(b: __m128i) -> Self { unsafe { Self(_mm512_broadcast_i32x4(b)) } }
    #[inline(always)] unsafe fn splat_from(p: *const Block) -> Self { unsafe { Self::splat(_mm_load_si128(p.cast())) } }
    #[inline(always)] unsafe fn load_private(p: *const Block) -> Self { unsafe { Self(_mm512_loadu_si512(p.cast())) } }
    #[inline(always)] unsafe fn store_private(p: *mut Block, v: Self) { unsafe { _mm512_storeu_si512(p.cast(), v.0) } }
    #[inline(always)] unsafe fn in_first_lane(b: __m128i) -> Self { unsafe { Self(_mm512_zextsi128_si512(b)) } }
    #[inline(always)] unsafe fn first_lane(self) -> __m128i { unsafe { _mm512_castsi512_si128(self.0) } }
    #[inline(always)] unsafe fn sum_of_lanes(self) -> __m128i { unsafe {
        Pair(_mm256_xor_si256(_mm512_castsi512_si256(self.0), _mm512_extracti64x4_epi64::<1>(self.0))).sum_of_lanes()
    } }
    #[inline(always)] unsafe fn load_once<const I: usize>(p: *const u8) -> Self { unsafe { Self(once::load_512::<I>(p)) } }
    #[inline(always)] unsafe fn store_once<const I: usize>(p: *mut u8, v: Self) { unsafe { once::store_512::<I>(p, v.0) } }
    #[inline(always)] unsafe fn xor(self, b: Self) -> Self { unsafe { Self(_mm512_xor_si512(self.0, b.0)) } }
    #[inline(always)] unsafe fn xor3(self, b: Self, c: Self) -> Self { unsafe { Self(_mm512_ternarylogic_epi64::<0x96>(self.0, b.0, c.0)) } }
    #[inline(always)] unsafe fn add_words(self, b: Self) -> Self { unsafe { Self(_mm512_add_epi32(self.0, b.0)) } }
    #[inline(always)] unsafe fn lane_numbers() -> Self { unsafe { Self(_mm512_set_epi32(4, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0)) } }
    #[inline(always)] unsafe fn permute(self, o: Self) -> Self { unsafe { Self(_mm512_shuffle_epi8(self.0, o.0)) } }
    #[inline(always)] unsafe fn swap_halves(self) -> Self { unsafe { Self(_mm512_shuffle_epi32::<0x4e>(self.0)) } }
    #[inline(always)] unsafe fn aes(self, k: Self) -> Self { unsafe { Self(_mm512_aesenc_epi128(self.0, k.0)) } }
    #[inline(always)] unsafe fn aes_last(self, k: Self) -> Self { unsafe { Self(_mm512_aesenclast_epi128(self.0, k.0)) } }
    #[inline(always)] unsafe fn product<const HALVES: i32>(self, b: Self) -> Self { unsafe { Self(_mm512_clmulepi64_epi128::<HALVES>(self.0, b.0)) } }
}

// SAFETY: each function is the intrinsic that its name says, under the trait's contract.
#[rustfmt::skip]
unsafe impl Lanes for Pair {
    const COUNT: usize = 2;
    #[inline(always)] unsafe fn zero() -> Self { unsafe { Self(_mm256_setzero_si256()) } }
    #[inline(always)] unsafe fn splat(b: __m128i) -> Self { unsafe { Self(_mm256_broadcastsi128_si256(b)) } }
    #[inline(always)] unsafe fn splat_from(p: *const Block) -> Self { unsafe { Self::splat(_mm_load_si128(p.cast())) } }
    #[inline(always)] unsafe fn load_private(p: *const Block) -> Self { unsafe { Self(_mm256_loadu_si256(p.cast())) } }
    #[inline(always)] unsafe fn store_private(p: *mut Block, v: Self) { unsafe { _mm256_storeu_si256(p.cast(), v.0) } }
    #[inline(always)] unsafe fn in_first_lane(b: __m128i) -> Self { unsafe { Self(_mm256_zextsi128_si256(b)) } }
    #[inline(always)] unsafe fn first_lane(self) -> __m128i { unsafe { _mm256_castsi256_si128(self.0) } }
    #[inline(always)] unsafe fn sum_of_lanes(self) -> __m128i { unsafe { _mm_xor_si128(self.first_lane(), _mm256_extracti128_si256::<1>(self.0)) } }
    #[inline(always)] unsafe fn load_once<const I: usize>(p: *const u8) -> Self { unsafe { Self(once::load_256::<I>(p)) } }
    #[inline(always)] unsafe fn store_once<const I: usize>(p: *mut u8, v: Self) { unsafe { once::store_256::<I>(p, v.0) } }
    #[inline(always)] unsafe fn xor(self, b: Self) -> Self { unsafe { Self(_mm256_xor_si256(self.0, b.0)) } }
    #[inline(always)] unsafe fn xor3(self, b: Self, c: Self) -> Self { unsafe { self.xor(b).xor(c) } }
    #[inline(always)] unsafe fn add_words(self, b: Self) -> Self { unsafe { Self(_mm256_add_epi32(self.0, b.0)) } }
    #[inline(always)] unsafe fn lane_numbers() -> Self { unsafe { Self(_mm256_set_epi32(2, 0, 0, 0, 1, 0, 0, 0)) } }
    #[inline(always)] unsafe fn permute(self, o: Self) -> Self { unsafe { Self(_mm256_shuffle_epi8(self.0, o.0)) } }
    #[inline(always)] unsafe fn swap_halves(self) -> Self { unsafe { Self(_mm256_shuffle_epi32::<0x4e>(self.0)) } }
    #[inline(always)] unsafe fn aes(self, k: Self) -> Self { unsafe { Self(_mm256_aesenc_epi128(self.0, k.0)) } }
    #[inline(always)] unsafe fn aes_last(self, k: Self) -> Self { unsafe { Self(_mm256_aesenclast_epi128(self.0, k.0)) } }
    #[inline(always)] unsafe fn product<const HALVES: i32>(self, b: Self) -> Self { unsafe { Self(_mm256_clmulepi64_epi128::<HALVES>(self.0, b.0)) } }
}

// SAFETY: each function is the intrinsic that its name says, under the trait's contract.
#[rustfmt::skip]
unsafe impl Lanes for Single {
    const COUNT: usize = 1;
    #[inline(always)] unsafe fn zero() -> Self { unsafe { Self(_mm_setzero_si128()) } }
    #[inline(always)] unsafe fn splat(b: __m128i) -> Self { Self(b) }
    #[inline(always)] unsafe fn splat_from(p: *const Block) -> Self { unsafe { Self(_mm_load_si128(p.cast())) } }
    #[inline(always)] unsafe fn load_private(p: *const Block) -> Self { unsafe { Self(_mm_loadu_si128(p.cast())) } }
    #[inline(always)] unsafe fn store_private(p: *mut Block, v: Self) { unsafe { _mm_storeu_si128(p.cast(), v.0) } }
    #[inline(always)] unsafe fn in_first_lane(b: __m128i) -> Self { Self(b) }
    #[inline(always)] unsafe fn first_lane(self) -> __m128i { self.0 }
    #[inline(always)] unsafe fn sum_of_lanes(self) -> __m128i { self.0 }
    #[inline(always)] unsafe fn load_once<const I: usize>(p: *const u8) -> Self { unsafe { Self(once::load_128::<I>(p)) } }
    #[inline(always)] unsafe fn store_once<const I: usize>(p: *mut u8, v: Self) { unsafe { once::store_128::<I>(p, v.0) } }
    #[inline(always)] unsafe fn xor(self, b: Self) -> Self { unsafe { Self(_mm_xor_si128(self.0, b.0)) } }
    #[inline(always)] unsafe fn xor3(self, b: Self, c: Self) -> Self { unsafe { self.xor(b).xor(c) } }
    #[inline(always)] unsafe fn add_words(self, b: Self) -> Self { unsafe { Self(_mm_add_epi32(self.0, b.0)) } }
    #[inline(always)] unsafe fn lane_numbers() -> Self { unsafe { Self(_mm_set_epi32(1, 0, 0, 0)) } }
    #[inline(always)] unsafe fn permute(self, o: Self) -> Self { unsafe { Self(_mm_shuffle_epi8(self.0, o.0)) } }
    #[inline(always)] unsafe fn swap_halves(self) -> Self { unsafe { Self(_mm_shuffle_epi32::<0x4e>(self.0)) } }
    #[inline(always)] unsafe fn aes(self, k: Self) -> Self { unsafe { Self(_mm_aesenc_si128(self.0, k.0)) } }
    #[inline(always)] unsafe fn aes_last(self, k: Self) -> Self { unsafe { Self(_mm_aesenclast_si128(self.0, k.0)) } }
    #[inline(always)] unsafe fn product<const HALVES: i32>(self, b: Self) -> Self { unsafe { Self(_mm_clmulepi64_si128::<HALVES>(self.0, b.0)) } }
}
