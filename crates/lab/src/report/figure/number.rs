//! How numbers stand at an axis: in a unit that keeps them short.

use crate::unit::{significant, Unit};

/// Tick labels for values in `unit`, and the unit that belongs into the axis' title; `None`
/// where each label carries its own. `ends` are the ends of the axis.
pub(crate) fn labels(
    unit: Unit,
    ticks: &[f64],
    ends: &[f64],
    log: bool,
) -> (Vec<String>, Option<Shown>) {
    let shown = shown(unit, ends, log);
    let text = |&tick: &f64| match &shown {
        Some(shown) => scaled(tick / shown.per),
        None => own(unit, tick),
    };
    (ticks.iter().map(text).collect(), shown)
}

/// The unit of an axis' numbers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shown {
    /// Its spelling.
    pub(crate) spelling: &'static str,
    /// How many of the metric's unit one of it is.
    pub(crate) per: f64,
}

/// One unit for the whole axis, where one keeps all numbers readable: the metric's own if it can.
pub(crate) fn shown(unit: Unit, values: &[f64], log: bool) -> Option<Shown> {
    let most = values.iter().fold(0.0f64, |most, v| most.max(v.abs()));
    let least = values
        .iter()
        .map(|v| v.abs())
        .filter(|&v| v > 0.0)
        .fold(most, f64::min);
    let own = Shown {
        spelling: unit.spelling(),
        per: 1.0,
    };
    let readable = |per: f64| most / per < 10_000.0 && (most / per >= 0.1 || most == 0.0);
    if log {
        let rungs = ladder(unit).len() > 1;
        return (!rungs || (most < 10_000.0 && least >= 0.001)).then_some(own);
    }
    if readable(1.0) {
        return Some(own);
    }
    let rung = ladder(unit)
        .iter()
        .map(|&rung| Shown {
            spelling: rung.spelling(),
            per: rung.scale() / unit.scale(),
        })
        .filter(|rung| readable(rung.per))
        .max_by(|a, b| a.per.total_cmp(&b.per));
    Some(rung.unwrap_or(own))
}

/// A value with the unit of its family that suits it best: `2.5 µs`, `64 KiB`.
pub(crate) fn own(unit: Unit, value: f64) -> String {
    let rungs = ladder(unit);
    if value == 0.0 || rungs.len() < 2 {
        return scaled(value);
    }
    let per = |rung: Unit| rung.scale() / unit.scale();
    let rung = rungs
        .iter()
        .copied()
        .rev()
        .find(|&rung| value.abs() / per(rung) >= 0.999)
        .unwrap_or(rungs[0]);
    format!("{} {rung}", significant(value / per(rung)))
}

/// A number with a letter for its thousands where it is long: `10k`, `2.5M`.
fn scaled(value: f64) -> String {
    let (per, letter) = match value.abs() {
        v if v < 10_000.0 => (1.0, ""),
        v if v < 1e6 => (1e3, "k"),
        v if v < 1e9 => (1e6, "M"),
        v if v < 1e12 => (1e9, "G"),
        v if v < 1e15 => (1e12, "T"),
        _ => return significant(value),
    };
    format!("{}{letter}", significant(value / per))
}

/// The units in which a value of `unit` may be shown without changing its family: binary stays
/// binary, bits stay bits. Ascending.
fn ladder(unit: Unit) -> &'static [Unit] {
    const FAMILIES: &[&[Unit]] = &[
        &[
            Unit::Nanoseconds,
            Unit::Microseconds,
            Unit::Milliseconds,
            Unit::Seconds,
        ],
        &[
            Unit::Bytes,
            Unit::Kibibytes,
            Unit::Mebibytes,
            Unit::Gibibytes,
        ],
        &[Unit::Kilobytes, Unit::Megabytes, Unit::Gigabytes],
        &[
            Unit::KibibytesPerSecond,
            Unit::MebibytesPerSecond,
            Unit::GibibytesPerSecond,
        ],
        &[
            Unit::BytesPerSecond,
            Unit::KilobytesPerSecond,
            Unit::MegabytesPerSecond,
            Unit::GigabytesPerSecond,
        ],
        &[
            Unit::BitsPerSecond,
            Unit::KilobitsPerSecond,
            Unit::MegabitsPerSecond,
            Unit::GigabitsPerSecond,
        ],
        &[Unit::PacketsPerSecond, Unit::MegapacketsPerSecond],
        &[
            Unit::Hertz,
            Unit::Kilohertz,
            Unit::Megahertz,
            Unit::Gigahertz,
        ],
    ];
    FAMILIES
        .iter()
        .copied()
        .find(|family| family.contains(&unit))
        .unwrap_or(&[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_keeps_the_metrics_unit_while_its_numbers_are_short() {
        let (labels, unit) = labels(
            Unit::Nanoseconds,
            &[0.0, 500.0, 2000.0],
            &[0.0, 2000.0],
            false,
        );
        assert_eq!(labels, ["0", "500", "2000"]);
        assert_eq!(unit.unwrap().spelling, "ns");
    }

    #[test]
    fn long_numbers_climb_within_their_own_family() {
        let far = shown(Unit::Nanoseconds, &[2_500_000.0], false).unwrap();
        assert_eq!((far.spelling, far.per), ("ms", 1e6));
        let rate = shown(Unit::MebibytesPerSecond, &[20_480.0], false).unwrap();
        assert_eq!((rate.spelling, rate.per), ("GiB/s", 1024.0));
        let (labels, _) = labels(
            Unit::RequestsPerSecond,
            &[0.0, 50_000.0, 1.5e6],
            &[0.0, 1.5e6],
            false,
        );
        assert_eq!(labels, ["0", "50k", "1.5M"]);
    }

    #[test]
    fn far_apart_ticks_of_a_logarithmic_axis_carry_their_own_units() {
        let (labels, unit) = labels(
            Unit::Nanoseconds,
            &[0.0, 100.0, 1e4, 1e6],
            &[50.0, 1e6],
            true,
        );
        assert_eq!(labels, ["0", "100 ns", "10 µs", "1 ms"]);
        assert_eq!(unit, None);
        assert_eq!(own(Unit::Bytes, 65_536.0), "64 KiB");
        assert_eq!(own(Unit::Count, 8192.0), "8192");
    }
}
