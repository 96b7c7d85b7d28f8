//! Medians of few rounds, with intervals that assume nothing of how rates are spread.

/// Median, smallest and largest, as text.
pub(super) fn summary(mut values: Vec<f64>, digits: usize) -> String {
    values.sort_by(f64::total_cmp);
    let [first, .., last] = values[..] else {
        return values
            .iter()
            .map(|value| format!("{value:.digits$}"))
            .collect();
    };
    let half = values.len() / 2;
    let median = if values.len().is_multiple_of(2) {
        (values[half - 1] + values[half]) / 2.0
    } else {
        values[half]
    };
    format!("{median:.digits$} [{first:.digits$}, {last:.digits$}]")
}

/// The probability that the true median is between the smallest and the largest of `rounds`
/// values: they miss it when all are on one side.
pub(super) fn coverage(rounds: u32) -> f64 {
    1.0 - 0.5f64.powi(rounds as i32 - 1)
}

/// Another order for each seed.
pub(super) fn shuffle(items: &mut [usize], seed: u64) {
    let mut state = seed;
    for at in (1..items.len()).rev() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        items.swap(at, (state >> 33) as usize % (at + 1));
    }
}
