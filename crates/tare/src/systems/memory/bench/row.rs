//! Rows of the result: their figures, and their lines in each format.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::json;
use tare_histogram::Histogram;
use tare_lab::unit::Unit;

use super::super::load::Proof;
use super::{remedy, Args, Op};

/// The place of a row on all axes.
#[derive(Clone, Copy)]
pub(super) struct Cell {
    pub(super) op: Op,
    pub(super) size: u64,
    pub(super) threads: u32,
    pub(super) sessions: u64,
    pub(super) order: u32,
}

/// A row of the result: the sums of its threads.
pub(super) struct Row {
    pub(super) cell: Cell,
    pub(super) latency: Histogram,
    pub(super) operations: u64,
    pub(super) time: Duration,
    pub(super) proof: Proof,
    /// Address spaces that the node may have kept.
    pub(super) left: usize,
}

pub(super) const HEADER: &str =
    "op       size  threads  sessions  order      time    median       p99     p99.9   \
                      throughput  verified\n";

impl Row {
    /// Adds what another thread did in the same time.
    pub(super) fn add(&mut self, other: &Row) {
        self.latency.merge(&other.latency);
        self.operations += other.operations;
        self.time += other.time;
        self.proof.merge(&other.proof);
    }

    /// Returns true if every byte was right and no operation failed.
    pub(super) fn is_right(&self) -> bool {
        self.proof.wrong == 0 && self.proof.failed == 0
    }

    /// Seconds per operation that succeeded, of a thread.
    fn mean(&self) -> Option<f64> {
        let succeeded = self.proof.succeeded as f64;
        (succeeded > 0.0).then(|| self.time.as_secs_f64() / succeeded)
    }

    /// Bits per second, of all threads, without operations that failed.
    fn throughput(&self) -> Option<f64> {
        let bits = self.cell.size as f64 * 8.0;
        self.mean()
            .map(|mean| bits / mean * f64::from(self.cell.threads))
    }

    /// The numbers of operations that went wrong.
    pub(super) fn faults(&self) -> String {
        let (wrong, failed) = (self.proof.wrong, self.proof.failed);
        format!("{wrong} wrong, {failed} failed")
    }

    /// The reason why operations failed, and what to do about it.
    pub(super) fn reason(&self, args: &Args) -> Option<String> {
        let failure = self.proof.failure?;
        let mut text = format!("tare: {}: {failure}", self.name());
        if let Some(remedy) = remedy(&args.node, failure) {
            let _ = write!(text, "; {remedy}");
        }
        Some(text)
    }

    pub(super) fn name(&self) -> &'static str {
        match self.cell.op {
            Op::Read => "read",
            Op::Write => "write",
        }
    }

    pub(super) fn table(&self) -> String {
        let mut text = String::new();
        let cell = &self.cell;
        let _ = write!(
            text,
            "{:<6} {:>6}  {:>7}  {:>8}  {:>5}",
            self.name(),
            Unit::Bytes.show(cell.size as f64).replace(' ', ""),
            cell.threads,
            cell.sessions,
            cell.order
        );
        let _ = match self.mean() {
            Some(mean) => write!(text, "  {:>5.2} µs", mean * 1e6),
            None => write!(text, "{:>10}", "–"),
        };
        for share in [0.5, 0.99, 0.999] {
            let _ = match self.latency.quantile(share) {
                Some(latency) => write!(text, "  {:>5.2} µs", latency.as_secs_f64() * 1e6),
                None => write!(text, "{:>10}", "–"),
            };
        }
        let _ = match self.throughput() {
            Some(throughput) => write!(text, "  {:>6.3} Gbit/s", throughput / 1e9),
            None => write!(text, "{:>15}", "–"),
        };
        let _ = write!(text, "  {:.1} MB", self.proof.verified as f64 / 1e6);
        if !self.is_right() {
            let _ = write!(text, "  {}", self.faults());
        }
        text.push('\n');
        text
    }

    /// The line of the document, with averages in nanoseconds. That of threads has both directions:
    /// the row of the first one gives none, if there are two.
    pub(super) fn clio(&self, args: &Args, before: &[Row]) -> String {
        let (ns, megabits) = (nanoseconds(self), megabits(self));
        let (cell, name) = (&self.cell, self.name());
        if args.threads.len() > 1 {
            let same = before.iter().find(|row| row.cell.threads == cell.threads);
            return match same {
                None if args.op.len() > 1 => String::new(),
                other => threads_line(cell.threads, other.into_iter().chain([self])),
            };
        }
        if args.size.len() > 1 {
            let name = name.to_uppercase();
            return format!(
                "size: {:>5} avg_{name}: {ns:>12} ns Throughput: {megabits} Mbps\n",
                cell.size
            );
        }
        if args.order.len() > 1 {
            let name = name.to_uppercase();
            return format!("nr_pte_order: {:>5} avg_{name}: {ns:>12} ns\n", cell.order);
        }
        let name = match cell.op {
            Op::Read => "Read",
            Op::Write => "Write",
        };
        format!(
            "nr_sessions: {:>4} avg_{name}: {ns:>12} ns Throughput: {megabits} Mbps\n",
            cell.sessions
        )
    }

    pub(super) fn json(&self, args: &Args) -> serde_json::Value {
        json!({
            "op": self.name(),
            "size": self.cell.size,
            "threads": self.cell.threads,
            "sessions": self.cell.sessions,
            "order": self.cell.order,
            "outstanding": args.outstanding,
            "operations": self.operations,
            "time_ns": self.mean().map(|mean| mean * 1e9),
            "latency": self.latency.summary(),
            "throughput_bit_s": self.throughput(),
            "sessions_used": self.proof.sessions,
            "pages_touched": self.proof.pages,
            "bytes_verified": self.proof.verified,
            "wrong": self.proof.wrong,
            "failed": self.proof.failed,
        })
    }
}

