//! The processor's caches.

/// Asks for the first cache line of what is read some hundred instructions later, and does not wait
/// for it. Changes nothing, whatever stands there.
#[inline(always)]
pub fn prefetch<T>(value: &[T]) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        // SAFETY: a prefetch reads nothing that the program sees, and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(value.as_ptr().cast::<i8>()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
