//! The control side of a gateway: configuration, keys, next hops and path MTUs go in, [`Tables`]
//! for the workers come out.
//!
//! It is sans-I/O: frames, changes and the time go in, frames, tables and records for the log come
//! out of [`Control::tick`]. Tables come before the frames that tell a peer about them: applied in
//! their order, [`Actions`] make before they break. A peer may send under an inbound SA as soon as
//! it has the message, and without the SA in the workers' tables its first packets would be lost.

mod counters;
mod handover;
mod held;
mod icmp;
mod interface;
mod path;
mod probe;
mod receive;
mod routes;
mod status;
mod totals;

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tare_daemon::{Level, Record};
use tare_packet::ethernet::HEADER;
use tare_packet::{frame, ipv4, ipv6};
use tare_sim::{Instant, TokenBucket};

use crate::clock::MonotonicClock;
use crate::config::{Config, Keys};
use crate::dataplane::{
    error_limit, esp, BoundTables, DropTable, Prefixes, Route, SpiTable, Tables, WorkerGroup,
    WorkerId,
};
use crate::exchange::{self, Entropy, Event, Exchange, Settings, Timers};
use crate::interface::{InterfaceId, InterfaceState};
pub use counters::{Counters, Ignored, Taken};
use held::Held;
use interface::InterfaceControl;
use path::Paths;
use routes::{Plan, Routes};
pub use status::{NeighborStatus, RouteStatus, SaStatus, Status};
pub use totals::RouteCounters;

/// The actions for the caller, in this order.
#[derive(Default)]
pub struct Actions {
    /// Tables for the workers, where they changed.
    pub tables: Option<Arc<BoundTables>>,
    /// Frames to send.
    pub frames: Vec<(InterfaceId, Vec<u8>)>,
    /// Records for the log.
    pub log: Vec<Record>,
}

/// The reason why a configuration cannot be run.
#[derive(Debug)]
pub enum Error {
    /// The exchange refuses it.
    Exchange(exchange::Error),
    /// The public interface has no address of the family of a gateway.
    NoAddress,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Exchange(error) => error.fmt(f),
            Error::NoAddress => {
                f.write_str("the public interface needs an address of the family of every gateway")
            }
        }
    }
}

impl std::error::Error for Error {}

/// Records that may wait for the log.
const LOG_MAX: usize = 4096;
/// The interval at which SAs are checked for use and for exhaustion of their sequence numbers.
const WATCH: Duration = Duration::from_millis(100);
/// The same per route that is watched, where there are many: a fiftieth of the time is enough.
const WATCH_PER_ROUTE: Duration = Duration::from_micros(5);
/// The interval at which sequence numbers are sampled: a router's report is believed if it quotes
/// one of the last one or two intervals.
const SAMPLE: Duration = Duration::from_secs(1);
/// The sequence number at which an SA that counts in 32 bits is replaced.
const PLAIN_RENEW: u64 = 3 << 30;
/// Routes up to which every change is published at once.
const PUBLISH_AT_ONCE: usize = 256;
/// The time for building tables, per SA, with a margin that leaves time for everything else.
const PUBLISH_PER_SA: Duration = Duration::from_micros(1);

/// The control side.
pub struct Control {
    config: Config,
    private: InterfaceControl,
    public: InterfaceControl,
    routes: Routes,
    /// The workers that the tables are for.
    workers: WorkerGroup,
    exchange: Exchange,
    paths: Paths,
    path_reports: TokenBucket,
    /// Limits echo replies to peers.
    tunnel_echo_replies: TokenBucket,
    clock: MonotonicClock,
    prefixes: Arc<Prefixes>,
    drops: Arc<DropTable>,
    tables: Arc<BoundTables>,
    /// True if the tables do not match the state.
    dirty: bool,
    published: Instant,
    watch: Instant,
    sample: Instant,
    /// Routes whose inbound SAs are watched for use.
    watched: BTreeSet<usize>,
    /// Routes that count in 32 bits and agree on their keys.
    plain: Vec<usize>,
    held: Held,
    /// Routes whose SAs are to be proven in use by a dummy.
    proofs: Vec<usize>,
    /// Routes with IPv6 prefixes that take fewer bytes than IPv6 needs.
    too_narrow: usize,
    log: Vec<Record>,
    events: Vec<Event>,
    counters: Counters,
}

