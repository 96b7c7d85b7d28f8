//! A round of AES over a step of eight registers of 128 bits, woven with the hash.
//!
//! There are 16 registers: eight hold the step, three the sum, and four are left for a round key
//! and a product. The compiler keeps more at once, and moved some 25 to the stack and back in each
//! step; these are blocks whose registers are counted.
//!
//! Each block is there in two encodings. That of AVX (`VEX`) has a destination of its own and an
//! operand in memory at any instruction: a product with its sums is 11 instructions in place of 14.

use super::ghash::Sum;
use super::lanes::Single;
use crate::schedule::Block;
use core::arch::asm;

/// A block of assembly over the state.
macro_rules! block {
    ($state:ident, [$($text:literal),* $(,)?], $($operand:tt)*) => {
        asm!(
            $($text,)*
            $($operand)*,
            s0 = inout(xmm_reg) $state[0].0, s1 = inout(xmm_reg) $state[1].0,
            s2 = inout(xmm_reg) $state[2].0, s3 = inout(xmm_reg) $state[3].0,
            s4 = inout(xmm_reg) $state[4].0, s5 = inout(xmm_reg) $state[5].0,
            s6 = inout(xmm_reg) $state[6].0, s7 = inout(xmm_reg) $state[7].0,
            options(readonly, nostack, preserves_flags)
        )
    };
}

/// The `R`-th round of AES, not the last.
///
/// # Safety
/// The processor must have AES-NI, and AVX if `VEX`; `R` + 1 round keys must be at `keys`.
#[inline(always)]
pub(super) unsafe fn round<const N: usize, const R: usize, const VEX: bool>(
    state: &mut [Single<VEX>; N],
    keys: *const Block,
) {
    const { assert!(N == 8) };
    // SAFETY: reads a round key; the rest is registers.
    unsafe {
        if VEX {
            block!(
                state,
                [
                    "vmovdqa {k}, xmmword ptr [{keys} + {r}]",
                    "vaesenc {s0}, {s0}, {k}", "vaesenc {s1}, {s1}, {k}",
                    "vaesenc {s2}, {s2}, {k}", "vaesenc {s3}, {s3}, {k}",
                    "vaesenc {s4}, {s4}, {k}", "vaesenc {s5}, {s5}, {k}",
                    "vaesenc {s6}, {s6}, {k}", "vaesenc {s7}, {s7}, {k}",
                ],
                k = out(xmm_reg) _, keys = in(reg) keys, r = const 16 * R
            );
        } else {
            block!(
                state,
                [
                    "movdqa {k}, xmmword ptr [{keys} + {r}]",
                    "aesenc {s0}, {k}", "aesenc {s1}, {k}", "aesenc {s2}, {k}", "aesenc {s3}, {k}",
                    "aesenc {s4}, {k}", "aesenc {s5}, {k}", "aesenc {s6}, {k}", "aesenc {s7}, {k}",
                ],
                k = out(xmm_reg) _, keys = in(reg) keys, r = const 16 * R
            );
        }
    }
}

/// The same, and adds the product of the `I`-th blocks at `x` and `p` to `sum`.
///
/// # Safety
/// As for [`round`], with PCLMULQDQ; `I` + 1 blocks must be at `x` and `p`.
#[inline(always)]
pub(super) unsafe fn round_and_product<
    const N: usize,
    const R: usize,
    const I: usize,
    const VEX: bool,
