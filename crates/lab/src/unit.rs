//! Units, their spelling and their conversion: a number always has one.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The quantity that a unit measures; only units of one dimension convert into each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// Time, in seconds.
    Time,
    /// An amount of data, in bytes.
    Data,
    /// Data per time, in bytes per second.
    DataRate,
    /// Operations per second.
    OperationRate,
    /// Packets per second.
    PacketRate,
    /// A frequency, in hertz.
    Frequency,
    /// A quotient of two like things.
    Ratio,
    /// A number of things.
    Count,
}

macro_rules! units {
    ($($variant:ident $spelling:literal $dimension:ident $scale:expr;)*) => {
        /// A unit of measurement.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs)] // Each variant is its spelling.
        pub enum Unit { $($variant,)* }

        impl Unit {
            /// Every unit, for lists and suggestions.
            pub const ALL: &[Unit] = &[$(Unit::$variant,)*];

            /// Returns the spelling of the unit: case matters, `MiB/s` is not `MB/s`.
            pub const fn spelling(self) -> &'static str {
                match self { $(Unit::$variant => $spelling,)* }
            }

            /// Returns the quantity that it measures.
            pub const fn dimension(self) -> Dimension {
                match self { $(Unit::$variant => Dimension::$dimension,)* }
            }

            /// Returns this unit in base units (s, B, B/s, /s, Hz, 1).
            pub const fn scale(self) -> f64 {
                match self { $(Unit::$variant => $scale,)* }
            }
        }
    };
}

units! {
    Nanoseconds "ns" Time 1e-9;
    Microseconds "µs" Time 1e-6;
    Milliseconds "ms" Time 1e-3;
    Seconds "s" Time 1.0;
    Bytes "B" Data 1.0;
    Kilobytes "kB" Data 1e3;
    Megabytes "MB" Data 1e6;
    Gigabytes "GB" Data 1e9;
    Kibibytes "KiB" Data 1024.0;
    Mebibytes "MiB" Data 1_048_576.0;
    Gibibytes "GiB" Data 1_073_741_824.0;
    BytesPerSecond "B/s" DataRate 1.0;
    KilobytesPerSecond "kB/s" DataRate 1e3;
    MegabytesPerSecond "MB/s" DataRate 1e6;
    GigabytesPerSecond "GB/s" DataRate 1e9;
    KibibytesPerSecond "KiB/s" DataRate 1024.0;
    MebibytesPerSecond "MiB/s" DataRate 1_048_576.0;
    GibibytesPerSecond "GiB/s" DataRate 1_073_741_824.0;
    BitsPerSecond "bit/s" DataRate 0.125;
    KilobitsPerSecond "kbit/s" DataRate 125.0;
    MegabitsPerSecond "Mbit/s" DataRate 125e3;
    GigabitsPerSecond "Gbit/s" DataRate 125e6;
    OperationsPerSecond "ops/s" OperationRate 1.0;
    RequestsPerSecond "req/s" OperationRate 1.0;
    PacketsPerSecond "pps" PacketRate 1.0;
    MegapacketsPerSecond "Mpps" PacketRate 1e6;
    Hertz "Hz" Frequency 1.0;
    Kilohertz "kHz" Frequency 1e3;
    Megahertz "MHz" Frequency 1e6;
    Gigahertz "GHz" Frequency 1e9;
    Ratio "ratio" Ratio 1.0;
    Percent "%" Ratio 0.01;
    Count "count" Count 1.0;
}

impl Unit {
    /// Converts `value` of this unit into `other`.
    ///
    /// # Errors
    /// [`UnitError::Dimension`] where the two measure different things.
    pub fn convert(self, value: f64, other: Unit) -> Result<f64, UnitError> {
        if self.dimension() != other.dimension() {
            return Err(UnitError::Dimension {
                from: self,
                to: other,
            });
        }
        if self == other {
            return Ok(value);
        }
        Ok(value * self.scale() / other.scale())
    }

    /// Returns `value`, which was measured in this unit, unless it cannot be: only a quotient may
    /// be negative, such as a change or a correlation.
    ///
    /// # Errors
    /// It cannot: says what was expected.
    pub fn measured(self, value: f64) -> Result<f64, String> {
        if value < 0.0 && self.dimension() != Dimension::Ratio {
            let noun = self.dimension().noun();
            return Err(format!(
                "found {value} {self}, expected 0 or more, as of {noun}"
            ));
        }
        Ok(value)
    }

