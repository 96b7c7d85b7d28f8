//! A memory node in one process, clients in another, and the references of their transport.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context as _};
use rustix::time::{clock_gettime, ClockId};
use tare_farmem::memory::{Config, Store};
use tare_farmem::operation::SpaceId;
use tare_farmem::protocol::{
    Authentication, Node, NodeConfig, Secret, REQUEST_HEADER, RESPONSE_HEADER,
};
use tare_farmem::serve::{Source, UdpSource, XdpSource};
use tare_farmem::transport::{shm, Faults, UdpLink, Waiting};
use tare_histogram::Histogram;
use tare_lab::driver::Missing;
use tare_lab::protocol::Ready;
use tare_memory::Mapping;

use super::super::fleet::{self, allow_descriptors, Fleet, UdpFleet};
use super::super::layout::{Direction, Layout};
use super::super::load::Load;
use super::control::{Control, Phase, SLOT, SLOTS};
use super::frames::{self, CommonLink};
use super::network;
use super::raw::{self, Ping};
use super::storm::Storm;
use super::{FarmemFigures, FarmemParameters, Switch, Transport, Wait, NODE};
use crate::agent::Agent;
use crate::systems::load::driver::{pin, processors};

/// The most turns of a trial, as a multiple of those that its duration has room for.
const PAIRS_MAX: usize = 20;

/// The time after which the sides of a comparison take turns.
const TURN: Duration = Duration::from_millis(80);

/// The time of operations between two looks at the clock, about.
const GROUP: Duration = Duration::from_micros(500);

/// Most operations of a group.
const GROUP_MAX: usize = 4096;

/// Bytes of a group of long operations, about those of the reference. All of them are compared
/// after the group; more would not stay in the caches, as they do in a program that takes each when
/// it has completed.
const GROUP_BYTES: usize = SLOTS * SLOT;

/// The longest wait of the node's thread, after which it looks for commands.
const WAIT: Duration = Duration::from_millis(5);

/// Operations that are at least as long are held against a stream, shorter ones against a round
/// trip.
pub(super) const BULK: u64 = 32 << 10;

/// The first page of each session.
const BASE: u64 = 0x4000_0000;

/// The first space.
const FIRST_SPACE: u64 = 1;

/// The time after which an operation is given up, of node and client, of which the shorter counts:
/// longer than a busy machine stalls.
const TIMEOUT: Duration = super::super::fleet::TIMEOUT;

/// Measured operations that a session has at least, if it has enough.
const ENOUGH: u64 = 10;

/// Memory of the node beyond its pages.
const SPARE: u64 = 16 << 20;

/// The memory that a trial works on.
pub(super) fn layout(parameters: &FarmemParameters) -> Layout {
    let pages = (1u64 << parameters.order) / parameters.sessions;
    Layout {
        first_space: FIRST_SPACE,
        spaces: parameters.sessions,
        pages: pages.max(1).next_power_of_two(),
        base: BASE,
        size: parameters.size.0 as u32,
        direction: parameters.op,
        regions: parameters.regions,
    }
}

/// Checks whether the machine has the memory of a trial.
///
/// # Errors
/// What is missing.
pub(super) fn check_memory(parameters: &FarmemParameters) -> Result<(), Missing> {
    // The page table and the clients take a part of it again.
    let needed = layout(parameters).total() / 8 * 9 + SPARE;
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    match available(&info) {
        Some(available) if available < needed => Err(Missing {
            reason: format!(
                "{} MiB of memory are available, expected {} MiB",
                available >> 20,
                needed >> 20
            ),
            remedy: Some("free some memory, or use a lower order".into()),
        }),
        _ => Ok(()),
    }
}

