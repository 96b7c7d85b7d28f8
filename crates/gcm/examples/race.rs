//! The race at length: a hostile thread against every path, both ways, over all record sizes.
//!
//! ```text
//! cargo run -p tare-gcm --release --features testing --example race -- \
//!     --seconds 60 [--path NAME] [--json]
//! ```
//!
//! Exit 0: clean, and the detector caught the implementation that reads twice. 1: not so. 2: wrong
//! usage.

use std::process::ExitCode;
use std::time::Duration;
use tare_gcm::testing::{race, Op, Race, Subject};
use tare_gcm::Path;

const RECORD_LENS: [usize; 7] = [60, 200, 576, 1440, 4096, 8192, 16384];

fn main() -> ExitCode {
    let mut seconds = 10u64;
    let mut only = None;
    let mut json = false;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seconds" => match args.next().and_then(|n| n.parse().ok()).filter(|n| *n > 0) {
                Some(n) => seconds = n,
                None => return usage("--seconds wants a whole number, at least 1"),
            },
            "--path" => match args.next().as_deref().and_then(Path::by_name) {
                Some(path) => only = Some(path),
                None => {
                    return usage("--path wants one of vaes512, vaes256, aesni, neon, portable")
                }
            },
            "--json" => json = true,
            _ => return usage(&format!("unknown argument {arg}")),
        }
    }

    let mut subjects = Vec::new();
    for path in Path::ALL {
        if only.is_some_and(|only| only != path) {
            continue;
        }
        if path.is_available() {
            subjects.push(Subject::Path(path));
        } else {
            eprintln!("NOT TESTED: this processor cannot run the {path} path");
        }
    }
    subjects.push(Subject::TwoReads);

    let races = subjects.len() * 2 * RECORD_LENS.len();
    let duration = Duration::from_millis((seconds * 1000 / races as u64).max(5));
    let mut sound = true;
    for subject in subjects {
        for op in [Op::Open, Op::Seal] {
            let (mut attempts, mut accepted, mut bad, mut writes) = (0, 0, 0, 0);
            for (i, record_len) in RECORD_LENS.into_iter().enumerate() {
                let key_len = if i % 2 == 0 { 16 } else { 32 };
                match race(&Race {
                    subject,
                    op,
                    key_len,
                    record_len,
                    duration,
                }) {
                    Ok(report) => {
                        attempts += report.attempts;
                        accepted += report.accepted;
                        bad += report.wrong + report.unwiped + report.exposed;
                        writes += report.hostile_writes;
                    }
                    Err(error) => {
                        eprintln!("{subject:?} {op:?} {record_len}: {error}");
                        return ExitCode::from(2);
                    }
                }
            }
            // The detector must fire on the one, where a race ends, and never on the others.
            let (name, ok) = match subject {
                Subject::Path(path) => (path.name(), bad == 0 && attempts > 0 && writes > 0),
                Subject::TwoReads => ("two-reads", bad > 0),
            };
            sound &= ok;
            let op = if op == Op::Open { "open" } else { "seal" };
            if json {
                println!(
                    "{{\"subject\":\"{name}\",\"op\":\"{op}\",\"attempts\":{attempts},\"accepted\":{accepted},\
                     \"wrong\":{bad},\"hostile_writes\":{writes},\"ok\":{ok}}}"
                );
            } else {
                let verdict = match (subject, ok) {
                    (Subject::Path(_), true) => "clean",
                    (Subject::TwoReads, true) => "caught, as it must be",
                    (Subject::Path(_), false) => "FORGED",
                    (Subject::TwoReads, false) => "NOT CAUGHT: the detector is blind",
                };
                println!(
                    "{name:9} {op}  {attempts:>10} records, {accepted:>10} accepted, {bad:>8} wrong, \
                     {writes:>11} hostile writes  {verdict}"
                );
            }
        }
    }
    ExitCode::from(u8::from(!sound))
}

fn usage(problem: &str) -> ExitCode {
    eprintln!("race: {problem}\nusage: race [--seconds N] [--path NAME] [--json]");
    ExitCode::from(2)
}
