//! The processes that a trial left behind.

use std::fs;
use std::time::{Duration, Instant};

/// Returns the number of processes that have `marker` on their command line, once those that were
/// killed had a minute to vanish.
pub(crate) fn processes_with(marker: &str) -> usize {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let alive = count(marker);
        if alive == 0 || Instant::now() > until {
            return alive;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn count(marker: &str) -> usize {
    let folders = fs::read_dir("/proc").unwrap().flatten();
    let lines = folders.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let has = |line: &Vec<u8>| {
        let mut words = line.split(|&byte| byte == 0);
        words.any(|word| word == marker.as_bytes())
    };
    lines.filter(has).count()
}