/// Reads the bytes of memory that programs can still get.
fn available(info: &str) -> Option<u64> {
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

impl FarmemParameters {
    fn waiting(&self) -> Waiting {
        match self.wait {
            Wait::Busy => Waiting::Busy,
            Wait::Blocking => Waiting::Asleep,
        }
    }

    /// The secret of both sides, which are parts of one trial; `None` without encryption.
    fn secret(&self) -> Option<Secret> {
        (self.aead == Switch::On).then(|| Secret::new(&[9; 32]))
    }

    fn is_bulk(&self) -> bool {
        self.size.0 >= BULK
    }

    /// The reference of a round trip or of a stream, in the order of the sides.
    fn reference(&self) -> Phase {
        if self.is_bulk() {
            Phase::Sink
        } else {
            Phase::Echo
        }
    }
}

/// Plays the node's side.
///
/// # Errors
/// A socket failed, or there is too little memory.
pub(super) fn serve(parameters: &FarmemParameters, agent: &mut Agent) -> anyhow::Result<()> {
    let control = Control::create()?;
    let is_xdp = parameters.transport == Transport::Xdp;
    let _network = parameters.network.make(is_xdp)?;
    let own = match is_xdp {
        true => Ipv4Addr::UNSPECIFIED.into(),
        false => parameters.network.socket(network::NODE),
    };
    let socket = raw::socket(own, parameters.wait == Wait::Busy)?;
    if parameters.is_bulk() {
        raw::take_runs(&socket);
    }
    let mut ready = Ready::new();
    control.describe(&mut ready);
    ready.insert("reference".into(), socket.local_addr()?.to_string().into());
    let folder = tempfile::Builder::new().prefix("tare-farmem-").tempdir()?;
    let served = match parameters.transport {
        Transport::Udp => Served::udp(parameters, own, &mut ready)?,
        Transport::Xdp => Served::xdp(parameters, &mut ready)?,
        Transport::Shm => Served::shm(parameters, &folder.path().join("node"), &mut ready)?,
    };
    agent.ready(ready)?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let node_side = NodeSide {
            parameters,
            control,
            stop: &stop,
        };
        let worker = scope.spawn(|| node_side.work(served, &socket));
        let waited = agent.until_stopped(|| {
            ensure!(!worker.is_finished(), "the node's thread has ended");
            Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        let worked = worker.join();
        worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        waited
    })
}

/// The node, and the way to it.
enum Served {
    Udp(Box<UdpSource>, Box<Mutex<Node<Store<Mapping>>>>),
    Xdp(Box<XdpSource>, Box<Mutex<Node<Store<Mapping>>>>),
    Shm(Box<shm::Server>, Box<Store<Mapping>>),
}

impl Served {
    fn udp(
        parameters: &FarmemParameters,
        own: IpAddr,
        ready: &mut Ready,
    ) -> anyhow::Result<Served> {
        let source = UdpSource::bind((own, 0).into())?;
        ready.insert("node".into(), source.local_addr()?.to_string().into());
        let node = Box::new(Mutex::new(node(parameters)?));
        Ok(Served::Udp(Box::new(source), node))
    }

    fn xdp(parameters: &FarmemParameters, ready: &mut Ready) -> anyhow::Result<Served> {
        let station = frames::open(true)?;
        ready.insert("node".into(), station.address().to_string().into());
        let mac = frames::mac()?;
        ready.insert("mac".into(), mac.to_vec().into());
        let node = Box::new(Mutex::new(node(parameters)?));
        Ok(Served::Xdp(Box::new(XdpSource::new(station)), node))
    }

    fn shm(
        parameters: &FarmemParameters,
        path: &Path,
        ready: &mut Ready,
    ) -> anyhow::Result<Served> {
        let server = shm::Server::listen(path, shm::ServerConfig::new(1))?;
        ready.insert("node".into(), path.display().to_string().into());
        Ok(Served::Shm(Box::new(server), Box::new(store(parameters)?)))
    }

    /// Takes what has come, and answers it.
    #[inline]
    fn turn(&mut self, waiting: Waiting) -> anyhow::Result<()> {
        match self {
            Served::Udp(source, node) => source.turn(node, WAIT, waiting).map(drop)?,
            Served::Xdp(source, node) => source.turn(node, WAIT, waiting).map(drop)?,
            Served::Shm(server, store) => {
                // As many as take a microsecond between two looks at the commands.
                for _ in 0..32 {
                    server.turn(&mut **store, &tare_sim::Instant::now)?;
                }
            }
        }
        Ok(())
    }
}

fn node(parameters: &FarmemParameters) -> anyhow::Result<Node<Store<Mapping>>> {
    let authentication = match parameters.aead {
        Switch::On => Authentication::aead()?,
        Switch::Off => Authentication::None,
    };
    let config = NodeConfig {
        authentication,
        datagram_bytes: parameters.datagram.0 as usize,
        timeout: TIMEOUT,
        ..NodeConfig::new(1)
    };
    let mut node = Node::new(config, store(parameters)?);
    if let Some(secret) = parameters.secret() {
        node.set_secret(secret);
    }
    Ok(node)
}

fn store(parameters: &FarmemParameters) -> anyhow::Result<Store<Mapping>> {
    let config = Config::new(layout(parameters).total() + SPARE);
    Ok(Store::in_memory(&config, Mapping::best)?)
}

/// The thread of the node's side.
struct NodeSide<'a> {
    parameters: &'a FarmemParameters,
    control: Control,
    stop: &'a AtomicBool,
}

