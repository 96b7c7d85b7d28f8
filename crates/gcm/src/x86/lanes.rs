//! One algorithm, three register widths: a vector of 1, 2 or 4 blocks of 128 bits.

// One argument covers every block here; it stands before each implementation.
#![allow(clippy::undocumented_unsafe_blocks)]

use super::ghash::Sum;
use super::message::load_nonce;
use super::{narrow, once};
use crate::columns::Unaligned;
use crate::schedule::Block;
use crate::Nonce;
use core::arch::x86_64::*;

/// A register of [`Lanes::COUNT`] blocks.
///
/// # Safety
/// Every function must be called, inlined, from a function that enables the instructions of the
/// implementing type; pointers must be good for the bytes that the function names.
pub(super) unsafe trait Lanes: Copy {
    /// 128-bit blocks in a register.
    const COUNT: usize;
    /// True for instructions in the encoding of AVX (VEX, EVEX), which the compiler uses for
    /// intrinsics where AVX is enabled. Blocks of assembly have to say.
    const VEX: bool;

    /// All bits zero.
    unsafe fn zero() -> Self;
    /// One block in every lane.
    unsafe fn splat(block: __m128i) -> Self;
    /// A nonce with a zero counter in every lane.
    #[inline(always)]
    unsafe fn nonce(nonce: &Nonce) -> Self {
        unsafe { Self::splat(load_nonce(nonce)) }
    }
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
    /// Loads one block from memory that may be shared, once, in the path's own instruction
    /// encoding.
    unsafe fn load_block_once(p: *const u8) -> __m128i;
    /// Stores one block to memory that may be shared, once.
    unsafe fn store_block_once(p: *mut u8, v: __m128i);
    /// Loads `len` < 16 bytes from memory that may be shared, each once, into the first lane; zero
    /// behind them.
    #[inline(always)]
    unsafe fn load_part_once(p: *const u8, len: usize) -> Self {
        const { assert!(Self::COUNT == 1) };
        unsafe {
            Self::in_first_lane(if Self::VEX {
                once::load_part_128::<true>(p, len)
            } else {
                once::load_part_128::<false>(p, len)
            })
        }
    }
    /// Stores the first `len` < 16 bytes to memory that may be shared, each once.
    #[inline(always)]
    unsafe fn store_part_once(p: *mut u8, len: usize, v: Self) {
        const { assert!(Self::COUNT == 1) };
        unsafe {
            if Self::VEX {
                once::store_part_128::<true>(p, len, v.first_lane())
            } else {
                once::store_part_128::<false>(p, len, v.first_lane())
            }
        }
    }
    /// And.
    unsafe fn and(self, other: Self) -> Self;
    /// Exclusive or.
    unsafe fn xor(self, other: Self) -> Self;
    /// Exclusive or of three.
    unsafe fn xor3(self, b: Self, c: Self) -> Self;
    /// The last 32-bit word of every lane replaced.
    unsafe fn with_last_words(self, word: u32) -> Self;
    /// Loads the `I`-th register of the head of a message: the first two blocks of the first are
    /// not data, and zero.
    unsafe fn load_head<const I: usize>(p: *const u8) -> Self;
    /// Stores the data of the `I`-th register of the head.
    unsafe fn store_head<const I: usize>(p: *mut u8, v: Self);
    /// The second block of the head, when this, its `I`-th register, holds it.
    unsafe fn block_one<const I: usize>(self) -> Option<__m128i>;
    /// The `I`-th register of the head with its first two blocks replaced by zero and `block`.
    unsafe fn with_head<const I: usize>(self, block: __m128i) -> Self;
    /// Permutes the bytes of every lane by the same `order`.
    unsafe fn permute(self, order: Self) -> Self;
    /// Swaps the 64-bit halves of every lane.
    unsafe fn swap_halves(self) -> Self;
    /// A middle round of AES.
    unsafe fn aes(self, key: Self) -> Self;
    /// The last round of AES.
    unsafe fn aes_last(self, key: Self) -> Self;
    /// Carry-less product of a half of each; bit 0 of `HALVES` picks the upper half of `self`, bit
    /// 4 of `other`.
    unsafe fn product<const HALVES: i32>(self, other: Self) -> Self;

