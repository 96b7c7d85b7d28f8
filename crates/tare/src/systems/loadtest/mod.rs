//! `tare loadtest`: packets sent into a network, counted when they come out.

mod bench;
mod find_limit;
mod notice;
mod rfc2544;
mod setup;
mod transient;
mod value;

use std::process::ExitCode;

use clap::Subcommand;

/// The exit status of a test that failed.
const FAILED: u8 = 1;
/// The conventional exit status of a program that SIGINT ended.
const INTERRUPTED: u8 = 130;

/// The subcommands of `tare loadtest`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Find the highest rate without packet loss
    FindLimit(Box<find_limit::Args>),
    /// Offer a traffic pattern and report what arrives
    Transient(Box<transient::Args>),
    /// Measure throughput, latency, frame loss and back-to-back frames according to RFC 2544
    Rfc2544(Box<rfc2544::Args>),
}

/// Runs the command.
///
/// # Errors
/// The reason why it could not be done, in words.
pub(crate) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    let done = match command {
        Command::FindLimit(args) => find_limit::run(args),
        Command::Transient(args) => transient::run(args),
        Command::Rfc2544(args) => rfc2544::run(args),
    };
    match done {
        Err(error) => match error.downcast_ref() {
            Some(tare_loadtest::Error::Interrupted) => Ok(ExitCode::from(INTERRUPTED)),
            // The arguments were right and the machine too slow: the test has failed.
            Some(tare_loadtest::Error::NotOffered { .. }) => {
                crate::terminal::say(&format!("tare: {error:#}"));
                Ok(ExitCode::from(FAILED))
            }
            _ => Err(error),
        },
        done => done,
    }
}
