//! `tare loadtest find-limit`: the highest rate at which nothing is lost.

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{bail, Context as _};
use serde_json::json;
use tare_loadtest::mlr::{Goal, GoalResult, Search};
use tare_loadtest::{report, Bisection, Consistency, Doubt, Load, Rate};

use super::bench::{Bench, Table};
use super::setup::Setup;
use super::{value, FAILED};
use crate::terminal;

/// The most trials of MLRsearch.
const MLR_TRIALS_MAX: u32 = 1000;
/// The usual number of its trials.
const MLR_TRIALS_EXPECTED: u64 = 60;
/// The lowest rate that it tries, as a part of the highest.
const MLR_MIN: u64 = 1000;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tare loadtest find-limit --simulate -b 1e9    two gateways on simulated 1 GbE links: 0.609\n  \
    tare loadtest find-limit -b 1e9 --cpu 10 \\\n    \
        node1-private-in.pcap node1 node2 22:00.0 \\\n    \
        node2-private-in.pcap node2 node1 23:00.2\n  \
    tare loadtest find-limit --threads 2 in.pcap eth1    one looped interface, two sending threads\n\n\
    Rates include 24 bytes of Ethernet overhead per frame. The last line is the result, in Gb/s. \
    If a rate fails although another trial shows that it is below the limit, for example because \
    the machine stalls at times, MLRsearch replaces bisection and prints its bounds. A device with \
    a queue forwards more than its rate for a short time: `-D 10` finds a rate ten times as \
    precisely as `-D 1`.\n\n\
    Exit status: 0 a rate was found; 1 no rate passed, or the load could not be offered; 2 usage \
    error, or the test could not run; 130 interrupted.")]
pub(crate) struct Args {
    /// Highest rate to test, in bits per second
    #[arg(short, long, value_name = "BITRATE", default_value = "10e9", value_parser = value::rate)]
    bitrate: Rate,
    /// Duration of each trial, in seconds
    #[arg(short = 'D', long, value_name = "SECONDS", default_value = "1", value_parser = value::seconds)]
    duration: Duration,
    /// Step size of the search, in bits per second
    #[arg(short, long, value_name = "PRECISION", default_value = "0.001e9", value_parser = value::rate)]
    precision: Rate,
    /// Number of retries at a rate that fails
    #[arg(short, long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(..=100))]
    retry_count: u32,
    /// Command to run in a shell after each trial: the rate passes if the command succeeds,
    /// regardless of losses
    #[arg(short, long, value_name = "COMMAND")]
    exec: Option<String>,
    /// Search algorithm [default: auto, or bisect with --exec]
    #[arg(
        short,
        long,
        value_name = "NAME",
        default_value = "auto",
        hide_default_value = true
    )]
    algorithm: Algorithm,
    /// With mlr: loss ratio of the partial drop rate
    #[arg(long, value_name = "RATIO", default_value = "0.005", value_parser = value::share)]
    pdr: f64,
    /// With mlr: largest distance between the bounds, relative to the upper bound
    #[arg(long, value_name = "RATIO", default_value = "0.005", value_parser = value::share)]
    width: f64,
    /// Write each trial to this file as CSV, as soon as it ends
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    #[command(flatten)]
    setup: Setup,
}

/// A search algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Algorithm {
    /// Bisection, replaced by MLRsearch if trials contradict each other
    Auto,
    /// Bisection: the no-drop rate
    Bisect,
    /// MLRsearch (RFC 9971): no-drop rate and partial drop rate, each with lower and upper bounds
    Mlr,
}

/// Searches and reports.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.precision > args.bitrate {
        bail!("--precision: found more than --bitrate, expected less");
    }
    match args.algorithm {
        Algorithm::Auto | Algorithm::Bisect => bisect(args),
        Algorithm::Mlr if args.exec.is_some() => {
            bail!("--exec cannot be used with --algorithm mlr, which needs loss ratios")
        }
        Algorithm::Mlr => {
            let mut search = mlr(args, HALF)?;
            let mut bench = bench(args, MLR_TRIALS_EXPECTED)?;
            run_mlr(&mut bench, &mut search, "requested by --algorithm mlr")
        }
    }
}

fn bench(args: &Args, expected: u64) -> anyhow::Result<Bench> {
    let table = args.csv.as_deref();
    let table = table.map(|path| Table::create(path, report::CSV_HEADER, report::csv));
    let table = table.transpose()?;
    Bench::new("find-limit", &args.setup, args.bitrate, 0, expected, table)
}

