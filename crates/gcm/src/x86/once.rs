//! Loads and stores that happen exactly once.
//!
//! A plain load may be repeated, split or moved by the compiler, because it may assume that no
//! other thread writes there. An `asm!` block without `pure` is emitted exactly as often as the
//! program says. Each width uses an instruction that the compiler does not choose by itself
//! (`vmovdqu8` without a mask, `vlddqu`, `lddqu`; `vmovupd`, `movupd` on integers), so that a test
//! over the machine code can tell these accesses from all others. Parts of a block are moved
//! piece by piece (`pinsrb` to `pinsrq`, `movq`, `movd`, `pextrw`, `pextrb`).

use super::lanes::{Pair, Quad};
use crate::schedule::Block;
use core::arch::asm;
use core::arch::x86_64::*;
use core::mem::MaybeUninit;

/// Loads the I-th 64 bytes from `p` on.
///
/// # Safety
/// They must be mapped and readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn load_512<const I: usize>(p: *const u8) -> __m512i {
    let v;
    // SAFETY: reads 64 bytes that the caller vouches for, and changes nothing else.
    unsafe {
        asm!("vmovdqu8 {v}, zmmword ptr [{p} + {offset}]", v = lateout(zmm_reg) v, p = in(reg) p,
            offset = const 64 * I, options(nostack, readonly, preserves_flags));
    }
    v
}

use crate::memory::reaches_page_end;

/// The distance by which the 64 bytes at `p` go past the end of their page, if those whose bit in
/// `mask` is set do not.
///
/// A processor leaves out masked bytes of a page that is not mapped, but takes a fault's way
/// through its microcode to find out, which takes ten times as long as a short message, and another
/// party may decide where a message lies. There the 64 bytes up to the end of the page are accessed
/// instead, and moved within the register.
#[inline(always)]
fn past_page_end(p: *const u8, mask: Mask) -> Option<u32> {
    if !reaches_page_end(p) {
        return None;
    }
    core::hint::cold_path();
    let past = (p.addr() % 64) as u32;
    (past > 0 && mask.bits >> (64 - past) == 0).then_some(past)
}

/// 0, 1, 2, … twice: from its byte number n on, an order that moves bytes down by n.
static ORDERS: [u8; 128] = {
    let mut orders = [0; 128];
    let mut i = 0;
    while i < orders.len() {
        orders[i] = i as u8 % 64;
        i += 1;
    }
    orders
};

/// Permutes the bytes of a register by an order of 64 bytes in (not shared) memory.
///
/// # Safety
/// They must be mapped and readable, and each below 64.
#[inline]
#[target_feature(enable = "avx512f,avx512vbmi")]
unsafe fn permute(v: __m512i, order: *const u8) -> __m512i {
    let permuted;
    // SAFETY: reads 64 bytes that the caller vouches for.
    unsafe {
        asm!("vmovdqu64 {to}, zmmword ptr [{p}]", "vpermb {to}, {to}, {v}", v = in(zmm_reg) v,
            to = out(zmm_reg) permuted, p = in(reg) order,
            options(pure, readonly, nostack, preserves_flags));
    }
    permuted
}

/// A bit for each of 64 bytes, set for those that exist.
#[derive(Clone, Copy)]
pub(super) struct Mask {
    /// The bits in a register for integers.
    bits: u64,
    /// The same in a register for masks, where it stays. The compiler would move the bits there
    /// again for each access, which takes as long as four operations on vectors on Zen 4.
    pub(super) register: u64,
}

impl Mask {
    /// Those in the register that begins `at`, of `len` bytes in all.
    #[inline]
    #[target_feature(enable = "avx512bw,bmi2")]
    pub(super) unsafe fn from(len: usize, at: usize) -> Self {
        // Lengths here are below 256, as the instruction wants.
        let bits = _bzhi_u64(u64::MAX, len.saturating_sub(at) as u32);
        let register;
        // SAFETY: a move.
        unsafe {
            asm!("kmovq {k}, {bits}", k = lateout(kreg) register, bits = in(reg) bits,
                options(pure, nomem, nostack, preserves_flags));
        }
        Self { bits, register }
    }
}