    /// The value as a report shows it: four significant digits in the unit of its family that
    /// keeps the number short, `13.67 Mpps`, `2.5 GiB/s`, `0.997`.
    pub fn show(self, value: f64) -> String {
        let short = self.short(&[value]);
        let number = significant(value / short.per);
        match short.unit {
            Unit::Ratio | Unit::Count => number,
            unit => format!("{number} {unit}"),
        }
    }

    /// Returns the value as a file has it, with all its digits ([`exact`]): in the unit of its
    /// family that keeps the number short, or in this one if it has fewer digits there.
    pub fn show_exact(self, value: f64) -> String {
        let short = self.short(&[value]);
        let (own, other) = (exact(value), exact(value / short.per));
        let digits = |number: &str| number.chars().filter(char::is_ascii_digit).count();
        let (number, unit) = match digits(&other) <= digits(&own) {
            true => (other, short.unit),
            false => (own, self),
        };
        match unit {
            Unit::Ratio | Unit::Count => number,
            unit => format!("{number} {unit}"),
        }
    }

    /// One unit in which all of `values` are short, of the same family: binary stays binary, bits
    /// stay bits. The unit itself while that has fewer than five digits before the point.
    pub fn short(self, values: &[f64]) -> Short {
        let most = values.iter().fold(0.0f64, |most, v| most.max(v.abs()));
        let fits = |per: f64| most / per < 9_999.5 && (most / per >= 0.1 || most == 0.0);
        if fits(1.0) {
            return Short {
                unit: self,
                per: 1.0,
            };
        }
        let family = self.family().iter();
        let short = family.map(|&unit| Short {
            unit,
            per: unit.scale() / self.scale(),
        });
        let short = short
            .filter(|short| fits(short.per))
            .max_by(|a, b| a.per.total_cmp(&b.per));
        short.unwrap_or(Short {
            unit: self,
            per: 1.0,
        })
    }

    /// The units in which a value of this unit may be shown, ascending; empty if there is only
    /// this one.
    pub fn family(self) -> &'static [Unit] {
        use Unit::*;
        const FAMILIES: &[&[Unit]] = &[
            &[Nanoseconds, Microseconds, Milliseconds, Seconds],
            &[Bytes, Kibibytes, Mebibytes, Gibibytes],
            &[Kilobytes, Megabytes, Gigabytes],
            &[KibibytesPerSecond, MebibytesPerSecond, GibibytesPerSecond],
            &[
                BytesPerSecond,
                KilobytesPerSecond,
                MegabytesPerSecond,
                GigabytesPerSecond,
            ],
            &[
                BitsPerSecond,
                KilobitsPerSecond,
                MegabitsPerSecond,
                GigabitsPerSecond,
            ],
            &[PacketsPerSecond, MegapacketsPerSecond],
            &[Hertz, Kilohertz, Megahertz, Gigahertz],
        ];
        let family = FAMILIES.iter().find(|family| family.contains(&self));
        family.copied().unwrap_or(&[])
    }
}

/// The unit that [`Unit::short`] chose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Short {
    /// The unit to show.
    pub unit: Unit,
    /// The value's own units per one of it.
    pub per: f64,
}

/// Four significant digits; a letter for the thousands from 10,000 on (`123.5k`), an exponent
/// where no letter reaches.
pub fn significant(value: f64) -> String {
    const LETTERS: [(f64, &str); 5] = [(1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T")];
    let size = value.abs();
    if value == 0.0 {
        return "0".into();
    }
    if !value.is_finite() {
        return value.to_string();
    }
    if !(1e-4..9.9995e14).contains(&size) {
        return format!("{value:.3e}");
    }
    let (per, letter) = match size {
        size if size < 9_999.5 => LETTERS[0],
        // The last letter whose number still rounds to 1 or more.
        size => {
            LETTERS[(1..5)
                .rev()
                .find(|&i| size >= 0.99995 * LETTERS[i].0)
                .unwrap_or(1)]
        }
    };
    let magnitude = (size / per).log10().floor();
    let decimals = (3.0 - magnitude).max(0.0) as usize;
    let text = format!("{:.decimals$}", value / per);
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{text}{letter}")
}

/// A number that a file states, with all its digits: a threshold, or a published figure. At most 15
/// of them, which are the same after a conversion between units.
pub fn exact(value: f64) -> String {
    let value: f64 = format!("{value:.14e}").parse().unwrap_or(value);
    match value.abs() {
        0.0 => "0".into(),
        size if (1e-6..1e15).contains(&size) => value.to_string(),
        _ => format!("{value:e}"),
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.spelling())
    }
}

impl FromStr for Unit {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        // `us` for keyboards without µ, and the two code points that look like µ.
        let text = match text {
            "us" | "\u{3bc}s" => "µs",
            other => other,
        };
        Unit::ALL
            .iter()
            .copied()
            .find(|unit| unit.spelling() == text)
            .ok_or_else(|| UnitError::Unknown(text.to_owned()))
    }
}

