//! `tare gateway`: a user-space IPsec gateway.

mod bench;
pub(crate) mod driver;
mod gentest;
mod handover;
mod keygen;
mod run;
mod status;

use std::process::ExitCode;

use clap::Subcommand;

/// The subcommands of `tare gateway`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run a gateway on this machine's interfaces
    Run(run::Args),
    /// Take over from a running gateway without losing packets or keys
    Handover(handover::Args),
    /// Show the state of a running gateway
    Status(status::Args),
    /// Measure two back-to-back gateways in this process
    Bench(bench::Args),
    /// Generate a test configuration and a capture of traffic that tests it
    Gentest(gentest::Args),
    /// Generate a preshared key
    Keygen(keygen::Args),
}

/// Runs the command.
///
/// # Errors
/// The reason why it could not be done, in words. A closed pipe behind standard output is passed on
/// as the `io::Error` that it is.
pub(crate) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(args) => run::run(args),
        Command::Handover(args) => handover::run(args),
        Command::Status(args) => status::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Gentest(args) => gentest::run(args),
        Command::Keygen(args) => keygen::run(args),
    }
}