    /// The `R`-th round of AES, not the last, of a whole step.
    #[inline(always)]
    unsafe fn round<const N: usize, const R: usize>(state: &mut [Self; N], keys: *const Block) {
        unsafe {
            let key = Self::splat_from(keys.add(R));
            state.iter_mut().for_each(|s| *s = s.aes(key));
        }
    }

    /// The same, and adds the product of the `I`-th registers at `x` and `p` to `sum`.
    #[inline(always)]
    unsafe fn round_and_product<const N: usize, const R: usize, const I: usize>(
        state: &mut [Self; N],
        keys: *const Block,
        sum: &mut Sum<Self>,
        x: *const Block,
        p: *const Block,
    ) {
        unsafe {
            Self::round::<N, R>(state, keys);
            let at = I * Self::COUNT;
            sum.add(Self::load_private(x.add(at)), Self::load_private(p.add(at)));
        }
    }

    /// Adds the product of `x` and the `I`-th register at `p` to `sum`.
    #[inline(always)]
    unsafe fn add_product<const I: usize>(sum: &mut Sum<Self>, x: Self, p: *const Block) {
        unsafe { sum.add(x, Self::load_private(p.add(I * Self::COUNT))) }
    }
}

/// Four blocks: AVX-512 with VAES and VPCLMULQDQ.
#[derive(Clone, Copy)]
pub(super) struct Quad(pub(super) __m512i);

/// Two blocks: AVX2 with VAES and VPCLMULQDQ.
#[derive(Clone, Copy)]
pub(super) struct Pair(pub(super) __m256i);

impl Pair {
    /// Two blocks.
    #[inline(always)]
    pub(super) unsafe fn of_blocks(first: __m128i, second: __m128i) -> Self {
        // SAFETY: under the contract of Lanes, as the others here.
        unsafe { Self(_mm256_set_m128i(second, first)) }
    }

    /// Lane 1.
    #[inline(always)]
    pub(super) unsafe fn second_lane(self) -> __m128i {
        // SAFETY: as above.
        unsafe { _mm256_extracti128_si256::<1>(self.0) }
    }

    /// Lane 0 of this and lane 1 of another.
    #[inline(always)]
    pub(super) unsafe fn with_upper_of(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe { Self(_mm256_blend_epi32::<0xf0>(self.0, other.0)) }
    }
}

/// One block: AES-NI and PCLMULQDQ, with the instructions of AVX if `VEX`.
#[derive(Clone, Copy)]
pub(super) struct Single<const VEX: bool>(pub(super) __m128i);

