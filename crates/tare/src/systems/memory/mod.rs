//! `tare memory`: remote memory.

mod bench;
mod close;
pub(super) mod driver;
mod fleet;
mod keygen;
mod layout;
mod load;
mod ping;
mod serve;
pub(super) mod simulated;
mod status;

use std::process::ExitCode;

use clap::Subcommand;

/// The subcommands of `tare memory`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Serve this machine's memory to clients
    Serve(serve::Args),
    /// Show the state of a running node
    Status(status::Args),
    /// Measure round trips to a node, one at a time
    Ping(ping::Args),
    /// Measure reads and writes on a node, with every byte verified
    Bench(bench::Args),
    /// Free the memory of address spaces whose clients are gone
    Close(close::Args),
    /// Generate a secret for a node
    Keygen(keygen::KeygenArgs),
    /// Derive the capability of an address space from the secret of its node
    Capability(keygen::CapabilityArgs),
}

/// Runs the command.
///
/// # Errors
/// The reason why it could not be done, in words. A closed pipe behind standard output is passed on
/// as the `io::Error` that it is.
pub(crate) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Serve(args) => serve::run(args),
        Command::Status(args) => status::run(args),
        Command::Ping(args) => ping::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Close(args) => close::run(args),
        Command::Keygen(args) => keygen::keygen(args),
        Command::Capability(args) => keygen::capability(args),
    }
}
