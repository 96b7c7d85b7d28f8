//! The console of a guest: its last lines, and the words by which a kernel says that it ends.

use std::collections::VecDeque;
use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crate::error::Last;

/// Lines that are kept.
const LINES_MAX: usize = 12;
/// Characters of a line that are kept.
const WIDTH_MAX: usize = 160;

/// Words by which a kernel says that it has no memory left. The last two are those of one that
/// cannot unpack its root file system: a kernel that is told to be quiet may say no more than that
/// it found none.
const OUT_OF_MEMORY: [&str; 5] = [
    "Out of memory",
    "out of memory",
    "System is deadlocked on memory",
    "Initramfs unpacking failed: write error",
    "VFS: Unable to mount root fs",
];

/// The state of a console, fed by a thread that reads as fast as the guest writes.
#[derive(Clone, Default)]
pub(crate) struct Console(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    lines: VecDeque<String>,
    line: String,
    panic: Option<String>,
    is_out_of_memory: bool,
}

impl Console {
    /// Reads a stream to its end on a thread.
    pub(crate) fn follow(&self, mut stream: impl Read + Send + 'static) -> JoinHandle<()> {
        let console = self.clone();
        thread::spawn(move || {
            let mut bytes = vec![0; 1 << 16];
            while let Ok(len @ 1..) = stream.read(&mut bytes) {
                console.add(&bytes[..len]);
            }
        })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, bytes: &[u8]) {
        let mut state = self.state();
        for &byte in bytes {
            match byte {
                b'\n' => state.end_line(),
                // Colours and the cursor's movements, but for their letters, are not shown.
                b' '..=b'~' if state.line.len() < WIDTH_MAX => state.line.push(byte.into()),
                _ => {}
            }
        }
    }

    /// Returns the last lines.
    pub(crate) fn last(&self) -> Last {
        let state = self.state();
        let mut lines: Vec<String> = state.lines.iter().cloned().collect();
        if !state.line.trim().is_empty() {
            lines.push(state.line.clone());
        }
        Last(lines)
    }

    /// Returns the reason of the kernel's panic, if there was one.
    pub(crate) fn panic(&self) -> Option<String> {
        self.state().panic.clone()
    }

    /// Returns true if the kernel had no memory left.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.state().is_out_of_memory
    }
}

impl State {
    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        if line.trim().is_empty() {
            return;
        }
        if let Some((_, reason)) = line.split_once("Kernel panic - not syncing: ") {
            self.panic.get_or_insert_with(|| reason.to_owned());
        }
        self.is_out_of_memory |= OUT_OF_MEMORY.iter().any(|words| line.contains(words));
        if self.lines.len() == LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_and_a_flood_is_bounded() {
        let console = Console::default();
        console.add(b"\x1b[2Jfirst\r\n\n   \n");
        assert_eq!(console.last(), Last(vec!["[2Jfirst".into()]));
        for n in 0..10_000 {
            console.add(format!("line {n} {}\n", "x".repeat(1000)).as_bytes());
        }
        console.add(&[b'y'; 100_000]);
        let last = console.last().0;
        assert_eq!(last.len(), LINES_MAX + 1);
        assert!(last[0].starts_with("line 9988 ") && last[11].starts_with("line 9999 "));
        assert!(last.iter().all(|line| line.len() <= WIDTH_MAX));
        assert_eq!((console.panic(), console.is_out_of_memory()), (None, false));
    }

    #[test]
    fn panics_and_a_lack_of_memory_are_recognised_in_pieces_and_before_a_flood() {
        let console = Console::default();
        console.add(b"[ 1.0] Kernel panic - not sync");
        console.add(b"ing: VFS: no root\n[ 1.1] Kernel panic - not syncing: another\n");
        console.add(&b"noise\n".repeat(1000));
        assert_eq!(console.panic().as_deref(), Some("VFS: no root"));
        assert!(!console.is_out_of_memory());
        console.add(b"Kernel panic - not syncing: Out of memory: system-wide panic_on_oom\n");
        assert!(console.is_out_of_memory());
    }
}
