//! `tare`: what isolation, encryption and distance cost your I/O.

mod catalog;
mod cli;
mod compare;
mod completion;
mod daemon;
mod diff;
mod doctor;
mod explain;
mod forecast;
mod pace;
mod program;
mod progress;
mod references;
mod report;
mod run;
mod systems;
mod terminal;
mod tour;
mod trial;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use cli::{Cli, Command};
use systems::{gateway, loadtest, rng};

/// Wrong usage, or it could not run.
const COULD_NOT_RUN: u8 = 2;

fn main() -> ExitCode {
    // A shell asks what can stand at its cursor; this ends the process then.
    completion::answer();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    match dispatch(cli) {
        Ok(code) => code,
        Err(error) if terminal::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::say(&format!("tare: {error:#}"));
            ExitCode::from(COULD_NOT_RUN)
        }
    }
}

/// Help and version as clap prints them; a mistake as one line.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        error.exit();
    }
    let text = error.render().to_string();
    let said: Vec<&str> = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"))
        .filter(|line| !line.is_empty())
        .collect();
    let said = said.join(" ");
    terminal::say(&format!(
        "tare: {} (see --help)",
        said.strip_prefix("error: ").unwrap_or(&said)
    ));
    ExitCode::from(COULD_NOT_RUN)
}

fn dispatch(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Compare(arguments) => compare::compare(&arguments),
        Command::List(arguments) => explain::list(arguments.json),
        Command::Show(arguments) => explain::show(&arguments),
        Command::Doctor(arguments) => doctor::doctor(&arguments),
        Command::Report(arguments) => report::report(&arguments),
        Command::Export(arguments) => report::export(&arguments),
        Command::Diff(arguments) => diff::diff(&arguments),
        Command::Rng(command) => rng::run(&command),
        Command::Gateway(command) => gateway::run(&command),
        Command::Loadtest(command) => loadtest::run(&command),
        Command::Completions(arguments) => completion::script(arguments.shell),
        Command::Man(arguments) => {
            std::fs::create_dir_all(&arguments.out)?;
            clap_mangen::generate_to(Cli::command(), &arguments.out)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Trial(arguments) => trial::trial(&arguments),
    }
}