impl NodeSide<'_> {
    fn work(self, mut served: Served, socket: &std::net::UdpSocket) -> anyhow::Result<()> {
        pin(processors()?.0)?;
        let answer = RESPONSE_HEADER + self.lengths().1;
        while !self.stop.load(Ordering::Relaxed) {
            let (command, phase) = self.control.command();
            self.control.done(command, processor_time()?);
            let is_over =
                || self.control.command().0 != command || self.stop.load(Ordering::Relaxed);
            match (phase, self.parameters.transport) {
                (Phase::Idle, _) => thread::sleep(Duration::from_millis(1)),
                (Phase::Node, _) => {
                    while !is_over() {
                        served.turn(self.parameters.waiting())?;
                    }
                }
                (Phase::Echo, Transport::Udp) => raw::echo(socket, answer, is_over)?,
                (Phase::Echo, Transport::Xdp) => {
                    if let Served::Xdp(source, _) = &mut served {
                        let port = source.station_mut().port_mut();
                        let datagram = self.parameters.datagram.0 as usize;
                        frames::echo(port, answer, datagram, is_over)?;
                    }
                }
                (Phase::Sink, Transport::Udp) => raw::sink(socket, &self.control, is_over)?,
                (Phase::Echo, _) => raw::pong(&self.control, is_over),
                (Phase::Sink, _) => raw::take_copies(&self.control, is_over),
            }
        }
        Ok(())
    }

    /// Bytes of a request and of a response beside their headers.
    fn lengths(&self) -> (usize, usize) {
        lengths(self.parameters)
    }
}

fn lengths(parameters: &FarmemParameters) -> (usize, usize) {
    let size = parameters.size.0 as usize;
    match parameters.op {
        Direction::Read => (0, size),
        Direction::Write => (size, 0),
    }
}

/// Descriptors beside those of sessions and of the reference.
const DESCRIPTORS_MORE: u64 = 100;

/// This thread's processor time.
fn processor_time() -> anyhow::Result<Duration> {
    Ok(Duration::try_from(clock_gettime(ClockId::ThreadCPUTime))?)
}

/// The client's end of the reference.
enum Reference {
    Ping(Ping),
    Frames(frames::Ping),
    Stream(UdpLink),
    Memory,
}

/// The client's side of a trial.
struct Trial<'a> {
    parameters: &'a FarmemParameters,
    control: Control,
    reference: Reference,
    storm: Option<Storm>,
}

