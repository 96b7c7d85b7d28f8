//! A gateway on real interfaces: a thread for each worker, and one for everything else.
//!
//! Workers own a queue of each interface and forward; they look up whether there are new tables
//! once a burst and never wait for anybody. The control thread owns configuration, keys, next hops
//! and the log. Frames for it wait in a queue that has an end.

mod interfaces;
mod log;
mod report;
mod service;
mod shared;
mod watch;
mod worker;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError, SyncSender};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::{sched_setaffinity, CpuSet};
use tare_port::Kind;
use tare_sim::Instant;

use crate::config::{self, Config, Warning};
use crate::control::{self, Actions, Control, Level, Record};
use crate::dataplane::TrafficCounters;
use crate::exchange::system_entropy;
use crate::interface::InterfaceId;
use interfaces::Interfaces;
pub use log::Log;
pub use report::{PortReport, Report, TrafficReport, WorkerReport};
use service::{Asker, Places, Service};
use shared::{News, Published, Shared};
use watch::Watch;
use worker::Worker;

/// Frames that may wait for the control side, and frames of its own that may wait to be sent.
const QUEUE: usize = 4096;
/// Frames that the control side takes before it looks at anything else.
const BATCH: usize = 256;
/// How often signals are looked at, at least.
const PULSE: Duration = Duration::from_millis(100);
/// How often interfaces are.
const LINKS: Duration = Duration::from_millis(250);
/// How often the file is.
const FILE: Duration = Duration::from_secs(1);

/// How a gateway is to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The file that it is configured by.
    pub config: PathBuf,
    /// How interfaces are opened.
    pub kind: Kind,
    /// Cores: the control thread is bound to the first, a worker to each other one. A single one is
    /// for all; with none there is one worker, and nothing is bound.
    pub cpus: Vec<usize>,
    /// Whether workers never sleep.
    pub busy_poll: bool,
    /// Where Prometheus is answered, whatever the file says.
    pub metrics: Option<SocketAddr>,
    /// Where `tare gateway status` is answered, whatever the file says.
    pub status_socket: Option<PathBuf>,
    /// The log.
    pub log: Log,
    /// Set by somebody else: end.
    pub stop: Arc<AtomicBool>,
    /// Set by somebody else: read the file again.
    pub reload: Arc<AtomicBool>,
}

/// Why a gateway could not be run.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Its configuration.
    Config(config::Error),
    /// Its configuration, beyond what is wrong with the file.
    Control(control::Error),
    /// Its keys.
    Exchange(crate::exchange::Error),
    /// Its interfaces.
    Port(tare_port::Error),
    /// The ports of a worker.
    Worker(String),
    /// A core that it cannot be bound to.
    Cpu(usize, std::io::Error),
    /// What it should answer at.
    Service(String),
    /// Threads, or what they share.
    System(std::io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Config(error) => error.fmt(f),
            Error::Control(error) => error.fmt(f),
            Error::Exchange(error) => error.fmt(f),
            Error::Port(error) => error.fmt(f),
            Error::Worker(error) | Error::Service(error) => f.write_str(error),
            Error::Cpu(cpu, error) => write!(f, "no thread can be bound to core {cpu}: {error}"),
            Error::System(error) => write!(f, "the gateway could not be started: {error}"),
        }
    }
}

impl std::error::Error for Error {}

/// Runs a gateway on this thread and on those that it starts, until [`Options::stop`] is set.
///
/// # Errors
/// Where it cannot be started. Once it runs, it goes on whatever happens, and says what in its log.
pub fn run(options: Options) -> Result<(), Error> {
    let (daemon, workers) = Daemon::start(options)?;
    daemon.serve(workers);
    Ok(())
}

/// Where the status of a gateway with this configuration file is answered, where nothing else is
/// said.
pub fn default_socket(config: &Path) -> PathBuf {
    let stem = config.file_stem().unwrap_or_default().to_string_lossy();
    PathBuf::from(format!("/run/tare/gateway-{stem}.sock"))
}

