//! The client's side of a trial: the load and its reference take turns, then single latencies are
//! measured.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tare_farmem::operation::SpaceId;
use tare_farmem::transport::{shm, Channel, Faults, UdpLink, Waiting};
use tare_histogram::Histogram;
use tare_lab::protocol::Ready;

use super::super::fleet::{self, allow_descriptors, FaultTotals, Fleet, UdpFleet};
use super::super::layout::{Layout, Turns};
use super::super::load::Load;
use super::control::{Control, Phase, SLOT, SLOTS};
use super::frames::{self, CommonLink};
use super::raw::{self, Ping};
use super::setup::{layout, Placement, FIRST_SPACE};
use super::storm::Storm;
use super::threads::{Crew, Done, Work};
use super::timing::{groups, median, too_few, Average, GROUP_MAX, TURN};
use super::{
    network, node, FarmemFigures, FarmemParameters, Rings, Switch, System, Transport, Wait, NODE,
};
use crate::agent::Agent;
use crate::systems::load::driver::pin;

/// The most turns of a trial, as a multiple of those that its duration has room for.
const PAIRS_MAX: usize = 20;

/// Bytes of a group of long operations, about those of the reference. All of them are compared
/// after the group; more would not stay in the caches, as they do in a program that takes each when
/// it has completed.
const GROUP_BYTES: usize = SLOTS * SLOT;

/// Data beside each of several rings.
const RING_DATA_BYTES: u32 = 64 << 10;

/// Descriptors beside those of sessions and of the reference.
pub(super) const DESCRIPTORS_MORE: u64 = 100;

/// The most descriptors of a client over shared memory, at either side.
pub(super) const DESCRIPTORS_PER_RING: u64 = 3;

/// The pages that are near: those that every cache holds.
const NEAR: u64 = 128;

/// The way to the node's side.
pub(super) struct Place<'a> {
    pub(super) parameters: &'a FarmemParameters,
    pub(super) described: &'a Ready,
    /// Workers of the node.
    pub(super) workers: usize,
    /// The faults of all links.
    pub(super) faults: Arc<FaultTotals>,
}

impl Place<'_> {
    fn text(&self, name: &str) -> anyhow::Result<&str> {
        let text = self.described.get(name).and_then(|value| value.as_str());
        text.with_context(|| format!("the node's side did not report its {name}"))
    }

    /// Returns the address of the worker that a thread of the client asks.
    fn of(&self, what: &str, thread: usize) -> anyhow::Result<&str> {
        self.text(&node::name(what, thread % self.workers))
    }

    /// Opens the sessions of a thread.
    pub(super) fn fleet(
        &self,
        thread: usize,
        sessions: u64,
        link: Option<CommonLink>,
    ) -> anyhow::Result<Fleet> {
        let node = self.of("node", thread)?;
        let first = first_space(self.parameters, thread);
        fleet(self.parameters, node, first, sessions, link, &self.faults)
    }

    /// Opens the end of the reference of a thread over sockets: as many as it has sessions, since
    /// what a socket costs that is in no cache is the kernel's, and not the protocol's.
    pub(super) fn ping(&self, thread: usize) -> anyhow::Result<Ping> {
        let text = self.of("reference", thread)?;
        let server: SocketAddr = text.parse().with_context(|| text.to_owned())?;
        let own = self.parameters.network.socket(network::CLIENT);
        let sockets = fleet::sockets(self.parameters.sessions);
        let is_busy = self.parameters.wait == Wait::Busy;
        let request = self.parameters.lengths().0;
        Ok(Ping::new(own, server, sockets, is_busy, request)?)
    }
}

/// Returns the first space of a thread.
fn first_space(parameters: &FarmemParameters, thread: usize) -> u64 {
    FIRST_SPACE + thread as u64 * parameters.sessions
}

/// Returns the memory that a thread works on.
pub(super) fn layout_of(parameters: &FarmemParameters, thread: usize) -> Layout {
    Layout {
        first_space: first_space(parameters, thread),
        ..layout(parameters)
    }
}

/// The client's end of the reference.
enum Reference {
    Ping(Ping),
    Frames(frames::Ping),
    Stream(UdpLink),
    Memory,
}

