//! `tare loadtest transient`: a traffic pattern, and the packets that arrive.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use serde_json::json;
use tare_loadtest::transient::Program;
use tare_loadtest::{report, Load, Rate};

use super::bench::{Bench, Table};
use super::setup::Setup;
use super::value;

/// The most trials of a pattern.
const TRIALS_MAX: u64 = 100_000;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tare loadtest transient --simulate -b 1e9 -D 0.1\n  \
    tare loadtest transient -D 1 -b 5e9 -s 0.2e9 --csv ramp.csv \\\n    \
        in1.pcap \"NIC 0\" \"NIC 1\" 01:00.0 in2.pcap \"NIC 1\" \"NIC 0\" 01:00.1\n\n\
    Between two steps, the tester waits for the packets in flight, so that each step counts only \
    its own packets.\n\n\
    Exit status: 0 completed, whatever was lost; 1 the load could not be offered; 2 usage error, \
    or the test could not run; 130 interrupted.")]
pub(crate) struct Args {
    /// Peak rate, in bits per second
    #[arg(short, long, value_name = "BITRATE", default_value = "10e9", value_parser = value::rate)]
    bitrate: Rate,
    /// Step size, in bits per second [default: a tenth of the peak]
    #[arg(short, long, value_name = "STEP", value_parser = value::rate)]
    step: Option<Rate>,
    /// Duration of each step, in seconds
    #[arg(short = 'D', long, value_name = "SECONDS", default_value = "5", value_parser = value::seconds)]
    duration: Duration,
    /// Traffic pattern
    #[arg(short, long, value_name = "PROGRAM", default_value = "ramp_up_down")]
    program: Name,
    /// Rates of the pattern `steps`, in bits per second, such as 0.1e9,0.5e9,1e9
    #[arg(long, value_name = "RATES", value_delimiter = ',', value_parser = value::rate, required_if_eq("program", "steps"))]
    rates: Vec<Rate>,
    /// Number of steps of the pattern `constant`
    #[arg(long, value_name = "TIMES", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    count: u32,
    /// Write each step to this file as CSV, as soon as it ends
    #[arg(long, visible_alias = "bench-file", value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write one figure per line to the file: benchmark,id,score,unit
    #[arg(short = 'y', long, requires = "csv")]
    hydra: bool,
    #[command(flatten)]
    setup: Setup,
}

/// A pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
enum Name {
    /// Rise from one step to the peak
    RampUp,
    /// Fall from the peak to one step
    RampDown,
    /// Rise, then fall
    RampUpDown,
    /// The peak rate throughout
    Constant,
    /// The rates of --rates
    Steps,
}

/// Offers the pattern and reports.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let step = args
        .step
        .unwrap_or(Rate::from_bits(args.bitrate.bits().div_ceil(10)));
    if args.bitrate.bits().div_ceil(step.bits()) > TRIALS_MAX {
        bail!("--step: found more than {TRIALS_MAX} steps up to --bitrate, expected fewer");
    }
    let program = match args.program {
        Name::RampUp => Program::RampUp,
        Name::RampDown => Program::RampDown,
        Name::RampUpDown => Program::RampUpDown,
        Name::Constant => Program::Constant(args.count),
        Name::Steps => Program::Steps(args.rates.clone()),
    };
    let rates = program.rates(args.bitrate, step);
    let table = args.csv.as_deref().map(|path| match args.hydra {
        true => Table::create(path, report::HYDRA_HEADER, report::hydra),
        false => Table::create(path, report::CSV_HEADER, report::csv),
    });
    let table = table.transpose()?;
    let peak = rates.iter().copied().max().unwrap_or(args.bitrate);
    let expected = rates.len() as u64;
    let mut bench = Bench::new("transient", &args.setup, peak, 0, expected, table)?;
    for rate in rates {
        bench.trial(&Load::new(rate, args.duration))?;
    }
    bench.finish(json!({}))?;
    Ok(ExitCode::SUCCESS)
}
