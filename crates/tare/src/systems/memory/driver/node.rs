//! The node's side of a trial: workers that serve the memory, and in turns with it are the other
//! end of the transport without a protocol.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{ensure, Context as _};
use tare_farmem::memory::{Config, Store};
use tare_farmem::protocol::{Authentication, Node, NodeConfig};
use tare_farmem::serve::{FairMutex, Source, UdpSource, XdpSource};
use tare_farmem::transport::{shm, Waiting};
use tare_lab::protocol::Ready;
use tare_memory::Mapping;

use super::super::fleet::allow_descriptors;
use super::backing::Backing;
use super::client::{DESCRIPTORS_MORE, DESCRIPTORS_PER_RING};
use super::control::{Control, Phase};
use super::misses::Misses;
use super::setup::{memory_bytes, processor_time, Placement, SPARE};
use super::{frames, network, raw, FarmemParameters, Switch, Transport, Wait};
use crate::agent::Agent;
use crate::systems::load::driver::pin;

/// The longest wait of a worker, after which it looks for commands: asleep, and busy, where it is
/// processor time that the last operations of a turn would be charged.
const WAIT: Duration = Duration::from_millis(5);
const BUSY_WAIT: Duration = Duration::from_micros(100);

/// The time after which an operation is given up, of node and client, of which the shorter counts:
/// longer than a busy machine stalls.
const TIMEOUT: Duration = super::super::fleet::TIMEOUT;

/// The name under which the client's side finds the part of the memory in huge pages.
pub(super) const HUGE: &str = "huge_pages";

type SharedNode = FairMutex<Node<Store<Mapping>>>;

/// Returns the name under which the client's side finds the address of a worker.
pub(super) fn name(what: &str, worker: usize) -> String {
    format!("{what}-{worker}")
}

/// Plays the node's side.
///
/// # Errors
/// A socket failed, or there is too little memory.
pub(super) fn serve(parameters: &FarmemParameters, agent: &mut Agent) -> anyhow::Result<()> {
    let placement = Placement::find(parameters.threads)?;
    let control = Control::create(placement.workers.len())?;
    let is_xdp = parameters.transport == Transport::Xdp;
    let _network = parameters.network.make(is_xdp)?;
    let own = match is_xdp {
        true => Ipv4Addr::UNSPECIFIED.into(),
        false => parameters.network.socket(network::NODE),
    };
    let mut ready = Ready::new();
    control.describe(&mut ready);
    let folder = tempfile::Builder::new().prefix("tare-farmem-").tempdir()?;
    let path = folder.path().join("node");
    let config = Config::new(memory_bytes(parameters) + SPARE);
    let (store, backing) = Backing::store(&config)?;
    agent.note("memory", &backing)?;
    ready.insert(HUGE.into(), backing.huge().into());
    let (node, mut store) = match parameters.transport {
        Transport::Shm => (None, Some(store)),
        _ => (Some(FairMutex::new(node(parameters, store)?)), None),
    };
    let mut misses = match parameters.misses {
        Switch::On => Some(Misses::new(parameters.order)?),
        Switch::Off => None,
    };
    let mut workers = Vec::new();
    for (number, &cpu) in placement.workers.iter().enumerate() {
        let socket = raw::socket(own, parameters.wait == Wait::Busy)?;
        if parameters.is_bulk() {
            raw::take_runs(&socket);
        }
        let reference = socket.local_addr()?.to_string();
        ready.insert(name("reference", number), reference.into());
        let (served, place) = match &node {
            Some(node) if is_xdp => Served::xdp(node, &mut ready)?,
            Some(node) => Served::udp(node, own)?,
            None => {
                let store = store.take().context("one worker over shared memory")?;
                Served::shm(store, &path, parameters.rings(parameters.sessions))?
            }
        };
        ready.insert(name("node", number), place.into());
        workers.push(Worker {
            number,
            cpu,
            control: control.try_clone()?,
            served,
            socket,
            misses: misses.take(),
        });
    }
    agent.ready(ready)?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let stop_now = &stop;
        let threads: Vec<_> = workers
            .into_iter()
            .map(|worker| scope.spawn(move || worker.work(parameters, stop_now)))
            .collect();
        let waited = agent.until_stopped(|| {
            let has_ended = threads.iter().any(thread::ScopedJoinHandle::is_finished);
            ensure!(!has_ended, "a thread of the node has ended");
            Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            let worked = thread.join();
            worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        waited
    })
}

