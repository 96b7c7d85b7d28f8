//! `tare guest`: guests under QEMU.

mod boot;
pub(crate) mod breakdown;
pub(crate) mod cost;
pub(super) mod driver;
mod generate;
pub(crate) mod hosts;
mod legs;
pub(crate) mod syscalls;

use std::process::ExitCode;

use clap::Subcommand;

/// The subcommands of `tare guest`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Boot a guest from this machine's kernel and programs, and run a shell or command in it
    Boot(boot::Args),
    /// Measure where a server in a guest spends its time
    Breakdown(breakdown::command::Args),
}

/// Runs the command.
///
/// # Errors
/// The reason why it could not be done, in words. A closed pipe behind standard output is passed on
/// as the `io::Error` that it is.
pub(crate) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    tare_lab::leftovers::clear();
    breakdown::clear();
    match command {
        Command::Boot(args) => boot::run(args),
        Command::Breakdown(args) => breakdown::command::run(args),
    }
}

/// Serves the host, as the first process of a guest.
///
/// # Errors
/// This process is none, or the guest is not as it should be.
pub(crate) fn agent() -> anyhow::Result<ExitCode> {
    tare_guest::agent::run()?;
    Ok(ExitCode::SUCCESS)
}
