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
    about,
    after_help = "Examples:\n  \
        tare run                     a tour of at most 60 s: some published claims, judged here\n  \
        tare run all                 every experiment at quick size\n  \
        tare run rdrand --full       one suite at the published size\n  \
        tare show rdrand/size        what an experiment measures and claims\n  \
        tare doctor                  what this machine can test, and what is missing\n  \
        tare rng gen -n 16 | xxd     sixteen hardware random bytes\n\n\
        Exit status: 0 done, whatever the verdicts; 1 a test failed, or with --strict a claim was not\n\
        reproduced or a target missed; 2 wrong usage, it could not run, or no trial gave a value."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run experiments and judge their claims
    Run(Run),
    /// Compare the time of programs in paired rounds, until it is decided which needs less
    Compare(Compare),
    /// List the experiments
    List(Json),
    /// Show one experiment: its matrix, metrics, published values and claims
    Show(Show),
    /// List the drivers, or explain one: its parameters, metrics, counters, references and roles
    Explain(Explain),
    /// Say what this machine can test, what is missing, and the command that gets it
    Doctor(Doctor),
    /// Judge a run again and write its report
    Report(Report),
    /// Write a run's figures in another format
    Export(Export),
    /// Compare two runs: verdicts, figures and machine
    Diff(Diff),
    /// Read what other benchmarks printed: their figures, and what is wrong with them
    Import(import::Args),
    /// Hardware random numbers: write, measure or test them
    #[command(subcommand)]
    Rng(rng::Command),
    /// An IPsec gateway: run it, measure it, make configurations and keys for it
    #[command(subcommand)]
    Gateway(gateway::Command),
    /// Packets sent into a network: the rate without loss, patterns, the benchmarks of RFC 2544
    #[command(subcommand)]
    Loadtest(loadtest::Command),
    /// Requests sent to a server: HTTP, memcached, RESP; rate and latencies of its responses
    #[command(subcommand)]
    Load(load::Command),
    /// Remote memory: a node that serves it, and what its operations cost
    #[command(subcommand)]
    Memory(memory::Command),
    /// The network path of a confidential VM: a guest that serves over an untrusted region
    #[command(subcommand)]
    Cvm(cvm::Command),
    /// Guests under QEMU: a shell or a command in a virtual machine, also a confidential one
    #[command(subcommand)]
    Guest(guest::Command),
    /// Print a shell's completion script
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
    tare run                         a tour: some published claims, at most 60 s\n  \
    tare run all                     every experiment\n  \
    tare run rdrand/size rdrand/width\n  \
    tare run my-experiment.toml --budget \"2 min\"\n  \
    tare run --resume tare-runs/20260101T120000Z\n\n\
    An experiment runs rounds until its claims and targets are decided: at least as many as its file\n\
    says (most need 10), at most as many as its file says, and after the first none that would not\n\
    end within the budget. `tare show` says how many.\n\n\
    The claims go to standard output, progress to standard error.\n\n\
    Exit status: 0 done, whatever the verdicts; 1 with --strict: a claim was not reproduced or a\n\
    target missed; 2 wrong usage, it could not run, or no trial gave a value; 130 interrupted.")]
pub(crate) struct Run {
    /// Experiments: an id (rdrand/size), a suite (rdrand), a file, or all; the tour if none is
    /// named
    #[arg(value_name = "EXPERIMENT", add = completion::experiments())]
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
    /// The time that the run may take, such as "90 s" or "10 min": after the first round, which
    /// always runs, no round begins that would not end in it [default: 60 s for the tour, 15 %
    /// more than its forecast for suites and `all`, otherwise none]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) budget: Option<Duration>,
    /// The seed of every shuffle [default: drawn from the operating system]
    #[arg(long, value_name = "S")]
    pub(crate) seed: Option<u64>,
    /// The run's directory [default: tare-runs/ and the time]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Go on with a run that was stopped
    #[arg(long, value_name = "DIR", add = completion::runs(), conflicts_with_all = ["experiments", "quick", "full", "rounds", "budget", "seed", "out"])]
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
#[command(after_help = "Examples:\n  \
    tare compare 'gzip -1 -c file' 'gzip -6 -c file'\n  \
    tare compare --shell 'sort file | uniq -c' 'sort -S 50% file | uniq -c' --budget \"2 min\"\n  \
    tare compare './old {input}' './new {input}' --save mine.toml\n\n\
    Each command after the first is compared with the first, in rounds that run every command once\n\
    in a shuffled order. Rounds go on until wall time and processor time are decided, or the next would\n\
    not end within the budget, or the first ten trials of a command all failed. Without --shell a command\n\
    is split into words as a shell would, and nothing is expanded.\n\n\
    Exit status: 0 done, whatever the verdicts; 2 wrong usage, it could not run, or there is no ratio;\n\
    130 interrupted.")]