impl Serialize for Unit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.spelling())
    }
}

impl<'de> Deserialize<'de> for Unit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// A value with its unit, as a file writes it: `16 B`, `40 ms`, `212.806 MB/s`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantity {
    /// The number, finite.
    pub value: f64,
    /// Its unit.
    pub unit: Unit,
}

impl Quantity {
    /// The value in `unit`.
    ///
    /// # Errors
    /// [`UnitError::Dimension`] where the two measure different things.
    pub fn in_unit(self, unit: Unit) -> Result<f64, UnitError> {
        self.unit.convert(self.value, unit)
    }
}

impl FromStr for Quantity {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let text = text.trim();
        let end = text
            .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | 'e' | '_')))
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let value = number
            .replace('_', "")
            .parse::<f64>()
            .ok()
            .filter(|value| value.is_finite())
            .ok_or_else(|| UnitError::Number(text.to_owned()))?;
        if unit.trim().is_empty() {
            return Err(UnitError::Missing(text.to_owned()));
        }
        Ok(Quantity {
            value,
            unit: unit.trim().parse()?,
        })
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.unit.show(self.value))
    }
}

/// The direction in which a metric is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Throughput.
    Higher,
    /// Latency.
    Lower,
}

/// The reason for which a text is no quantity, or two units do not convert.
#[derive(Clone, Debug, PartialEq)]
pub enum UnitError {
    /// No such unit.
    Unknown(String),
    /// A number without one.
    Missing(String),
    /// Not a finite number.
    Number(String),
    /// The two measure different things.
    Dimension {
        /// The unit at hand.
        from: Unit,
        /// The unit asked for.
        to: Unit,
    },
}

impl fmt::Display for UnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnitError::Unknown(found) => {
                write!(f, "found unit \"{found}\", expected one of")?;
                for (i, unit) in Unit::ALL.iter().enumerate() {
                    write!(f, "{} {unit}", if i == 0 { "" } else { "," })?;
                }
                Ok(())
            }
            UnitError::Missing(found) => {
                write!(
                    f,
                    "found \"{found}\" without a unit, expected e.g. \"{found} ns\""
                )
            }
            UnitError::Number(found) => {
                write!(
                    f,
                    "found \"{found}\", expected a number and a unit such as \"16 B\""
                )
            }
            UnitError::Dimension { from, to } => write!(
                f,
                "{from} cannot be converted to {to}: one is {}, the other {}",
                from.dimension().noun(),
                to.dimension().noun()
            ),
        }
    }
}

impl std::error::Error for UnitError {}

