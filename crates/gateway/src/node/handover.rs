//! Handovers of a gateway in virtual time, with a crash at each step: no sequence number is used
//! twice under one key, and no packet is accepted twice.

use std::collections::HashSet;
use std::time::Duration;

use tare_packet::{ethernet, frame, ipv4};
use tare_port::{Burst, Layout, Pool};
use tare_sim::Instant;

use super::Node;
use crate::config::Config;
use crate::dataplane::DropReason;
use crate::handover::{State, RESERVED};
use crate::interface::{InterfaceId, InterfaceState};

const MS: Duration = Duration::from_millis(1);

fn config(own: u8, more: &str) -> Config {
    let peer = 3 - own;
    let (inbound, outbound) = (300 + u32::from(own), 300 + u32::from(peer));
    let key = |of: u8| format!("key {}; salt 0102030{of};", format!("0{of}").repeat(16));
    let text = format!(
        "negotiation-ttl 2; sa-ttl 16;
        private-interface {{ device a; ip4 10.{own}.0.1; nexthop-ip4 10.{own}.0.2; }}
        public-interface {{ device b; ip4 192.0.2.{own}; nexthop-ip4 192.0.2.{peer}; }}
        route {{ id agreed; gw-ip4 192.0.2.{peer}; net-cidr4 \"10.{peer}.0.0/16\"; spi 1001;
            preshared-key {psk}; {more} }}
        route {{ id manual; gw-ip4 192.0.2.{peer}; net-cidr4 \"10.{own_peer}.0.0/16\";
            inbound-sa {{ spi {inbound}; {key_in} }} outbound-sa {{ spi {outbound}; {key_out} }} {more} }}",
        psk = "07".repeat(32),
        own_peer = peer + 10,
        key_in = key(own),
        key_out = key(peer),
    );
    let (config, _) = Config::parse("test.conf", text.as_bytes()).unwrap();
    config
}

/// Two gateways, of which the first is handed over, and what has been seen of it.
struct Testbed {
    nodes: [Node; 2],
    pool: Pool,
    now: Instant,
    seed: u8,
    /// SPI and sequence number of every packet that the first gateway has sent.
    numbers: HashSet<(u32, u64)>,
    /// Outer packets that it has received.
    heard: Vec<Vec<u8>>,
    sent: u64,
    /// Packets that came out of the second gateway's tunnel.
    delivered: u64,
    more: &'static str,
}

fn make(side: u8, more: &str, pool: &Pool, seed: u8, now: Instant) -> Node {
    let interface = InterfaceState {
        mac: [2, 0, 0, 0, 0, side],
        mtu: 1500,
        up: true,
    };
    let mut n = u64::from(seed) << 32;
    let entropy = Box::new(move |bytes: &mut [u8]| {
        for byte in bytes {
            n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (n >> 33) as u8;
        }
    });
    let config = config(side, more);
    Node::make(1, config, interface, interface, entropy, pool.clone(), now).unwrap()
}

impl Testbed {
    fn new(more: &'static str) -> Testbed {
        let pool = Pool::new(1024, 2304, Layout::Spread).unwrap();
        let now = Instant::ZERO + Duration::from_secs(1000);
        let nodes = [1, 2].map(|side| {
            let mut node = make(side, more, &pool, side, now);
            node.tick(now);
            node
        });
        let mut bed = Testbed {
            nodes,
            pool,
            now,
            seed: 2,
            numbers: HashSet::new(),
            heard: Vec::new(),
            sent: 0,
            delivered: 0,
            more,
        };
        bed.run(3000);
        bed
    }

    /// A process that takes over with these bytes, and has not begun.
    fn successor(&mut self, state: &[u8]) -> Node {
        self.seed += 1;
        let mut node = make(1, self.more, &self.pool, self.seed, self.now);
        let state = State::from_bytes(state).unwrap();
        let (gone, _) = node.control.import::<()>(self.now, &state);
        assert_eq!(gone, [""; 0]);
        // The counters of each route go on, with those of SAs that are gone.
        let counters = |state: &State| {
            let routes = state.routes.iter();
            let counters = routes.map(|route| (route.counters.clone(), route.handshake));
            counters.collect::<Vec<_>>()
        };
        assert_eq!(counters(&node.control.export(&())), counters(&state));
        let status = node.control.status();
        let agreements = status.exchange["agreements"];
        assert!(agreements > 0);
        assert_eq!(status.negotiation_latency.count(), agreements);
        node
    }

    fn state(&self) -> Vec<u8> {
        self.nodes[0].control.export(&()).to_bytes().to_vec()
    }