pub(crate) struct Compare {
    /// The commands, each one argument
    #[arg(value_name = "COMMAND", required = true, num_args = 2..)]
    pub(crate) commands: Vec<String>,
    /// Run each command with `sh -c`; the time of the shell is then part of each trial
    #[arg(long)]
    pub(crate) shell: bool,
    /// A command to run before each trial, not measured
    #[arg(long, value_name = "COMMAND")]
    pub(crate) prepare: Option<String>,
    /// A command to run after each trial, not measured
    #[arg(long, value_name = "COMMAND")]
    pub(crate) cleanup: Option<String>,
    /// The time after which a trial is killed and counts against every verdict
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "60 s")]
    pub(crate) limit: Duration,
    /// The time that the comparison may take; the first round always runs
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "30 s")]
    pub(crate) budget: Duration,
    /// N rounds, decided or not, instead of rounds until it is decided or the budget is used up
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(ROUNDS_MAX)))]
    pub(crate) rounds: Option<u32>,
    /// The seed of every shuffle [default: drawn from the operating system]
    #[arg(long, value_name = "S")]
    pub(crate) seed: Option<u64>,
    /// Keep the run's files in this directory
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub(crate) out: Option<PathBuf>,
    /// Write the comparison as an experiment file, for `tare run`
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(crate) save: Option<PathBuf>,
    /// Print the verdicts and the whole result as JSON
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
    tare doctor my-experiment.toml    what its cells would need")]
pub(crate) struct Doctor {
    /// Experiments: an id, a suite or a file; every embedded one if none is named
    #[arg(value_name = "EXPERIMENT", add = completion::experiments())]
    pub(crate) experiments: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Show {
    /// An experiment's id, a suite, or a file
    #[arg(add = completion::experiments())]
    pub(crate) experiment: String,
    /// At the published size instead of the quick one
    #[arg(long)]
    pub(crate) full: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
#[command(after_help = "Examples:\n  \
    tare explain             the drivers that experiments can name\n  \
    tare explain rdrand      what an experiment may say to one")]
pub(crate) struct Explain {
    /// A driver
    #[arg(add = completion::drivers())]
    pub(crate) driver: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
#[command(after_help = "Example:\n  tare report tare-runs/20260101T120000Z")]
pub(crate) struct Report {
    /// The run's directory
    #[arg(add = completion::runs())]
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
    /// One line per sample
    Csv,
    /// One line per claim and target, with verdict, interval and threshold
    ClaimsCsv,
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
    #[arg(add = completion::runs())]
    pub(crate) run: PathBuf,
    /// The format
    #[arg(long)]
    pub(crate) format: Format,
}

#[derive(Args)]
#[command(
    after_help = "Example:\n  tare diff tare-runs/20260101T120000Z tare-runs/20260102T120000Z"
)]
pub(crate) struct Diff {
    /// The first run's directory
    #[arg(value_name = "RUN", value_hint = clap::ValueHint::DirPath)]
    pub(crate) before: PathBuf,
    /// The second run's directory
    #[arg(value_name = "RUN", value_hint = clap::ValueHint::DirPath)]
    pub(crate) after: PathBuf,
    /// Show every cell, also where the intervals overlap
    #[arg(long)]
    pub(crate) all: bool,
    /// Print the differences as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
#[command(after_help = "Example:\n  tare completions bash > /etc/bash_completion.d/tare")]
#[command(after_help = "Put one of these into the shell's start-up file:\n  \
    source <(tare completions bash)      ~/.bashrc\n  \
    source <(tare completions zsh)       ~/.zshrc, after compinit\n  \
    tare completions fish | source       ~/.config/fish/config.fish\n\n\
    The script asks the command itself for what can stand at the cursor: experiments, runs, options.")]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: completion::Shell,
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
