//! The signals that end a program.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The signals that ask a program to end: Ctrl-C, `kill`, and a terminal that is closed. The last
/// is left out if it is ignored (`nohup`).
pub(crate) fn signals_to_end() -> Vec<i32> {
    let mut signals = vec![SIGINT, SIGTERM];
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Signal n is bit n - 1.
    if ignored.is_some_and(|mask| mask >> (SIGHUP - 1) & 1 == 0) {
        signals.push(SIGHUP);
    }
    signals
}