impl Dimension {
    const fn noun(self) -> &'static str {
        match self {
            Dimension::Time => "a time",
            Dimension::Data => "an amount of data",
            Dimension::DataRate => "a data rate",
            Dimension::OperationRate => "an operation rate",
            Dimension::PacketRate => "a packet rate",
            Dimension::Frequency => "a frequency",
            Dimension::Ratio => "a ratio",
            Dimension::Count => "a count",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mebibyte_is_not_a_megabyte_and_a_rate_is_not_a_frequency() {
        let peak: Quantity = "730 MiB/s".parse().unwrap();
        let megabytes = peak.in_unit(Unit::MegabytesPerSecond).unwrap();
        assert!((megabytes - 765.46048).abs() < 1e-9);
        let error = peak.in_unit(Unit::Megahertz).unwrap_err();
        assert_eq!(
            error.to_string(),
            "MiB/s cannot be converted to MHz: one is a data rate, the other a frequency"
        );
    }

    #[test]
    fn only_a_quotient_may_be_negative() {
        for &unit in Unit::ALL {
            assert_eq!(unit.measured(0.0), Ok(0.0));
            assert_eq!(unit.measured(2.5), Ok(2.5));
            let is_quotient = matches!(unit, Unit::Ratio | Unit::Percent);
            assert_eq!(unit.measured(-0.5).is_ok(), is_quotient, "{unit}");
        }
        assert_eq!(
            Unit::Milliseconds.measured(-3.0),
            Err("found -3 ms, expected 0 or more, as of a time".into())
        );
    }

    #[test]
    fn every_unit_reads_back_what_it_prints() {
        for &unit in Unit::ALL {
            assert_eq!(unit.spelling().parse::<Unit>(), Ok(unit));
            let json = serde_json::to_string(&unit).unwrap();
            assert_eq!(serde_json::from_str::<Unit>(&json).unwrap(), unit);
        }
        assert_eq!("us".parse::<Unit>(), Ok(Unit::Microseconds));
    }

    #[test]
    fn a_number_without_a_unit_is_refused_with_an_example() {
        assert!(matches!(
            "16".parse::<Quantity>(),
            Err(UnitError::Missing(_))
        ));
        assert!(matches!("B".parse::<Quantity>(), Err(UnitError::Number(_))));
        assert!(matches!(
            "1e999 B".parse::<Quantity>(),
            Err(UnitError::Number(_))
        ));
        assert!(matches!(
            "3 mb/s".parse::<Quantity>(),
            Err(UnitError::Unknown(_))
        ));
        assert_eq!(
            "-1.5e3 µs".parse::<Quantity>().unwrap(),
            Quantity {
                value: -1500.0,
                unit: Unit::Microseconds
            }
        );
    }

    #[test]
    fn figures_have_four_digits_in_a_unit_that_keeps_them_short() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (0.98765, "0.9877"),
            (1018.4, "1018"),
            (9999.7, "10k"),
            (123_456.0, "123.5k"),
            (999_990.0, "1M"),
            (-2.5e6, "-2.5M"),
            (0.00001, "1.000e-5"),
        ] {
            assert_eq!(significant(value), text);
        }
        assert_eq!(Unit::MebibytesPerSecond.show(212.8064), "212.8 MiB/s");
        assert_eq!(Unit::MebibytesPerSecond.show(20_480.0), "20 GiB/s");
        assert_eq!(Unit::PacketsPerSecond.show(13.668e6), "13.67 Mpps");
        assert_eq!(Unit::Nanoseconds.show(2_500_000.0), "2.5 ms");
        assert_eq!(Unit::RequestsPerSecond.show(162_588.6), "162.6k req/s");
        assert_eq!(Unit::Percent.show(97.31), "97.31 %");
        assert_eq!(Unit::Count.show(8192.0), "8192");
    }

    #[test]
    fn what_a_file_states_keeps_all_its_digits_and_gets_no_others() {
        for (value, text) in [
            (0.0, "0"),
            (1.0005, "1.0005"),
            (0.9998, "0.9998"),
            (1127.5, "1127.5"),
            (-162_588.64, "-162588.64"),
            (0.1 + 0.2, "0.3"),
            (1e-7, "1e-7"),
            (2e300, "2e300"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(exact(value), text);
        }
        let converted = |text: &str, unit: Unit| {
            let quantity: Quantity = text.parse().unwrap();
            unit.show_exact(quantity.in_unit(unit).unwrap())
        };
        let pps = Unit::PacketsPerSecond;
        assert_eq!(converted("13.66812 Mpps", pps), "13.66812 Mpps");
        assert_eq!(converted("1.1 MB/s", Unit::KilobytesPerSecond), "1100 kB/s");
        assert_eq!(converted("2500 us", Unit::Nanoseconds), "2.5 ms");
        let rate = Unit::MebibytesPerSecond;
        assert_eq!(converted("12345 MiB/s", rate), "12345 MiB/s");
        assert_eq!(converted("20480 MiB/s", rate), "20 GiB/s");
        assert_eq!(converted("97.3125 %", Unit::Ratio), "0.973125");
    }

    #[test]
    fn no_figure_has_more_than_four_significant_digits() {
        for exponent in -40..150 {
            for lead in [1.0, 1.00005, 4.99995, 9.9994, 9.99949, 9.99951, 9.9999] {
                let text = significant(-lead * 10f64.powf(f64::from(exponent) / 10.0));
                let digits = text.trim_start_matches("-0.").trim_start_matches('0');
                let digits = digits.chars().filter(char::is_ascii_digit).count();
                assert!(
                    text.contains('e') || (digits <= 4 && text.len() <= 10),
                    "{text}"
                );
            }
        }
    }
}
