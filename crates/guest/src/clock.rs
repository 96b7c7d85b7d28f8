//! The rate of this machine's time stamp counter.
//!
//! That of an emulated guest counts at the same rate, as QEMU reads this one for it. The guest's
//! kernel measures the rate by other clocks when it boots, which on a busy machine was seen to come
//! out as a sixth. And where the guest has several processors, it takes their counters for not
//! synchronized, and reads the HPET: QEMU's own thread has to wait for each reading then.

use std::time::{Duration, Instant};

use tare_memory::timestamp;

/// The time that is measured. Readings are a fraction of a microsecond apart, so the rate is right
/// to 0.01 %.
const MEASURED: Duration = Duration::from_millis(20);
/// Readings of which the one is taken that took the least time.
const READINGS: usize = 32;

/// Returns the counts per second, in thousands; `None` on processors other than x86-64.
pub(crate) fn rate_khz() -> Option<u64> {
    if !cfg!(target_arch = "x86_64") {
        return None;
    }
    let (first, first_at) = reading()?;
    std::thread::sleep(MEASURED);
    let (last, last_at) = reading()?;
    let us = last_at.duration_since(first_at).as_micros();
    u64::try_from(u128::from(last.checked_sub(first)?) * 1000 / us).ok()
}

/// Returns the counter and the time at which it was read.
fn reading() -> Option<(u64, Instant)> {
    let readings = (0..READINGS).map(|_| {
        let before = Instant::now();
        let count = timestamp();
        (before.elapsed(), count, before)
    });
    let (_, count, at) = readings.min_by_key(|(took, ..)| *took)?;
    Some((count, at))
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::rate_khz;

    #[test]
    fn the_rate_is_that_of_a_processor_and_the_same_twice() {
        let [first, second] = [rate_khz().unwrap(), rate_khz().unwrap()];
        assert!((100_000..20_000_000).contains(&first), "{first} kHz");
        assert!(first.abs_diff(second) < first / 1000, "{first}, {second}");
    }
}
