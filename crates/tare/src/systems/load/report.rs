//! The result of a trial, for people and for programs.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{json, Value};
use tare_histogram::LONGEST;
use tare_lab::unit::significant;
use tare_load::{Options, Pace, Record, Target};

use super::drive::Done;

/// The result as JSON.
pub(super) fn json(target: &Target, options: &Options, done: &Done) -> anyhow::Result<Value> {
    let record = &done.record;
    let nanoseconds = |duration: Duration| duration.as_nanos() as u64;
    let mut result = json!({
        "schema": 1,
        "target": target.address.to_string(),
        "tls": target.tls.is_some(),
        "loop": if options.pace == Pace::Closed { "closed" } else { "open" },
        "rate_intended": options.pace.rate(),
        "connections": options.connections,
        "threads": options.threads,
        "pipeline": options.pipeline,
        "seed": options.seed,
        "duration_ns": nanoseconds(record.duration),
        "rate": record.rate(),
        "unissued": record.unissued(),
        "bytes_per_response": record.bytes_per_response(),
        "body_bytes_per_second": record.body_rate(),
        "latency": record.latency.summary(),
        "latency_saturated": record.latency.saturated(),
        "lateness": record.lateness.summary(),
        "generator_cpu_per_response_ns": record.cpu_per_response().map(nanoseconds),
        "server_counts": done.counts,
        "invalid": done.invalid(),
    });
    let counts = serde_json::to_value(record)?;
    if let (Value::Object(result), Value::Object(counts)) = (&mut result, counts) {
        let histograms = ["latency", "lateness"];
        for (name, value) in counts {
            match histograms.contains(&name.as_str()) {
                true => result.insert(format!("{name}_histogram"), value),
                false => result.insert(name, value),
            };
        }
    }
    Ok(result)
}

/// The result as text.
pub(super) fn text(target: &Target, options: &Options, done: &Done) -> String {
    let record = &done.record;
    let mut text = String::new();
    let tls = if target.tls.is_some() {
        " with TLS"
    } else {
        ""
    };
    let pace = match options.pace {
        Pace::Closed => "closed loop".into(),
        Pace::Trace => "times of the trace".into(),
        Pace::Constant(rate) => format!("{} requests per second", significant(rate)),
        Pace::Poisson(rate) => format!("{} requests per second, Poisson", significant(rate)),
    };
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<11}{value}");
    };
    line("server", format!("{}{tls}", target.address));
    line(
        "load",
        format!(
            "{pace}; connections: {}, threads: {}, in flight per connection: {}; {:?} after {:?}",
            options.connections,
            options.threads,
            options.pipeline,
            record.duration,
            options.warm_up
        ),
    );
    let Record {
        scheduled,
        issued,
        served,
        misses,
        refused,
        failed,
        timed_out,
        resent,
        ..
    } = record;
    line(
        "requests",
        format!(
            "{scheduled} scheduled = {issued} sent + {} not sent",
            record.unissued()
        ),
    );
    line(
        "responses",
        format!(
            "{served} served, {misses} misses, {refused} errors; none to {}",
            failed + timed_out
        ),
    );
    let missing = || "none".to_string();
    if *resent > 0 {
        let closed = "because the server closed the connection properly";
        line("sent again", format!("{resent} requests, {closed}"));
    }
    let rate = record
        .rate()
        .map_or_else(missing, |rate| format!("{} /s", significant(rate)));
    let bytes = record.bytes_per_response();
    let bytes = bytes.map_or_else(missing, |bytes| format!("{} B", significant(bytes)));
    line("rate", format!("{rate}, bytes per response: {bytes}"));
    if let Some(rate) = record.body_rate().filter(|_| record.body_bytes > 0) {
        let rate = significant(rate / 1e6);
        line("bodies", format!("{rate} MB/s, without headers and TLS"));
    }
    if target.tls.is_some() {
        let (full, resumed) = (record.full_handshakes, record.resumed_handshakes);
        line(
            "handshakes",
            format!("{full} full, {resumed} resumed, in the whole trial"),
        );
    }
    if let Some(counts) = &done.counts {
        let verdict = match counts.mismatch() {
            None => "they agree",
            Some(_) => "they do NOT agree",
        };
        line(
            "both sides",
            format!(
                "{} requests sent, {} served; the server counts {}: {verdict}",
                counts.sent, counts.served, counts.server
            ),
        );
    }
    match record.latency.summary() {
        None => line("latency", missing()),
        Some(of) => {
            let shown = [
                ("min", of.min_ns),
                ("p50", of.p50_ns),
                ("p90", of.p90_ns),
                ("p99", of.p99_ns),
                ("p99.9", of.p999_ns),
                ("max", of.max_ns),
            ];
            let shown = shown.map(|(name, ns)| format!("{name} {}", latency(ns)));
            line("latency", shown.join(", "));
        }
    }
    if let Some(late) = record.lateness.summary() {
        let (p99, max) = (latency(late.p99_ns), latency(late.max_ns));
        line(
            "lateness",
            format!("p99 {p99}, max {max}: of the generator itself"),
        );
    }
    if let Some(idle) = record.idle {
        let (idle, waited) = (significant(100.0 * idle), record.waited);
        line(
            "idle",
            format!("{idle} % of the time, the generator; {waited} requests waited to be sent"),
        );
    }
    let cpu = record.cpu_per_response();
    let cpu = cpu.map_or_else(missing, |cpu| time(cpu.as_secs_f64() * 1e9));
    line("processor", format!("{cpu} per response, of the generator"));
    if let Some(error) = &record.first_error {
        line("error", format!("the first one: {error}"));
    }
    text
}

/// A latency with its unit. One that is too long for a histogram is known by its bound alone.
fn latency(ns: u64) -> String {
    match Duration::from_nanos(ns) >= LONGEST {
        true => "at least 1 h".into(),
        false => time(ns as f64),
    }
}

/// A time with its unit.
pub(super) fn time(ns: f64) -> String {
    let (value, unit) = match ns {
        _ if ns < 1e3 => (ns, "ns"),
        _ if ns < 1e6 => (ns / 1e3, "µs"),
        _ if ns < 1e9 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    format!("{} {unit}", significant(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_of_an_hour_or_more_is_said_to_be_that_and_repeated_requests_are_told() {
        let mut record = Record::default();
        record.latency.record_duration(Duration::from_secs(90));
        record.latency.record_duration(Duration::from_secs(9000));
        (record.scheduled, record.issued, record.served) = (2, 2, 2);
        (record.resent, record.connections_opened) = (7, 12);
        let target = Target {
            address: ([127, 0, 0, 1], 1).into(),
            tls: None,
        };
        let mut done = Done {
            record,
            counts: None,
        };
        let options = Options::default();
        let said = text(&target, &options, &done);
        assert!(said.contains("p50 90.06 s"), "{said}");
        assert!(said.contains("max at least 1 h"), "{said}");
        assert!(said.contains("sent again 7 requests"), "{said}");
        let json = json(&target, &options, &done).unwrap();
        assert_eq!(
            (&json["latency_saturated"], &json["resent"]),
            (&1.into(), &7.into())
        );
        // What was asked for, beside what was opened.
        assert_eq!(
            (&json["connections"], &json["connections_opened"]),
            (&options.connections.into(), &12.into())
        );
        done.record.resent = 0;
        assert!(!text(&target, &options, &done).contains("sent again"));
    }
}