/// Measures, in the role that does.
///
/// # Errors
/// A socket failed, or the node did.
pub(super) fn measure(
    parameters: &FarmemParameters,
    agent: &mut Agent,
) -> anyhow::Result<FarmemFigures> {
    let placement = Placement::find(parameters.threads)?;
    let roles = agent.ready(Ready::new())?;
    let described = roles.get(NODE).context("no node's side")?;
    let control = Control::open(described)?;
    let is_xdp = parameters.transport == Transport::Xdp;
    let pid = described.get("pid").and_then(|pid| pid.as_u64());
    let pid = pid.and_then(|pid| u32::try_from(pid).ok());
    let pid = pid.context("the node's side did not report its pid")?;
    parameters.network.join(pid, is_xdp)?;
    let (own_cpu, other_cpus) = placement.threads.split_first().context("no processor")?;
    pin(*own_cpu)?;
    let place = Place {
        parameters,
        described,
        workers: placement.workers.len(),
        faults: Arc::default(),
    };
    let link = match parameters.transport {
        Transport::Xdp => Some(CommonLink::open()?),
        _ => None,
    };
    let sockets = 2 * fleet::sockets(parameters.sessions) * u64::from(parameters.threads);
    let rings = DESCRIPTORS_PER_RING * parameters.rings(parameters.sessions);
    allow_descriptors(sockets.max(rings) + DESCRIPTORS_MORE);
    let reference = match (link.clone(), parameters.transport, parameters.is_bulk()) {
        (Some(link), ..) => {
            let datagram = parameters.datagram.0 as usize;
            let request = parameters.lengths().0;
            Reference::Frames(frames::Ping::new(link, mac(described)?, request, datagram)?)
        }
        (None, Transport::Udp, false) => Reference::Ping(place.ping(0)?),
        (None, Transport::Udp, true) => {
            let text = place.of("reference", 0)?;
            let server = text.parse().with_context(|| text.to_owned())?;
            Reference::Stream(UdpLink::connect(server, Waiting::Busy)?)
        }
        _ => Reference::Memory,
    };
    if parameters.system == System::Raw {
        agent.start()?;
        return Bare {
            parameters,
            control,
            reference,
        }
        .measure();
    }
    // Over shared memory it is the node that opens a client's ring.
    control.begin(Phase::Node)?;
    // Regions have an owner, which is the last session.
    let sessions = parameters.sessions + u64::from(parameters.regions > 0);
    let mut fleet = place.fleet(0, sessions, link)?;
    let storm = match parameters.storm {
        Switch::On => {
            let space = FIRST_SPACE + sessions;
            let node = place.of("node", 0)?;
            let fleet = self::fleet(parameters, node, space, 1, None, &place.faults)?;
            Some(Storm::new(fleet, SpaceId(space))?)
        }
        Switch::Off => None,
    };
    let huge_pages = described.get(node::HUGE).and_then(|part| part.as_f64());
    thread::scope(|scope| {
        let crew = Crew::start(scope, &place, other_cpus);
        let mut trial = Trial {
            parameters,
            control,
            reference,
            storm,
            crew,
            faults: Arc::clone(&place.faults),
        };
        let mut load = Load::prepare(&mut fleet, layout_of(parameters, 0))?;
        trial.crew.wait_until_prepared()?;
        trial.turn_of_load(&mut load, parameters.outstanding)?;
        agent.start()?;
        Ok(FarmemFigures {
            huge_pages,
            ..trial.compare(&mut load)?
        })
    })
}

/// Opens sessions, of which the first has this space and the others the ones after it.
fn fleet(
    parameters: &FarmemParameters,
    node: &str,
    first_space: u64,
    sessions: u64,
    link: Option<CommonLink>,
    totals: &Arc<FaultTotals>,
) -> anyhow::Result<Fleet> {
    if parameters.transport == Transport::Shm {
        let rings = parameters.rings(sessions);
        let usual = shm::ClientConfig {
            // As over UDP.
            timeout: fleet::TIMEOUT,
            ..shm::ClientConfig::busy()
        };
        let config = match parameters.rings {
            Rings::One => usual,
            // A thousand of the usual size would take 2 GiB, and nine pages for the rings of each.
            Rings::Each => shm::ClientConfig {
                entries: entries(parameters.outstanding, usual.entries),
                data_bytes: RING_DATA_BYTES,
                ..usual
            },
        };
        let clients = (0..rings).map(|_| -> anyhow::Result<Box<dyn Channel>> {
            Ok(Box::new(shm::Client::connect(Path::new(node), &config)?))
        });
        let clients = clients.collect::<anyhow::Result<_>>()?;
        return Ok(Fleet::over(first_space, clients));
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
        faults: (loss > 0.0).then(|| (faults, 1, Arc::clone(totals))),
        secret: secret.as_ref(),
    };
    match link {
        Some(link) => fleet.open_on(link),
        None => fleet.open(),
    }
}