struct Daemon {
    options: Options,
    log: Log,
    control: Control,
    links: Interfaces,
    shared: Arc<Shared>,
    news: Receiver<News>,
    asks: Receiver<SyncSender<Report>>,
    asker: Asker,
    frames: SyncSender<(InterfaceId, Vec<u8>)>,
    service: Option<Service>,
    places: Places,
    watch: Watch,
    started: Instant,
    reloads: u64,
    refused: u64,
    reload_error: Option<String>,
    own_lost: u64,
}

type Workers = Vec<JoinHandle<()>>;

impl Daemon {
    fn start(options: Options) -> Result<(Daemon, Workers), Error> {
        let log = options.log;
        // Before the file is read, so that a change meanwhile is one.
        let watch = Watch::new(&options.config);
        let (config, warnings) = Config::load(&options.config).map_err(Error::Config)?;
        warn(&log, &warnings);
        let links = Interfaces::find(&config, options.kind).map_err(Error::Port)?;
        let entropy = system_entropy().map_err(Error::Exchange)?;
        let now = Instant::now();
        let places = places(&options, &config);
        let worker_cpus = worker_cpus(&options.cpus);
        let (private, public) = (links.private, links.public);
        let control = Control::new(config, private, public, worker_cpus.len(), entropy, now);
        let (control, ids) = control.map_err(Error::Control)?;
        let published = Published {
            tables: Arc::clone(control.tables()),
            plan: Arc::clone(&links.plan),
        };
        let shared = Shared::new(published, worker_cpus.len(), options.busy_poll);
        let shared = Arc::new(shared.map_err(Error::System)?);
        let (news_to, news) = sync_channel(QUEUE);
        let (asks_to, asks) = sync_channel(4);
        let (frames, first_frames) = sync_channel(QUEUE);
        let mut frames_from = Some(first_frames);
        let daemon = Daemon {
            log,
            control,
            links,
            shared: Arc::clone(&shared),
            news,
            asks,
            asker: Asker {
                asks: asks_to,
                news: news_to.clone(),
            },
            frames,
            service: None,
            places: Places::default(),
            watch,
            started: now,
            reloads: 0,
            refused: 0,
            reload_error: None,
            own_lost: 0,
            options,
        };
        let mut workers = Workers::new();
        for (id, &cpu) in ids.into_iter().zip(&worker_cpus) {
            let number = id.number();
            let worker = Worker {
                number,
                id: Some(id),
                shared: Arc::clone(&shared),
                news: news_to.clone(),
                // Frames of the control side leave by the first worker's ports.
                frames: frames_from.take().unwrap_or_else(|| sync_channel(1).1),
            };
            let thread = std::thread::Builder::new().name(format!("tare-worker-{number}"));
            let bound = sync_channel(1);
            let (said, says) = bound;
            let spawned = thread.spawn(move || {
                let result = bind(cpu);
                let fine = result.is_ok();
                let _ = said.send(result);
                if fine {
                    worker.run();
                }
            });
            workers.push(spawned.map_err(Error::System)?);
            if let Ok(Err(error)) = says.recv() {
                return Err(daemon.give_up(workers, error));
            }
        }
        let mut daemon = daemon;
        match daemon.begin(places, workers.len()) {
            Ok(()) => Ok((daemon, workers)),
            Err(error) => Err(daemon.give_up(workers, error)),
        }
    }

    /// Waits for all ports, and begins to answer.
    fn begin(&mut self, places: Places, workers: usize) -> Result<(), Error> {
        for _ in 0..workers {
            loop {
                match self.news.recv() {
                    Ok(News::Opened(number, Ok(kinds))) => {
                        self.opened(number, &kinds);
                        break;
                    }
                    Ok(News::Opened(_, Err(error))) => return Err(Error::Worker(error)),
                    Ok(_) => {}
                    Err(_) => return Err(Error::Worker("a worker has ended".into())),
                }
            }
        }
        bind(self.options.cpus.first().copied())?;
        if let Some(error) = self.answer_at(places).into_iter().next() {
            let asked_for = self.options.metrics.is_some() || self.options.status_socket.is_some();
            if asked_for {
                return Err(Error::Service(error));
            }
        }
        self.log.write(
            &Record::new(Level::Info, "started")
                .with("config", self.options.config.display().to_string())
                .with("routes", self.control.config().routes.len())
                .with("workers", workers)
                .with("version", env!("CARGO_PKG_VERSION")),
        );
        Ok(())
    }

