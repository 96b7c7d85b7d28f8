//! Two gateways joined by a network that loses, doubles, delays and reorders, for hours of virtual
//! time.

use std::net::IpAddr;
use std::time::Duration;

use tare_gateway::exchange::{Event, Exchange, SaKeys, Settings, Timers};
use tare_sim::{for_seeds, Cable, Carried, Instant, LineConfig, Node, NodeId, Outbox, Testbed};

use crate::pair::{carries, route, seconds, settings, Gateway, A, B};

/// A datagram between gateways, and its source address.
#[derive(Clone)]
pub(crate) struct Datagram {
    pub(crate) from: IpAddr,
    pub(crate) passenger: Passenger,
}

/// The content of a datagram.
#[derive(Clone)]
pub(crate) enum Passenger {
    /// A message of the exchange.
    Message(Vec<u8>),
    /// A packet under an SA with this SPI, key and salt.
    Packet(u32, Vec<u8>),
}

impl Datagram {
    pub(crate) fn new(from: IpAddr, message: Vec<u8>) -> Datagram {
        let passenger = Passenger::Message(message);
        Datagram { from, passenger }
    }
}

impl Carried for Datagram {
    fn frame_len(&self) -> usize {
        // Ethernet, IPv4 and UDP.
        match &self.passenger {
            Passenger::Message(message) => 14 + 20 + 8 + message.len(),
            Passenger::Packet(..) => 114,
        }
    }

    fn duplicate(&self) -> Option<Datagram> {
        Some(self.clone())
    }
}

impl Gateway {
    pub(crate) fn send_all(&mut self, out: &mut Outbox<Datagram>) {
        for message in self.take() {
            out.send(0, Datagram::new(self.address, message));
        }
        for _ in 0..std::mem::take(&mut self.dummies) {
            self.send_packet(out);
        }
    }

    /// Sends a packet of its host.
    pub(crate) fn send_packet(&mut self, out: &mut Outbox<Datagram>) {
        match self.outbound.get(&0) {
            Some(sa) => {
                let (from, passenger) = (self.address, packet(sa));
                out.send(0, Datagram { from, passenger });
            }
            None => self.packets_lost += 1,
        }
    }

    fn receive_packet(&mut self, now: Instant, spi: u32, key: &[u8]) {
        let known = self.inbound.get(&spi);
        if known.is_some_and(|(_, sa)| packet_key(sa) == key) {
            self.packets += 1;
            self.with(|exchange, events| exchange.used(now, spi, events));
        } else {
            self.packets_lost += 1;
        }
    }
}

fn packet_key(sa: &SaKeys) -> Vec<u8> {
    [sa.key.key(), &sa.key.salt()].concat()
}

fn packet(sa: &SaKeys) -> Passenger {
    Passenger::Packet(sa.spi, packet_key(sa))
}

impl Node for Gateway {
    type Message = Datagram;

    fn receive(&mut self, now: Instant, _: usize, datagram: Datagram, out: &mut Outbox<Datagram>) {
        match datagram.passenger {
            Passenger::Message(message) => self.receive(now, datagram.from, &message),
            Passenger::Packet(spi, key) => self.receive_packet(now, spi, &key),
        }
        self.send_all(out);
    }

    fn next_deadline(&self) -> Instant {
        self.exchange.next_deadline()
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox<Datagram>) {
        self.tick(now);
        let next = self.exchange.next_deadline();
        assert!(next > now, "a tick leaves nothing undone");
        self.send_all(out);
    }
}

/// Two exchanges and the cable between them.
pub(crate) struct Network {
    testbed: Testbed<Datagram>,
    ends: [NodeId<Gateway>; 2],
    cable: Cable,
    /// For each direction, whether it has carried before, and must now.
    up: [bool; 2],
}

