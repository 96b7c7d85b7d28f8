//! `tare cvm`: the network path of a confidential VM.

mod address;
pub(super) mod breakdown;
mod client;
pub(super) mod driver;
mod nginx;
pub(super) mod race;
mod serve;
mod session;
mod status;
pub(super) mod wrk;

use std::process::ExitCode;

use clap::Subcommand;

/// The subcommands of `tare cvm`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Serve clients from a guest that shares only an untrusted memory region with its host
    Serve(serve::Args),
    /// Count the cycles of a guest by category, for each variant
    Breakdown(breakdown::Args),
    /// Show the state of a running guest and its host
    Status(status::Args),
    /// The guest's process: started by `serve`
    #[command(hide = true)]
    Guest(serve::Args),
}

/// Runs the command.
///
/// # Errors
/// The reason why it could not be done, in words. A closed pipe behind standard output is passed on
/// as the `io::Error` that it is.
pub(crate) fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Serve(args) => serve::host(&args),
        Command::Breakdown(args) => breakdown::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Guest(args) => serve::guest(&args),
    }
}
