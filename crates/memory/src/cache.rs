//! The processor's caches.

/// Asks for the cache lines of what is read some hundred instructions later, and does not wait for
/// them. Changes nothing, whatever stands there.
#[inline(always)]
pub fn prefetch<T: ?Sized>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        let start = (value as *const T).cast::<i8>();
        for at in (0..size_of_val(value)).step_by(64) {
            // SAFETY: within the value; a prefetch reads nothing and never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.add(at)) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
