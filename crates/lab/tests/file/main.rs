//! Experiment files: what they mean, what is wrong with the wrong ones, and that no text at all
//! makes the reader panic.

mod errors;
mod meaning;
mod mutations;
mod words;

use tare_lab::experiment::Experiment;
use tare_lab::file::{parse, Context, FileError, Size};

/// The design's example.
const BASE: &str = include_str!("base.toml");

/// Reads `text` as on a machine with `cpus` processors.
fn read(text: &str, cpus: usize, size: Size) -> Result<Vec<Experiment>, Vec<FileError>> {
    let drivers = words::drivers();
    let context = Context {
        cpus,
        size,
        drivers: &drivers,
    };
    parse(text, "test.toml", &context)
}

/// Reads a text that must be right.
fn right(text: &str, cpus: usize, size: Size) -> Vec<Experiment> {
    read(text, cpus, size).unwrap_or_else(|errors| {
        let errors: Vec<String> = errors.iter().map(FileError::to_string).collect();
        panic!("{}", errors.join("\n"))
    })
}