impl Network {
    pub(crate) fn new(
        ends: [Gateway; 2],
        faults: &LineConfig,
        traffic: bool,
        seed: u64,
    ) -> Network {
        let mut testbed = Testbed::new(seed);
        let ends = ends.map(|end| testbed.add(end));
        let cable = testbed.connect(ends[0], ends[1], faults);
        if traffic {
            send_packets(&mut testbed, seconds(0.1), ends, cable, faults.loss);
        }
        Network {
            testbed,
            ends,
            cable,
            up: [false; 2],
        }
    }

    pub(crate) fn run_until(&mut self, end: Instant) {
        let (testbed, up) = (&mut self.testbed, &mut self.up);
        let (ends, cable) = (self.ends, self.cable);
        testbed.run_until_reached(end, |testbed| {
            let ends = ends.map(|end| testbed.node(end));
            check(testbed.now(), ends, up, testbed.lines(cable)[0].is_cut());
            false
        });
    }

    pub(crate) fn now(&self) -> Instant {
        self.testbed.now()
    }

    fn ends(&self) -> [&Gateway; 2] {
        [0, 1].map(|which| self.end(which))
    }

    pub(crate) fn end(&self, which: usize) -> &Gateway {
        self.testbed.node(self.ends[which])
    }

    /// Lets the data plane or the operator of an end act on its exchange.
    pub(crate) fn with<T>(
        &mut self,
        which: usize,
        act: impl FnOnce(&mut Exchange, &mut Vec<Event>) -> T,
    ) -> T {
        self.testbed.act(self.ends[which], |end, _, out| {
            let result = end.with(act);
            end.send_all(out);
            result
        })
    }

    /// Both directions carry.
    pub(crate) fn is_up(&self) -> bool {
        self.up == [true; 2]
    }

    /// One end loses everything and begins anew.
    pub(crate) fn restart(&mut self, which: usize, seed: u64) {
        let (local, remote) = (self.end(which).address, self.end(1 - which).address);
        let settings = short(local, remote, self.end(which).most);
        let end = Gateway::new(local, settings, seed);
        self.testbed.restart(self.ends[which], end);
        self.up = [false; 2];
    }

    /// The network loses everything, or as much as before.
    pub(crate) fn cut(&mut self, cut: bool) {
        self.testbed.set_cut(self.cable, cut);
    }
}

/// Once a second, each end sends a packet to the other, whose data plane tells its exchange.
fn send_packets(
    testbed: &mut Testbed<Datagram>,
    at: Instant,
    ends: [NodeId<Gateway>; 2],
    cable: Cable,
    loss: f64,
) {
    testbed.at(at, move |testbed| {
        for (from, to) in [(ends[0], ends[1]), (ends[1], ends[0])] {
            let is_cut = testbed.lines(cable)[0].is_cut();
            let lost = testbed.random().chance(loss) || is_cut;
            if lost || !carries(testbed.node(from), testbed.node(to), 0) {
                continue;
            }
            let workers = testbed.node(from).sas[&0].len();
            let worker = testbed.random().below(workers as u64) as usize;
            let spi = testbed.node(from).sas[&0][worker].spi;
            testbed.act(to, |end, now, out| {
                end.with(|exchange, events| exchange.used(now, spi, events));
                end.send_all(out);
            });
        }
        send_packets(testbed, at + Duration::from_secs(1), ends, cable, loss);
    });
}

/// A direction that has carried once carries for ever: what one end sends under, the other accepts.
fn check(now: Instant, ends: [&Gateway; 2], up: &mut [bool; 2], is_cut: bool) {
    for from in 0..2 {
        let carries = carries(ends[from], ends[1 - from], 0);
        if is_cut {
            // In time all lives end, and none that is sent under ends after the one that accepts.
            assert!(carries || ends[from].outbound.is_empty() || !up[from]);
        } else {
            assert!(carries || !up[from], "direction {from} is cut at {now}");
        }
        up[from] = carries;
    }
}

