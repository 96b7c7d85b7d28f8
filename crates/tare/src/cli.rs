//! The command line: arguments and help, without what the subcommands do.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tare_lab::experiment::ROUNDS_MAX;
use tare_lab::file::Size;
use tare_lab::unit::{Quantity, Unit};

use crate::{completion, cvm, gateway, guest, import, load, loadtest, memory, rng};

/// Measure what isolation, encryption and distance cost your I/O
#[derive(Parser)]
#[command(
    name = "tare",
    version,
    after_help = "Examples:\n  \
        tare run                     the tour: some published claims, in at most 60 s\n  \
        tare run all                 every experiment at quick size\n  \
        tare run rdrand --full       one suite at its published size\n  \
        tare show rdrand/size        what an experiment measures and claims\n  \
        tare doctor                  what this machine can test, and what is missing\n  \
        tare rng gen -n 16 | xxd     16 random bytes from the hardware\n\n\
        Exit status: 0 completed, whatever the verdicts; 1 a test failed, or with --strict a claim \
        was not reproduced or a target was missed; 2 usage error, the command could not run, or no \
        trial gave a value."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run experiments and judge their claims
    Run(Run),
    /// Compare the run times of programs, in paired rounds until the result is decided
    Compare(Compare),
    /// List the experiments
    List(Json),
    /// Show one experiment: its matrix, metrics, published values and claims
    Show(Show),
    /// List the drivers, or describe one: parameters, metrics, counters, references, roles
    Explain(Explain),
    /// Report what this machine can test, what is missing, and how to provide it
    Doctor(Doctor),
    /// Judge a run again and write its report
    Report(Report),
    /// Write a run's figures in another format
    Export(Export),
    /// Compare two runs: verdicts, figures and machine
    Diff(Diff),
    /// Read the output of other benchmarks: figures, and the errors found in them
    Import(import::Args),
    /// Hardware random numbers: generate, measure or test them
    #[command(subcommand)]
    Rng(rng::Command),
    /// IPsec gateway: run or measure it, generate configurations and keys for it
    #[command(subcommand)]
    Gateway(gateway::Command),
    /// Packet load on a network: rate without loss, traffic patterns, RFC 2544 benchmarks
    #[command(subcommand)]
    Loadtest(loadtest::Command),
    /// Request load on a server: HTTP, memcached, RESP, TLS; response rate and latency
    #[command(subcommand)]
    Load(load::Command),
    /// Remote memory: run a node that serves memory, measure the cost of its operations
    #[command(subcommand)]
    Memory(memory::Command),
    /// Confidential VM networking: a guest that serves through untrusted shared memory
    #[command(subcommand)]
    Cvm(cvm::Command),
    /// QEMU guests: run a shell or a command in a virtual machine, confidential or not
    #[command(subcommand)]
    Guest(guest::Command),
    /// Print the completion script of a shell
    Completions(Completions),
    /// Write the manual pages
    Man(Man),
    /// One trial, in the process that a run starts for it
    #[command(hide = true)]
    Trial(Trial),
    /// The first process of a guest
    #[command(hide = true)]
    GuestAgent,
    /// The probes in a guest's kernel, until standard input ends
    #[command(hide = true)]
    GuestProbes,
    /// One copy of UnixBench's system calls
    #[command(hide = true)]
    GuestSyscalls {
        /// The time in milliseconds
        #[arg(value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
        milliseconds: u64,
    },
}

#[derive(Args)]
#[command(after_help = "Examples:\n  \
    tare run                         the tour: some published claims, in at most 60 s\n  \
    tare run all                     every experiment\n  \
    tare run rdrand/size rdrand/width\n  \
    tare run my-experiment.toml --budget \"2 min\"\n  \
    tare run --resume tare-runs/20260101T120000Z\n\n\
    An experiment runs rounds until its claims and targets are decided. Its file specifies the \
    minimum (10 for most experiments) and the maximum number of rounds; `tare show` prints both. \
    After the first round, another one starts only if it is expected to end within the budget, and \
    from the fourth round on only if that leaves enough for 20 rounds of experiments that need less \
    time.\n\n\
    Claims are printed to standard output, progress to standard error.\n\n\
    Exit status: 0 completed, whatever the verdicts; 1 with --strict: a claim was not reproduced \
    or a target was missed; 2 usage error, the experiments could not run, or no trial gave a \
    value; 130 interrupted.")]