>(
    state: &mut [Single<VEX>; N],
    keys: *const Block,
    sum: &mut Sum<Single<VEX>>,
    x: *const Block,
    p: *const Block,
) {
    const { assert!(N == 8) };
    // SAFETY: reads a round key and two blocks; the rest is registers.
    unsafe {
        if VEX {
            block!(
                state,
                [
                    "vmovdqa {x}, xmmword ptr [{xs} + {i}]",
                    "vmovdqa {k}, xmmword ptr [{keys} + {r}]",
                    "vpclmulqdq {t}, {x}, xmmword ptr [{ps} + {i}], 0x00",
                    "vaesenc {s0}, {s0}, {k}",
                    "vpshufd {p}, xmmword ptr [{ps} + {i}], 0x4e",
                    "vaesenc {s1}, {s1}, {k}",
                    "vpxor {low}, {low}, {t}",
                    "vpclmulqdq {t}, {x}, xmmword ptr [{ps} + {i}], 0x11",
                    "vaesenc {s2}, {s2}, {k}",
                    "vpxor {p}, {p}, xmmword ptr [{ps} + {i}]",
                    "vaesenc {s3}, {s3}, {k}",
                    "vpxor {high}, {high}, {t}",
                    "vpshufd {t}, {x}, 0x4e",
                    "vaesenc {s4}, {s4}, {k}",
                    "vpxor {x}, {x}, {t}",
                    "vaesenc {s5}, {s5}, {k}",
                    "vaesenc {s6}, {s6}, {k}",
                    "vpclmulqdq {x}, {x}, {p}, 0x00",
                    "vaesenc {s7}, {s7}, {k}",
                    "vpxor {middle}, {middle}, {x}",
                ],
                k = out(xmm_reg) _, x = out(xmm_reg) _, p = out(xmm_reg) _, t = out(xmm_reg) _,
                keys = in(reg) keys, xs = in(reg) x, ps = in(reg) p, r = const 16 * R,
                i = const 16 * I,
                low = inout(xmm_reg) sum.low.0, middle = inout(xmm_reg) sum.middle.0,
                high = inout(xmm_reg) sum.high.0
            );
        } else {
            block!(
                state,
                [
                    "movdqa {x}, xmmword ptr [{xs} + {i}]",
                    "movdqa {p}, xmmword ptr [{ps} + {i}]",
                    "movdqa {t}, {x}",
                    "pclmulqdq {t}, {p}, 0x00",
                    "movdqa {k}, xmmword ptr [{keys} + {r}]",
                    "pxor {low}, {t}",
                    "aesenc {s0}, {k}",
                    "movdqa {t}, {x}",
                    "pclmulqdq {t}, {p}, 0x11",
                    "aesenc {s1}, {k}",
                    "pxor {high}, {t}",
                    "aesenc {s2}, {k}",
                    "pshufd {t}, {x}, 0x4e",
                    "aesenc {s3}, {k}",
                    "aesenc {s4}, {k}",
                    "pxor {x}, {t}",
                    "aesenc {s5}, {k}",
                    "aesenc {s6}, {k}",
                    "pshufd {t}, {p}, 0x4e",
                    "pxor {p}, {t}",
                    "pclmulqdq {x}, {p}, 0x00",
                    "aesenc {s7}, {k}",
                    "pxor {middle}, {x}",
                ],
                k = out(xmm_reg) _, x = out(xmm_reg) _, p = out(xmm_reg) _, t = out(xmm_reg) _,
                keys = in(reg) keys, xs = in(reg) x, ps = in(reg) p, r = const 16 * R,
                i = const 16 * I,
                low = inout(xmm_reg) sum.low.0, middle = inout(xmm_reg) sum.middle.0,
                high = inout(xmm_reg) sum.high.0
            );
        }
    }
}

/// Adds the product of `x` and the `I`-th block at `p` to `sum`.
///
/// # Safety
/// The processor must have PCLMULQDQ, and AVX if `VEX`; `I` + 1 blocks must be at `p`.
#[inline(always)]
pub(super) unsafe fn product<const I: usize, const VEX: bool>(
    sum: &mut Sum<Single<VEX>>,
    x: Single<VEX>,
    p: *const Block,
) {
    macro_rules! product {
        ($($text:literal)*) => {
            asm!(
                $($text,)*
                x = inout(xmm_reg) x.0 => _, p = out(xmm_reg) _, t = out(xmm_reg) _,
                ps = in(reg) p, i = const 16 * I,
                low = inout(xmm_reg) sum.low.0, middle = inout(xmm_reg) sum.middle.0,
                high = inout(xmm_reg) sum.high.0,
                options(readonly, nostack, preserves_flags)
            )
        };
    }
    // SAFETY: reads a block; the rest is registers.
    unsafe {
        if VEX {
            product!(
                "vpclmulqdq {t}, {x}, xmmword ptr [{ps} + {i}], 0x00"
                "vpshufd {p}, xmmword ptr [{ps} + {i}], 0x4e"
                "vpxor {low}, {low}, {t}"
                "vpclmulqdq {t}, {x}, xmmword ptr [{ps} + {i}], 0x11"
                "vpxor {p}, {p}, xmmword ptr [{ps} + {i}]"
                "vpxor {high}, {high}, {t}"
                "vpshufd {t}, {x}, 0x4e"
                "vpxor {x}, {x}, {t}"
                "vpclmulqdq {x}, {x}, {p}, 0x00"
                "vpxor {middle}, {middle}, {x}"
            );
        } else {
            product!(
                "movdqa {p}, xmmword ptr [{ps} + {i}]"
                "movdqa {t}, {x}"
                "pclmulqdq {t}, {p}, 0x00"
                "pxor {low}, {t}"
                "movdqa {t}, {x}"
                "pclmulqdq {t}, {p}, 0x11"
                "pxor {high}, {t}"
                "pshufd {t}, {x}, 0x4e"
                "pxor {x}, {t}"
                "pshufd {t}, {p}, 0x4e"
                "pxor {p}, {t}"
                "pclmulqdq {x}, {p}, 0x00"
                "pxor {middle}, {x}"
            );
        }
    }
}
