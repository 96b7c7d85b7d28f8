//! The text format of Prometheus, version 0.0.4.

use std::fmt::{Display, Write as _};

use crate::counters::CounterInfo;

/// Nanoseconds of a second.
const NANOS: u64 = 1_000_000_000;

/// The labels of a sample: names and values.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

/// A page of metrics, whose names all begin with the same prefix.
#[derive(Clone, Debug)]
pub struct Metrics {
    prefix: &'static str,
    text: String,
}

impl Metrics {
    /// Creates an empty page. Metrics are named `PREFIX_NAME`.
    pub fn new(prefix: &'static str) -> Metrics {
        Metrics {
            prefix,
            text: String::new(),
        }
    }

    /// Begins a family; `kind` is `counter`, `gauge` or `histogram`. Its samples follow.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        let prefix = self.prefix;
        let _ = writeln!(self.text, "# HELP {prefix}_{name} {help}");
        let _ = writeln!(self.text, "# TYPE {prefix}_{name} {kind}");
    }

    /// Adds a sample of the family that was begun last. Label values may hold any characters.
    pub fn sample(&mut self, name: &str, labels: Labels<'_>, value: impl Display) {
        let _ = write!(self.text, "{}_{name}", self.prefix);
        for (n, (label, value)) in labels.iter().enumerate() {
            self.text.push(if n == 0 { '{' } else { ',' });
            let _ = write!(self.text, "{label}=\"");
            for c in value.chars() {
                match c {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    c => self.text.push(c),
                }
            }
            self.text.push('"');
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{close} {value}");
    }

    /// Adds a family with a single sample without labels.
    pub fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    /// Adds a histogram without labels. `buckets` are upper limits in rising order, and how many of
    /// the `count` values, whose sum is `sum`, each is an upper limit of.
    pub fn histogram(
        &mut self,
        name: &str,
        help: &str,
        buckets: impl IntoIterator<Item = (f64, u64)>,
        sum: f64,
        count: u64,
    ) {
        self.family(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        for (limit, within) in buckets {
            self.sample(&bucket, &[("le", &limit.to_string())], within);
        }
        self.sample(&bucket, &[("le", "+Inf")], count);
        self.sample(&format!("{name}_sum"), &[], sum);
        self.sample(&format!("{name}_count"), &[], count);
    }

    /// Adds a family of counters for each of `infos`; `instances` are their labels, and the values
    /// in the order of `infos`. A field whose name ends in `_ns` is written in seconds, the base
    /// unit that Prometheus asks for.
    pub fn counters(&mut self, infos: &[CounterInfo], instances: &[(Labels<'_>, Vec<u64>)]) {
        for (n, info) in infos.iter().enumerate() {
            self.family(info.metric, "counter", info.help);
            for (labels, values) in instances {
                let Some(value) = values.get(n) else {
                    continue;
                };
                if info.field.ends_with("_ns") {
                    let (seconds, rest) = (value / NANOS, value % NANOS);
                    let value = format_args!("{seconds}.{rest:09}");
                    self.sample(info.metric, labels, value);
                } else {
                    self.sample(info.metric, labels, value);
                }
            }
        }
    }

    /// Returns the page.
    pub fn into_text(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::Metrics;
    use crate::CounterInfo;

    #[test]
    fn nanoseconds_are_written_in_seconds() {
        let info = |field, metric, help| CounterInfo {
            field,
            metric,
            help,
        };
        let infos = [
            info("turns", "turns_total", "Turns"),
            info("cpu_ns", "cpu_seconds_total", "Processor time"),
        ];
        let mut page = Metrics::new("a");
        let labels = [("thread", "1")];
        let instances = [(&[][..], vec![3, 12_000_000_045]), (&labels, vec![4, 999])];
        page.counters(&infos, &instances);
        let text = page.into_text();
        assert_eq!(
            text.lines().collect::<Vec<_>>(),
            [
                "# HELP a_turns_total Turns",
                "# TYPE a_turns_total counter",
                "a_turns_total 3",
                "a_turns_total{thread=\"1\"} 4",
                "# HELP a_cpu_seconds_total Processor time",
                "# TYPE a_cpu_seconds_total counter",
                "a_cpu_seconds_total 12.000000045",
                "a_cpu_seconds_total{thread=\"1\"} 0.000000999",
            ]
        );
    }
}
