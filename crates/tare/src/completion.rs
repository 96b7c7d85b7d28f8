//! Shell completion: experiments, drivers, runs and options.
//!
//! The script of `tare completions` runs this command at every TAB, so that it offers the
//! experiments of the installed command and the runs that exist.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use clap::ValueEnum;
use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter as _,
};
use clap_complete::env::{Bash, CompleteEnv, EnvCompleter, Fish, Zsh};

use crate::{catalog, systems, terminal};

/// The variable that the script sets when it runs this command; its value is the shell.
const VARIABLE: &str = "TARE_COMPLETE";

/// A shell whose completion is known to work.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Shell {
    /// Bash
    Bash,
    /// Zsh
    Zsh,
    /// Fish
    Fish,
}

/// Prints the script that makes a shell run this command for completion.
pub(crate) fn script(shell: Shell) -> anyhow::Result<ExitCode> {
    let shell: &dyn EnvCompleter = match shell {
        Shell::Bash => &Bash,
        Shell::Zsh => &Zsh,
        Shell::Fish => &Fish,
    };
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, "tare", "tare", "tare", &mut script)?;
    terminal::print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the candidates for the command line of `command` and ends the process if a completion
/// script runs it; else returns.
pub(crate) fn answer(command: fn() -> clap::Command) {
    CompleteEnv::with_factory(command).var(VARIABLE).complete();
}

/// Completes an experiment: an id, a suite or a file.
pub(crate) fn experiments() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let names = catalog::names().into_iter();
        let named =
            names.map(|(name, about)| CompletionCandidate::new(name).help(Some(about.into())));
        let files = PathCompleter::file().filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "toml")
        });
        beginning_with(typed, named.collect(), &files)
    })
}

/// Completes one of these names.
pub(crate) fn one_of(names: &'static [&'static str]) -> ArgValueCompleter {
    ArgValueCompleter::new(move |typed: &OsStr| {
        let typed = typed.as_encoded_bytes();
        let fitting = names
            .iter()
            .filter(|name| name.as_bytes().starts_with(typed));
        fitting.map(CompletionCandidate::new).collect()
    })
}

/// Completes the name of a driver.
pub(crate) fn drivers() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let typed = typed.as_encoded_bytes();
        let names = systems::names().into_iter();
        let fitting = names.filter(|(name, _)| name.as_bytes().starts_with(typed));
        let candidate = |(name, about): (String, String)| {
            CompletionCandidate::new(name).help(Some(about.into()))
        };
        fitting.map(candidate).collect()
    })
}

/// Completes a run's directory: one of those in `tare-runs`, the latest first, or any other.
pub(crate) fn runs() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let entries = fs::read_dir("tare-runs").into_iter().flatten().flatten();
        let mut runs: Vec<_> = entries
            .map(|entry| Path::new("tare-runs").join(entry.file_name()))
            .filter(|run| run.join("run.json").is_file())
            .collect();
        runs.sort();
        let runs = runs.iter().rev().map(CompletionCandidate::new);
        beginning_with(typed, runs.collect(), &PathCompleter::dir())
    })
}

/// The candidates and paths that begin with what is typed.
fn beginning_with(
    typed: &OsStr,
    mut candidates: Vec<CompletionCandidate>,
    paths: &PathCompleter,
) -> Vec<CompletionCandidate> {
    let typed_bytes = typed.as_encoded_bytes();
    candidates.retain(|one| {
        let value = one.get_value().as_encoded_bytes();
        value.starts_with(typed_bytes)
    });
    candidates.extend(paths.complete(typed));
    candidates
}
