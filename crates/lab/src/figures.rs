//! A driver's metrics and counters as a struct, which a trial fills and reports whole.
//!
//! One definition with [`figures!`](crate::figures!) gives the vocabulary and the report. So a
//! driver cannot declare a metric that its trials never give, and no trial can give another one.

use crate::driver::Vocabulary;
use crate::unit::Unit;

/// The figures of a trial, as [`figures!`](crate::figures!) defines them.
pub trait Figures {
    /// The metrics in order.
    fn metrics() -> Vec<MetricDefinition>;

    /// The counters in order.
    fn counters() -> Vec<CounterDefinition>;

    /// The value of each metric, in the same order and its unit; `None` for one that this trial
    /// does not give.
    fn values(&self) -> Vec<Option<f64>>;

    /// The value of each counter, in the same order.
    fn counts(&self) -> Vec<u64>;
}

/// A metric that trials give.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricDefinition {
    /// Its name.
    pub name: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// One line for people.
    pub about: String,
}

/// A counter that trials give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterDefinition {
    /// Its name.
    pub name: &'static str,
    /// One line for people.
    pub about: String,
}

/// The type of a metric's field: `f64`, or `Option<f64>` where not every trial gives it.
pub trait Reading {
    /// The value, if there is one.
    fn value(&self) -> Option<f64>;
}

impl Reading for f64 {
    fn value(&self) -> Option<f64> {
        Some(*self)
    }
}

impl Reading for Option<f64> {
    fn value(&self) -> Option<f64> {
        *self
    }
}

impl Vocabulary {
    /// The vocabulary with the metrics and counters of these figures.
    #[must_use]
    pub fn with_figures<F: Figures>(mut self) -> Vocabulary {
        let metrics = F::metrics().into_iter();
        self.metrics = metrics
            .map(|metric| (metric.name.to_owned(), metric.unit.dimension()))
            .collect();
        let counters = F::counters().into_iter();
        self.counters = counters.map(|counter| counter.name.to_owned()).collect();
        self
    }
}

/// Defines the struct of a trial's figures and its [`Figures`].
///
/// A metric has a doc comment, which is its description for people, then `name: f64 [Unit]` or
/// `name: Option<f64> [Unit]`; a counter has a doc comment and a name, or `field as "name"` where a
/// metric has that name too. The counter `operations` must be among them.
#[macro_export]
macro_rules! figures {
    (
        $(#[$meta:meta])*
        $vis:vis struct $figures:ident {
            metrics {
                $(
                    $(#[doc = $metric_about:literal])+
                    $metric:ident : $type:ty [$unit:ident]
                ),* $(,)?
            }
            counters {
                $(
                    $(#[doc = $counter_about:literal])+
                    $counter:ident $(as $counter_name:literal)?
                ),* $(,)?
            }
        }
    ) => {
        $(#[$meta])*
        $vis struct $figures {
            $($(#[doc = $metric_about])+ $vis $metric: $type,)*
            $($(#[doc = $counter_about])+ $vis $counter: u64,)*
        }

        impl $crate::figures::Figures for $figures {
            fn metrics() -> Vec<$crate::figures::MetricDefinition> {
                vec![$($crate::figures::MetricDefinition {
                    name: stringify!($metric),
                    unit: $crate::unit::Unit::$unit,
                    about: concat!($($metric_about),+).trim().to_owned(),
                }),*]
            }

            fn counters() -> Vec<$crate::figures::CounterDefinition> {
                vec![$($crate::figures::CounterDefinition {
                    name: $crate::figures!(@name $counter $($counter_name)?),
                    about: concat!($($counter_about),+).trim().to_owned(),
                }),*]
            }

            fn values(&self) -> Vec<Option<f64>> {
                vec![$($crate::figures::Reading::value(&self.$metric)),*]
            }

            fn counts(&self) -> Vec<u64> {
                vec![$(self.$counter),*]
            }
        }
    };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $name:literal) => { $name };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::Dimension;

    crate::figures! {
        /// The figures of a copy.
        struct Copy {
            metrics {
                /// bytes per second
                throughput: f64 [BytesPerSecond],
                /// retries, where they are counted
                retries: Option<f64> [Count],
            }
            counters {
                /// calls
                operations,
                /// retries
                retried as "retries",
            }
        }
    }

    #[test]
    fn what_is_declared_is_what_is_reported() {
        let copy = Copy {
            throughput: 2.0,
            retries: None,
            operations: 3,
            retried: 4,
        };
        assert_eq!(copy.values(), [Some(2.0), None]);
        assert_eq!(copy.counts(), [3, 4]);
        assert_eq!(Copy::metrics()[0].about, "bytes per second");
        assert_eq!(Copy::counters()[1].about, "retries");
        let words = Vocabulary::default().with_figures::<Copy>();
        let metrics = [
            ("throughput".into(), Dimension::DataRate),
            ("retries".into(), Dimension::Count),
        ];
        assert_eq!(words.metrics, metrics);
        assert_eq!(words.counters, ["operations", "retries"]);
    }
}
