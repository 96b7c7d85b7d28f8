//! A gateway on real interfaces: a thread for each worker, and one for everything else.
//!
//! Workers own a queue of each interface and forward; they look for new tables once per burst and
//! never wait for another thread. The control thread owns configuration, keys, next hops and the
//! log. Frames for it wait in bounded queues, one of which is for ARP and neighbor discovery alone.

mod handover;
mod in_memory;
mod interfaces;
mod lock;
mod report;
mod shared;
mod succession;
mod worker;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError, SyncSender};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tare_daemon::{
    bind_to_cpu, BindError, Checked, Endpoints, FileContent, Host, Level, LogOptions, Record,
    Signals,
};
use tare_port::{Descriptors, Kind};
use tare_sim::Instant;

use crate::config::{self, Config, Warning};
use crate::control::{self, Actions, Control};
use crate::dataplane::{DropReason, TrafficCounters, WorkerId};
use crate::exchange::system_entropy;
use crate::forwarder::Task;
use crate::interface::InterfaceId;
use handover::{Listener, Predecessor, Wire};
use interfaces::Interfaces;
use lock::InterfaceLocks;

pub(crate) use in_memory::InMemory;
pub use report::{PortCounters, PortReport, Report, WorkerReport};
use shared::{control_queues, Counts, Inbox, Order, Published, Shared, ToControl, WorkerEvent};
use worker::Worker;

/// The name of this kind of daemon, in the names of its sockets.
pub const KIND: &str = "gateway";

/// Frames of the control side that may wait to be sent.
const QUEUE: usize = 4096;
/// Frames that the control side takes before it looks at anything else.
const BATCH: usize = 256;
/// The interval at which the interfaces are looked at.
const INTERFACES_INTERVAL: Duration = Duration::from_millis(250);

/// The time for which a handover waits for negotiations in progress.
const PROPOSING_MAX: Duration = Duration::from_secs(2);

/// Settings of a gateway beside its configuration file.
#[derive(Clone, Debug)]
pub struct Options {
    /// The configuration file.
    pub config: PathBuf,
    /// The kind of ports to open.
    pub kind: Kind,
    /// CPUs: the control thread is bound to the first, a worker to each other one. A single one is
    /// for all threads; with none there is one worker, and no thread is bound.
    pub cpus: Vec<usize>,
    /// True if workers never sleep.
    pub busy_poll: bool,
    /// The endpoints for status; what is set here has precedence over the file.
    pub endpoints: Endpoints,
    /// The log.
    pub log: LogOptions,
    /// Requests to stop, to reload and to start a successor.
    pub signals: Signals,
    /// The command that takes over when that is requested; empty if none can.
    pub successor: Vec<OsString>,
}

/// The reason why a gateway could not be run.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The configuration file.
    Config(config::Error),
    /// The configuration contradicts itself.
    Control(control::Error),
    /// The keys.
    Exchange(crate::exchange::Error),
    /// The interfaces.
    Port(tare_port::Error),
    /// Another gateway uses an interface.
    Lock(String),
    /// A worker: its ports could not be opened, or it has ended.
    Worker(String),
    /// The CPU that a thread should be bound to.
    Cpu(BindError),
    /// The endpoints.
    Service(String),
    /// Threads, or what they share.
    System(std::io::Error),
    /// The takeover of a gateway that runs.
    Handover(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Config(error) => error.fmt(f),
            Error::Control(error) => error.fmt(f),
            Error::Exchange(error) => error.fmt(f),
            Error::Port(error) => error.fmt(f),
            Error::Cpu(error) => error.fmt(f),
            Error::Worker(error)
            | Error::Service(error)
            | Error::Lock(error)
            | Error::Handover(error) => f.write_str(error),
            Error::System(error) => write!(f, "the gateway could not be started: {error}"),
        }
    }
}

impl std::error::Error for Error {}

