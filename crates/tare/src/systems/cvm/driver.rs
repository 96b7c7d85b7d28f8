//! The driver `cvmnet`: bytes over TLS between a guest and a client in the host's process.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{anyhow, Context as _};
use rustls::pki_types::ServerName;
use tare_cvmnet::breakdown::Off;
use tare_cvmnet::guest::Guest;
use tare_cvmnet::host::merge::Limits;
use tare_cvmnet::host::{Device, DeviceSettings, Peer};
use tare_cvmnet::region::Region;
use tare_cvmnet::ring::{Driver as RingDriver, Settings};
use tare_cvmnet::server::bulk::{Sink, Source};
use tare_cvmnet::server::{Application, Service, Time};
use tare_cvmnet::tcp::{Config, Network, Secret};
use tare_cvmnet::tls::{Client, Identity, Options, Server, Suites};
use tare_cvmnet::variant::{Exits, Variant};
use tare_lab::driver::Expected;
use tare_lab::parameters::{Bytes, Choice};
use tare_lab::{choices, figures, parameters};
use tare_sim::Instant;

use crate::agent::{Agent, TrialError};
use crate::systems::gcm::KeyBits;
use crate::systems::workload::{by_the_clock, Workload};

const GUEST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const NAME: &str = "guest.example";
/// The first port; each connection has one.
const PORT: u16 = 4433;
/// The data of a full record, in bytes.
const RECORD: f64 = 16384.0;
/// The part of a trial's duration that its warm-up takes on top.
const WARM_UP: f64 = 0.25;
/// The longest time for which no byte may arrive.
const STANDSTILL: Duration = Duration::from_secs(5);
/// The longest time for the handshakes.
const HANDSHAKES: Duration = Duration::from_secs(10);

/// A variant of the path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Path(Variant);

impl Choice for Path {
    fn all() -> Vec<Path> {
        Variant::ALL.map(Path).to_vec()
    }

    fn name(&self) -> &'static str {
        self.0.name
    }
}

choices! {
    /// The direction of the data, as the guest sees it.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Direction {
        /// To the guest.
        Receive = "receive",
        /// From the guest.
        Send = "send",
    }
}

parameters! {
    /// The parameters of the driver `cvmnet`.
    pub(crate) struct CvmnetParameters {
        /// the variant of the path
        variant: Path = "bifrost",
        /// the direction of the data, as the guest sees it
        direction: Direction = "receive",
        /// connections, each at a port of its own
        connections: u64 [1..=64] = 4,
        /// bytes that the source writes at a time
        buffer: Bytes = "32 KiB",
        /// bits of the key of AES-GCM
        key: KeyBits = 128,
        /// the simulated cost of a world switch, in cycles of the time stamp counter
        switch_cycles: u64 [0..=1_000_000] = 0,
        /// the measured part of a trial
        duration: Duration = "400 ms",
    }
}

figures! {
    /// The figures of a trial of `cvmnet`.
    pub(crate) struct CvmnetFigures {
        metrics {
            /// bytes of data per second of the clock
            throughput: f64 [BytesPerSecond],
            /// bytes of data per second of the guest's time, without the turns of its loop in which
            /// there was nothing to do
            guest_rate: f64 [BytesPerSecond],
            /// the guest's time per 16 KiB of data, without the turns of its loop in which there
            /// was nothing to do
            guest_time: f64 [Seconds],
            /// the part of the clock that these are: the guest is the bottleneck at 0.95
            guest_busy: f64 [Ratio],
            /// bytes per frame that the guest has received
            frame: Option<f64> [Bytes],
        }
        counters {
            /// records opened or sealed by the guest
            operations,
            /// bytes of data
            bytes,
            /// bytes that the receiver compared with what was sent
            verified,
            /// connections with a byte that was not sent
            wrong,
            /// bytes that the guest copied through the bounce buffer
            bounced,
            /// faults of the ring, resets and errors of TLS
            faults,
        }
    }
}

/// The driver `cvmnet`.
pub(crate) struct Cvmnet;

impl Workload for Cvmnet {
    const NAME: &'static str = "cvmnet";
    const ABOUT: &'static str =
        "TLS between a confidential VM's guest, with its own TCP, and its host, by variant";
    type Parameters = CvmnetParameters;
    type Figures = CvmnetFigures;