impl Control {
    /// Creates the control side of a gateway between these interfaces, and the identities of its
    /// workers. Nothing is sent before the first [`Control::tick`], which also returns the first
    /// tables.
    ///
    /// # Errors
    /// The configuration contradicts itself; one that was read from a file does not.
    pub fn new(
        config: Config,
        private: InterfaceState,
        public: InterfaceState,
        workers: usize,
        entropy: Entropy,
        now: Instant,
    ) -> Result<(Control, Vec<WorkerId>), Error> {
        let mut routes = Routes::default();
        let plan = routes.plan(&config).ok_or(Error::NoAddress)?;
        let (workers, ids) = WorkerGroup::new(workers);
        let settings = settings(&config, &plan, workers.workers());
        let exchange = Exchange::new(settings, entropy).map_err(Error::Exchange)?;
        routes.commit(&config, plan);
        let mut clock = MonotonicClock::default();
        let inside = clock.inside(now);
        let mut control = Control {
            private: InterfaceControl::new(&config.private, private, inside),
            public: InterfaceControl::new(&config.public, public, inside),
            prefixes: Arc::new(Prefixes::new(routes.prefixes())),
            drops: Arc::new(routes.drops()),
            tables: workers.bind(empty(&config)),
            config,
            routes,
            workers,
            exchange,
            paths: Paths::default(),
            path_reports: error_limit(),
            tunnel_echo_replies: error_limit(),
            clock,
            dirty: true,
            published: Instant::ZERO,
            watch: inside,
            sample: inside,
            watched: BTreeSet::new(),
            plain: Vec::new(),
            held: Held::default(),
            proofs: Vec::new(),
            too_narrow: 0,
            log: Vec::new(),
            events: Vec::new(),
            counters: Counters::default(),
        };
        control.find_plain();
        let mut frames = Vec::new();
        for id in [InterfaceId::Private, InterfaceId::Public] {
            control.interface_mut(id).neighbors.announce(&mut frames);
            control.hold(id, &mut frames);
        }
        Ok((control, ids))
    }

    /// Takes a frame that the data plane passed up. Its result is in the next
    /// [`Control::tick`].
    pub fn receive(&mut self, now: Instant, from: InterfaceId, frame: &[u8]) {
        let inside = self.clock.inside(now);
        let outcome = self.handle(now, inside, from, frame);
        self.counters.count(outcome);
        self.dirty |= self.tables.private != self.private.view();
        self.dirty |= self.tables.public != self.public.view();
    }

    /// Does what is due and returns the actions; to be called after frames, changes and
    /// [`Control::next_deadline`].
    pub fn tick(&mut self, now: Instant, out: &mut Actions) {
        let inside = self.clock.inside(now);
        self.exchange.tick(now, &mut self.events);
        self.apply_events();
        if inside >= self.watch {
            self.look_at_sas(now);
            self.routes.settle();
            let routes = u32::try_from(self.watched.len()).unwrap_or(u32::MAX);
            self.watch = inside + WATCH.max(WATCH_PER_ROUTE * routes);
        }
        if inside >= self.sample {
            self.routes.sample();
            self.sample = inside + SAMPLE;
        }
        let mut frames = Vec::new();
        for id in [InterfaceId::Private, InterfaceId::Public] {
            self.interface_mut(id).tick(inside, &mut frames);
            self.hold(id, &mut frames);
        }
        self.probe_paths(inside);
        self.dirty |= self.tables.private != self.private.view();
        self.dirty |= self.tables.public != self.public.view();
        if self.dirty && inside >= self.publish_at() {
            self.published = inside;
            self.dirty = false;
            let drops = Arc::clone(&self.drops);
            self.tables = self.workers.bind_counting(self.make_tables(), drops);
            self.look_for_narrow_routes();
            let top = self.public.state().mtu;
            for (number, entry) in self.routes.in_order() {
                if !entry.outbound.is_empty() {
                    self.paths.probe(inside, entry.config.gateway, number, top);
                }
            }
            out.tables = Some(Arc::clone(&self.tables));
        }
        if !self.dirty {
            self.counters.sent += self.held.release(&mut out.frames);
            let proofs = self.proofs.drain(..);
            let proofs = proofs.map(|route| (InterfaceId::Tunnel, dummy(route, &PROOF)));
            out.frames.extend(proofs);
        }
        out.log.append(&mut self.log);
    }

