//! Two gateways in virtual time: their public interfaces joined by a line, a host with numbered
//! packets behind each.

use std::collections::HashSet;
use std::time::Duration;

use tare_gateway::config::Config;
use tare_gateway::dataplane::{Dataplane, DropReason, TrafficCounters};
use tare_gateway::exchange::Entropy;
use tare_gateway::{InterfaceId, InterfaceState, Node};
use tare_packet::ethernet::{self, Mac, HEADER};
use tare_packet::ipv4::{self, Ipv4};
use tare_packet::ipv6::{self, Ipv6};
use tare_port::{Burst, Frame, Layout, Pool};
use tare_sim::{Cable, Instant, LineConfig, LineCounters, NodeId, Outbox, Random};

pub(crate) fn entropy(seed: u64) -> Entropy {
    let mut random = Random::new(seed);
    Box::new(move |bytes| random.fill(bytes))
}

pub(crate) const PRIVATE: [Mac; 2] = [[2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 2, 1]];
pub(crate) const PUBLIC: [Mac; 2] = [[2, 0, 0, 0, 1, 2], [2, 0, 0, 0, 2, 2]];
/// The station behind each gateway.
pub(crate) const HOST: [Mac; 2] = [[2, 0, 0, 0, 1, 9], [2, 0, 0, 0, 2, 9]];

pub(crate) fn link(mac: Mac) -> InterfaceState {
    InterfaceState {
        mac,
        mtu: 1500,
        up: true,
    }
}

/// The file of one of the two gateways: `top` before, `route` in the route to the other, `more`
/// behind.
pub(crate) fn file(side: usize, top: &str, route: &str, more: &str) -> String {
    let (own, peer) = (16 + side, 17 - side);
    format!(
        r#"{top}
        private-interface {{
          device private; ip4 172.{own}.0.10; ip6 fd00:{own}::10; nexthop-mac 02:00:00:00:0{n}:09;
        }}
        public-interface {{
          device public; ip4 192.0.2.{own}; ip6 2001:db8::{own}; nexthop-ip4 192.0.2.{peer}; nexthop-ip6 2001:db8::{peer};
        }}
        route {{
          id peer; net "172.{peer}.0.0/16"; net "fd00:{peer}::/32"; {route}
        }}
        {more}"#,
        n = side + 1,
    )
}

pub(crate) const KEY: &str =
    "preshared-key 91440DA06376A668AC4959A840A125D75FB544E8AA25A08B813E49F0A4B2E270; spi 1001;";

/// The route to the peer over IPv4, with keys that are agreed on.
pub(crate) fn route4(side: usize) -> String {
    format!("gw-ip4 192.0.2.{}; {KEY}", 17 - side)
}

pub(crate) fn parse(text: &str) -> Config {
    Config::parse("test", text.as_bytes())
        .unwrap_or_else(|e| panic!("{e}\n{text}"))
        .0
}

/// Bytes of a frame with the answer to a probe of a path over IPv4. No other frame is as short and
/// none of the hosts' packets becomes one.
const PROBE_ANSWER: usize = HEADER + ipv4::HEADER + 16 + 12 + 4 + 16;

pub(crate) struct Testbed {
    testbed: tare_sim::Testbed<Frame>,
    stations: [NodeId<Station>; 2],
    /// Between their public interfaces.
    cable: Cable,
    pools: [Pool; 2],
    /// Workers of each gateway.
    workers: [usize; 2],
    seed: u64,
}

/// A gateway and the host behind it, which are joined without a line: what a test gives to the
/// private interface has been forwarded when the call returns. Its one interface in the simulation
/// is the public one.
pub(crate) struct Station {
    side: usize,
    /// `None` while the gateway is switched off; its host stays.
    node: Option<Node>,
    host: Host,
    /// The host sends back what is not for it.
    echo_back: bool,
    /// Packets may arrive that no host has sent like that.
    hostile: bool,
    /// The longest packet that the path from its public interface takes. Longer ones vanish.
    path_takes: usize,
    /// The gateway answers no probe, as if it were another implementation.
    silent: bool,
    /// Frames that the gateway has sent from its public interface.
    sent_frames: u64,
    /// The lowest and the highest IV of ESP over IPv4 in them.
    ivs: Option<(u64, u64)>,
}

