//! The campaign of a hostile host (`cargo xtask hostile`).
//!
//! Exit 0: no promise was broken, and the guests have consumed as many hostile values as asked for,
//! of every field in every state. 1: not so. 2: wrong usage.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use tare_cvmnet::hostile::{campaign, races, Plan};

const HELP: &str = "\
A host that lies, against the guest of a confidential VM.

  cargo xtask hostile [--values N] [--seed N] [--seconds S] [--race S]

  --values N   hostile values that guests are to consume: read after they were changed (10000000)
  --seed N     the seed of the first attack, each further one has the next (1); with --values 1
               it makes one attack again
  --seconds S  begin no attack after this time (3600)
  --race S     afterwards attack from a second thread at full speed, for so long in all (20)

It prints the values consumed by field and by state of the driver; \"-\" stands where the driver does
not read a field. Each attack ends with a host that is honest again, and the service must come back.
Attacks follow from their seed, but for the keys of TLS; races do not.
";

/// Values below which a campaign need not reach every field.
const COMPLETE: u64 = 1_000_000;

fn main() -> ExitCode {
    let (mut values, mut seed, mut seconds, mut race) = (10_000_000, 1, 3600, 20);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let to = match word.as_str() {
            "--values" => &mut values,
            "--seed" => &mut seed,
            "--seconds" => &mut seconds,
            "--race" => &mut race,
            "--help" | "-h" => {
                print!("{HELP}");
                return ExitCode::SUCCESS;
            }
            _ => return usage(&format!("found \"{word}\"")),
        };
        match words.next().map(|number| number.parse::<u64>()) {
            Some(Ok(number)) => *to = number,
            _ => return usage(&format!("expected a whole number after {word}")),
        }
    }
    let plan = Plan {
        seed,
        values,
        at_most: Duration::from_secs(seconds),
    };
    let (start, mut told) = (Instant::now(), Instant::now());
    let done = campaign(&plan, |report| {
        if told.elapsed() > Duration::from_secs(10) {
            told = Instant::now();
            let (total, took) = (report.consumed.total(), start.elapsed().as_secs());
            eprintln!("hostile: {total} of {values} values after {took} s");
        }
    });
    let report = match done {
        Ok(report) => report,
        Err(broken) => {
            eprintln!("hostile: BROKEN: {broken}");
            return ExitCode::FAILURE;
        }
    };
    println!("{report}in {:.0} s", start.elapsed().as_secs_f64());
    let mut is_good = true;
    if report.consumed.total() < values {
        eprintln!("hostile: {seconds} s were not enough for {values} values");
        is_good = false;
    }
    let missing = report.consumed.missing();
    if values >= COMPLETE && !missing.is_empty() {
        eprintln!("hostile: never consumed: {}", missing.join(", "));
        is_good = false;
    }
    if race > 0 {
        is_good &= run_races(seed, race);
    }
    ExitCode::from(u8::from(!is_good))
}

fn run_races(seed: u64, seconds: u64) -> bool {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        println!("NOT TESTED: a host at full speed: there is one processor");
        return true;
    }
    match races(seed, Duration::from_secs(seconds)) {
        Ok(report) => {
            println!("\nA host at full speed, {seconds} s:\n{report}");
            true
        }
        Err(broken) => {
            eprintln!("hostile: BROKEN at full speed: {broken}");
            false
        }
    }
}

fn usage(problem: &str) -> ExitCode {
    eprint!("hostile: {problem}\n\n{HELP}");
    ExitCode::from(2)
}
