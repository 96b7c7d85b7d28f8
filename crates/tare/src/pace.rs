//! Calls in a timed loop. The clock is read once per many calls: read around each, it would take
//! longer than a call of 40 ns does.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::time::{clock_gettime, ClockId};

/// The longest time between two readings of the clock.
const CLOCK_EVERY: Duration = Duration::from_micros(50);

/// A timed loop.
pub(crate) struct Timed {
    /// Calls.
    pub(crate) operations: u64,
    /// The start of the first.
    pub(crate) from: Instant,
    /// The end of the last.
    pub(crate) until: Instant,
    /// This thread's processor time.
    pub(crate) cpu: Duration,
}

/// Runs for `time`, at least once, and finds how many calls fit between two readings of the clock.
///
/// # Errors
/// The error of the call.
pub(crate) fn warm_up<E: Into<anyhow::Error>>(
    time: Duration,
    mut call: impl FnMut() -> Result<(), E>,
) -> anyhow::Result<u64> {
    let from = Instant::now();
    let mut batch = 1;
    loop {
        let batch_from = Instant::now();
        for _ in 0..batch {
            call().map_err(Into::into)?;
        }
        let took = batch_from.elapsed();
        if took < CLOCK_EVERY / 2 {
            batch *= 2;
        } else if from.elapsed() >= time {
            return Ok(batch);
        }
    }
}

/// Runs until `duration` is over, or `calls_max` calls are made, and reads the clock once per
/// `batch` calls.
///
/// # Errors
/// The error of the call.
pub(crate) fn run<E: Into<anyhow::Error>>(
    batch: u64,
    duration: Duration,
    calls_max: Option<u64>,
    call: impl FnMut() -> Result<(), E>,
) -> anyhow::Result<Timed> {
    run_until(batch, calls_max, |elapsed| elapsed >= duration, call)
}

/// Runs until `is_over` returns true for the time since the start, or `calls_max` calls are made.
/// It is called once per `batch` calls.
///
/// # Errors
/// The error of the call.
pub(crate) fn run_until<E: Into<anyhow::Error>>(
    batch: u64,
    calls_max: Option<u64>,
    mut is_over: impl FnMut(Duration) -> bool,
    mut call: impl FnMut() -> Result<(), E>,
) -> anyhow::Result<Timed> {
    let calls_max = calls_max.unwrap_or(u64::MAX);
    let cpu_before = clock_gettime(ClockId::ThreadCPUTime);
    let from = Instant::now();
    let mut operations = 0;
    let until = loop {
        let calls = batch.min(calls_max - operations);
        for _ in 0..calls {
            call().map_err(Into::into)?;
        }
        operations += calls;
        if is_over(from.elapsed()) || operations == calls_max {
            break Instant::now();
        }
    };
    let cpu_after = clock_gettime(ClockId::ThreadCPUTime);
    Ok(Timed {
        operations,
        from,
        until,
        cpu: Duration::try_from(cpu_after - cpu_before).context("the thread's clock")?,
    })
}
