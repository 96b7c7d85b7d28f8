//! The command line: what can be said, and nothing of how it is done.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tare_lab::file::Size;
use tare_lab::plan::ROUNDS_MAX;
use tare_lab::unit::{Quantity, Unit};

use crate::{gateway, loadtest, rng};

/// What isolation, encryption and distance cost your I/O, measured on this machine.
#[derive(Parser)]
#[command(
    name = "tare",
    version,
    about,
    after_help = "Examples:\n  \
        tare run                     a tour of at most 60 s: some published claims, judged here\n  \
        tare run all                 every experiment at quick size\n  \
        tare run rdrand --full       one suite at the published size\n  \
        tare show rdrand/size        what an experiment measures and claims\n  \
        tare doctor                  what this machine can test, and what is missing\n  \
        tare rng gen -n 16 | xxd     sixteen hardware random bytes\n\n\
        Exit status: 0 done, whatever the verdicts; 1 a test failed, or with --strict a claim was not\n\
        reproduced or a target missed; 2 wrong usage, it could not run, or nothing was measured."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run experiments and judge their claims
    Run(Run),
    /// List the experiments
    List(Json),
    /// Show one experiment: its matrix, metrics, published values and claims
    Show(Show),
    /// Say what this machine can test, what is missing, and the command that gets it
    Doctor(Json),
    /// Judge a run again and write its report
    Report(Report),
    /// Write a run's figures in another format
    Export(Export),
    /// Hardware random numbers: write, measure or test them
    #[command(subcommand)]
    Rng(rng::Command),
    /// An IPsec gateway: run it, measure it, make configurations and keys for it
    #[command(subcommand)]
    Gateway(gateway::Command),
    /// Packets sent into a network: the rate without loss, patterns, the benchmarks of RFC 2544
    #[command(subcommand)]
    Loadtest(loadtest::Command),
    /// Print a shell's completion script
    Completions(Completions),
    /// Write the manual pages
    Man(Man),
    /// One trial, in the process that a run starts for it
    #[command(hide = true)]
    Trial(Trial),
}

#[derive(Args)]
#[command(after_help = "Examples:\n  \
    tare run                         a tour: some published claims, at most 60 s\n  \
    tare run all                     every experiment\n  \
    tare run rdrand/size rdrand/width\n  \
    tare run my-experiment.toml --budget \"2 min\"\n  \
    tare run --resume tare-runs/20260101T120000Z\n\n\
    An experiment runs rounds until its claims and targets are decided: at least as many as its file\n\
    says (most need 10), at most as many as its file says, and none that would not end within the\n\
    budget. `tare show` says how many.\n\n\
    The claims go to standard output, progress to standard error.\n\n\
    Exit status: 0 done, whatever the verdicts; 1 with --strict: a claim was not reproduced or a\n\
    target missed; 2 wrong usage, it could not run, or nothing was measured; 130 interrupted.")]
pub(crate) struct Run {
    /// Experiments: an id (rdrand/size), a suite (rdrand), a file, or all; the tour if none is named
    #[arg(value_name = "EXPERIMENT")]
    pub(crate) experiments: Vec<String>,
    /// Short trials and thin axes (the default)
    #[arg(long, conflicts_with = "full")]
    pub(crate) quick: bool,
    /// The published size
    #[arg(long)]
    pub(crate) full: bool,
    /// Exactly N rounds of every experiment, decided or not, instead of as many as it needs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(ROUNDS_MAX)))]
    pub(crate) rounds: Option<u32>,
    /// The time that the run may take, such as "90 s" or "10 min": no round begins that would not end in
    /// it [default: 60 s for the tour, 15 % more than its forecast for `all`, otherwise none]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) budget: Option<Duration>,
    /// The seed of every shuffle and interval [default: drawn from the operating system]
    #[arg(long, value_name = "S")]
    pub(crate) seed: Option<u64>,
    /// The run's directory [default: tare-runs/ and the time]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Go on with a run that was stopped
    #[arg(long, value_name = "DIR", conflicts_with_all = ["experiments", "quick", "full", "rounds", "budget", "seed", "out"])]
    pub(crate) resume: Option<PathBuf>,
    /// Exit with 1 if a claim was not reproduced or a target missed
    #[arg(long)]
    pub(crate) strict: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A time on the command line.
fn time(text: &str) -> Result<Duration, String> {
    const EXPECTED: &str = "expected a time with its unit, such as \"90 s\" or \"10 min\"";
    // Minutes are for people: no metric is kept in them.
    let (text, minutes) = match text.trim().strip_suffix("min") {
        Some(number) => (format!("{number} s"), 60.0),
        None => (text.to_owned(), 1.0),
    };
    let quantity: Quantity = text.parse().map_err(|_| EXPECTED)?;
    let seconds = quantity.in_unit(Unit::Seconds).map_err(|_| EXPECTED)?;
    let time = Duration::try_from_secs_f64(seconds * minutes).map_err(|_| EXPECTED)?;
    Ok(time)
}

impl Run {
    pub(crate) fn size(&self) -> Size {
        if self.full {
            Size::Full
        } else {
            Size::Quick
        }
    }
}

#[derive(Args)]
pub(crate) struct Json {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Show {
    /// An experiment's id, a suite, or a file
    pub(crate) experiment: String,
    /// At the published size instead of the quick one
    #[arg(long)]
    pub(crate) full: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
#[command(after_help = "Example:\n  tare report tare-runs/20260101T120000Z")]
pub(crate) struct Report {
    /// The run's directory
    pub(crate) run: PathBuf,
    /// Also show every cell's figures
    #[arg(long)]
    pub(crate) cells: bool,
    /// Exit with 1 if a claim was not reproduced or a target missed
    #[arg(long)]
    pub(crate) strict: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A format of `tare export`.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Format {
    /// The result, as `tare run --json` prints it
    Json,
    /// One line a sample
    Csv,
    /// Tables for a document
    Markdown,
    /// The report
    Html,
}

#[derive(Args)]
#[command(
    after_help = "Example:\n  tare export tare-runs/20260101T120000Z --format csv > samples.csv"
)]
pub(crate) struct Export {
    /// The run's directory
    pub(crate) run: PathBuf,
    /// The format
    #[arg(long)]
    pub(crate) format: Format,
}

#[derive(Args)]
#[command(after_help = "Example:\n  tare completions bash > /etc/bash_completion.d/tare")]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Args)]
#[command(after_help = "Example:\n  tare man --out /usr/local/share/man/man1")]
pub(crate) struct Man {
    /// The folder for tare.1 and a page for each subcommand
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
}

#[derive(Args)]
pub(crate) struct Trial {
    /// The driver
    pub(crate) driver: String,
    /// The cell's parameters, as a JSON object
    pub(crate) parameters: String,
}
