//! Turns of the two sides of a comparison.

use std::time::{Duration, Instant};

/// The time of a turn.
pub(crate) const TURN: Duration = Duration::from_millis(80);
/// Turns of each side.
pub(crate) const TURNS: usize = 15;

/// Runs something for a turn; returns the median time of it in nanoseconds.
pub(crate) fn median(mut run: impl FnMut()) -> f64 {
    let mut times = Vec::with_capacity(1 << 16);
    let start = Instant::now();
    let mut before = start;
    loop {
        run();
        let now = Instant::now();
        times.push((now - before).as_nanos() as u64);
        before = now;
        if now - start >= TURN {
            break;
        }
    }
    let middle = times.len() / 2;
    *times.select_nth_unstable(middle).1 as f64
}
