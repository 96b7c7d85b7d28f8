//! Counts of what a load generator sent and what came back.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a load generator was to send, what it sent, and what became of that. Operations are
/// packets, requests, or whatever the generator counts.
///
/// `offered` ≥ `sent` ≥ `received` + `errors`, always: a contradiction is refused where the figures
/// are made, so no loss is negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Counts", into = "Counts")]
pub struct LoadFigures {
    counts: Counts,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Counts {
    offered: u64,
    sent: u64,
    received: u64,
    errors: u64,
    sent_bytes: u64,
    received_bytes: u64,
    duration_ns: u64,
}

/// More came back than was sent, or more was sent than was offered: leftovers of another trial or
/// duplicates were counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contradiction {
    what: &'static str,
    found: u64,
    at_most: u64,
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Contradiction {
            what,
            found,
            at_most,
        } = self;
        write!(
            f,
            "found {found} operations {what}, expected at most {at_most}"
        )
    }
}

impl std::error::Error for Contradiction {}

impl LoadFigures {
    /// Figures of a generator that ran for `duration`: operations it was to send, sent, and got an
    /// answer to, each counted once, and those of the answers that were errors.
    ///
    /// # Errors
    /// If they contradict each other.
    pub fn new(
        offered: u64,
        sent: u64,
        received: u64,
        errors: u64,
        duration: Duration,
    ) -> Result<LoadFigures, Contradiction> {
        LoadFigures::try_from(Counts {
            offered,
            sent,
            received,
            errors,
            duration_ns: nanos(duration),
            ..Counts::default()
        })
    }

    /// The same with the bytes that were sent and received.
    pub fn with_bytes(mut self, sent: u64, received: u64) -> LoadFigures {
        self.counts.sent_bytes = sent;
        self.counts.received_bytes = received;
        self
    }

    /// Operations that were to be sent.
    pub fn offered(&self) -> u64 {
        self.counts.offered
    }

    /// Operations sent.
    pub fn sent(&self) -> u64 {
        self.counts.sent
    }

    /// Operations received, or answered without an error, each counted once.
    pub fn received(&self) -> u64 {
        self.counts.received
    }

    /// Operations answered with an error.
    pub fn errors(&self) -> u64 {
        self.counts.errors
    }

    /// Operations sent of which nothing came back.
    pub fn lost(&self) -> u64 {
        self.counts.sent - self.counts.received - self.counts.errors
    }

    /// Lost of sent; `None` if none was sent.
    pub fn loss_ratio(&self) -> Option<f64> {
        (self.sent() > 0).then(|| self.lost() as f64 / self.sent() as f64)
    }

    /// Bytes sent.
    pub fn sent_bytes(&self) -> u64 {
        self.counts.sent_bytes
    }

    /// Bytes received.
    pub fn received_bytes(&self) -> u64 {
        self.counts.received_bytes
    }

    /// How long it took.
    pub fn duration(&self) -> Duration {
        Duration::from_nanos(self.counts.duration_ns)
    }

    /// Operations received per second; `None` if it took no time.
    pub fn received_per_second(&self) -> Option<f64> {
        self.per_second(self.received())
    }

    /// Bytes received per second; `None` if it took no time.
    pub fn received_bytes_per_second(&self) -> Option<f64> {
        self.per_second(self.received_bytes())
    }

    fn per_second(&self, n: u64) -> Option<f64> {
        let seconds = self.duration().as_secs_f64();
        (seconds > 0.0).then(|| n as f64 / seconds)
    }

    /// Adds the figures of a generator that ran at the same time: counts are summed, and the longer
    /// duration is that of both.
    ///
    /// # Panics
    /// If a sum exceeds 64 bits.
    pub fn merge(&mut self, other: &LoadFigures) {
        let duration_ns = self.counts.duration_ns.max(other.counts.duration_ns);
        self.append(other);
        self.counts.duration_ns = duration_ns;
    }

    /// Adds the figures of a time that followed: counts and durations are summed.
    ///
    /// # Panics
    /// If a sum exceeds 64 bits.
    pub fn append(&mut self, other: &LoadFigures) {
        let add = |a: u64, b: u64| a.checked_add(b).expect("a sum of figures within 64 bits");
        let (a, b) = (self.counts, other.counts);
        self.counts = Counts {
            offered: add(a.offered, b.offered),
            sent: add(a.sent, b.sent),
            received: add(a.received, b.received),
            errors: add(a.errors, b.errors),
            sent_bytes: add(a.sent_bytes, b.sent_bytes),
            received_bytes: add(a.received_bytes, b.received_bytes),
            duration_ns: add(a.duration_ns, b.duration_ns),
        };
    }
}

