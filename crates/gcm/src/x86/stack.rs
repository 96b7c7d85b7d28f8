//! The stack that a kernel leaves behind.
//!
//! Kernels keep secrets in registers, but on registers of 128 and 256 bits, of which there are 16,
//! the compiler spills some in messages of a head and more. What a function has used lies right
//! below its caller's own stack, and is wiped there, all of it: `tests/once/machine_code.rs`
//! compares with the machine code. Builds with checks spill more, for short messages as well, and
//! are wiped by `kernel::wipe_checked`.

use super::lanes::Lanes;
use core::arch::asm;

/// Clears places below the stack pointer.
macro_rules! clear {
    ($zero:literal, $store:literal, $register:literal, $($below:literal)*) => {
        asm!(
            $zero,
            $(concat!($store, " [rsp - ", $below, "], ", $register),)*
            out("xmm0") _, options(preserves_flags)
        )
    };
}

/// Wipes what a function for registers of this kind, which the caller has just called, has used of
/// the stack, arguments that were pushed for it included: 288 bytes on registers of 256 bits, 384
/// on those of 128, of which builds have used 320 and 336.
///
/// # Safety
/// The processor must have what `V` needs.
#[inline(always)]
pub(super) unsafe fn wipe<V: Lanes>() {
    // SAFETY: nothing alive is below the stack pointer around a block that may use the stack, and
    // the stack goes on there: it has just been used.
    unsafe {
        match (V::COUNT, V::VEX) {
            (2, _) => clear!(
                "vpxor xmm0, xmm0, xmm0", "vmovdqu", "ymm0",
                32 64 96 128 160 192 224 256 288
            ),
            (_, true) => clear!(
                "vpxor xmm0, xmm0, xmm0", "vmovdqu", "ymm0",
                32 64 96 128 160 192 224 256 288 320 352 384
            ),
            (_, false) => clear!(
                "pxor xmm0, xmm0", "movups", "xmm0",
                16 32 48 64 80 96 112 128 144 160 176 192 208 224 240 256 272 288 304 320
                336 352 368 384
            ),
        }
    }
}