    /// One packet of each route both ways each millisecond.
    fn run(&mut self, ms: u32) {
        for _ in 0..ms {
            self.now += MS;
            for (side, node) in self.nodes.iter_mut().enumerate() {
                node.tick(self.now);
                let (own, peer) = (side as u8 + 1, 2 - side as u8);
                for net in [peer, peer + 10] {
                    let (src, dst) = ([10, own + net - peer, 0, 9], [10, net, 0, 9]);
                    let (src, dst) = (src.into(), dst.into());
                    let macs = ([2, 0, 0, 0, 0, own], [2, 0, 0, 0, 0, 9]);
                    let packet = frame::ipv4(macs.0, macs.1, src, dst, 17, &[0; 32]);
                    let mut burst: Burst = self.pool.copy(&packet).into_iter().collect();
                    node.receive(self.now, InterfaceId::Private, &mut burst);
                }
            }
            self.exchange();
        }
    }

    /// Carries what has left to the other gateway, and answers for hosts.
    fn exchange(&mut self) {
        for from in [0, 1] {
            let mut burst = std::mem::take(self.nodes[from].leaving(InterfaceId::Public));
            for frame in &burst {
                if let Some((spi, number)) = esp(frame) {
                    if from == 0 {
                        self.sent += 1;
                        assert!(self.numbers.insert((spi, number)), "{spi} {number}");
                    } else {
                        self.heard.push(frame.to_vec());
                    }
                }
            }
            self.nodes[1 - from].receive(self.now, InterfaceId::Public, &mut burst);
            let mut private = std::mem::take(self.nodes[from].leaving(InterfaceId::Private));
            let mut answers = Burst::new();
            for frame in private.drain(..) {
                match ethernet::kind(&frame) {
                    Some(ethernet::ARP) => answers.extend(self.pool.copy(&answer(&frame))),
                    _ => self.delivered += u64::from(from == 1),
                }
            }
            self.nodes[from].receive(self.now, InterfaceId::Private, &mut answers);
        }
    }

    /// Every packet that the first gateway has received comes once more; none is accepted.
    fn replay(&mut self) {
        let before = self.nodes[0].dataplane().received().forwarded;
        for frame in std::mem::take(&mut self.heard) {
            let mut burst: Burst = self.pool.copy(&frame).into_iter().collect();
            self.nodes[0].receive(self.now, InterfaceId::Public, &mut burst);
        }
        let after = self.nodes[0].dataplane().received().forwarded;
        assert_eq!(after, before, "a packet was accepted twice");
    }
}

fn esp(frame: &[u8]) -> Option<(u32, u64)> {
    let ip = frame.get(ethernet::HEADER..)?;
    let esp = ip.get(ipv4::HEADER..).filter(|_| ip[9] == 50)?;
    let number = u64::from_be_bytes(*esp.get(8..)?.first_chunk()?);
    Some((u32::from_be_bytes(*esp.first_chunk()?), number))
}

/// The answer of a host to an ARP request.
fn answer(request: &[u8]) -> Vec<u8> {
    let mut reply = request.to_vec();
    let host = [2, 0, 0, 0, 0, 9];
    reply.copy_within(6..12, 0);
    reply[6..12].copy_from_slice(&host);
    reply[21] = 2;
    let (sender, target) = (request[22..32].to_vec(), request[38..42].to_vec());
    reply[22..28].copy_from_slice(&host);
    reply[28..32].copy_from_slice(&target);
    reply[32..42].copy_from_slice(&sender);
    reply
}

#[test]
fn handovers_at_any_time_with_a_crash_at_each_step_use_no_number_and_accept_no_packet_twice() {
    for more in ["", "esn false;"] {
        let mut bed = Testbed::new(more);
        assert!(bed.sent > 2000, "{}", bed.sent);
        for turn in 0..60u32 {
            // Some of these are in the middle of a negotiation.
            bed.run(137 + turn * 29 % 400);
            let before = (bed.sent, bed.delivered);
            let state = bed.state();
            match turn % 4 {
                // The state does not arrive, or is not read.
                0 => {}
                // The new process dies after it has read the state, before it has taken over.
                1 => drop(bed.successor(&state)),
                // It takes over.
                2 => bed.nodes[0] = bed.successor(&state),
                // It takes over with an old state: the last numbers were not told.
                _ => {
                    bed.run(50);
                    bed.nodes[0] = bed.successor(&state);
                    // Windows of that time are too old.
                    bed.heard.clear();
                }
            }
            bed.replay();
            bed.run(100);
            let (sent, delivered) = (bed.sent - before.0, bed.delivered - before.1);
            // Nothing waits for a new negotiation.
            assert!(
                sent >= 200 && delivered >= sent - 4,
                "{turn}: {delivered} of {sent} {:?}",
                bed.nodes[1].dataplane().received().dropped,
            );
        }
        let dropped = bed.nodes[1].dataplane().received().dropped;
        // An old state may lack an SA that was negotiated since; a number that was used before
        // would be refused as one of these.
        let refused = [DropReason::Replayed, DropReason::TooOld, DropReason::Forged];
        assert_eq!(refused.map(|reason| dropped.get(reason)), [0; 3]);
    }
}

