//! Floods of spoofed messages, from an attacker that sends with the peer's address and reads
//! nothing, and restarts: counted in packets that are lost.

use std::net::IpAddr;
use std::time::Duration;

use tare_gateway::exchange::{DropReason, Settings, Timers};
use tare_sim::{Instant, NodeId, Testbed};

use crate::noise::message;
use crate::pair::{deliver, route, settings, unmarked, Gateway, A, B};
use crate::simulation::{Datagram, GOOD};
use crate::vita::Vita;

const KINDS: [&str; 4] = ["knock", "challenge", "proposal", "agreement"];
/// Between packets of a host.
const PACKETS: Duration = Duration::from_millis(10);
const TIMERS: Timers = Timers {
    sa_ttl: Duration::from_secs(20),
    negotiation_ttl: Duration::from_secs(5),
};

/// The other end of the route from a gateway at [`A`].
#[derive(Clone, Copy)]
enum Peer {
    Tare(NodeId<Gateway>),
    Vita(NodeId<Vita>),
}

struct Route {
    testbed: Testbed<Datagram>,
    gateway: NodeId<Gateway>,
    peer: Peer,
}

fn gateway(local: IpAddr, remote: IpAddr, workers: usize, seed: u64) -> Gateway {
    let settings = Settings {
        timers: TIMERS,
        outbound_sas: workers,
        ..settings(vec![route(0, local, remote)])
    };
    Gateway::new(local, settings, seed)
}

impl Route {
    fn new(is_vita: bool, workers: usize, seed: u64) -> Route {
        let mut testbed = Testbed::new(seed);
        let end = testbed.add(gateway(A, B, workers, 2 * seed));
        let peer = if is_vita {
            let peer = testbed.add(Vita::new(B, A, TIMERS, 2 * seed + 1));
            testbed.connect(end, peer, &GOOD);
            Peer::Vita(peer)
        } else {
            let peer = testbed.add(gateway(B, A, workers, 2 * seed + 1));
            testbed.connect(end, peer, &GOOD);
            Peer::Tare(peer)
        };
        send_packets(&mut testbed, Instant::ZERO, end, peer);
        Route {
            testbed,
            gateway: end,
            peer,
        }
    }

    fn run_for(&mut self, time: f64) {
        let end = self.testbed.now() + Duration::from_secs_f64(time);
        self.testbed.run_until(end);
    }

    /// Packets that the gateway and its peer received, and could not send or open.
    fn counted(&self) -> [(u64, u64); 2] {
        let gateway = self.testbed.node(self.gateway);
        let peer = match self.peer {
            Peer::Tare(peer) => {
                let peer = self.testbed.node(peer);
                (peer.packets, peer.packets_lost)
            }
            Peer::Vita(peer) => {
                let peer = self.testbed.node(peer);
                (peer.packets, peer.packets_lost)
            }
        };
        [(gateway.packets, gateway.packets_lost), peer]
    }

    /// The packets lost each way while this happens.
    fn lost_in(&mut self, happening: impl FnOnce(&mut Route)) -> [u64; 2] {
        let before = self.counted();
        happening(self);
        let after = self.counted();
        [0, 1].map(|end| after[end].1 - before[end].1)
    }

    /// Spoofed messages of each of these kinds, at both ends where the peer is a Tare, and nothing
    /// else lost or delayed.
    fn flood(&mut self, kinds: [bool; 4], per_second: usize, time: f64) {
        let until = self.testbed.now() + Duration::from_secs_f64(time);
        let now = self.testbed.now();
        let what = Spoofed::different(kinds, per_second / 1000);
        spoof(&mut self.testbed, now, self.gateway, B, what, until);
        if let Peer::Tare(peer) = self.peer {
            spoof(&mut self.testbed, now, peer, A, what, until);
        }
        self.run_for(time);
    }
}

/// Each host sends a packet every [`PACKETS`].
fn send_packets(
    testbed: &mut Testbed<Datagram>,
    at: Instant,
    gateway: NodeId<Gateway>,
    peer: Peer,
) {
    testbed.at(at, move |testbed| {
        testbed.act(gateway, |end, _, out| {
            if !end.is_silent {
                end.send_packet(out);
            }
        });
        match peer {
            Peer::Tare(peer) => testbed.act(peer, |end, _, out| end.send_packet(out)),
            Peer::Vita(peer) => testbed.act(peer, |end, _, out| end.send_packet(out)),
        }
        send_packets(testbed, at + PACKETS, gateway, peer);
    });
}

