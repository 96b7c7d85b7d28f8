//! `tare rng`: random bytes from the hardware, how fast they come, and whether they look random.

mod bench;
mod external;
mod gen;
pub(crate) mod known_bad;
pub(crate) mod method;
mod output;
mod size;
pub(crate) mod stream;
mod test;
pub(crate) mod workload;

use std::process::ExitCode;

use clap::Subcommand;

/// What `tare rng` can do.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Write random bytes to a file or to standard output
    Gen(gen::Args),
    /// Measure how fast a method is, beside the bare instruction
    Bench(bench::Args),
    /// Test a file, a stream or a method for the ways in which generators break
    Test(test::Args),
}

/// Runs the command.
///
/// # Errors
/// What was asked for is wrong or could not be done, in words. A closed pipe behind standard
/// output is passed on as the `io::Error` that it is.
pub(crate) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Gen(args) => gen::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Test(args) => test::run(args),
    }
}
