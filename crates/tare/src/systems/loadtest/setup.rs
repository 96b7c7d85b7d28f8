//! Streams and testbeds, made from arguments.

use std::fs::File;
use std::io::BufReader;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Context as _};
use clap::ArgAction;
use tare_loadtest::simulate::{self, gateways, Simulation};
use tare_loadtest::{pair, Error, Link, OpenPorts, Ports, Rate, Stream, StreamConfig, Testbed};
use tare_packet::{ethernet, imix, pcap};
use tare_port::{Interface, Kind, Layout, Pool, Port, XdpMode, XdpSender};

use super::value;
use crate::systems::port_kind::PortKind;
use crate::terminal;

/// The largest capture, in bytes of memory: all its frames are kept there.
const CAPTURE_BYTES_MAX: usize = 1 << 30;
/// Frames that may be in flight.
const FRAMES: usize = 1 << 14;
/// The most memory of frames in flight in a simulated network, in bytes.
const SIMULATED_BYTES_MAX: usize = 1 << 30;
/// The most queues of an interface that are opened.
const QUEUES_MAX: u32 = 16;
/// The longest frame that is sent by a lane of an AF_XDP port.
const LANE_FRAME_MAX: usize = 2040;
/// The time that an interface is given to find its carrier: some drivers need seconds after it was
/// taken up.
const CARRIER_WAIT: Duration = Duration::from_secs(5);
/// Bytes of a slot that no frame can use: its own header and XDP_PACKET_HEADROOM.
const SLOT_MARGIN: usize = 16 + 256;

/// The arguments that all three commands share.
#[derive(clap::Args)]
pub(crate) struct Setup {
    /// CPU to bind to, preferably one that runs nothing else
    #[arg(long, value_name = "CPU")]
    pub(super) cpu: Option<usize>,
    /// Number of sending threads, each on its own CPU; the first also receives
    #[arg(long, value_name = "COUNT", default_value = "1", value_parser = threads, conflicts_with = "simulate")]
    threads: u32,
    /// Instead of using interfaces, simulate two gateways and the links between them, in virtual
    /// time and without root. SPEC is a comma-separated list of rate=BITS, overhead=esp|BYTES,
    /// queue=FRAMES, delay=SECONDS, loss=SHARE, duplication=SHARE, reordering=SHARE, seed=N
    /// [default: rate=1e9,overhead=esp,queue=512]
    #[arg(long, value_name = "SPEC", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub(super) simulate: Option<Simulation>,
    /// With --simulate and no captures: frame size in bytes without the checksum, or IMIX, in both
    /// directions
    #[arg(
        long,
        value_name = "BYTES",
        requires = "simulate",
        conflicts_with = "streams"
    )]
    packet_size: Option<imix::PacketSize>,
    /// Type of port for the interfaces
    #[arg(
        long,
        value_name = "KIND",
        default_value = "auto",
        conflicts_with = "simulate"
    )]
    port: PortKind,
    /// Duration of the warm-up before the first trial, in seconds [default: 1, or 0 with
    /// --simulate]
    #[arg(long, value_name = "SECONDS", value_parser = value::seconds_or_none)]
    pub(super) warm_up: Option<std::time::Duration>,
    /// Add a line with the latency of each stream
    #[arg(long, action = ArgAction::SetTrue)]
    pub(super) latency: bool,
    /// Print the result as JSON instead of text
    #[arg(long)]
    pub(super) json: bool,
    /// Groups of four arguments: a capture file, the name of the stream sent from it, the name of
    /// the stream on whose interface it is received, and the interface that sends it, by name or
    /// PCI address. Or a capture file and one interface that sends and receives
    #[arg(value_name = "PCAP TX RX INTERFACE")]
    streams: Vec<String>,
}

