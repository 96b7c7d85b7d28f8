//! Remote memory, each operation verified, beside what its transport does without a protocol.

mod backing;
mod client;
mod control;
mod frames;
mod local;
mod misses;
mod network;
mod node;
mod peers;
mod raw;
mod setup;
mod storm;
mod threads;
mod timing;

use std::time::Duration;

use tare_lab::driver::{Expected, Invocation, Missing, Mistake, Role};
use tare_lab::parameters::{Bytes, Choice as _};
use tare_lab::protocol::Ready;
use tare_lab::{choices, figures, parameters};

use super::layout::Direction;
use crate::agent::{Agent, TrialError};
use crate::machine::{Feature, Machine};
use crate::systems::namespace;
use crate::systems::workload::{mistake, References, Workload};
use network::Network;

/// The role that measures.
const CLIENT: &str = "client";

/// The usual time for making a network.
const NETWORK_USUAL: Duration = Duration::from_millis(200);

/// The role of the memory node, and of the other side of the reference.
const NODE: &str = "node";

choices! {
    /// The way of operations to the node.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Transport {
        /// UDP over sockets; UCX over TCP.
        Udp = "udp",
        /// UDP over the frames of an interface, by AF_XDP or packet sockets.
        Xdp = "xdp",
        /// Rings in shared memory.
        Shm = "shm",
    }
}

choices! {
    /// The system that is measured.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) enum System {
        /// Remote memory.
        Farmem = "farmem",
        /// Memory of the process itself.
        Local = "local",
        /// The transport without a protocol.
        Raw = "raw",
        /// UCX, by its own test program.
        Ucx = "ucx",
        /// memcached over UDP, by Tare's load generator.
        Memcached = "memcached",
        /// Redis, by Tare's load generator.
        Redis = "redis",
    }
}

choices! {
    /// The way to wait for a datagram, on both sides.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Wait {
        /// By asking again and again.
        Busy = "busy",
        /// Asleep.
        Blocking = "blocking",
    }
}

choices! {
    /// The rings of sessions over shared memory.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Rings {
        /// One client's ring for all of them.
        One = "one",
        /// A client with a ring for each, up to 1000, which more sessions share.
        Each = "each",
    }
}

choices! {
    /// On or off.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Switch {
        /// Off.
        Off = "off",
        /// On.
        On = "on",
    }
}

parameters! {
    /// The parameters of the driver `farmem`.
    pub(crate) struct FarmemParameters {
        /// remote memory, or something that it is compared with
        system: System = "farmem",
        /// the way to the node
        transport: Transport = "udp",
        /// the network of UDP: loopback, or a cable or a bridge between network namespaces
        network: Network = "loopback",
        /// how both sides of UDP wait: busy, or asleep
        wait: Wait = "busy",
        /// the direction of operations
        op: Direction = "read",
        /// bytes per operation
        size: Bytes = "16 B",
        /// sessions in turn, each with an address space and a client of its own: a socket each up
        /// to 1000, 64 shared ones above; over shared memory see `rings`
        sessions: u64 [1..=100_000] = 1,
        /// over shared memory: sessions are address spaces of one client, on its ring, as those of
        /// one process are; or each has a client and a ring of its own, up to 1000
        rings: Rings = "one",
        /// log2 of the number of pages of 4 KiB of all sessions together, each with memory of its
        /// own; a session has at least one
        order: u32 [0..=22] = 7,
        /// named regions of another session that the pages are in, which the session maps and
        /// uses; 0 for memory of its own
        regions: u64 [0..=1024] = 0,
        /// threads of the client, each with so many sessions and pages, and with a processor of its
        /// own; the node has the processors that are left, at most as many
        threads: u32 [1..=64] = 1,
        /// operations outstanding at a time
        outstanding: usize [1..=4096] = 1,
        /// the longest datagram
        datagram: Bytes = "1472 B",
        /// encryption and authentication of every message of UDP
        aead: Switch = "off",
        /// the part of datagrams that the client's links lose; half as many are duplicated, and as
        /// many reordered
        loss: f64 = 0.0,
        /// one at a time: pages are allocated, touched for the first time and freed between them
        storm: Switch = "off",
        /// one at a time over UDP: turns in the first 128 pages, and exchanges of bare datagrams in
        /// each of which the other side makes two dependent cache misses, in memory as large as
        /// that of the pages and their table
        misses: Switch = "off",
        /// above 0: latencies are those of an open loop at this part of the rate with `outstanding`
        share: f64 = 0.0,
        /// the measured part of a trial, in turns of 80 ms with the reference
        duration: Duration = "320 ms",
    }
}

