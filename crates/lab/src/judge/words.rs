//! The judge's texts: criteria, failures, amounts of work.

use super::trials::name;
use crate::experiment::{Bound, Claim, ClaimKind, Metric};
use crate::result::Failures;
pub(super) use crate::text::count;
use crate::unit::{exact, significant, Better, Unit};
use crate::value::Point;

/// Returns the criterion of a claim, in words: `at least 0.97`.
pub fn criterion(claim: &Claim, metric: Option<&Metric>) -> String {
    match &claim.kind {
        ClaimKind::Ratio { bound, .. } => limits(*bound, &exact),
        ClaimKind::Flat { over, at_most, .. } => format!(
            "largest over smallest along {over} at most {}",
            exact(*at_most)
        ),
        ClaimKind::Scales {
            over, up_to, bound, ..
        } => {
            let mut words = format!("slope along {over} {}", limits(*bound, &exact));
            if let Some(up_to) = up_to {
                words += &format!(", up to {}", exact(*up_to));
            }
            words
        }
        ClaimKind::Order { ranked, margin } => {
            let names: Vec<String> = ranked.iter().map(ToString::to_string).collect();
            let sign = match metric.map(|metric| metric.better) {
                Some(Better::Lower) => " < ",
                _ => " > ",
            };
            let mut words = names.join(sign);
            if *margin > 1.0 {
                words += &format!(", each by a factor of {}", exact(*margin));
            }
            words
        }
        ClaimKind::Value { bound, .. } => {
            let unit = metric.map_or(Unit::Ratio, |metric| metric.unit);
            limits(*bound, &|value| unit.show_exact(value))
        }
        ClaimKind::Zero {
            counter, out_of, ..
        } => format!("{counter} 0 of {out_of}"),
    }
}

fn limits(bound: Bound, show: &dyn Fn(f64) -> String) -> String {
    match (bound.at_least, bound.at_most) {
        (Some(low), Some(high)) => format!("between {} and {}", show(low), show(high)),
        (Some(low), None) => format!("at least {}", show(low)),
        (None, Some(high)) => format!("at most {}", show(high)),
        (None, None) => "anything".to_owned(),
    }
}

/// The beginning of the reason of a trial that succeeded without a value for a metric, which
/// follows.
pub(super) const NO_VALUE: &str = "no value for ";

/// The reason for which a cell has no figure, where `reason` is that of most of its trials. A
/// program whose peak memory the kernel does not tell, for example, has not failed.
pub(super) fn none_gave_a_figure(cell: &Point, reason: &str) -> String {
    let cell = name(cell);
    match reason.strip_prefix(NO_VALUE) {
        Some(metric) => format!("no trial of {cell} gave a value for {metric}"),
        None => format!("every trial of {cell} failed: {reason}"),
    }
}

/// The failed trials of a claim's cells, in words; `None` if none failed.
pub(super) fn failed(failures: &[Failures]) -> Option<String> {
    let most = failures.iter().rev().max_by_key(|cell| cell.failed)?;
    let mut words = format!(
        "{} of {} of {} failed ({})",
        most.failed,
        count(most.of, "trial"),
        name(&most.at),
        most.reason
    );
    if let Some(cells) = failures.len().checked_sub(1).filter(|cells| *cells > 0) {
        let others: usize = failures.iter().map(|cell| cell.failed).sum::<usize>() - most.failed;
        words += &format!(", and {others} of {}", count(cells, "other cell"));
    }
    Some(words)
}

/// An amount of work, in words: `10.9 kB`, `64 draws`.
pub(super) fn work(amount: f64, counter: &str) -> String {
    if counter.contains("bytes") {
        let unit = match amount {
            amount if amount < 100.0 => Unit::Bytes,
            amount if amount < 1e5 => Unit::Kilobytes,
            amount if amount < 1e8 => Unit::Megabytes,
            _ => Unit::Gigabytes,
        };
        return unit.show(amount / unit.scale());
    }
    format!("{} {counter}", significant(amount))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Standing;
    use crate::value::Selector;

    #[test]
    fn a_criterion_has_its_thresholds_as_they_were_written() {
        let of = Selector::default();
        let claim = |low, high| Claim {
            id: "c".into(),
            standing: Standing::Claim,
            text: "It holds".into(),
            source: None,
            metric: "time".into(),
            kind: ClaimKind::Value {
                of: of.clone(),
                bound: Bound {
                    at_least: Some(low),
                    at_most: Some(high),
                },
            },
            published: None,
        };
        for (low, high, expected) in [
            (0.9998, 1.0002, "between 0.9998 and 1.0002"),
            (922.5, 1127.5, "between 922.5 and 1127.5"),
            (99_995.0, 100_005.0, "between 99995 and 100005"),
        ] {
            assert_eq!(criterion(&claim(low, high), None), expected);
        }
    }

    #[test]
    fn work_in_bytes_has_a_unit_and_other_work_its_counters_name() {
        assert_eq!(work(10_900.0, "bytes"), "10.9 kB");
        assert_eq!(work(860.0, "bytes verified"), "0.86 kB");
        assert_eq!(work(8.0, "bytes"), "8 B");
        assert_eq!(work(64.0, "draws"), "64 draws");
    }
}
