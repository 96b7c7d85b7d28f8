//! Wiping that the compiler cannot drop.

use zeroize::optimization_barrier;

/// Overwrites memory that holds unauthenticated plaintext.
///
/// `fill` alone is not enough. Once a call is inlined into a function whose output is a local
/// variable, the stores before the return are never read again, and the compiler drops them: the
/// plaintext of a forgery then stays on the caller's stack. The barrier counts as a read of all
/// bytes. `Zeroize` would do as well, but stores byte by byte, and an attacker decides how many
/// forgeries there are and how long they are.
#[cold]
#[inline(never)]
pub(crate) fn wipe(bytes: &mut [u8]) {
    bytes.fill(0);
    optimization_barrier(bytes);
}