/// The node, and a worker's way to it.
enum Served<'a> {
    Udp(Box<UdpSource>, &'a SharedNode),
    Xdp(Box<XdpSource>, &'a SharedNode),
    Shm(Box<shm::Server>, Box<Store<Mapping>>),
}

impl<'a> Served<'a> {
    /// Opens a port of this worker alone: behind one port the kernel could give it the clients of
    /// two threads, and another worker none.
    fn udp(node: &'a SharedNode, own: IpAddr) -> anyhow::Result<(Served<'a>, String)> {
        let source = UdpSource::bind((own, 0).into())?;
        let place = source.local_addr()?.to_string();
        Ok((Served::Udp(Box::new(source), node), place))
    }

    fn xdp(node: &'a SharedNode, ready: &mut Ready) -> anyhow::Result<(Served<'a>, String)> {
        let station = frames::open(true)?;
        let place = station.address().to_string();
        let mac = frames::mac()?;
        ready.insert("mac".into(), mac.to_vec().into());
        let source = XdpSource::new(station);
        Ok((Served::Xdp(Box::new(source), node), place))
    }

    fn shm(store: Store<Mapping>, path: &Path, rings: u64) -> anyhow::Result<(Served<'a>, String)> {
        allow_descriptors(DESCRIPTORS_PER_RING * rings + DESCRIPTORS_MORE);
        let server = shm::Server::listen(path, shm::ServerConfig::new(1))?;
        let served = Served::Shm(Box::new(server), Box::new(store));
        Ok((served, path.display().to_string()))
    }

    /// Takes what has come, and answers it.
    #[inline]
    fn turn(&mut self, waiting: Waiting) -> anyhow::Result<()> {
        let wait = match waiting {
            Waiting::Asleep => WAIT,
            _ => BUSY_WAIT,
        };
        match self {
            Served::Udp(source, node) => source.turn(node, wait, waiting).map(drop)?,
            Served::Xdp(source, node) => source.turn(node, wait, waiting).map(drop)?,
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

fn node(
    parameters: &FarmemParameters,
    store: Store<Mapping>,
) -> anyhow::Result<Node<Store<Mapping>>> {
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
    let mut node = Node::new(config, store);
    if let Some(secret) = parameters.secret() {
        node.set_secret(secret);
    }
    Ok(node)
}

/// A thread of the node's side.
struct Worker<'a> {
    number: usize,
    cpu: usize,
    control: Control,
    served: Served<'a>,
    /// The other end of the reference over UDP.
    socket: UdpSocket,
    misses: Option<Misses>,
}

impl Worker<'_> {
    fn work(mut self, parameters: &FarmemParameters, stop: &AtomicBool) -> anyhow::Result<()> {
        pin(self.cpu)?;
        let control = &self.control;
        let answer = parameters.lengths().1;
        while !stop.load(Ordering::Relaxed) {
            let (command, phase) = control.command();
            control.done(self.number, command, processor_time()?);
            let is_over = || control.command().0 != command || stop.load(Ordering::Relaxed);
            match (phase, parameters.transport) {
                (Phase::Idle, _) => thread::sleep(Duration::from_millis(1)),
                (Phase::Node, _) => {
                    while !is_over() {
                        self.served.turn(parameters.waiting())?;
                    }
                }
                (Phase::Echo, Transport::Udp) => raw::echo(&self.socket, answer, |_| (), is_over)?,
                (Phase::EchoAndMiss, _) => {
                    let misses = self.misses.as_mut().context("no memory for misses")?;
                    let miss = |bytes: &mut [u8]| {
                        let missed = misses.step();
                        bytes[..missed.len()].copy_from_slice(&missed);
                    };
                    raw::echo(&self.socket, answer, miss, is_over)?;
                }
                (Phase::Echo, Transport::Xdp) => {
                    if let Served::Xdp(source, _) = &mut self.served {
                        let port = source.station_mut().port_mut();
                        let datagram = parameters.datagram.0 as usize;
                        frames::echo(port, answer, datagram, is_over)?;
                    }
                }
                (Phase::Sink, Transport::Udp) => raw::sink(&self.socket, control, is_over)?,
                (Phase::Echo, _) => raw::pong(control, is_over),
                (Phase::Sink, _) => raw::take_copies(control, is_over)?,
            }
        }
        Ok(())
    }
}
