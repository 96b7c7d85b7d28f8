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
use tare_gateway::dataplane::BoundTables;
use tare_gateway::exchange;
use tare_gateway::tools::gentest::Meta;
use tare_gateway::Node;
use tare_gateway::{InterfaceId, InterfaceState};
use tare_loadtest::{Network, StreamConfig, TesterPorts};
use tare_packet::imix::PacketSize;
use tare_port::{Burst, Frame, Layout, Pool};
use tare_sim::{Cable, Instant, LineConfig, LineCounters, NodeId, Outbox, Testbed};

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

/// The testbed: gateways, cables, and the time.
pub(super) struct Topology {
    testbed: Testbed<Frame>,
    gateways: [NodeId<Gateway>; 2],
    tester: NodeId<TesterPorts<Frame>>,
    /// Between the gateways.
    between: Cable,
}

/// A gateway as a node of the testbed.
struct Gateway {
    node: Node,
    burst: Burst,
    /// The tables of the last check for new SAs.
    tables: Arc<BoundTables>,
    outbound_updates: u64,
    /// Reloads that are still to come.
    reloads_left: usize,
}

impl tare_sim::Node for Gateway {
    type Message = Frame;

    fn receive(&mut self, now: Instant, interface: usize, frame: Frame, out: &mut Outbox<Frame>) {
        self.burst.push(frame);
        self.node
            .receive(now, INTERFACES[interface], &mut self.burst);
        self.burst.clear();
        self.settle(out);
    }

    fn next_deadline(&self) -> Instant {
        self.node.next_deadline()
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox<Frame>) {
        self.node.tick(now);
        self.settle(out);
    }
}

/// The interfaces of a gateway, as the testbed counts them.
const INTERFACES: [InterfaceId; 2] = [InterfaceId::Private, InterfaceId::Public];
const PRIVATE: usize = 0;
const PUBLIC: usize = 1;

impl Gateway {
    fn new(node: Node) -> Gateway {
        Gateway {
            tables: Arc::clone(node.dataplane().tables()),
            node,
            burst: Burst::new(),
            outbound_updates: 0,
            reloads_left: 0,
        }
    }

    /// Sends the frames of the gateway, and counts the outbound SAs that it has replaced.
    fn settle(&mut self, out: &mut Outbox<Frame>) {
        for (interface, id) in INTERFACES.into_iter().enumerate() {
            for frame in self.node.leaving(id).drain(..) {
                out.send(interface, frame);
            }
        }
        let tables = self.node.dataplane().tables();
        if Arc::ptr_eq(tables, &self.tables) {
            return;
        }
        let routes = tables.routes.iter().zip(&self.tables.routes);
        let replaced = routes.filter(|(new, old)| match (new.outbound(0), old.outbound(0)) {
            (Some(new), Some(old)) => new.spi() != old.spi(),
            _ => false,
        });
        self.outbound_updates += replaced.count() as u64;
        self.tables = Arc::clone(tables);
    }

    fn is_keyed(&self) -> bool {
        let routes = &self.node.dataplane().tables().routes;
        routes.iter().all(|route| route.outbound(0).is_some())
    }

    fn reload(&mut self, now: Instant, config: Config, out: &mut Outbox<Frame>) {
        // A configuration that a node refuses leaves it as it was; the trial sees that packets of
        // new routes are lost.
        let _ = self.node.reconfigure(now, config);
        self.reloads_left -= 1;
        self.settle(out);
    }
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
        let link = |node, interface| InterfaceState {
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
        let mut testbed = Testbed::new(0);
        let gateways = [node(0, one)?, node(1, two)?].map(|node| testbed.add(Gateway::new(node)));
        let tester = testbed.add(TesterPorts::new(0..2));
        let [left, right] = gateways;
        let mut connect = |a, b| testbed.connect_lines(a, b, &setup.line, &setup.line);
        connect(left.interface(PRIVATE), tester.interface(0));
        let between = connect(left.interface(PUBLIC), right.interface(PUBLIC));
        connect(right.interface(PRIVATE), tester.interface(1));
        let mut topology = Topology {
            testbed,
            gateways,
            tester,
            between,
        };
        for gateway in gateways {
            topology
                .testbed
                .act(gateway, |gateway, _, out| gateway.settle(out));
        }
        topology.settle()?;
        Ok(topology)
    }

    fn gateways(&self) -> [&Gateway; 2] {
        self.gateways.map(|gateway| self.testbed.node(gateway))
    }

    /// Advances time until every route has keys in both directions.
    fn settle(&mut self) -> anyhow::Result<()> {
        let deadline = self.testbed.now() + SETTLE_MAX;
        while !self.gateways().iter().all(|gateway| gateway.is_keyed()) {
            ensure!(
                self.testbed.now() < deadline,
                "no keys for all routes after {SETTLE_MAX:?} of virtual time"
            );
            self.testbed.run_for(Duration::from_millis(100));
        }
        // New outbound keys are used when the peer has had time for its own.
        self.testbed.run_for(Duration::from_secs(1));
        Ok(())
    }

    /// Reloads both nodes with other configurations, after this time.
    pub(super) fn reload_at(&mut self, after: Duration, configs: [Config; 2]) {
        let gateways = self.gateways;
        for gateway in gateways {
            self.testbed.node_mut(gateway).reloads_left += 1;
        }
        self.testbed.at(self.testbed.now() + after, move |testbed| {
            for (gateway, config) in gateways.into_iter().zip(configs) {
                testbed.act(gateway, |gateway, now, out| {
                    gateway.reload(now, config, out)
                });
            }
        });
    }

    /// Reloads that are still to come.
    pub(super) fn reloads_left(&self) -> usize {
        self.gateways()[0].reloads_left
    }

    /// The number of times that a route of either node went on with another outbound SA.
    pub(super) fn outbound_updates(&self) -> u64 {
        let updates = self.gateways().map(|gateway| gateway.outbound_updates);
        updates[0] + updates[1]
    }

    /// The cable between the gateways, from the first to the second.
    pub(super) fn between(&self) -> LineCounters {
        self.testbed.lines(self.between)[0].counters()
    }

    /// Returns true if every packet received is accounted for, at both nodes and in both
    /// directions.
    pub(super) fn adds_up(&self) -> bool {
        self.gateways().iter().all(|gateway| {
            let dataplane = gateway.node.dataplane();
            dataplane.sent().adds_up() && dataplane.received().adds_up()
        })
    }
}

impl Network for Topology {
    type Message = Frame;

    fn simulation(&self) -> &Testbed<Frame> {
        &self.testbed
    }

    fn simulation_mut(&mut self) -> &mut Testbed<Frame> {
        &mut self.testbed
    }

    fn tester(&self) -> NodeId<TesterPorts<Frame>> {
        self.tester
    }
}
