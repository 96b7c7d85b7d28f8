//! One measurement: a guest that serves, and its clients in the host's process.

mod board;
mod cipher;
mod guest;
mod load;

use std::net::Ipv4Addr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{anyhow, Context as _};
use rustls::pki_types::ServerName;
use tare_cvmnet::breakdown::{Breakdown, Off, Probe, Totals};
use tare_cvmnet::host::Pairs;
use tare_cvmnet::region::Region;
use tare_cvmnet::ring::{Doorbell, ExitCounts, Notification};
use tare_cvmnet::server::bulk::{Sink, Source};
use tare_cvmnet::tls::{Client, Identity, Options, Server, Suites};
use tare_cvmnet::variant::{Exits, Variant};
use tare_lab::choices;
use tempfile::TempDir;

use super::client::{self, Protocol};
use board::{Board, Ending};
use load::Load;

const GUEST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const NAME: &str = "guest.example";
/// The first port; each connection of the bulk workloads has one.
const PORT: u16 = 4433;
/// The part of a measurement's duration that its warm-up takes on top.
pub(super) const WARM_UP: f64 = 0.25;
/// The longest time for which no byte may arrive.
pub(super) const STANDSTILL: Duration = Duration::from_secs(20);
/// The longest time for the handshakes.
pub(super) const HANDSHAKES: Duration = Duration::from_secs(10);
/// The longest time for which records are sealed ahead.
pub(super) const SEALING: Duration = load::SEALING;

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
        /// Records that are opened out of shared memory by the cipher alone, without a network: the
        /// part of `receive` that no path can save.
        Open = "open",
    }
}

impl Work {
    fn protocol(self) -> Option<Protocol> {
        match self {
            Work::Receive | Work::Send | Work::Open => None,
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
    /// The guest's processors: each has a queue pair, and clients of its own.
    pub(super) vcpus: usize,
    /// The most bytes of memory for records that the clients seal before the clock starts; 0 to
    /// seal them while it runs. Of what the guest receives as bulk data alone.
    pub(super) ahead: usize,
    /// Bytes of bulk data that all connections together move, after which the measurement ends; 0
    /// to end it by the clock.
    pub(super) amount: u64,
    /// One in so many pieces of bulk data is compared with what was sent.
    pub(super) verify: u64,
}

impl Setup {
    fn layout(&self) -> tare_cvmnet::region::Config {
        self.variant.config(self.vcpus as u16)
    }
}

/// The results of a measurement.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// Seconds of the clock.
    pub(super) clock: f64,
    /// Seconds of processor time of the guest's threads, without turns that had no work.
    pub(super) busy: f64,
    /// Its processors.
    pub(super) vcpus: usize,
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
    /// Packets of the network and the frames that the host made of them for the guest.
    pub(super) packets: u64,
    pub(super) given: u64,
    /// Bytes copied through the bounce buffer.
    pub(super) bounced: u64,
    /// Faults of the ring and errors of TLS.
    pub(super) faults: u64,
    /// Bytes of data that were sealed before the clock started.
    pub(super) sealed_ahead: u64,
    /// The counts of each processor of the guest.
    pub(super) by_vcpu: Vec<OfVcpu>,
}

/// The counts of a processor of the guest.
#[derive(Clone, Copy, Debug)]
pub(super) struct OfVcpu {
    pub(super) exits: ExitCounts,
    pub(super) breakdown: Option<Totals>,
}

impl Outcome {
    /// Returns the exits of all processors.
    pub(super) fn exits(&self) -> ExitCounts {
        let mut all = ExitCounts::default();
        for ExitCounts {
            kicks,
            interrupts,
            halts,
            cycles,
        } in self.by_vcpu.iter().map(|of| of.exits)
        {
            all.kicks += kicks;
            all.interrupts += interrupts;
            all.halts += halts;
            all.cycles += cycles;
        }
        all
    }

