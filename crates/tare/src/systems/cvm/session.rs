//! One measurement: a guest that serves, and its clients in the host's process.

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, Context as _};
use rustix::time::{clock_gettime, ClockId};
use rustls::pki_types::ServerName;
use tare_cvmnet::breakdown::{Breakdown, Off, Probe, Totals};
use tare_cvmnet::guest::Guest;
use tare_cvmnet::host::merge::Limits;
use tare_cvmnet::host::{Device, DeviceSettings, Peer};
use tare_cvmnet::region::Region;
use tare_cvmnet::ring::{Doorbell, Driver as RingDriver, ExitCounts, Notification, Settings};
use tare_cvmnet::server::bulk::{Sink, Source};
use tare_cvmnet::server::{
    Application, Body, Http, HttpConfig, Memcached, Resp, RespConfig, Service, Store, Time,
};
use tare_cvmnet::tcp::{Config, Secret};
use tare_cvmnet::tls::{Client, Identity, Options, Server, Suites};
use tare_cvmnet::variant::{Exits, Variant};
use tare_lab::choices;
use tare_sim::Instant;

use super::client::{self, Clients, Protocol};

const GUEST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const NAME: &str = "guest.example";
/// The first port; each connection of the bulk workloads has one.
const PORT: u16 = 4433;
/// The part of a measurement's duration that its warm-up takes on top.
pub(super) const WARM_UP: f64 = 0.25;
/// The longest time for which no byte may arrive.
pub(super) const STANDSTILL: Duration = Duration::from_secs(5);
/// The longest time for the handshakes.
pub(super) const HANDSHAKES: Duration = Duration::from_secs(10);
/// The longest time for which a guest without work sleeps.
const PULSE: Duration = Duration::from_millis(1);
/// The most bytes of a store in the guest, and of files in its memory.
const STORE: usize = 64 << 20;

choices! {
    /// The work of the guest.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Work {
        /// Bulk data to the guest.
        Receive = "receive",
        /// Bulk data from the guest.
        Send = "send",
        /// A file over HTTPS.
        Https = "https",
        /// memcached's protocol: one set, ten gets, of which one hits.
        Memcached = "memcached",
        /// Redis' protocol: the same.
        Redis = "redis",
    }
}

impl Work {
    fn protocol(self) -> Option<Protocol> {
        match self {
            Work::Receive | Work::Send => None,
            Work::Https => Some(Protocol::Http),
            Work::Memcached => Some(Protocol::Memcached),
            Work::Redis => Some(Protocol::Redis),
        }
    }
}

/// The measurement to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) variant: Variant,
    pub(super) work: Work,
    /// Bytes of a file or value.
    pub(super) size: usize,
    pub(super) connections: u64,
    /// Bytes that a source of bulk data writes at a time.
    pub(super) buffer: usize,
    pub(super) suites: Suites,
    pub(super) exits: Exits,
    pub(super) switch_cycles: u64,
    /// The guest sleeps without work, and is notified; otherwise both sides poll.
    pub(super) has_interrupts: bool,
    pub(super) duration: Duration,
    /// Cycles are counted by category.
    pub(super) has_breakdown: bool,
}

/// The results of a measurement.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// Seconds of the clock.
    pub(super) clock: f64,
    /// Seconds of the guest's time with work.
    pub(super) busy: f64,
    /// Bytes of data that the guest opened and sealed.
    pub(super) data: u64,
    /// Units of work done: records of bulk data, requests over HTTP, turns of the stores' script.
    pub(super) operations: u64,
    /// Bytes of data in them.
    pub(super) bytes: u64,
    /// Requests that were answered.
    pub(super) requests: u64,
    /// Bytes that were compared.
    pub(super) verified: u64,
    /// Connections with a byte that was not sent.
    pub(super) wrong: u64,
    /// Frames and bytes that the guest received.
    pub(super) frames: u64,
    pub(super) frame_bytes: u64,
    /// Bytes copied through the bounce buffer.
    pub(super) bounced: u64,
    /// Faults of the ring and errors of TLS.
    pub(super) faults: u64,
    pub(super) exits: ExitCounts,
    pub(super) breakdown: Option<Totals>,
}

/// The guest's counters, which it stores after each of its turns.
#[derive(Default)]
struct Board {
    stop: AtomicBool,
    has_ended: AtomicBool,
    /// Raised at the start and the end of the measurement: the guest notes its totals.
    mark: AtomicU64,
    handshakes: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    records: AtomicU64,
    busy_ns: AtomicU64,
    frames: AtomicU64,
    bounced: AtomicU64,
    verified: AtomicU64,
    wrong: AtomicU64,
    faults: AtomicU64,
}

