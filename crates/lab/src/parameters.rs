//! A driver's parameters as a struct with typed fields.
//!
//! One definition with [`parameters!`](crate::parameters!) gives the vocabulary that experiment
//! files are read against, the defaults, the reading into the struct and its errors. So a driver
//! never sees a map of strings, and a value that it does not know cannot pass for another one.
//!
//! ```
//! use std::time::Duration;
//! use tare_lab::parameters::ParameterSet as _;
//! use tare_lab::value::{Parameters, Value};
//!
//! tare_lab::choices! {
//!     /// The direction of a transfer.
//!     #[derive(Debug, PartialEq)]
//!     enum Direction {
//!         /// To the disk.
//!         Write = "write",
//!         /// From the disk.
//!         Read = "read",
//!     }
//! }
//!
//! tare_lab::parameters! {
//!     /// The parameters of a disk benchmark.
//!     #[derive(Debug)]
//!     struct Disk {
//!         /// the direction
//!         direction: Direction = "read",
//!         /// requests in flight
//!         depth: usize [1..=1024] = 1,
//!         /// the measured part of a trial
//!         duration: Duration = "40 ms",
//!     }
//! }
//!
//! let given = Parameters::from([("depth".into(), Value::Int(8))]);
//! let disk = Disk::read(&given)?;
//! assert_eq!((disk.direction, disk.depth), (Direction::Read, 8));
//! assert_eq!(disk.duration, Duration::from_millis(40));
//!
//! let misspelt = Parameters::from([("direction".into(), "wirte".into())]);
//! assert_eq!(
//!     Disk::read(&misspelt).unwrap_err().to_string(),
//!     "parameter direction: found \"wirte\", expected write or read (did you mean \"write\"?)",
//! );
//! # Ok::<(), tare_lab::driver::Mistake>(())
//! ```

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::driver::{Mistake, Parameter, ParameterKind};
use crate::file::nearest;
use crate::unit::{Dimension, Quantity, Unit};
use crate::value::{Parameters, Value};

/// The longest time that a parameter may name, in seconds: beyond it, sums of times overflow.
const SECONDS_MAX: f64 = 1e9;

/// The largest amount of data, in bytes.
const BYTES_MAX: f64 = 1e15;

/// The largest data rate, in bytes per second.
const RATE_MAX: f64 = 1e12;

/// A struct of parameters, as [`parameters!`](crate::parameters!) defines it.
pub trait ParameterSet: Sized {
    /// Whether other parameters than the declared ones are taken as they come.
    const OPEN: bool;

    /// The declared parameters in order.
    fn definitions() -> Vec<Parameter>;

    /// The values that each of them may have, in words and in the same order.
    fn expectations() -> Vec<String>;

    /// Reads the struct; a parameter that is not given has its default.
    ///
    /// # Errors
    /// The first parameter that is unknown, missing or wrong.
    fn read(parameters: &Parameters) -> Result<Self, Mistake>;
}

/// The type of a field in a [`ParameterSet`].
pub trait ParameterType: Sized {
    /// The values that an experiment file may write, if the definition limits them no further.
    fn kind() -> ParameterKind;

    /// The value as this type; `None` if it is not one of its values.
    fn from_value(value: &Value) -> Option<Self>;

    /// The values of this type in words, for errors.
    fn expected(kind: &ParameterKind) -> String {
        kind.to_string()
    }

    /// Reads the parameter.
    ///
    /// # Errors
    /// It is missing or wrong.
    fn read(definition: &Parameter, parameters: &Parameters) -> Result<Self, Mistake> {
        let given = parameters.get(&definition.name);
        let value = given.or(definition.default.as_ref());
        let known = value.filter(|value| definition.kind.admits(value));
        known.and_then(Self::from_value).ok_or_else(|| Mistake {
            parameter: definition.name.clone(),
            found: value.map_or_else(|| "nothing".into(), in_words),
            expected: Self::expected(&definition.kind) + &did_you_mean(&definition.kind, value),
        })
    }
}

/// A type with a name for each of its values, such as an enum.
pub trait Choice: Sized {
    /// Every value, in the order in which they are listed.
    fn all() -> Vec<Self>;

    /// The name that experiments and command lines use.
    fn name(&self) -> &'static str;
}

impl<T: Choice> ParameterType for T {
    fn kind() -> ParameterKind {
        let names = T::all();
        ParameterKind::Choice(names.iter().map(|value| value.name().to_owned()).collect())
    }