/// Runs a gateway on this thread and on those that it starts, until a stop is requested.
///
/// # Errors
/// It cannot be started, or a worker has ended by itself. Every other error while it runs is
/// reported in its log, and it goes on.
pub fn run(options: Options) -> Result<(), Error> {
    let (daemon, workers) = Daemon::start(options, false)?;
    daemon.serve(workers)
}

/// Takes over from the gateway that runs by the same configuration file or status socket, with its
/// ports, SAs and next hops, and goes on in its place as [`run`] does. No packet is lost.
///
/// # Errors
/// There is none, or it cannot be taken over; it goes on then. Later as [`run`].
pub fn take_over(options: Options) -> Result<(), Error> {
    let (daemon, workers) = Daemon::start(options, true)?;
    daemon.serve(workers)
}

/// Reads a configuration without running it.
///
/// # Errors
/// It is wrong.
pub fn check(config: &Path) -> Result<Checked, config::Error> {
    let (read, warnings) = Config::load(config)?;
    let routes = read.routes.len();
    let s = if routes == 1 { "" } else { "s" };
    Ok(Checked {
        summary: format!(
            "{}: {routes} route{s} between {} and {}",
            config.display(),
            read.private.device,
            read.public.device
        ),
        warnings: warnings.iter().map(record).collect(),
    })
}

/// Returns the status socket of the gateway that runs, or would run, by this configuration file.
pub fn socket_of(config: &Path) -> PathBuf {
    let named = match Config::load(config) {
        Ok((config, _)) => config.status_socket,
        // The file may have become wrong since the gateway was started.
        Err(_) => config::read_file(config)
            .ok()
            .and_then(|content| named_socket(&String::from_utf8_lossy(&content.bytes))),
    };
    named.unwrap_or_else(|| tare_daemon::default_socket(KIND, config))
}

/// Returns the socket that is named in the text of a configuration that cannot be read otherwise.
fn named_socket(text: &str) -> Option<PathBuf> {
    let (_, rest) = text.split_once("status-socket")?;
    let (value, _) = rest.split_once(';')?;
    Some(value.trim().trim_matches(['"', '\'']).into())
}

struct Daemon {
    host: Host<Report>,
    options: Options,
    control: Control,
    interfaces: Interfaces,
    locks: InterfaceLocks,
    shared: Arc<Shared>,
    inbox: Inbox,
    tasks: SyncSender<Task>,
    own_lost: u64,
    /// The counters of the workers of the process before.
    before: Vec<Counts>,
    /// For threads that tell of events.
    to_control: ToControl,
    listener: Option<Listener>,
    /// The process that is ready to take over.
    /// With the time at which it is handed over to at the latest.
    successor: Option<(Wire, Instant)>,
    /// The process that was started to take over.
    started: Option<Child>,
}

type Workers = Vec<JoinHandle<()>>;

