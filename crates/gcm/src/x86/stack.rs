//! The stack that a kernel leaves behind.
//!
//! Kernels keep secrets in registers, but for long messages the compiler spills some: the mask of
//! the tag, a round key, on opening plaintext. What a function has used lies right below its
//! caller's own stack, and is wiped there, by the widest stores of the path: a call to clear 2 KiB
//! takes 15 ns, where a short message takes 12. Builds with checks spill more, for short messages
//! as well, and are wiped by `kernel::wipe_checked`.

use crate::Path;
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

/// Wipes what a function of this path that the caller has just called has used of the stack.
///
/// # Safety
/// The processor must have the path's instructions.
#[inline(always)]
pub(super) unsafe fn wipe(path: Path) {
    // SAFETY: nothing alive is below the stack pointer around a block that may use the stack, and
    // the stack goes on there: it has just been used.
    unsafe {
        match path {
            Path::Vaes512 => clear!(
                "vpxor xmm0, xmm0, xmm0", "vmovdqu64", "zmm0",
                64 128 192 256 320
            ),
            Path::Vaes256 => clear!(
                "vpxor xmm0, xmm0, xmm0", "vmovdqu", "ymm0",
                32 64 96 128 160 192 224 256 288 320 352 384 416
            ),
            _ => clear!(
                "pxor xmm0, xmm0", "movups", "xmm0",
                16 32 48 64 80 96 112 128 144 160 176 192 208 224 240 256
                272 288 304 320 336 352 368 384 400 416 432 448 464 480 496 512
            ),
        }
    }
}
