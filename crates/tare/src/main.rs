//! `tare`: what isolation, encryption and distance cost your I/O.

mod agent;
mod catalog;
#[cfg(test)]
mod chapter;
mod cli;
mod compare;
mod completion;
mod daemon;
mod describe;
mod diff;
mod doctor;
#[cfg(test)]
mod embedded;
mod explain;
mod forecast;
mod machine;
mod man;
mod pace;
mod program;
mod progress;
mod references;
mod report;
mod run;
mod signals;
mod size;
mod systems;
mod terminal;
mod tour;
mod trial;

use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use cli::{Cli, Command};
use systems::{cvm, gateway, guest, import, load, loadtest, memory, rng};

/// The exit status for wrong usage, and for a command that could not run.
const COULD_NOT_RUN: u8 = 2;

fn main() -> ExitCode {
    // This ends the process if a shell runs it to complete a command line.
    completion::answer(Cli::command);
    let done = match Cli::try_parse() {
        Ok(cli) => dispatch(cli),
        Err(error) if !error.use_stderr() => help(&error),
        Err(error) => return usage(&error),
    };
    match done {
        Ok(code) => code,
        Err(error) if terminal::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::say(&format!("tare: {error:#}"));
            ExitCode::from(COULD_NOT_RUN)
        }
    }
}

/// Prints help and version as clap does, which itself ignores that they cannot be printed.
fn help(help: &clap::Error) -> anyhow::Result<ExitCode> {
    terminal::need_output()?;
    let printed = help.print().and_then(|()| io::stdout().flush());
    printed.context("standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a mistake as one line.
fn usage(error: &clap::Error) -> ExitCode {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        error.exit();
    }
    let text = error.render().to_string();
    let said: Vec<&str> = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"))
        .filter(|line| !line.is_empty())
        .collect();
    let said = in_words(&said.join(" "));
    terminal::say(&format!(
        "tare: {} (see --help)",
        said.strip_prefix("error: ").unwrap_or(&said)
    ));
    ExitCode::from(COULD_NOT_RUN)
}

/// Puts what the standard library says of a value that it cannot parse into words that tell what is
/// expected.
fn in_words(said: &str) -> String {
    [
        ("invalid digit found in string", "expected a whole number"),
        (
            "cannot parse integer from empty string",
            "expected a whole number",
        ),
        (
            "number too large to fit in target type",
            "expected a smaller number",
        ),
        ("invalid float literal", "expected a number"),
        (
            "invalid socket address syntax",
            "expected ADDRESS:PORT, such as 127.0.0.1:9303",
        ),
    ]
    .iter()
    .fold(said.to_string(), |said, (from, to)| said.replace(from, to))
}

fn dispatch(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Compare(arguments) => compare::compare(&arguments),
        Command::List(arguments) => explain::list(arguments.json),
        Command::Show(arguments) => explain::show(&arguments),
        Command::Explain(arguments) => describe::describe(&arguments),
        Command::Doctor(arguments) => doctor::doctor(&arguments),
        Command::Report(arguments) => report::report(&arguments),
        Command::Export(arguments) => report::export(&arguments),
        Command::Diff(arguments) => diff::diff(&arguments),
        Command::Import(arguments) => import::run(&arguments),
        Command::Rng(command) => rng::run(&command),
        Command::Gateway(command) => gateway::run(&command),
        Command::Loadtest(command) => loadtest::run(&command),
        Command::Load(command) => load::run(&command),
        Command::Memory(command) => memory::run(&command),
        Command::Cvm(command) => cvm::run(command),
        Command::Guest(command) => guest::run(&command),
        Command::Completions(arguments) => completion::script(arguments.shell),
        Command::Man(arguments) => {
            man::write(Cli::command(), &arguments.out)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Trial(arguments) => trial::trial(&arguments),
        Command::GuestAgent => guest::agent(),
        Command::GuestProbes => guest::breakdown::probes(),
        Command::GuestSyscalls { milliseconds } => guest::syscalls::copy(milliseconds),
    }
}
