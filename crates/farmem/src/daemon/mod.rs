//! A memory node as a daemon: memory, transports, log, status and a graceful end.

mod report;
mod room;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::mpsc::{sync_channel, Receiver};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{getrlimit, setrlimit, Resource};
use tare_daemon::{Endpoints, Host, Level, LogOptions, Record, Signals};
use tare_memory::{Mapping, OwnedFile, Pages};
use tare_port::{Kind, Opened};
use tare_sim::Instant;

use crate::memory::{Config, KeepError, Preset, Restored, Store};
use crate::operation::{self, SpaceId};
use crate::protocol::{network_datagram, Authentication, Node, NodeConfig, Secret, LOCAL_DATAGRAM};
use crate::serve::{Service, ShmSource, ShmWork, Source, UdpSource, XdpSource};
use crate::transport::xdp::{XdpAddress, XdpStation};
use crate::transport::Waiting;
pub use report::{
    MemoryReport, NodeReport, Report, ShmReport, ShmWorkReport, SpaceReport, WorkerReport,
    SPACES_MAX,
};
pub use room::Room;

/// The name of this kind of daemon, in the names of its sockets.
pub const KIND: &str = "memory";

/// Settings of a memory node.
pub struct Options {
    /// The address for UDP, and the way to it.
    pub listen: Listen,
    /// The secret of which the keys of all spaces follow; `None` for no encryption.
    pub secret: Option<Secret>,
    /// True if without a secret all who can send to an address beyond loopback may do everything.
    pub is_open: bool,
    /// The path for clients on this machine, over shared memory.
    pub shm: Option<PathBuf>,
    /// Threads that answer requests over UDP; shared memory has one of its own. One over the frames
    /// of an interface.
    pub workers: usize,
    /// The way they wait.
    pub waiting: Waiting,
    /// Longest datagram, in bytes; [`LOCAL_DATAGRAM`] if `None` and only this machine reaches the
    /// node, else [`network_datagram`].
    pub datagram_bytes: Option<usize>,
    /// The longest time that clients try an operation for, over UDP and frames.
    pub timeout: Duration,
    /// The longest write, in bytes. One happens as a whole, and all other clients wait while it is
    /// copied to its pages.
    pub write_bytes_max: u64,
    /// Memory for the incomplete writes of all clients over UDP and frames, in bytes; those of one
    /// space have `write_bytes_max` of it.
    pub write_memory: u64,
    /// Memory for the outcomes of operations over UDP and frames that must not run twice, in bytes.
    pub outcome_memory: u64,
    /// Memory for pages, in bytes.
    pub memory: u64,
    /// The pages of the operating system that it is made of; the best there are if `None`. Those of
    /// a file are the file system's.
    pub pages: Option<Pages>,
    /// The file that keeps the memory over the end of the process.
    pub keep: Option<PathBuf>,
    /// The bytes that a space may use; all of the memory if `None`.
    pub quota: Option<u64>,
    /// The bytes that these spaces may use instead, kept spaces included. Another kept space has
    /// the quota that it had before.
    pub quotas: BTreeMap<SpaceId, u64>,
    /// The most spaces.
    pub spaces_max: usize,
    /// Memory for what the node knows of spaces, allocations, locks, regions and grants, in bytes.
    pub metadata_memory: u64,
    /// A range that each space has from the start.
    pub preset: Option<Preset>,
    /// The endpoints for status.
    pub endpoints: Endpoints,
    /// The log.
    pub log: LogOptions,
    /// Requests to stop.
    pub signals: Signals,
}

/// The way of requests over UDP to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Sockets of the operating system.
    Udp(SocketAddr),
    /// The frames of an interface.
    Xdp(XdpAddress),
}

impl Options {
    /// Returns the longest datagram, in bytes.
    fn longest_datagram(&self) -> usize {
        let is_local = self.listen.is_loopback();
        let usual = if is_local {
            LOCAL_DATAGRAM
        } else {
            network_datagram(self.listen.address().ip())
        };
        self.datagram_bytes.unwrap_or(usual)
    }
}

impl Listen {
    /// Returns the address and port.
    pub fn address(&self) -> SocketAddr {
        match self {
            Listen::Udp(address) => *address,
            Listen::Xdp(at) => at.address,
        }
    }