impl Daemon {
    fn start(options: Options, takes_over: bool) -> Result<(Daemon, Workers), Error> {
        // First, so that the threads for log, files and clients are on this CPU as well, and take
        // none from the workers.
        bind_to_cpu(options.cpus.first().copied()).map_err(Error::Cpu)?;
        let (to_control, inbox) = control_queues();
        let wake = to_control.clone();
        let wake = move || wake.wake();
        let signals = options.signals.clone();
        let mut host = Host::new(
            &options.config,
            config::BYTES_MAX,
            options.log,
            signals,
            wake,
        );
        let (config, warnings) =
            Config::of(&options.config, host.first_config()).map_err(Error::Config)?;
        warnings.iter().for_each(|w| host.log().write(&record(w)));
        let interfaces = Interfaces::find(&config, options.kind).map_err(Error::Port)?;
        let mut locks = InterfaceLocks::default();
        // The process before has them until it ends.
        if !takes_over {
            let taken = locks.on(interfaces.plan.both(), host.log());
            locks = taken.map_err(|error| Error::Lock(error.to_string()))?;
        }
        let entropy = system_entropy().map_err(Error::Exchange)?;
        let endpoints = endpoints(&options, &config);
        let cpus = worker_cpus(&options.cpus);
        let predecessor = match takes_over {
            true => Some(ask(&endpoints, cpus.len(), &interfaces)?),
            false => None,
        };
        let order = match takes_over {
            true => Order::Hold,
            false => Order::Forward,
        };
        let (private, public) = (interfaces.private, interfaces.public);
        let now = Instant::now();
        let control = Control::new(config, private, public, cpus.len(), entropy, now);
        let (control, ids) = control.map_err(Error::Control)?;
        let published = Published {
            tables: Arc::clone(control.tables()),
            plan: Arc::clone(&interfaces.plan),
        };
        let shared = Shared::new(published, cpus.len(), options.busy_poll, order);
        let (tasks, worker_tasks) = sync_channel(QUEUE);
        let mut daemon = Daemon {
            host,
            control,
            interfaces,
            locks,
            shared: Arc::new(shared.map_err(Error::System)?),
            inbox,
            tasks,
            own_lost: 0,
            before: Vec::new(),
            to_control,
            listener: None,
            successor: None,
            started: None,
            options,
        };
        let mut workers = Workers::new();
        let started = daemon.start_all(&mut workers, ids, worker_tasks, predecessor, endpoints);
        match started {
            Ok(()) => Ok((daemon, workers)),
            Err(error) => {
                daemon.end(workers);
                Err(error)
            }
        }
    }

    /// Starts workers and begins to answer, in between taking over from another process.
    fn start_all(
        &mut self,
        workers: &mut Workers,
        ids: Vec<WorkerId>,
        tasks: Receiver<Task>,
        mut predecessor: Option<Predecessor>,
        endpoints: Endpoints,
    ) -> Result<(), Error> {
        let takes_over = predecessor.is_some();
        let ports = predecessor.as_mut().map(Predecessor::take_ports);
        self.start_workers(workers, ids, tasks, ports.unwrap_or_default())?;
        self.wait_for_ports(workers.len())?;
        if let Some(predecessor) = predecessor {
            self.succeed(predecessor).map_err(Error::Handover)?;
        }
        self.begin(endpoints, workers.len(), takes_over)
    }

    fn start_workers(
        &self,
        workers: &mut Workers,
        ids: Vec<WorkerId>,
        tasks: Receiver<Task>,
        inherited: Vec<[Descriptors; 2]>,
    ) -> Result<(), Error> {
        let mut tasks = Some(tasks);
        let mut inherited = inherited.into_iter();
        for (id, cpu) in ids.into_iter().zip(worker_cpus(&self.options.cpus)) {
            let number = id.number();
            let worker = Worker {
                number,
                id: Some(id),
                shared: Arc::clone(&self.shared),
                to_control: self.to_control.clone(),
                // Frames of the control side leave by the first worker's ports.
                tasks: tasks.take().unwrap_or_else(|| sync_channel(1).1),
                inherited: inherited.next(),
            };
            let thread = std::thread::Builder::new().name(format!("tare-worker-{number}"));
            let (bound_to, bound) = sync_channel(1);
            let spawned = thread.spawn(move || {
                let result = bind_to_cpu(cpu);
                let is_bound = result.is_ok();
                let _ = bound_to.send(result);
                if is_bound {
                    worker.run();
                }
            });
            workers.push(spawned.map_err(Error::System)?);
            if let Ok(Err(error)) = bound.recv() {
                return Err(Error::Cpu(error));
            }
        }
        Ok(())
    }

    /// Waits until the ports of all workers are open.
    fn wait_for_ports(&mut self, workers: usize) -> Result<(), Error> {
        for _ in 0..workers {
            loop {
                match self.inbox.events.recv() {
                    Ok(WorkerEvent::Opened(number, Ok(kinds))) => {
                        self.log_opened(number, &kinds);
                        break;
                    }
                    Ok(WorkerEvent::Opened(_, Err(error))) => return Err(Error::Worker(error)),
                    // There may be a state to take over before anything can be answered.
                    Ok(WorkerEvent::Frame(..)) => self.own_lost += 1,
                    Ok(_) => {}
                    Err(_) => return Err(Error::Worker("a worker has ended".into())),
                }
            }
        }
        Ok(())
    }

