//! Two gateways joined by a network that loses, doubles, delays and reorders, for hours of virtual
//! time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::IpAddr;
use std::time::Duration;

use tare_gateway::exchange::{Settings, Timers};
use tare_sim::Instant;

use crate::pair::{carries, route, seconds, settings, Gateway, Random, A, B};

/// What the network does to messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    /// In a thousand.
    pub(crate) lost: u64,
    /// In a thousand.
    pub(crate) doubled: u64,
    /// Any delay between these, so that messages overtake each other.
    pub(crate) delay_ms: (u64, u64),
}

/// A message: when it arrives, how many left before it, who receives it.
type UnderWay = (Instant, u64, usize, Vec<u8>);

pub(crate) struct Network {
    pub(crate) now: Instant,
    pub(crate) ends: [Gateway; 2],
    faults: Faults,
    random: Random,
    under_way: BinaryHeap<Reverse<UnderWay>>,
    departed: u64,
    /// Whether there is traffic, and somebody tells the exchange of it.
    traffic: bool,
    next_traffic: Instant,
    /// For each direction, whether it has carried before, and must now.
    up: [bool; 2],
}

impl Network {
    pub(crate) fn new(ends: [Gateway; 2], faults: Faults, traffic: bool, seed: u64) -> Network {
        Network {
            now: Instant::ZERO,
            ends,
            faults,
            random: Random(seed),
            under_way: BinaryHeap::new(),
            departed: 0,
            traffic,
            next_traffic: seconds(0.1),
            up: [false; 2],
        }
    }

    pub(crate) fn run_until(&mut self, end: Instant) {
        self.collect();
        loop {
            let arrival = self
                .under_way
                .peek()
                .map_or(Instant::NEVER, |Reverse((at, ..))| *at);
            let deadlines = self.ends.iter().map(|end| end.exchange.next_deadline());
            let next = deadlines.min().unwrap().min(arrival).min(self.next_traffic);
            if next > end {
                self.now = end;
                return;
            }
            self.now = self.now.max(next);
            self.step(arrival <= self.now);
            self.check();
        }
    }

    fn step(&mut self, arrival: bool) {
        for end in &mut self.ends {
            if end.exchange.next_deadline() <= self.now {
                end.tick(self.now);
                assert!(
                    end.exchange.next_deadline() > self.now,
                    "a tick leaves nothing undone"
                );
            }
        }
        if arrival {
            if let Some(Reverse((_, _, to, message))) = self.under_way.pop() {
                let from = self.ends[1 - to].address;
                self.ends[to].receive(self.now, from, &message);
            }
        }
        if self.next_traffic <= self.now {
            self.next_traffic = self.now + Duration::from_secs(1);
            for from in 0..2 {
                self.packet(from);
            }
        }
        self.collect();
    }

    fn collect(&mut self) {
        for from in 0..2 {
            for message in self.ends[from].take() {
                self.depart(1 - from, message);
            }
        }
    }

    /// One end sends a packet to the other, whose data plane tells its exchange.
    fn packet(&mut self, from: usize) {
        let lost = self.random.below(1000) < self.faults.lost;
        let up = carries(&self.ends[from], &self.ends[1 - from], 0);
        if self.traffic && up && !lost {
            let sas = &self.ends[from].sas[&0];
            let worker = match sas.len() {
                1 => 0,
                n => self.random.below(n as u64) as usize,
            };
            let spi = sas[worker].spi;
            let now = self.now;
            self.ends[1 - from].with(|exchange, events| exchange.used(now, spi, events));
        }
    }

    fn depart(&mut self, to: usize, message: Vec<u8>) {
        let copies = 1 + u64::from(self.random.below(1000) < self.faults.doubled);
        for _ in 0..copies {
            let (least, most) = self.faults.delay_ms;
            let delay = least + self.random.below(most - least + 1);
            if self.random.below(1000) >= self.faults.lost {
                let at = self.now + Duration::from_millis(delay);
                self.departed += 1;
                self.under_way
                    .push(Reverse((at, self.departed, to, message.clone())));
            }
        }
    }