    /// Returns true if only this machine reaches it.
    fn is_loopback(&self) -> bool {
        matches!(self, Listen::Udp(address) if address.ip().is_loopback())
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        let wrong =
            || format!("found \"{text}\", expected ADDRESS:PORT, or xdp:IFACE,ADDRESS:PORT");
        match text.strip_prefix("xdp:") {
            Some(at) => at.parse().map(Listen::Xdp).map_err(|_| wrong()),
            None => {
                let address = text.strip_prefix("udp://").unwrap_or(text);
                address.parse().map(Listen::Udp).map_err(|_| wrong())
            }
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Udp(address) => address.fmt(f),
            Listen::Xdp(at) => at.fmt(f),
        }
    }
}

/// The reason why a node could not be run.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// It would serve a network without protection, and was not told so.
    Open(Listen),
    /// The address cannot be listened at.
    Listen(Listen, io::Error),
    /// The path for shared memory cannot be listened at.
    ListenShm(PathBuf, io::Error),
    /// There is not as much memory.
    Memory(tare_memory::Error),
    /// The system cannot give as much memory.
    Room {
        /// The memory that it can give.
        found: Room,
        /// The bytes for the pages and the page table.
        expected: u64,
    },
    /// The file that keeps the memory.
    Keep(PathBuf, KeepError),
    /// The system has no random numbers.
    Random(io::Error),
    /// The endpoints for status.
    Service(String),
    /// A worker ended.
    Worker(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Open(address) => write!(
                f,
                "{address} is not loopback, and without encryption all who reach it may read and \
                 write everything: give the node a secret, or allow it with --insecure"
            ),
            Error::Listen(address, error) => write!(f, "cannot listen at {address}: {error}"),
            Error::ListenShm(path, error) => {
                write!(f, "cannot listen at {}: {error}", path.display())
            }
            Error::Memory(error) => error.fmt(f),
            Error::Room { found, expected } => write!(
                f,
                "found {} MiB ({}), expected {} MiB for the memory and its page table: give the \
                 node less memory (-m)",
                found.bytes >> 20,
                found.bound,
                expected.div_ceil(1 << 20)
            ),
            Error::Keep(path, error) => write!(f, "{}: {error}", path.display()),
            Error::Random(error) => write!(f, "the system has no random numbers: {error}"),
            Error::Service(error) => f.write_str(error),
            Error::Worker(error) => write!(f, "the node could not go on: {error}"),
        }
    }
}

impl std::error::Error for Error {}

/// Returns the status socket of the node that listens at an address.
pub fn socket_of(listen: SocketAddr) -> PathBuf {
    // A stem has no extension; the port of an address is none.
    let name = format!("{}-{}.conf", listen.ip(), listen.port());
    tare_daemon::default_socket(KIND, Path::new(&name))
}

