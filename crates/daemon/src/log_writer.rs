//! The thread that writes the log.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes of lines that may wait. Ten thousand SAs that come up together are a few megabytes; as
/// much again may be on its way to the output.
const BYTES_MAX: usize = 8 << 20;

/// The longest time that the end of a daemon waits for its last lines to be written.
const FLUSH_MAX: Duration = Duration::from_secs(5);

/// A bounded queue of lines, and a thread that writes them.
///
/// Writing blocks if the output is a pipe whose reader has stopped. Nothing else waits for that:
/// lines for which there is no room are counted, and the thread writes how many they were between
/// the lines before and those after them.
#[derive(Debug)]
pub(crate) struct LogWriter {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// There is something to write, or the end.
    filled: Condvar,
    /// Everything is written.
    emptied: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    lines: VecDeque<String>,
    bytes: usize,
    /// Lines that were lost behind those that wait.
    lost: u64,
    /// True while the thread writes what it took.
    is_writing: bool,
    /// True if there is a thread.
    has_thread: bool,
    has_ended: bool,
}

impl LogWriter {
    /// Starts a thread that writes to `output`; `lost` makes the line that says how many were lost.
    pub(crate) fn start(
        mut output: impl Write + Send + 'static,
        lost: impl Fn(u64) -> String + Send + 'static,
    ) -> LogWriter {
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("tare-log".into());
        let spawned = thread.spawn(move || {
            while let Some((lines, missing)) = of_thread.take() {
                // An output that cannot be written is no reason to end.
                for line in lines {
                    let _ = output.write_all(line.as_bytes());
                }
                if missing > 0 {
                    let _ = output.write_all(lost(missing).as_bytes());
                }
            }
        });
        // Without a thread every line is lost, and the daemon goes on.
        shared.queue().has_thread = spawned.is_ok();
        LogWriter { shared }
    }

    /// Queues a line, or counts it as lost. Waits for nothing.
    pub(crate) fn write(&self, line: String) {
        let mut queue = self.shared.queue();
        // Once lines were lost, later ones are too until the thread has taken those before.
        if queue.lost > 0 || queue.bytes + line.len() > BYTES_MAX || !queue.has_thread {
            queue.lost += 1;
            return;
        }
        queue.bytes += line.len();
        queue.lines.push_back(line);
        drop(queue);
        self.shared.filled.notify_one();
    }

    /// Returns true if everything is written.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.shared.queue().is_idle()
    }
}

impl Drop for LogWriter {
    /// Waits until everything is written, but no longer than [`FLUSH_MAX`]: a reader that has
    /// stopped must not keep a process from its end.
    fn drop(&mut self) {
        let mut queue = self.shared.queue();
        queue.has_ended = true;
        self.shared.filled.notify_one();
        if queue.has_thread {
            let waited = self
                .shared
                .emptied
                .wait_timeout_while(queue, FLUSH_MAX, |queue| !queue.is_idle());
            drop(waited);
        }
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for lines, and takes all of them with the number of those that were lost behind them;
    /// `None` at the end.
    fn take(&self) -> Option<(VecDeque<String>, u64)> {
        let mut queue = self.queue();
        queue.is_writing = false;
        loop {
            if !queue.is_idle() {
                queue.is_writing = true;
                queue.bytes = 0;
                let lost = std::mem::take(&mut queue.lost);
                return Some((std::mem::take(&mut queue.lines), lost));
            }
            self.emptied.notify_all();
            if queue.has_ended {
                return None;
            }
            let waited = self.filled.wait(queue);
            queue = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Queue {
    fn is_idle(&self) -> bool {
        self.lines.is_empty() && self.lost == 0 && !self.is_writing
    }
}
