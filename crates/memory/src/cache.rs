//! The processor's caches.

/// Asks for the cache lines of what is read some hundred instructions later, and does not wait for
/// them. Changes nothing, whatever stands there.
#[inline(always)]
pub fn prefetch<T: ?Sized>(value: &T) {
    prefetch_at((value as *const T).cast(), size_of_val(value));
}

/// [`prefetch`] of the lines of `len` bytes.
#[inline(always)]
pub(crate) fn prefetch_at(start: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..len).step_by(64) {
        use core::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        // SAFETY: a prefetch reads nothing and never faults, whatever is there.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(at).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, len);
}