fn short(local: IpAddr, remote: IpAddr, outbound_sas: usize) -> Settings {
    Settings {
        outbound_sas,
        ..settings(vec![route(0, local, remote)])
    }
}

pub(crate) fn network(faults: &LineConfig, traffic: bool, seed: u64) -> Network {
    network_of([1, 1], faults, traffic, seed)
}

/// Ends with this many workers.
fn network_of(workers: [usize; 2], faults: &LineConfig, traffic: bool, seed: u64) -> Network {
    let ends = [
        Gateway::new(A, short(A, B, workers[0]), 2 * seed),
        Gateway::new(B, short(B, A, workers[1]), 2 * seed + 1),
    ];
    Network::new(ends, faults, traffic, seed)
}

pub(crate) const GOOD: LineConfig = LineConfig {
    delay: Duration::from_millis(1),
    ..LineConfig::new(1_000_000_000)
};

/// Far away: messages overtake each other.
pub(crate) const FAR: LineConfig = LineConfig {
    loss: 0.01,
    duplication: 0.01,
    delay: Duration::from_millis(100),
    jitter: Duration::from_millis(300),
    ..GOOD
};

pub(crate) const BAD: LineConfig = LineConfig {
    loss: 0.3,
    duplication: 0.2,
    delay: Duration::from_millis(1),
    jitter: Duration::from_millis(699),
    ..GOOD
};

#[test]
fn keys_change_for_hours_and_no_direction_is_ever_cut() {
    for faults in [GOOD, FAR, BAD] {
        for traffic in [false, true] {
            for_seeds(0..40, |seed| {
                let mut network = network(&faults, traffic, seed);
                network.run_until(seconds(60.0));
                assert!(network.is_up(), "{faults:?}, seed {seed}");
                network.run_until(seconds(2.0 * 3600.0));
                assert!(network.is_up(), "{faults:?}, seed {seed}");
                let negotiated: u64 = network
                    .ends()
                    .iter()
                    .map(|end| end.exchange.counters().agreements)
                    .sum();
                // Each pair lives for 300 to 375 seconds and what it takes to change over.
                assert!(
                    (18..=50).contains(&negotiated),
                    "{negotiated}, {faults:?}, seed {seed}"
                );
                for end in network.ends() {
                    end.check_counters();
                    assert!(end.inbound.len() <= 4 && end.outbound.len() == 1);
                    let c = end.exchange.counters();
                    assert_eq!(c.outbound_expired, 0);
                    // Two for each pair, and one for each message that was lost late.
                    assert!(
                        c.diffie_hellman
                            < 6 * (c.agreements + c.proposals + c.negotiations_expired)
                    );
                }
            });
        }
    }
}

/// Waits until both ends use as many SAs as they have workers.
fn become_full(network: &mut Network, workers: [usize; 2]) {
    let of = |end: &Gateway| end.sas.get(&0).map_or(0, Vec::len);
    let until = network.now() + Duration::from_secs(60);
    while [0, 1].map(|end| of(network.end(end))) != workers {
        assert!(network.now() < until, "an SA is missing at {until}");
        network.run_until(network.now() + Duration::from_secs(1));
    }
}

#[test]
fn each_of_two_workers_gets_an_sa_and_keys_change_for_hours_and_none_is_ever_cut() {
    for workers in [[2, 2], [2, 1], [1, 2]] {
        for faults in [GOOD, FAR, BAD] {
            for traffic in [false, true] {
                for_seeds(0..20, |seed| {
                    let about = format!("{workers:?}, {faults:?}, {traffic}, seed {seed}");
                    let mut network = network_of(workers, &faults, traffic, seed);
                    network.run_until(seconds(60.0));
                    become_full(&mut network, workers);
                    network.run_until(seconds(2.0 * 3600.0));
                    assert!(network.is_up(), "{about}");
                    become_full(&mut network, workers);
                    let ends = network.ends().into_iter();
                    let counters: Vec<_> = ends.map(|end| end.exchange.counters()).collect();
                    let negotiated: u64 = counters.iter().map(|c| c.agreements).sum();
                    // Two pairs live for 300 to 375 seconds and what it takes to change over.
                    assert!((36..=90).contains(&negotiated), "{negotiated}, {about}");
                    for (end, c) in network.ends().into_iter().zip(&counters) {
                        end.check_counters();
                        assert!(end.inbound.len() <= 4 * end.most);
                        assert_eq!(c.outbound_expired, 0, "{about}");
                    }
                });
            }
        }
    }
}