    /// Returns the cycles of all processors, if they were counted.
    pub(super) fn breakdown(&self) -> Option<Totals> {
        let mut each = self.by_vcpu.iter().map(|of| of.breakdown);
        let first = each.next()??;
        each.try_fold(first, |mut sum, totals| {
            sum.add(&totals?);
            Some(sum)
        })
    }
}

/// Runs a guest and its clients; `start` is called when the warm-up is over.
///
/// # Errors
/// Something broke, or no byte arrived.
pub(super) fn run(
    setup: &Setup,
    start: impl FnOnce() -> std::io::Result<()>,
) -> anyhow::Result<Outcome> {
    if setup.work == Work::Open {
        return cipher::run(setup, start);
    }
    match setup.has_breakdown {
        true => run_with(setup, start, Breakdown::start),
        false => run_with(setup, start, || Off),
    }
}

fn run_with<P: Probe>(
    setup: &Setup,
    start: impl FnOnce() -> std::io::Result<()>,
    probe: impl Fn() -> P + Sync,
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
    let folder = match setup.work {
        Work::Https => {
            let folder = tempfile::tempdir().context("a folder for the file that is served")?;
            std::fs::write(folder.path().join(client::FILE), &*value)?;
            Some(folder)
        }
        _ => None,
    };
    let region = Region::create(&setup.layout()).map_err(text)?;
    // A mapping belongs to one thread.
    let memory = region.fd().try_clone_to_owned()?;
    drop(region);
    let notifications = (0..setup.vcpus).map(|_| match setup.has_interrupts {
        true => Ok(Notification::Events {
            kick: Doorbell::new()?,
            interrupt: Doorbell::new()?,
        }),
        false => Ok(Notification::Polling),
    });
    let notifications: Vec<Notification> = notifications.collect::<std::io::Result<_>>()?;
    let pairs = Pairs::new(&notifications);
    let board = Board::new(setup.vcpus);
    let shared = guest::Shared {
        setup,
        server,
        store: guest::store(setup, &value)?,
        folder: folder.as_ref().map(TempDir::path),
        board: &board,
    };
    let load = |pair| {
        // Wherever there are as many processors, each thread has one.
        let _ = tare_daemon::bind_to_cpu(Some(pair));
        let (contents, notification) = ((&client, &value), &notifications[pair]);
        let region = Region::open(memory.try_clone()?, &setup.layout()).map_err(text)?;
        Load::new(pair, &region, &pairs, notification, contents, setup, &board)
    };
    let serve = |pair: usize| {
        let _ending = Ending(&board.has_ended);
        let _ = tare_daemon::bind_to_cpu(Some(setup.vcpus + pair));
        guest::serve(
            pair,
            memory.try_clone()?,
            notifications[pair].clone(),
            &shared,
            probe(),
        )
    };
    let follow = |pair| {
        let _ending = Ending(&board.has_ended);
        load(pair)?.follow()
    };
    let (served, followed, measured) = std::thread::scope(|scope| {
        let guests = (0..setup.vcpus).map(|pair| {
            scope.spawn({
                let serve = &serve;
                move || serve(pair)
            })
        });
        let guests: Vec<_> = guests.collect();
        let others = (1..setup.vcpus).map(|pair| {
            scope.spawn({
                let follow = &follow;
                move || follow(pair)
            })
        });
        let others: Vec<_> = others.collect();
        let measured = load(0).and_then(|load| load.lead(setup, start));
        board.stop.store(true, Relaxed);
        let served: Vec<_> = guests.into_iter().map(|thread| thread.join()).collect();
        let followed: Vec<_> = others.into_iter().map(|thread| thread.join()).collect();
        (served, followed, measured)
    });
    let mut by_vcpu = Vec::new();
    for served in served {
        let marks = served.map_err(|_| anyhow!("the guest ended with a panic"))??;
        let [first, .., last] = marks.as_slice() else {
            return Err(anyhow!("the guest noted no totals"));
        };
        by_vcpu.push(OfVcpu {
            exits: since(&last.0, &first.0),
            breakdown: last.1.zip(first.1).map(|(end, start)| end.since(&start)),
        });
    }
    for followed in followed {
        followed.map_err(|_| anyhow!("a client ended with a panic"))??;
    }
    let (start, end) = measured?;

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
        Work::Open => return Err(anyhow!("the cipher alone has no clients")),
    };
    Ok(Outcome {
        clock,
        busy: (end.busy_ns - start.busy_ns) as f64 * 1e-9,
        vcpus: setup.vcpus,
        data,
        operations,
        bytes,
        requests,
        verified: end.clients.verified + board.sum(|it| &it.verified),
        wrong: end.clients.wrong + board.sum(|it| &it.wrong),
        frames: end.frames - start.frames,
        frame_bytes: end.bytes_in - start.bytes_in,
        packets: end.packets - start.packets,
        given: end.given - start.given,
        bounced: end.bounced - start.bounced,
        faults: board.sum(|it| &it.faults),
        sealed_ahead: board.sum(|it| &it.sealed_ahead),
        by_vcpu,
    })
}

fn text(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("{error}")
}

fn since(end: &ExitCounts, start: &ExitCounts) -> ExitCounts {
    ExitCounts {
        kicks: end.kicks - start.kicks,
        interrupts: end.interrupts - start.interrupts,
        halts: end.halts - start.halts,
        cycles: end.cycles - start.cycles,
    }
}

/// Returns a source and a sink of bulk data.
fn bulk(setup: &Setup) -> (Source, Sink) {
    let limit = match setup.amount {
        0 => u64::MAX,
        amount => amount / setup.connections,
    };
    (Source::new(limit, setup.buffer), Sink::new(setup.verify))
}

#[cfg(test)]
mod tests;
