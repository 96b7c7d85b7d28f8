//! Reports: the lines that people compare with what `snabb loadtest` prints, and CSV.
//!
//! A stream's block has the three lines TX, RX and Loss. What those cannot say (duplicates,
//! reordering, strangers, drops before the network) has lines of its own, which are there only when
//! there is something to say.

use std::fmt::Write;

use crate::bisect::Step;
use crate::stream::Stream;
use crate::trial::{StreamRecord, Trial};
use crate::Rate;

/// The line at the beginning of a trial.
pub fn applying(rate: Rate) -> String {
    format!("Applying {:.6} Gbps of load.", rate.gbps())
}

/// The results of a trial, stream by stream, each line with its end.
pub fn trial(trial: &Trial, with_latency: bool) -> String {
    let mut out = String::new();
    for reason in &trial.invalid {
        let _ = writeln!(out, "Invalid result: {reason}.");
    }
    for stream in &trial.streams {
        let (tx, tx_bytes) = (stream.tx_packets, stream.tx_bytes);
        let (rx, rx_bytes) = (stream.rx_packets, stream.rx_bytes);
        let (tx_mpps, tx_gbps) = (trial.mpps(tx), trial.gbps(tx, tx_bytes));
        let (rx_mpps, rx_gbps) = (trial.mpps(rx), trial.gbps(rx, rx_bytes));
        let (ingress, elsewhere, percent) = (
            stream.ingress_drop,
            stream.lost_elsewhere(),
            stream.lost_percent(),
        );
        let _ = writeln!(out, "  {}:", stream.name);
        let _ = writeln!(
            out,
            "    TX {tx} packets ({tx_mpps:.6} MPPS), {tx_bytes} bytes ({tx_gbps:.6} Gbps)"
        );
        let _ = writeln!(
            out,
            "    RX {rx} packets ({rx_mpps:.6} MPPS), {rx_bytes} bytes ({rx_gbps:.6} Gbps)"
        );
        let _ = writeln!(
            out,
            "    Loss: {ingress} ingress drop + {elsewhere} packets lost ({percent:.6}%)"
        );
        let also = also(stream);
        if !also.is_empty() {
            let _ = writeln!(out, "    Also: {}", also.join(", "));
        }
        if let (true, Some(latency)) = (with_latency, &stream.latency) {
            let us = |ns: u64| ns as f64 / 1e3;
            let _ = writeln!(
                out,
                "    Latency: p50 {:.3} us, p99 {:.3} us, p99.9 {:.3} us, max {:.3} us",
                us(latency.p50_ns),
                us(latency.p99_ns),
                us(latency.p999_ns),
                us(latency.max_ns)
            );
        }
    }
    let egress: u64 = trial.ports.iter().map(|port| port.egress_drop).sum();
    if egress > 0 {
        let _ = writeln!(out, "  Dropped by sending interfaces: {egress} packets");
    }
    let strangers: Vec<String> = [
        (
            trial.ports.iter().map(|port| port.stray).sum::<u64>(),
            "of an earlier trial",
        ),
        (trial.ports.iter().map(|port| port.damaged).sum(), "damaged"),
        (
            trial.ports.iter().map(|port| port.misdelivered).sum(),
            "at the wrong interface",
        ),
        (trial.ports.iter().map(|port| port.foreign).sum(), "foreign"),
    ]
    .iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} {what}"))
    .collect();
    if !strangers.is_empty() {
        let _ = writeln!(out, "  Not counted: {}", strangers.join(", "));
    }
    out
}

fn also(stream: &StreamRecord) -> Vec<String> {
    let parts = [
        (stream.duplicates, "duplicates"),
        (stream.reordered, "reordered"),
        (stream.late, "too late to tell"),
        (stream.surplus, "more without a stamp than sent"),
    ];
    let said = parts.iter().filter(|(count, _)| *count > 0);
    said.map(|(count, what)| format!("{count} {what}"))
        .collect()
}

/// The line at the end of a trial.
pub fn verdict(step: Step) -> String {
    match step {
        Step::Passed => "Success.".into(),
        Step::Retry { remaining } => format!("Failed; {remaining} retries remaining."),
        Step::Failed => "Failed.".into(),
    }
}

/// A rate as the bare number with which a search ends: gigabits a second.
pub fn figure(rate: Rate) -> String {
    format!("{}", rate.gbps())
}

/// A note about streams whose frames have no room for stamps; `None` if all have.
pub fn unstamped(streams: &[Stream]) -> Option<String> {
    let lines: Vec<String> = streams
        .iter()
        .filter(|stream| stream.frames().1 > 0)
        .map(|stream| {
            let (frames, plain) = stream.frames();
            format!(
                "{}: {plain} of {frames} frames have no room for a stamp of {} bytes; those are counted by totals only",
                stream.name(),
                crate::stamp::LEN
            )
        })
        .collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// The first line of CSV.
pub const CSV_HEADER: &str = "load_gbps,stream,tx_packets,tx_mpps,tx_bytes,tx_gbps,rx_packets,rx_mpps,rx_bytes,rx_gbps,ingress_drop,lost_packets,lost_percent";

/// A trial as lines of CSV, one a stream.
pub fn csv(trial: &Trial) -> String {
    let mut out = String::new();
    for stream in &trial.streams {
        let (tx, tx_bytes) = (stream.tx_packets, stream.tx_bytes);
        let (rx, rx_bytes) = (stream.rx_packets, stream.rx_bytes);
        let _ = writeln!(
            out,
            "{:.6},{},{tx},{:.6},{tx_bytes},{:.6},{rx},{:.6},{rx_bytes},{:.6},{},{},{:.6}",
            trial.load.gbps(),
            quoted(&stream.name),
            trial.mpps(tx),
            trial.gbps(tx, tx_bytes),
            trial.mpps(rx),
            trial.gbps(rx, rx_bytes),
            stream.ingress_drop,
            stream.lost_elsewhere(),
            stream.lost_percent()
        );
    }
    out
}

/// The first line of the other format of CSV: one figure a line.
pub const HYDRA_HEADER: &str = "benchmark,id,score,unit";

/// A trial as lines of that format.
pub fn hydra(trial: &Trial) -> String {
    let mut out = String::new();
    let load = trial.load.gbps();
    for stream in &trial.streams {
        let (rx, rx_bytes) = (stream.rx_packets, stream.rx_bytes);
        let figures = [
            ("rx_mpps", trial.mpps(rx), "mpps"),
            ("rx_gbps", trial.gbps(rx, rx_bytes), "gbps"),
            ("ingress_drop", stream.ingress_drop as f64, "packets"),
            ("lost_percent", stream.lost_percent(), "percentage"),
        ];
        for (figure, value, unit) in figures {
            let benchmark = quoted(&format!("{}_{figure}", stream.name));
            let _ = writeln!(out, "{benchmark},{load:.0},{value:.6},{unit}");
        }
    }
    out
}

/// A field of CSV (RFC 4180).
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}
