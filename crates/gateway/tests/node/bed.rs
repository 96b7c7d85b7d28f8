//! Two gateways in virtual time: their public interfaces joined by a line, a host with numbered
//! packets behind each.

use std::cell::Cell;
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use tare_gateway::config::Config;
use tare_gateway::dataplane::{Dataplane, TrafficCounters};
use tare_gateway::exchange::Entropy;
use tare_gateway::Node;
use tare_gateway::{InterfaceId, InterfaceState};
use tare_packet::ethernet::{self, Mac, HEADER};
use tare_packet::ipv4::{self, Ipv4};
use tare_packet::ipv6::{self, Ipv6};
use tare_port::{joined, Burst, Layout, LinePort, Pool, Port as _, BURST};
use tare_sim::{Instant, LineConfig};

type Clock = Rc<Cell<Instant>>;
pub(crate) type End = LinePort<Box<dyn CloneClock>>;

/// A clock that can be cloned behind a box.
pub(crate) trait CloneClock: Fn() -> Instant {
    fn boxed(&self) -> Box<dyn CloneClock>;
}

impl<F: Fn() -> Instant + Clone + 'static> CloneClock for F {
    fn boxed(&self) -> Box<dyn CloneClock> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn CloneClock> {
    fn clone(&self) -> Self {
        (**self).boxed()
    }
}

/// Numbers that look random and are the same for the same seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

pub(crate) fn entropy(seed: u64) -> Entropy {
    let mut random = Random(seed);
    Box::new(move |bytes| bytes.fill_with(|| random.next() as u8))
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

pub(crate) struct Bed {
    pub(crate) now: Instant,
    clock: Clock,
    pub(crate) nodes: [Option<Node>; 2],
    pub(crate) ports: [End; 2],
    pub(crate) hosts: [Host; 2],
    pools: [Pool; 2],
    /// Where the clock of each gateway stands, compared with the bed's.
    pub(crate) ahead: [i64; 2],
    /// Whether the stations behind the gateways send back what is not theirs.
    pub(crate) echo_back: bool,
    /// Whether packets may arrive that no host has sent like that.
    pub(crate) hostile: bool,
    /// Workers of each gateway.
    workers: [usize; 2],
    seed: u64,
}

/// What a host has sent to the other and has received from it.
#[derive(Default)]
pub(crate) struct Host {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) twice: u64,
    seen: HashSet<u64>,
    /// Frames that are none of the other host's.
    pub(crate) other: Vec<Vec<u8>>,
}

impl Bed {
    pub(crate) fn new(configs: [Config; 2]) -> Bed {
        let fast = LineConfig {
            delay: Duration::from_millis(1),
            ..LineConfig::new(1_000_000_000)
        };
        Bed::over([&fast, &fast], [1, 1], configs)
    }

    /// Two gateways that agree on keys over IPv4, with so many workers.
    pub(crate) fn with_workers(workers: [usize; 2], line: &LineConfig, top: &str) -> Bed {
        let configs = [0, 1].map(|side| parse(&file(side, top, &route4(side), "")));
        Bed::over([line, line], workers, configs)
    }

    pub(crate) fn over(lines: [&LineConfig; 2], workers: [usize; 2], configs: [Config; 2]) -> Bed {
        let clock = Clock::default();
        let read = Rc::clone(&clock);
        let read: Box<dyn CloneClock> = Box::new(move || read.get());
        let (near, far) = joined(lines[0], lines[1], read);
        let pool = || Pool::new(1024, 2048, Layout::Spread).unwrap();
        let mut bed = Bed {
            now: Instant::ZERO,
            clock,
            nodes: [None, None],
            ports: [near, far],
            hosts: Default::default(),
            pools: [pool(), pool()],
            ahead: [0; 2],
            echo_back: false,
            hostile: false,
            workers,
            seed: 1,
        };
        for (side, config) in configs.into_iter().enumerate() {
            bed.start(side, config);
        }
        bed
    }

    /// Two gateways that agree on keys over IPv4.
    pub(crate) fn plain(top: &str) -> Bed {
        Bed::new([0, 1].map(|side| parse(&file(side, top, &route4(side), ""))))
    }

    /// Starts a gateway, in place of the one that ran there.
    pub(crate) fn start(&mut self, side: usize, config: Config) {
        self.seed += 1;
        let (private, public) = (link(PRIVATE[side]), link(PUBLIC[side]));
        let (now, pool) = (self.time_of(side), self.pools[side].clone());
        let (workers, entropy) = (self.workers[side], entropy(self.seed));
        let node = Node::with_workers(workers, config, private, public, entropy, pool, now);
        self.nodes[side] = Some(node.unwrap());
    }

    pub(crate) fn node(&mut self, side: usize) -> &mut Node {
        self.nodes[side].as_mut().unwrap()
    }

    /// The time as a gateway sees it.
    pub(crate) fn time_of(&self, side: usize) -> Instant {
        Instant::from_nanos(self.now.as_nanos().saturating_add_signed(self.ahead[side]))
    }