/// Measures, in the role that does.
///
/// # Errors
/// A socket failed, or the node did.
pub(super) fn measure(
    parameters: &FarmemParameters,
    agent: &mut Agent,
) -> anyhow::Result<FarmemFigures> {
    let roles = agent.ready(Ready::new())?;
    let described = roles.get(NODE).context("no node's side")?;
    let control = Control::open(described)?;
    let is_xdp = parameters.transport == Transport::Xdp;
    let pid = described.get("pid").and_then(|pid| pid.as_u64());
    let pid = pid.and_then(|pid| u32::try_from(pid).ok());
    let pid = pid.context("the node's side did not say its pid")?;
    parameters.network.join(pid, is_xdp)?;
    pin(processors()?.1)?;
    let place = |name: &str| {
        let text = described.get(name).and_then(|value| value.as_str());
        text.with_context(|| format!("no address of the {name}"))
    };
    let address = |name: &str| {
        let text = place(name)?;
        text.parse::<SocketAddr>().context(text.to_owned())
    };
    // Over shared memory it is the node that opens a client's ring.
    control.begin(Phase::Node)?;
    let node = place("node")?;
    // Regions have an owner, which is the last session.
    let sessions = parameters.sessions + u64::from(parameters.regions > 0);
    let link = match parameters.transport {
        Transport::Xdp => Some(CommonLink::open()?),
        _ => None,
    };
    // The reference uses as many as the sessions: what a socket that is in no cache costs is the
    // kernel's, and not the protocol's.
    let sockets = fleet::sockets(parameters.sessions);
    allow_descriptors(2 * sockets + DESCRIPTORS_MORE);
    let mut fleet = fleet(parameters, node, FIRST_SPACE, sessions, link.clone())?;
    let storm = match parameters.storm {
        Switch::On => {
            let space = FIRST_SPACE + sessions;
            let fleet = self::fleet(parameters, node, space, 1, None)?;
            Some(Storm::new(fleet, SpaceId(space))?)
        }
        Switch::Off => None,
    };
    let is_busy = parameters.wait == Wait::Busy;
    let request = REQUEST_HEADER + lengths(parameters).0;
    let reference = match (link, parameters.transport, parameters.is_bulk()) {
        (Some(link), ..) => {
            let datagram = parameters.datagram.0 as usize;
            Reference::Frames(frames::Ping::new(link, mac(described)?, request, datagram)?)
        }
        (None, Transport::Udp, false) => {
            let own = parameters.network.socket(network::CLIENT);
            let server = address("reference")?;
            Reference::Ping(Ping::new(own, server, sockets, is_busy, request)?)
        }
        (None, Transport::Udp, true) => {
            let link = UdpLink::connect(address("reference")?, Waiting::Busy)?;
            Reference::Stream(link)
        }
        _ => Reference::Memory,
    };
    let mut trial = Trial {
        parameters,
        control,
        reference,
        storm,
    };
    let mut load = Load::prepare(&mut fleet, layout(parameters))?;
    trial.turn_of_load(&mut load, parameters.outstanding)?;
    agent.start()?;
    trial.compare(&mut load)
}

/// Opens sessions, of which the first has this space and the others the ones after it.
fn fleet(
    parameters: &FarmemParameters,
    node: &str,
    first_space: u64,
    sessions: u64,
    link: Option<CommonLink>,
) -> anyhow::Result<Fleet> {
    if parameters.transport == Transport::Shm {
        let config = shm::ClientConfig::busy();
        return Ok(Fleet::over(shm::Client::connect(Path::new(node), &config)?));
    }
    let loss = parameters.loss;
    let faults = Faults {
        loss,
        duplication: loss / 2.0,
        reordering: loss / 2.0,
    };
    let secret = parameters.secret();
    let fleet = UdpFleet {
        node: node.parse().with_context(|| node.to_owned())?,
        sessions,
        first_space,
        datagram_bytes: Some(parameters.datagram.0 as usize),
        waiting: parameters.waiting(),
        faults: (loss > 0.0).then_some((faults, 1)),
        secret: secret.as_ref(),
    };
    match link {
        Some(link) => fleet.open_on(link),
        None => fleet.open(),
    }
}

/// Returns the MAC address that the node's side said.
fn mac(described: &Ready) -> anyhow::Result<[u8; 6]> {
    let bytes = described.get("mac").and_then(|mac| mac.as_array());
    let bytes = bytes.into_iter().flatten().filter_map(|byte| byte.as_u64());
    let bytes: Vec<u8> = bytes.filter_map(|byte| u8::try_from(byte).ok()).collect();
    let mac = <[u8; 6]>::try_from(bytes);
    mac.ok()
        .context("the node's side did not say its MAC address")
}