// SAFETY: each function is the intrinsic that its name says, under the trait's contract.
#[rustfmt::skip]
unsafe impl Lanes for Quad {
    const COUNT: usize = 4;
    const VEX: bool = true;
    #[inline(always)] unsafe fn zero() -> Self { unsafe { Self(_mm512_setzero_si512()) } }
    #[inline(always)] unsafe fn splat(b: __m128i) -> Self { unsafe { Self(_mm512_broadcast_i32x4(b)) } }
    #[inline(always)] unsafe fn nonce(nonce: &Nonce) -> Self { unsafe { Self(once::load_words_512(nonce.words())) } }
    #[inline(always)] unsafe fn splat_from(p: *const Block) -> Self { unsafe { Self::splat(_mm_load_si128(p.cast())) } }
    #[inline(always)] unsafe fn load_private(p: *const Block) -> Self { unsafe { Self((*p.cast::<Unaligned<__m512i>>()).0) } }
    #[inline(always)] unsafe fn store_private(p: *mut Block, v: Self) { unsafe { (*p.cast::<Unaligned<__m512i>>()).0 = v.0 } }
    #[inline(always)] unsafe fn in_first_lane(b: __m128i) -> Self { unsafe { Self(_mm512_zextsi128_si512(b)) } }
    #[inline(always)] unsafe fn first_lane(self) -> __m128i { unsafe { _mm512_castsi512_si128(self.0) } }
    #[inline(always)] unsafe fn sum_of_lanes(self) -> __m128i { unsafe {
        Pair(_mm256_xor_si256(_mm512_castsi512_si256(self.0), _mm512_extracti64x4_epi64::<1>(self.0))).sum_of_lanes()
    } }
    #[inline(always)] unsafe fn load_once<const I: usize>(p: *const u8) -> Self { unsafe { Self(once::load_512::<I>(p)) } }
    #[inline(always)] unsafe fn store_once<const I: usize>(p: *mut u8, v: Self) { unsafe { once::store_512::<I>(p, v.0) } }
    #[inline(always)] unsafe fn load_block_once(p: *const u8) -> __m128i { unsafe { once::load_128::<0, true>(p) } }
    #[inline(always)] unsafe fn store_block_once(p: *mut u8, v: __m128i) { unsafe { once::store_128::<0, true>(p, v) } }
    #[inline(always)] unsafe fn and(self, b: Self) -> Self { unsafe { Self(_mm512_and_si512(self.0, b.0)) } }
    #[inline(always)] unsafe fn xor(self, b: Self) -> Self { unsafe { Self(_mm512_xor_si512(self.0, b.0)) } }
    #[inline(always)] unsafe fn xor3(self, b: Self, c: Self) -> Self { unsafe { Self(_mm512_ternarylogic_epi64::<0x96>(self.0, b.0, c.0)) } }
    #[inline(always)] unsafe fn with_last_words(self, w: u32) -> Self { unsafe { Self(once::with_last_words_512(self.0, w)) } }
    #[inline(always)] unsafe fn load_head<const I: usize>(p: *const u8) -> Self { unsafe {
        if I == 0 { Self(once::load_upper_half_512(p)) } else { Self::load_once::<I>(p.wrapping_sub(32)) }
    } }
    #[inline(always)] unsafe fn store_head<const I: usize>(p: *mut u8, v: Self) { unsafe {
        if I == 0 { once::store_upper_half_512(p, v.0) } else { Self::store_once::<I>(p.wrapping_sub(32), v) }
    } }
    #[inline(always)] unsafe fn block_one<const I: usize>(self) -> Option<__m128i> { unsafe {
        if I == 0 { Some(_mm256_extracti128_si256::<1>(_mm512_castsi512_si256(self.0))) } else { None }
    } }
    #[inline(always)] unsafe fn with_head<const I: usize>(self, b: __m128i) -> Self { unsafe {
        if I == 0 { Self(_mm512_inserti32x4::<1>(_mm512_inserti64x4::<0>(self.0, _mm256_setzero_si256()), b)) } else { self }
    } }
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
    const VEX: bool = true;
    #[inline(always)] unsafe fn zero() -> Self { unsafe { Self(_mm256_setzero_si256()) } }
    #[inline(always)] unsafe fn splat(b: __m128i) -> Self { unsafe { Self(_mm256_broadcastsi128_si256(b)) } }
    #[inline(always)] unsafe fn splat_from(p: *const Block) -> Self { unsafe { Self::splat(_mm_load_si128(p.cast())) } }
    #[inline(always)] unsafe fn load_private(p: *const Block) -> Self { unsafe { Self((*p.cast::<Unaligned<__m256i>>()).0) } }
    #[inline(always)] unsafe fn store_private(p: *mut Block, v: Self) { unsafe { (*p.cast::<Unaligned<__m256i>>()).0 = v.0 } }
    #[inline(always)] unsafe fn in_first_lane(b: __m128i) -> Self { unsafe { Self(_mm256_zextsi128_si256(b)) } }
    #[inline(always)] unsafe fn first_lane(self) -> __m128i { unsafe { _mm256_castsi256_si128(self.0) } }
    #[inline(always)] unsafe fn sum_of_lanes(self) -> __m128i { unsafe { _mm_xor_si128(self.first_lane(), _mm256_extracti128_si256::<1>(self.0)) } }
    #[inline(always)] unsafe fn load_once<const I: usize>(p: *const u8) -> Self { unsafe { Self(once::load_256::<I>(p)) } }
    #[inline(always)] unsafe fn store_once<const I: usize>(p: *mut u8, v: Self) { unsafe { once::store_256::<I>(p, v.0) } }
    #[inline(always)] unsafe fn load_block_once(p: *const u8) -> __m128i { unsafe { once::load_128::<0, true>(p) } }
    #[inline(always)] unsafe fn store_block_once(p: *mut u8, v: __m128i) { unsafe { once::store_128::<0, true>(p, v) } }
    #[inline(always)] unsafe fn and(self, b: Self) -> Self { unsafe { Self(_mm256_and_si256(self.0, b.0)) } }
    #[inline(always)] unsafe fn xor(self, b: Self) -> Self { unsafe { Self(_mm256_xor_si256(self.0, b.0)) } }
    #[inline(always)] unsafe fn xor3(self, b: Self, c: Self) -> Self { unsafe { self.xor(b).xor(c) } }
    #[inline(always)] unsafe fn with_last_words(self, w: u32) -> Self { unsafe { Self(_mm256_blend_epi32::<0x88>(self.0, _mm256_set1_epi32(w as i32))) } }
    #[inline(always)] unsafe fn load_head<const I: usize>(p: *const u8) -> Self { unsafe {
        if I == 0 { Self::zero() } else { Self::load_once::<I>(p.wrapping_sub(32)) }
    } }
    #[inline(always)] unsafe fn store_head<const I: usize>(p: *mut u8, v: Self) { unsafe {
        if I > 0 { Self::store_once::<I>(p.wrapping_sub(32), v) }
    } }
    #[inline(always)] unsafe fn block_one<const I: usize>(self) -> Option<__m128i> { unsafe {
        if I == 0 { Some(_mm256_extracti128_si256::<1>(self.0)) } else { None }
    } }
    #[inline(always)] unsafe fn with_head<const I: usize>(self, b: __m128i) -> Self { unsafe {
        if I == 0 { Self(_mm256_inserti128_si256::<1>(_mm256_setzero_si256(), b)) } else { self }
    } }
    #[inline(always)] unsafe fn permute(self, o: Self) -> Self { unsafe { Self(_mm256_shuffle_epi8(self.0, o.0)) } }
    #[inline(always)] unsafe fn swap_halves(self) -> Self { unsafe { Self(_mm256_shuffle_epi32::<0x4e>(self.0)) } }
    #[inline(always)] unsafe fn aes(self, k: Self) -> Self { unsafe { Self(_mm256_aesenc_epi128(self.0, k.0)) } }
    #[inline(always)] unsafe fn aes_last(self, k: Self) -> Self { unsafe { Self(_mm256_aesenclast_epi128(self.0, k.0)) } }
    #[inline(always)] unsafe fn product<const HALVES: i32>(self, b: Self) -> Self { unsafe { Self(_mm256_clmulepi64_epi128::<HALVES>(self.0, b.0)) } }
}

