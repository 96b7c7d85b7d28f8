//! The set-up of the Vita document in virtual time: a load tester on both ends, two real gateways,
//! and three cables.
//!
//! ```text
//! port 0 ── node 1 private │ node 1 public ── node 2 public │ node 2 private ── port 1
//! ```

use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, ensure};
use tare_gateway::config::Config;
use tare_gateway::control::{Link, Place};
use tare_gateway::exchange;
use tare_gateway::gentest::Meta;
use tare_gateway::node::Node;
use tare_gateway::tables::Tables;
use tare_loadtest::{Network, StreamConfig};
use tare_packet::imix::PacketSize;
use tare_port::{Burst, Frame, Layout, Pool};
use tare_sim::{Instant, Line, LineConfig, LineCounters};

/// The longest time until the gateways have their first keys. A route's first exchange takes some
/// milliseconds; many routes take turns.
const SETTLE_MAX: Duration = Duration::from_secs(120);

/// The MTU between the gateways: Vita's own default, so that no packet is fragmented.
const MTU: u16 = 8923;

/// The parameters of the set-up.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) size: PacketSize,
    pub(super) routes: u32,
    /// Each of the three cables.
    pub(super) line: LineConfig,
    /// The lifetime of keys, if it is not the default.
    pub(super) sa_ttl: Option<Duration>,
}

/// Two gateways, their cables, and the time.
pub(super) struct Topology {
    nodes: [Node; 2],
    /// The cables, by the node at their end.
    into: [Line<Frame>; 2],
    between: [Line<Frame>; 2],
    out: [Line<Frame>; 2],
    /// The time of the gateways when the tester's was zero.
    epoch: Instant,
    now: Instant,
    /// The configurations that node 1 and 2 will load, and when.
    reloads: Vec<(Instant, [Config; 2])>,
    burst: Burst,
    /// The tables that each node was last seen with.
    tables: [Arc<Tables>; 2],
    outbound_updates: u64,
}

/// The next event.
#[derive(Clone, Copy)]
enum Event {
    /// A frame reaches the private side of a node.
    Into(usize),
    /// A frame reaches the public side of a node.
    Between(usize),
    /// A frame reaches the tester behind a node.
    Out(usize),
    /// A timer of a node expires.
    Tick(usize),
    /// The next reload.
    Reload,
}

impl Setup {
    /// The document's meta-configurations, for this size and number of routes.
    pub(super) fn metas(&self) -> anyhow::Result<[Meta; 2]> {
        let meta = |own: u8, peer: u8, pcis: [&str; 2]| {
            let text = format!(
                "private-interface {{ pci {}; ip4 172.{own}.0.10; nexthop-ip4 172.{own}.0.1; nexthop-mac 02:00:00:00:00:00; }}\n\
                 public-interface {{ pci {}; ip4 172.{own}.0.10; nexthop-ip4 172.{peer}.0.10; }}\n\
                 route-prefix \"172.{peer}\"; nroutes {}; packet-size {};\n",
                pcis[0], pcis[1], self.routes, self.size
            );
            let mut meta = Meta::parse(&format!("gentest-node{}.conf", own - 15), text.as_bytes())
                .map_err(|e| anyhow!("{e}"))?;
            if let Some(sa_ttl) = self.sa_ttl {
                meta.sa_ttl = sa_ttl;
                meta.negotiation_ttl = sa_ttl / 4;
            }
            Ok(meta)
        };
        let nodes = [
            meta(16, 17, ["23:00.0", "22:00.1"]),
            meta(17, 16, ["22:00.2", "23:00.1"]),
        ];
        let [one, two]: [anyhow::Result<Meta>; 2] = nodes;
        Ok([one?, two?])
    }

    /// The configurations of both nodes.
    pub(super) fn configs(&self) -> anyhow::Result<[Config; 2]> {
        Ok(self.metas()?.map(|meta| {
            let mut config = meta.config();
            config.mtu = Some(MTU);
            config
        }))
    }

