//! The parts that run around the work of a daemon, in one.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{sync_channel, Receiver};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tare_sim::Instant;

use crate::log::{Log, LogOptions};
use crate::metrics::Metrics;
use crate::record::{Level, Record};
use crate::service::{Ask, Asked, Asker, Endpoints, Report, Service};
use crate::signals::Signals;
use crate::watch::{stalled, FileContent, FileWatch};

/// The longest time between two looks at the signals.
const PULSE: Duration = Duration::from_millis(100);
/// The interval at which the configuration file is looked at.
const FILE_INTERVAL: Duration = Duration::from_secs(1);
/// Requests for a report that may wait: as many as there are clients.
const ASKS_MAX: usize = 128;

/// A configuration that was read and not run: the result of `--check`.
#[derive(Clone, Debug)]
pub struct Checked {
    /// One line that says what it holds.
    pub summary: String,
    /// Warnings about it.
    pub warnings: Vec<Record>,
}

/// The part of a report that all daemons have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Version of the program.
    pub version: String,
    /// The configuration file; empty if there is none.
    pub config: String,
    /// Process ID.
    pub pid: u32,
    /// Seconds since the start.
    pub uptime_s: u64,
    /// Changed configurations that were taken over.
    pub reloads: u64,
    /// Changed configurations that were refused.
    pub reloads_refused: u64,
    /// The reason why the file differs from the configuration that runs; `None` if it does not.
    pub reload_error: Option<String>,
}

impl ProcessStatus {
    /// Adds these figures to a page of metrics.
    pub fn metrics(&self, page: &mut Metrics) {
        let help = "Time since the start";
        page.single("uptime_seconds", "gauge", help, self.uptime_s);
        if self.config.is_empty() {
            return;
        }
        let help = "Changed configurations, by outcome";
        page.family("reloads_total", "counter", help);
        page.sample("reloads_total", &[("outcome", "taken")], self.reloads);
        let refused = self.reloads_refused;
        page.sample("reloads_total", &[("outcome", "refused")], refused);
        let help = "Whether the file could be read and holds the configuration that runs";
        let is_current = u8::from(self.reload_error.is_none());
        page.single("config_current", "gauge", help, is_current);
    }
}

/// The parts that run around the work of a daemon: log, signals, the configuration file, the status
/// socket and the Prometheus endpoint.
///
/// The thread that owns the daemon's state owns the host and calls it between its own steps: but
/// for [`Host::first_config`] it waits for no other process and no file system.
#[derive(Debug)]
pub struct Host<R> {
    config: PathBuf,
    log: Log,
    signals: Signals,
    /// `None` if there is no configuration file.
    watch: Option<FileWatch>,
    look_at: Instant,
    /// True if a signal asked for a reload that has not begun.
    asked: bool,
    /// The error of the last look at the file, and true if a look takes too long.
    unreadable: Option<String>,
    is_stalled: bool,
    endpoints: Endpoints,
    asker: Asker<R>,
    asks: Receiver<Ask<R>>,
    service: Option<Service>,
    started: Instant,
    reloads: u64,
    refused: u64,
    reload_error: Option<String>,
}