/// Runs a node until a stop is requested; then what has come is answered.
///
/// # Errors
/// It cannot be started, or its sockets failed.
pub fn run(mut options: Options) -> Result<(), Error> {
    let is_protected = options.secret.is_some() || options.listen.is_loopback();
    if !is_protected && !options.is_open {
        return Err(Error::Open(options.listen.clone()));
    }
    let (wake, woken) = sync_channel(1);
    let signals = options.signals.clone();
    let mut host = Host::without_config(options.log, signals, move || {
        let _ = wake.try_send(());
    });
    let epoch = Instant::now();
    let mut config = Config::new(options.memory);
    config.quota = options.quota.unwrap_or(options.memory);
    config.quotas = mem::take(&mut options.quotas);
    config.spaces_max = options.spaces_max;
    config.metadata_bytes = options.metadata_memory;
    config.preset = options.preset;
    let key = crate::random::bytes::<16>().map_err(Error::Random)?;
    config.key = [&key[..8], &key[8..]].map(|half| {
        half.iter()
            .fold(0, |word, byte| word << 8 | u64::from(*byte))
    });
    let started = wall_clock_ns();
    config.last_token = started;
    let (store, restored) = open(&options, &config)?;
    let pages = store.pool_memory().pages();
    let secret = options.secret.take();
    let for_shm = secret.as_ref().map(Secret::duplicate);
    let (authentication, encryption) = match secret {
        Some(_) => (
            Authentication::aead().map_err(Error::Random)?,
            "aes-128-gcm",
        ),
        None => (Authentication::None, "none"),
    };
    let config = NodeConfig {
        authentication,
        datagram_bytes: options.longest_datagram(),
        timeout: options.timeout,
        record_bytes: options.outcome_memory,
        assembly_bytes: options.write_memory,
        assembly_bytes_per_space: options.write_bytes_max,
        ..NodeConfig::new(started)
    };
    let mut node = Node::new(config, store);
    if let Some(secret) = secret {
        node.set_secret(secret);
    }
    if options.shm.is_some() {
        allow_descriptors();
    }
    let (sources, listen, port, shm) = listen(&options, started, for_shm)?;
    let service = Service::with_sources(node, sources, options.waiting);
    let service = service.map_err(Error::Worker)?;
    let mut endpoints = options.endpoints.clone();
    endpoints
        .socket
        .get_or_insert_with(|| socket_of(listen.address()));
    let errors = host.serve_at(endpoints);
    if let (Some(error), true) = (
        errors.into_iter().next(),
        options.endpoints != Endpoints::default(),
    ) {
        return Err(Error::Service(error));
    }
    let took = Instant::now().since(epoch);
    host.log().write(
        &Record::new(Level::Info, "serving")
            .with("address", listen.to_string())
            .with("memory", options.memory)
            .with("pages", pages.to_string())
            .with("workers", options.workers as u64)
            .with("encryption", encryption)
            .with("start_ms", took.as_millis() as u64),
    );
    if let Some(port) = port {
        let refused: Vec<_> = port.refused.iter().map(ToString::to_string).collect();
        host.log().write(
            &Record::new(Level::Info, "port_opened")
                .with("kind", port.kind.to_string())
                .with("refused", refused.join("; ")),
        );
    }
    if let Some(restored) = restored {
        host.log().write(&record(&restored));
    }
    watch(&host, &service, (&listen, shm.as_deref()), &woken);
    host.end_service();
    let node = service.stop().map_err(Error::Worker)?;
    let counters = node.counters();
    host.log().write(
        &Record::new(Level::Info, "stopped")
            .with("requests", counters.requests)
            .with("executed", counters.executed),
    );
    Ok(())
}

/// Allows this process as many descriptors as the system lets it have: each client over shared
/// memory takes two, and the usual limit is as many as there may be clients.
fn allow_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Without them a client that is too many waits until another one goes.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// The sources of each worker.
type Sources = Vec<Vec<Box<dyn Source<Store<Mapping>>>>>;

/// The sources by worker, the address that they got, the kind of port, and the work over shared
/// memory.
type Listening = (Sources, Listen, Option<Opened>, Option<Arc<ShmWork>>);

/// Opens the sockets or the port.
fn listen(options: &Options, epoch: u64, secret: Option<Secret>) -> Result<Listening, Error> {
    let (mut workers, mut port, mut shm) = (Sources::new(), None, None);
    let address = match &options.listen {
        Listen::Udp(address) => Listen::Udp(listen_udp(*address, options.workers, &mut workers)?),
        Listen::Xdp(at) => {
            let opened = listen_xdp(at, options);
            let (source, kind) =
                opened.map_err(|error| Error::Listen(options.listen.clone(), error))?;
            workers.push(vec![Box::new(source)]);
            port = Some(kind);
            options.listen.clone()
        }
    };
    if let Some(path) = &options.shm {
        let source = ShmSource::listen(path, epoch, secret);
        let source = source.map_err(|error| Error::ListenShm(path.clone(), error))?;
        shm = Some(source.work());
        workers.push(vec![Box::new(source)]);
    }
    Ok((workers, address, port, shm))
}

/// Opens a socket for each worker; returns the address that they got.
fn listen_udp(listen: SocketAddr, workers: usize, to: &mut Sources) -> Result<SocketAddr, Error> {
    let open = || -> io::Result<_> {
        let sources = UdpSource::bind_shared(listen, workers)?;
        Ok((sources[0].local_addr()?, sources))
    };
    let (address, sources) = open().map_err(|error| Error::Listen(Listen::Udp(listen), error))?;
    for source in sources {
        to.push(vec![Box::new(source)]);
    }
    Ok(address)
}

fn listen_xdp(at: &XdpAddress, options: &Options) -> io::Result<(XdpSource, Opened)> {
    if options.workers > 1 {
        let said = format!(
            "found {} workers, expected 1 for a single queue",
            options.workers
        );
        return Err(io::Error::other(said));
    }
    let (station, opened) = XdpStation::open(at, Kind::Auto)?;
    let most = station.datagram_max();
    let longest = options.longest_datagram();
    if longest > most {
        return Err(io::Error::other(format!(
            "found datagrams of up to {longest} bytes, expected at most {most}, since the MTU \
             allows no more: --datagram {most}"
        )));
    }
    Ok((XdpSource::new(station), opened))
}