/// Returns the entries of a ring for so many operations on the way.
fn entries(outstanding: usize, most: u32) -> u32 {
    let least = u32::try_from(outstanding.next_power_of_two()).unwrap_or(most);
    least.clamp(16, most)
}

/// Returns the MAC address that the node's side said.
fn mac(described: &Ready) -> anyhow::Result<[u8; 6]> {
    let bytes = described.get("mac").and_then(|mac| mac.as_array());
    let bytes = bytes.into_iter().flatten().filter_map(|byte| byte.as_u64());
    let bytes: Vec<u8> = bytes.filter_map(|byte| u8::try_from(byte).ok()).collect();
    let mac = <[u8; 6]>::try_from(bytes);
    mac.ok()
        .context("the node's side did not report its MAC address")
}

/// Makes so many exchanges of the reference, one after the other; returns their time.
fn exchange(
    reference: &mut Reference,
    control: &Control,
    count: usize,
) -> anyhow::Result<Duration> {
    match reference {
        Reference::Ping(ping) => Ok(ping.round_trips(count)?),
        Reference::Frames(ping) => Ok(ping.round_trips(count)?),
        Reference::Memory => Ok(raw::raw_line(control, count)),
        Reference::Stream(_) => anyhow::bail!("a stream has no exchanges"),
    }
}

/// The client's side of a trial of the transport alone.
struct Bare<'a> {
    parameters: &'a FarmemParameters,
    control: Control,
    reference: Reference,
}

impl Bare<'_> {
    /// Measures exchanges in groups, then each by itself.
    fn measure(mut self) -> anyhow::Result<FarmemFigures> {
        let half = self.parameters.duration / 2;
        let before = self.control.begin(Phase::Echo)?;
        let (mut times, mut operations, mut latency) = (vec![], 0, Histogram::new());
        let mut exchange = |count| exchange(&mut self.reference, &self.control, count);
        let from = Instant::now();
        while times.is_empty() || from.elapsed() < half {
            let (time, count) = groups(Average::Median, (1, GROUP_MAX), &mut exchange)?;
            times.push(time);
            operations += count;
        }
        let from = Instant::now();
        while latency.count() == 0 || from.elapsed() < half {
            latency.record_duration(exchange(1)?);
        }
        operations += latency.count();
        // The phase is the same, the time later.
        let after = self.control.begin(Phase::Echo)?;
        self.control.begin(Phase::Idle)?;
        let (time, size) = (median(&mut times), self.parameters.size.0);
        let quantile = |share| Some(latency.quantile(share)?.as_secs_f64());
        Ok(FarmemFigures {
            latency_p50: quantile(0.5),
            latency_p99: quantile(0.99),
            latency_p999: quantile(0.999),
            time: Some(time),
            rate: Some(1.0 / time),
            throughput: Some(8.0 * size as f64 / time),
            cpu_node_time: Some(after.saturating_sub(before).as_secs_f64() / operations as f64),
            operations,
            bytes: operations * size,
            sessions: 1,
            ..FarmemFigures::default()
        })
    }
}

/// The client's side of a trial.
struct Trial<'a> {
    parameters: &'a FarmemParameters,
    control: Control,
    reference: Reference,
    storm: Option<Storm>,
    /// The other threads, which do what this one does.
    crew: Crew,
    /// The faults of all links.
    faults: Arc<FaultTotals>,
}

/// A turn of the load.
struct Turn {
    /// The time per operation, in seconds; of several threads the inverse of the sum of their
    /// rates.
    time: f64,
    operations: u64,
    /// The node's processor time in the turn.
    node: Duration,
}

/// Turns among few pages, and of a reference that misses the caches as a read among many does.
struct Nearby {
    turns: Turns,
    near: Vec<f64>,
    missed: Vec<f64>,
    over: Vec<f64>,
}

