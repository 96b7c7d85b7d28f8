//! Scenarios by seed, and how to run one of them again.

use std::env;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe, Location};
use std::thread;

/// The variable that names the one seed to run.
const VARIABLE: &str = "TARE_SEED";

/// Runs `scenario` with each seed of a range. When it panics, prints the command that runs that
/// seed alone, and passes the panic on:
///
/// ```text
/// failed with seed 0x2a; to replay it: TARE_SEED=0x2a cargo test -p tare-sim a_line_loses
/// ```
///
/// With `TARE_SEED` in the environment, only that seed is run, whether in the range or not.
///
/// # Panics
/// As `scenario`, and when `TARE_SEED` is not a number.
#[track_caller]
pub fn for_seeds(seeds: Range<u64>, scenario: impl Fn(u64)) {
    let seeds = match env::var(VARIABLE) {
        Ok(text) => {
            let seed = parse(&text).unwrap_or_else(|| {
                panic!("{VARIABLE}: found {text:?}, expected a seed such as 42 or 0x2a")
            });
            // A range that is neither empty nor too long, even of the last number.
            seed..=seed
        }
        Err(_) if seeds.is_empty() => return,
        Err(_) => seeds.start..=seeds.end - 1,
    };
    let place = Location::caller();
    for seed in seeds {
        // What the scenario was changing is dropped with it: nothing half changed is seen again.
        if let Err(panic) = panic::catch_unwind(AssertUnwindSafe(|| scenario(seed))) {
            let package = env::var("CARGO_PKG_NAME").ok();
            let test = thread::current().name().map(str::to_owned);
            eprintln!("{}", report(seed, package, test, place));
            panic::resume_unwind(panic);
        }
    }
}

fn parse(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The line that is printed for a seed that fails. The test harness names the thread of a test
/// after the test, unless it runs all on one thread; then only the place in the source is known.
fn report(
    seed: u64,
    package: Option<String>,
    test: Option<String>,
    place: &Location<'_>,
) -> String {
    let package = package.map_or(String::new(), |name| format!(" -p {name}"));
    let test = match test.filter(|name| name != "main") {
        Some(name) => format!(" {name}"),
        None => format!("  # the test at {place}"),
    };
    format!(
        "failed with seed {seed:#x}; to replay it: {VARIABLE}={seed:#x} cargo test{package}{test}"
    )
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::process::{Command, Output};

    use super::*;

    #[test]
    fn seeds_are_read_in_both_bases() {
        for (text, seed) in [
            ("42", Some(42)),
            ("0x2a", Some(42)),
            ("0xffffffffffffffff", Some(u64::MAX)),
        ] {
            assert_eq!(parse(text), seed);
        }
        for text in ["", "0x", "x", "-1", "1.5", "0x10000000000000000"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn each_seed_of_the_range_is_run_once() {
        let seen = RefCell::new(Vec::new());
        for_seeds(3..7, |seed| seen.borrow_mut().push(seed));
        for_seeds(5..5, |_| panic!("an empty range"));
        assert_eq!(seen.into_inner(), [3, 4, 5, 6]);
    }

    #[test]
    fn a_report_without_the_name_of_the_test_has_its_place() {
        let text = report(7, None, Some("main".into()), Location::caller());
        assert!(
            text.starts_with(
                "failed with seed 0x7; to replay it: TARE_SEED=0x7 cargo test  # the test at "
            ),
            "{text}"
        );
        assert!(text.contains("seeds.rs"), "{text}");
    }

    /// Runs as a test of its own only for the test below.
    #[test]
    #[ignore = "fails on purpose: the test below runs it"]
    fn fails_from_seed_0x2a_on() {
        for_seeds(0..100, |seed| {
            assert!(seed < 0x2a, "seed {seed} is too high")
        });
    }

    fn run_the_failing_test(seed: Option<&str>) -> Output {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "--nocapture", "--test-threads=2"]);
        command
            .arg("seeds::tests::fails_from_seed_0x2a_on")
            .env_remove(VARIABLE);
        if let Some(seed) = seed {
            command.env(VARIABLE, seed);
        }
        command.output().unwrap()
    }

    #[test]
    fn a_failure_names_its_seed_and_the_seed_replays_it() {
        let failed = run_the_failing_test(None);
        assert!(!failed.status.success());
        let text = String::from_utf8_lossy(&failed.stderr).into_owned();
        let expected = "failed with seed 0x2a; to replay it: TARE_SEED=0x2a cargo test -p tare-sim seeds::tests::fails_from_seed_0x2a_on";
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("seed 42 is too high"), "{text}");
        for (seed, succeeds) in [
            ("0x2a", false),
            ("42", false),
            ("0x29", true),
            ("5000", false),
            ("forty", false),
        ] {
            let output = run_the_failing_test(Some(seed));
            assert_eq!(output.status.success(), succeeds, "{seed}");
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(
                text.contains("too high"),
                !succeeds && seed != "forty",
                "{seed}: {text}"
            );
            if seed == "5000" {
                // It alone was run: a lower one would have failed before.
                assert!(text.contains("seed 5000 is too high"), "{text}");
            }
        }
    }
}