    /// A direction that has carried once carries for ever: what one end sends under, the other
    /// accepts.
    fn check(&mut self) {
        for from in 0..2 {
            let up = carries(&self.ends[from], &self.ends[1 - from], 0);
            if self.faults.lost == 1000 {
                // In time all lives end, and none that is sent under ends after the one that
                // accepts.
                assert!(up || self.ends[from].outbound.is_empty() || !self.up[from]);
            } else {
                assert!(
                    up || !self.up[from],
                    "direction {from} is cut at {}",
                    self.now
                );
            }
            self.up[from] = up;
        }
    }

    /// Both directions carry.
    pub(crate) fn is_up(&self) -> bool {
        self.up == [true; 2]
    }

    /// One end loses everything and begins anew.
    pub(crate) fn restart(&mut self, which: usize, seed: u64) {
        let (local, remote) = (self.ends[which].address, self.ends[1 - which].address);
        let settings = short(local, remote, self.ends[which].most);
        self.ends[which] = Gateway::new(local, settings, seed);
        self.up = [false; 2];
    }

    /// The network loses everything, or as much as before.
    pub(crate) fn cut(&mut self, cut: bool, faults: Faults) {
        self.faults = faults;
        if cut {
            self.faults.lost = 1000;
        }
    }
}

fn short(local: IpAddr, remote: IpAddr, outbound_sas: usize) -> Settings {
    Settings {
        outbound_sas,
        ..settings(vec![route(0, local, remote)])
    }
}

pub(crate) fn network(faults: Faults, traffic: bool, seed: u64) -> Network {
    network_of([1, 1], faults, traffic, seed)
}

/// Ends with so many workers.
fn network_of(workers: [usize; 2], faults: Faults, traffic: bool, seed: u64) -> Network {
    let ends = [
        Gateway::new(A, short(A, B, workers[0]), 2 * seed),
        Gateway::new(B, short(B, A, workers[1]), 2 * seed + 1),
    ];
    Network::new(ends, faults, traffic, seed)
}

pub(crate) const GOOD: Faults = Faults {
    lost: 0,
    doubled: 0,
    delay_ms: (1, 1),
};

pub(crate) const FAR: Faults = Faults {
    lost: 10,
    doubled: 10,
    delay_ms: (100, 400),
};

pub(crate) const BAD: Faults = Faults {
    lost: 300,
    doubled: 200,
    delay_ms: (1, 700),
};

