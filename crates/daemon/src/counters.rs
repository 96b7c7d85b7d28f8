//! Counters that are defined once: from the definition follow the struct, its sums and differences,
//! its JSON, and its names in metrics.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The description of one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterInfo {
    /// Name of the field, in Rust and in JSON.
    pub field: &'static str,
    /// Name of the metric, without prefix.
    pub metric: &'static str,
    /// Description, without a full stop.
    pub help: &'static str,
}

/// A reason that is counted, made by [`reasons!`](macro@crate::reasons).
pub trait Reason: Copy + 'static {
    /// All reasons, in the order of their numbers.
    const REASONS: &'static [Self];

    /// The counts of each reason: [`CountsBy`], of as many as there are.
    type Counts;

    /// Returns its name in JSON, metrics and logs.
    fn reason_name(self) -> &'static str;

    /// Returns its number, from 0.
    fn index(self) -> usize;
}

/// The counts of `N` reasons.
///
/// As JSON it is a map from names to counts, without those that are 0; names that are not known are
/// ignored, as they may come from another version of the program.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CountsBy<R, const N: usize> {
    counts: [u64; N],
    reason: PhantomData<R>,
}

impl<R: Reason, const N: usize> CountsBy<R, N> {
    /// Returns the counts that `count` returns for the reasons.
    pub fn of(count: impl Fn(R) -> u64) -> Self {
        let mut counts = Self::default();
        for (to, reason) in counts.counts.iter_mut().zip(R::REASONS) {
            *to = count(*reason);
        }
        counts
    }

    /// Counts one.
    #[inline]
    pub fn count(&mut self, reason: R) {
        self.counts[reason.index()] += 1;
    }

    /// Returns the count of a reason.
    pub fn get(&self, reason: R) -> u64 {
        self.counts[reason.index()]
    }

    /// Returns the sum of all counts.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns every reason with its count.
    pub fn iter(&self) -> impl Iterator<Item = (R, u64)> + '_ {
        R::REASONS.iter().copied().zip(self.counts)
    }

    /// Combines each count with another one's.
    pub fn merge(&mut self, other: &Self, merge: fn(u64, u64) -> u64) {
        for (count, other) in self.counts.iter_mut().zip(other.counts) {
            *count = merge(*count, other);
        }
    }
}

impl<R, const N: usize> Default for CountsBy<R, N> {
    fn default() -> Self {
        CountsBy {
            counts: [0; N],
            reason: PhantomData,
        }
    }
}

impl<R: Reason, const N: usize> fmt::Debug for CountsBy<R, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.iter().filter(|(_, n)| *n > 0);
        let named = counts.map(|(reason, n)| (reason.reason_name(), n));
        f.debug_map().entries(named).finish()
    }
}

impl<R: Reason, const N: usize> Serialize for CountsBy<R, N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut counts: Vec<_> = self.iter().filter(|(_, n)| *n > 0).collect();
        counts.sort_unstable_by_key(|(reason, _)| reason.reason_name());
        serializer.collect_map(counts.into_iter().map(|(r, n)| (r.reason_name(), n)))
    }
}

impl<'de, R: Reason, const N: usize> Deserialize<'de> for CountsBy<R, N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let named = BTreeMap::<String, u64>::deserialize(deserializer)?;
        let mut counts = Self::default();
        for reason in R::REASONS {
            if let Some(n) = named.get(reason.reason_name()) {
                counts.counts[reason.index()] = *n;
            }
        }
        Ok(counts)
    }
}

/// Defines an enum of reasons with a name each. It has `ALL` and `name`, and implements
/// [`Reason`]. See [`counters!`](macro@crate::counters) for an example.
#[macro_export]
macro_rules! reasons {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident {
            $($(#[$variant_meta:meta])* $variant:ident => $text:literal),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $vis enum $name {
            $($(#[$variant_meta])* $variant,)+
        }

        impl $name {
            /// All of them, in the order of their numbers.
            pub const ALL: [$name; [$($text),+].len()] = [$($name::$variant),+];

            /// Returns its name in JSON, metrics and logs.
            pub const fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)+
                }
            }
        }

        impl $crate::Reason for $name {
            const REASONS: &'static [$name] = &$name::ALL;

            type Counts = $crate::CountsBy<$name, { [$($text),+].len() }>;

            fn reason_name(self) -> &'static str {
                self.name()
            }

            #[inline]
            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

/// Defines a struct of `u64` counters.
///
/// Each field has a metric (its own name if left out) and a description, which is its documentation
/// too. The struct has
/// `INFO` (a [`CounterInfo`] for each field), `values` (in the same order), `add`, and `since`; it
/// can be serialized. Behind `;` may follow fields that count by reason, with
/// [`reasons!`](macro@crate::reasons).
///
/// ```
/// tare_daemon::reasons! {
///     /// The reason why a request was refused.
///     pub enum Refusal {
///         /// The queue was full.
///         Busy => "busy",
///         /// The request was malformed.
///         Malformed => "malformed",
///     }
/// }
///
/// tare_daemon::counters! {
///     /// Counters of a server.
///     pub struct Counters {
///         requests => "requests_total": "Requests received",
///         bytes => "received_bytes_total": "Bytes of requests received";
///         /// Requests that were refused.
///         refused: Refusal,
///     }
/// }
///
/// let mut counters = Counters { requests: 3, ..Counters::default() };
/// counters.refused.count(Refusal::Busy);
/// counters.add(&counters.clone());
/// assert_eq!(Counters::INFO[0].metric, "requests_total");
/// assert_eq!(counters.values(), [6, 0]);
/// assert_eq!(counters.refused.get(Refusal::Busy), 2);
/// ```
#[macro_export]
macro_rules! counters {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $($field:ident $(=> $metric:literal)?: $help:literal),+
            $(; $($(#[$reason_meta:meta])* $by:ident: $reason:ty),+)? $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq,
            $crate::serde::Serialize, $crate::serde::Deserialize,
        )]
        #[serde(crate = "tare_daemon::serde")]
        $vis struct $name {
            $(#[doc = concat!($help, ".")] pub $field: u64,)+
            $($($(#[$reason_meta])* pub $by: <$reason as $crate::Reason>::Counts,)+)?
        }

        #[allow(dead_code, reason = "not every set of counters is merged or published")]
        impl $name {
            /// The descriptions of the plain counters.
            pub const INFO: &'static [$crate::CounterInfo] = &[
                $($crate::CounterInfo {
                    field: stringify!($field),
                    metric: $crate::counter_metric!($field $($metric)?),
                    help: $help,
                },)+
            ];

            /// Returns the plain counters in the order of `INFO`.
            pub fn values(&self) -> Vec<u64> {
                vec![$(self.$field),+]
            }

            /// Returns the plain counters with their names.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                Self::INFO.iter().map(|info| info.field).zip(self.values())
            }

            /// Adds the counters of another part.
            pub fn add(&mut self, other: &Self) {
                $(self.$field = self.$field.wrapping_add(other.$field);)+
                $($(self.$by.merge(&other.$by, u64::wrapping_add);)+)?
            }

            /// Returns what was counted since an earlier state.
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {
                #[allow(unused_mut)]
                let mut since = *self;
                $(since.$field = self.$field.wrapping_sub(earlier.$field);)+
                $($(since.$by.merge(&earlier.$by, u64::wrapping_sub);)+)?
                since
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! counter_metric {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $metric:literal) => {
        $metric
    };
}