// SAFETY: each function is the intrinsic that its name says, under the trait's contract.
#[rustfmt::skip]
unsafe impl<const VEX: bool> Lanes for Single<VEX> {
    const COUNT: usize = 1;
    const VEX: bool = VEX;
    #[inline(always)] unsafe fn zero() -> Self { unsafe { Self(_mm_setzero_si128()) } }
    #[inline(always)] unsafe fn splat(b: __m128i) -> Self { Self(b) }
    #[inline(always)] unsafe fn splat_from(p: *const Block) -> Self { unsafe { Self(_mm_load_si128(p.cast())) } }
    #[inline(always)] unsafe fn load_private(p: *const Block) -> Self { unsafe { Self((*p.cast::<Unaligned<__m128i>>()).0) } }
    #[inline(always)] unsafe fn store_private(p: *mut Block, v: Self) { unsafe { (*p.cast::<Unaligned<__m128i>>()).0 = v.0 } }
    #[inline(always)] unsafe fn in_first_lane(b: __m128i) -> Self { Self(b) }
    #[inline(always)] unsafe fn first_lane(self) -> __m128i { self.0 }
    #[inline(always)] unsafe fn sum_of_lanes(self) -> __m128i { self.0 }
    #[inline(always)] unsafe fn load_once<const I: usize>(p: *const u8) -> Self { unsafe { Self(once::load_128::<I, VEX>(p)) } }
    #[inline(always)] unsafe fn store_once<const I: usize>(p: *mut u8, v: Self) { unsafe { once::store_128::<I, VEX>(p, v.0) } }
    #[inline(always)] unsafe fn load_block_once(p: *const u8) -> __m128i { unsafe { once::load_128::<0, VEX>(p) } }
    #[inline(always)] unsafe fn store_block_once(p: *mut u8, v: __m128i) { unsafe { once::store_128::<0, VEX>(p, v) } }
    #[inline(always)] unsafe fn and(self, b: Self) -> Self { unsafe { Self(_mm_and_si128(self.0, b.0)) } }
    #[inline(always)] unsafe fn xor(self, b: Self) -> Self { unsafe { Self(_mm_xor_si128(self.0, b.0)) } }
    #[inline(always)] unsafe fn xor3(self, b: Self, c: Self) -> Self { unsafe { self.xor(b).xor(c) } }
    #[inline(always)] unsafe fn with_last_words(self, w: u32) -> Self { unsafe { Self(_mm_insert_epi32::<3>(self.0, w as i32)) } }
    #[inline(always)] unsafe fn load_head<const I: usize>(p: *const u8) -> Self { unsafe {
        if I < 2 { Self::zero() } else { Self::load_once::<I>(p.wrapping_sub(32)) }
    } }
    #[inline(always)] unsafe fn store_head<const I: usize>(p: *mut u8, v: Self) { unsafe {
        if I > 1 { Self::store_once::<I>(p.wrapping_sub(32), v) }
    } }
    #[inline(always)] unsafe fn block_one<const I: usize>(self) -> Option<__m128i> { if I == 1 { Some(self.0) } else { None } }
    #[inline(always)] unsafe fn with_head<const I: usize>(self, b: __m128i) -> Self { unsafe {
        match I { 0 => Self::zero(), 1 => Self(b), _ => self }
    } }
    #[inline(always)] unsafe fn permute(self, o: Self) -> Self { unsafe { Self(_mm_shuffle_epi8(self.0, o.0)) } }
    #[inline(always)] unsafe fn swap_halves(self) -> Self { unsafe { Self(_mm_shuffle_epi32::<0x4e>(self.0)) } }
    #[inline(always)] unsafe fn aes(self, k: Self) -> Self { unsafe { Self(_mm_aesenc_si128(self.0, k.0)) } }
    #[inline(always)] unsafe fn aes_last(self, k: Self) -> Self { unsafe { Self(_mm_aesenclast_si128(self.0, k.0)) } }
    #[inline(always)] unsafe fn product<const HALVES: i32>(self, b: Self) -> Self { unsafe { Self(_mm_clmulepi64_si128::<HALVES>(self.0, b.0)) } }
    #[inline(always)] unsafe fn round<const N: usize, const R: usize>(state: &mut [Self; N], keys: *const Block) {
        unsafe { narrow::round::<N, R, VEX>(state, keys) }
    }
    #[inline(always)] unsafe fn round_and_product<const N: usize, const R: usize, const I: usize>(
        state: &mut [Self; N], keys: *const Block, sum: &mut Sum<Self>, x: *const Block, p: *const Block,
    ) {
        unsafe { narrow::round_and_product::<N, R, I, VEX>(state, keys, sum, x, p) }
    }
    #[inline(always)] unsafe fn add_product<const I: usize>(sum: &mut Sum<Self>, x: Self, p: *const Block) {
        unsafe { narrow::product::<I, VEX>(sum, x, p) }
    }
}