figures! {
    /// The figures of a trial of `farmem`.
    #[derive(Default)]
    pub(crate) struct FarmemFigures {
        metrics {
            /// median latency of an operation
            latency_p50: Option<f64> [Seconds],
            /// 99th percentile of the latency
            latency_p99: Option<f64> [Seconds],
            /// 99.9th percentile of the latency
            latency_p999: Option<f64> [Seconds],
            /// time per operation, the median over groups of operations; of several threads the
            /// inverse of the sum of their rates, with loss and of other systems the mean
            time: Option<f64> [Seconds],
            /// one operation at a time: the time over that of the reference in the same trial, an
            /// exchange of datagrams as long over as many sockets, or the raw line
            over_raw: Option<f64> [Ratio],
            /// operations per second; in an open loop those that completed
            rate: Option<f64> [OperationsPerSecond],
            /// several operations at a time: the rate over that of one at a time, in the same trial
            of_single: Option<f64> [Ratio],
            /// payload per second
            throughput: Option<f64> [BitsPerSecond],
            /// operations of 32 KiB and more: the throughput over that of a raw stream in one
            /// direction, or of a copy from process to process, in the same trial
            of_raw: Option<f64> [Ratio],
            /// with misses: time per operation in the first 128 pages
            near_time: Option<f64> [Seconds],
            /// with misses: the time that they add to an exchange of bare datagrams
            miss_time: Option<f64> [Seconds],
            /// with misses: the time per operation over the sum of both
            over_misses: Option<f64> [Ratio],
            /// with misses: their time over what an operation takes longer than in the first 128
            /// pages; 1 if it takes no longer
            explained: Option<f64> [Ratio],
            /// allocations, first touches and frees per measured operation; 0 without a storm
            storm_operations: Option<f64> [Count],
            /// datagrams and messages that the client's links lost, per measured operation, the
            /// reads that verify included; 0 without loss
            losses: Option<f64> [Count],
            /// the part of the node's memory, page table included, that the system gave in pages of
            /// 2 MiB or 1 GiB; their kinds are in the trial's record (`node.memory`)
            huge_pages: Option<f64> [Ratio],
            /// processor time of the node per operation, idle polling included, also while the
            /// client verifies; with a storm or in an open loop, per operation beside or in it; 0
            /// for local memory
            cpu_node_time: Option<f64> [Seconds],
        }
        counters {
            /// operations measured
            operations,
            /// bytes of their payload
            bytes,
            /// bytes compared with what was written
            verified,
            /// operations that gave or left another byte than was written
            wrong,
            /// operations that failed
            failed,
            /// turns of the load beside one of its reference
            turns,
            /// sessions used
            sessions,
            /// those with fewer than ten measured operations
            too_few,
            /// distinct pages touched
            pages,
            /// datagrams and messages that the client's links lost
            lost,
            /// those that arrived twice
            duplicated,
            /// those that were delayed
            reordered,
            /// 1 for a trial with loss whose links lost nothing
            lossless,
        }
    }
}

/// The driver `farmem`.
pub(crate) struct Farmem;

impl Workload for Farmem {
    const NAME: &'static str = "farmem";
    const ABOUT: &'static str =
        "remote memory over a transport, every byte verified, beside the transport alone";
    type Parameters = FarmemParameters;
    type Figures = FarmemFigures;

    fn references() -> Option<References> {
        Some(References {
            parameter: "system",
            names: vec!["local", "raw", "ucx", "memcached", "redis"],
        })
    }