    /// Moves everything that moves by itself up to a moment.
    pub(crate) fn run(&mut self, until: Instant) {
        loop {
            self.settle();
            let mut next = until;
            for side in 0..2 {
                let arrival = self.ports[side].next_arrival();
                next = next.min(arrival.unwrap_or(Instant::NEVER));
                let deadline = self.nodes[side].as_ref().map(Node::next_deadline);
                let deadline = deadline.unwrap_or(Instant::NEVER).as_nanos();
                let deadline = deadline.saturating_sub(self.time_of(side).as_nanos());
                next = next.min(self.now + Duration::from_nanos(deadline));
            }
            if next >= until && self.now >= until {
                break;
            }
            self.now = next.max(self.now);
            self.clock.set(self.now);
        }
    }

    pub(crate) fn run_for(&mut self, seconds: f64) {
        self.run(self.now + Duration::from_secs_f64(seconds));
    }

    fn settle(&mut self) {
        for side in 0..2 {
            let now = self.time_of(side);
            let port = &mut self.ports[side];
            let mut burst = Burst::new();
            while port.receive(&mut burst, BURST).unwrap() > 0 {
                match &mut self.nodes[side] {
                    Some(node) => node.receive(now, InterfaceId::Public, &mut burst),
                    None => burst.clear(),
                }
            }
            let Some(node) = &mut self.nodes[side] else {
                continue;
            };
            if node.next_deadline() <= now {
                node.tick(now);
            }
            port.send(node.leaving(InterfaceId::Public)).unwrap();
            let mut leaving = std::mem::take(node.leaving(InterfaceId::Private));
            if self.echo_back {
                node.receive(now, InterfaceId::Private, &mut leaving);
                port.send(node.leaving(InterfaceId::Public)).unwrap();
            }
            if self.hostile {
                leaving.clear();
            }
            for frame in leaving {
                self.hosts[side].take(side, &frame);
            }
            for dataplane in node.dataplanes() {
                assert!(dataplane.sent().adds_up());
                assert!(dataplane.received().adds_up());
            }
            assert!(node.control().counters().adds_up());
        }
    }

    /// Lets the host behind a gateway send a packet to the host behind the other.
    pub(crate) fn send(&mut self, side: usize, v6: bool) {
        let number = self.hosts[side].sent;
        self.hosts[side].sent += 1;
        let len = 80 + (number * 577 % 1320) as usize;
        let frame = packet(side, v6, number, len);
        self.give(side, &frame);
    }

    /// A frame on the private interface of a gateway.
    pub(crate) fn give(&mut self, side: usize, frame: &[u8]) {
        let now = self.time_of(side);
        let mut burst = vec![self.pools[side].copy(frame).unwrap()];
        if let Some(node) = &mut self.nodes[side] {
            node.receive(now, InterfaceId::Private, &mut burst);
        }
        self.settle();
    }

    /// Lets an empty burst go to the worker of a gateway whose turn it is.
    pub(crate) fn skip(&mut self, side: usize) {
        let now = self.time_of(side);
        let node = self.node(side);
        node.receive(now, InterfaceId::Private, &mut Burst::new());
    }

    /// A frame on the public interface of a gateway.
    pub(crate) fn inject(&mut self, side: usize, frame: &[u8]) {
        let now = self.time_of(side);
        let mut burst = vec![self.pools[side].copy(frame).unwrap()];
        self.node(side)
            .receive(now, InterfaceId::Public, &mut burst);
        self.settle();
    }

    /// Both hosts send a packet every so often, for so long.
    pub(crate) fn load(&mut self, seconds: f64, every: Duration) {
        let until = self.now + Duration::from_secs_f64(seconds);
        while self.now < until {
            for side in 0..2 {
                self.send(side, false);
            }
            self.run(self.now + every);
        }
    }

    /// Waits for what is on its way, and says what was lost of what each host sent.
    pub(crate) fn lost(&mut self) -> [u64; 2] {
        self.run_for(1.0);
        [0, 1].map(|side| self.hosts[side].sent - self.hosts[1 - side].received)
    }

    /// Waits until packets go both ways, and says how long that took.
    pub(crate) fn wait_until_up(&mut self, at_most: f64) -> f64 {
        let start = self.now;
        while self.now.since(start).as_secs_f64() < at_most {
            let before = [0, 1].map(|side| self.hosts[side].received);
            for side in 0..2 {
                self.send(side, false);
            }
            self.run_for(0.05);
            if (0..2).all(|side| self.hosts[side].received > before[side]) {
                return self.now.since(start).as_secs_f64();
            }
        }
        panic!(
            "no packet gets through after {at_most} s: {:?}",
            self.logs()
        );
    }

    pub(crate) fn logs(&mut self) -> Vec<String> {
        let nodes = self.nodes.iter_mut().flatten();
        nodes
            .flat_map(|node| node.take_log())
            .map(|r| r.to_string())
            .collect()
    }

    pub(crate) fn sent(&self, side: usize) -> TrafficCounters {
        self.sum(side, |dataplane| dataplane.sent())
    }

    pub(crate) fn received(&self, side: usize) -> TrafficCounters {
        self.sum(side, |dataplane| dataplane.received())
    }

    fn sum(&self, side: usize, of: fn(&Dataplane) -> &TrafficCounters) -> TrafficCounters {
        let mut sum = TrafficCounters::default();
        let dataplanes = self.nodes[side].iter().flat_map(Node::dataplanes);
        dataplanes.for_each(|dataplane| sum.add(of(dataplane)));
        sum
    }

    pub(crate) fn restart_counting(&mut self) {
        self.hosts = Default::default();
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