/// A turn of the load.
struct Turn {
    /// Median over groups of the time per operation, in seconds.
    time: f64,
    operations: u64,
    /// The node's processor time in the turn.
    node: Duration,
}

impl Trial<'_> {
    /// Lets the load and its reference take turns, then measures single latencies.
    fn compare(&mut self, load: &mut Load<'_>) -> anyhow::Result<FarmemFigures> {
        let parameters = self.parameters;
        let before = load.proof();
        let size = parameters.size.0 as f64;
        let (mut times, mut ratios, mut node, mut operations) = (vec![], vec![], Duration::ZERO, 0);
        let pairs = parameters.duration.as_secs_f64() / (2.0 * TURN.as_secs_f64());
        let pairs = pairs.round().max(1.0) as usize;
        // A slow or busy machine takes longer until each session has done enough.
        let lacks = |load: &Load<'_>| {
            let proof = load.proof();
            too_few(proof.operations - before.operations, proof.sessions) > 0
        };
        while ratios.len() < pairs || (ratios.len() < PAIRS_MAX * pairs && lacks(load)) {
            let reference = match parameters.outstanding {
                1 => self.turn_of_reference()?,
                _ if parameters.is_bulk() => self.turn_of_reference()?,
                // Many at a time are held against one at a time.
                _ => self.turn_of_load(load, 1)?.time,
            };
            let turn = self.turn_of_load(load, parameters.outstanding)?;
            ratios.push(turn.time / reference);
            times.push(turn.time);
            node += turn.node;
            operations += turn.operations;
        }
        let (time, ratio) = (median(&mut times), median(&mut ratios));
        let mut latency = Histogram::new();
        let measured_before = load.proof().operations;
        let node_before = self.control.begin(Phase::Node)?;
        let mut rate = 1.0 / time;
        if parameters.share > 0.0 {
            let open = parameters.duration / 2;
            rate = load.open_loop(parameters.share * rate, open, &mut latency)?;
        } else if parameters.outstanding == 1 {
            self.latencies(load, &mut latency)?;
        }
        let node_after = self.control.begin(Phase::Idle)?;
        let measured = load.proof().operations - measured_before;
        let storm = self.storm.as_ref();
        let storm = storm.map(|storm| storm.operations() as f64 / measured as f64);
        if storm.is_some() || parameters.share > 0.0 {
            // The turns had no storm, and were a closed loop.
            (node, operations) = (node_after.saturating_sub(node_before), measured);
        }
        let proof = load.proof();
        let quantile = |share| Some(latency.quantile(share)?.as_secs_f64());
        let is_bulk = parameters.is_bulk();
        let is_single = parameters.outstanding == 1 && !is_bulk;
        let measured = proof.operations - before.operations;
        Ok(FarmemFigures {
            latency_p50: quantile(0.5),
            latency_p99: quantile(0.99),
            latency_p999: quantile(0.999),
            time: Some(time),
            over_raw: is_single.then_some(ratio),
            rate: Some(rate),
            of_single: (parameters.outstanding > 1 && !is_bulk).then_some(1.0 / ratio),
            throughput: Some(8.0 * size / time),
            of_raw: is_bulk.then_some(1.0 / ratio),
            storm_operations: Some(storm.unwrap_or(0.0)),
            node_time: Some(node.as_secs_f64() / operations as f64),
            operations: measured,
            bytes: measured * parameters.size.0,
            verified: proof.verified,
            wrong: proof.wrong,
            failed: proof.failed,
            sessions: proof.sessions,
            too_few: too_few(measured, proof.sessions),
            pages: proof.pages,
        })
    }

    /// Returns the time that the reference takes for an operation, in seconds.
    fn turn_of_reference(&mut self) -> anyhow::Result<f64> {
        self.control.begin(self.parameters.reference())?;
        let control = &self.control;
        let size = self.parameters.size.0 as f64;
        match &mut self.reference {
            Reference::Stream(link) => Ok(size / raw::stream(link, control, TURN)?),
            Reference::Memory if self.parameters.is_bulk() => {
                Ok(size / raw::give_copies(control, TURN))
            }
            Reference::Memory => {
                Ok(groups((1, GROUP_MAX), |count| Ok(raw::raw_line(control, count)))?.0)
            }
            Reference::Ping(ping) => {
                Ok(groups((1, GROUP_MAX), |count| Ok(ping.round_trips(count)?))?.0)
            }
            Reference::Frames(ping) => {
                Ok(groups((1, GROUP_MAX), |count| Ok(ping.round_trips(count)?))?.0)
            }
        }
    }

    fn turn_of_load(&self, load: &mut Load<'_>, outstanding: usize) -> anyhow::Result<Turn> {
        let before = self.control.begin(Phase::Node)?;
        let most = (GROUP_BYTES / self.parameters.size.0 as usize).min(GROUP_MAX);
        let bounds = (load.group_min(outstanding), most);
        let (time, operations) = groups(bounds, |count| load.group(count, outstanding))?;
        // The phase is the same, the time later.
        let after = self.control.begin(Phase::Node)?;
        Ok(Turn {
            time,
            operations,
            node: after.saturating_sub(before),
        })
    }

    /// Measures each operation for half of the duration.
    fn latencies(&mut self, load: &mut Load<'_>, latency: &mut Histogram) -> anyhow::Result<()> {
        let until = Instant::now() + self.parameters.duration / 2;
        while Instant::now() < until {
            match &mut self.storm {
                Some(storm) => load.one_by_one_beside(64, latency, || storm.step())?,
                None => load.one_by_one(64, latency)?,
            };
        }
        Ok(())
    }
}