/// Opens the memory, which a file may hold.
fn open(options: &Options, config: &Config) -> Result<(Store<Mapping>, Option<Restored>), Error> {
    check_room(options, config)?;
    let Some(path) = &options.keep else {
        let map = |len| match options.pages {
            Some(pages) => Mapping::anonymous(len, pages),
            None => Mapping::best(len),
        };
        let store = Store::in_memory(config, map).map_err(Error::Memory)?;
        return Ok((store, None));
    };
    let failed = |error| Error::Keep(path.clone(), error);
    let file = owned(path).map_err(|error| failed(error.into()))?;
    let (mut store, restored) = Store::open_kept(config, file).map_err(failed)?;
    for (&space, &bytes) in &config.quotas {
        match store.set_quota(space, bytes) {
            // It gets its quota when it is made.
            Ok(()) | Err(operation::Error::NoSuchSpace) => {}
            Err(_) => return Err(failed(KeepError::Corrupt("no room for the quotas"))),
        }
    }
    Ok((store, Some(restored)))
}

/// Checks that the system can give the memory, unless it is there: in huge pages that are set
/// aside, or in a file that has it already.
fn check_room(options: &Options, config: &Config) -> Result<(), Error> {
    let is_set_aside = matches!(options.pages, Some(Pages::Huge1G | Pages::Huge2M));
    let is_kept = options.keep.as_deref().is_some_and(|file| {
        let found = std::fs::metadata(file);
        found.is_ok_and(|found| found.len() > 0)
    });
    let expected = Store::<Mapping>::needed_bytes(config);
    match room::available() {
        Some(found) if found.bytes < expected && !is_set_aside && !is_kept => {
            Err(Error::Room { found, expected })
        }
        _ => Ok(()),
    }
}

/// Takes the file. A process that was killed has it until the kernel has taken its memory down, so
/// that one which takes its place at once must wait for a moment.
fn owned(path: &Path) -> Result<OwnedFile, tare_memory::Error> {
    let end = Instant::now() + TAKE_OVER;
    loop {
        match OwnedFile::open(path) {
            Err(tare_memory::Error::FileInUse) if Instant::now() < end => {
                std::thread::sleep(TAKE_OVER / 50);
            }
            result => return result,
        }
    }
}

/// The longest wait for the process that had the file before.
const TAKE_OVER: Duration = Duration::from_secs(2);

fn record(restored: &Restored) -> Record {
    match restored.is_new {
        true => Record::new(Level::Info, "kept_memory_made"),
        false => Record::new(Level::Info, "kept_memory_restored")
            .with("entries_dropped", restored.dropped)
            .with("write_completed", u64::from(restored.has_completed_write)),
    }
}

/// Answers requests for the status until a stop is requested or a worker has ended.
fn watch(
    host: &Host<Report>,
    service: &Service<Store<Mapping>>,
    (listen, shm): (&Listen, Option<&ShmWork>),
    woken: &Receiver<()>,
) {
    while !host.is_stopped() && !service.has_failed() {
        let _ = woken.recv_timeout(PULSE);
        let version = env!("CARGO_PKG_VERSION");
        host.answer(|asked| report::of(host.status(version), service, (listen, shm), asked));
    }
}

/// The longest time between two looks at the signals.
const PULSE: Duration = Duration::from_millis(100);

/// Nanoseconds since 1970: greater at every start, as epochs and tokens must be.
fn wall_clock_ns() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |since| since.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_an_interface_are_never_taken_for_loopback() {
        let listen = |text: &str| text.parse::<Listen>();
        assert!(listen("127.0.0.1:7311").unwrap().is_loopback());
        assert!(listen("udp://[::1]:7311").unwrap().is_loopback());
        assert!(!listen("10.0.0.1:7311").unwrap().is_loopback());
        let xdp = listen("xdp:eth1,127.0.0.1:7311").unwrap();
        assert!(!xdp.is_loopback());
        assert_eq!(xdp.to_string(), "xdp:eth1,127.0.0.1:7311");
        for wrong in ["", "xdp:", "xdp:eth1", "eth1,10.0.0.1:7311", "10.0.0.1"] {
            let error = listen(wrong).unwrap_err();
            assert!(error.starts_with(&format!("found \"{wrong}\"")), "{error}");
        }
    }
}