impl Trial<'_> {
    /// Lets the load and its reference take turns, then measures single latencies.
    fn compare(&mut self, load: &mut Load<'_>) -> anyhow::Result<FarmemFigures> {
        let parameters = self.parameters;
        let before = self.crew.proofs(load);
        let faults_before = self.faults.counts();
        let size = parameters.size.0 as f64;
        let (mut times, mut ratios, mut node) = (vec![], vec![], Duration::ZERO);
        let pairs = parameters.duration.as_secs_f64() / (2.0 * TURN.as_secs_f64());
        let pairs = pairs.round().max(1.0) as usize;
        let mut nearby = (parameters.misses == Switch::On).then(|| Nearby {
            turns: Turns::among(&layout(parameters), NEAR),
            near: Vec::new(),
            missed: Vec::new(),
            over: Vec::new(),
        });
        // A slow or busy machine takes longer until each session has done enough.
        let lacks = |crew: &Crew, load: &Load<'_>| {
            let now = crew.proofs(load);
            let each = before.iter().zip(&now);
            each.map(|(before, now)| too_few(now.operations - before.operations, now.sessions))
                .sum::<u64>()
        };
        while ratios.len() < pairs
            || (ratios.len() < PAIRS_MAX * pairs && lacks(&self.crew, load) > 0)
        {
            let reference = match parameters.outstanding {
                1 => self.turn_of_reference(parameters.reference())?,
                _ if parameters.is_bulk() => self.turn_of_reference(parameters.reference())?,
                // Many at a time are held against one at a time.
                _ => self.turn_of_load(load, 1)?.time,
            };
            let turn = self.turn_of_load(load, parameters.outstanding)?;
            if let Some(nearby) = &mut nearby {
                let missed = self.turn_of_reference(Phase::EchoAndMiss)? - reference;
                load.swap_turns(&mut nearby.turns);
                let near = self.turn_of_load(load, 1)?.time;
                load.swap_turns(&mut nearby.turns);
                nearby.missed.push(missed);
                nearby.near.push(near);
                nearby.over.push(turn.time / (near + missed));
            }
            ratios.push(turn.time / reference);
            times.push((turn.time, turn.operations));
            node += turn.node;
        }
        let mut operations: u64 = times.iter().map(|(_, count)| count).sum();
        let (time, ratio) = (parameters.average().of(&times), median(&mut ratios));
        let mut latency = Histogram::new();
        let measured_before = self.crew.proof(load).operations;
        let node_before = self.control.begin(Phase::Node)?;
        let mut rate = 1.0 / time;
        if parameters.share > 0.0 {
            let open = parameters.duration / 2;
            rate = load.open_loop(parameters.share * rate, open, &mut latency)?;
        } else if parameters.outstanding == 1 {
            self.latencies(load, &mut latency)?;
        }
        let node_after = self.control.begin(Phase::Idle)?;
        let proof = self.crew.proof(load);
        let measured = proof.operations - measured_before;
        let storm = self.storm.as_ref();
        let storm = storm.map(|storm| storm.operations() as f64 / measured as f64);
        if storm.is_some() || parameters.share > 0.0 {
            // The turns had no storm, and were a closed loop.
            (node, operations) = (node_after.saturating_sub(node_before), measured);
        }
        let quantile = |share| Some(latency.quantile(share)?.as_secs_f64());
        let is_bulk = parameters.is_bulk();
        let is_single = parameters.outstanding == 1 && !is_bulk;
        let before_all: u64 = before.iter().map(|proof| proof.operations).sum();
        let measured = proof.operations - before_all;
        let faults = self.faults.counts();
        let lost = faults.lost - faults_before.lost;
        let mut figures = FarmemFigures {
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
            losses: Some(lost as f64 / measured as f64),
            cpu_node_time: Some(node.as_secs_f64() / operations as f64),
            operations: measured,
            bytes: measured * parameters.size.0,
            verified: proof.verified,
            wrong: proof.wrong,
            failed: proof.failed,
            turns: ratios.len() as u64,
            sessions: proof.sessions,
            too_few: lacks(&self.crew, load),
            pages: proof.pages,
            lost,
            duplicated: faults.duplicated - faults_before.duplicated,
            reordered: faults.reordered - faults_before.reordered,
            lossless: u64::from(parameters.loss > 0.0 && lost == 0),
            ..FarmemFigures::default()
        };
        if let Some(mut nearby) = nearby {
            let (near, missed) = (median(&mut nearby.near), median(&mut nearby.missed));
            figures.near_time = Some(near);
            // A difference of two measurements; noise may put it below 0, which no time is.
            figures.miss_time = Some(missed.max(0.0));
            figures.over_misses = Some(median(&mut nearby.over));
            // Without a difference there is nothing that they would not explain.
            let is_longer = time > near;
            figures.explained = Some(if is_longer {
                missed / (time - near)
            } else {
                1.0
            });
        }
        Ok(figures)
    }

    /// Returns the time that the reference takes for an operation, in seconds.
    fn turn_of_reference(&mut self, phase: Phase) -> anyhow::Result<f64> {
        self.control.begin(phase)?;
        let control = &self.control;
        let size = self.parameters.size.0 as f64;
        match &mut self.reference {
            Reference::Stream(link) => Ok(size / raw::stream(link, control, TURN)?),
            Reference::Memory if self.parameters.is_bulk() => {
                Ok(size / raw::give_copies(control, TURN)?)
            }
            reference => {
                self.crew.begin(Work::Reference)?;
                let exchange = |count| exchange(reference, control, count);
                let turn = groups(Average::Median, (1, GROUP_MAX), exchange)?;
                Ok(together(turn.0, &self.crew.end()?))
            }
        }
    }

    fn turn_of_load(&mut self, load: &mut Load<'_>, outstanding: usize) -> anyhow::Result<Turn> {
        let before = self.control.begin(Phase::Node)?;
        self.crew.begin(Work::Load(outstanding))?;
        let (time, operations) = turn_of(self.parameters, load, outstanding)?;
        let others = self.crew.end()?;
        // The phase is the same, the time later.
        let after = self.control.begin(Phase::Node)?;
        let of_others: u64 = others.iter().map(|done| done.operations).sum();
        Ok(Turn {
            time: together(time, &others),
            operations: operations + of_others,
            node: after.saturating_sub(before),
        })
    }

    /// Measures each operation for half of the duration.
    fn latencies(&mut self, load: &mut Load<'_>, latency: &mut Histogram) -> anyhow::Result<()> {
        self.crew.begin(Work::Latencies)?;
        match &mut self.storm {
            Some(storm) => {
                let until = Instant::now() + self.parameters.duration / 2;
                while Instant::now() < until {
                    load.one_by_one_beside(64, latency, || storm.step())?;
                }
            }
            None => latencies(self.parameters, load, latency)?,
        }
        for done in self.crew.end()? {
            latency.merge(&done.latency);
        }
        Ok(())
    }
}