    fn examine(parameters: &FarmemParameters) -> Result<(), Mistake> {
        let bytes = |bytes: &Bytes| format!("{} B", bytes.0);
        if !(1..=1 << 20).contains(&parameters.size.0) {
            let found = bytes(&parameters.size);
            return Err(mistake("size", found.as_str(), "\"1 B\" to \"1 MiB\""));
        }
        if !(1024..=65_507).contains(&parameters.datagram.0) {
            let found = bytes(&parameters.datagram);
            return Err(mistake(
                "datagram",
                found.as_str(),
                "\"1024 B\" to \"65507 B\"",
            ));
        }
        if !(0.0..=0.5).contains(&parameters.loss) {
            return Err(mistake("loss", parameters.loss, "a fraction from 0 to 0.5"));
        }
        if parameters.loss > 0.0 && parameters.sessions > 1000 {
            let found = parameters.sessions as i64;
            return Err(mistake("sessions", found, "at most 1000 with loss"));
        }
        if !(0.0..1.0).contains(&parameters.share) {
            return Err(mistake(
                "share",
                parameters.share,
                "a fraction of at least 0 and below 1",
            ));
        }
        if parameters.storm == Switch::On && (parameters.outstanding > 1 || parameters.share > 0.0)
        {
            return Err(mistake(
                "storm",
                "on",
                "off unless there is one operation at a time",
            ));
        }
        let regions = parameters.regions;
        if regions > 0 {
            if parameters.sessions > 1 {
                let found = parameters.sessions as i64;
                return Err(mistake("sessions", found, "1 with regions"));
            }
            if !regions.is_power_of_two() || regions > 1 << parameters.order {
                let expected = "a power of two, at most the number of pages";
                return Err(mistake("regions", regions as i64, expected));
            }
        }
        let (transport, network) = (parameters.transport, parameters.network);
        if network != Network::Loopback {
            if transport == Transport::Shm {
                return Err(mistake("network", network.name(), "loopback for shm"));
            }
            if parameters.system != System::Farmem {
                let expected = "loopback for this system";
                return Err(mistake("network", network.name(), expected));
            }
        }
        if parameters.threads > 1 {
            examine_threads(parameters)?;
        }
        if parameters.misses == Switch::On {
            examine_misses(parameters)?;
        }
        if transport == Transport::Xdp {
            examine_xdp(parameters)?;
        }
        if parameters.system != System::Farmem {
            examine_other_system(parameters)?;
        }
        let is_shm = transport == Transport::Shm;
        if !is_shm && parameters.rings != Rings::One {
            return Err(mistake("rings", "each", "one for this transport"));
        }
        if is_shm && parameters.loss > 0.0 {
            return Err(mistake(
                "loss",
                parameters.loss,
                "0 for shm, which loses nothing",
            ));
        }
        if is_shm && parameters.aead == Switch::On {
            return Err(mistake(
                "aead",
                "on",
                "off for shm, which no network carries",
            ));
        }
        if is_shm && parameters.wait == Wait::Blocking {
            return Err(mistake("wait", "blocking", "busy for shm"));
        }
        if is_shm && matches!(parameters.system, System::Memcached | System::Redis) {
            return Err(mistake("transport", "shm", "udp for this system"));
        }
        Ok(())
    }

    fn check(parameters: &FarmemParameters, machine: &Machine) -> Result<(), Missing> {
        let program = match parameters.system {
            System::Farmem => {
                if parameters.network != Network::Loopback {
                    let root = machine.need(Feature::Root);
                    root.map_err(|missing| Missing {
                        remedy: Some("sudo tare run clio/xdp clio/bridge".into()),
                        ..missing
                    })?;
                    for tool in Feature::network_tools() {
                        machine.need(tool)?;
                    }
                }
                if parameters.threads > 1 {
                    let cpus = parameters.threads as usize + 1;
                    let what = format!("a node and {} busy threads need", parameters.threads);
                    machine.need_cpus(cpus, &what)?;
                }
                return setup::check_memory(parameters);
            }
            System::Local | System::Raw => return Ok(()),
            System::Ucx => "ucx_perftest",
            System::Memcached => "memcached",
            System::Redis => "redis-server",
        };
        machine.need(Feature::Load(program))
    }

    fn expected(parameters: &FarmemParameters) -> Option<Expected> {
        let mut pages = setup::memory_bytes(parameters) >> 12;
        let mut turns = 1.75;
        if parameters.misses == Switch::On {
            // Twice as many kinds of turns, and as much memory again.
            (pages, turns) = (2 * pages, turns + 1.0);
        }
        Some(Expected {
            clock: match parameters.network {
                Network::Loopback => Duration::ZERO,
                _ => NETWORK_USUAL,
            } + parameters.duration.mul_f64(turns),
            // The memory is zeroed and written once; a session takes a socket and three operations.
            // However long operations are, some hundred are made, generated and compared.
            work: Duration::from_millis(50)
                + Duration::from_nanos(300 * parameters.size.0)
                + Duration::from_nanos(3000 * pages)
                + Duration::from_micros(60 * parameters.sessions * u64::from(parameters.threads)),
        })
    }

    fn longest(parameters: &FarmemParameters) -> Duration {
        let expected = Self::expected(parameters);
        expected.map_or(Duration::ZERO, |expected| {
            expected.clock + expected.work * 20
        })
    }

    fn roles() -> Vec<Role> {
        let role = |name: &str| Role {
            name: name.into(),
            same_host: true,
        };
        vec![role(CLIENT), role(NODE)]
    }

    fn invocation(_: &Role, parameters: &FarmemParameters, own_trial: Invocation) -> Invocation {
        match parameters.network {
            Network::Loopback => own_trial,
            _ => namespace::apart(own_trial),
        }
    }

    fn run(parameters: FarmemParameters, agent: &mut Agent) -> Result<FarmemFigures, TrialError> {
        match parameters.system {
            System::Farmem | System::Raw => Ok(client::measure(&parameters, agent)?),
            System::Local => {
                agent.ready(Ready::new())?;
                Ok(local::measure(&parameters, agent)?)
            }
            _ => {
                agent.ready(Ready::new())?;
                Ok(peers::measure(&parameters, agent)?)
            }
        }
    }