    fn expected(parameters: &CvmnetParameters) -> Option<Expected> {
        Some(by_the_clock(parameters.duration.mul_f64(1.0 + WARM_UP)))
    }

    fn longest(parameters: &CvmnetParameters) -> Duration {
        parameters.duration.mul_f64(1.0 + WARM_UP) + HANDSHAKES + STANDSTILL
    }

    fn run(parameters: CvmnetParameters, agent: &mut Agent) -> Result<CvmnetFigures, TrialError> {
        Ok(run(&parameters, agent)?)
    }
}

/// The guest's counters, which it stores after each of its turns.
#[derive(Default)]
struct Board {
    stop: AtomicBool,
    has_ended: AtomicBool,
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
    bytes: u64,
    records: u64,
    busy_ns: u64,
    frames: u64,
    bounced: u64,
}

impl Moment {
    fn of(board: &Board, direction: Direction) -> Moment {
        let bytes = match direction {
            Direction::Receive => &board.bytes_in,
            Direction::Send => &board.bytes_out,
        };
        Moment {
            now: Instant::now(),
            bytes: bytes.load(Relaxed),
            records: board.records.load(Relaxed),
            busy_ns: board.busy_ns.load(Relaxed),
            frames: board.frames.load(Relaxed),
            bounced: board.bounced.load(Relaxed),
        }
    }
}

fn run(parameters: &CvmnetParameters, agent: &mut Agent) -> anyhow::Result<CvmnetFigures> {
    let variant = parameters.variant.0;
    let direction = parameters.direction;
    let options = Options {
        suites: match parameters.key.bytes() {
            16 => Suites::Aes128,
            _ => Suites::Aes256,
        },
        ..Options::default()
    };
    let identity = Identity::self_signed(&[NAME.into()]).map_err(text)?;
    let certificate = identity.certificate().context("a certificate")?.clone();
    let client = Client::new(&certificate, ServerName::try_from(NAME)?, &options).map_err(text)?;
    let server = Server::new(identity, &options).map_err(text)?;

    let region = Region::create(&variant.config(1)).map_err(text)?;
    let fd = region.fd().try_clone_to_owned()?;
    let board = Board::default();
    let (served, measured) = std::thread::scope(|scope| {
        let guest = scope.spawn(|| {
            let served = serve(fd, server, parameters, &board);
            board.has_ended.store(true, Relaxed);
            served
        });
        // Wherever there are two processors, each side has one.
        let _ = tare_daemon::bind_to_cpu(Some(0));
        let measured = load(&region, client, parameters, &board, agent);
        board.stop.store(true, Relaxed);
        (guest.join(), measured)
    });
    served.map_err(|_| anyhow!("the guest ended with a panic"))??;
    let (start, end, received) = measured?;

    let bytes = end.bytes - start.bytes;
    let clock = end.now.since(start.now).as_secs_f64();
    let busy = (end.busy_ns - start.busy_ns) as f64 * 1e-9;
    if bytes == 0 {
        return Err(anyhow!("no byte arrived in {clock:.3} s"));
    }
    let frames = end.frames - start.frames;
    let has_frames = direction == Direction::Receive && frames > 0;
    Ok(CvmnetFigures {
        throughput: bytes as f64 / clock,
        guest_rate: bytes as f64 / busy,
        guest_time: busy / (bytes as f64 / RECORD),
        guest_busy: (busy / clock).min(1.0),
        frame: has_frames.then(|| bytes as f64 / frames as f64),
        operations: end.records - start.records,
        bytes,
        verified: received.0 + board.verified.load(Relaxed),
        wrong: received.1 + board.wrong.load(Relaxed),
        bounced: end.bounced - start.bounced,
        faults: board.faults.load(Relaxed),
    })
}

fn text(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("{error}")
}

fn place(last: u8, address: Ipv4Addr) -> Config {
    Config {
        ip4: Some(Network {
            address,
            prefix_len: 24,
            gateway: None,
        }),
        ..Config::new([2, 0, 0, 0, 0, last])
    }
}