/// Streams and their testbed.
pub(super) struct Ready {
    pub(super) testbed: Box<dyn Testbed>,
    pub(super) streams: Vec<Stream>,
    /// The pool of the frames that are sent.
    pub(super) pool: Option<Pool>,
    /// Frames that may be under way where there is no such pool.
    pub(super) frames: usize,
    pub(super) links: Vec<Link>,
    /// The ports of further threads that send.
    pub(super) senders: Vec<OpenPorts>,
}

/// One group of arguments.
struct Group {
    capture: Option<String>,
    tx: String,
    rx: String,
    interface: String,
}

impl Setup {
    /// Reads captures and opens interfaces, for loads of up to `max` on each stream, in frames of
    /// the captures or others of up to `longest` bytes.
    pub(super) fn ready(&self, max: Rate, longest: usize) -> anyhow::Result<Ready> {
        let groups = self.groups()?;
        // A thread that changes its CPU changes the queue that its frames arrive on, and they would
        // count as reordered.
        let mut cpus = allowed()?;
        let many = self.threads > 1;
        let own = self.cpu.or(cpus.first().copied().filter(|_| many));
        if let Some(cpu) = own {
            bind(cpu)?;
            cpus.retain(|&other| other != cpu);
        }
        let mut interfaces: Vec<&str> = Vec::new();
        let mut configs = Vec::new();
        for group in &groups {
            let port = interfaces
                .iter()
                .position(|&known| known == group.interface);
            let port = port.unwrap_or_else(|| {
                interfaces.push(&group.interface);
                interfaces.len() - 1
            });
            configs.push(StreamConfig {
                name: group.tx.clone(),
                rx: group.rx.clone(),
                port,
                frames: match &group.capture {
                    Some(path) => read(path)?,
                    None => self.made_up(),
                },
            });
        }
        let streams = pair(&configs)?;
        let longest = streams
            .iter()
            .map(Stream::longest)
            .fold(longest, usize::max);
        match &self.simulate {
            Some(simulation) => {
                let testbed = gateways(simulation, &streams).map_err(anyhow::Error::msg)?;
                let under_way = simulation.frames_under_way(max) * streams.len();
                let most = SIMULATED_BYTES_MAX / (longest + SLOT_MARGIN);
                let frames = under_way.min(most).max(FRAMES);
                Ok(Ready {
                    testbed,
                    streams,
                    pool: None,
                    frames,
                    links: Vec::new(),
                    senders: Vec::new(),
                })
            }
            None => self.open(&interfaces, streams, longest, &cpus),
        }
    }

    fn groups(&self) -> anyhow::Result<Vec<Group>> {
        let group = |capture: Option<&str>, tx: &str, rx: &str, interface: &str| Group {
            capture: capture.map(str::to_owned),
            tx: tx.to_owned(),
            rx: rx.to_owned(),
            interface: interface.to_owned(),
        };
        match self.streams.as_slice() {
            [] if self.simulate.is_some() => Ok(vec![
                group(None, "node1", "node2", "a"),
                group(None, "node2", "node1", "b"),
            ]),
            [capture, interface] => Ok(vec![group(Some(capture), "NIC", "NIC", interface)]),
            streams if !streams.is_empty() && streams.len() % 4 == 0 => Ok(streams
                .chunks_exact(4)
                .map(|four| group(Some(&four[0]), &four[1], &four[2], &four[3]))
                .collect()),
            streams => bail!(
                "found {} arguments, expected PCAP TX RX INTERFACE once or more, or PCAP INTERFACE (see --help)",
                streams.len()
            ),
        }
    }

    fn made_up(&self) -> Vec<Vec<u8>> {
        let size = self.packet_size.or(imix::PacketSize::fixed(imix::SIZE_MIN));
        let sizes = size.into_iter().flat_map(|size| size.period().to_vec());
        sizes.map(|size| simulate::frame(size.into())).collect()
    }

