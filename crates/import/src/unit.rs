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

/// The units of each dimension, with their sizes in its base unit.
const UNITS: [(Dimension, &str); 6] = [
    (Dimension::Time, "ps=1e-12 ns=1e-9 µs=1e-6 ms=1e-3 s=1"),
    (
        Dimension::Data,
        "B=1 KiB=1024 MiB=1048576 GiB=1073741824 TiB=1099511627776",
    ),
    (
        Dimension::DataRate,
        "B/s=1 KiB/s=1024 MiB/s=1048576 GiB/s=1073741824 TiB/s=1099511627776 MB/s=1e6 \
         bit/s=0.125 Mbit/s=125e3 Gbit/s=125e6 Mibit/s=131072",
    ),
    (Dimension::Rate, "ops/s=1 req/s=1 Mpps=1e6"),
    (Dimension::Count, "count=1"),
    (
        Dimension::Other,
        "%=0.01 ratio=1 Hz=1 cycles=1 index=1 KBps=1 MWIPS=1 lpm=1 =1",
    ),
];

impl Unit {
    /// The unit of that name in the tables; it is empty for a figure that is printed without one.
    pub(crate) fn named(name: &str) -> Unit {
        let mut units = UNITS.iter().flat_map(|(dimension, units)| {
            let units = units.split(' ').filter_map(|unit| unit.split_once('='));
            units.map(|(name, scale)| (name, *dimension, scale))
        });
        let found = units.find(|(other, ..)| *other == name);
        let (name, dimension, scale) = found.expect("a unit of the tables");
        Unit {
            name,
            dimension,
            scale: scale.parse().expect("a size of the tables"),
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
