//! The path for AArch64: AES and PMULL on the 128-bit registers of NEON.
//!
//! A step is eight blocks: eight of the 32 registers hold the cipher's state, eight the blocks of
//! the step before, which are hashed meanwhile, and three the sum of products.

mod cipher;
mod end;
mod entry;
mod expand;
mod ghash;
mod message;
mod once;
mod steps;

pub(crate) use crate::once::volatile::{copy_in, copy_out};

use crate::kernel::Kernel;
use crate::Path;

/// Returns true if this processor can run the path.
///
/// Without the standard library, which asks the operating system, the target must have the
/// instructions (`-C target-feature=+aes`).
pub(crate) fn is_available(path: Path) -> bool {
    path == Path::Neon && has_aes_and_pmull()
}

#[cfg(feature = "std")]
fn has_aes_and_pmull() -> bool {
    use std::arch::is_aarch64_feature_detected as has;
    // A processor may have the first without the second.
    has!("neon") && has!("aes") && has!("pmull")
}

#[cfg(not(feature = "std"))]
fn has_aes_and_pmull() -> bool {
    cfg!(all(target_feature = "neon", target_feature = "aes"))
}

/// Returns the kernel of a path and a key of 16 or 32 bytes; `None` for paths of other processors.
pub(crate) fn kernel(path: Path, key_len: usize) -> Option<&'static Kernel> {
    match (path, key_len) {
        (Path::Neon, 16) => Some(&entry::AES_128),
        (Path::Neon, _) => Some(&entry::AES_256),
        _ => None,
    }
}

/// Returns the lower half of the address 64 bytes after `p`.
#[inline(always)]
pub(crate) fn low_bits_after_64(p: *const u8) -> u32 {
    p.addr().wrapping_add(64) as u32
}

/// Asks for a line of the cache.
#[inline(always)]
pub(crate) fn prefetch(line: *const u8) {
    // SAFETY: a hint never faults.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{p}]", p = in(reg) line,
            options(readonly, nostack, preserves_flags));
    }
}