    fn open(
        &self,
        names: &[&str],
        streams: Vec<Stream>,
        longest: usize,
        cpus: &[usize],
    ) -> anyhow::Result<Ready> {
        let mut interfaces: Vec<Interface> = Vec::new();
        for (n, name) in names.iter().enumerate() {
            let interface = Interface::find(name)?;
            let same = interfaces
                .iter()
                .position(|i| i.index() == interface.index());
            if let Some(same) = same {
                let other = names[same];
                bail!("{other} and {name} are the same interface; use the same name each time");
            }
            wait_until_up(&interface, names[n])?;
            interfaces.push(interface);
        }
        let mut links = Vec::new();
        for interface in &interfaces {
            links.push(Link {
                name: interface.name().to_owned(),
                mtu: interface.mtu().with_context(|| gone(interface.name()))?,
            });
        }
        let mtu = links.iter().map(|link| link.mtu).max().unwrap_or(0);
        let capacity = capacity(longest.max(mtu + ethernet::HEADER));
        // A lane sends no longer frames.
        let lanes = if longest <= LANE_FRAME_MAX && capacity <= 4096 {
            self.threads
        } else {
            0
        };
        let is_jumbo = capacity > 4096;
        let queues = |interface: &Interface| match self.port {
            PortKind::Packet => 1,
            // More would take all frames of a pool that does not fill the memory.
            _ if is_jumbo => 1,
            _ => interface.queues().min(QUEUES_MAX),
        };
        // One pool for all, so that what is sent is not copied. Each port takes a ring of it.
        let ports: usize = interfaces.iter().map(|i| queues(i) as usize).sum();
        let slots = match (ports, is_jumbo) {
            (..=2, false) => FRAMES,
            (..=2, true) => FRAMES / 4,
            (more, _) => more * FRAMES / 2,
        };
        let pool = Pool::new(slots, capacity, Layout::PowerOfTwo);
        let pool = pool.context("memory for frames")?;
        let mut opened = Vec::new();
        for (interface, name) in interfaces.iter().zip(names) {
            opened.push(self.queues(interface, name, queues(interface), &pool, lanes)?);
        }
        for ((interface, name), (_, kind)) in interfaces.iter().zip(names).zip(&opened) {
            let direct = lanes > 0
                && matches!(kind, Kind::Xdp(XdpMode::Native))
                && XdpSender::is_possible(interface).is_ok();
            if direct && !self.json {
                terminal::say(&format!("tare: {name}: sends by XDP, without the ring"));
            }
        }
        let ports = opened.into_iter().map(|(ports, _)| ports).collect();
        Ok(Ready {
            testbed: Box::new(Ports::with_queues(ports)),
            streams,
            pool: Some(pool),
            frames: slots,
            links,
            senders: self.senders(&interfaces, longest, cpus),
        })
    }

    /// Opens the queues of an interface, and says how.
    fn queues(
        &self,
        interface: &Interface,
        name: &str,
        queues: u32,
        pool: &Pool,
        lanes: u32,
    ) -> anyhow::Result<(Vec<Box<dyn Port>>, Kind)> {
        let open = |queue, kind| tare_port::open_with_lanes(interface, queue, pool, kind, lanes);
        let (first, opened) = open(0, self.port.into())?;
        let mut ports = vec![first];
        // A packet socket receives what comes on any queue.
        let is_xdp = opened.kind != Kind::Packet;
        for queue in 1..if is_xdp { queues } else { 1 } {
            ports.push(open(queue, opened.kind)?.0);
        }
        if is_xdp && interface.queues() > queues {
            terminal::say(&format!(
                "tare: {name} has {} queues and only the first {queues} are used; what it receives on others counts as lost: `ethtool -L {} combined {queues}`",
                interface.queues(),
                interface.name()
            ));
        }
        if !self.json {
            let refused: Vec<String> = opened.refused.iter().map(ToString::to_string).collect();
            let why = if refused.is_empty() {
                String::new()
            } else {
                format!(" ({})", refused.join("; "))
            };
            let many = match ports.len() {
                1 => String::new(),
                many => format!(", {many} queues"),
            };
            terminal::say(&format!("tare: {name}: {}{many}{why}", opened.kind));
        }
        Ok((ports, opened.kind))
    }

