//! `tare memory ping`: round trips to a node, one after the other.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::json;
use tare_farmem::session::{connect, connect_authorized, Options};
use tare_histogram::Histogram;

use super::keygen::read_capability;
use super::serve::Wait;
use crate::terminal;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tare memory ping udp://127.0.0.1:7311\n  \
    tare memory ping udp://10.0.0.1:7311 -c 1000 -i 0 --wait busy --json\n\n\
    A round trip is a request that does not access the memory of the node, and its answer.\n\n\
    Exit status: 0 all requests were answered; 1 some were not; 2 usage error, or none was.")]
pub(crate) struct Args {
    /// The node, such as udp://127.0.0.1:7311, shm:/run/tare/node.shm or
    /// xdp:eth1,10.0.0.2,10.0.0.1:7311
    #[arg(value_name = "NODE")]
    node: String,
    /// Number of round trips
    #[arg(short, long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    count: u32,
    /// Seconds between two round trips
    #[arg(short, long, value_name = "SECONDS", default_value_t = 0.5)]
    interval: f64,
    /// Waiting strategy for the answer
    #[arg(long, value_enum, default_value_t = Wait::Blocking)]
    wait: Wait,
    /// Encrypt, with the capability of an address space in this file
    #[arg(long, value_name = "FILE")]
    capability: Option<PathBuf>,
    /// Print only the summary, as JSON
    #[arg(long)]
    json: bool,
}

/// Measures round trips.
///
/// # Errors
/// No round trip was answered.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let options = Options {
        waiting: args.wait.into(),
        ..Options::default()
    };
    let mut session = match &args.capability {
        Some(file) => connect_authorized(&args.node, &options, read_capability(file)?)?,
        None => connect(&args.node, &options)?,
    };
    let interval = Duration::try_from_secs_f64(args.interval).context("the interval")?;
    let (mut latency, mut unanswered, mut last) = (Histogram::new(), 0, None);
    // The first one finds the way: it is measured, like that of arping.
    for number in 0..args.count {
        let from = Instant::now();
        match session.ping() {
            Ok(time) => {
                latency.record_duration(time);
                if !args.json {
                    let line = format!("{}: {:.1} µs\n", args.node, time.as_secs_f64() * 1e6);
                    terminal::print(&line)?;
                }
            }
            Err(error) => {
                unanswered += 1;
                if !args.json {
                    terminal::print(&format!("{}: {error}\n", args.node))?;
                }
                last = Some(error);
            }
        }
        if number + 1 < args.count {
            std::thread::sleep(interval.saturating_sub(from.elapsed()));
        }
    }
    if args.json {
        let summary = json!({
            "schema": 1,
            "node": args.node,
            "sent": args.count,
            "answered": latency.count(),
            "latency": latency.summary(),
        });
        terminal::print(&format!("{summary}\n"))?;
    } else if !latency.is_empty() {
        let quantile = |share| latency.quantile(share).unwrap_or_default().as_secs_f64() * 1e6;
        let line = format!(
            "{} of {} answered; median {:.1} µs, p99 {:.1} µs\n",
            latency.count(),
            args.count,
            quantile(0.5),
            quantile(0.99)
        );
        terminal::print(&line)?;
    }
    match last {
        Some(error) if latency.is_empty() => Err(error.into()),
        _ if unanswered > 0 => Ok(ExitCode::from(1)),
        _ => Ok(ExitCode::SUCCESS),
    }
}
