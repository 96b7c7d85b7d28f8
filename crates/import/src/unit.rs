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

macro_rules! units {
    ($($constant:ident $name:literal $dimension:ident $scale:expr;)*) => {
        $(pub(crate) const $constant: Unit =
            Unit { name: $name, dimension: Dimension::$dimension, scale: $scale };)*
    };
}

units! {
    PS "ps" Time 1e-12;
    NS "ns" Time 1e-9;
    US "µs" Time 1e-6;
    MS "ms" Time 1e-3;
    S "s" Time 1.0;
    B "B" Data 1.0;
    KIB "KiB" Data 1024.0;
    MIB "MiB" Data 1_048_576.0;
    GIB "GiB" Data 1_073_741_824.0;
    TIB "TiB" Data 1_099_511_627_776.0;
    BYTES_S "B/s" DataRate 1.0;
    KIB_S "KiB/s" DataRate 1024.0;
    MIB_S "MiB/s" DataRate 1_048_576.0;
    GIB_S "GiB/s" DataRate 1_073_741_824.0;
    TIB_S "TiB/s" DataRate 1_099_511_627_776.0;
    MB_S "MB/s" DataRate 1e6;
    BIT_S "bit/s" DataRate 0.125;
    MBIT_S "Mbit/s" DataRate 125e3;
    GBIT_S "Gbit/s" DataRate 125e6;
    MIBIT_S "Mibit/s" DataRate 131_072.0;
    OPS_S "ops/s" Rate 1.0;
    REQ_S "req/s" Rate 1.0;
    MPPS "Mpps" Rate 1e6;
    COUNT "count" Count 1.0;
    PERCENT "%" Other 0.01;
    RATIO "ratio" Other 1.0;
    HZ "Hz" Other 1.0;
    CYCLES "cycles" Other 1.0;
    INDEX "index" Other 1.0;
    KBPS "KBps" Other 1.0;
    MWIPS "MWIPS" Other 1.0;
    LPM "lpm" Other 1.0;
    UNKNOWN "" Other 1.0;
}

impl Unit {
    /// The value of this unit in base units: seconds, bytes, bytes per second, events per second.
    pub(crate) fn base(self, value: f64) -> f64 {
        value * self.scale
    }

    /// A value in base units, in this unit.
    pub(crate) fn of_base(self, value: f64) -> f64 {
        value / self.scale
    }

    /// Returns whether it is a time.
    pub fn is_time(self) -> bool {
        self.dimension == Dimension::Time
    }

    /// Returns whether it is an amount of data.
    pub(crate) fn is_data(self) -> bool {
        self.dimension == Dimension::Data
    }

    /// Returns whether `amount` per time gives this unit.
    pub(crate) fn is_rate_of(self, amount: Unit) -> bool {
        matches!(
            (amount.dimension, self.dimension),
            (Dimension::Data, Dimension::DataRate) | (Dimension::Count, Dimension::Rate)
        )
    }

    /// The decimal unit beside a binary one: `MB/s` for `MiB/s`. `None` if it is not binary.
    pub(crate) fn decimal(self) -> Option<(String, f64)> {
        let at = self.name.find('i').filter(|at| *at == 1)?;
        let power = ["K", "M", "G", "T"]
            .iter()
            .position(|p| self.name.starts_with(p))?;
        let name = format!("{}{}", &self.name[..at], &self.name[at + 1..]);
        let bits = if name.ends_with("bit/s") { 0.125 } else { 1.0 };
        let decimal = 1000f64.powi(power as i32 + 1) * bits;
        Some((name.replacen('K', "k", 1), self.scale / decimal))
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