pub(crate) struct Run {
    /// Experiments to run: an id (rdrand/size), a suite (rdrand), a file, or all; without one, the
    /// tour
    #[arg(value_name = "EXPERIMENT", add = completion::experiments())]
    pub(crate) experiments: Vec<String>,
    /// Short trials and fewer values per axis (the default)
    #[arg(long, conflicts_with = "full")]
    pub(crate) quick: bool,
    /// Run at the published size
    #[arg(long)]
    pub(crate) full: bool,
    /// Run exactly N rounds of every experiment, decided or not, instead of as many as needed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(ROUNDS_MAX)))]
    pub(crate) rounds: Option<u32>,
    /// Time limit of the run, such as "90 s" or "10 min": the first round always runs, and another
    /// round starts only if it is expected to end within the limit [default: 60 s for the tour; 15
    /// % more than the forecast for suites and `all`; otherwise none]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) budget: Option<Duration>,
    /// Seed of every shuffle [default: drawn by the operating system]
    #[arg(long, value_name = "S")]
    pub(crate) seed: Option<u64>,
    /// Directory of the run [default: tare-runs/ followed by the start time]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Resume a run that was stopped
    #[arg(long, value_name = "DIR", add = completion::runs(), conflicts_with_all = ["experiments", "quick", "full", "rounds", "budget", "seed", "out"])]
    pub(crate) resume: Option<PathBuf>,
    /// Exit with status 1 if a claim was not reproduced or a target was missed
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
#[command(after_help = "Examples:\n  \
    tare compare 'gzip -1 -c file' 'gzip -6 -c file'\n  \
    tare compare --shell 'sort file | uniq -c' 'sort -S 50% file | uniq -c' --budget \"2 min\"\n  \
    tare compare './old {input}' './new {input}' --save mine.toml\n\n\
    Each command after the first is compared with the first. A round runs every command once, in \
    shuffled order. Rounds continue until wall time and processor time are decided, until the next \
    round is not expected to end within the budget, or until the first ten trials of a command have \
    all failed. Without --shell, a command is split into words as a shell would split it, but \
    nothing is expanded.\n\n\
    Exit status: 0 completed, whatever the verdicts; 2 usage error, the comparison could not run, \
    or there is no ratio; 130 interrupted.")]
pub(crate) struct Compare {
    /// Commands to compare, each as a single argument
    #[arg(value_name = "COMMAND", required = true, num_args = 2..)]
    pub(crate) commands: Vec<String>,
    /// Run each command with `sh -c`; each trial then includes the shell's own time
    #[arg(long)]
    pub(crate) shell: bool,
    /// Command to run before each trial, not measured
    #[arg(long, value_name = "COMMAND")]
    pub(crate) prepare: Option<String>,
    /// Command to run after each trial, not measured
    #[arg(long, value_name = "COMMAND")]
    pub(crate) cleanup: Option<String>,
    /// Time after which a trial is killed and counted against every verdict
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "60 s")]
    pub(crate) limit: Duration,
    /// Time limit of the comparison; the first round always runs
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "30 s")]
    pub(crate) budget: Duration,
    /// Run exactly N rounds, decided or not, instead of stopping when the result is decided or the
    /// budget is used up
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(ROUNDS_MAX)))]
    pub(crate) rounds: Option<u32>,
    /// Seed of every shuffle [default: drawn by the operating system]
    #[arg(long, value_name = "S")]
    pub(crate) seed: Option<u64>,
    /// Keep the run's files in this directory
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub(crate) out: Option<PathBuf>,
    /// Write the comparison to an experiment file for `tare run`
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(crate) save: Option<PathBuf>,
    /// Print the verdicts and the complete result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Json {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
#[command(after_help = "Examples:\n  \
    tare doctor\n  \
    tare doctor my-experiment.toml    what the cells of this file require")]
