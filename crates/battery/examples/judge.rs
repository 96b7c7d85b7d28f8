//! Judges up to 16 MiB of a file, or of standard input, and prints one line per test.
//!
//! ```text
//! cargo run --release -p tare-battery --example judge [FILE]
//! ```

use std::io::Read;
use std::process::ExitCode;

use tare_battery::{Battery, Config, Verdict};

const BYTES_MAX: u64 = 16 * 1024 * 1024;

fn main() -> std::io::Result<ExitCode> {
    let input: Box<dyn Read> = match std::env::args_os().nth(1) {
        Some(file) => Box::new(std::fs::File::open(file)?),
        None => Box::new(std::io::stdin()),
    };
    let mut input = input.take(BYTES_MAX);
    let mut battery = Battery::new(Config::default());
    let mut chunk = [0; 64 * 1024];
    loop {
        let length = input.read(&mut chunk)?;
        if length == 0 {
            break;
        }
        battery.update(&chunk[..length]);
    }
    let report = battery.finish();
    for outcome in &report.outcomes {
        let verdict = outcome.verdict.as_str();
        match outcome.p_value {
            Some(p) => println!(
                "{verdict:9} {:34} p {p:.2e} ({})",
                outcome.test, outcome.note
            ),
            None => println!(
                "{verdict:9} {:34} needs {} bytes",
                outcome.test, outcome.bytes_min
            ),
        }
    }
    println!("{} after {} bytes", report.verdict.as_str(), report.bytes);
    Ok(match report.verdict {
        Verdict::Pass => ExitCode::SUCCESS,
        Verdict::Fail | Verdict::TooShort => ExitCode::FAILURE,
    })
}