/// Messages of an attacker.
#[derive(Clone, Copy)]
struct Spoofed {
    kinds: [bool; 4],
    /// Of each kind, so many per millisecond.
    each: usize,
    /// The number of different ones, which come in turn.
    different: u64,
    /// The number of times that each is sent in a row.
    copies: u64,
    /// The number of those sent.
    sent: u64,
}

impl Spoofed {
    fn different(kinds: [bool; 4], each: usize) -> Spoofed {
        Spoofed {
            kinds,
            each,
            different: u64::MAX,
            copies: 1,
            sent: 0,
        }
    }

    /// Fills in what each message has of its own.
    fn fill(&mut self, body: &mut [u8; 80]) {
        let n = (self.sent / self.copies) % self.different;
        self.sent += 1;
        // No seed of an end: the peer's nonce is not to be among them.
        let mut random = tare_sim::Random::new(n ^ 1 << 40);
        random.fill(body);
    }
}

/// Each millisecond, what there is of each of the kinds.
fn spoof(
    testbed: &mut Testbed<Datagram>,
    at: Instant,
    target: NodeId<Gateway>,
    from: IpAddr,
    mut what: Spoofed,
    until: Instant,
) {
    if at >= until {
        return;
    }
    testbed.at(at, move |testbed| {
        testbed.act(target, |end, now, out| {
            let mut aead = b"aes-gcm-16-icv".to_vec();
            aead.resize(32, 0);
            let mut body = [0; 80];
            let (version, kinds) = ([0, 0, 0, 5], what.kinds);
            for _ in 0..what.each {
                for kind in (0..4).filter(|kind| kinds[*kind]) {
                    what.fill(&mut body);
                    let parts: &[&[u8]] = match kind {
                        0 => &[&version],
                        1 => &[&version, &aead, &body[..32]],
                        _ => &[&body],
                    };
                    let message = message(1001, 11 + kind as u8, parts);
                    end.receive(now, from, &message);
                }
            }
            end.send_all(out);
        });
        let next = at + Duration::from_millis(1);
        spoof(testbed, next, target, from, what, until);
    });
}

fn one(kind: usize) -> [bool; 4] {
    std::array::from_fn(|n| n == kind)
}

/// The loss of a flood, of each kind alone and of all together.
fn floods(is_vita: bool, per_second: usize, time: f64, seeds: u64) {
    let kinds = (0..4).map(one).chain([[true; 4]]);
    let mut bad = Vec::new();
    for (n, kinds) in kinds.enumerate() {
        for seed in 0..seeds {
            let mut route = Route::new(is_vita, 1, seed);
            route.run_for(10.0);
            let lost = route.lost_in(|route| route.flood(kinds, per_second, time));
            let c = route.testbed.node(route.gateway).exchange.counters();
            // A peer that makes marks is not taken for one that does not.
            assert!(is_vita || c.challenges <= c.negotiations, "{c:?}");
            let after = route.lost_in(|route| route.run_for(30.0));
            if lost != [0, 0] || after != [0, 0] {
                let kind = KINDS.get(n).unwrap_or(&"all");
                bad.push(format!("{kind}, seed {seed}: {lost:?}, later {after:?}"));
            }
        }
    }
    assert!(bad.is_empty(), "packets lost: {bad:#?}");
}

#[test]
fn spoofed_messages_cost_no_packet() {
    floods(false, 50_000, 13.0, 1);
}

#[test]
fn spoofed_messages_cost_no_packet_with_a_peer_that_keeps_to_the_rules() {
    floods(true, 50_000, 13.0, 1);
}

#[test]
#[ignore = "the whole minute of several runs: `cargo test --release -- --ignored a_minute`"]
fn a_minute_of_spoofed_messages_costs_no_packet() {
    for is_vita in [false, true] {
        floods(is_vita, 50_000, 60.0, 1);
    }
}

