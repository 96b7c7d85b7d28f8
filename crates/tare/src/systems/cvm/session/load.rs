//! The host of a measurement, with the clients: a thread for each queue pair.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use tare_cvmnet::host::merge::Limits;
use tare_cvmnet::host::{Device, DeviceSettings, Pairs, Peer, Steered, AHEAD_MAX};
use tare_cvmnet::region::Region;
use tare_cvmnet::ring::Notification;
use tare_cvmnet::server::bulk::{Sink, Source};
use tare_cvmnet::server::{Application, Body, Service as _, Time};
use tare_cvmnet::tcp::{Config, Secret};
use tare_cvmnet::tls::Client;
use tare_sim::Instant;

use super::board::{Board, Moment};
use super::{bulk, text, Setup, Work, GUEST, HANDSHAKES, PORT, STANDSTILL, WARM_UP};
use crate::systems::cvm::client::{self, Clients, Protocol};

/// More than what is expected to be used is sealed ahead by this factor: a guest is faster when it
/// never waits.
const AHEAD_MARGIN: f64 = 1.5;
/// Bytes of memory for records that are sealed between two looks at what arrives.
const SLICE: usize = 16 << 20;
/// The time without work after which a host sleeps whose guest notifies, as that of `tare cvm
/// serve`, and the time after which it looks again: clients have timers.
const IDLE: Duration = Duration::from_micros(50);
const NAP: Duration = Duration::from_millis(1);
/// The longest time for which records are sealed ahead.
pub(super) const SEALING: Duration = Duration::from_secs(20);

/// The clients of a queue pair, and its device.
pub(super) struct Load<'a> {
    device: Device<Steered<Peer<Box<dyn Application>>>>,
    clients: Clients,
    /// They keep the counters of those of bulk data.
    sink: Sink,
    _source: Source,
    pair: usize,
    board: &'a Board,
    is_sealed: bool,
    /// The time since which there has been nothing to do.
    idle_since: Option<Instant>,
    /// The clients receive bulk data.
    is_sink: bool,
    /// The connections end by themselves.
    is_limited: bool,
}

