//! Units, their spelling and their conversion: a number never travels without one.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What a unit measures; only units of one dimension convert into each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// Time, in seconds.
    Time,
    /// An amount of data, in bytes.
    Data,
    /// Data a second, in bytes a second.
    DataRate,
    /// Operations a second.
    OperationRate,
    /// Packets a second.
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

            /// How the unit is written: case matters, `MiB/s` is not `MB/s`.
            pub const fn spelling(self) -> &'static str {
                match self { $(Unit::$variant => $spelling,)* }
            }

            /// What it measures.
            pub const fn dimension(self) -> Dimension {
                match self { $(Unit::$variant => Dimension::$dimension,)* }
            }

            /// How many base units (s, B, B/s, /s, Hz, 1) one of this unit is.
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

    /// The value as people read it: four significant digits, then the unit.
    pub fn show(self, value: f64) -> String {
        match self {
            Unit::Ratio | Unit::Count => significant(value),
            Unit::Percent => format!("{} %", significant(value)),
            _ => format!("{} {}", significant(value), self.spelling()),
        }
    }
}

/// Four significant digits, thousands unmarked, no exponent between 1e-4 and 1e15.
pub fn significant(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    if !value.is_finite() {
        return value.to_string();
    }
    let magnitude = value.abs().log10().floor();
    if !(-4.0..15.0).contains(&magnitude) {
        return format!("{value:.3e}");
    }
    let decimals = (3.0 - magnitude).max(0.0) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
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

/// A value with its unit, as people write it: `16 B`, `40 ms`, `212.806 MB/s`.
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

/// Which direction of a metric is the good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Throughput.
    Higher,
    /// Latency.
    Lower,
}

/// Why text is no quantity, or two units do not convert.
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
    fn figures_are_shown_with_four_significant_digits() {
        assert_eq!(significant(0.0), "0");
        assert_eq!(significant(1.0), "1");
        assert_eq!(significant(0.98765), "0.9877");
        assert_eq!(significant(123456.0), "123456");
        assert_eq!(significant(0.00001), "1.000e-5");
        assert_eq!(Unit::MebibytesPerSecond.show(212.8064), "212.8 MiB/s");
    }
}