/// The packets that a host has sent to the other and has received from it.
#[derive(Default)]
pub(crate) struct Host {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) twice: u64,
    seen: HashSet<u64>,
    /// Frames that are not from the other host.
    pub(crate) other: Vec<Vec<u8>>,
}

impl Station {
    /// Lets the gateway take a frame, and puts out what it sends.
    fn take(&mut self, now: Instant, from: InterfaceId, frame: Frame, out: &mut Outbox<Frame>) {
        if let Some(node) = &mut self.node {
            node.receive(now, from, &mut vec![frame]);
        }
        self.settle(now, out);
    }

    /// Brings what the gateway has put out to the host and to the line.
    fn settle(&mut self, now: Instant, out: &mut Outbox<Frame>) {
        let Some(node) = &mut self.node else { return };
        let mut leaving = std::mem::take(node.leaving(InterfaceId::Private));
        if self.echo_back {
            for frame in &mut leaving {
                frame[..6].copy_from_slice(&PRIVATE[self.side]);
                frame[6..12].copy_from_slice(&HOST[self.side]);
            }
            node.receive(now, InterfaceId::Private, &mut leaving);
        }
        for frame in node.leaving(InterfaceId::Public).drain(..) {
            self.sent_frames += 1;
            note_iv(&mut self.ivs, &frame);
            let vanishes = frame.len() - HEADER > self.path_takes
                || self.silent && frame.len() == PROBE_ANSWER;
            if !vanishes {
                out.send(0, frame);
            }
        }
        for dataplane in node.dataplanes() {
            assert!(dataplane.sent().adds_up());
            assert!(dataplane.received().adds_up());
        }
        assert!(node.control().counters().adds_up());
        if !self.hostile {
            for frame in leaving {
                self.host.take(self.side, &frame);
            }
        }
    }
}

/// Widens a range by the IV of a frame, if that is ESP over IPv4.
fn note_iv(ivs: &mut Option<(u64, u64)>, frame: &Frame) {
    const ESP: u8 = 50;
    let is_esp = frame[12..14] == [8, 0] && frame[HEADER + 9] == ESP;
    if let Some(iv) = frame.get(HEADER + 28..HEADER + 36).filter(|_| is_esp) {
        let iv = u64::from_be_bytes(iv.try_into().unwrap());
        let (low, high) = ivs.unwrap_or((iv, iv));
        *ivs = Some((low.min(iv), high.max(iv)));
    }
}

impl tare_sim::Node for Station {
    type Message = Frame;

    fn receive(&mut self, now: Instant, _: usize, frame: Frame, out: &mut Outbox<Frame>) {
        self.take(now, InterfaceId::Public, frame, out);
    }

    fn next_deadline(&self) -> Instant {
        self.node
            .as_ref()
            .map_or(Instant::NEVER, Node::next_deadline)
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox<Frame>) {
        if let Some(node) = &mut self.node {
            node.tick(now);
        }
        self.settle(now, out);
    }
}

impl Testbed {
    pub(crate) fn new(configs: [Config; 2]) -> Testbed {
        let fast = LineConfig {
            delay: Duration::from_millis(1),
            ..LineConfig::new(1_000_000_000)
        };
        Testbed::over([&fast, &fast], [1, 1], configs)
    }

    /// Two gateways that agree on keys over IPv4, with this many workers.
    pub(crate) fn with_workers(workers: [usize; 2], line: &LineConfig, top: &str) -> Testbed {
        let configs = [0, 1].map(|side| parse(&file(side, top, &route4(side), "")));
        Testbed::over([line, line], workers, configs)
    }