    /// The two streams that the tester sends.
    pub(super) fn streams(&self) -> anyhow::Result<Vec<StreamConfig>> {
        let stream = |port: usize, meta: &Meta| StreamConfig {
            name: format!("node{}", port + 1),
            rx: format!("node{}", 2 - port),
            port,
            frames: meta.traffic(mac(port, 0)).iter().collect(),
        };
        let metas = self.metas()?;
        Ok(vec![stream(0, &metas[0]), stream(1, &metas[1])])
    }
}

/// The MAC address of a node's interface.
fn mac(node: usize, interface: u8) -> [u8; 6] {
    [2, 0, 0, 0, node as u8 + 1, interface]
}

impl Topology {
    /// A pool with as many frames as may be in flight.
    pub(super) fn pool() -> anyhow::Result<Pool> {
        Ok(Pool::new(1 << 14, 2304, Layout::Spread)?)
    }

    /// The set-up after the gateways have agreed on keys for every route.
    pub(super) fn new(setup: &Setup, pool: &Pool) -> anyhow::Result<Topology> {
        let link = |node, interface| Link {
            mac: mac(node, interface),
            mtu: MTU,
            up: true,
        };
        let [one, two] = setup.configs()?;
        let node = |number, config| {
            let entropy = exchange::system_entropy().map_err(|e| anyhow!("{e}"))?;
            let (private, public) = (link(number, 0), link(number, 1));
            Node::new(
                config,
                private,
                public,
                entropy,
                pool.clone(),
                Instant::ZERO,
            )
            .map_err(|e| anyhow!("{e}"))
        };
        let line = || [Line::new(&setup.line), Line::new(&setup.line)];
        let nodes = [node(0, one)?, node(1, two)?];
        let mut topology = Topology {
            tables: [0, 1].map(|n: usize| Arc::clone(nodes[n].dataplane().tables())),
            outbound_updates: 0,
            nodes,
            into: line(),
            between: line(),
            out: line(),
            epoch: Instant::ZERO,
            now: Instant::ZERO,
            reloads: Vec::new(),
            burst: Burst::new(),
        };
        topology.flush(0, Instant::ZERO);
        topology.flush(1, Instant::ZERO);
        topology.settle()?;
        Ok(topology)
    }

    /// Advances time until every route has keys in both directions; the tester's time begins then.
    fn settle(&mut self) -> anyhow::Result<()> {
        let deadline = self.now + SETTLE_MAX;
        while !self.is_keyed() {
            ensure!(
                self.now < deadline,
                "no keys for all routes after {SETTLE_MAX:?} of virtual time"
            );
            self.pass(self.now + Duration::from_millis(100), &mut |_, _, _| {});
        }
        // New outbound keys are used when the peer has had time for its own.
        self.pass(self.now + Duration::from_secs(1), &mut |_, _, _| {});
        self.epoch = self.now;
        Ok(())
    }

    fn is_keyed(&self) -> bool {
        self.nodes.iter().all(|node| {
            let tables = node.dataplane().tables();
            tables
                .routes
                .iter()
                .all(|route| route.outbound(0).is_some())
        })
    }

    /// Reloads both nodes with other configurations at this time of the tester.
    pub(super) fn reload_at(&mut self, after: Duration, configs: [Config; 2]) {
        self.reloads.push((self.epoch + after, configs));
        self.reloads.sort_by_key(|(at, _)| *at);
    }

    /// Reloads that are still to come.
    pub(super) fn reloads_left(&self) -> usize {
        self.reloads.len()
    }

    /// The number of times that a route of either node went on with another outbound SA.
    pub(super) fn outbound_updates(&self) -> u64 {
        self.outbound_updates
    }

    /// Counts the outbound SAs that a node has replaced.
    fn watch(&mut self, node: usize) {
        let tables = self.nodes[node].dataplane().tables();
        if Arc::ptr_eq(tables, &self.tables[node]) {
            return;
        }
        let routes = tables.routes.iter().zip(&self.tables[node].routes);
        let replaced = routes.filter(|(new, old)| match (new.outbound(0), old.outbound(0)) {
            (Some(new), Some(old)) => new.spi() != old.spi(),
            _ => false,
        });
        self.outbound_updates += replaced.count() as u64;
        self.tables[node] = Arc::clone(tables);
    }

