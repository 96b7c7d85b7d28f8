//! A client gives an operation up after some time, for which a busy machine may not run the node:
//! what was given up is tried again, and nothing else.

use std::process::Output;

use serde_json::Value;

/// Attempts until it is not the machine that is too slow.
const ATTEMPTS: usize = 20;

/// The words of programs and failures about a node that is slow or gone.
const TOO_SLOW: [&str; 3] = ["no answer", "does not answer", "was too slow"];

/// Returns true if a text says that the node did not answer in time.
pub(crate) fn is_too_slow(said: &str) -> bool {
    TOO_SLOW.iter().any(|words| said.contains(words))
}

/// Runs `tare memory ping` or `bench` until each of its operations is answered, and returns its
/// output.
pub(crate) fn answered(run: impl Fn() -> Output) -> Output {
    let mut outputs = (0..ATTEMPTS).map(|_| run());
    let output = outputs.find(|output| output.status.success() || !is_unanswered(output));
    output.unwrap_or_else(|| panic!("an operation is not answered in each of {ATTEMPTS} attempts"))
}

/// Returns true if a program failed because an operation was given up.
fn is_unanswered(output: &Output) -> bool {
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
