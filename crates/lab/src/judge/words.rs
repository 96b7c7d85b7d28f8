//! What the judge says in words: criteria, p-values, amounts of work.

use crate::experiment::{Bound, Claim, ClaimKind, Metric};
use crate::unit::{significant, Better, Unit};

/// What a claim asks for, in words: `at least 0.97`.
pub fn criterion(claim: &Claim, metric: Option<&Metric>) -> String {
    match &claim.kind {
        ClaimKind::Ratio { bound, .. } => limits(*bound, &significant),
        ClaimKind::Flat { over, at_most, .. } => format!(
            "largest over smallest along {over} at most {}",
            significant(*at_most)
        ),
        ClaimKind::Scales {
            over, up_to, bound, ..
        } => {
            let mut words = format!("slope along {over} {}", limits(*bound, &significant));
            if let Some(up_to) = up_to {
                words += &format!(", up to {}", significant(*up_to));
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
                words += &format!(", each by a factor of {}", significant(*margin));
            }
            words
        }
        ClaimKind::Value { bound, .. } => {
            let unit = metric.map_or(Unit::Ratio, |metric| metric.unit);
            limits(*bound, &|value| unit.show(value))
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

/// The smallest p of `rounds` rounds, in words: `8 rounds reach p = 1/256`.
pub(super) fn reach(rounds: usize) -> String {
    let plural = if rounds == 1 {
        "round reaches"
    } else {
        "rounds reach"
    };
    match 1u64.checked_shl(u32::try_from(rounds).unwrap_or(u32::MAX)) {
        Some(patterns) => format!("{rounds} {plural} p = 1/{patterns}"),
        None => format!("{rounds} {plural} p = 2^-{rounds}"),
    }
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

/// `1 claim`, `20 claims`.
pub(super) fn count(number: usize, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_in_bytes_has_a_unit_and_other_work_its_counters_name() {
        assert_eq!(work(10_900.0, "bytes"), "10.9 kB");
        assert_eq!(work(860.0, "bytes verified"), "0.86 kB");
        assert_eq!(work(8.0, "bytes"), "8 B");
        assert_eq!(work(64.0, "draws"), "64 draws");
    }

    #[test]
    fn the_reach_of_rounds_is_a_fraction_while_it_can_be() {
        assert_eq!(reach(8), "8 rounds reach p = 1/256");
        assert_eq!(reach(1), "1 round reaches p = 1/2");
        assert_eq!(reach(80), "80 rounds reach p = 2^-80");
    }
}