/// Runs a turn of a thread's load; returns the time per operation, and the operations.
pub(super) fn turn_of(
    parameters: &FarmemParameters,
    load: &mut Load<'_>,
    outstanding: usize,
) -> anyhow::Result<(f64, u64)> {
    let most = (GROUP_BYTES / parameters.size.0 as usize).min(GROUP_MAX);
    let bounds = (load.group_min(outstanding), most);
    let group = |count| load.group(count, outstanding);
    groups(parameters.average(), bounds, group)
}

/// Measures each operation of a thread for half of the duration.
pub(super) fn latencies(
    parameters: &FarmemParameters,
    load: &mut Load<'_>,
    latency: &mut Histogram,
) -> anyhow::Result<()> {
    let until = Instant::now() + parameters.duration / 2;
    while Instant::now() < until {
        load.one_by_one(64, latency)?;
    }
    Ok(())
}

/// Returns the time per operation of this thread and others together.
fn together(own: f64, others: &[Done]) -> f64 {
    let rates: f64 = others.iter().map(|done| 1.0 / done.time).sum();
    match others {
        [] => own,
        _ => 1.0 / (1.0 / own + rates),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_threads_add_up() {
        let done = |time| Done {
            time,
            ..Done::default()
        };
        assert_eq!(together(3e-6, &[]), 3e-6);
        let time = together(4e-6, &[done(4e-6), done(2e-6)]);
        assert!((time - 1e-6).abs() < 1e-12, "{time}");
    }
}