/// Loads those of the 64 bytes at `p` whose bit in `mask` is set; the others are zero, and are not
/// accessed at all.
///
/// # Safety
/// The bytes whose bit is set must be mapped and readable.
#[inline(always)]
pub(super) unsafe fn load_512_masked(p: *const u8, mask: Mask) -> __m512i {
    // SAFETY: the same bytes, counted from the beginning of the last 64 of the page.
    unsafe {
        let Some(past) = past_page_end(p, mask) else {
            return load_masked(p, mask.register);
        };
        let v = load_masked(p.wrapping_sub(past as usize), mask.bits << past);
        permute(v, ORDERS.as_ptr().add(past as usize))
    }
}

/// [`load_512_masked`] without the way for the end of a page.
///
/// # Safety
/// As for [`load_512_masked`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn load_masked(p: *const u8, mask: u64) -> __m512i {
    let v;
    // SAFETY: as above; masked-out bytes neither fault nor are read.
    unsafe {
        asm!("vmovdqu8 {v} {{{k}}}{{z}}, zmmword ptr [{p}]", v = lateout(zmm_reg) v, p = in(reg) p,
            k = in(kreg) mask, options(nostack, readonly, preserves_flags));
    }
    v
}

/// Stores the I-th 64 bytes from `p` on.
///
/// # Safety
/// They must be mapped and writable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn store_512<const I: usize>(p: *mut u8, v: __m512i) {
    // SAFETY: writes 64 bytes that the caller vouches for, and changes nothing else.
    unsafe {
        asm!("vmovdqu8 zmmword ptr [{p} + {offset}], {v}", v = in(zmm_reg) v, p = in(reg) p,
            offset = const 64 * I, options(nostack, preserves_flags));
    }
}

/// Stores those of the 64 bytes at `p` whose bit in `mask` is set, and does not access the others.
///
/// # Safety
/// The bytes whose bit is set must be mapped and writable.
#[inline(always)]
pub(super) unsafe fn store_512_masked(p: *mut u8, v: __m512i, mask: Mask) {
    // SAFETY: as in `load_512_masked`.
    unsafe {
        let Some(past) = past_page_end(p, mask) else {
            return store_masked(p, v, mask.register);
        };
        let v = permute(v, ORDERS.as_ptr().add(64 - past as usize));
        store_masked(p.wrapping_sub(past as usize), v, mask.bits << past);
    }
}

/// [`store_512_masked`] without the way for the end of a page.
///
/// # Safety
/// As for [`store_512_masked`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn store_masked(p: *mut u8, v: __m512i, mask: u64) {
    // SAFETY: as above; masked-out bytes neither fault nor are written.
    unsafe {
        asm!("vmovdqu8 zmmword ptr [{p}] {{{k}}}, {v}", v = in(zmm_reg) v, p = in(reg) p,
            k = in(kreg) mask, options(nostack, preserves_flags));
    }
}

/// Loads the I-th 32 bytes from `p` on.
///
/// # Safety
/// They must be mapped and readable.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn load_256<const I: usize>(p: *const u8) -> __m256i {
    let v;
    // SAFETY: reads 32 bytes that the caller vouches for, and changes nothing else.
    unsafe {
        asm!("vlddqu {v}, ymmword ptr [{p} + {offset}]", v = lateout(ymm_reg) v, p = in(reg) p,
            offset = const 32 * I, options(nostack, readonly, preserves_flags));
    }
    v
}

/// Stores the I-th 32 bytes from `p` on.
///
/// # Safety
/// They must be mapped and writable.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn store_256<const I: usize>(p: *mut u8, v: __m256i) {
    // SAFETY: writes 32 bytes that the caller vouches for, and changes nothing else.
    unsafe {
        asm!("vmovupd ymmword ptr [{p} + {offset}], {v}", v = in(ymm_reg) v, p = in(reg) p,
            offset = const 32 * I, options(nostack, preserves_flags));
    }
}

