//! `tare rng`: random bytes from the hardware, how fast they come, and whether they look random.

mod bench;
pub(crate) mod diagnosis;
pub(crate) mod drivers;
pub(crate) mod external;
mod gen;
mod in_step;
pub(crate) mod known_bad;
pub(crate) mod method;
mod output;
mod progress;
pub(crate) mod retry;
pub(crate) mod stream;
mod test;
pub(crate) mod workload;
pub(crate) mod written;

use std::process::ExitCode;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::Subcommand;

use method::{Method, Origin};

/// The subcommands of `tare rng`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Write random bytes to a file or to standard output
    Gen(gen::Args),
    /// Measure the throughput of a method against that of the bare instruction
    Bench(bench::Args),
    /// Test a file, a stream or a method for defects of random number generators
    Test(test::Args),
}

/// Runs the command.
///
/// # Errors
/// The reason why it could not be done, in words. A closed pipe behind standard output is passed on
/// as the `io::Error` that it is.
pub(crate) fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Gen(args) => gen::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Test(args) => test::run(args),
    }
}

/// Reads the name of any method.
fn any_method() -> impl TypedValueParser<Value = Method> {
    one_of(Method::ALL.iter().copied())
}

/// Reads the name of a method of the library.
fn own_method() -> impl TypedValueParser<Value = Method> {
    one_of(
        Method::ALL
            .iter()
            .copied()
            .filter(|method| method.origin() == Origin::Library),
    )
}

fn one_of(methods: impl Iterator<Item = Method>) -> impl TypedValueParser<Value = Method> {
    let names = methods.map(|method| PossibleValue::new(method.name()).help(method.about()));
    PossibleValuesParser::new(names).try_map(|name| name.parse())
}

/// Reads a time in seconds, more than 0 and at most `most`.
fn seconds(text: &str, most: f64) -> Result<Duration, String> {
    text.parse()
        .ok()
        .filter(|&seconds: &f64| seconds > 0.0 && seconds <= most)
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("found \"{text}\", expected seconds above 0, at most {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_above_none_are_read() {
        assert_eq!(seconds("0.5", 3600.0), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "inf", "nan", "x", "1e9"] {
            assert!(seconds(text, 3600.0).is_err(), "{text}");
        }
    }
}