/// The counters at a moment.
struct Moment {
    now: Instant,
    bytes_in: u64,
    bytes_out: u64,
    records: u64,
    busy_ns: u64,
    frames: u64,
    bounced: u64,
    clients: client::Counters,
}

impl Moment {
    fn of(board: &Board, clients: &Clients) -> Moment {
        Moment {
            now: Instant::now(),
            bytes_in: board.bytes_in.load(Relaxed),
            bytes_out: board.bytes_out.load(Relaxed),
            records: board.records.load(Relaxed),
            busy_ns: board.busy_ns.load(Relaxed),
            frames: board.frames.load(Relaxed),
            bounced: board.bounced.load(Relaxed),
            clients: clients.counters(),
        }
    }

    fn data(&self) -> u64 {
        self.bytes_in + self.bytes_out
    }
}

/// The counts that the guest alone has at a mark.
type Marked = (ExitCounts, Option<Totals>);

/// Runs a guest and its clients; `start` is called when the warm-up is over.
///
/// # Errors
/// Something broke, or no byte arrived.
pub(super) fn run(
    setup: &Setup,
    start: impl FnOnce() -> std::io::Result<()>,
) -> anyhow::Result<Outcome> {
    match setup.has_breakdown {
        true => run_with(setup, start, Breakdown::start),
        false => run_with(setup, start, || Off),
    }
}

fn run_with<P: Probe>(
    setup: &Setup,
    start: impl FnOnce() -> std::io::Result<()>,
    probe: impl FnOnce() -> P + Send,
) -> anyhow::Result<Outcome> {
    let options = Options {
        suites: setup.suites,
        ..Options::default()
    };
    let identity = Identity::self_signed(&[NAME.into()]).map_err(text)?;
    let certificate = identity.certificate().context("a certificate")?.clone();
    let client = Client::new(&certificate, ServerName::try_from(NAME)?, &options).map_err(text)?;
    let server = Server::new(identity, &options).map_err(text)?;

    let value = client::value(setup.size);
    let folder = tempfile::tempdir().context("a folder for the file that is served")?;
    if setup.work == Work::Https {
        std::fs::write(folder.path().join(client::FILE), &*value)?;
    }
    let region = Region::create(&setup.variant.config(1)).map_err(text)?;
    let fd = region.fd().try_clone_to_owned()?;
    let notification = match setup.has_interrupts {
        true => Notification::Events {
            kick: Doorbell::new()?,
            interrupt: Doorbell::new()?,
        },
        false => Notification::Polling,
    };
    let board = Board::default();
    let (served, measured) = std::thread::scope(|scope| {
        let guest = scope.spawn(|| {
            let settings = Settings {
                exits: setup.exits,
                switch_cycles: setup.switch_cycles,
                notification: notification.clone(),
            };
            let content = (folder.path(), &value);
            let served = serve(fd, server, setup, settings, content, &board, probe);
            board.has_ended.store(true, Relaxed);
            served
        });
        // Wherever there are two processors, each side has one.
        let _ = tare_daemon::bind_to_cpu(Some(0));
        let measured = load(&region, client, setup, &notification, &value, &board, start);
        board.stop.store(true, Relaxed);
        (guest.join(), measured)
    });
    let marks = served.map_err(|_| anyhow!("the guest ended with a panic"))??;
    let (start, end, received) = measured?;

    let clock = end.now.since(start.now).as_secs_f64();
    let data = end.data() - start.data();
    if data == 0 {
        return Err(anyhow!("no byte arrived in {clock:.3} s"));
    }
    let requests = end.clients.requests - start.clients.requests;
    let turns = end.clients.turns - start.clients.turns;
    let (operations, bytes) = match setup.work {
        Work::Receive => (end.records - start.records, end.bytes_in - start.bytes_in),
        Work::Send => (end.records - start.records, end.bytes_out - start.bytes_out),
        Work::Https => (turns, turns * setup.size as u64),
        // A set and a get that hits.
        Work::Memcached | Work::Redis => (turns, 2 * turns * setup.size as u64),
    };
    let [first, .., last] = marks.as_slice() else {
        return Err(anyhow!("the guest noted no totals"));
    };
    Ok(Outcome {
        clock,
        busy: (end.busy_ns - start.busy_ns) as f64 * 1e-9,
        data,
        operations,
        bytes,
        requests,
        verified: received.0 + end.clients.verified + board.verified.load(Relaxed),
        wrong: received.1 + end.clients.wrong + board.wrong.load(Relaxed),
        frames: end.frames - start.frames,
        frame_bytes: end.bytes_in - start.bytes_in,
        bounced: end.bounced - start.bounced,
        faults: board.faults.load(Relaxed),
        exits: ExitCounts {
            kicks: last.0.kicks - first.0.kicks,
            interrupts: last.0.interrupts - first.0.interrupts,
            halts: last.0.halts - first.0.halts,
            cycles: last.0.cycles - first.0.cycles,
        },
        breakdown: last.1.zip(first.1).map(|(end, start)| end.since(&start)),
    })
}

