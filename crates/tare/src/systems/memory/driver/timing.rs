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

/// The time per operation that stands for several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Average {
    /// The median, which leaves out what else the machine did.
    Median,
    /// The time of all operations over their number: what happens in few groups, such as the wait
    /// for a lost datagram, is a part of it.
    Mean,
}

impl Average {
    /// Returns it of times per operation, each with its number of operations.
    pub(super) fn of(self, times: &[(f64, u64)]) -> f64 {
        match self {
            Average::Median => {
                let mut times: Vec<f64> = times.iter().map(|(time, _)| *time).collect();
                median(&mut times)
            }
            Average::Mean => {
                let all: f64 = times.iter().map(|(time, count)| time * *count as f64).sum();
                let operations: u64 = times.iter().map(|(_, count)| count).sum();
                all / operations as f64
            }
        }
    }
}

/// Runs groups of at least and at most so many operations for a turn; returns the time per
/// operation, in seconds, and the number of operations.
pub(super) fn groups(
    average: Average,
    (least, most): (usize, usize),
    mut group: impl FnMut(usize) -> anyhow::Result<Duration>,
) -> anyhow::Result<(f64, u64)> {
    let least = least.max(16);
    let (mut times, mut count) = (Vec::new(), least);
    let from = Instant::now();
    while from.elapsed() < TURN || times.is_empty() {
        let took = group(count)?;
        times.push((took.as_secs_f64() / count as f64, count as u64));
        let fitting = GROUP.as_secs_f64() / took.as_secs_f64().max(1e-9) * count as f64;
        count = (fitting as usize).clamp(least, least.max(most));
    }
    let operations = times.iter().map(|(_, count)| count).sum();
    Ok((average.of(&times), operations))
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
    fn a_wait_in_few_groups_is_a_part_of_the_mean_alone() {
        let times = [(1.0, 10), (1.0, 20), (25.0, 10)];
        assert_eq!(Average::Median.of(&times), 1.0);
        assert_eq!(Average::Mean.of(&times), 7.0);
        // Every eighth group waits.
        for (average, expected) in [(Average::Median, 1e-6), (Average::Mean, 2e-6)] {
            let mut groups_so_far = 0;
            let group = |count: usize| {
                groups_so_far += 1;
                let micros = if groups_so_far % 8 == 0 { 9 } else { 1 };
                Ok(Duration::from_micros(micros * count as u64))
            };
            let (time, operations) = groups(average, (16, 16), group).unwrap();
            assert_eq!(operations, 16 * groups_so_far);
            // The groups of a turn may end before a wait.
            let all = groups_so_far as f64;
            let off = time / expected - 1.0;
            assert!(
                off.abs() < 10.0 / all,
                "{average:?}: {time} of {all} groups"
            );
        }
    }

    #[test]
    fn sessions_with_too_few_operations_are_those_that_miss_a_turn() {
        for (operations, expected) in [(0, 3), (26, 3), (27, 3), (28, 2), (29, 1), (30, 0)] {
            assert_eq!(too_few(operations, 3), expected, "{operations}");
        }
    }
}
