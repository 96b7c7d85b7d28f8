//! Rounds of AES, and products that stand between them, in the order of the program.
//!
//! Left to the compiler, the rounds of one block come after the other, products ahead of all, and
//! what does not fit into 32 registers goes to the stack and back: 0.4 to 0.9 KiB of it per step.
//! These are blocks of assembly, which it does not reorder. Two instructions that processors fuse,
//! AESE and AESMC, stay next to each other.

use super::ghash::Sum;
use crate::schedule::Block;
use core::arch::aarch64::*;
use core::arch::asm;

/// Loads the `R`-th block at `p`, which is private memory.
///
/// # Safety
/// It must be there.
#[inline]
#[target_feature(enable = "neon,aes")]
pub(super) unsafe fn key<const R: usize>(p: *const Block) -> uint8x16_t {
    let v;
    // SAFETY: reads a block that the caller vouches for.
    unsafe {
        asm!("ldr {v:q}, [{p}, #{at}]", v = lateout(vreg) v, p = in(reg) p, at = const 16 * R,
            options(nostack, readonly, preserves_flags));
    }
    v
}

/// A round of AES, not the last: the key is added first, so that the first one whitens.
#[inline]
#[target_feature(enable = "neon,aes")]
pub(super) fn round(mut state: uint8x16_t, key: uint8x16_t) -> uint8x16_t {
    // SAFETY: registers only.
    unsafe {
        asm!(
            "aese {s:v}.16b, {k:v}.16b",
            "aesmc {s:v}.16b, {s:v}.16b",
            s = inout(vreg) state, k = in(vreg) key,
            options(nomem, nostack, preserves_flags)
        );
    }
    state
}

/// [`Sum::add`] of `x` and the `I`-th block at `p`, which is private memory.
///
/// # Safety
/// It must be there.
#[inline]
#[target_feature(enable = "neon,aes")]
pub(super) unsafe fn add_product<const I: usize>(sum: &mut Sum, x: uint8x16_t, p: *const Block) {
    // SAFETY: reads a block that the caller vouches for; the rest is registers.
    unsafe {
        asm!(
            "ldr {p:q}, [{ps}, #{at}]",
            "ext {t:v}.16b, {x:v}.16b, {x:v}.16b, #8",
            "ext {u:v}.16b, {p:v}.16b, {p:v}.16b, #8",
            "eor {t:v}.16b, {t:v}.16b, {x:v}.16b",
            "eor {u:v}.16b, {u:v}.16b, {p:v}.16b",
            "pmull {t:v}.1q, {t:v}.1d, {u:v}.1d",
            "pmull {u:v}.1q, {x:v}.1d, {p:v}.1d",
            "pmull2 {p:v}.1q, {x:v}.2d, {p:v}.2d",
            "eor {middle:v}.16b, {middle:v}.16b, {t:v}.16b",
            "eor {low:v}.16b, {low:v}.16b, {u:v}.16b",
            "eor {high:v}.16b, {high:v}.16b, {p:v}.16b",
            x = in(vreg) x, p = out(vreg) _, t = out(vreg) _, u = out(vreg) _,
            ps = in(reg) p, at = const 16 * I,
            low = inout(vreg) sum.low, middle = inout(vreg) sum.middle, high = inout(vreg) sum.high,
            options(readonly, nostack, preserves_flags)
        );
    }
}