/// The peer does not begin, so the gateway has to find its challenge among forged ones.
#[test]
fn the_peer_s_challenge_is_found_among_forged_ones() {
    for seed in 0..10 {
        for is_vita in [true, false] {
            let mut route = Route::new(is_vita, 1, seed);
            if let Peer::Vita(peer) = route.peer {
                route.testbed.node_mut(peer).is_passive = true;
            }
            let at = route.testbed.now();
            let (gateway, until) = (route.gateway, at + Duration::from_secs(6));
            let what = Spoofed::different(one(1), 50);
            spoof(&mut route.testbed, at, gateway, B, what, until);
            route.run_for(6.0);
            let gateway = route.testbed.node(gateway);
            let c = gateway.exchange.counters();
            assert!(!gateway.outbound.is_empty(), "seed {seed}: {c:?}");
            // Two operations for each challenge that is answered, and four agreements.
            let most = 2 * (8 + 50 * 6) + 8;
            assert!(c.diffie_hellman < most, "seed {seed}: {c:?}");
            assert_eq!(c.negotiations_expired, 0, "seed {seed}: {c:?}");
        }
    }
}

/// An attacker repeats its challenges, as a peer does. They come at any time after a knock, and the
/// peer's a round trip after each.
#[test]
fn the_peer_s_challenge_is_found_among_repeated_ones() {
    let (mut late, mut never) = (Vec::new(), Vec::new());
    for different in [1, 10, 100, 300, 480, 600, 1000, 4000, 20_000, u64::MAX] {
        for (copies, seed) in [1, 2, 3, 8].into_iter().zip(0..) {
            let mut route = Route::new(true, 1, seed);
            if let Peer::Vita(peer) = route.peer {
                route.testbed.node_mut(peer).is_passive = true;
            }
            let at = route.testbed.now();
            let what = Spoofed {
                different,
                copies,
                ..Spoofed::different(one(1), 50)
            };
            let (gateway, until) = (route.gateway, at + Duration::from_secs(20));
            spoof(&mut route.testbed, at, gateway, B, what, until);
            let mut seconds = 0;
            while route.testbed.node(gateway).outbound.is_empty() && seconds < 20 {
                route.run_for(1.0);
                seconds += 1;
            }
            let c = route.testbed.node(gateway).exchange.counters();
            let about = format!("{different} {copies} times: {seconds} s, {c:?}");
            match seconds {
                0..=6 => {}
                7..20 => late.push(about),
                _ => never.push(about),
            }
            // Those that are answered are limited, whatever comes.
            assert!(c.challenges <= 10 + 50 * seconds, "{c:?}");
        }
    }
    assert!(never.is_empty(), "{never:#?}");
    // About 480 are the most that can come after every knock, no more often than a peer's.
    assert!(late.len() <= 4, "{late:#?}");
}

/// The messages of so many negotiations of two gateways with the preshared key of the route, with
/// the address of the one that sent each.
fn recorded(negotiations: u64) -> Vec<(IpAddr, Vec<u8>)> {
    let mut recorded = Vec::new();
    for n in 0..negotiations {
        let mut ends = [
            Gateway::single(A, B, 1 << 32 | n),
            Gateway::single(B, A, 1 << 33 | n),
        ];
        let now = Instant::ZERO + Duration::from_secs(1);
        ends[0].tick(now);
        while let Some(from) = ends.iter().position(|end| !end.sent.is_empty()) {
            for message in ends[from].take() {
                let address = ends[from].address;
                ends[1 - from].receive(now, address, &message);
                recorded.push((address, message));
            }
        }
        assert!(crate::pair::carries(&ends[0], &ends[1], 0));
    }
    recorded
}

/// Sends recorded messages to both ends, in turn, as if each came from its peer: in their own
/// direction or back to where they came from.
fn replay(route: &mut Route, messages: &[Vec<u8>], per_ms: usize, until: Instant) {
    let Peer::Tare(peer) = route.peer else {
        panic!("a recording is of a Tare");
    };
    let mut next = 0;
    let mut now = route.testbed.now();
    while now < until {
        for (end, from) in [(route.gateway, B), (peer, A)] {
            route.testbed.act(end, |end, now, out| {
                for n in 0..per_ms {
                    let message = &messages[(next + n) % messages.len()];
                    end.receive(now, from, message);
                }
                end.send_all(out);
            });
        }
        next += per_ms;
        now += Duration::from_millis(1);
        route.testbed.run_until(now);
    }
}