#[test]
fn keys_change_for_hours_and_no_direction_is_ever_cut() {
    for faults in [GOOD, FAR, BAD] {
        for traffic in [false, true] {
            for seed in 0..40 {
                let mut network = network(faults, traffic, seed);
                network.run_until(seconds(60.0));
                assert!(network.is_up(), "{faults:?}, seed {seed}");
                network.run_until(seconds(2.0 * 3600.0));
                assert!(network.is_up(), "{faults:?}, seed {seed}");
                let negotiated: u64 = network
                    .ends
                    .iter()
                    .map(|end| end.exchange.counters().agreements)
                    .sum();
                // Each pair lives for 300 to 375 seconds and what it takes to change over.
                assert!(
                    (18..=50).contains(&negotiated),
                    "{negotiated}, {faults:?}, seed {seed}"
                );
                for end in &network.ends {
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
            }
        }
    }
}

/// Waits until both ends use as many SAs as they have workers.
fn become_full(network: &mut Network, workers: [usize; 2]) {
    let of = |end: &Gateway| end.sas.get(&0).map_or(0, Vec::len);
    let until = network.now + Duration::from_secs(60);
    while [0, 1].map(|end| of(&network.ends[end])) != workers {
        assert!(network.now < until, "an SA is missing at {until}");
        network.run_until(network.now + Duration::from_secs(1));
    }
}

#[test]
fn each_of_two_workers_gets_an_sa_and_keys_change_for_hours_and_none_is_ever_cut() {
    for workers in [[2, 2], [2, 1], [1, 2]] {
        for faults in [GOOD, FAR, BAD] {
            for traffic in [false, true] {
                for seed in 0..20 {
                    let about = format!("{workers:?}, {faults:?}, {traffic}, seed {seed}");
                    let mut network = network_of(workers, faults, traffic, seed);
                    network.run_until(seconds(60.0));
                    become_full(&mut network, workers);
                    network.run_until(seconds(2.0 * 3600.0));
                    assert!(network.is_up(), "{about}");
                    become_full(&mut network, workers);
                    let ends = network.ends.iter();
                    let counters: Vec<_> = ends.map(|end| end.exchange.counters()).collect();
                    let negotiated: u64 = counters.iter().map(|c| c.agreements).sum();
                    // Two pairs live for 300 to 375 seconds and what it takes to change over.
                    assert!((36..=90).contains(&negotiated), "{negotiated}, {about}");
                    for (end, c) in network.ends.iter().zip(&counters) {
                        end.check_counters();
                        assert!(end.inbound.len() <= 4 * end.most);
                        assert_eq!(c.outbound_expired, 0, "{about}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_peer_that_restarts_is_followed_with_the_sas_of_all_workers() {
    for workers in [[2, 2], [2, 1]] {
        for (faults, traffic, limit) in [(GOOD, true, 10.0), (GOOD, false, 16.0), (BAD, true, 60.0)]
        {
            for seed in 0..20 {
                let about = format!("{workers:?}, {faults:?}, {traffic}, seed {seed}");
                let mut network = network_of(workers, faults, traffic, seed);
                let mut at = 1000.0;
                network.run_until(seconds(at));
                // Right after a negotiation, only traffic tells a peer that has restarted from one
                // that asks for more.
                let recent = Some(Duration::from_secs(13));
                while !traffic && network.ends[0].exchange.status(0).unwrap().negotiated < recent {
                    at += 1.0;
                    network.run_until(seconds(at));
                }
                network.restart((seed % 2) as usize, 1000 + seed);
                network.run_until(seconds(at + limit));
                assert!(network.is_up(), "{about}");
                network.run_until(seconds(4000.0));
                assert!(network.is_up(), "{about}");
                become_full(&mut network, workers);
            }
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
        for seed in 0..30 {
            let mut network = network(faults, traffic, seed);
            network.run_until(seconds(1000.0));
            network.restart((seed % 2) as usize, 1000 + seed);
            network.run_until(seconds(1000.0 + limit));
            assert!(
                network.is_up(),
                "{faults:?}, traffic {traffic}, seed {seed}"
            );
            network.run_until(seconds(4000.0));
        }
    }
}

#[test]
fn a_peer_that_was_gone_for_an_hour_is_found_again() {
    for seed in 0..20 {
        let mut network = network(FAR, false, seed);
        network.run_until(seconds(100.0));
        network.cut(true, FAR);
        network.run_until(seconds(3700.0));
        for end in &network.ends {
            assert!(end.inbound.is_empty() && end.outbound.is_empty());
            // After the first failures one knock in 40 to 50 seconds.
            let c = end.exchange.counters();
            assert!((60..140).contains(&c.sent), "{c:?}");
        }
        network.cut(false, FAR);
        network.run_until(seconds(3700.0 + 60.0));
        assert!(network.is_up(), "seed {seed}");
        network.run_until(seconds(2.0 * 3600.0));
        assert!(network.is_up(), "seed {seed}");
    }
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
    for seed in 0..10 {
        let ends = [
            Gateway::new(A, quick(A, B), seed),
            Gateway::new(B, quick(B, A), seed + 100),
        ];
        let mut network = Network::new(ends, GOOD, seed % 2 == 0, seed);
        network.run_until(seconds(1000.0));
        assert!(network.is_up());
    }
}