    fn from_value(value: &Value) -> Option<Self> {
        let name = value.as_str()?;
        T::all().into_iter().find(|value| value.name() == name)
    }
}

impl ParameterType for bool {
    fn kind() -> ParameterKind {
        ParameterKind::Bool
    }

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Bool(value) => Some(*value),
            _ => None,
        }
    }
}

macro_rules! whole_numbers {
    ($($type:ty)*) => {$(
        impl ParameterType for $type {
            fn kind() -> ParameterKind {
                ParameterKind::Int(0, i64::try_from(<$type>::MAX).unwrap_or(i64::MAX))
            }

            fn from_value(value: &Value) -> Option<Self> {
                match value {
                    Value::Int(n) => <$type>::try_from(*n).ok(),
                    _ => None,
                }
            }
        }
    )*};
}

whole_numbers!(u32 u64 usize);

impl ParameterType for f64 {
    fn kind() -> ParameterKind {
        ParameterKind::Number
    }

    fn from_value(value: &Value) -> Option<Self> {
        value.as_f64().filter(|value| value.is_finite())
    }
}

impl ParameterType for String {
    fn kind() -> ParameterKind {
        ParameterKind::Text
    }

    fn from_value(value: &Value) -> Option<Self> {
        value.as_str().map(str::to_owned)
    }
}

impl ParameterType for Duration {
    fn kind() -> ParameterKind {
        ParameterKind::Quantity(Dimension::Time)
    }

    fn from_value(value: &Value) -> Option<Self> {
        let seconds = quantity(value, Unit::Seconds, 0.0..=SECONDS_MAX)?;
        Duration::try_from_secs_f64(seconds).ok()
    }

    fn expected(kind: &ParameterKind) -> String {
        format!("{kind}, of at most {SECONDS_MAX:e} s")
    }
}

/// An amount of data in bytes, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl ParameterType for Bytes {
    fn kind() -> ParameterKind {
        ParameterKind::Quantity(Dimension::Data)
    }

    fn from_value(value: &Value) -> Option<Self> {
        quantity(value, Unit::Bytes, 1.0..=BYTES_MAX).map(|bytes| Bytes(bytes as u64))
    }

    fn expected(kind: &ParameterKind) -> String {
        format!("{kind}, from 1 B to {BYTES_MAX:e} B")
    }
}

/// A data rate in bits per second, at least 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitsPerSecond(pub u64);

impl ParameterType for BitsPerSecond {
    fn kind() -> ParameterKind {
        ParameterKind::Quantity(Dimension::DataRate)
    }

    fn from_value(value: &Value) -> Option<Self> {
        let bytes = quantity(value, Unit::BytesPerSecond, 1.0..=RATE_MAX)?;
        Some(BitsPerSecond((bytes * 8.0).round() as u64))
    }

    fn expected(kind: &ParameterKind) -> String {
        format!("{kind}, from 8 bit/s to {:e} bit/s", RATE_MAX * 8.0)
    }
}

fn quantity(value: &Value, unit: Unit, range: RangeInclusive<f64>) -> Option<f64> {
    let quantity: Quantity = value.as_str()?.parse().ok()?;
    let value = quantity.in_unit(unit).ok()?;
    range.contains(&value).then_some(value)
}

/// A table of texts: the parameters `name.key`, by `key`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table(pub Vec<(String, String)>);

impl ParameterType for Table {
    fn kind() -> ParameterKind {
        ParameterKind::Table
    }

    fn from_value(_: &Value) -> Option<Self> {
        None
    }

    fn read(definition: &Parameter, parameters: &Parameters) -> Result<Self, Mistake> {
        let entries = parameters.iter().filter_map(|(name, value)| {
            let key = entry_of(&definition.name, name)?;
            Some((key.to_owned(), value.to_string()))
        });
        Ok(Table(entries.collect()))
    }
}

/// The key of the parameter `name` in the table `table`; `None` if it is not in it.
fn entry_of<'a>(table: &str, name: &'a str) -> Option<&'a str> {
    name.strip_prefix(table)?.strip_prefix('.')
}

