//! Turns of groups of operations, and what is made of their times.

use std::time::{Duration, Instant};

/// The time after which the sides of a comparison take turns.
pub(super) const TURN: Duration = Duration::from_millis(80);

/// The time of operations between two looks at the clock, about.
const GROUP: Duration = Duration::from_micros(500);

/// Most operations of a group.
pub(super) const GROUP_MAX: usize = 4096;

/// Measured operations that a session has at least, if it has enough.
const ENOUGH: u64 = 10;

/// Runs groups of at least and at most so many operations for a turn; returns the median time per
/// operation, in seconds, and the number of operations.
pub(super) fn groups(
    (least, most): (usize, usize),
    mut group: impl FnMut(usize) -> anyhow::Result<Duration>,
) -> anyhow::Result<(f64, u64)> {
    let least = least.max(16);
    let (mut times, mut operations, mut count) = (Vec::new(), 0, least);
    let from = Instant::now();
    while from.elapsed() < TURN || times.is_empty() {
        let took = group(count)?;
        times.push(took.as_secs_f64() / count as f64);
        operations += count as u64;
        let fitting = GROUP.as_secs_f64() / took.as_secs_f64().max(1e-9) * count as f64;
        count = (fitting as usize).clamp(least, least.max(most));
    }
    Ok((median(&mut times), operations))
}

/// The median, which of an even number of values is the mean of the two in the middle: a short
/// trial has two turns, and the larger of two would be high in each. NaN without values.
pub(super) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        len if len.is_multiple_of(2) => (values[middle - 1] + values[middle]) / 2.0,
        _ => values[middle],
    }
}

/// Returns how many sessions have too few of these operations: they take turns, so that none has
/// two more than another.
pub(super) fn too_few(operations: u64, sessions: u64) -> u64 {
    (ENOUGH * sessions).saturating_sub(operations).min(sessions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_two_is_between_them() {
        assert_eq!(median(&mut [3.0, 1.0]), 2.0);
        assert_eq!(median(&mut [9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [9.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&mut []).is_nan());
    }

    #[test]
    fn sessions_with_too_few_operations_are_those_that_miss_a_turn() {
        for (operations, expected) in [(0, 3), (26, 3), (27, 3), (28, 2), (29, 1), (30, 0)] {
            assert_eq!(too_few(operations, 3), expected, "{operations}");
        }
    }
}