impl<R: Report> Host<R> {
    /// Begins to watch the configuration file, of which up to `bytes_max` bytes are read. `wake` is
    /// called by other threads to make the owner call [`Host::changed_config`] and
    /// [`Host::answer`].
    pub fn new(
        config: &Path,
        bytes_max: usize,
        log: LogOptions,
        signals: Signals,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Host<R> {
        let mut host = Host::without_config(log, signals, wake);
        host.config = config.into();
        let wake = Arc::clone(&host.asker.wake);
        host.watch = Some(FileWatch::new(config, bytes_max, wake));
        host
    }

    /// The same for a daemon that has no configuration file.
    pub fn without_config(
        log: LogOptions,
        signals: Signals,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Host<R> {
        let (to, asks) = sync_channel(ASKS_MAX);
        let now = Instant::now();
        let wake: Arc<dyn Fn() + Send + Sync> = Arc::new(wake);
        Host {
            config: PathBuf::new(),
            log: Log::new(log),
            signals,
            watch: None,
            look_at: now + FILE_INTERVAL,
            asked: false,
            unreadable: None,
            is_stalled: false,
            endpoints: Endpoints::default(),
            asker: Asker { asks: to, wake },
            asks,
            service: None,
            started: now,
            reloads: 0,
            refused: 0,
            reload_error: None,
        }
    }

    /// Returns the configuration file; empty if there is none.
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// Returns the log.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Returns true once the daemon is to end.
    pub fn is_stopped(&self) -> bool {
        self.signals.is_stopped()
    }

    /// Returns the longest time to wait before calling the host again.
    pub fn wait(&self, now: Instant) -> Duration {
        self.look_at.since(now).min(PULSE)
    }

    /// Returns the content of the configuration file at the start, which it waits for.
    ///
    /// # Errors
    /// See [`read_file`](crate::read_file).
    pub fn first_config(&mut self) -> io::Result<FileContent> {
        let none = || io::Error::from(io::ErrorKind::NotFound);
        self.watch.as_mut().ok_or_else(none)?.first()
    }

    /// Returns the content of the configuration file if it has changed or a signal asks for it, or
    /// why it cannot be read; the latter once. The outcome of taking it over goes to
    /// [`Host::reloaded`].
    ///
    /// Another thread reads. If that takes too long, this is logged and in [`Host::status`], and
    /// the daemon goes on.
    pub fn changed_config(&mut self, now: Instant) -> Option<io::Result<FileContent>> {
        let watch = self.watch.as_mut()?;
        if self.signals.take_reload() {
            (self.asked, self.unreadable) = (true, None);
        }
        let ended = watch.ended();
        let is_stalled = watch.is_stalled(now);
        if is_stalled != self.is_stalled {
            self.is_stalled = is_stalled;
            self.log.write(&match is_stalled {
                true => Record::new(Level::Error, "config_stalled").with("error", stalled()),
                false => Record::new(Level::Info, "config_readable"),
            });
        }
        if self.asked || now >= self.look_at {
            self.look_at = now + FILE_INTERVAL;
            if watch.begin(now, self.asked) {
                self.asked = false;
            }
        }
        let changed = match ended? {
            Ok(content) => {
                self.unreadable = None;
                Ok(content?)
            }
            Err(error) => {
                let text = Some(error.to_string());
                if self.unreadable == text {
                    return None;
                }
                self.unreadable = text;
                Err(error)
            }
        };
        Some(changed)
    }

    /// Counts and logs the outcome of a reload. One that was refused changes nothing else: the
    /// daemon goes on with the configuration it has.
    pub fn reloaded(&mut self, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => {
                self.reloads += 1;
                self.reload_error = None;
            }
            Err(error) => {
                self.refused += 1;
                for line in error.lines() {
                    let record = Record::new(Level::Error, "refused");
                    self.log.write(&record.with("error", line));
                }
                self.reload_error = Some(error.lines().next().unwrap_or_default().to_owned());
            }
        }
    }

    /// Answers at these endpoints instead of those before. Logs and returns the errors; the other
    /// endpoints are served.
    pub fn serve_at(&mut self, endpoints: Endpoints) -> Vec<String> {
        if endpoints == self.endpoints {
            return Vec::new();
        }
        let mut errors = Vec::new();
        // Ended first: the new ones may be at the same address.
        self.service = None;
        self.service = Service::start(&endpoints, self.asker.clone(), &mut errors);
        self.endpoints = endpoints;
        for error in &errors {
            let record = Record::new(Level::Warn, "service");
            self.log.write(&record.with("error", error.as_str()));
        }
        errors
    }

    /// Ends the endpoints.
    pub fn end_service(&mut self) {
        self.service = None;
    }

    /// Answers the requests that wait, all with one report: clients that ask again and again cost
    /// the owner no more than one report a call. `report` makes what the greatest of the requests
    /// needs.
    pub fn answer(&self, report: impl FnOnce(Asked) -> R) {
        let waiting: Vec<_> = self.asks.try_iter().take(ASKS_MAX).collect();
        let Some(greatest) = waiting.iter().map(|(asked, _)| *asked).max() else {
            return;
        };
        let report = Arc::new(report(greatest));
        for (_, reply) in waiting {
            let _ = reply.try_send(Arc::clone(&report));
        }
    }

    /// Returns the part of a report that all daemons have.
    pub fn status(&self, version: &str) -> ProcessStatus {
        ProcessStatus {
            version: version.into(),
            config: self.config.display().to_string(),
            pid: std::process::id(),
            uptime_s: Instant::now().since(self.started).as_secs(),
            reloads: self.reloads,
            reloads_refused: self.refused,
            reload_error: match self.is_stalled {
                true => Some(stalled()),
                false => self.reload_error.clone(),
            },
        }
    }
}