fn bisect(args: &Args) -> anyhow::Result<ExitCode> {
    let mut search = Bisection::new(args.bitrate, args.precision, args.retry_count);
    let mut bench = bench(args, search.rates_expected().into())?;
    let is_auto = args.algorithm == Algorithm::Auto && args.exec.is_none();
    let mut consistency = Consistency::default();
    while let Some(rate) = search.next_rate() {
        let trial = bench.trial(&Load::new(rate, args.duration))?;
        let lossless = trial.is_lossless();
        consistency.record(rate, trial.forwarded(), lossless);
        let passed = match &args.exec {
            Some(command) => succeeds(command)?,
            None => lossless,
        };
        bench.say(&report::verdict(search.record(passed)))?;
        if let (true, Some(doubt)) = (is_auto, consistency.doubt(search.limit())) {
            return in_doubt(args, &mut bench, &doubt);
        }
    }
    let limit = search.limit();
    if let (true, Some(rate)) = (is_auto, consistency.probe(limit, args.bitrate)) {
        let trial = bench.trial(&Load::new(rate, args.duration))?;
        consistency.record(rate, trial.forwarded(), trial.is_lossless());
        if let Some(doubt) = consistency.doubt(limit) {
            return in_doubt(args, &mut bench, &doubt);
        }
    }
    let why = match args.algorithm {
        Algorithm::Auto if args.exec.is_some() => "--exec decides",
        Algorithm::Auto => "no trial contradicts another",
        _ => "requested by --algorithm bisect",
    };
    if !args.setup.json {
        // Not in the report, which is that of `snabb loadtest`.
        let failed = limit.failed.map_or("not found".into(), |failed| {
            format!("{:.6} Gbps", failed.gbps())
        });
        terminal::say(&format!(
            "tare: search by bisection ({why}): passed {:.6} Gbps, failed {failed}",
            limit.passed.gbps()
        ));
    }
    bench.say(&report::figure(limit.passed))?;
    bench.finish(json!({"algorithm": "bisect", "why": why, "limit": limit}))?;
    Ok(status(limit.passed.bits() > 0))
}

/// Searches again, in a way that trials which contradict each other do not mislead.
fn in_doubt(args: &Args, bench: &mut Bench, doubt: &Doubt) -> anyhow::Result<ExitCode> {
    bench.say(&format!("Searching with MLRsearch: {doubt}."))?;
    let mut search = mlr(args, NOISY)?;
    run_mlr(bench, &mut search, &doubt.to_string())
}

/// The share of the time that trials may lose more than a goal allows, and the full-length trials
/// that decide a load.
struct Exceed(f64, u32);

/// The middle of what comes out.
const HALF: Exceed = Exceed(0.5, 3);
/// For a machine whose stalls spoil most trials: the result of one trial of four.
const NOISY: Exceed = Exceed(0.75, 8);

fn mlr(args: &Args, Exceed(ratio, trials): Exceed) -> anyhow::Result<Search> {
    let goal = |name, loss_ratio| Goal {
        exceed_ratio: ratio,
        duration_sum: trials * args.duration,
        ..Goal::new(name, loss_ratio, args.duration, args.width)
    };
    let goals = vec![goal("NDR", 0.0), goal("PDR", args.pdr)];
    let min = Rate::from_bits((args.bitrate.bits() / MLR_MIN).max(1));
    if min >= args.bitrate {
        bail!(
            "--bitrate: found {}, expected at least 2 bits per second",
            args.bitrate.bits()
        );
    }
    Ok(Search::new(goals, min, args.bitrate, MLR_TRIALS_MAX))
}

fn run_mlr(bench: &mut Bench, search: &mut Search, why: &str) -> anyhow::Result<ExitCode> {
    while let Some(input) = search.next_trial() {
        let loss_ratio = bench
            .trial(&Load::new(input.load, input.duration))?
            .loss_ratio();
        search.record(loss_ratio);
    }
    let results = search.results();
    for result in &results {
        bench.say(&goal_line(result))?;
    }
    let ndr = results[0].lower.unwrap_or_default();
    bench.say(&report::figure(ndr))?;
    bench.finish(json!({"algorithm": "mlr", "why": why, "goals": results}))?;
    Ok(status(ndr.bits() > 0))
}

fn goal_line(result: &GoalResult) -> String {
    let rate =
        |rate: Option<Rate>| rate.map_or("none".into(), |rate| format!("{:.6}", rate.gbps()));
    let irregular = match (result.regular, result.lower, result.upper) {
        (true, ..) => "",
        (_, None, _) => " (irregular: every load lost too much)",
        (_, _, None) => " (irregular: the highest rate tested passed)",
        _ => " (irregular: the bounds are further apart than requested)",
    };
    format!(
        "{}: lower bound {} Gbps, upper bound {} Gbps, conditional throughput {} Gbps{irregular}",
        result.goal.name,
        rate(result.lower),
        rate(result.upper),
        rate(result.conditional_throughput)
    )
}

fn status(found: bool) -> ExitCode {
    if found {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(FAILED)
    }
}

fn succeeds(command: &str) -> anyhow::Result<bool> {
    // Its output is not part of the report.
    let status = Command::new("sh")
        .args(["-c", command])
        .stdout(std::io::stderr())
        .status()
        .with_context(|| format!("--exec: sh -c {command:?}"))?;
    Ok(status.success())
}
