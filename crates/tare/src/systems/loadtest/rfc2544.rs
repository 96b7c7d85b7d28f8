//! `tare loadtest rfc2544`: the benchmarks of RFC 2544.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use serde_json::{json, Value};
use tare_loadtest::rfc2544::{self, Config, Progress, SizeReport, CHECKSUM};
use tare_loadtest::Rate;

use super::bench::Bench;
use super::setup::Setup;
use super::{value, FAILED};

/// The usual number of trials of a size: bisection, latency, loss and bursts.
const TRIALS_PER_SIZE: u64 = 12 + 10 + 20;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tare loadtest rfc2544 --simulate -b 1e9 -D 0.1 --sizes 64,512,1518\n  \
    tare loadtest rfc2544 -b 10e9 -D 60 --burst-trials 50 in.pcap eth1    durations of the RFC\n\n\
    The frames of the captures are resized to each size; sizes include the Ethernet checksum, as \
    in the RFC. By default, durations are shorter than those of the RFC. Latency is measured for \
    all packets, not for one per trial.\n\n\
    Exit status: 0 completed; 1 a frame size passed at no rate, or the load could not be offered; \
    2 usage error, or the test could not run; 130 interrupted.")]
pub(crate) struct Args {
    /// Rate of the medium, in bits per second
    #[arg(short, long, value_name = "BITRATE", default_value = "10e9", value_parser = value::rate)]
    bitrate: Rate,
    /// Duration of each trial, in seconds
    #[arg(short = 'D', long, value_name = "SECONDS", default_value = "1", value_parser = value::seconds)]
    duration: Duration,
    /// Step size of the throughput search, in bits per second [default: a thousandth of the rate]
    #[arg(short, long, value_name = "PRECISION", value_parser = value::rate)]
    precision: Option<Rate>,
    /// Frame sizes in bytes, comma-separated, including the Ethernet checksum; the form `64 bytes:`
    /// of a report is also accepted [default: 64,128,256,512,1024,1280,1518]
    #[arg(long, hide_default_value = true, value_name = "BYTES", value_delimiter = ',', default_values_t = rfc2544::SIZES.map(|size| size as u16),
        value_parser = value::frame_size)]
    sizes: Vec<u16>,
    /// Number of latency trials
    #[arg(long, value_name = "COUNT", default_value_t = 20, value_parser = clap::value_parser!(u32).range(..=1000))]
    latency_trials: u32,
    /// Duration of the longest burst, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = value::seconds)]
    burst: Duration,
    /// Number of searches for the longest burst
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    burst_trials: u32,
    #[command(flatten)]
    setup: Setup,
}

/// Measures and reports.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let precision = args
        .precision
        .unwrap_or(Rate::from_bits((args.bitrate.bits() / 1000).max(1)));
    if precision > args.bitrate {
        bail!("--precision: found more than --bitrate, expected less");
    }
    let config = Config {
        sizes: args.sizes.iter().map(|&size| size.into()).collect(),
        max: args.bitrate,
        precision,
        duration: args.duration,
        latency_trials: args.latency_trials,
        burst_max: args.burst,
        burst_trials: args.burst_trials,
    };
    let expected = config.sizes.len() as u64 * (TRIALS_PER_SIZE + u64::from(args.latency_trials));
    let longest = config.sizes.iter().max().map_or(0, |size| size - CHECKSUM);
    let mut bench = Bench::new(
        "rfc2544",
        &args.setup,
        args.bitrate,
        longest,
        expected,
        None,
    )?;
    let notice = bench.notice.clone();
    let (mut trials, mut reports) = (Vec::new(), Vec::new());
    let mut said = Ok(());
    let done = rfc2544::run(&mut bench.tester, &config, &mut |progress| match progress {
        Progress::Trial {
            frame_bytes,
            benchmark,
            trial,
        } => {
            notice.trial_done();
            if args.setup.json {
                let mut json = json!(trial);
                json["frame_bytes"] = frame_bytes.into();
                json["benchmark"] = benchmark.into();
                trials.push(json);
            }
        }
        Progress::Size(report) => {
            if !args.setup.json && said.is_ok() {
                said = notice.print(&text(report));
            }
            reports.push(report.clone());
        }
    });
    let mut result = json!({
        "sizes": reports,
        "trial_count": trials.len(),
        "trials": trials,
        "duration_s": args.duration.as_secs_f64(),
        "burst_max_s": args.burst.as_secs_f64(),
    });
    if let Err(error) = &done {
        result["error"] = Value::from(error.to_string());
    }
    bench.finish(result)?;
    done?;
    said?;
    let all_pass = reports
        .iter()
        .all(|report| report.throughput.passed.bits() > 0);
    Ok(if all_pass {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(FAILED)
    })
}

fn text(report: &SizeReport) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{} bytes:", report.frame_bytes);
    let _ = writeln!(
        out,
        "  Throughput {:.6} Gbps, {:.0} packets/s of {:.0} that the medium carries",
        report.throughput.passed.gbps(),
        report.throughput_pps,
        report.medium_pps
    );
    if report.frames_without_stamp > 0 {
        let _ = writeln!(
            out,
            "  {} frames of the loops have no room for a stamp: counted by totals only",
            report.frames_without_stamp
        );
    }
    match &report.latency {
        Some(latency) => {
            let us = |ns: f64| ns / 1e3;
            let _ = writeln!(
                out,
                "  Latency mean {:.3} us, min {:.3} us, p99 {:.3} us, max {:.3} us ({} trials)",
                us(latency.mean_ns),
                us(latency.min_ns as f64),
                us(latency.p99_ns as f64),
                us(latency.max_ns as f64),
                latency.trials
            );
        }
        None => out.push_str("  Latency not measured\n"),
    }
    let losses = report
        .frame_loss
        .iter()
        .map(|loss| format!("{:.3}% at {}%", loss.loss_percent, loss.percent_of_max));
    let _ = writeln!(
        out,
        "  Frame loss {}",
        losses.collect::<Vec<_>>().join(", ")
    );
    let burst = &report.back_to_back;
    let or_more = if burst.mean_frames >= burst.longest_tried as f64 {
        " or more"
    } else {
        ""
    };
    let _ = write!(
        out,
        "  Back-to-back {:.1} frames{or_more} ({} searches)",
        burst.mean_frames,
        burst.frames.len()
    );
    out
}
