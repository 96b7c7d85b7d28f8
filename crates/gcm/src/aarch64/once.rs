//! Loads and stores that happen exactly once.
//!
//! A plain load may be repeated, split or moved by the compiler, because it may assume that no
//! other thread writes there. An `asm!` block without `pure` is emitted exactly as often as the
//! program says. Whole blocks are accessed by `ld1` and `st1` of one register, which the compiler
//! does not choose for plain loads and stores; parts of a block in pieces of 8, 4, 2 bytes and one.

use crate::schedule::Block;
use core::arch::aarch64::*;
use core::arch::asm;

/// Loads the 16 bytes at `p`.
///
/// # Safety
/// They must be mapped and readable.
#[inline(always)]
pub(super) unsafe fn load(p: *const u8) -> uint8x16_t {
    let v;
    // SAFETY: reads 16 bytes that the caller vouches for, and changes nothing else.
    unsafe {
        asm!("ld1 {{{v:v}.16b}}, [{p}]", v = lateout(vreg) v, p = in(reg) p,
            options(nostack, readonly, preserves_flags));
    }
    v
}

/// Stores the 16 bytes at `p`.
///
/// # Safety
/// They must be mapped and writable.
#[inline(always)]
pub(super) unsafe fn store(p: *mut u8, v: uint8x16_t) {
    // SAFETY: writes 16 bytes that the caller vouches for, and changes nothing else.
    unsafe {
        asm!("st1 {{{v:v}.16b}}, [{p}]", v = in(vreg) v, p = in(reg) p,
            options(nostack, preserves_flags));
    }
}

/// Loads the `len` < 16 bytes at `p`; the others are zero.
///
/// # Safety
/// They must be mapped and readable.
#[inline(always)]
pub(super) unsafe fn load_part(mut p: *const u8, len: usize) -> uint8x16_t {
    debug_assert!(len < 16);
    macro_rules! piece {
        ($bytes:literal, $load:literal, $to:ident, $shift:expr) => {
            if len & $bytes != 0 {
                let piece: u64;
                // SAFETY: the pieces add up to `len` bytes that the caller vouches for. A load of
                // fewer than eight bytes clears the rest of the register.
                unsafe {
                    asm!($load, v = lateout(reg) piece, p = in(reg) p,
                        options(nostack, readonly, preserves_flags));
                    p = p.add($bytes);
                }
                $to |= piece << $shift;
            }
        };
    }
    let (mut first, mut rest) = (0, 0);
    piece!(8, "ldr {v}, [{p}]", first, 0);
    piece!(4, "ldr {v:w}, [{p}]", rest, 0);
    piece!(2, "ldrh {v:w}, [{p}]", rest, (len & 4) * 8);
    piece!(1, "ldrb {v:w}, [{p}]", rest, (len & 6) * 8);
    let _ = p;
    if len & 8 != 0 {
        from_words(first, rest)
    } else {
        from_words(rest, 0)
    }
}

/// Stores the first `len` < 16 bytes of a register at `p`.
///
/// # Safety
/// They must be mapped and writable.
#[inline(always)]
pub(super) unsafe fn store_part(mut p: *mut u8, len: usize, v: uint8x16_t) {
    debug_assert!(len < 16);
    let [mut low, high] = to_words(v);
    macro_rules! piece {
        ($bytes:literal, $store:literal, $next:expr) => {
            if len & $bytes != 0 {
                // SAFETY: the pieces add up to `len` bytes that the caller vouches for.
                unsafe {
                    asm!($store, v = in(reg) low, p = in(reg) p, options(nostack, preserves_flags));
                    p = p.add($bytes);
                }
                low = $next;
            }
        };
    }
    piece!(8, "str {v}, [{p}]", high);
    piece!(4, "str {v:w}, [{p}]", low >> 32);
    piece!(2, "strh {v:w}, [{p}]", low >> 16);
    piece!(1, "strb {v:w}, [{p}]", low);
    let _ = (p, low);
}

/// A register of two words, the lower first.
#[inline(always)]
pub(super) fn from_words(low: u64, high: u64) -> uint8x16_t {
    // SAFETY: both are 16 bytes of plain data.
    unsafe { core::mem::transmute([low, high]) }
}

/// The two words of a register, the lower first.
#[inline(always)]
pub(super) fn to_words(v: uint8x16_t) -> [u64; 2] {
    // SAFETY: both are 16 bytes of plain data.
    unsafe { core::mem::transmute(v) }
}

/// The `i`-th block at `p`, which is private memory.
///
/// # Safety
/// It must be there.
#[inline(always)]
pub(super) unsafe fn private(p: *const Block, i: usize) -> uint8x16_t {
    // SAFETY: the caller's contract; a block is 16 bytes of plain data, aligned.
    unsafe { p.add(i).cast::<uint8x16_t>().read() }
}

/// Stores a private block.
#[inline(always)]
pub(super) fn put(to: &mut Block, v: uint8x16_t) {
    // SAFETY: both are 16 bytes of plain data.
    *to = unsafe { core::mem::transmute::<uint8x16_t, Block>(v) };
}

/// The same address, of which the compiler does not know that: loads from there stay behind this.
/// Otherwise it loads round keys and powers of the hash key ahead of loops, and as there are more
/// than registers, moves some to the stack and back.
#[inline(always)]
#[allow(
    clippy::pointers_in_nomem_asm_block,
    reason = "the block accesses nothing"
)]
pub(super) fn fresh<T>(mut p: *const T) -> *const T {
    // SAFETY: no instruction.
    unsafe { asm!("/* {} */", inout(reg) p, options(nomem, nostack, preserves_flags)) };
    p
}