    /// Returns the time of the next [`Control::tick`]; calling it earlier does no harm.
    pub fn next_deadline(&self) -> Instant {
        let waiting = if self.dirty {
            self.publish_at()
        } else if !(self.held.is_empty() && self.proofs.is_empty() && self.log.is_empty()) {
            Instant::ZERO
        } else {
            Instant::NEVER
        };
        let own = [
            waiting,
            self.watch_due(),
            self.sample_due(),
            self.private.due(),
            self.public.due(),
            self.paths.due(),
        ];
        let own = own.into_iter().min().unwrap_or(Instant::NEVER);
        self.clock.outside(own).min(self.exchange.next_deadline())
    }

    /// Takes over another state of an interface.
    pub fn interface_changed(&mut self, now: Instant, id: InterfaceId, state: InterfaceState) {
        let inside = self.clock.inside(now);
        let (interface, config) = match id {
            InterfaceId::Private => (&mut self.private, &self.config.private),
            InterfaceId::Public => (&mut self.public, &self.config.public),
            InterfaceId::Tunnel => return,
        };
        if interface.state() == state {
            return;
        }
        let came_up = state.up && !interface.state().up;
        let mut frames = Vec::new();
        interface.change(config, state, inside, &mut frames);
        if came_up && id == InterfaceId::Public {
            self.exchange.retry(now);
        }
        self.hold(id, &mut frames);
        // The MTU of routes is that of the interface.
        self.dirty = true;
        let level = if state.up { Level::Info } else { Level::Warn };
        self.record(
            Record::new(level, "link")
                .with("interface", id.name())
                .with("state", if state.up { "up" } else { "down" })
                .with("mac", interface::text(state.mac))
                .with("mtu", state.mtu),
        );
    }

    /// Takes over another configuration. A route whose name, gateway, keys, sequence numbers and
    /// window stay keeps its SAs and drops nothing, whatever changes in the others; its prefixes
    /// may change.
    ///
    /// # Errors
    /// As [`Control::new`]; then nothing changes.
    pub fn reconfigure(&mut self, now: Instant, config: Config) -> Result<(), Error> {
        let inside = self.clock.inside(now);
        let plan = self.routes.plan(&config).ok_or(Error::NoAddress)?;
        let settings = settings(&config, &plan, self.workers.workers());
        self.exchange
            .reconfigure(now, settings, &mut self.events)
            .map_err(Error::Exchange)?;
        let (added, gone) = self.routes.commit(&config, plan);
        // Routes have other numbers after another address, too, though they read the same.
        if added + gone > 0 || self.config.routes != config.routes {
            self.drops = Arc::new(self.routes.drops());
            self.prefixes = Arc::new(Prefixes::new(self.routes.prefixes()));
        }
        let mut frames = Vec::new();
        self.private
            .reconfigure(&config.private, inside, &mut frames);
        self.hold(InterfaceId::Private, &mut frames);
        self.public.reconfigure(&config.public, inside, &mut frames);
        self.hold(InterfaceId::Public, &mut frames);
        let routes = config.routes.len();
        self.config = config;
        self.find_plain();
        self.watched
            .retain(|&number| self.routes.entry(number).is_some());
        self.dirty = true;
        self.apply_events();
        self.record(
            Record::new(Level::Info, "configured")
                .with("routes", routes)
                .with("new", added)
                .with("gone", gone)
                .with("kept", routes - added),
        );
        Ok(())
    }

    /// Returns the configuration in use.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the tables that were published last.
    pub fn tables(&self) -> &Arc<BoundTables> {
        &self.tables
    }

    /// Returns the counters of frames.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the counters of the key exchange.
    pub fn exchange_counters(&self) -> exchange::Counters {
        self.exchange.counters()
    }

    fn interface_mut(&mut self, id: InterfaceId) -> &mut InterfaceControl {
        match id {
            InterfaceId::Private => &mut self.private,
            _ => &mut self.public,
        }
    }

    fn hold(&mut self, id: InterfaceId, frames: &mut Vec<Vec<u8>>) {
        for frame in frames.drain(..) {
            self.keep(id, frame, false);
        }
    }

    fn keep(&mut self, id: InterfaceId, frame: Vec<u8>, is_challenge: bool) {
        if !self.held.keep(id, frame, is_challenge) {
            self.counters.unsent += 1;
        }
    }

    fn record(&mut self, record: Record) {
        if self.log.len() < LOG_MAX {
            self.log.push(record);
        }
    }

