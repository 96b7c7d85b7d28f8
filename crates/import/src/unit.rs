//! Units by exact name, with the arithmetic that the checks need.

use std::fmt;

use serde::{Serialize, Serializer};

/// A unit of measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unit {
    /// Its spelling: `MiB/s` is not `MB/s`. Empty if the log prints none and none is known.
    pub name: &'static str,
    dimension: Dimension,
    scale: f64,
}

/// The quantity that a unit measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dimension {
    /// In seconds.
    Time,
    /// In bytes.
    Data,
    /// In bytes per second.
    DataRate,
    /// In events per second.
    Rate,
    /// A number of events.
    Count,
    /// Anything that the checks do not calculate with.
    Other,
}

/// Every unit, `""` for a figure that is printed without one.
const UNITS: &[(&str, Dimension, f64)] = &[
    ("ps", Dimension::Time, 1e-12),
    ("ns", Dimension::Time, 1e-9),
    ("µs", Dimension::Time, 1e-6),
    ("ms", Dimension::Time, 1e-3),
    ("s", Dimension::Time, 1.0),
    ("B", Dimension::Data, 1.0),
    ("KiB", Dimension::Data, 1024.0),
    ("MiB", Dimension::Data, 1_048_576.0),
    ("GiB", Dimension::Data, 1_073_741_824.0),
    ("TiB", Dimension::Data, 1_099_511_627_776.0),
    ("B/s", Dimension::DataRate, 1.0),
    ("KiB/s", Dimension::DataRate, 1024.0),
    ("MiB/s", Dimension::DataRate, 1_048_576.0),
    ("GiB/s", Dimension::DataRate, 1_073_741_824.0),
    ("TiB/s", Dimension::DataRate, 1_099_511_627_776.0),
    ("MB/s", Dimension::DataRate, 1e6),
    ("bit/s", Dimension::DataRate, 0.125),
    ("Mbit/s", Dimension::DataRate, 125e3),
    ("Gbit/s", Dimension::DataRate, 125e6),
    ("Mibit/s", Dimension::DataRate, 131_072.0),
    ("ops/s", Dimension::Rate, 1.0),
    ("req/s", Dimension::Rate, 1.0),
    ("Mpps", Dimension::Rate, 1e6),
    ("count", Dimension::Count, 1.0),
    ("%", Dimension::Other, 0.01),
    ("ratio", Dimension::Other, 1.0),
    ("Hz", Dimension::Other, 1.0),
    ("cycles", Dimension::Other, 1.0),
    ("index", Dimension::Other, 1.0),
    ("KBps", Dimension::Other, 1.0),
    ("MWIPS", Dimension::Other, 1.0),
    ("lpm", Dimension::Other, 1.0),
    ("", Dimension::Other, 1.0),
];

impl Unit {
    /// The unit of that name in the tables.
    pub(crate) fn named(name: &str) -> Unit {
        let found = UNITS.iter().find(|(other, ..)| *other == name);
        let &(name, dimension, scale) = found.expect("a unit of the tables");
        Unit {
            name,
            dimension,
            scale,
        }
    }

    /// The value of this unit in base units: seconds, bytes, bytes per second, events per second.
    pub(crate) fn base(self, value: f64) -> f64 {
        value * self.scale
    }

    /// A value in base units, in this unit.
    pub(crate) fn of_base(self, value: f64) -> f64 {
        value / self.scale
    }

    /// Returns whether it is an amount of data.
    pub(crate) fn is_data(self) -> bool {
        self.dimension == Dimension::Data
    }

    /// Returns whether `amount` per time gives this unit.
    pub(crate) fn is_rate_of(self, amount: Unit) -> bool {
        use Dimension::{Count, Data, DataRate, Rate};
        let pair = (amount.dimension, self.dimension);
        matches!(pair, (Data, DataRate) | (Count, Rate))
    }

    /// The decimal unit beside a binary one, and the number of them in it: `MB/s` for `MiB/s`.
    /// `None` if it is not binary.
    pub(crate) fn decimal(self) -> Option<(String, f64)> {
        let (prefix, rest) = self.name.split_once('i').filter(|(p, _)| p.len() == 1)?;
        let power = "KMGT".find(prefix)? as i32 + 1;
        let name = format!("{}{rest}", prefix.replace('K', "k"));
        Some((name, (1024f64 / 1000.0).powi(power)))
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

impl Serialize for Unit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.name {
            "" => serializer.serialize_none(),
            name => serializer.serialize_str(name),
        }
    }
}