    pub(crate) fn over(
        lines: [&LineConfig; 2],
        workers: [usize; 2],
        configs: [Config; 2],
    ) -> Testbed {
        let mut testbed = tare_sim::Testbed::new(1);
        let stations = [0, 1].map(|side| {
            testbed.add(Station {
                side,
                node: None,
                host: Host::default(),
                echo_back: false,
                hostile: false,
                path_takes: usize::MAX,
                silent: false,
                sent_frames: 0,
                ivs: None,
            })
        });
        let pool = || Pool::new(1024, 2048, Layout::Spread).unwrap();
        let mut testbed = Testbed {
            cable: testbed.connect_lines(stations[0], stations[1], lines[0], lines[1]),
            testbed,
            stations,
            pools: [pool(), pool()],
            workers,
            seed: 1,
        };
        for (side, config) in configs.into_iter().enumerate() {
            testbed.start(side, config);
        }
        testbed
    }

    /// Two gateways that agree on keys over IPv4.
    pub(crate) fn plain(top: &str) -> Testbed {
        Testbed::new([0, 1].map(|side| parse(&file(side, top, &route4(side), ""))))
    }

    /// Starts a gateway, in place of the one that ran there.
    pub(crate) fn start(&mut self, side: usize, config: Config) {
        self.seed += 1;
        let (private, public) = (link(PRIVATE[side]), link(PUBLIC[side]));
        let (now, pool) = (self.time_of(side), self.pools[side].clone());
        let (workers, entropy) = (self.workers[side], entropy(self.seed));
        let node = Node::with_workers(workers, config, private, public, entropy, pool, now);
        self.station(side).node = Some(node.unwrap());
    }

    /// Switches a gateway off.
    pub(crate) fn stop(&mut self, side: usize) {
        self.station(side).node = None;
    }

    fn station(&mut self, side: usize) -> &mut Station {
        self.testbed.node_mut(self.stations[side])
    }

    pub(crate) fn node(&mut self, side: usize) -> &mut Node {
        self.station(side).node.as_mut().unwrap()
    }

    pub(crate) fn host(&mut self, side: usize) -> &mut Host {
        &mut self.station(side).host
    }

    /// Lets the hosts send back what is not for them, or no longer.
    pub(crate) fn set_echo_back(&mut self, echo_back: bool) {
        (0..2).for_each(|side| self.station(side).echo_back = echo_back);
    }

    /// Lets packets arrive that no host has sent like that, or no longer.
    pub(crate) fn set_hostile(&mut self, hostile: bool) {
        (0..2).for_each(|side| self.station(side).hostile = hostile);
    }

    /// Cuts the line between the gateways, which the first one's interface reports, or joins it.
    pub(crate) fn set_cut(&mut self, cut: bool) {
        self.testbed.set_cut(self.cable, cut);
        let state = InterfaceState {
            up: !cut,
            ..link(PUBLIC[0])
        };
        let now = self.time_of(0);
        self.node(0)
            .interface_changed(now, InterfaceId::Public, state);
    }

    /// Lets packets of a gateway vanish that are longer than this.
    pub(crate) fn set_path(&mut self, side: usize, takes: usize) {
        self.station(side).path_takes = takes;
    }

    /// Lets a gateway answer no probe of a path.
    pub(crate) fn silence(&mut self, side: usize) {
        self.station(side).silent = true;
    }

    /// The line that a gateway sends on.
    pub(crate) fn line(&self, side: usize) -> LineCounters {
        self.testbed.lines(self.cable)[side].counters()
    }

    /// The lowest and the highest IV that a gateway has sent over IPv4.
    pub(crate) fn ivs(&mut self, side: usize) -> (u64, u64) {
        self.station(side).ivs.expect("it has sent ESP")
    }

    /// Frames that a gateway has sent from its public interface.
    pub(crate) fn sent_frames(&mut self, side: usize) -> u64 {
        self.station(side).sent_frames
    }

    /// The time as a gateway sees it.
    pub(crate) fn time_of(&self, side: usize) -> Instant {
        self.testbed.time_of(self.stations[side])
    }

