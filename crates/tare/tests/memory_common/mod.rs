//! A client gives an operation up after some time, for which a busy machine may not run the node:
//! what was given up is tried again, and nothing else.

use std::process::Output;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Attempts until it is not the machine that is too slow.
const ATTEMPTS: usize = 20;

/// The words of programs and failures about a node that is slow or gone.
const TOO_SLOW: [&str; 4] = [
    "no answer",
    "does not answer",
    "was too slow",
    "the node did not answer in time",
];

/// Returns true if a text says that the node did not answer in time.
pub(crate) fn is_too_slow(said: &str) -> bool {
    TOO_SLOW.iter().any(|words| said.contains(words))
}

/// Asks until there is something, for a minute.
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let from = Instant::now();
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(
            from.elapsed() < Duration::from_secs(60),
            "waited for {what}"
        );
        thread::sleep(Duration::from_millis(5));
    }
}

/// Runs `tare memory ping` or `bench` until each of its operations is answered, and returns its
/// output.
pub(crate) fn answered(run: impl Fn() -> Output) -> Output {
    let mut outputs = (0..ATTEMPTS).map(|_| run());
    let output = outputs.find(|output| output.status.success() || !is_unanswered(output));
    output.unwrap_or_else(|| panic!("an operation is not answered in each of {ATTEMPTS} attempts"))
}

/// Returns true if a program failed because an operation was given up.
pub(crate) fn is_unanswered(output: &Output) -> bool {
    if let Ok(result) = serde_json::from_slice::<Value>(&output.stdout) {
        let rows = result["rows"].as_array().into_iter().flatten();
        let sum = |name: &str| -> u64 { rows.clone().filter_map(|row| row[name].as_u64()).sum() };
        if sum("wrong") > 0 {
            return false;
        }
        if sum("failed") > 0 {
            return true;
        }
    }
    let texts = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    texts.iter().any(|text| is_too_slow(text))
}

/// Runs `NAME.toml` of a folder for one round, and returns the records of its trials.
#[allow(dead_code, reason = "not every test program has experiments")]
pub(crate) fn records(
    folder: &std::path::Path,
    name: &str,
    attempt: usize,
) -> Vec<serde_json::Value> {
    let out = format!("run{attempt}");
    let done = std::process::Command::new(env!("CARGO_BIN_EXE_tare"))
        .args([
            "run",
            &format!("{name}.toml"),
            "--rounds",
            "1",
            "--out",
            &out,
        ])
        .current_dir(folder)
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    let samples = folder.join(out).join("samples.jsonl");
    let samples = std::fs::read_to_string(samples).expect(&said);
    let records = samples.lines().map(serde_json::from_str);
    records.collect::<Result<_, _>>().unwrap()
}