    /// Tables are made whole, so not for every event where there are thousands of SAs.
    fn publish_at(&self) -> Instant {
        let routes = self.routes.entries().len();
        if routes <= PUBLISH_AT_ONCE {
            return Instant::ZERO;
        }
        let each = 3 * self.workers.workers().clamp(1, exchange::OUTBOUND_MAX);
        let sas = u32::try_from(routes * each).unwrap_or(u32::MAX);
        self.published + PUBLISH_PER_SA * sas
    }

    fn make_tables(&self) -> Tables {
        let inner = self.config.mtu.unwrap_or(u16::MAX);
        let route = |entry: &Option<routes::Entry>| match entry {
            Some(entry) => {
                let path_mtu = self.path_mtu(entry.config.gateway);
                Route::new(entry.outbound.iter().cloned(), path_mtu).at_most(inner)
            }
            None => Route::new(None, 0),
        };
        let entries = self.routes.entries();
        let sas = entries.iter().flatten().flat_map(|entry| &entry.inbound);
        Tables {
            prefixes: Arc::clone(&self.prefixes),
            routes: entries.iter().map(route).collect(),
            inbound: SpiTable::new(sas.map(|inbound| inbound.sa.clone())),
            private: self.private.view(),
            public: self.public.view(),
            exchange_port: self.config.protocol_port,
        }
    }

    /// Sends the probes of paths that are due.
    fn probe_paths(&mut self, inside: Instant) {
        let mut probes = Vec::new();
        let top = self.public.state().mtu;
        let changed = self.paths.tick(inside, top, &mut self.log, &mut probes);
        for peer in changed {
            self.path_changed(peer);
        }
        for path::Probe { route, peer, size } in probes {
            let entry = self.routes.entry(route);
            let usable =
                |entry: &&routes::Entry| entry.config.gateway == peer && !entry.outbound.is_empty();
            // Where another route leads to the peer, it is found when tables are published.
            if entry.filter(usable).is_none() {
                self.paths.forget(peer);
                continue;
            }
            let outer = match peer {
                IpAddr::V4(_) => ipv4::HEADER,
                IpAddr::V6(_) => ipv6::HEADER,
            };
            let len = esp::inner_max(size.into(), outer);
            self.send_dummy(route, probe::Message::Probe(size), len);
        }
    }

    fn path_changed(&mut self, peer: IpAddr) {
        self.dirty = true;
        let record = Record::new(Level::Info, "path_mtu").with("gateway", peer.to_string());
        self.record(record.with("mtu", self.path_mtu(peer)));
    }

    /// Sends a dummy of `len` bytes by a route.
    fn send_dummy(&mut self, route: usize, message: probe::Message, len: usize) {
        let frame = dummy(route, &message.payload(len));
        self.hold(InterfaceId::Tunnel, &mut vec![frame]);
    }

    /// Returns the most bytes of an outer packet to this peer.
    fn path_mtu(&self, peer: IpAddr) -> u16 {
        self.paths.mtu(peer).min(self.public.state().mtu)
    }