#[test]
fn a_peer_that_restarts_is_followed_with_the_sas_of_all_workers() {
    for workers in [[2, 2], [2, 1]] {
        for (faults, traffic, limit) in [(GOOD, true, 10.0), (GOOD, false, 16.0), (BAD, true, 60.0)]
        {
            for_seeds(0..20, |seed| {
                let about = format!("{workers:?}, {faults:?}, {traffic}, seed {seed}");
                let mut network = network_of(workers, &faults, traffic, seed);
                let mut at = 1000.0;
                network.run_until(seconds(at));
                // Right after a negotiation, only traffic tells a peer that has restarted from one
                // that asks for more.
                let recent = Some(Duration::from_secs(13));
                while !traffic && network.end(0).exchange.status(0).unwrap().negotiated < recent {
                    at += 1.0;
                    network.run_until(seconds(at));
                }
                network.restart((seed % 2) as usize, 1000 + seed);
                network.run_until(seconds(at + limit));
                assert!(network.is_up(), "{about}");
                network.run_until(seconds(4000.0));
                assert!(network.is_up(), "{about}");
                become_full(&mut network, workers);
            });
        }
    }
}

#[test]
fn a_peer_that_restarts_is_followed() {
    for (faults, traffic, limit) in [
        (GOOD, true, 2.0),
        (GOOD, false, 8.0),
        (BAD, true, 40.0),
        (BAD, false, 60.0),
    ] {
        for_seeds(0..30, |seed| {
            let mut network = network(&faults, traffic, seed);
            network.run_until(seconds(1000.0));
            network.restart((seed % 2) as usize, 1000 + seed);
            network.run_until(seconds(1000.0 + limit));
            assert!(
                network.is_up(),
                "{faults:?}, traffic {traffic}, seed {seed}"
            );
            network.run_until(seconds(4000.0));
        });
    }
}

#[test]
fn a_peer_that_was_gone_for_an_hour_is_found_again() {
    for_seeds(0..20, |seed| {
        let mut network = network(&FAR, false, seed);
        network.run_until(seconds(100.0));
        network.cut(true);
        network.run_until(seconds(3700.0));
        for end in network.ends() {
            assert!(end.inbound.is_empty() && end.outbound.is_empty());
            // After the first failures one knock in 40 to 50 seconds.
            let c = end.exchange.counters();
            assert!((60..140).contains(&c.sent), "{c:?}");
        }
        network.cut(false);
        network.run_until(seconds(3700.0 + 60.0));
        assert!(network.is_up(), "seed {seed}");
        network.run_until(seconds(2.0 * 3600.0));
        assert!(network.is_up(), "seed {seed}");
    });
}

#[test]
fn short_lives_are_kept_too() {
    let quick = |local, remote| {
        let mut settings = short(local, remote, 1);
        settings.timers = Timers {
            sa_ttl: Duration::from_secs(4),
            negotiation_ttl: Duration::from_secs(1),
        };
        settings
    };
    for_seeds(0..10, |seed| {
        let ends = [
            Gateway::new(A, quick(A, B), seed),
            Gateway::new(B, quick(B, A), seed + 100),
        ];
        let mut network = Network::new(ends, &GOOD, seed % 2 == 0, seed);
        network.run_until(seconds(1000.0));
        assert!(network.is_up());
    });
}