impl<'a> Load<'a> {
    /// Opens the connections of a pair: those whose numbers leave its own when divided by the
    /// number of pairs. Their ports are chosen so that the host brings them to this pair.
    pub(super) fn new(
        pair: usize,
        region: &Region,
        pairs: &Pairs,
        notification: &Notification,
        (client, value): (&Client, &Body),
        setup: &Setup,
        board: &'a Board,
    ) -> anyhow::Result<Load<'a>> {
        let (source, sink) = bulk(setup);
        let protocol = setup.work.protocol();
        let clients = Clients::new(protocol.unwrap_or(Protocol::Http), Arc::clone(value));
        let number = 128 + pair as u8;
        let place = Config {
            no_delay: protocol.is_some(),
            ..Config::on_link([2, 0, 0, 0, 0, number], Ipv4Addr::new(10, 77, 0, number))
        };
        let peer = Peer::new(place, Secret::new(&[number; 16]), client.clone());
        let mut peer: Peer<Box<dyn Application>> = peer.map_err(text)?;
        for n in (pair as u64..setup.connections).step_by(setup.vcpus) {
            let (application, port): (Box<dyn Application>, u64) = match setup.work {
                Work::Receive => (source.accept(), n),
                Work::Send => (sink.accept(), n),
                _ => (Box::new(clients.client(n)), 0),
            };
            let to = SocketAddr::from((GUEST, PORT + port as u16));
            let suits = |own: SocketAddr| {
                let (own, to) = ((own.ip(), own.port()), (to.ip(), to.port()));
                pairs.of_flow(own, to) == pair
            };
            peer.connect_from(Instant::now(), to, application, suits)
                .map_err(text)?;
        }
        let settings = DeviceSettings {
            notification: notification.clone(),
            // Of `baseline-gro` it is the device's own merging, by the same code.
            merge: setup.variant.has_large_frames().then(Limits::default),
            ..DeviceSettings::default()
        };
        let network = pairs.network(pair, peer);
        Ok(Load {
            device: Device::new(region, pair, settings, network).map_err(text)?,
            clients,
            sink,
            _source: source,
            pair,
            board,
            is_sealed: false,
            idle_since: None,
            is_sink: setup.work == Work::Send,
            is_limited: setup.amount > 0,
        })
    }

    /// Does what can be done, and tells the counters. Returns true if anything was.
    fn turn(&mut self, time: Time) -> anyhow::Result<bool> {
        let peer = self.device.frames().network();
        let has_clients_work = peer.turn(time);
        if self.is_sealed && !peer.is_ahead() {
            self.board.is_used_up.store(true, Relaxed);
        }
        let is_busy = self.device.poll(time.now).map_err(text)? | has_clients_work;
        let (answered, received) = (self.clients.counters(), self.sink.counters());
        self.board.pairs[self.pair].host.tell(client::Counters {
            verified: answered.verified + received.verified,
            wrong: answered.wrong + received.wrong,
            ..answered
        });
        let counts = &self.board.pairs[self.pair];
        let device = self.device.counters();
        counts.host.packets.store(device.packets, Relaxed);
        counts.host.given.store(device.to_guest, Relaxed);
        if self.is_sink {
            counts.finished.store(received.finished, Relaxed);
        }
        let finished = self.device.frames().network().take_finished();
        let has_ended = !finished.is_empty() && !self.is_limited;
        let has_ended = has_ended || self.board.has_ended.load(Relaxed);
        // At the end the guests are stopped before their clients, which may see it first.
        if !has_ended || self.board.stop.load(Relaxed) {
            return Ok(is_busy);
        }
        match answered.wrong {
            0 => Err(anyhow!("a connection ended before the trial did")),
            wrong => Err(anyhow!(
                "{wrong} connections had an answer that is not what was asked for"
            )),
        }
    }

    /// Seals this pair's part of the records, once. Nothing new is sent meanwhile; what the guest
    /// acknowledges is taken at its time, as TCP would take it for lost and send it again.
    fn seal_ahead(&mut self) -> anyhow::Result<()> {
        let counts = &self.board.pairs[self.pair];
        let mut left = self.board.ahead.load(Relaxed);
        while left > 0 && !self.board.stop.load(Relaxed) {
            let part = left.min(SLICE);
            left -= part;
            let time = Time::now();
            let sealed = self.device.frames().network().seal_ahead(time, part);
            counts.sealed_ahead.fetch_add(sealed, Relaxed);
            while self.device.poll(time.now).map_err(text)? {}
        }
        self.is_sealed = true;
        self.board.ready.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Serves a pair that is not the first until the end.
    pub(super) fn follow(mut self) -> anyhow::Result<()> {
        while !self.board.stop.load(Relaxed) {
            let is_busy = self.turn(Time::now())?;
            self.rest(is_busy)?;
            if !self.is_sealed && self.board.ahead.load(Relaxed) > 0 {
                self.seal_ahead()?;
            }
        }
        Ok(())
    }

    /// Serves the first pair, and takes all of them through handshakes, warm-up and measurement;
    /// returns the counters at its start and its end.
    pub(super) fn lead(
        mut self,
        setup: &Setup,
        start: impl FnOnce() -> std::io::Result<()>,
    ) -> anyhow::Result<(Moment, Moment)> {
        let board = self.board;
        let late = Instant::now() + HANDSHAKES;
        self.until(|now| now > late || board.sum(|it| &it.handshakes) == setup.connections)?;
        if board.sum(|it| &it.handshakes) != setup.connections {
            return Err(anyhow!("the handshakes took more than {HANDSHAKES:?}"));
        }
        if self.is_limited {
            return self.move_all(setup, start);
        }
        let cold = board.now();
        let warm = cold.now + setup.duration.mul_f64(WARM_UP);
        self.until(|now| now >= warm)?;
        if setup.work == Work::Receive && setup.ahead > 0 {
            self.prepare(setup, &cold)?;
        }
        start()?;
        board.mark.store(1, Relaxed);
        let start = board.now();
        let end = start.now + setup.duration;
        // On a busy machine a side may stand still for longer than a short trial.
        let latest = end + STANDSTILL;
        self.until(|now| {
            // Before that the guest's counters are left alone: reading them would slow it down.
            if now < end && !board.is_used_up.load(Relaxed) {
                return false;
            }
            // An answer may have been sealed before the start.
            let moment = board.now();
            let is_bulk = setup.work.protocol().is_none();
            let has_turns = is_bulk || moment.clients.turns > start.clients.turns;
            // The guest reads its time less often than it tells what it has moved.
            let has_worked = moment.busy_ns > start.busy_ns;
            let has_moved = has_turns && has_worked && moment.data() > start.data();
            // Each processor of the guest has noted its counters at the start.
            let has_noted = board.pairs.iter().all(|it| it.marks.load(Relaxed) > 0);
            now >= latest || (has_moved && has_noted)
        })?;
        board.mark.store(2, Relaxed);
        Ok((start, board.now()))
    }

    /// Moves the whole amount, from the first byte on; returns the counters at its start and its
    /// end.
    fn move_all(
        mut self,
        setup: &Setup,
        start: impl FnOnce() -> std::io::Result<()>,
    ) -> anyhow::Result<(Moment, Moment)> {
        let board = self.board;
        start()?;
        board.mark.store(1, Relaxed);
        let none = Moment {
            now: Instant::now(),
            ..Moment::default()
        };
        let (mut data, mut late) = (0, none.now + STANDSTILL);
        self.until(|now| {
            // What the guest has sent may wait for its clients.
            let counts = board.now();
            let moved = counts.data() + counts.clients.verified;
            if moved > data {
                (data, late) = (moved, now + STANDSTILL);
            }
            now > late || board.sum(|it| &it.finished) == setup.connections
        })?;
        board.mark.store(2, Relaxed);
        Ok((none, board.now()))
    }

    /// Lets all pairs seal the records that the measurement is expected to take, by the rate of the
    /// warm-up, and no more than was allowed.
    fn prepare(&mut self, setup: &Setup, cold: &Moment) -> anyhow::Result<()> {
        let board = self.board;
        let warm = board.now();
        let busy = Duration::from_nanos(warm.busy_ns - cold.busy_ns).as_secs_f64();
        let rate = (warm.data() - cold.data()) as f64 / busy * setup.vcpus as f64;
        let expected = rate * setup.duration.as_secs_f64() * AHEAD_MARGIN;
        let most = setup.ahead.min(AHEAD_MAX);
        // Nothing may have come on a busy machine: then the rate is unknown.
        let bytes = match expected.is_finite() && expected > 0.0 {
            true => most.min(expected as usize),
            false => most,
        };
        board.ahead.store((bytes / setup.vcpus).max(1), Relaxed);
        self.seal_ahead()?;
        let late = Instant::now() + SEALING;
        self.until(|now| now > late || board.ready.load(Relaxed) == setup.vcpus)?;
        match board.ready.load(Relaxed) == setup.vcpus {
            true => Ok(()),
            false => Err(anyhow!("sealing ahead took more than {SEALING:?}")),
        }
    }

    fn until(&mut self, mut is_done: impl FnMut(Instant) -> bool) -> anyhow::Result<()> {
        loop {
            let time = Time::now();
            if is_done(time.now) {
                return Ok(());
            }
            let is_busy = self.turn(time)?;
            self.rest(is_busy)?;
        }
    }

    /// Sleeps until the guest notifies, if there has been nothing to do for a while and it can.
    fn rest(&mut self, is_busy: bool) -> anyhow::Result<()> {
        let now = Instant::now();
        if is_busy {
            self.idle_since = None;
        } else if now.since(*self.idle_since.get_or_insert(now)) > IDLE {
            self.device.wait(NAP).map_err(text)?;
        }
        Ok(())
    }
}