    /// The further threads that send.
    fn senders(&self, interfaces: &[Interface], longest: usize, cpus: &[usize]) -> Vec<OpenPorts> {
        let capacity = capacity(longest);
        let sender = |n: u32| -> OpenPorts {
            let cpu = cpus.get(n as usize - 1).copied();
            let interfaces = interfaces.to_vec();
            Box::new(move || {
                let failed = |error: String| Error::Thread(std::io::Error::other(error));
                if let Some(cpu) = cpu {
                    bind(cpu).map_err(|error| failed(error.to_string()))?;
                }
                let pool = Pool::new(FRAMES / 4, capacity, Layout::Spread);
                let pool = pool.map_err(Error::Memory)?;
                let ports = interfaces
                    .iter()
                    .map(|interface| tare_port::open_to_send(interface, &pool))
                    .collect::<Result<_, _>>()
                    .map_err(|error| failed(error.to_string()))?;
                Ok((pool, ports))
            })
        };
        (1..self.threads).map(sender).collect()
    }
}

/// Bytes of a slot for frames of this length, behind what the kernel keeps in front of them.
fn capacity(longest: usize) -> usize {
    (longest + SLOT_MARGIN)
        .next_power_of_two()
        .clamp(2048, 32_768)
}

/// Waits until the interface, which the user calls `name`, has a carrier.
///
/// # Errors
/// If it was not taken up, or has no carrier within [`CARRIER_WAIT`].
fn wait_until_up(interface: &Interface, name: &str) -> anyhow::Result<()> {
    let begin = Instant::now();
    let mut is_said = false;
    let missing = || gone(name);
    while !interface.is_up().with_context(missing)? {
        if !interface.is_taken_up().with_context(missing)? {
            let device = interface.name();
            bail!("{name} is down; bring it up with `ip link set {device} up`");
        }
        let waited = begin.elapsed();
        if waited > Duration::from_secs(1) && !is_said {
            terminal::say(&format!("tare: {name}: waiting for its carrier"));
            is_said = true;
        }
        if waited > CARRIER_WAIT {
            bail!(
                "{name} is up, but has no carrier after {} s: check its cable, and that the other end is up",
                CARRIER_WAIT.as_secs()
            );
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// The context of the error of an interface that does not answer.
fn gone(name: &str) -> String {
    format!("{name}: expected an interface that exists until the test ends")
}

fn read(path: &str) -> anyhow::Result<Vec<Vec<u8>>> {
    let file = File::open(path).with_context(|| path.to_owned())?;
    let frames = pcap::read_frames(BufReader::new(file), CAPTURE_BYTES_MAX)
        .with_context(|| path.to_owned())?;
    Ok(frames.into_iter().map(Vec::from).collect())
}

fn bind(cpu: usize) -> anyhow::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        bail!("--cpu: found {cpu}, expected a CPU of this machine");
    }
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)
        .with_context(|| format!("--cpu: found {cpu}, expected a CPU that this process may use"))
}

/// The CPUs that this process may use.
fn allowed() -> anyhow::Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None).context("the CPUs of this process")?;
    let all = 0..rustix::thread::CpuSet::MAX_CPU;
    Ok(all.filter(|&cpu| set.is_set(cpu)).collect())
}

/// The number of threads of `--threads`: no more than CPUs.
fn threads(text: &str) -> Result<u32, String> {
    let most = std::thread::available_parallelism().map_or(1, usize::from);
    let wanted = || format!("found \"{text}\", expected 1 to {most}, the CPUs of this process");
    text.parse()
        .ok()
        .filter(|&threads: &u32| (1..=most as u32).contains(&threads))
        .ok_or_else(wanted)
}