    /// Begins to answer.
    fn begin(
        &mut self,
        endpoints: Endpoints,
        workers: usize,
        takes_over: bool,
    ) -> Result<(), Error> {
        self.listen(&endpoints);
        if let Some(error) = self.host.serve_at(endpoints).into_iter().next() {
            // An endpoint of the command line is an order; one of the file or the default one is
            // no reason not to forward packets, and none is a reason to end a gateway that runs.
            if !takes_over && self.options.endpoints != Endpoints::default() {
                return Err(Error::Service(error));
            }
        }
        self.host.log().write(
            &Record::new(Level::Info, "started")
                .with("config", self.options.config.display().to_string())
                .with("routes", self.control.config().routes.len())
                .with("workers", workers)
                .with("version", env!("CARGO_PKG_VERSION")),
        );
        Ok(())
    }

    /// Does the work of the control thread until a stop is requested.
    ///
    /// # Errors
    /// A worker has ended by itself.
    fn serve(mut self, workers: Workers) -> Result<(), Error> {
        let mut outcome = Ok(());
        let mut actions = Actions::default();
        let mut interfaces_at = Instant::ZERO;
        while !self.host.is_stopped() {
            let now = Instant::now();
            let next = self.control.next_deadline().min(interfaces_at);
            let wait = next.since(now).min(self.host.wait(now));
            let mut event = match self.inbox.events.recv_timeout(wait) {
                Ok(event) => Some(event),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let now = Instant::now();
            for (from, frame) in self.inbox.neighbor_frames() {
                self.control.receive(now, from, &frame);
            }
            let mut left = BATCH;
            while let Some(one) = event {
                self.handle(now, one);
                left -= 1;
                event = match left {
                    0 => None,
                    _ => self.inbox.events.try_recv().ok(),
                };
            }
            if now >= interfaces_at {
                interfaces_at = now + INTERFACES_INTERVAL;
                self.look_at_interfaces(now);
                self.locks.answer();
                // Its packets would be lost for good while the routes are still reported as up, so
                // the gateway ends, and a supervisor starts it again.
                outcome = check_running(&workers);
                if outcome.is_err() {
                    break;
                }
            }
            if let Some(changed) = self.host.changed_config(now) {
                self.reload(now, changed);
            }
            if self.options.signals.take_succession() {
                self.start_successor();
            }
            self.control.tick(now, &mut actions);
            self.apply(&mut actions);
            self.host.answer(|_| self.report());
            let due = |(_, end): &mut (Wire, Instant)| now >= *end || !self.control.is_proposing();
            if let Some((successor, _)) = self.successor.take_if(due) {
                if self.hand_over(successor) {
                    break;
                }
            }
        }
        self.end(workers);
        outcome
    }

    fn handle(&mut self, now: Instant, event: WorkerEvent) {
        match event {
            WorkerEvent::Frame(from, frame) => self.control.receive(now, from, &frame),
            WorkerEvent::Opened(number, Ok(kinds)) => self.log_opened(number, &kinds),
            WorkerEvent::Opened(number, Err(error)) | WorkerEvent::Lost(number, error) => {
                let record = Record::new(Level::Error, "port").with("worker", number);
                self.host.log().write(&record.with("error", error));
            }
            WorkerEvent::Successor(wire) => self.successor = Some((wire, now + PROPOSING_MAX)),
            WorkerEvent::Wake => {}
        }
    }

    fn log_opened(&self, number: usize, kinds: &[String; 2]) {
        let [private, public] = kinds;
        self.host.log().write(
            &Record::new(Level::Info, "opened")
                .with("worker", number)
                .with("private", private.as_str())
                .with("public", public.as_str()),
        );
    }

    /// Tells the control side the state of the interfaces, and workers if they are other ones.
    fn look_at_interfaces(&mut self, now: Instant) {
        let config = self.control.config();
        let interfaces = Interfaces::look(config, self.options.kind, &self.interfaces);
        let (private, public) = (interfaces.private, interfaces.public);
        self.control
            .interface_changed(now, InterfaceId::Private, private);
        self.control
            .interface_changed(now, InterfaceId::Public, public);
        let replanned = interfaces.plan != self.interfaces.plan;
        self.interfaces = interfaces;
        if replanned {
            self.lock();
            self.publish();
        }
    }

    /// Takes the locks on the interfaces in use, which may be others of the same names.
    fn lock(&mut self) {
        let log = self.host.log();
        match self.locks.on(self.interfaces.plan.both(), log) {
            Ok(locks) => self.locks = locks,
            Err(error) => {
                let record = Record::new(Level::Error, "lock");
                log.write(&record.with("error", error.to_string()));
            }
        }
    }

    fn publish(&self) {
        self.shared.publish(Published {
            tables: Arc::clone(self.control.tables()),
            plan: Arc::clone(&self.interfaces.plan),
        });
    }

    /// Takes over a changed file. One that is wrong is refused, and everything goes on as before.
    fn reload(&mut self, now: Instant, changed: io::Result<FileContent>) {
        let outcome = self.reconfigure(now, changed);
        if let Ok(endpoints) = &outcome {
            self.look_at_interfaces(now);
            self.listen(endpoints);
            self.host.serve_at(endpoints.clone());
        }
        self.host.reloaded(outcome.map(drop));
    }

    fn reconfigure(
        &mut self,
        now: Instant,
        changed: io::Result<FileContent>,
    ) -> Result<Endpoints, String> {
        let loaded = Config::of(&self.options.config, changed);
        let (config, warnings) = loaded.map_err(|error| error.to_string())?;
        let log = self.host.log();
        warnings.iter().for_each(|w| log.write(&record(w)));
        // Interfaces that are missing or in use are as wrong as anything else.
        let interfaces =
            Interfaces::find(&config, self.options.kind).map_err(|error| error.to_string())?;
        let locks = self.locks.on(interfaces.plan.both(), log);
        let locks = locks.map_err(|error| error.to_string())?;
        let endpoints = endpoints(&self.options, &config);
        let reconfigured = self.control.reconfigure(now, config);
        reconfigured.map_err(|error| error.to_string())?;
        self.locks = locks;
        Ok(endpoints)
    }

    /// Applies what the control side decided: tables first, then the frames that tell peers of
    /// them.
    fn apply(&mut self, actions: &mut Actions) {
        if actions.tables.take().is_some() {
            self.publish();
        }
        let mut any = false;
        for task in actions.frames.drain(..) {
            any = true;
            if self.tasks.try_send(task).is_err() {
                self.own_lost += 1;
            }
        }
        if any {
            if let Some(first) = self.shared.workers.first() {
                first.wake();
            }
        }
        for record in actions.log.drain(..) {
            self.host.log().write(&record);
        }
    }

    fn report(&self) -> Report {
        let counts = self.counts();
        let sum = |of: fn(&shared::Counts) -> &TrafficCounters| {
            let mut sum = TrafficCounters::default();
            counts.iter().for_each(|counts| sum.add(of(counts)));
            sum
        };
        let workers = worker_cpus(&self.options.cpus).into_iter().zip(&counts);
        Report {
            process: self.host.status(env!("CARGO_PKG_VERSION")),
            workers: workers.map(|(cpu, counts)| counts.report(cpu)).collect(),
            outbound: sum(|counts| &counts.sent),
            inbound: sum(|counts| &counts.received),
            control_lost: self.shared.control_lost.load(Ordering::Relaxed) + self.own_lost,
            metrics_per_sa: self.control.config().metrics_per_sa,
            status: self.control.status(),
        }
    }

    /// Returns the counters of the workers, with those of the process before.
    fn counts(&self) -> Vec<Counts> {
        let counts = self.shared.workers.iter().map(|w| w.counts().clone());
        let mut counts: Vec<_> = counts.collect();
        for (counts, before) in counts.iter_mut().zip(&self.before) {
            counts.add(before);
        }
        counts
    }

    /// Lets workers forward what has arrived and close their ports, and logs the counters.
    fn end(mut self, workers: Workers) {
        self.listener = None;
        self.host.end_service();
        self.shared.give_order(Order::Stop);
        // A worker that has an event to tell waits for room among them; without a receiver it goes
        // on at once.
        let (_, none) = sync_channel(1);
        drop(std::mem::replace(&mut self.inbox.events, none));
        let log = self.host.log();
        for (number, worker) in workers.into_iter().enumerate() {
            if worker.join().is_err() {
                let record = Record::new(Level::Error, "worker").with("worker", number);
                log.write(&record.with("error", "it has panicked"));
            }
        }
        // The process that takes over waits for this, and then takes the locks.
        self.locks = InterfaceLocks::default();
        self.successor = None;
        let report = self.report();
        for (name, counters) in [("outbound", &report.outbound), ("inbound", &report.inbound)] {
            let mut record = Record::new(Level::Info, "counted")
                .with("direction", name)
                .with("received", counters.received)
                .with("forwarded", counters.forwarded)
                .with("control", counters.control);
            for reason in DropReason::ALL {
                let n = counters.dropped(reason);
                if n > 0 {
                    record = record.with(reason.name(), n);
                }
            }
            log.write(&record);
        }
        let uptime = report.process.uptime_s;
        log.write(&Record::new(Level::Info, "stopped").with("uptime_s", uptime));
    }
}

/// Returns an error if a worker has ended, which none does before it is ordered to.
fn check_running(workers: &Workers) -> Result<(), Error> {
    match workers.iter().position(JoinHandle::is_finished) {
        None => Ok(()),
        Some(number) => Err(Error::Worker(format!(
            "worker {number} has ended by itself, so the gateway ends; the log may say why"
        ))),
    }
}

/// Asks the gateway that runs for a handover.
fn ask(endpoints: &Endpoints, workers: usize, of: &Interfaces) -> Result<Predecessor, Error> {
    let status = endpoints.socket.as_deref().unwrap_or(Path::new(""));
    let socket = handover::socket_beside(status);
    let plan = &of.plan;
    let interface = |public| {
        let queues = if public { &plan.public } else { &plan.private };
        (queues.index, queues.queue)
    };
    Predecessor::ask(&socket, workers, interface).map_err(Error::Handover)
}

/// Returns the CPU of each worker, where it is to be bound.
fn worker_cpus(cpus: &[usize]) -> Vec<Option<usize>> {
    match cpus {
        [] => vec![None],
        [one] => vec![Some(*one)],
        [_, rest @ ..] => rest.iter().copied().map(Some).collect(),
    }
}

fn endpoints(options: &Options, config: &Config) -> Endpoints {
    let Endpoints { metrics, socket } = options.endpoints.clone();
    let socket = socket.or_else(|| config.status_socket.clone());
    let default = || tare_daemon::default_socket(KIND, &options.config);
    Endpoints {
        metrics: metrics.or(config.metrics),
        socket: Some(socket.unwrap_or_else(default)),
    }
}

fn record(warning: &Warning) -> Record {
    let record = Record::new(Level::Warn, "config").with("file", warning.file.as_str());
    let record = match warning.line {
        Some(line) => record.with("line", line),
        None => record,
    };
    record.with("text", warning.text.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_ended_by_itself_ends_the_gateway() {
        let (stop, stopped) = sync_channel::<()>(0);
        let mut workers: Workers = vec![std::thread::spawn(move || {
            let _ = stopped.recv();
        })];
        assert!(check_running(&workers).is_ok());
        workers.push(std::thread::spawn(|| panic!("an injected fault")));
        while !workers[1].is_finished() {
            std::thread::yield_now();
        }
        let error = check_running(&workers).unwrap_err().to_string();
        assert!(error.contains("worker 1 has ended"), "{error}");
        drop(stop);
    }
}