/// The document's line of some threads, whose first word it spells so.
fn threads_line<'r>(threads: u32, rows: impl Iterator<Item = &'r Row>) -> String {
    let mut rows: Vec<&Row> = rows.collect();
    rows.sort_by_key(|row| row.name());
    let figures = |of: &dyn Fn(&Row) -> String| -> String {
        let figures = rows.iter().map(|row| format!("{}={}", row.name(), of(row)));
        figures.collect::<Vec<_>>().join(" ")
    };
    format!(
        "#nr_theads={threads:>3} Latency {} ns. Throughput {} Mbps\n",
        figures(&nanoseconds),
        figures(&megabits)
    )
}

/// The document's figure of the time per operation.
fn nanoseconds(row: &Row) -> String {
    figure(row.mean().map(|mean| mean * 1e9))
}

/// The document's figure of the throughput.
fn megabits(row: &Row) -> String {
    figure(row.throughput().map(|throughput| throughput / 1e6))
}

/// A figure of the document's lines, a dash if no operation succeeded.
fn figure(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.6}"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::args;
    use super::*;

    fn row(succeeded: u64, failed: u64, wrong: u64) -> Row {
        Row {
            cell: Cell {
                op: Op::Read,
                size: 1000,
                threads: 1,
                sessions: 4,
                order: 7,
            },
            latency: Histogram::new(),
            operations: succeeded + failed,
            time: Duration::from_millis(1),
            proof: Proof {
                operations: succeeded + failed,
                succeeded,
                failed,
                wrong,
                ..Proof::default()
            },
            left: 0,
        }
    }

    #[test]
    fn operations_that_failed_have_no_throughput() {
        // 125 of 1 kB in a millisecond are a gigabit per second.
        for (failed, succeeded) in [(0, 125), (875, 125)] {
            let row = row(succeeded, failed, 0);
            let (table, clio) = (row.table(), row.clio(&args(&[]), &[]));
            assert!(table.contains("  8.00 µs "), "{table}");
            assert!(table.contains("  1.000 Gbit/s"), "{table}");
            assert_eq!(table.contains("0 wrong, 875 failed"), failed > 0, "{table}");
            assert!(clio.contains(" 8000.000000 ns Throughput: 1000.000000 Mbps"));
        }
        let row = row(0, 9, 0);
        let (table, clio) = (row.table(), row.clio(&args(&[]), &[]));
        assert!(!table.contains("bit/s"), "{table}");
        assert!(table.ends_with("0 wrong, 9 failed\n"), "{table}");
        assert!(clio.ends_with(" - ns Throughput: - Mbps\n"), "{clio}");
        let clio = row.clio(&args(&["--threads", "1,2", "--op", "read"]), &[]);
        assert!(
            clio.ends_with("read=- ns. Throughput read=- Mbps\n"),
            "{clio}"
        );
        assert_eq!(
            row.json(&args(&[]))["throughput_bit_s"],
            serde_json::Value::Null
        );
    }
}