/// An attacker that has recorded negotiations of the past, and reads nothing now, changes as little
/// as one that has not.
#[test]
fn recorded_messages_cost_no_packet() {
    let mut bad = Vec::new();
    // Types, and messages per millisecond to each end.
    for (kinds, per_ms) in [
        (&[11][..], 30),
        (&[12], 1),
        (&[12], 10),
        (&[13], 5),
        (&[14], 5),
        (&[11, 12, 13, 14], 20),
    ] {
        for negotiations in [1, 40] {
            let is_kind = |(_, message): &(IpAddr, Vec<u8>)| kinds.contains(&message[4]);
            let messages = recorded(negotiations).into_iter().filter(is_kind);
            let messages: Vec<_> = messages.map(|(_, message)| message).collect();
            let mut route = Route::new(false, 1, negotiations);
            route.run_for(5.0);
            let lost = route.lost_in(|route| {
                // Longer than the life of an SA.
                let until = route.testbed.now() + Duration::from_secs(25);
                replay(route, &messages, per_ms, until);
            });
            let after = route.lost_in(|route| route.run_for(30.0));
            let c = route.testbed.node(route.gateway).exchange.counters();
            if lost != [0, 0] || after != [0, 0] {
                bad.push(format!(
                    "types {kinds:?} of {negotiations}, {per_ms}/ms: {lost:?}, later {after:?}: {c:?}"
                ));
            }
            // Each is answered as if it were the only one.
            assert!(kinds != [11] || c.negotiations_expired == 0, "{c:?}");
            // What was recorded is not worth a handshake, but for challenges: two each.
            let most = 4 * (c.negotiations + c.proposals) + 2 * 50 * 25;
            assert!(c.diffie_hellman < most, "{c:?}");
        }
    }
    assert!(bad.is_empty(), "packets lost: {bad:#?}");
}

/// An attacker that uses many routes of one peer gets as many answers as for a few, and another
/// peer gets its own, unless the keyed hash puts both into the same of 256 places.
#[test]
fn one_source_has_limits_over_all_its_routes() {
    let others = (9..17).map(|n| IpAddr::from([203, 0, 113, n]));
    let mut keys: Vec<_> = (0..1000).map(|n| route(n, A, B)).collect();
    keys.extend(
        others
            .clone()
            .zip(1000..)
            .map(|(other, n)| route(n, A, other)),
    );
    let mut end = Gateway::new(A, settings(keys), 1);
    let mut now = Instant::ZERO + Duration::from_secs(1);
    let version = [0, 0, 0, 5];
    for _ in 0..20 {
        now += Duration::from_millis(50);
        for n in 0..1000 {
            end.receive(now, B, &message(1001 + n, 11, &[&version]));
        }
    }
    // A thousand at once, and a thousand per second.
    let answered = end.exchange.counters().knocks;
    assert!((1950..=2001).contains(&answered), "{answered}");
    for (other, n) in others.zip(2001..) {
        end.receive(now, other, &message(n, 11, &[&version]));
    }
    // More than two of eight in that place: once in 300,000 runs.
    let own = end.exchange.counters().knocks - answered;
    assert!((6..=8).contains(&own), "{own} of 8 others");
}

/// Two gateways with SAs, and 50,000 forged proposals per second that arrive at the first.
struct Forged {
    gateway: Gateway,
    peer: Gateway,
    random: tare_sim::Random,
    now: Instant,
}

impl Forged {
    fn new() -> Forged {
        let (mut a, mut b) = (Gateway::single(A, B, 1), Gateway::single(B, A, 2));
        let now = Instant::ZERO + Duration::from_secs(1);
        a.tick(now);
        deliver(now, &mut a, &mut b);
        let random = tare_sim::Random::new(7);
        Forged {
            gateway: a,
            peer: b,
            random,
            now,
        }
    }

    /// Delivers what the two want sent, without marks.
    fn deliver_unmarked(&mut self) {
        let now = self.now;
        self.peer.tick(now);
        for message in self.peer.take() {
            self.gateway.receive(now, B, &unmarked(&message));
        }
        self.gateway.tick(now);
        for message in self.gateway.take() {
            self.peer.receive(now, A, &unmarked(&message));
        }
    }