#[test]
fn a_route_with_another_configuration_begins_anew_and_reuses_no_number_of_a_manual_key() {
    let mut bed = Testbed::new("");
    let state = State::from_bytes(&bed.state()).unwrap();
    let last = |state: &State| state.routes[1].outbound[0].sent.last;
    let mut node = make(1, "window 128;", &bed.pool, 9, bed.now);
    let (gone, _) = node.control.import::<()>(bed.now, &state);
    assert_eq!(gone, ["agreed", "manual"]);
    let after = node.control.export(&());
    assert_eq!(after.routes[0].counters, state.routes[0].counters);
    assert!(!state.routes[0].counters.contains(r#""packets":0"#));
    assert!(last(&after) >= last(&state) + RESERVED);
    assert!(after.routes[0].outbound.is_empty());
    // Where the life of SAs is shorter in the file now, it is that of those that were taken over.
    let lives = |state: &State| {
        let inbound = state.routes[0].inbound.iter();
        let lives = inbound.map(|sa| sa.life.unwrap().expires);
        lives.collect::<Vec<_>>()
    };
    let mut longer = State::from_bytes(&bed.state()).unwrap();
    longer.sa_ttl *= 2;
    let mut node = make(1, "", &bed.pool, 8, bed.now);
    node.control.import::<()>(bed.now, &longer);
    let shorter = lives(&node.control.export(&()));
    assert!(!shorter.is_empty());
    assert!(shorter.iter().zip(lives(&longer)).all(|(a, b)| *a < b));
    // Nor does the manual key accept a packet that was accepted before.
    let top = |state: &State| state.routes[1].inbound[0].opened.received.top;
    assert!(top(&state) > 0);
    assert_eq!(top(&after), top(&state));
    // Both are known also where the route is gone for a while.
    let mut config = node.control.config().clone();
    config.routes.retain(|route| route.id != "manual");
    node.control.reconfigure(bed.now, config).unwrap();
    let without = State::from_bytes(&node.control.export(&()).to_bytes()).unwrap();
    assert_eq!(without.routes.len(), 1);
    let mut node = make(1, "", &bed.pool, 10, bed.now);
    node.control.import::<()>(bed.now, &without);
    let back = node.control.export(&());
    assert!(last(&back) >= last(&after) + RESERVED);
    assert_eq!(top(&back), top(&state));
    bed.nodes[0] = node;
    bed.run(5000);
}

/// The process before was started while the clock was an hour ahead of the present one.
#[test]
fn ivs_of_a_manual_key_go_on_over_a_handover_where_the_clock_was_set_back() {
    let bed = Testbed::new("");
    let mut state = State::from_bytes(&bed.state()).unwrap();
    state.routes[1].outbound[0].sent.iv_base += 3600 * 62_500_000;
    let sent = |state: &State| state.routes[1].outbound[0].sent;
    let before = sent(&state);
    let successor = |state: &State, more: &str| {
        let state = State::from_bytes(&state.to_bytes()).unwrap();
        let mut node = make(1, more, &bed.pool, 9, bed.now);
        node.control.import::<()>(bed.now, &state);
        node
    };
    let check = |node: &Node| {
        let after = sent(&node.control.export(&()));
        assert_eq!(after.iv_base, before.iv_base);
        assert!(after.last >= before.last + RESERVED);
    };
    // The route as it was, and another one with the same key.
    check(&successor(&state, ""));
    check(&successor(&state, "window 128;"));
    // The route is gone when the second handover comes.
    let mut node = successor(&state, "");
    let mut config = node.control.config().clone();
    config.routes.retain(|route| route.id != "manual");
    node.control.reconfigure(bed.now, config).unwrap();
    let without = node.control.export(&());
    assert_eq!(without.routes.len(), 1);
    check(&successor(&without, ""));
}