/// Loads the I-th 16 bytes from `p` on, in the encoding of AVX if `VEX`.
///
/// # Safety
/// They must be mapped and readable.
#[inline(always)]
pub(super) unsafe fn load_128<const I: usize, const VEX: bool>(p: *const u8) -> __m128i {
    let v;
    macro_rules! load {
        ($load:literal) => {
            asm!(concat!($load, " {v}, xmmword ptr [{p} + {offset}]"), v = lateout(xmm_reg) v,
                p = in(reg) p, offset = const 16 * I, options(nostack, readonly, preserves_flags))
        };
    }
    // SAFETY: reads 16 bytes that the caller vouches for, and changes nothing else.
    unsafe {
        if VEX {
            load!("vlddqu");
        } else {
            load!("lddqu");
        }
    }
    v
}

/// Stores the I-th 16 bytes from `p` on, in the encoding of AVX if `VEX`.
///
/// # Safety
/// They must be mapped and writable.
#[inline(always)]
pub(super) unsafe fn store_128<const I: usize, const VEX: bool>(p: *mut u8, v: __m128i) {
    macro_rules! store {
        ($store:literal) => {
            asm!(concat!($store, " xmmword ptr [{p} + {offset}], {v}"), v = in(xmm_reg) v,
                p = in(reg) p, offset = const 16 * I, options(nostack, preserves_flags))
        };
    }
    // SAFETY: writes 16 bytes that the caller vouches for, and changes nothing else.
    unsafe {
        if VEX {
            store!("vmovupd");
        } else {
            store!("movupd");
        }
    }
}

/// Loads the `len` < 16 bytes at `p`, in pieces of 8, 4, 2 bytes and one, from the last to the
/// first; the others are zero. In the encoding of AVX if `VEX`.
///
/// # Safety
/// They must be mapped and readable.
#[inline(always)]
pub(super) unsafe fn load_part_128<const VEX: bool>(p: *const u8, len: usize) -> __m128i {
    // SAFETY: the pieces add up to `len` bytes that the caller vouches for.
    unsafe {
        let mut v = _mm_setzero_si128();
        macro_rules! piece {
            ($bytes:literal, $vex:literal, $before:literal) => {
                if len & $bytes != 0 {
                    v = _mm_slli_si128::<$bytes>(v);
                    let p = p.add(len & !(2 * $bytes - 1));
                    if VEX {
                        asm!($vex, v = inout(xmm_reg) v, p = in(reg) p,
                            options(nostack, readonly, preserves_flags));
                    } else {
                        asm!($before, v = inout(xmm_reg) v, p = in(reg) p,
                            options(nostack, readonly, preserves_flags));
                    }
                }
            };
        }
        piece!(
            1,
            "vpinsrb {v}, {v}, byte ptr [{p}], 0",
            "pinsrb {v}, byte ptr [{p}], 0"
        );
        piece!(
            2,
            "vpinsrw {v}, {v}, word ptr [{p}], 0",
            "pinsrw {v}, word ptr [{p}], 0"
        );
        piece!(
            4,
            "vpinsrd {v}, {v}, dword ptr [{p}], 0",
            "pinsrd {v}, dword ptr [{p}], 0"
        );
        piece!(
            8,
            "vpinsrq {v}, {v}, qword ptr [{p}], 0",
            "pinsrq {v}, qword ptr [{p}], 0"
        );
        v
    }
}