fn text(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("{error}")
}

/// Returns the ports and servers of the guest.
fn services(
    setup: &Setup,
    folder: &Path,
    value: &Body,
    sink: &Sink,
    source: &Source,
) -> anyhow::Result<Vec<(u16, Box<dyn Service>)>> {
    let store = || -> anyhow::Result<Rc<RefCell<Store>>> {
        let mut store = Store::new(STORE);
        for n in 0..client::KEYS {
            let (key, now) = (client::key(n), Instant::now());
            let stored = store.set(key.as_bytes(), Arc::clone(value), 0, Instant::NEVER, now);
            stored.map_err(|_| anyhow!("values of {} bytes do not fit", setup.size))?;
        }
        Ok(Rc::new(RefCell::new(store)))
    };
    let one: Box<dyn Service> = match setup.work {
        Work::Receive | Work::Send => {
            let ports = (0..setup.connections).map(|n| {
                let service: Box<dyn Service> = match setup.work {
                    Work::Receive => Box::new(sink.clone()),
                    _ => Box::new(source.clone()),
                };
                (PORT + n as u16, service)
            });
            return Ok(ports.collect());
        }
        Work::Https => Box::new(Http::new(&HttpConfig {
            folder: folder.into(),
            cache_max: STORE,
            cached_file_max: STORE,
        })?),
        Work::Memcached => Box::new(Memcached::new(store()?)),
        Work::Redis => Box::new(Resp::new(store()?, RespConfig::default())),
    };
    Ok(vec![(PORT, one)])
}

/// Runs the guest until it is stopped; returns its totals at each mark.
fn serve<P: Probe>(
    fd: OwnedFd,
    server: Server,
    setup: &Setup,
    settings: Settings,
    (folder, value): (&Path, &Body),
    board: &Board,
    probe: impl FnOnce() -> P,
) -> anyhow::Result<Vec<Marked>> {
    let _ = tare_daemon::bind_to_cpu(Some(1));
    let region = Region::open(fd, &setup.variant.config(1)).map_err(text)?;
    let (source, sink) = bulk(setup);
    let services = services(setup, folder, value, &sink, &source)?;
    let probe = probe();
    let driver = RingDriver::new(region, 0, settings, probe.clone()).map_err(text)?;
    let config = setup.variant.tcp(Config {
        // Answers are not to wait for what acknowledges them.
        no_delay: setup.work.protocol().is_some(),
        ..Config::on_link([2, 0, 0, 0, 0, 2], GUEST)
    });
    let secret = Secret::new(&[1; 16]);
    let guest = Guest::new(driver, config, secret, server, services, probe.clone());
    let mut guest = guest.map_err(text)?;
    let mut busy = Duration::ZERO;
    let mut told_at = Instant::ZERO;
    let mut marks = Vec::new();
    while !board.stop.load(Relaxed) {
        probe.begin_turn();
        let time = Time::now();
        let turned = guest.turn(time);
        let is_busy = turned.map_err(|fault| anyhow!("the device was given up: {fault}"))?;
        if marks.len() as u64 != board.mark.load(Relaxed) {
            marks.push((guest.driver().exits(), probe.totals()));
        }
        match (is_busy, setup.has_interrupts) {
            (true, false) => busy += Instant::now().since(time.now),
            (true, true) => {}
            (false, false) => {
                std::hint::spin_loop();
                probe.turn_was_idle();
                continue;
            }
            (false, true) => {
                let woken = guest.wait(time.now, PULSE);
                woken.map_err(|fault| anyhow!("the device was given up: {fault}"))?;
            }
        }
        // Asleep it costs nothing; what it costs to fall asleep and to wake up is the guest's.
        if setup.has_interrupts && time.now.since(told_at) > Duration::from_micros(200) {
            told_at = time.now;
            let cpu = clock_gettime(ClockId::ThreadCPUTime);
            busy = Duration::new(cpu.tv_sec as u64, cpu.tv_nsec as u32);
        }
        let (served, driver) = (guest.counters(), guest.driver().counters());
        board.handshakes.store(served.handshakes, Relaxed);
        board.bytes_in.store(served.bytes_in, Relaxed);
        board.bytes_out.store(served.bytes_out, Relaxed);
        let records = served.records_in + served.records_out;
        board.records.store(records, Relaxed);
        board.frames.store(driver.received, Relaxed);
        board.bounced.store(driver.bounced, Relaxed);
        let faults = served.tls_failures + driver.faults;
        board.faults.store(faults, Relaxed);
        board.busy_ns.store(busy.as_nanos() as u64, Relaxed);
        board.verified.store(sink.counters().verified, Relaxed);
        board.wrong.store(sink.counters().wrong, Relaxed);
    }
    marks.push((guest.driver().exits(), probe.totals()));
    marks.truncate(2);
    Ok(marks)
}