impl ParameterKind {
    /// Whether an experiment file may write this value.
    pub fn admits(&self, value: &Value) -> bool {
        match (self, value) {
            (ParameterKind::Int(min, max), Value::Int(n)) => (min..=max).contains(&n),
            (ParameterKind::Number, Value::Int(_) | Value::Float(_))
            | (ParameterKind::Text, Value::Text(_))
            | (ParameterKind::Bool, Value::Bool(_)) => true,
            (ParameterKind::Choice(names), Value::Text(name)) => names.contains(name),
            (ParameterKind::Quantity(dimension), Value::Text(text)) => text
                .parse::<Quantity>()
                .is_ok_and(|found| found.unit.dimension() == *dimension && found.value >= 0.0),
            _ => false,
        }
    }
}

impl fmt::Display for ParameterKind {
    /// Writes what is expected, in words.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParameterKind::Int(min, max) => write!(f, "a whole number from {min} to {max}"),
            ParameterKind::Number => f.write_str("a number"),
            ParameterKind::Text => f.write_str("a line of text"),
            ParameterKind::Bool => f.write_str("true or false"),
            ParameterKind::Choice(names) => f.write_str(&either(names)),
            // Never negative: there is no such time or amount.
            ParameterKind::Quantity(dimension) => f.write_str(match dimension {
                Dimension::Time => "a time such as \"40 ms\"",
                Dimension::Data => "an amount of data such as \"16 B\"",
                Dimension::DataRate => "a data rate such as \"100 MB/s\"",
                Dimension::OperationRate => "an operation rate such as \"1000 ops/s\"",
                Dimension::PacketRate => "a packet rate such as \"1.5 Mpps\"",
                Dimension::Frequency => "a frequency such as \"800 MHz\"",
                Dimension::Ratio => "a ratio such as \"5 %\"",
                Dimension::Count => "a count such as \"10 count\"",
            }),
            ParameterKind::Table => f.write_str("a table of texts"),
        }
    }
}

/// `a`, `a or b`, `one of a, b, c`.
fn either(names: &[String]) -> String {
    match names {
        [] => "nothing".into(),
        [one] => one.clone(),
        [one, other] => format!("{one} or {other}"),
        many => format!("one of {}", many.join(", ")),
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mistake {
            parameter,
            found,
            expected,
        } = self;
        write!(
            f,
            "parameter {parameter}: found {found}, expected {expected}"
        )
    }
}

impl std::error::Error for Mistake {}

fn in_words(value: &Value) -> String {
    match value {
        Value::Text(text) => format!("{text:?}"),
        other => other.to_string(),
    }
}

fn did_you_mean(kind: &ParameterKind, value: Option<&Value>) -> String {
    let (ParameterKind::Choice(names), Some(Value::Text(found))) = (kind, value) else {
        return String::new();
    };
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    nearest(found, &names).map_or_else(String::new, |name| format!(" (did you mean {name:?}?)"))
}

/// Refuses the first parameter that is not among the definitions.
#[doc(hidden)]
pub fn refuse_unknown(definitions: &[Parameter], parameters: &Parameters) -> Result<(), Mistake> {
    let is_known = |name: &str| {
        definitions.iter().any(|known| match known.kind {
            ParameterKind::Table => entry_of(&known.name, name).is_some(),
            _ => known.name == name,
        })
    };
    let Some((name, value)) = parameters.iter().find(|(name, _)| !is_known(name)) else {
        return Ok(());
    };
    let names: Vec<&str> = definitions
        .iter()
        .map(|known| known.name.as_str())
        .collect();
    let meant = nearest(name, &names)
        .map_or_else(String::new, |meant| format!(" (did you mean {meant:?}?)"));
    Err(Mistake {
        parameter: name.clone(),
        found: in_words(value),
        expected: format!("one of the parameters {}{meant}", names.join(", ")),
    })
}

/// The definition of a parameter whose description is this text of a doc comment.
#[doc(hidden)]
pub fn define<T: ParameterType>(
    name: &str,
    about: &str,
    range: Option<RangeInclusive<i64>>,
    default: Option<Value>,
) -> Parameter {
    Parameter {
        name: name.into(),
        kind: range.map_or_else(T::kind, |range| {
            ParameterKind::Int(*range.start(), *range.end())
        }),
        default,
        about: about.trim().into(),
    }
}

/// Reads the next field of a struct.
#[doc(hidden)]
pub fn next_field<'d, T: ParameterType>(
    definitions: &mut impl Iterator<Item = &'d Parameter>,
    parameters: &Parameters,
) -> Result<T, Mistake> {
    let definition = definitions.next().expect("a definition for each field");
    T::read(definition, parameters)
}

