//! `tare load compare`: the results of two trials, side by side.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{bail, ensure, Context as _};
use serde_json::Value;
use tare_lab::unit::significant;

use super::report::time;
use crate::terminal;

/// The largest relative difference of bytes per response, which is the lab's for the work of cells.
const SAME_BYTES: f64 = 0.01;

/// The longest file, in bytes.
const FILE_MAX: u64 = 64 << 20;

/// Writes a figure.
type Show = fn(f64) -> String;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tare load http http://127.0.0.1:8080/ --json > a.json\n  \
    tare load compare a.json b.json\n\n\
    The trials ran at different times, so the differences are shown but not judged. For a verdict, \
    measure both in the rounds of one run (tare run load, tare compare).\n\n\
    Exit status: 0 compared; 1 refused: a trial is invalid, or the bytes per response differ; 2 \
    usage error.")]
pub(crate) struct Args {
    /// Output of `tare load … --json`
    #[arg(value_name = "A.json")]
    a: PathBuf,
    /// Output of another trial
    #[arg(value_name = "B.json")]
    b: PathBuf,
}

/// Compares and reports.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (a, b) = (read(&args.a)?, read(&args.b)?);
    if let Some(reason) = refusal([(&args.a, &a), (&args.b, &b)]) {
        terminal::say(&format!("tare: not compared: {reason}"));
        return Ok(ExitCode::from(super::INVALID));
    }
    let mut text = String::new();
    for name in [
        "tls",
        "loop",
        "rate_intended",
        "connections",
        "threads",
        "pipeline",
    ] {
        if a[name] != b[name] {
            let _ = writeln!(
                text,
                "the trials differ in {name}: {} and {}",
                a[name], b[name]
            );
        }
    }
    let _ = writeln!(text, "{:<34}{:>14}{:>14}{:>10}", "", "A", "B", "B/A");
    let plain: Show = |value| significant(value);
    let rows: [(&str, &str, Show); 8] = [
        ("responses per second", "/rate", plain),
        ("bytes per response", "/bytes_per_response", plain),
        ("latency p50", "/latency/p50_ns", time),
        ("latency p99", "/latency/p99_ns", time),
        ("latency p99.9", "/latency/p999_ns", time),
        ("latency max", "/latency/max_ns", time),
        (
            "generator's processor per response",
            "/generator_cpu_per_response_ns",
            time,
        ),
        ("requests not sent", "/unissued", plain),
    ];
    for (name, pointer, show) in rows {
        let [a, b] = [&a, &b].map(|result| result.pointer(pointer).and_then(Value::as_f64));
        let shown = |value: Option<f64>| value.map_or("–".into(), show);
        let ratio = a.zip(b).filter(|(a, _)| *a > 0.0).map(|(a, b)| b / a);
        let ratio = ratio.map_or("–".into(), |ratio| format!("{ratio:.3}"));
        let _ = writeln!(
            text,
            "{name:<34}{:>14}{:>14}{ratio:>10}",
            shown(a),
            shown(b)
        );
    }
    terminal::print(text.trim_end())?;
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> anyhow::Result<Value> {
    let at = || path.display().to_string();
    let data = path.metadata().with_context(at)?;
    ensure!(
        data.len() <= FILE_MAX,
        "{}: found more than 64 MiB, expected a result",
        at()
    );
    let text = std::fs::read_to_string(path).with_context(at)?;
    let value: Value = serde_json::from_str(&text).with_context(at)?;
    if value["schema"] != 1 || !value["latency_histogram"].is_object() {
        bail!("{}: found no result of tare load with --json", at());
    }
    Ok(value)
}

/// The reason why two results cannot be compared, if there is one.
fn refusal(results: [(&PathBuf, &Value); 2]) -> Option<String> {
    for (path, result) in results {
        if let Some(reason) = result["invalid"].as_str() {
            return Some(format!("{} is invalid: {reason}", path.display()));
        }
    }
    let bytes = results.map(|(_, result)| result["bytes_per_response"].as_f64());
    let [Some(a), Some(b)] = bytes else {
        return Some("found a trial without responses".into());
    };
    ((a - b).abs() > SAME_BYTES * a.min(b)).then(|| {
        let [a, b] = [a, b].map(significant);
        format!("found {a} and {b} bytes per response, expected equal ones: the servers did different work")
    })
}