/// Returns a source without end, and a sink that compares each hundredth record.
fn bulk(setup: &Setup) -> (Source, Sink) {
    (Source::new(u64::MAX, setup.buffer), Sink::new(100))
}

/// The counters at the start and the end, and the bytes of bulk data that the client has verified
/// and the connections that it found wrong.
type Measured = (Moment, Moment, (u64, u64));

/// Runs the host and its clients through warm-up and measurement.
fn load(
    region: &Region,
    client: Client,
    setup: &Setup,
    notification: &Notification,
    value: &Body,
    board: &Board,
    start: impl FnOnce() -> std::io::Result<()>,
) -> anyhow::Result<Measured> {
    let (source, sink) = bulk(setup);
    let protocol = setup.work.protocol();
    let clients = Clients::new(protocol.unwrap_or(Protocol::Http), Arc::clone(value));
    let place = Config {
        no_delay: protocol.is_some(),
        ..Config::on_link([2, 0, 0, 0, 0, 1], PEER)
    };
    let peer = Peer::new(place, Secret::new(&[2; 16]), client);
    let mut peer: Peer<Box<dyn Application>> = peer.map_err(text)?;
    for n in 0..setup.connections {
        let (application, port): (Box<dyn Application>, u64) = match setup.work {
            Work::Receive => (source.accept(), n),
            Work::Send => (sink.accept(), n),
            _ => (Box::new(clients.client(n)), 0),
        };
        let to = SocketAddr::from((GUEST, PORT + port as u16));
        peer.connect(Instant::now(), to, application)
            .map_err(text)?;
    }
    let settings = DeviceSettings {
        notification: notification.clone(),
        // Of `baseline-gro` it is the device's own merging, by the same code.
        merge: setup.variant.has_large_frames().then(Limits::default),
    };
    let mut device = Device::new(region, 0, settings, peer).map_err(text)?;
    let mut until = |is_done: &mut dyn FnMut(Instant) -> bool| -> anyhow::Result<()> {
        loop {
            let time = Time::now();
            if is_done(time.now) {
                return Ok(());
            }
            device.frames().turn(time);
            device.poll(time.now).map_err(text)?;
            if !device.frames().take_finished().is_empty() || board.has_ended.load(Relaxed) {
                let wrong = clients.counters().wrong;
                return Err(match wrong {
                    0 => anyhow!("a connection ended before the trial did"),
                    _ => {
                        anyhow!("{wrong} connections had an answer that is not what was asked for")
                    }
                });
            }
        }
    };
    let began = Instant::now();
    let mut is_late = false;
    until(&mut |now| {
        is_late = now.since(began) > HANDSHAKES;
        is_late || board.handshakes.load(Relaxed) == setup.connections
    })?;
    if is_late {
        return Err(anyhow!("the handshakes took more than {HANDSHAKES:?}"));
    }
    let warm = Instant::now() + setup.duration.mul_f64(WARM_UP);
    until(&mut |now| now >= warm)?;
    start()?;
    board.mark.store(1, Relaxed);
    let start = Moment::of(board, &clients);
    let end = start.now + setup.duration;
    // On a busy machine a side may stand still for longer than a short trial.
    let latest = end + STANDSTILL;
    until(&mut |now| {
        // An answer may have been sealed before the start.
        let moment = Moment::of(board, &clients);
        let has_turns = protocol.is_none() || moment.clients.turns > start.clients.turns;
        let has_moved = has_turns && moment.data() > start.data();
        now >= latest || (now >= end && has_moved)
    })?;
    board.mark.store(2, Relaxed);
    let end = Moment::of(board, &clients);
    let counters = sink.counters();
    Ok((start, end, (counters.verified, counters.wrong)))
}
