//! The processor's clock.

/// Returns the time stamp counter, which counts up at a constant rate, not ordered with the loads
/// and stores around it; on processors other than x86-64, nanoseconds of the monotonic clock.
///
/// It is here because the instruction is `unsafe` to the compiler, and what is measured with it is
/// how long accesses to shared memory take.
#[inline(always)]
pub fn timestamp() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction, and Linux allows it to all programs.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::timestamp;

    #[test]
    fn time_stamps_count_up() {
        let (first, start) = (timestamp(), Instant::now());
        while start.elapsed() < Duration::from_millis(1) {}
        assert!(timestamp() > first);
    }
}
