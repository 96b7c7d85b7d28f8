use std::vec::Vec;

use super::*;
use crate::scripted::healthy_value;

/// The tests as the standard words them, without tricks; what `Monitor` must agree with.
fn plain(values: &[u64], bytes: u32) -> Option<(usize, HealthFailure)> {
    let width = bytes as usize;
    let (mut last, mut run) = (None, 0);
    let (mut reference, mut count, mut seen, mut turn) = (0_u8, 0, 0, 0);
    for (index, &value) in values.iter().enumerate() {
        run = if last == Some(value) { run + 1 } else { 1 };
        last = Some(value);
        if run >= cutoff::repetition_of_width(bytes) {
            return Some((
                index,
                HealthFailure::Repetition {
                    value,
                    bits: 8 * bytes,
                    run,
                },
            ));
        }
        let symbols = &value.to_le_bytes()[..width];
        count += symbols.iter().filter(|&&byte| byte == reference).count() as u32;
        seen += bytes;
        if (index + 1) % FOLD as usize == 0 {
            if count >= cutoff::PROPORTION {
                let byte = reference;
                return Some((
                    index,
                    HealthFailure::Proportion {
                        byte,
                        count,
                        window: seen,
                    },
                ));
            }
            if seen >= cutoff::WINDOW {
                (reference, count, seen) = (symbols[turn % width], 0, 0);
                turn += 1;
            }
        }
    }
    None
}

fn monitored<const BYTES: u32>(values: &[u64]) -> Option<(usize, HealthFailure)> {
    let mut monitor = Monitor::<BYTES>::new();
    values
        .iter()
        .enumerate()
        .find_map(|(index, &value)| monitor.observe(value).err().map(|failure| (index, failure)))
}

fn both(values: &[u64]) -> [Option<(usize, HealthFailure)>; 3] {
    let narrow = |bits: u32| {
        values
            .iter()
            .map(|&v| v & ((1 << bits) - 1))
            .collect::<Vec<_>>()
    };
    let (v16, v32) = (narrow(16), narrow(32));
    let found = [
        monitored::<2>(&v16),
        monitored::<4>(&v32),
        monitored::<8>(values),
    ];
    assert_eq!(found, [plain(&v16, 2), plain(&v32, 4), plain(values, 8)]);
    found
}

#[test]
fn a_healthy_source_passes() {
    let values: Vec<u64> = (0..200_000).map(|index| healthy_value(7, index)).collect();
    assert_eq!(both(&values), [None; 3]);
}

#[test]
fn a_stuck_source_fails_at_the_cut_off() {
    for stuck in [0, u64::MAX, 0x0123_4567_89ab_cdef] {
        let values = [stuck; 10];
        let at = both(&values).map(|found| found.expect("stuck").0 + 1);
        assert_eq!(at, [6, 4, 3], "{stuck:#x}");
    }
}

#[test]
fn one_stuck_byte_lane_of_eight_is_found_whatever_lane_it_is() {
    for lane in 0..8 {
        for byte in [0x00_u64, 0xa5, 0xff] {
            let values: Vec<u64> = (0..200_000)
                .map(|index| {
                    healthy_value(lane, index) & !(0xff << (8 * lane)) | byte << (8 * lane)
                })
                .collect();
            let (_, failure) = monitored::<8>(&values).expect("an eighth of all bytes is stuck");
            assert!(
                matches!(failure, HealthFailure::Proportion { .. }),
                "{lane} {failure:?}"
            );
            assert_eq!(monitored::<8>(&values), plain(&values, 8));
        }
    }
}

#[test]
fn a_proportion_that_comes_late_is_found_within_two_windows() {
    let mut values: Vec<u64> = (0..6400).map(|index| healthy_value(9, index)).collect();
    // From here on every second byte is zero.
    values.extend((0..640).map(|index| healthy_value(10, index) & 0xff00_ff00_ff00_ff00));
    let (at, failure) = monitored::<8>(&values).expect("half of the bytes are zero");
    assert!(at < 6400 + 640, "{at} {failure:?}");
    both(&values);
}

/// Values of which some come twice, or one three times, or half of the bytes are zero from
/// some value on.
fn values_with_a_fault(seed: u64) -> Vec<u64> {
    let from = 1 + healthy_value(seed, 0) % 300;
    let each = |index: u64| {
        let value = match seed % 3 {
            2 if index >= from => healthy_value(seed, index) & 0xff00_ff00_ff00_ff00,
            _ => healthy_value(seed, index),
        };
        let times = match seed % 3 {
            1 if index == from => 3,
            _ => 1 + usize::from(healthy_value(seed + 1, index).is_multiple_of(16)),
        };
        std::iter::repeat_n(value, times)
    };
    (1..400).flat_map(each).collect()
}

#[test]
fn ordinary_values_and_blocks_are_tested_as_single_values_are() {
    let (mut repetitions, mut proportions, mut sound) = (0, 0, 0);
    for seed in 0..400 {
        let values = values_with_a_fault(seed);
        let mut monitor = Monitor::<8>::new();
        let (mut at, mut turn) = (0, 0);
        let found = loop {
            let Some(rest) = values.get(at..).filter(|rest| !rest.is_empty()) else {
                break None;
            };
            turn += 1;
            let random = healthy_value(seed, turn) as usize;
            let count = (1 + random / 4 % 6).min(rest.len());
            let result = match random % 4 {
                0 => {
                    // As the fast path does.
                    let taken = monitor.ordinary(count as u32).map_or(0, |mut ordinary| {
                        let takes = |&&value: &&u64| ordinary.takes(value, false);
                        let taken = rest[..count].iter().take_while(takes).count();
                        if taken > 0 {
                            monitor.took(ordinary, taken as u32);
                        }
                        taken
                    });
                    at += taken;
                    continue;
                }
                1 | 2 => {
                    let count = (random / 64 % 80 + 1).min(rest.len());
                    let count = count.min(monitor.until_fold() as usize);
                    let block: Vec<[u8; 8]> =
                        rest[..count].iter().map(|v| v.to_ne_bytes()).collect();
                    monitor.observe_block(&block).map(|()| count)
                }
                _ => monitor.observe(rest[0]).map(|()| 1),
            };
            match result {
                Ok(count) => at += count,
                Err(failure) => break Some((at, failure)),
            }
        };
        match (found, plain(&values, 8)) {
            (None, None) => sound += 1,
            // A block fails as a whole, at its first value or after.
            (Some((from, failure)), Some((index, expected))) => {
                assert_eq!(failure, expected, "{seed}");
                assert!(from <= index && index < from + FOLD as usize, "{seed}");
                match failure {
                    HealthFailure::Repetition { .. } => repetitions += 1,
                    _ => proportions += 1,
                }
            }
            (found, expected) => panic!("{seed}: {found:?}, expected {expected:?}"),
        }
    }
    assert_eq!((sound, repetitions, proportions), (134, 133, 133));
}