impl TryFrom<Counts> for LoadFigures {
    type Error = Contradiction;

    fn try_from(counts: Counts) -> Result<LoadFigures, Contradiction> {
        let back = counts.received.saturating_add(counts.errors);
        for (what, found, at_most) in [
            ("sent", counts.sent, counts.offered),
            ("received or answered with an error", back, counts.sent),
        ] {
            if found > at_most {
                return Err(Contradiction {
                    what,
                    found,
                    at_most,
                });
            }
        }
        Ok(LoadFigures { counts })
    }
}

impl From<LoadFigures> for Counts {
    fn from(figures: LoadFigures) -> Counts {
        figures.counts
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn figures() -> impl Strategy<Value = LoadFigures> {
        (
            0u64..1000,
            0u64..1000,
            0u64..1000,
            0u64..1000,
            0u64..10,
            0u64..1 << 40,
        )
            .prop_map(|(received, errors, lost, unsent, seconds, bytes)| {
                let sent = received + errors + lost;
                LoadFigures::new(
                    sent + unsent,
                    sent,
                    received,
                    errors,
                    Duration::from_secs(seconds),
                )
                .unwrap()
                .with_bytes(2 * bytes, bytes)
            })
    }

    proptest! {
        #[test]
        fn merging_sums_in_any_order_and_no_loss_is_negative(a in figures(), b in figures(), c in figures()) {
            let merged = |parts: [&LoadFigures; 3]| {
                let mut sum = LoadFigures::default();
                parts.iter().for_each(|part| sum.merge(part));
                sum
            };
            let sum = merged([&a, &b, &c]);
            prop_assert_eq!(sum, merged([&c, &a, &b]));
            prop_assert_eq!(sum.lost(), a.lost() + b.lost() + c.lost());
            prop_assert_eq!(sum.sent(), sum.received() + sum.errors() + sum.lost());
            prop_assert_eq!(sum.offered(), a.offered() + b.offered() + c.offered());
            prop_assert_eq!(sum.sent_bytes(), 2 * sum.received_bytes());
            prop_assert_eq!(sum.duration(), a.duration().max(b.duration()).max(c.duration()));
            let mut appended = a;
            appended.append(&b);
            prop_assert_eq!(appended.duration(), a.duration() + b.duration());
            prop_assert_eq!(appended.received(), a.received() + b.received());
        }

        #[test]
        fn figures_that_were_written_and_read_are_the_same(a in figures()) {
            let text = serde_json::to_string(&a).unwrap();
            prop_assert_eq!(serde_json::from_str::<LoadFigures>(&text).unwrap(), a);
        }
    }

    #[test]
    fn contradictions_are_refused_where_figures_are_made_and_where_they_are_read() {
        let second = Duration::from_secs(1);
        let error = LoadFigures::new(10, 11, 0, 0, second).unwrap_err();
        assert_eq!(
            error.to_string(),
            "found 11 operations sent, expected at most 10"
        );
        assert!(LoadFigures::new(10, 10, 8, 3, second).is_err());
        assert!(LoadFigures::new(10, 10, u64::MAX, 3, second).is_err());
        let text = r#"{"offered":9,"sent":9,"received":10,"errors":0,"sent_bytes":0,"received_bytes":0,"duration_ns":0}"#;
        let error = serde_json::from_str::<LoadFigures>(text).unwrap_err();
        assert!(
            error.to_string().contains("found 10 operations received"),
            "{error}"
        );
    }

    #[test]
    fn a_rate_or_a_ratio_of_nothing_is_missing_and_not_zero() {
        let nothing = LoadFigures::default();
        assert_eq!(nothing.loss_ratio(), None);
        assert_eq!(nothing.received_per_second(), None);
        let figures = LoadFigures::new(8, 8, 6, 0, Duration::from_secs(2)).unwrap();
        let figures = figures.with_bytes(800, 600);
        assert_eq!(figures.loss_ratio(), Some(0.25));
        assert_eq!(figures.received_per_second(), Some(3.0));
        assert_eq!(figures.received_bytes_per_second(), Some(300.0));
    }
}
