//! Signals that end a daemon or make it read its configuration again.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::{flag, iterator, low_level};

/// The time after a request to stop in which another one is the same: `timeout` and terminals
/// signal a process and then its group.
const SAME: Duration = Duration::from_millis(500);

/// The requests to stop and to reload, by signals or by the program itself.
#[derive(Clone, Debug, Default)]
pub struct Signals {
    stop: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
    succession: Arc<AtomicBool>,
}

impl Signals {
    /// Handles SIGINT and SIGTERM (stop) and SIGHUP (reload). A second SIGINT or SIGTERM, half a
    /// second after the first or later, ends the process at once, should the first have no effect.
    ///
    /// # Errors
    /// A handler cannot be installed, or there is no thread for it.
    pub fn install() -> io::Result<Signals> {
        let signals = Signals::default();
        let mut stops = iterator::Signals::new([SIGINT, SIGTERM])?;
        for signal in [SIGINT, SIGTERM] {
            flag::register(signal, Arc::clone(&signals.stop))?;
        }
        flag::register(SIGHUP, Arc::clone(&signals.reload))?;
        // The handlers only set flags, and have no clock.
        let watch = move || {
            let mut first = None;
            for signal in stops.forever() {
                let now = Instant::now();
                if now.duration_since(*first.get_or_insert(now)) >= SAME {
                    let _ = low_level::emulate_default_handler(signal);
                }
            }
        };
        std::thread::Builder::new()
            .name("tare-signals".into())
            .spawn(watch)?;
        Ok(signals)
    }

    /// Handles SIGUSR2, which requests that another process takes the daemon's place.
    ///
    /// # Errors
    /// The handler cannot be installed.
    pub fn install_succession(&self) -> io::Result<()> {
        flag::register(SIGUSR2, Arc::clone(&self.succession)).map(drop)
    }

    /// Returns true if a successor was requested since the last call.
    pub fn take_succession(&self) -> bool {
        self.succession.swap(false, Ordering::Relaxed)
    }

    /// Requests a stop.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Requests a reload.
    pub fn reload(&self) {
        self.reload.store(true, Ordering::Relaxed);
    }

    /// Returns true if a stop was requested.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Returns true if a reload was requested since the last call.
    pub fn take_reload(&self) -> bool {
        self.reload.swap(false, Ordering::Relaxed)
    }
}