/// Returns how many sessions have too few of these operations: they take turns, so that none has
/// two more than another.
fn too_few(operations: u64, sessions: u64) -> u64 {
    (ENOUGH * sessions).saturating_sub(operations).min(sessions)
}

/// Runs groups of at least and at most so many operations for a turn; returns the median time per
/// operation, in seconds, and the number of operations.
fn groups(
    (least, most): (usize, usize),
    mut group: impl FnMut(usize) -> anyhow::Result<Duration>,
) -> anyhow::Result<(f64, u64)> {
    let least = least.max(16);
    let (mut times, mut operations, mut count) = (Vec::new(), 0, least);
    let from = Instant::now();
    while from.elapsed() < TURN || times.is_empty() {
        let took = group(count)?;
        times.push(took.as_secs_f64() / count as f64);
        operations += count as u64;
        let fitting = GROUP.as_secs_f64() / took.as_secs_f64().max(1e-9) * count as f64;
        count = (fitting as usize).clamp(least, least.max(most));
    }
    Ok((median(&mut times), operations))
}

/// The median, which of an even number of values is the mean of the two in the middle: a short
/// trial has two turns, and the larger of two would be high in each. NaN without values.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        len if len.is_multiple_of(2) => (values[middle - 1] + values[middle]) / 2.0,
        _ => values[middle],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_two_is_between_them() {
        assert_eq!(median(&mut [3.0, 1.0]), 2.0);
        assert_eq!(median(&mut [9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [9.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&mut []).is_nan());
    }

    #[test]
    fn sessions_with_too_few_operations_are_those_that_miss_a_turn() {
        for (operations, expected) in [(0, 3), (26, 3), (27, 3), (28, 2), (29, 1), (30, 0)] {
            assert_eq!(too_few(operations, 3), expected, "{operations}");
        }
    }

    #[test]
    fn the_memory_that_programs_can_get_is_read_in_bytes() {
        let info = "MemTotal:       24576000 kB\nMemAvailable:   1024 kB\nBuffers: 1 kB\n";
        assert_eq!(available(info), Some(1 << 20));
        for none in [
            "",
            "MemAvailable:",
            "MemAvailable: x kB",
            "MemAvailable: 18446744073709551615 kB",
        ] {
            assert_eq!(available(none), None, "{none}");
        }
    }
}