    fn give_up(self, workers: Workers, error: Error) -> Error {
        self.end(workers);
        error
    }

    fn serve(mut self, workers: Workers) {
        let mut out = Actions::default();
        let (mut links_at, mut file_at) = (Instant::ZERO, Instant::now() + FILE);
        while !self.options.stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            let next = self.control.next_deadline().min(links_at).min(file_at);
            let wait = next.since(now).min(PULSE);
            let mut news = match self.news.recv_timeout(wait) {
                Ok(news) => Some(news),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let now = Instant::now();
            let mut left = BATCH;
            while let Some(one) = news {
                self.take(now, one);
                left -= 1;
                news = if left > 0 {
                    self.news.try_recv().ok()
                } else {
                    None
                };
            }
            if now >= links_at {
                links_at = now + LINKS;
                self.look_at_links(now);
            }
            if now >= file_at || self.options.reload.load(Ordering::Relaxed) {
                file_at = now + FILE;
                let asked = self.options.reload.swap(false, Ordering::Relaxed);
                if self.watch.changed() || asked {
                    self.reload(now);
                }
            }
            self.control.tick(now, &mut out);
            self.put_out(&mut out);
            while let Ok(reply) = self.asks.try_recv() {
                let _ = reply.try_send(self.report());
            }
        }
        self.end(workers);
    }

    fn take(&mut self, now: Instant, news: News) {
        match news {
            News::Frame(from, frame) => self.control.receive(now, from, &frame),
            News::Opened(number, Ok(kinds)) => self.opened(number, &kinds),
            News::Opened(number, Err(error)) | News::Lost(number, error) => self.log.write(
                &Record::new(Level::Error, "port")
                    .with("worker", number)
                    .with("error", error),
            ),
            News::Nudge => {}
        }
    }

    fn opened(&self, number: usize, kinds: &[String; 2]) {
        let [private, public] = kinds;
        self.log.write(
            &Record::new(Level::Info, "opened")
                .with("worker", number)
                .with("private", private.as_str())
                .with("public", public.as_str()),
        );
    }

    /// Tells the control side what interfaces are like now, and workers where they have become
    /// others.
    fn look_at_links(&mut self, now: Instant) {
        let links = Interfaces::look(self.control.config(), self.options.kind, &self.links);
        self.control
            .interface_changed(now, InterfaceId::Private, links.private);
        self.control
            .interface_changed(now, InterfaceId::Public, links.public);
        let replanned = links.plan != self.links.plan;
        self.links = links;
        if replanned {
            self.publish();
        }
    }

    fn publish(&self) {
        self.shared.publish(Published {
            tables: Arc::clone(self.control.tables()),
            plan: Arc::clone(&self.links.plan),
        });
    }

    /// Takes over a changed file. One that is wrong is refused, and everything goes on as before.
    fn reload(&mut self, now: Instant) {
        let taken = Config::load(&self.options.config)
            .map_err(|error| error.to_string())
            .and_then(|(config, warnings)| {
                warn(&self.log, &warnings);
                // Interfaces that are not there are as wrong as anything else.
                Interfaces::find(&config, self.options.kind).map_err(|error| error.to_string())?;
                let places = places(&self.options, &config);
                self.control
                    .reconfigure(now, config)
                    .map_err(|error| error.to_string())?;
                Ok(places)
            });
        match taken {
            Ok(places) => {
                self.reloads += 1;
                self.reload_error = None;
                self.look_at_links(now);
                if places != self.places {
                    self.answer_at(places);
                }
            }
            Err(error) => {
                self.refused += 1;
                let first = error.lines().next().unwrap_or_default().to_owned();
                for line in error.lines() {
                    let record = Record::new(Level::Error, "refused");
                    self.log.write(&record.with("error", line));
                }
                self.reload_error = Some(first);
            }
        }
    }

    /// Answers in these places, in place of those before, and says where it cannot.
    fn answer_at(&mut self, places: Places) -> Vec<String> {
        let mut errors = Vec::new();
        self.service = None;
        self.service = Service::start(&places, self.asker.clone(), &mut errors);
        self.places = places;
        for error in &errors {
            let record = Record::new(Level::Warn, "service");
            self.log.write(&record.with("error", error.as_str()));
        }
        errors
    }

