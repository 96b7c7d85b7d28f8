//! Latencies, counted by length.

use std::fmt;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest latency that is told apart. A longer one is recorded as this, and counted by
/// [`Histogram::saturated`].
pub const LONGEST: Duration = Duration::from_secs(3600);

const LONGEST_NS: u64 = LONGEST.as_nanos() as u64;

/// Decimal digits that are kept of each latency.
const DIGITS: u8 = 3;

/// Latencies from a nanosecond to an hour, to three digits.
///
/// Memory is fixed, at 270 KB, and recording allocates nothing. All histograms have the same
/// buckets, so any two can be merged, and nothing is lost by it: percentiles of merged histograms
/// are those of all latencies, which no average of percentiles is.
///
/// Written with serde, a histogram is its unit, its digits and the counts of the buckets in use;
/// what is read is checked as input from outside.
#[derive(Clone, PartialEq)]
pub struct Histogram {
    pub(crate) latencies: hdrhistogram::Histogram<u64>,
}

/// Its figures: it has tens of thousands of buckets.
impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Histogram").field(&self.summary()).finish()
    }
}

impl Histogram {
    /// An empty histogram.
    pub fn new() -> Histogram {
        let mut latencies = hdrhistogram::Histogram::new_with_max(LONGEST_NS, DIGITS)
            .unwrap_or_else(|error| unreachable!("an hour to three digits: {error}"));
        latencies.auto(false);
        Histogram { latencies }
    }

    /// Records a latency in nanoseconds.
    #[inline]
    pub fn record(&mut self, latency_ns: u64) {
        // What the library itself takes for the longest is some buckets further.
        self.latencies.saturating_record(latency_ns.min(LONGEST_NS));
    }

    /// Records a latency.
    #[inline]
    pub fn record_duration(&mut self, latency: Duration) {
        self.record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds all that another histogram has recorded.
    pub fn merge(&mut self, other: &Histogram) {
        self.latencies
            .add(&other.latencies)
            .unwrap_or_else(|error| unreachable!("the same buckets: {error}"));
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.latencies.reset();
    }

    /// Latencies recorded.
    pub fn count(&self) -> u64 {
        self.latencies.len()
    }

    /// True if none is recorded.
    pub fn is_empty(&self) -> bool {
        self.latencies.is_empty()
    }

    /// The latency that this share of all do not exceed: 0.99 for the 99th percentile. `None` if
    /// none is recorded.
    ///
    /// # Panics
    /// If the share is not from 0 to 1.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        assert!((0.0..=1.0).contains(&share), "a share of all latencies");
        let at = || Duration::from_nanos(self.latencies.value_at_quantile(share));
        (!self.is_empty()).then(at)
    }

    /// Latencies of at most `limit`, to three digits of it.
    pub fn count_up_to(&self, limit: Duration) -> u64 {
        let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let buckets = self.latencies.iter_recorded();
        let within = buckets.take_while(|bucket| bucket.value_iterated_to() <= limit_ns);
        within.map(|bucket| bucket.count_at_value()).sum()
    }

    /// Latencies of [`LONGEST`] or more, to three digits: how long they were is not known.
    pub fn saturated(&self) -> u64 {
        self.latencies.count_at(LONGEST_NS)
    }

    /// The share of the latencies that are longer than `limit`; `None` if none is recorded.
    pub fn share_above(&self, limit: Duration) -> Option<f64> {
        let longer = self.count() - self.count_up_to(limit);
        (!self.is_empty()).then(|| longer as f64 / self.count() as f64)
    }

    /// The figures that a report has; `None` if none is recorded.
    pub fn summary(&self) -> Option<Latency> {
        let at = |share| self.latencies.value_at_quantile(share);
        (!self.is_empty()).then(|| Latency {
            count: self.latencies.len(),
            min_ns: self.latencies.min(),
            mean_ns: self.latencies.mean(),
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: self.latencies.max(),
        })
    }
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram::new()
    }
}

/// Latencies in nanoseconds, to three digits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Latencies recorded.
    pub count: u64,
    /// The shortest.
    pub min_ns: u64,
    /// The mean.
    pub mean_ns: f64,
    /// The median.
    pub p50_ns: u64,
    /// The value that 90 % do not exceed.
    pub p90_ns: u64,
    /// The value that 99 % do not exceed.
    pub p99_ns: u64,
    /// The value that 99.9 % do not exceed.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// A histogram as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    unit: String,
    digits: u8,
    /// A latency of each bucket in use, and how many it holds, in rising order.
    counts: Vec<(u64, u64)>,
}

impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let buckets = self.latencies.iter_recorded();
        let count = |bucket: hdrhistogram::iterators::IterationValue<u64>| {
            let latency = bucket.value_iterated_to().min(LONGEST_NS);
            (latency, bucket.count_at_value())
        };
        let written = Written {
            unit: "ns".into(),
            digits: DIGITS,
            counts: buckets.map(count).collect(),
        };
        written.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Histogram {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Histogram, D::Error> {
        let Written {
            unit,
            digits,
            counts,
        } = Written::deserialize(deserializer)?;
        if unit != "ns" || digits != DIGITS {
            return Err(D::Error::custom(format!(
                "found a histogram in {unit:?} to {digits} digits, expected \"ns\" to {DIGITS}"
            )));
        }
        let mut histogram = Histogram::new();
        let mut total = 0_u64;
        for (latency_ns, count) in counts {
            if latency_ns > LONGEST_NS {
                return Err(D::Error::custom(format!(
                    "found a latency of {latency_ns} ns, expected at most {LONGEST_NS}"
                )));
            }
            total = total
                .checked_add(count)
                .ok_or_else(|| D::Error::custom("found more than 2^64 latencies"))?;
            histogram.latencies.saturating_record_n(latency_ns, count);
        }
        Ok(histogram)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(latencies: &[u64]) -> Histogram {
        let mut histogram = Histogram::new();
        latencies.iter().for_each(|&ns| histogram.record(ns));
        histogram
    }

    fn latencies() -> impl Strategy<Value = Vec<u64>> {
        let latency = prop_oneof![0u64..5000, 0u64..2 * LONGEST_NS, Just(0), Just(u64::MAX)];
        proptest::collection::vec(latency, 0..60)
    }

    #[test]
    fn debug_shows_figures_and_no_buckets() {
        assert_eq!(format!("{:?}", of(&[])), "Histogram(None)");
        let shown = format!("{:?}", of(&[5, 7]));
        assert!(
            shown.contains("min_ns: 5, ") && shown.len() < 500,
            "{shown}"
        );
    }

    proptest! {
        #[test]
        fn merged_histograms_are_those_of_all_latencies(a in latencies(), b in latencies()) {
            let mut merged = of(&a);
            merged.merge(&of(&b));
            prop_assert_eq!(&merged, &of(&[a.clone(), b.clone()].concat()));
            prop_assert_eq!(merged.summary(), of(&[b, a].concat()).summary());
        }

        #[test]
        fn a_histogram_that_was_written_and_read_is_the_same(a in latencies(), b in latencies()) {
            let read = |histogram: &Histogram| -> Histogram {
                serde_json::from_str(&serde_json::to_string(histogram).unwrap()).unwrap()
            };
            prop_assert_eq!(read(&of(&a)).summary(), of(&a).summary());
            prop_assert_eq!(&read(&of(&a)).latencies, &of(&a).latencies);
            let mut merged = read(&of(&a));
            merged.merge(&of(&b));
            prop_assert_eq!(merged.summary(), of(&[a, b].concat()).summary());
        }

        #[test]
        fn quantiles_are_right_to_three_digits(mut ns in proptest::collection::vec(1u64..LONGEST_NS, 1..200), share in 0.0f64..=1.0) {
            let found = of(&ns).quantile(share).unwrap().as_nanos() as f64;
            ns.sort();
            let rank = ((share * ns.len() as f64).ceil() as usize).clamp(1, ns.len());
            let exact = ns[rank - 1] as f64;
            // The last bit of `share` may make the rank one more or less.
            let next = ns[rank.min(ns.len() - 1)] as f64;
            prop_assert!(
                (found - exact).abs() <= exact / 1000.0 + 1.0 || (found - next).abs() <= next / 1000.0 + 1.0,
                "{found} for {exact}"
            );
        }
    }

    #[test]
    fn latencies_up_to_a_limit_are_counted_with_the_limit() {
        let histogram = of(&[1, 10, 10, 1000, 4_000_000_000_000]);
        let up_to = |ns| histogram.count_up_to(Duration::from_nanos(ns));
        assert_eq!([0, 1, 9, 10, 999, 1000].map(up_to), [0, 1, 1, 3, 3, 4]);
        assert_eq!(histogram.count_up_to(Duration::MAX), 5);
        assert_eq!(histogram.share_above(Duration::from_nanos(10)), Some(0.4));
    }

    #[test]
    fn nothing_recorded_has_no_figures() {
        let mut histogram = Histogram::default();
        assert!(histogram.is_empty() && histogram.summary().is_none());
        assert_eq!(histogram.quantile(0.5), None);
        histogram.record_duration(Duration::from_micros(7));
        assert_eq!((histogram.count(), histogram.is_empty()), (1, false));
        histogram.clear();
        assert_eq!(histogram, Histogram::new());
    }

    #[test]
    fn what_is_longer_than_the_longest_counts_as_the_longest() {
        let mut histogram = of(&[u64::MAX, LONGEST_NS]);
        histogram.record_duration(Duration::MAX);
        let summary = histogram.summary().unwrap();
        assert_eq!(summary.count, 3);
        assert!(summary.min_ns.abs_diff(LONGEST_NS) < LONGEST_NS / 1000);
        assert!(summary.max_ns >= LONGEST_NS);
        // What is shorter is told apart from it.
        histogram.record(LONGEST_NS - LONGEST_NS / 500);
        histogram.record_duration(Duration::from_secs(120));
        assert_eq!((histogram.count(), histogram.saturated()), (5, 3));
        let shorter = of(&[LONGEST_NS - LONGEST_NS / 500]).summary().unwrap();
        assert!(shorter.max_ns < LONGEST_NS);
        assert_eq!(of(&[]).saturated(), 0);
        let minutes = of(&[120_000_000_000]).quantile(0.5).unwrap();
        assert!(minutes.as_secs_f64() > 119.8, "{minutes:?}");
    }

    #[test]
    fn a_histogram_of_another_kind_is_refused_in_one_line() {
        for (text, named) in [
            (r#"{"unit":"us","digits":3,"counts":[]}"#, "\"us\""),
            (r#"{"unit":"ns","digits":2,"counts":[]}"#, "2 digits"),
            (
                r#"{"unit":"ns","digits":3,"counts":[[3600000000001,1]]}"#,
                "3600000000001 ns",
            ),
            (r#"{"unit":"ns","digits":3,"counts":[[1,-1]]}"#, "-1"),
            (
                r#"{"unit":"ns","digits":3,"counts":[[1,18446744073709551615],[2,1]]}"#,
                "2^64",
            ),
            (r#"{"unit":"ns","digits":3,"counts":[],"mean":1}"#, "mean"),
            (r#"{"unit":"ns","digits":3}"#, "counts"),
        ] {
            let error = serde_json::from_str::<Histogram>(text)
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(named) && !error.contains('\n'),
                "{text}: {error}"
            );
        }
    }
}
