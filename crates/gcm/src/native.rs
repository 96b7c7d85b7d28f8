//! The code of a processor that has none of its own: everything takes the portable path.

pub(crate) use crate::once::volatile::{copy_in, copy_out};

use crate::kernel::Kernel;
use crate::Path;

/// Returns true if this processor can run the path.
pub(crate) fn is_available(_: Path) -> bool {
    false
}

/// Returns the kernel of a path and a key of 16 or 32 bytes; `None` for paths of other processors.
pub(crate) fn kernel(_: Path, _key_len: usize) -> Option<&'static Kernel> {
    None
}

/// Returns the lower half of the address 64 bytes after `p`.
#[inline(always)]
pub(crate) fn low_bits_after_64(p: *const u8) -> u32 {
    p.addr().wrapping_add(64) as u32
}

/// Asks for a line of the cache.
pub(crate) fn prefetch(_: *const u8) {}