pub(crate) struct Doctor {
    /// Experiments to check: an id, a suite or a file; without one, all embedded ones, random
    /// numbers, guests and programs
    #[arg(value_name = "EXPERIMENT", add = completion::experiments())]
    pub(crate) experiments: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Show {
    /// Experiment id, suite or file
    #[arg(add = completion::experiments())]
    pub(crate) experiment: String,
    /// Show the published size instead of the quick one
    #[arg(long)]
    pub(crate) full: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
#[command(after_help = "Examples:\n  \
    tare explain             the drivers that an experiment can name\n  \
    tare explain rdrand      the parameters, metrics and counters of one driver")]
pub(crate) struct Explain {
    /// Driver to describe
    #[arg(add = completion::drivers())]
    pub(crate) driver: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
#[command(after_help = "Example:\n  tare report tare-runs/20260101T120000Z")]
pub(crate) struct Report {
    /// Directory of the run
    #[arg(add = completion::runs())]
    pub(crate) run: PathBuf,
    /// Also show the figures of every cell
    #[arg(long)]
    pub(crate) cells: bool,
    /// Exit with status 1 if a claim was not reproduced or a target was missed
    #[arg(long)]
    pub(crate) strict: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A format of `tare export`.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Format {
    /// The result, as printed by `tare run --json`
    Json,
    /// One line per sample
    Csv,
    /// One line per claim and target, with verdict, interval and threshold
    ClaimsCsv,
    /// Markdown tables
    Markdown,
    /// The report as an HTML page
    Html,
}

#[derive(Args)]
#[command(
    after_help = "Example:\n  tare export tare-runs/20260101T120000Z --format csv > samples.csv"
)]
pub(crate) struct Export {
    /// Directory of the run
    #[arg(add = completion::runs())]
    pub(crate) run: PathBuf,
    /// Output format
    #[arg(long)]
    pub(crate) format: Format,
}

#[derive(Args)]
#[command(
    after_help = "Example:\n  tare diff tare-runs/20260101T120000Z tare-runs/20260102T120000Z"
)]
pub(crate) struct Diff {
    /// Directory of the first run
    #[arg(value_name = "RUN", value_hint = clap::ValueHint::DirPath)]
    pub(crate) before: PathBuf,
    /// Directory of the second run
    #[arg(value_name = "RUN", value_hint = clap::ValueHint::DirPath)]
    pub(crate) after: PathBuf,
    /// Show every cell, including those whose intervals overlap
    #[arg(long)]
    pub(crate) all: bool,
    /// Print the differences as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
#[command(
    after_help = "Add one of these lines to the shell's start-up file:\n  \
    source <(tare completions bash)      ~/.bashrc\n  \
    source <(tare completions zsh)       ~/.zshrc, after compinit\n  \
    tare completions fish | source       ~/.config/fish/config.fish\n\n\
    The script calls `tare` for completion candidates: experiments, runs, options."
)]
pub(crate) struct Completions {
    /// Shell that runs the script
    pub(crate) shell: completion::Shell,
}

#[derive(Args)]
#[command(after_help = "Example:\n  tare man --out /usr/local/share/man/man1")]
pub(crate) struct Man {
    /// Output folder for tare.1 and one page per subcommand
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
}

#[derive(Args)]
pub(crate) struct Trial {
    /// The driver
    pub(crate) driver: String,
    /// The cell's parameters, as a JSON object
    pub(crate) parameters: String,
    /// The role to play in a trial of several
    #[arg(long, value_name = "NAME")]
    pub(crate) role: Option<String>,
}

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory as _};

    use super::Cli;

    fn every(command: Command, all: &mut Vec<Command>) {
        for inner in command.get_subcommands() {
            every(inner.clone(), all);
        }
        all.push(command);
    }

    #[test]
    fn help_shows_several_default_values_in_the_form_that_is_accepted() {
        let mut all = Vec::new();
        every(Cli::command(), &mut all);
        let mut found = 0;
        for command in &all {
            for argument in command.get_arguments() {
                let values = argument.get_default_values();
                let values: Vec<&str> = values.iter().filter_map(|value| value.to_str()).collect();
                if values.len() < 2 {
                    continue;
                }
                found += 1;
                let shown = format!("[default: {}]", values.join(","));
                let help = argument.get_help().map(ToString::to_string);
                let help = help.unwrap_or_default();
                let place = format!("{} {}: {help}", command.get_name(), argument.get_id());
                assert!(help.contains(&shown), "{place}");
                assert!(argument.is_hide_default_value_set(), "{place}");
                assert_eq!(argument.get_value_delimiter(), Some(','), "{place}");
            }
        }
        assert!(found >= 4, "{found}");
    }

    #[test]
    fn help_of_what_measures_ends_with_its_exit_status() {
        for path in [
            &["run"][..],
            &["compare"],
            &["load", "http"],
            &["load", "memcached"],
            &["load", "resp"],
            &["load", "tls"],
            &["gateway", "bench"],
            &["memory", "bench"],
        ] {
            let mut command = Cli::command();
            for name in path {
                command = command.find_subcommand(name).unwrap().clone();
            }
            let help = command.get_after_help().map(ToString::to_string);
            let help = help.unwrap_or_default();
            let last = help.rsplit("\n\n").next().unwrap_or_default();
            assert!(last.starts_with("Exit status: 0 "), "{path:?}: {help}");
        }
    }
}