    /// Sets the clock of a gateway ahead, or back, by nanoseconds.
    pub(crate) fn step_clock(&mut self, side: usize, ns: i64) {
        let (now, by) = (self.testbed.now(), Duration::from_nanos(ns.unsigned_abs()));
        let clock = self.testbed.clock_mut(self.stations[side]);
        match ns > 0 {
            true => clock.step_ahead(now, by),
            false => clock.step_back(now, by),
        }
    }

    /// Moves everything that moves by itself up to a moment.
    pub(crate) fn run(&mut self, until: Instant) {
        for station in self.stations {
            // What the test has made a gateway do since.
            self.testbed.act(station, Station::settle);
        }
        self.testbed.run_until(until);
    }

    pub(crate) fn run_for(&mut self, seconds: f64) {
        self.run(self.testbed.now() + Duration::from_secs_f64(seconds));
    }

    /// Lets the host behind a gateway send a packet to the host behind the other.
    pub(crate) fn send(&mut self, side: usize, v6: bool) {
        let number = self.host(side).sent;
        self.host(side).sent += 1;
        let len = 80 + (number * 577 % 1320) as usize;
        let frame = packet(side, v6, number, len);
        self.give(side, &frame);
    }

    /// A frame on the private interface of a gateway.
    pub(crate) fn give(&mut self, side: usize, frame: &[u8]) {
        self.take(side, InterfaceId::Private, frame);
    }

    /// A frame on the public interface of a gateway.
    pub(crate) fn inject(&mut self, side: usize, frame: &[u8]) {
        self.take(side, InterfaceId::Public, frame);
    }

    fn take(&mut self, side: usize, from: InterfaceId, frame: &[u8]) {
        let frame = self.pools[side].copy(frame).unwrap();
        self.testbed.act(self.stations[side], |station, now, out| {
            station.take(now, from, frame, out);
        });
    }

    /// Lets an empty burst go to the worker of a gateway whose turn it is.
    pub(crate) fn skip(&mut self, side: usize) {
        let now = self.time_of(side);
        let node = self.node(side);
        node.receive(now, InterfaceId::Private, &mut Burst::new());
    }

    /// Both hosts send a packet every so often, for so long.
    pub(crate) fn load(&mut self, seconds: f64, every: Duration) {
        let until = self.testbed.now() + Duration::from_secs_f64(seconds);
        while self.testbed.now() < until {
            for side in 0..2 {
                self.send(side, false);
            }
            self.run(self.testbed.now() + every);
        }
    }

    /// Waits for what is in flight, and returns how much was lost of what each host sent.
    pub(crate) fn lost(&mut self) -> [u64; 2] {
        self.run_for(1.0);
        [0, 1].map(|side| self.host(side).sent - self.host(1 - side).received)
    }

    /// Packets of the public side that a gateway dropped, without dummy packets, which are to be.
    pub(crate) fn dropped(&mut self, side: usize) -> u64 {
        let received = self.received(side);
        received.dropped_total() - received.dropped(DropReason::Dummy)
    }

    /// Waits until packets go both ways, and returns how many seconds that took.
    pub(crate) fn wait_until_up(&mut self, at_most: f64) -> f64 {
        let start = self.testbed.now();
        while self.testbed.now().since(start).as_secs_f64() < at_most {
            let before = [0, 1].map(|side| self.host(side).received);
            for side in 0..2 {
                self.send(side, false);
            }
            self.run_for(0.05);
            if (0..2).all(|side| self.host(side).received > before[side]) {
                return self.testbed.now().since(start).as_secs_f64();
            }
        }
        panic!(
            "no packet gets through after {at_most} s: {:?}",
            self.logs()
        );
    }

    pub(crate) fn logs(&mut self) -> Vec<String> {
        let mut logs = Vec::new();
        for side in 0..2 {
            if let Some(node) = &mut self.station(side).node {
                logs.extend(node.take_log().iter().map(ToString::to_string));
            }
        }
        logs
    }

    pub(crate) fn sent(&self, side: usize) -> TrafficCounters {
        self.sum(side, |dataplane| dataplane.sent())
    }

    pub(crate) fn received(&self, side: usize) -> TrafficCounters {
        self.sum(side, |dataplane| dataplane.received())
    }

