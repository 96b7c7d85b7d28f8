//! Reports which of the sources this processor has, on standard error and to `cargo xtask`.

use std::io::Write as _;
use std::time::{Duration, Instant};

use tare_rdrand::{Error, Rdrand, Rdseed};

/// Neighbours can keep RDSEED dry for a while.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the error of a source that gives no value. An underflow is tried again: without data is
/// not absent.
fn answers(mut draw: impl FnMut() -> Result<u64, Error>) -> Result<(), Error> {
    let began = Instant::now();
    loop {
        match draw() {
            Err(Error::Underflow { .. }) if began.elapsed() < PATIENCE => {}
            other => return other.map(drop),
        }
    }
}

#[test]
fn every_source_that_the_processor_has_answers() {
    let rdrand = answers(|| Rdrand::new()?.next_u64());
    let rdseed = answers(|| Rdseed::new()?.next_u64());
    let mut lines = String::new();
    for (name, answered) in [("RDRAND", rdrand), ("RDSEED", rdseed)] {
        match answered {
            Ok(()) => lines += &format!("rdrand ran {name}\n"),
            Err(error @ Error::Unsupported { .. }) => {
                lines += &format!("NOT TESTED: {name}: {error}\n");
            }
            Err(error) => panic!("{name}: {error}"),
        }
    }
    // Past the test runner's capture: what is not tested must be seen.
    let _ = std::io::stderr().write_all(lines.as_bytes());
    if let Some(file) = std::env::var_os("TARE_EXERCISED") {
        let file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(file);
        file.unwrap().write_all(lines.as_bytes()).unwrap();
    }
}
