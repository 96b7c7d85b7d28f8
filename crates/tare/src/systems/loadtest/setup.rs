//! Streams and testbeds, made from arguments.

use std::fs::File;
use std::io::BufReader;

use anyhow::{bail, Context as _};
use clap::ArgAction;
use tare_loadtest::simulate::{self, gateways, Simulation};
use tare_loadtest::{pair, Ports, Stream, StreamConfig, Testbed, Virtual};
use tare_packet::{imix, pcap};
use tare_port::{Interface, Layout, Pool};

use super::value;
use crate::systems::port_kind::PortKind;
use crate::terminal;

/// The largest capture, in bytes: all its frames are kept in memory.
const CAPTURE_BYTES_MAX: usize = 1 << 30;
/// Frames that may be in flight.
const FRAMES: usize = 1 << 14;

/// The arguments that all three commands share.
#[derive(clap::Args)]
pub(crate) struct Setup {
    /// Bind to this CPU; best one that nothing else runs on
    #[arg(long, value_name = "CPU")]
    pub(super) cpu: Option<usize>,
    /// Instead of interfaces: two gateways with lines between them, in virtual time and without
    /// root. SPEC is a list of rate=BITS, overhead=esp|BYTES, queue=FRAMES, delay=SECONDS,
    /// loss=SHARE, duplication=SHARE, reordering=SHARE, seed=N [default:
    /// rate=1e9,overhead=esp,queue=512]
    #[arg(long, value_name = "SPEC", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub(super) simulate: Option<Simulation>,
    /// With --simulate and no captures: frames of this many bytes without checksum, or IMIX, in
    /// both directions
    #[arg(
        long,
        value_name = "BYTES",
        requires = "simulate",
        conflicts_with = "streams"
    )]
    packet_size: Option<imix::PacketSize>,
    /// The kind of port of the interfaces
    #[arg(
        long,
        value_name = "KIND",
        default_value = "auto",
        conflicts_with = "simulate"
    )]
    port: PortKind,
    /// Seconds of the warm-up before the first trial [default: 1, with --simulate 0]
    #[arg(long, value_name = "SECONDS", value_parser = value::seconds_or_none)]
    pub(super) warm_up: Option<std::time::Duration>,
    /// Add a line with each stream's latency
    #[arg(long, action = ArgAction::SetTrue)]
    pub(super) latency: bool,
    /// Print the result as JSON instead
    #[arg(long)]
    pub(super) json: bool,
    /// Groups of four: a capture, the name of the stream sent from it, the name of the stream on
    /// whose interface it comes back, and the interface it is sent on, by name or PCI address. Or a
    /// capture and an interface, which is both
    #[arg(value_name = "PCAP TX RX INTERFACE")]
    streams: Vec<String>,
}

/// Streams and their testbed.
pub(super) struct Ready {
    pub(super) testbed: Box<dyn Testbed>,
    pub(super) streams: Vec<Stream>,
    /// The pool of the frames that are sent.
    pub(super) pool: Option<Pool>,
}

/// One group of arguments.
struct Group {
    capture: Option<String>,
    tx: String,
    rx: String,
    interface: String,
}

impl Setup {
    /// Reads captures and opens interfaces.
    pub(super) fn ready(&self) -> anyhow::Result<Ready> {
        let groups = self.groups()?;
        if let Some(cpu) = self.cpu {
            bind(cpu)?;
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
        match &self.simulate {
            Some(simulation) => {
                let network = gateways(simulation, &streams).map_err(anyhow::Error::msg)?;
                Ok(Ready {
                    testbed: Box::new(Virtual::new(network)),
                    streams,
                    pool: None,
                })
            }
            None => self.open(&interfaces, streams),
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

    fn open(&self, interfaces: &[&str], streams: Vec<Stream>) -> anyhow::Result<Ready> {
        // A port over AF_XDP takes a quarter of its pool. Two share one, so that what is sent is
        // not copied.
        let pool = || Pool::new(FRAMES, 2048, Layout::PowerOfTwo).context("memory for frames");
        let shared = (interfaces.len() <= 2).then(pool).transpose()?;
        let mut ports = Vec::new();
        for (n, what) in interfaces.iter().enumerate() {
            let interface = Interface::find(what)?;
            if let Some(same) = interfaces[..n].iter().find(|other| {
                Interface::find(other).is_ok_and(|other| other.index() == interface.index())
            }) {
                bail!("{same} and {what} are the same interface; name it the same way each time");
            }
            let own = shared.clone().map_or_else(pool, Ok)?;
            let (port, opened) = tare_port::open(&interface, 0, &own, self.port.into())?;
            if !interface.is_up()? {
                bail!(
                    "{what} is down; take it up with `ip link set {} up`",
                    interface.name()
                );
            }
            if interface.queues() > 1 {
                terminal::say(&format!(
                    "tare: {what} has {} queues and only the first is used; what it receives on others counts as lost: `ethtool -L {} combined 1`",
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
                terminal::say(&format!("tare: {what}: {}{why}", opened.kind));
            }
            ports.push(port);
        }
        Ok(Ready {
            testbed: Box::new(Ports::new(ports)),
            streams,
            pool: shared,
        })
    }
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