    fn sum(&self, side: usize, of: fn(&Dataplane) -> &TrafficCounters) -> TrafficCounters {
        let mut sum = TrafficCounters::default();
        let node = self.testbed.node(self.stations[side]).node.iter();
        let dataplanes = node.flat_map(Node::dataplanes);
        dataplanes.for_each(|dataplane| sum.add(of(dataplane)));
        sum
    }

    pub(crate) fn restart_counting(&mut self) {
        (0..2).for_each(|side| *self.host(side) = Host::default());
    }

    /// Frames that are in use.
    pub(crate) fn taken(&self) -> usize {
        self.pools
            .iter()
            .map(|pool| pool.slots() - pool.available())
            .sum()
    }
}

fn byte(number: u64, at: usize) -> u8 {
    (number as usize ^ (at * 151)) as u8
}

/// A UDP packet with a number, from the host behind a gateway to the other.
pub(crate) fn packet(side: usize, v6: bool, number: u64, len: usize) -> Vec<u8> {
    let (own, peer) = (16 + side as u32, 17 - side as u32);
    let mut frame = if v6 {
        let address = |net: u32| 0xfd00 << 112 | u128::from(hex(net)) << 96 | 5;
        let header = ipv6::Repr {
            src: address(own),
            dst: address(peer),
            next_header: 17,
            hop_limit: 64,
            traffic_class: 0,
            payload_len: (len - HEADER - ipv6::HEADER) as u16,
        };
        let mut frame = ethernet::header(PRIVATE[side], HOST[side], ethernet::IPV6).to_vec();
        frame.extend(header.to_bytes());
        frame
    } else {
        let header = ipv4::Repr {
            src: 0xac00_0005 | own << 16,
            dst: 0xac00_0005 | peer << 16,
            protocol: 17,
            ttl: 64,
            tos: 0,
            total_len: (len - HEADER) as u16,
            fragment: 0x4000,
        };
        let mut frame = ethernet::header(PRIVATE[side], HOST[side], ethernet::IPV4).to_vec();
        frame.extend(header.to_bytes());
        frame
    };
    let payload = frame.len();
    frame.extend([0x30, 0x39, 0x30, 0x39]);
    frame.extend(number.to_be_bytes());
    frame.resize_with(len, || 0);
    for (at, place) in frame.iter_mut().enumerate().skip(payload + 12) {
        *place = byte(number, at);
    }
    frame
}

/// The two decimal digits as the hexadecimal digits that a file has them as.
fn hex(decimal: u32) -> u32 {
    decimal / 10 * 16 + decimal % 10
}

impl Host {
    fn take(&mut self, side: usize, frame: &[u8]) {
        assert_eq!(frame[6..12], PRIVATE[side]);
        let payload = match ethernet::kind(frame) {
            Some(ethernet::IPV4) => {
                Ipv4::parse(&frame[HEADER..]).unwrap();
                HEADER + ipv4::HEADER
            }
            Some(ethernet::IPV6) => {
                Ipv6::parse(&frame[HEADER..]).unwrap();
                HEADER + ipv6::HEADER
            }
            _ => return self.other.push(frame.to_vec()),
        };
        if frame.get(payload..payload + 4) != Some(&[0x30, 0x39, 0x30, 0x39]) {
            return self.other.push(frame.to_vec());
        }
        assert_eq!(frame[..6], HOST[side]);
        let number = u64::from_be_bytes(frame[payload + 4..payload + 12].try_into().unwrap());
        let v6 = ethernet::kind(frame) == Some(ethernet::IPV6);
        let mut expected = packet(1 - side, v6, number, frame.len());
        expected[..12].copy_from_slice(&frame[..12]);
        // One hop less at each gateway.
        match v6 {
            true => expected[HEADER + 7] -= 2,
            false => (0..2).for_each(|_| ipv4::decrement_ttl(&mut expected[HEADER..])),
        }
        assert!(frame == expected, "packet {number} has changed");
        if self.seen.insert(number) {
            self.received += 1;
        } else {
            self.twice += 1;
        }
    }
}