    fn serve(_: &str, parameters: FarmemParameters, agent: &mut Agent) -> Result<(), TrialError> {
        match parameters.system {
            System::Farmem | System::Raw => Ok(node::serve(&parameters, agent)?),
            _ => {
                agent.ready(Ready::new())?;
                Ok(agent.until_stopped(|| Ok(()))?)
            }
        }
    }
}

/// Checks that a trial of another system leaves alone what only remote memory has: otherwise cells
/// that differ in a parameter without effect would be compared.
fn examine_other_system(parameters: &FarmemParameters) -> Result<(), Mistake> {
    let is_off = |name, switch: Switch| match switch {
        Switch::Off => Ok(()),
        Switch::On => Err(mistake(name, "on", "off for this system")),
    };
    let is = |name, found: u64, expected: u64| match found == expected {
        true => Ok(()),
        false => {
            let expected = format!("{expected} for this system");
            Err(mistake(name, found as i64, &expected))
        }
    };
    is("sessions", parameters.sessions, 1)?;
    is("order", u64::from(parameters.order), 7)?;
    is("regions", parameters.regions, 0)?;
    if parameters.rings != Rings::One {
        return Err(mistake("rings", "each", "one for this system"));
    }
    is("outstanding", parameters.outstanding as u64, 1)?;
    is_off("aead", parameters.aead)?;
    is_off("storm", parameters.storm)?;
    is_off("misses", parameters.misses)?;
    is("threads", u64::from(parameters.threads), 1)?;
    if parameters.system == System::Raw {
        below(parameters, setup::BULK, "below 32 KiB for raw")?;
    }
    for (name, found) in [("loss", parameters.loss), ("share", parameters.share)] {
        if found > 0.0 {
            return Err(mistake(name, found, "0 for this system"));
        }
    }
    Ok(())
}

fn below(parameters: &FarmemParameters, size: u64, expected: &str) -> Result<(), Mistake> {
    if parameters.size.0 < size {
        return Ok(());
    }
    let found = format!("{} B", parameters.size.0);
    Err(mistake("size", found.as_str(), expected))
}

/// Checks the parameters of a trial of several threads.
fn examine_threads(parameters: &FarmemParameters) -> Result<(), Mistake> {
    if parameters.transport != Transport::Udp {
        let found = parameters.transport.name();
        return Err(mistake("transport", found, "udp with threads"));
    }
    below(parameters, setup::BULK, "below 32 KiB with threads")?;
    if parameters.regions > 0 {
        let found = parameters.regions as i64;
        return Err(mistake("regions", found, "0 with threads"));
    }
    if parameters.share > 0.0 {
        return Err(mistake("share", parameters.share, "0 with threads"));
    }
    if parameters.storm == Switch::On {
        return Err(mistake("storm", "on", "off with threads"));
    }
    Ok(())
}

/// Checks the parameters of a trial with cache misses in the reference.
fn examine_misses(parameters: &FarmemParameters) -> Result<(), Mistake> {
    if parameters.transport != Transport::Udp {
        let found = parameters.transport.name();
        return Err(mistake("transport", found, "udp with misses"));
    }
    below(parameters, setup::BULK, "below 32 KiB with misses")?;
    let is_one = parameters.sessions == 1
        && parameters.threads == 1
        && parameters.outstanding == 1
        && parameters.storm == Switch::Off
        && parameters.share == 0.0;
    if !is_one {
        let expected = "off unless one session of one thread has one operation at a time";
        return Err(mistake("misses", "on", expected));
    }
    if parameters.order < 8 {
        let found = i64::from(parameters.order);
        return Err(mistake("order", found, "8 or more with misses"));
    }
    Ok(())
}

/// Checks the parameters of a trial over the frames of an interface.
fn examine_xdp(parameters: &FarmemParameters) -> Result<(), Mistake> {
    if parameters.system != System::Farmem {
        return Err(mistake("transport", "xdp", "udp for this system"));
    }
    if parameters.network == Network::Loopback {
        return Err(mistake("network", "loopback", "cable or bridge for xdp"));
    }
    if parameters.wait == Wait::Blocking {
        return Err(mistake("wait", "blocking", "busy for xdp"));
    }
    if parameters.loss > 0.0 {
        return Err(mistake("loss", parameters.loss, "0 for xdp"));
    }
    if parameters.storm == Switch::On {
        return Err(mistake("storm", "on", "off for xdp"));
    }
    // The kernel's ring between the ends of a cable has 256 frames, and drops a longer burst.
    below(parameters, (256 << 10) + 1, "at most \"256 KiB\" for xdp")?;
    // An Ethernet frame of 1514 bytes carries no more.
    if parameters.datagram.0 > 1472 {
        let found = format!("{} B", parameters.datagram.0);
        return Err(mistake(
            "datagram",
            found.as_str(),
            "at most \"1472 B\" for xdp",
        ));
    }
    Ok(())
}