    /// A millisecond of it. Where packets of the peer arrive, that is reported once per second.
    fn step(&mut self, per_ms: usize, is_heard: bool) {
        self.now += Duration::from_millis(1);
        for _ in 0..per_ms {
            let mut body = [0; 80];
            self.random.fill(&mut body);
            let forged = message(1001, 13, &[&body]);
            self.gateway.receive(self.now, B, &forged);
        }
        let second = Duration::from_secs(1).as_nanos() as u64;
        let is_due = self.now.as_nanos().is_multiple_of(second);
        if is_heard && is_due && self.gateway.exchange.unconfirmed(0) {
            let (now, spi) = (self.now, *self.gateway.inbound.keys().next().unwrap());
            self.gateway
                .with(|exchange, events| exchange.used(now, spi, events));
        }
    }

    /// The proposals that a hash and a decryption were spent on.
    fn looks(&self) -> u64 {
        let counters = self.gateway.exchange.counters();
        counters.dropped(DropReason::Authentication)
    }
}

/// Marked proposals are what such a peer sends, so few others are looked at, a second after the
/// first forgery; where it is silent all are.
#[test]
fn forged_proposals_cost_little_while_packets_of_the_peer_arrive() {
    for is_heard in [true, false] {
        let mut forged = Forged::new();
        (0..1100).for_each(|_| forged.step(50, is_heard));
        let before = forged.looks();
        // Longer than the time for which the route is watched.
        (0..30_000).for_each(|_| forged.step(50, is_heard));
        let looks = forged.looks() - before;
        match is_heard {
            true => assert!((29_000..30_200).contains(&looks), "{looks}"),
            false => assert_eq!(looks, 50 * 30_000),
        }
    }
    // It is not watched for ever.
    let mut forged = Forged::new();
    (0..2000).for_each(|_| forged.step(50, true));
    assert!(forged.gateway.exchange.unconfirmed(0));
    (0..11_000).for_each(|_| forged.step(0, true));
    assert!(!forged.gateway.exchange.unconfirmed(0));
}

/// A peer that made marks is replaced by one that makes none: at once, or as soon as packets under
/// the old SAs have been missing for the time of a negotiation. From then on its proposals are
/// found among forged ones whether its packets arrive or not.
#[test]
fn a_peer_that_makes_no_marks_takes_the_place_of_one_that_did() {
    for (per_ms, within) in [(0, 100), (50, 7000)] {
        let mut forged = Forged::new();
        (0..3000).for_each(|_| forged.step(per_ms, true));
        forged.peer = Gateway::single(B, A, 3);
        let proposals = |forged: &Forged| forged.gateway.exchange.counters().proposals;
        let before = proposals(&forged);
        let mut took = 0;
        while proposals(&forged) == before {
            took += 1;
            assert!(took <= within, "{per_ms} per ms");
            forged.step(per_ms, false);
            forged.deliver_unmarked();
        }
        (0..3000).for_each(|_| forged.step(per_ms, true));
        forged.deliver_unmarked();
        let now = forged.now;
        forged
            .peer
            .with(|exchange, events| exchange.renew(now, 0, events));
        let before = proposals(&forged);
        (0..100).for_each(|_| {
            forged.step(per_ms, true);
            forged.deliver_unmarked();
        });
        assert_eq!(proposals(&forged), before + 1, "{per_ms} per ms");
    }
}

/// Negotiations fail, but packets of the peer arrive: it is there, and asked without a pause.
#[test]
fn there_is_no_back_off_while_packets_of_the_peer_arrive() {
    let negotiations = |is_heard: bool| {
        let (mut a, mut b) = (Gateway::single(A, B, 1), Gateway::single(B, A, 2));
        let mut now = Instant::ZERO + Duration::from_secs(1);
        a.tick(now);
        deliver(now, &mut a, &mut b);
        let spi = *a.inbound.keys().next().unwrap();
        let until = now + Duration::from_secs(590);
        let before = a.exchange.counters().negotiations;
        while now < until {
            now += Duration::from_millis(100);
            a.tick(now);
            a.take();
            if is_heard && a.exchange.unconfirmed(0) {
                a.with(|exchange, events| exchange.used(now, spi, events));
            }
        }
        a.exchange.counters().negotiations - before
    };
    // New keys are wanted after 300 to 375 of 590 s, and a negotiation takes 5.
    let (with, without) = (negotiations(true), negotiations(false));
    assert!((40..=60).contains(&with), "{with}");
    assert!(without < 15, "{without}");
}