    /// Does what the control side says: tables first, then the frames that tell peers of them.
    fn put_out(&mut self, out: &mut Actions) {
        if out.tables.take().is_some() {
            self.publish();
        }
        let any = !out.frames.is_empty();
        for frame in out.frames.drain(..) {
            if self.frames.try_send(frame).is_err() {
                self.own_lost += 1;
            }
        }
        if any {
            if let Some(first) = self.shared.workers.first() {
                first.wake();
            }
        }
        for record in out.log.drain(..) {
            self.log.write(&record);
        }
    }

    fn report(&self) -> Report {
        let counts: Vec<_> = self
            .shared
            .workers
            .iter()
            .map(|w| w.counts().clone())
            .collect();
        let sum = |of: fn(&shared::Counts) -> &TrafficCounters| {
            let mut sum = TrafficCounters::default();
            counts.iter().for_each(|counts| sum.add(of(counts)));
            TrafficReport::of(&sum)
        };
        let cpus = worker_cpus(&self.options.cpus);
        let workers = cpus.iter().zip(&counts);
        Report {
            version: env!("CARGO_PKG_VERSION").into(),
            config: self.options.config.display().to_string(),
            pid: std::process::id(),
            uptime_s: Instant::now().since(self.started).as_secs(),
            reloads: self.reloads,
            reloads_refused: self.refused,
            reload_error: self.reload_error.clone(),
            workers: workers
                .map(|(cpu, counts)| WorkerReport::of(*cpu, counts))
                .collect(),
            outbound: sum(|counts| &counts.sent),
            inbound: sum(|counts| &counts.received),
            control_lost: self.shared.control_lost.load(Ordering::Relaxed) + self.own_lost,
            status: self.control.status(),
        }
    }

    /// Lets workers forward what has arrived and close their ports, and logs what was counted.
    fn end(mut self, workers: Workers) {
        self.service = None;
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.wake_all();
        // A worker that has news waits for room among them.
        let (_, none) = sync_channel(1);
        drop(std::mem::replace(&mut self.news, none));
        for worker in workers {
            if worker.join().is_err() {
                let record = Record::new(Level::Error, "worker");
                self.log.write(&record.with("error", "it has panicked"));
            }
        }
        let report = self.report();
        for (name, direction) in [("outbound", &report.outbound), ("inbound", &report.inbound)] {
            let mut record = Record::new(Level::Info, "counted")
                .with("direction", name)
                .with("received", direction.received)
                .with("forwarded", direction.forwarded)
                .with("control", direction.control);
            for cause in crate::dataplane::DropReason::ALL {
                if let Some(&n) = direction.dropped.get(cause.name()) {
                    record = record.with(cause.name(), n);
                }
            }
            self.log.write(&record);
        }
        self.log
            .write(&Record::new(Level::Info, "stopped").with("uptime_s", report.uptime_s));
    }
}

/// A core for each worker, where they are to be bound.
fn worker_cpus(cpus: &[usize]) -> Vec<Option<usize>> {
    match cpus {
        [] => vec![None],
        [one] => vec![Some(*one)],
        [_, rest @ ..] => rest.iter().copied().map(Some).collect(),
    }
}

/// Binds this thread to a core.
fn bind(cpu: Option<usize>) -> Result<(), Error> {
    let Some(cpu) = cpu else { return Ok(()) };
    if cpu >= CpuSet::MAX_CPU {
        let error = std::io::Error::from(std::io::ErrorKind::InvalidInput);
        return Err(Error::Cpu(cpu, error));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|error| Error::Cpu(cpu, error.into()))
}

fn places(options: &Options, config: &Config) -> Places {
    let socket = options
        .status_socket
        .as_ref()
        .or(config.status_socket.as_ref());
    Places {
        metrics: options.metrics.or(config.metrics),
        socket: Some(
            socket
                .cloned()
                .unwrap_or_else(|| default_socket(&options.config)),
        ),
    }
}

fn warn(log: &Log, warnings: &[Warning]) {
    for warning in warnings {
        let record = Record::new(Level::Warn, "config").with("file", warning.file.as_str());
        let record = match warning.line {
            Some(line) => record.with("line", line),
            None => record,
        };
        log.write(&record.with("text", warning.text.as_str()));
    }
}