/// Stores the first `len` < 16 bytes of a register at `p`, in pieces of 8, 4, 2 bytes and one. In
/// the encoding of AVX if `VEX`.
///
/// # Safety
/// They must be mapped and writable.
#[inline(always)]
pub(super) unsafe fn store_part_128<const VEX: bool>(mut p: *mut u8, len: usize, mut v: __m128i) {
    // SAFETY: the pieces add up to `len` bytes that the caller vouches for.
    unsafe {
        macro_rules! piece {
            ($bytes:literal, $vex:literal, $before:literal) => {
                if len & $bytes != 0 {
                    if VEX {
                        asm!($vex, v = in(xmm_reg) v, p = in(reg) p,
                            options(nostack, preserves_flags));
                    } else {
                        asm!($before, v = in(xmm_reg) v, p = in(reg) p,
                            options(nostack, preserves_flags));
                    }
                    v = _mm_srli_si128::<$bytes>(v);
                    p = p.add($bytes);
                }
            };
        }
        piece!(8, "vmovq qword ptr [{p}], {v}", "movq qword ptr [{p}], {v}");
        piece!(4, "vmovd dword ptr [{p}], {v}", "movd dword ptr [{p}], {v}");
        piece!(
            2,
            "vpextrw word ptr [{p}], {v}, 0",
            "pextrw word ptr [{p}], {v}, 0"
        );
        if len & 1 != 0 {
            if VEX {
                asm!("vpextrb byte ptr [{p}], {v}, 0", v = in(xmm_reg) v, p = in(reg) p,
                    options(nostack, preserves_flags));
            } else {
                asm!("pextrb byte ptr [{p}], {v}, 0", v = in(xmm_reg) v, p = in(reg) p,
                    options(nostack, preserves_flags));
            }
        }
    }
}

/// Loads the 32 bytes at `p` into the upper half of a register; the lower half is zero.
///
/// # Safety
/// They must be mapped and readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn load_upper_half_512(p: *const u8) -> __m512i {
    let v;
    // SAFETY: reads 32 bytes that the caller vouches for, and changes nothing else.
    unsafe {
        asm!("vinserti64x4 {v}, {zero}, ymmword ptr [{p}], 1", v = lateout(zmm_reg) v,
            zero = in(zmm_reg) _mm512_setzero_si512(), p = in(reg) p,
            options(nostack, readonly, preserves_flags));
    }
    v
}

/// Stores the upper half of a register to the 32 bytes at `p`.
///
/// # Safety
/// They must be mapped and writable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn store_upper_half_512(p: *mut u8, v: __m512i) {
    // SAFETY: writes 32 bytes that the caller vouches for, and changes nothing else.
    unsafe {
        asm!("vextracti64x4 ymmword ptr [{p}], {v}, 1", v = in(zmm_reg) v, p = in(reg) p,
            options(nostack, preserves_flags));
    }
}

/// [`store_masked`] to four places. One block, so that the compiler has no reason to finish one
/// register before it begins the next.
///
/// # Safety
/// As for [`store_masked`], for each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn store_4_512_masked(p: [*mut u8; 4], v: [__m512i; 4], mask: [u64; 4]) {
    // SAFETY: writes bytes that the caller vouches for, and changes nothing else.
    unsafe {
        asm!(
            "vmovdqu8 zmmword ptr [{p0}] {{{k0}}}, {v0}",
            "vmovdqu8 zmmword ptr [{p1}] {{{k1}}}, {v1}",
            "vmovdqu8 zmmword ptr [{p2}] {{{k2}}}, {v2}",
            "vmovdqu8 zmmword ptr [{p3}] {{{k3}}}, {v3}",
            p0 = in(reg) p[0], p1 = in(reg) p[1], p2 = in(reg) p[2], p3 = in(reg) p[3],
            v0 = in(zmm_reg) v[0], v1 = in(zmm_reg) v[1], v2 = in(zmm_reg) v[2], v3 = in(zmm_reg) v[3],
            k0 = in(kreg) mask[0], k1 = in(kreg) mask[1], k2 = in(kreg) mask[2], k3 = in(kreg) mask[3],
            options(nostack, preserves_flags));
    }
}