/// A knock without a mark, or with a wrong one, is nothing that the peer did.
#[test]
fn forged_knocks_put_nothing_off_and_the_peer_s_do() {
    let right = |knock: &[u8]| knock.to_vec();
    let wrong = |knock: &[u8]| {
        let mut knock = knock.to_vec();
        knock[7] ^= 1;
        knock
    };
    let switched = |change: &dyn Fn(&[u8]) -> Vec<u8>| {
        let (mut a, mut b) = (Gateway::single(A, B, 1), Gateway::single(B, A, 2));
        let start = Instant::ZERO + Duration::from_secs(1);
        a.tick(start);
        let knock = change(&a.sent[0].1);
        deliver(start, &mut a, &mut b);
        b.tick(start);
        deliver(start, &mut a, &mut b);
        a.with(|exchange, events| exchange.renew(start, 0, events));
        deliver(start, &mut a, &mut b);
        let before = b.outbound[&0].spi;
        let mut now = start;
        while b.outbound[&0].spi == before && now < start + Duration::from_secs(60) {
            now += Duration::from_millis(100);
            b.receive(now, A, &knock);
            b.tick(now);
        }
        now.since(start).as_secs_f64()
    };
    for change in [&unmarked as &dyn Fn(&[u8]) -> Vec<u8>, &wrong] {
        assert!(
            (7.4..7.7).contains(&switched(change)),
            "{}",
            switched(change)
        );
    }
    assert!(switched(&right) > 15.0, "{}", switched(&right));
}

/// Packets lost when the gateway restarts, each way, and in the minute after.
fn restart(is_vita: bool, workers: usize, seed: u64) -> ([u64; 2], [u64; 2]) {
    let mut route = Route::new(is_vita, workers, seed);
    route.run_for(30.0 + seed as f64 * 0.77);
    let outage = route.lost_in(|route| {
        let mut end = gateway(A, B, workers, 1000 + seed);
        end.packets_lost = route.testbed.node(route.gateway).packets_lost;
        route.testbed.restart(route.gateway, end);
        route.run_for(if is_vita { 10.0 } else { 1.5 });
    });
    (outage, route.lost_in(|route| route.run_for(60.0)))
}

/// Its peer keeps to the rules: 7.5 s until it uses new keys, and up to 2 s until its data plane
/// does. Nothing is lost later.
#[test]
fn a_restart_costs_what_the_peer_takes_and_nothing_later() {
    for workers in [1, 2] {
        for seed in 0..40 {
            let (outage, later) = restart(true, workers, seed);
            let about = format!("{workers} workers, seed {seed}: {outage:?}, then {later:?}");
            assert!(outage[0] <= 950 && outage[1] <= 205, "{about}");
            assert_eq!(later, [0, 0], "{about}");
            let (outage, later) = restart(false, workers, seed);
            let about = format!("{workers} workers, seed {seed}: {outage:?}, then {later:?}");
            assert!(outage[0] <= 10 && outage[1] <= 10, "{about}");
            assert_eq!(later, [0, 0], "{about}");
        }
    }
}

/// Only the peer's host sends, so nothing but a dummy packet tells the peer which SAs are used.
#[test]
fn a_peer_with_nothing_to_receive_follows_a_restart_at_once() {
    for seed in 0..40 {
        let mut route = Route::new(false, 1, seed);
        route.testbed.node_mut(route.gateway).is_silent = true;
        route.run_for(30.0 + seed as f64 * 0.77);
        let mut end = gateway(A, B, 1, 1000 + seed);
        end.is_silent = true;
        route.testbed.restart(route.gateway, end);
        route.run_for(1.5);
        let later = route.lost_in(|route| route.run_for(60.0));
        assert_eq!(later, [0, 0], "seed {seed}");
        let [(packets, lost), (dummies, _)] = route.counted();
        assert!(lost <= 10 && packets > 6000, "seed {seed}: {lost} lost");
        // One at each start: the answer to the first comes before the next.
        assert!((2..=3).contains(&dummies), "seed {seed}: {dummies} dummies");
    }
}