    /// The counters of the cable between the gateways, from the first to the second.
    pub(super) fn between(&self) -> LineCounters {
        self.between[1].counters()
    }

    /// Returns true if every packet received is accounted for, at both nodes and in both
    /// directions.
    pub(super) fn adds_up(&self) -> bool {
        self.nodes.iter().all(|node| {
            let dataplane = node.dataplane();
            dataplane.sent().adds_up() && dataplane.received().adds_up()
        })
    }

    fn next(&self) -> Option<(Instant, Event)> {
        let mut next: Option<(Instant, Event)> = None;
        let mut consider = |at: Option<Instant>, event: Event| {
            if let Some(at) = at {
                if next.is_none_or(|(earliest, _)| at < earliest) {
                    next = Some((at, event));
                }
            }
        };
        for n in 0..2 {
            consider(self.out[n].next_arrival(), Event::Out(n));
            consider(self.between[n].next_arrival(), Event::Between(n));
            consider(self.into[n].next_arrival(), Event::Into(n));
            consider(Some(self.nodes[n].next_deadline()), Event::Tick(n));
        }
        consider(self.reloads.first().map(|(at, _)| *at), Event::Reload);
        next
    }

    fn pass(&mut self, to: Instant, deliver: &mut dyn FnMut(usize, Instant, Frame)) {
        while let Some((at, event)) = self.next().filter(|(at, _)| *at <= to) {
            // An event that was due before happens now.
            self.now = self.now.max(at);
            let now = self.now;
            match event {
                Event::Into(n) => {
                    if let Some((_, frame)) = self.into[n].pop(now) {
                        self.receive(n, Place::Private, frame);
                    }
                }
                Event::Between(n) => {
                    if let Some((_, frame)) = self.between[n].pop(now) {
                        self.receive(n, Place::Public, frame);
                    }
                }
                Event::Out(n) => {
                    if let Some((at, frame)) = self.out[n].pop(now) {
                        deliver(n, at, frame);
                    }
                }
                Event::Tick(n) => {
                    self.nodes[n].tick(now);
                    self.watch(n);
                    self.flush(n, now);
                }
                Event::Reload => self.reload(),
            }
        }
        self.now = self.now.max(to);
    }

    fn reload(&mut self) {
        let (_, configs) = self.reloads.remove(0);
        for (n, config) in configs.into_iter().enumerate() {
            // A configuration that a node refuses leaves it as it was; the trial sees that packets
            // of new routes are lost.
            let _ = self.nodes[n].reconfigure(self.now, config);
            self.flush(n, self.now);
        }
    }

    fn receive(&mut self, node: usize, place: Place, frame: Frame) {
        self.burst.push(frame);
        self.nodes[node].receive(self.now, place, &mut self.burst);
        self.burst.clear();
        self.watch(node);
        self.flush(node, self.now);
    }

    /// Sends the frames of a node on its cables.
    fn flush(&mut self, node: usize, now: Instant) {
        for frame in self.nodes[node].leaving(Place::Private).drain(..) {
            self.out[node].offer(now, frame);
        }
        for frame in self.nodes[node].leaving(Place::Public).drain(..) {
            self.between[1 - node].offer(now, frame);
        }
    }

    /// The time of the gateways at this time of the tester.
    fn inside(&self, time: Instant) -> Instant {
        self.epoch + time.since(Instant::ZERO)
    }
}

impl Network for Topology {
    fn offer(&mut self, now: Instant, port: usize, frame: Frame) {
        let now = self.inside(now);
        self.into[port].offer(now, frame);
    }

    fn advance(&mut self, to: Instant, deliver: &mut dyn FnMut(usize, Instant, Frame)) {
        let epoch = self.epoch;
        let to = self.inside(to);
        self.pass(to, &mut |port, at, frame| {
            deliver(port, Instant::ZERO + at.since(epoch), frame);
        });
    }

    fn next_event(&self) -> Option<Instant> {
        let lines = self.into.iter().chain(&self.between).chain(&self.out);
        let next = lines.filter_map(Line::next_arrival).min()?;
        Some(Instant::ZERO + next.since(self.epoch))
    }
}
