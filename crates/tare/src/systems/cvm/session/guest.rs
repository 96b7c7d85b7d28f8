//! The guest of a measurement: a thread for each of its processors.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{anyhow, Context as _};
use tare_cvmnet::breakdown::{Probe, Totals};
use tare_cvmnet::busy::BusyTime;
use tare_cvmnet::guest::Guest;
use tare_cvmnet::region::Region;
use tare_cvmnet::ring::{Driver, ExitCounts, Notification, Settings};
use tare_cvmnet::server::bulk::{Sink, Source};
use tare_cvmnet::server::{
    Body, Http, HttpConfig, Memcached, Resp, RespConfig, Service, Store, Time,
};
use tare_cvmnet::tcp::{Config, Secret};
use tare_cvmnet::tls::Server;
use tare_sim::Instant;

use super::board::{Board, Counts};
use super::{bulk, text, Setup, Work, GUEST, PORT};
use crate::systems::cvm::client;

/// The longest time for which a guest without work sleeps.
const PULSE: Duration = Duration::from_millis(1);
/// The time between two stores of a guest's counters while it polls: the processor that reads them
/// takes their cache lines away each time.
const TELL: Duration = Duration::from_micros(20);
/// The time between two readings of a guest's processor time: each is a system call, and is part of
/// that time.
const READ: Duration = Duration::from_micros(200);
/// The most bytes of a store in the guest, and of files in the memory of one of its threads.
const STORE: usize = 64 << 20;

/// The counts that the guest alone has at a mark.
pub(super) type Marked = (ExitCounts, Option<Totals>);

/// The part that all of the guest's threads have in common.
pub(super) struct Shared<'a> {
    pub(super) setup: &'a Setup,
    pub(super) server: Server,
    pub(super) store: Arc<Mutex<Store>>,
    /// The folder of the file that is served over HTTPS; `None` for other work.
    pub(super) folder: Option<&'a Path>,
    pub(super) board: &'a Board,
}

/// Returns a store with the values that are asked for.
pub(super) fn store(setup: &Setup, value: &Body) -> anyhow::Result<Arc<Mutex<Store>>> {
    let mut store = Store::new(STORE);
    let is_used = matches!(setup.work, Work::Memcached | Work::Redis);
    for n in 0..if is_used { client::KEYS } else { 0 } {
        let (key, now) = (client::key(n), Instant::now());
        let stored = store.set(key.as_bytes(), Arc::clone(value), 0, Instant::NEVER, now);
        stored.map_err(|_| anyhow!("values of {} bytes do not fit", setup.size))?;
    }
    Ok(Arc::new(Mutex::new(store)))
}

/// Returns the ports and servers of one thread of the guest.
fn services(
    shared: &Shared<'_>,
    sink: &Sink,
    source: &Source,
) -> anyhow::Result<Vec<(u16, Box<dyn Service>)>> {
    let (setup, store) = (shared.setup, Arc::clone(&shared.store));
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
            folder: shared.folder.context("a folder of files")?.into(),
            cache_max: STORE,
            cached_file_max: STORE,
        })?),
        Work::Memcached => Box::new(Memcached::new(store)),
        Work::Redis => Box::new(Resp::new(store, RespConfig::default())),
        Work::Open => return Err(anyhow!("the cipher alone serves nothing")),
    };
    Ok(vec![(PORT, one)])
}

/// Runs the guest's thread of a queue pair until it is stopped; returns its totals at each mark.
pub(super) fn serve<P: Probe>(
    pair: usize,
    fd: OwnedFd,
    notification: Notification,
    shared: &Shared<'_>,
    probe: P,
) -> anyhow::Result<Vec<Marked>> {
    let (setup, board) = (shared.setup, shared.board);
    let region = Region::open(fd, &setup.layout()).map_err(text)?;
    let (source, sink) = bulk(setup);
    let services = services(shared, &sink, &source)?;
    let settings = Settings {
        exits: setup.exits,
        switch_cycles: setup.switch_cycles,
        notification,
    };
    let driver = Driver::new(region, pair, settings, probe.clone()).map_err(text)?;
    let config = setup.variant.tcp(Config {
        // Answers are not to wait for what acknowledges them.
        no_delay: setup.work.protocol().is_some(),
        ..Config::on_link([2, 0, 0, 0, 0, 2], GUEST)
    });
    let (secret, server) = (Secret::new(&[1; 16]), shared.server.clone());
    let guest = Guest::new(driver, config, secret, server, services, probe.clone());
    let mut guest = guest.map_err(text)?;
    let mut spent = BusyTime::start();
    let mut busy = Duration::ZERO;
    let (mut told_at, mut read_at) = (Instant::ZERO, Instant::ZERO);
    let mut marks = Vec::new();
    let counts = &board.pairs[pair];
    while !board.stop.load(Relaxed) {
        probe.begin_turn();
        let time = Time::now();
        spent.begin_turn(time.now);
        let turned = guest.turn(time);
        let is_busy = turned.map_err(|fault| anyhow!("the device was given up: {fault}"))?;
        if marks.len() as u64 != board.mark.load(Relaxed) {
            marks.push((guest.driver().exits(), probe.totals()));
            counts.marks.store(marks.len() as u64, Relaxed);
        }
        match (is_busy, setup.has_interrupts) {
            (true, _) => {}
            (false, false) => {
                std::hint::spin_loop();
                probe.turn_was_idle();
                spent.turn_was_idle();
            }
            (false, true) => {
                let woken = guest.wait(time.now, PULSE);
                woken.map_err(|fault| anyhow!("the device was given up: {fault}"))?;
            }
        }
        // Asleep it costs nothing; what it costs to fall asleep and to wake up is the guest's.
        if time.now.since(read_at) >= READ {
            read_at = time.now;
            busy = spent.busy();
        }
        // Before it falls asleep again it tells what it has done.
        if setup.has_interrupts || time.now.since(told_at) >= TELL {
            told_at = time.now;
            tell(counts, &guest, &sink, busy, setup.work);
        }
    }
    tell(counts, &guest, &sink, spent.busy(), setup.work);
    marks.push((guest.driver().exits(), probe.totals()));
    marks.truncate(2);
    Ok(marks)
}

/// Stores the counters of a guest.
fn tell<P: Probe>(counts: &Counts, guest: &Guest<P>, sink: &Sink, busy: Duration, work: Work) {
    let (served, driver) = (guest.counters(), guest.driver().counters());
    counts.handshakes.store(served.handshakes, Relaxed);
    counts.bytes_in.store(served.bytes_in, Relaxed);
    counts.bytes_out.store(served.bytes_out, Relaxed);
    let records = served.records_in + served.records_out;
    counts.records.store(records, Relaxed);
    counts.frames.store(driver.received, Relaxed);
    counts.bounced.store(driver.bounced, Relaxed);
    let faults = served.tls_failures + driver.faults;
    counts.faults.store(faults, Relaxed);
    counts.busy_ns.store(busy.as_nanos() as u64, Relaxed);
    counts.verified.store(sink.counters().verified, Relaxed);
    counts.wrong.store(sink.counters().wrong, Relaxed);
    if work == Work::Receive {
        counts.finished.store(sink.counters().finished, Relaxed);
    }
}