/// Returns the values that the next field may have, in words.
#[doc(hidden)]
pub fn next_expected<'d, T: ParameterType>(
    definitions: &mut impl Iterator<Item = &'d Parameter>,
) -> String {
    let definition = definitions.next().expect("a definition for each field");
    T::expected(&definition.kind)
}

/// Defines a struct of parameters and its [`ParameterSet`].
///
/// A field has a doc comment, which is its description for people, then
/// `name: Type [range] = default`; the range, of whole numbers, and the default may be left out. A
/// parameter without a default must be given. With `.. all` as the last line other parameters are
/// taken too, and the field `all` has every parameter as it was given.
#[macro_export]
macro_rules! parameters {
    (
        $(#[$meta:meta])*
        $vis:vis struct $set:ident {
            $(
                $(#[doc = $about:literal])+
                $field:ident : $type:ty $([$range:expr])? $(= $default:expr)?,
            )*
            $(.. $all:ident)?
        }
    ) => {
        $(#[$meta])*
        $vis struct $set {
            $($(#[doc = $about])+ $vis $field: $type,)*
            $(
                /// Every parameter as it was given.
                $vis $all: $crate::value::Parameters,
            )?
        }

        impl $crate::parameters::ParameterSet for $set {
            const OPEN: bool = $crate::parameters!(@is_some $($all)?);

            fn definitions() -> Vec<$crate::driver::Parameter> {
                vec![$($crate::parameters::define::<$type>(
                    stringify!($field),
                    concat!($($about),+),
                    $crate::parameters!(@option $($range)?),
                    $crate::parameters!(@option $($crate::value::Value::from($default))?),
                )),*]
            }

            fn expectations() -> Vec<String> {
                let definitions = <Self as $crate::parameters::ParameterSet>::definitions();
                let mut definitions = definitions.iter();
                vec![$($crate::parameters::next_expected::<$type>(&mut definitions)),*]
            }

            fn read(
                parameters: &$crate::value::Parameters,
            ) -> Result<Self, $crate::driver::Mistake> {
                let definitions = <Self as $crate::parameters::ParameterSet>::definitions();
                if !<Self as $crate::parameters::ParameterSet>::OPEN {
                    $crate::parameters::refuse_unknown(&definitions, parameters)?;
                }
                let mut definitions = definitions.iter();
                Ok(Self {
                    $($field: $crate::parameters::next_field(&mut definitions, parameters)?,)*
                    $($all: parameters.clone(),)?
                })
            }
        }
    };
    (@option) => { None };
    (@option $value:expr) => { Some($value) };
    (@is_some) => { false };
    (@is_some $name:ident) => { true };
}

/// Defines an enum whose values have names, and its [`Choice`].
#[macro_export]
macro_rules! choices {
    (
        $(#[$meta:meta])*
        $vis:vis enum $choice:ident {
            $($(#[$about:meta])+ $variant:ident = $name:literal),* $(,)?
        }
    ) => {
        $(#[$meta])*
        $vis enum $choice { $($(#[$about])+ $variant,)* }

        impl $crate::parameters::Choice for $choice {
            fn all() -> Vec<Self> {
                vec![$($choice::$variant),*]
            }

            fn name(&self) -> &'static str {
                match self { $($choice::$variant => $name,)* }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::choices! {
        /// A level.
        #[derive(Debug, PartialEq)]
        enum Level {
            /// Low.
            Low = "low",
            /// High.
            High = "high",
        }
    }

    crate::parameters! {
        /// One parameter of each type.
        #[derive(Debug)]
        struct Each {
            /// a choice
            level: Level = "low",
            /// a number with a range
            threads: usize [1..=8] = 1,
            /// a number without, described
            /// in two lines
            variant: u32 = 0,
            /// a number with a fraction
            load: f64 = 0.5,
            /// a switch
            verbose: bool = false,
            /// a text without a default
            file: String,
            /// a time
            duration: Duration = "40 ms",
            /// an amount
            amount: Bytes = "1 KiB",
            /// a rate
            rate: BitsPerSecond = "1 kbit/s",
        }
    }

    crate::parameters! {
        /// Parameters beside which others may stand.
        struct Open {
            /// variables
            environment: Table,
            .. all
        }
    }

    fn with(name: &str, value: impl Into<Value>) -> Parameters {
        let file = ("file".to_owned(), Value::from("a"));
        Parameters::from_iter([file, (name.into(), value.into())])
    }

    #[test]
    fn what_is_not_given_has_its_default_and_what_is_given_its_type() {
        let each = Each::read(&with("threads", 8)).unwrap();
        assert_eq!((each.level, each.threads, each.variant), (Level::Low, 8, 0));
        assert_eq!(
            (each.load, each.verbose, each.file),
            (0.5, false, "a".into())
        );
        assert_eq!(each.duration, Duration::from_millis(40));
        assert_eq!((each.amount, each.rate), (Bytes(1024), BitsPerSecond(1000)));
        // A whole number is a number too.
        assert_eq!(Each::read(&with("load", 1)).unwrap().load, 1.0);
        assert_eq!(
            Each::read(&with("level", "high")).unwrap().level,
            Level::High
        );
    }

    #[test]
    fn what_is_wrong_is_refused_with_its_parameter_and_what_was_expected() {
        for (name, value, expected) in [
            (
                "level",
                Value::from("hihg"),
                "low or high (did you mean \"high\"?)",
            ),
            ("level", 1.into(), "low or high"),
            ("threads", 0.into(), "a whole number from 1 to 8"),
            ("threads", 9.into(), "a whole number from 1 to 8"),
            ("threads", 1.5.into(), "a whole number from 1 to 8"),
            ("threads", "2".into(), "a whole number from 1 to 8"),
            (
                "variant",
                Value::Int(1 << 40),
                "a whole number from 0 to 4294967295",
            ),
            ("load", f64::NAN.into(), "a number"),
            ("verbose", 1.into(), "true or false"),
            (
                "duration",
                "40".into(),
                "a time such as \"40 ms\", of at most 1e9 s",
            ),
            (
                "duration",
                "-1 s".into(),
                "a time such as \"40 ms\", of at most 1e9 s",
            ),
            (
                "duration",
                "1e10 s".into(),
                "a time such as \"40 ms\", of at most 1e9 s",
            ),
            (
                "amount",
                "1 s".into(),
                "an amount of data such as \"16 B\", from 1 B to 1e15 B",
            ),
            (
                "amount",
                "0 B".into(),
                "an amount of data such as \"16 B\", from 1 B to 1e15 B",
            ),
            (
                "rate",
                "1e13 B/s".into(),
                "a data rate such as \"100 MB/s\", from 8 bit/s to 8e12 bit/s",
            ),
        ] {
            let mistake = Each::read(&with(name, value.clone())).unwrap_err();
            assert_eq!(
                (mistake.parameter.as_str(), mistake.expected.as_str()),
                (name, expected)
            );
            assert_eq!(mistake.found, in_words(&value));
        }
    }

    #[test]
    fn a_parameter_that_is_missing_or_unknown_is_refused() {
        let missing = Each::read(&Parameters::new()).unwrap_err();
        assert_eq!(
            missing.to_string(),
            "parameter file: found nothing, expected a line of text"
        );
        let unknown = Each::read(&with("thread", 3)).unwrap_err();
        assert_eq!(
            unknown.to_string(),
            "parameter thread: found 3, expected one of the parameters level, threads, variant, \
             load, verbose, file, duration, amount, rate (did you mean \"threads\"?)"
        );
    }

    #[test]
    fn an_open_set_takes_other_parameters_and_the_entries_of_its_tables() {
        let given = Parameters::from([
            ("environment.A".into(), "1".into()),
            ("environmental".into(), Value::Int(2)),
        ]);
        let open = Open::read(&given).unwrap();
        assert_eq!(open.environment, Table(vec![("A".into(), "1".into())]));
        assert_eq!(open.all, given);
        assert_eq!((Open::OPEN, Each::OPEN), (true, false));
    }

    #[test]
    fn a_definition_has_the_description_of_its_doc_comment() {
        let definitions = Each::definitions();
        let variant = definitions
            .iter()
            .find(|one| one.name == "variant")
            .unwrap();
        assert_eq!(variant.about, "a number without, described in two lines");
        assert_eq!(variant.default, Some(Value::Int(0)));
        assert_eq!(definitions[1].kind, ParameterKind::Int(1, 8));
        assert_eq!(Each::expectations().len(), definitions.len());
    }
}