/// Runs the guest until it is stopped.
fn serve(
    fd: OwnedFd,
    server: Server,
    parameters: &CvmnetParameters,
    board: &Board,
) -> anyhow::Result<()> {
    let _ = tare_daemon::bind_to_cpu(Some(1));
    let variant = parameters.variant.0;
    let region = Region::open(fd, &variant.config(1)).map_err(text)?;
    let settings = Settings {
        exits: Exits::Each,
        switch_cycles: parameters.switch_cycles,
        ..Settings::default()
    };
    let driver = RingDriver::new(region, 0, settings, Off).map_err(text)?;
    let (source, sink) = services(parameters);
    let services = (0..parameters.connections).map(|n| {
        let service: Box<dyn Service> = match parameters.direction {
            Direction::Receive => Box::new(sink.clone()),
            Direction::Send => Box::new(source.clone()),
        };
        (PORT + n as u16, service)
    });
    let (config, secret) = (place(2, GUEST), Secret::new(&[1; 16]));
    let mut guest =
        Guest::new(driver, config, secret, server, services.collect(), Off).map_err(text)?;
    let mut busy = Duration::ZERO;
    while !board.stop.load(Relaxed) {
        let time = Time::now();
        match guest.turn(time) {
            Ok(true) => busy += Instant::now().since(time.now),
            Ok(false) => {
                std::hint::spin_loop();
                continue;
            }
            Err(fault) => return Err(anyhow!("the device was given up: {fault}")),
        }
        let (served, driver) = (guest.counters(), guest.driver().counters());
        board.handshakes.store(served.handshakes, Relaxed);
        board.bytes_in.store(served.bytes_in, Relaxed);
        board.bytes_out.store(served.bytes_out, Relaxed);
        board
            .records
            .store(served.records_in + served.records_out, Relaxed);
        board.frames.store(driver.received, Relaxed);
        board.bounced.store(driver.bounced, Relaxed);
        board
            .faults
            .store(served.tls_failures + driver.faults, Relaxed);
        board.busy_ns.store(busy.as_nanos() as u64, Relaxed);
        board.verified.store(sink.counters().verified, Relaxed);
        board.wrong.store(sink.counters().wrong, Relaxed);
    }
    Ok(())
}

/// Returns a source without end, and a sink that compares each hundredth record.
fn services(parameters: &CvmnetParameters) -> (Source, Sink) {
    let buffer = usize::try_from(parameters.buffer.0).unwrap_or(usize::MAX);
    (Source::new(u64::MAX, buffer), Sink::new(100))
}

/// The counters at the start and the end, and the bytes that the client has verified and the
/// connections that it found wrong.
type Measured = (Moment, Moment, (u64, u64));

/// Runs the host and its client through warm-up and measurement.
fn load(
    region: &Region,
    client: Client,
    parameters: &CvmnetParameters,
    board: &Board,
    agent: &mut Agent,
) -> anyhow::Result<Measured> {
    let (source, sink) = services(parameters);
    let peer = Peer::new(place(1, PEER), Secret::new(&[2; 16]), client);
    let mut peer: Peer<Box<dyn Application>> = peer.map_err(text)?;
    for n in 0..parameters.connections {
        let application = match parameters.direction {
            Direction::Receive => source.accept(),
            Direction::Send => sink.accept(),
        };
        let to = SocketAddr::from((GUEST, PORT + n as u16));
        peer.connect(Instant::now(), to, application)
            .map_err(text)?;
    }
    let settings = DeviceSettings {
        // Of `baseline-gro` it is the device's own merging, by the same code.
        merge: parameters
            .variant
            .0
            .has_large_frames()
            .then(Limits::default),
        ..DeviceSettings::default()
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
                return Err(anyhow!("a connection ended before the trial did"));
            }
        }
    };
    let began = Instant::now();
    let all = parameters.connections;
    let mut is_late = false;
    until(&mut |now| {
        is_late = now.since(began) > HANDSHAKES;
        is_late || board.handshakes.load(Relaxed) == all
    })?;
    if is_late {
        return Err(anyhow!("the handshakes took more than {HANDSHAKES:?}"));
    }
    let warm = Instant::now() + parameters.duration.mul_f64(WARM_UP);
    until(&mut |now| now >= warm)?;
    agent.start()?;
    let start = Moment::of(board, parameters.direction);
    let end = start.now + parameters.duration;
    // On a busy machine a side may stand still for longer than a short trial.
    let latest = end + STANDSTILL;
    until(&mut |now| {
        let bytes = Moment::of(board, parameters.direction).bytes;
        now >= latest || (now >= end && bytes > start.bytes)
    })?;
    let end = Moment::of(board, parameters.direction);
    let counters = sink.counters();
    Ok((start, end, (counters.verified, counters.wrong)))
}