/// Two words from `p` on in every lane, each loaded by itself: two stores may just have written
/// them, which one load of both would wait for. (Not shared memory.)
///
/// # Safety
/// They must be mapped and readable.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn load_words_512(p: *const [u64; 2]) -> __m512i {
    let v;
    // Not `_`, of which LLVM may not know that it is a register of 512 bits.
    let _high: __m512i;
    // SAFETY: reads 16 bytes that the caller vouches for.
    unsafe {
        asm!("vpbroadcastq {v}, qword ptr [{p}]", "vpbroadcastq {high}, qword ptr [{p} + 8]",
            "vpunpcklqdq {v}, {v}, {high}", v = out(zmm_reg) v, high = out(zmm_reg) _high,
            p = in(reg) p, options(pure, readonly, nostack, preserves_flags));
    }
    v
}

/// The last 32-bit word of every lane replaced, by a mask: the compiler would permute two
/// registers by a third.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn with_last_words_512(mut v: __m512i, word: u32) -> __m512i {
    // SAFETY: registers only.
    unsafe {
        asm!("vpbroadcastd {v} {{{k}}}, {word:e}", v = inout(zmm_reg) v, word = in(reg) word,
            k = in(kreg) 0x8888_u16, options(pure, nomem, nostack, preserves_flags));
    }
    v
}

/// One block of private memory in every lane, by a load: a block that is needed alone too the
/// compiler would load alone, and broadcast by the only unit for that.
///
/// # Safety
/// It must be mapped and readable.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn splat_512(p: *const Block) -> __m512i {
    let v;
    // SAFETY: reads 16 bytes that the caller vouches for.
    unsafe {
        asm!("vbroadcasti32x4 {v}, xmmword ptr [{p}]", v = lateout(zmm_reg) v, p = in(reg) p,
            options(pure, readonly, nostack, preserves_flags));
    }
    v
}

/// Both numbers times eight, the second in the upper half. One block of assembly, or the compiler
/// would compute parts of it long before and save registers for them.
#[inline(always)]
pub(super) fn two_times_eight(low: u64, mut high: usize) -> u64 {
    // SAFETY: arithmetic.
    unsafe {
        asm!("shl {high}, 35", "lea {high}, [{high} + 8 * {low}]", high = inout(reg) high,
            low = in(reg) low, options(pure, nomem, nostack));
    }
    high as u64
}

/// Moves two words to memory, each by a store of its own: the compiler would make a register for
/// vectors of them.
#[inline(always)]
pub(super) unsafe fn put_words(place: &mut MaybeUninit<Block>, [low, high]: [u64; 2]) {
    // SAFETY: writes the 16 bytes of the block.
    unsafe {
        asm!("mov qword ptr [{p}], {low}", "mov qword ptr [{p} + 8], {high}",
            p = in(reg) place.as_mut_ptr(), low = in(reg) low, high = in(reg) high,
            options(nostack, preserves_flags));
    }
}

/// A block as two words in registers for integers, through memory, which is wiped: moves from
/// vectors take three operations on them.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn words_of_block(v: __m128i) -> [u64; 2] {
    let mut room = MaybeUninit::<Block>::uninit();
    let (low, high);
    // SAFETY: reads and writes the room alone.
    unsafe {
        asm!("vmovdqa xmmword ptr [{p}], {v}", "mov {low}, qword ptr [{p}]",
            "mov {high}, qword ptr [{p} + 8]", "vmovdqa xmmword ptr [{p}], {zero}",
            v = in(xmm_reg) v, zero = in(xmm_reg) _mm_setzero_si128(), p = in(reg) room.as_mut_ptr(),
            low = out(reg) low, high = out(reg) high, options(nostack, preserves_flags));
    }
    [low, high]
}

/// Makes the compiler compute all five before anything that depends on one of them, without an
/// instruction.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn together(four: &mut [__m512i; 4], fifth: &mut __m512i) {
    let [a, b, c, d] = four;
    // SAFETY: no instruction.
    unsafe {
        asm!(
            "/* {} {} {} {} {} */",
            inout(zmm_reg) * a,
            inout(zmm_reg) * b,
            inout(zmm_reg) * c,
            inout(zmm_reg) * d,
            inout(zmm_reg) * fifth,
            options(nomem, nostack, preserves_flags)
        );
    }
}