    /// Does what the exchange says.
    fn apply_events(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            match event {
                Event::Send { to, message, .. } => self.send_message(to, &message),
                Event::InstallInbound { route, keys, .. } => {
                    let now = self.clock.last();
                    self.routes.add_inbound(now, route, &keys);
                    self.watched.insert(route);
                    self.dirty = true;
                    self.sa_record("sa_inbound", route, keys.spi);
                }
                Event::RemoveInbound { route, spi } => {
                    self.routes.remove_inbound(route, spi);
                    self.dirty = true;
                }
                Event::InstallOutbound {
                    route,
                    keys,
                    replaces,
                    ..
                } => {
                    self.routes.set_outbound(route, &keys, replaces);
                    self.dirty = true;
                    self.sa_record("sa_outbound", route, keys.spi);
                }
                Event::RemoveOutbound { route, spi } => {
                    self.routes.remove_outbound(route, spi);
                    self.dirty = true;
                    let entry = self.routes.entry(route);
                    // Where another is left, nothing is dropped.
                    if let Some(entry) = entry.filter(|entry| entry.outbound.is_empty()) {
                        let record = Record::new(Level::Warn, "sa_expired");
                        let record = record.with("route", &*entry.config.id).with("spi", spi);
                        self.record(record);
                    }
                }
                Event::Prove { route } => {
                    self.proofs.push(route);
                    self.watched.insert(route);
                }
                Event::Watch { route } => {
                    self.watched.insert(route);
                }
                Event::Unanswered { route, failures } => {
                    self.watched.insert(route);
                    let entry = self.routes.entry(route);
                    // The first ones, and then ever fewer.
                    if let Some(entry) = entry.filter(|_| failures.is_power_of_two()) {
                        let record = Record::new(Level::Warn, "unanswered")
                            .with("route", &*entry.config.id)
                            .with("gateway", entry.config.gateway.to_string())
                            .with("failures", failures);
                        self.record(record);
                    }
                }
            }
        }
        self.events = events;
    }

    fn sa_record(&mut self, event: &'static str, route: usize, spi: u32) {
        if let Some(entry) = self.routes.entry(route) {
            let record = Record::new(Level::Info, event);
            let record = record.with("route", &*entry.config.id).with("spi", spi);
            self.record(record);
        }
    }

    fn send_message(&mut self, to: IpAddr, message: &[u8]) {
        let port = self.config.protocol_port;
        let mac = self.public.mac();
        let frame = self.config.public.address_towards(to).and_then(|from| {
            let station = self.public.next_hop(to)?;
            frame::udp(station, mac, from, to, port, message)
        });
        match frame {
            Some(frame) => {
                let is_challenge = exchange::is_challenge(message);
                self.keep(InterfaceId::Public, frame, is_challenge);
            }
            None => self.counters.unsent += 1,
        }
    }

    fn watch_due(&self) -> Instant {
        if self.watched.is_empty() && self.plain.is_empty() && !self.routes.are_leaving() {
            Instant::NEVER
        } else {
            self.watch
        }
    }

    fn sample_due(&self) -> Instant {
        match self.routes.has_outbound() {
            true => self.sample,
            false => Instant::NEVER,
        }
    }

    /// Tells the exchange which SAs of routes it is not sure about are used, and which run out of
    /// numbers.
    fn look_at_sas(&mut self, now: Instant) {
        let mut used = Vec::new();
        let (routes, exchange) = (&mut self.routes, &self.exchange);
        self.watched.retain(|&number| {
            let Some(entry) = routes.entry_mut(number) else {
                return false;
            };
            for inbound in &mut entry.inbound {
                let packets = inbound.sa.packets();
                if packets != inbound.seen {
                    inbound.seen = packets;
                    used.push(inbound.sa.spi());
                }
            }
            exchange.unconfirmed(number)
        });
        for spi in used {
            self.exchange.used(now, spi, &mut self.events);
        }
        for &number in &self.plain {
            let entry = self.routes.entry(number);
            let mut sas = entry.into_iter().flat_map(|entry| &entry.outbound);
            if sas.any(|sa| sa.last_number() > PLAIN_RENEW) {
                self.exchange.renew(now, number, &mut self.events);
            }
        }
        self.apply_events();
    }

    fn find_plain(&mut self) {
        let agreed = |entry: &routes::Entry| matches!(entry.config.keys, Keys::Exchange { .. });
        let plain = self
            .routes
            .in_order()
            .filter(|(_, entry)| !entry.config.esn && agreed(entry));
        self.plain = plain.map(|(number, _)| number).collect();
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Control({} routes)", self.config.routes.len())
    }
}

fn settings(config: &Config, plan: &Plan, workers: usize) -> Settings {
    let manual = config.routes.iter().filter_map(|route| match &route.keys {
        Keys::Manual { inbound, .. } => Some(inbound.iter().map(|sa| sa.spi)),
        Keys::Exchange { .. } => None,
    });
    Settings {
        routes: Routes::exchanged(config, plan),
        timers: Timers {
            sa_ttl: config.sa_ttl,
            negotiation_ttl: config.negotiation_ttl,
        },
        outbound_sas: workers,
        reserved: manual.flatten().collect::<HashSet<u32>>(),
    }
}

/// The payload of a dummy that proves that an SA is in use; its content means nothing (RFC 4303,
/// 2.6).
const PROOF: [u8; 40] = [64; 40];

/// Returns a frame for [`InterfaceId::Tunnel`] that is sent as a dummy by a route.
fn dummy(route: usize, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; HEADER];
    frame[..4].copy_from_slice(&(route as u32).to_be_bytes());
    frame[12..].copy_from_slice(&esp::DUMMY_KIND.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Tables that forward nothing.
fn empty(config: &Config) -> Tables {
    Tables {
        prefixes: Arc::new(Prefixes::new([])),
        routes: Vec::new(),
        inbound: SpiTable::default(),
        private: Default::default(),
        public: Default::default(),
        exchange_port: config.protocol_port,
    }
}