/// The same address, of which the compiler does not know that: loads from there stay behind this.
/// Otherwise it loads round keys and powers of the hash key ahead of branches and loops, and as
/// there are more than registers, leaves copies of them on the stack.
#[inline(always)]
#[allow(
    clippy::pointers_in_nomem_asm_block,
    reason = "the block accesses nothing"
)]
pub(super) unsafe fn fresh<T>(mut p: *const T) -> *const T {
    // SAFETY: no instruction.
    unsafe { asm!("/* {} */", inout(reg) p, options(nomem, nostack, preserves_flags)) };
    p
}

/// The same value, of which the compiler does not know that: what it is made of comes before this
/// and what is made of it behind, in the order of the program's blocks of assembly.
#[inline(always)]
pub(super) unsafe fn in_order(mut v: __m128i) -> __m128i {
    // SAFETY: no instruction.
    unsafe { asm!("/* {} */", inout(xmm_reg) v, options(nomem, nostack, preserves_flags)) };
    v
}

/// [`in_order`] for registers of 256 bits.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn in_order_256(mut v: Pair) -> Pair {
    // SAFETY: no instruction.
    unsafe { asm!("/* {} */", inout(ymm_reg) v.0, options(nomem, nostack, preserves_flags)) };
    v
}

/// [`in_order`] for registers of 512 bits.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn in_order_512(mut v: Quad) -> Quad {
    // SAFETY: no instruction.
    unsafe { asm!("/* {} */", inout(zmm_reg) v.0, options(nomem, nostack, preserves_flags)) };
    v
}

/// Moves a secret to memory, for [`take`]. Held in a register over much work, it would be spilled,
/// and left where the compiler chose.
///
/// `vex` is the encoding of the path's other instructions: among those of AVX one of the older
/// encoding merges with what the upper part of the register holds, which on processors of Intel
/// cost 120 ns here.
#[inline(always)]
pub(super) unsafe fn put(place: &mut Block, secret: __m128i, vex: bool) {
    macro_rules! put {
        ($store:literal) => {
            asm!(concat!($store, " xmmword ptr [{p}], {v}"), p = in(reg) place,
                v = in(xmm_reg) secret, options(nostack, preserves_flags))
        };
    }
    // SAFETY: writes the 16 bytes of the block.
    unsafe {
        if vex {
            put!("vmovups");
        } else {
            put!("movups");
        }
    }
}

/// Takes a secret from where [`put`] has moved it, and wipes the place.
#[inline(always)]
pub(super) unsafe fn take(place: &mut Block, vex: bool) -> __m128i {
    let v;
    macro_rules! take {
        ($move:literal) => {
            asm!(concat!($move, " {v}, xmmword ptr [{p}]"),
                concat!($move, " xmmword ptr [{p}], {zero}"), p = in(reg) place, v = out(xmm_reg) v,
                zero = in(xmm_reg) _mm_setzero_si128(), options(nostack, preserves_flags))
        };
    }
    // SAFETY: reads and writes the 16 bytes of the block.
    unsafe {
        if vex {
            take!("vmovups");
        } else {
            take!("movups");
        }
    }
    v
}

/// Lane 0 of the first, lane 1 of the second, and so on, by blends: the compiler would shuffle,
/// which one port does instead of two.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn blend_lanes_512([a, b, c, d]: [__m512i; 4]) -> __m512i {
    let mut v = a;
    // SAFETY: registers only.
    unsafe {
        asm!("vmovdqa64 {v} {{{k1}}}, {b}", "vmovdqa64 {v} {{{k2}}}, {c}", "vmovdqa64 {v} {{{k3}}}, {d}",
            v = inout(zmm_reg) v, b = in(zmm_reg) b, c = in(zmm_reg) c, d = in(zmm_reg) d,
            k1 = in(kreg) 0x0c_u8, k2 = in(kreg) 0x30_u8, k3 = in(kreg) 0xc0_u8,
            options(pure, nomem, nostack, preserves_flags));
    }
    v
}
