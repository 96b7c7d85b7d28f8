//! Lives of SAs, many routes, other settings, and clocks.

use std::collections::HashSet;
use std::time::Duration;

use tare_gateway::exchange::{
    system_entropy, Error, Exchange, Negotiation, RouteKeys, Settings, Timers,
};
use tare_sim::{Instant, Random};

use crate::pair::{carries, deliver, route, seconds, settings, Gateway, A, B};
use crate::simulation::{network, Network, GOOD};

/// Both ends of the routes, up.
fn connected(a: &[RouteKeys], b: &[RouteKeys]) -> (Gateway, Gateway) {
    let mut a = Gateway::new(A, settings(a.to_vec()), 1);
    let mut b = Gateway::new(B, settings(b.to_vec()), 2);
    settle(seconds(1.0), &mut a, &mut b);
    (a, b)
}

/// Lets both do all they want to do at once.
fn settle(now: Instant, a: &mut Gateway, b: &mut Gateway) {
    while a.exchange.next_deadline() <= now || b.exchange.next_deadline() <= now {
        a.tick(now);
        b.tick(now);
        deliver(now, a, b);
    }
    deliver(now, a, b);
}

fn routes(n: usize, backwards: bool) -> Vec<RouteKeys> {
    let ends = if backwards { (B, A) } else { (A, B) };
    (0..n).map(|n| route(n, ends.0, ends.1)).collect()
}

#[test]
fn new_keys_are_negotiated_after_half_a_life_and_used_after_a_while() {
    let mut network = network(&GOOD, false, 1);
    network.run_until(seconds(20.0));
    let first = network.end(0).outbound[&0].spi;
    network.run_until(seconds(299.0));
    assert_eq!(network.end(0).outbound[&0].spi, first);
    let pairs = network.end(0).inbound.len();
    let mut at = 299.0;
    while network.end(0).inbound.len() == pairs {
        at += 0.1;
        network.run_until(seconds(at));
    }
    assert!((300.0..376.0).contains(&at), "{at}");
    assert_eq!(network.end(0).outbound[&0].spi, first);
    network.run_until(seconds(at + 7.3));
    assert_eq!(network.end(0).outbound[&0].spi, first);
    network.run_until(seconds(at + 7.6));
    assert_ne!(network.end(0).outbound[&0].spi, first);
    assert!(network.is_up());
    // The old inbound SAs end with their life and the time of a negotiation, and not before.
    network.run_until(seconds(604.0));
    assert_eq!(network.end(0).inbound.len(), pairs + 1);
    network.run_until(seconds(606.0));
    assert_eq!(network.end(0).inbound.len(), 1);
}

#[test]
fn proof_of_use_ends_the_wait() {
    let mut network = network(&GOOD, false, 1);
    network.run_until(seconds(20.0));
    network.with(0, |exchange, events| {
        exchange.renew(seconds(20.0), 0, events)
    });
    network.run_until(seconds(20.1));
    let (a, b) = (network.end(0), network.end(1));
    let status = |end: &Gateway| end.exchange.status(0).unwrap();
    assert_eq!((status(a).queued.len(), status(b).queued.len()), (1, 1));
    // The initiator knows that its peer has it all; the responder does not.
    assert!(!a.exchange.unconfirmed(0) && b.exchange.unconfirmed(0));
    let new = status(b).inbound.last().unwrap().spi;
    network.with(1, |exchange, events| {
        exchange.used(seconds(20.2), new, events)
    });
    let b = network.end(1);
    assert!(!b.exchange.unconfirmed(0) && status(b).queued.is_empty());
    assert!(carries(b, network.end(0), 0));
}

/// The peer did not answer and does again: it has restarted, and has none of the earlier SAs.
#[test]
fn a_packet_ends_the_wait_of_the_side_that_began_after_failures() {
    let (_, mut b) = connected(&routes(1, false), &routes(1, true));
    let mut a = Gateway::new(A, settings(routes(1, false)), 3);
    let mut now = seconds(100.0);
    b.with(|exchange, events| exchange.renew(now, 0, events));
    while b.exchange.status(0).unwrap().failures == 0 {
        now += Duration::from_millis(100);
        b.tick(now);
    }
    b.take();
    while a.inbound.is_empty() {
        now += Duration::from_millis(100);
        b.tick(now);
        deliver(now, &mut a, &mut b);
    }
    assert!(b.exchange.unconfirmed(0) && !carries(&b, &a, 0));
    let new = *b.exchange.status(0).unwrap().inbound.last().unwrap();
    b.with(|exchange, events| exchange.used(now, new.spi, events));
    assert!(carries(&b, &a, 0));
}

/// The agreement is lost and the peer goes on as it was: an SA that it does not have is not used.
#[test]
fn a_peer_seen_under_its_old_sa_is_not_sent_to_under_a_new_one() {
    let (mut a, mut b) = connected(&routes(1, false), &routes(1, true));
    let mut now = seconds(100.0);
    settle(now, &mut a, &mut b);
    a.with(|exchange, events| exchange.renew(now, 0, events));
    let knock = a.take_first();
    b.receive(now, A, &knock);
    a.receive(now, B, &b.sent.pop().unwrap().1);
    let proposal = a.take_first();
    b.receive(now, A, &proposal);
    b.take();
    // The initiator is not ticked: it never asks again. Its packets go on under the old SA.
    let old = (a.outbound[&0].spi, b.outbound[&0].spi);
    for _ in 0..60 {
        now += Duration::from_secs(1);
        b.with(|exchange, events| exchange.used(now, old.0, events));
        b.tick(now);
        assert_eq!(b.outbound[&0].spi, old.1);
    }
    // It falls silent, as one that has restarted would.
    now += Duration::from_secs(8);
    b.tick(now);
    assert_ne!(b.outbound[&0].spi, old.1);
}

/// All agreements of one side are lost for a while: what its proposals left there is replaced and
/// does not pile up.
#[test]
fn a_negotiation_begun_again_replaces_what_the_last_one_left() {
    let (mut a, mut b) = connected(&routes(1, false), &routes(1, true));
    let start = seconds(100.0);
    settle(start, &mut a, &mut b);
    let (before, offered) = (b.inbound.len(), b.exchange.counters().proposals);
    let mut now = start;
    a.with(|exchange, events| exchange.renew(now, 0, events));
    while now < start + Duration::from_secs(17) {
        a.tick(now);
        a.take()
            .iter()
            .for_each(|message| b.receive(now, A, message));
        b.tick(now);
        let answers = b.take();
        let heard = answers.iter().filter(|message| message[4] != 14);
        heard.for_each(|message| a.receive(now, B, message));
        assert!(b.inbound.len() <= before + 1);
        assert!(carries(&a, &b, 0) && carries(&b, &a, 0), "{now}");
        now += Duration::from_millis(50);
    }
    let c = b.exchange.counters();
    assert!(
        c.proposals >= offered + 3 && c.outbound_updated >= 2,
        "{c:?}"
    );
    let failures = a.exchange.status(0).unwrap().failures;
    assert!(failures >= 3, "{failures}");
    for _ in 0..600 {
        settle(now, &mut a, &mut b);
        assert!(carries(&a, &b, 0) && carries(&b, &a, 0), "{now}");
        now += Duration::from_millis(100);
    }
    assert_eq!(a.exchange.status(0).unwrap().failures, 0);
}

/// One pair of which the peer is known to have both, and an older one of which it is not.
#[test]
fn an_sa_that_the_peer_has_comes_before_one_that_it_may_not_have() {
    let (mut a, mut b) = connected(&routes(1, false), &routes(1, true));
    let mut now = seconds(100.0);
    settle(now, &mut a, &mut b);
    a.with(|exchange, events| exchange.renew(now, 0, events));
    b.with(|exchange, events| exchange.renew(now, 0, events));
    for _ in 0..2 {
        // Knocks, then challenges, both ways; then each has its proposal to send.
        let messages = (a.take_first(), b.take_first());
        b.receive(now, A, &messages.0);
        a.receive(now, B, &messages.1);
    }
    let proposals = (a.take_first(), b.take_first());
    b.receive(now, A, &proposals.0);
    // That agreement is lost, and a second later the negotiation of the other side succeeds.
    b.take();
    let missing = b.exchange.status(0).unwrap().queued[0].spi;
    now += Duration::from_secs(1);
    a.receive(now, B, &proposals.1);
    let agreement = a.take().into_iter().find(|message| message[4] == 14);
    b.receive(now, A, &agreement.unwrap());
    assert_eq!(b.exchange.status(0).unwrap().queued.len(), 2);
    let before = b.outbound[&0].spi;
    for _ in 0..200 {
        now += Duration::from_millis(100);
        b.tick(now);
        assert!(b.exchange.next_deadline() > now);
        b.take();
        assert_ne!(b.outbound[&0].spi, missing);
        assert!(carries(&b, &a, 0));
    }
    assert_ne!(b.outbound[&0].spi, before);
}

#[test]
fn a_fifth_inbound_sa_takes_the_place_of_the_oldest() {
    let (mut a, mut b) = connected(&routes(1, false), &routes(1, true));
    let mut now = seconds(100.0);
    for _ in 0..20 {
        settle(now, &mut a, &mut b);
        let oldest = *a
            .exchange
            .status(0)
            .unwrap()
            .inbound
            .iter()
            .map(|sa| &sa.spi)
            .next()
            .unwrap();
        let full = a.inbound.len() == 4;
        a.with(|exchange, events| exchange.renew(now, 0, events));
        settle(now, &mut a, &mut b);
        assert!(a.inbound.len() <= 4);
        assert_eq!(full, !a.inbound.contains_key(&oldest));
        now += Duration::from_secs(10);
        assert!(carries(&a, &b, 0) && carries(&b, &a, 0));
    }
    assert!(a.exchange.counters().inbound_displaced >= 16);
}

/// As the control side does: it asks until the SA whose numbers run out is not used any more.
#[test]
fn new_keys_that_are_asked_for_again_and_again_are_negotiated_once() {
    for outbound_sas in [1, 2] {
        let gateway = |address, backwards, seed| {
            let settings = Settings {
                outbound_sas,
                ..settings(routes(1, backwards))
            };
            Gateway::new(address, settings, seed)
        };
        let (mut a, mut b) = (gateway(A, false, 1), gateway(B, true, 2));
        let mut now = seconds(1.0);
        let mut run = |a: &mut Gateway, asks: &dyn Fn(&Gateway) -> bool| {
            for _ in 0..600 {
                if asks(a) {
                    a.with(|exchange, events| exchange.renew(now, 0, events));
                }
                settle(now, a, &mut b);
                now += Duration::from_millis(100);
            }
        };
        run(&mut a, &|_| false);
        assert_eq!(a.sas[&0].len(), outbound_sas);
        let negotiated = |a: &Gateway| {
            let counters = a.exchange.counters();
            counters.agreements + counters.proposals
        };
        let before = negotiated(&a);
        // The younger one of two: new keys take the place of the older one first.
        let sas = a.exchange.status(0).unwrap().outbound;
        let exhausted = sas.iter().min_by_key(|sa| sa.age).unwrap().spi;
        let is_used = |a: &Gateway| a.sas[&0].iter().any(|sa| sa.spi == exhausted);
        run(&mut a, &is_used);
        assert!(!is_used(&a));
        assert_eq!(negotiated(&a) - before, outbound_sas as u64);
    }
}

#[test]
fn spis_are_unique_and_never_reserved() {
    let n = 300;
    let gateway = |address, backwards, seed: u64| {
        let mut settings = settings(routes(n, backwards));
        settings.reserved = (256..2000).collect();
        let mut gateway = Gateway::new(address, settings.clone(), seed);
        // SPIs from a narrow range, so that they would collide.
        let mut random = Random::new(seed);
        let narrow = Box::new(move |bytes: &mut [u8]| match bytes.len() {
            4 => bytes.copy_from_slice(&(random.below(2100) as u32).to_le_bytes()),
            _ => random.fill(bytes),
        });
        gateway.exchange = Exchange::new(settings, narrow).unwrap();
        gateway
    };
    let (mut a, mut b) = (gateway(A, false, 1), gateway(B, true, 2));
    for minute in 0..30 {
        settle(seconds(60.0 * f64::from(minute)), &mut a, &mut b);
    }
    for gateway in [&a, &b] {
        assert_eq!(gateway.outbound.len(), n);
        assert!(gateway.inbound.len() >= n);
        assert!(gateway.inbound.keys().all(|spi| *spi >= 2000));
    }
}

#[test]
fn ten_thousand_routes_take_turns_and_then_all_have_sas() {
    let n = 10_000;
    let mut a = Gateway::new(A, settings(routes(n, false)), 1);
    let mut b = Gateway::new(B, settings(routes(n, true)), 2);
    let now = seconds(1.0);
    a.tick(now);
    while a.exchange.next_deadline() <= now {
        a.tick(now);
    }
    let knocks = a.take();
    assert_eq!(knocks.len(), 256, "knocks at once");
    let waiting = |gateway: &Gateway| {
        let of = |n| gateway.exchange.status(n).unwrap().negotiation;
        (0..n).filter(|n| of(*n) == Negotiation::Waiting).count()
    };
    assert_eq!(waiting(&a), n - 256);
    knocks.iter().for_each(|knock| b.receive(now, A, knock));
    settle(now, &mut a, &mut b);
    assert_eq!((a.outbound.len(), b.outbound.len()), (n, n));
    assert!((0..n).all(|n| carries(&a, &b, n) && carries(&b, &a, n)));
    assert_eq!((waiting(&a), waiting(&b)), (0, 0));
    a.check_counters();
}

#[test]
fn routes_without_an_answer_do_not_delay_the_others() {
    let n = 2000;
    let mut a = Gateway::new(A, settings(routes(n, false)), 1);
    // Of 2,000, only the last has a peer.
    let mut b = Gateway::new(B, settings(vec![route(n - 1, B, A)]), 2);
    let mut now = seconds(1.0);
    while !carries(&a, &b, n - 1) {
        a.tick(now);
        deliver(now, &mut a, &mut b);
        now = a.exchange.next_deadline().max(now);
        assert!(now < seconds(12.0));
    }
}

#[test]
fn unchanged_routes_keep_their_sas_over_new_settings() {
    let mut keys = routes(5, false);
    let (mut a, mut b) = connected(&keys, &routes(5, true));
    let now = seconds(10.0);
    settle(now, &mut a, &mut b);
    let before = (a.inbound.clone(), a.outbound.clone());
    let of = |n: usize, sas: &std::collections::BTreeMap<u32, _>| -> Vec<u32> {
        sas.iter()
            .filter(|(_, (route, _)): &(_, &(usize, tare_gateway::exchange::SaKeys))| *route == n)
            .map(|(spi, _)| *spi)
            .collect()
    };
    // 0 stays, 1 has another key, 2 another address, 3 is gone, 4 has another SPI, 5 is new.
    keys[1].psk = crate::pair::psk(77);
    keys[2].remote = "203.0.113.9".parse().unwrap();
    keys[4].spi = 4000;
    keys.remove(3);
    keys.push(route(5, A, B));
    keys.rotate_left(2);
    a.with(|exchange, events| exchange.reconfigure(now, settings(keys.clone()), events))
        .unwrap();
    for n in [0, 2] {
        assert_eq!(of(n, &a.inbound), of(n, &before.0), "route {n}");
        assert_eq!(a.outbound.get(&n), before.1.get(&n), "route {n}");
    }
    for n in [1, 3, 4] {
        assert_eq!(
            (of(n, &a.inbound), a.outbound.get(&n)),
            (vec![], None),
            "route {n}"
        );
    }
    assert!(a.exchange.status(3).is_none());
    // The peer follows, and all that both have comes up.
    let mut theirs: Vec<_> = keys
        .iter()
        .map(|keys| RouteKeys {
            local: B,
            remote: A,
            ..keys.clone()
        })
        .collect();
    theirs.retain(|keys| keys.route != 2);
    b.with(|exchange, events| exchange.reconfigure(now, settings(theirs), events))
        .unwrap();
    settle(now, &mut a, &mut b);
    assert!([0, 1, 4, 5]
        .iter()
        .all(|n| carries(&a, &b, *n) && carries(&b, &a, *n)));

    // Settings that make no sense change nothing.
    let before = (a.inbound.clone(), a.outbound.clone());
    let twice = settings(vec![route(0, A, B), route(0, A, B)]);
    let error = a.with(|exchange, events| exchange.reconfigure(now, twice, events));
    assert_eq!(error, Err(Error::SameRoute(0)));
    assert_eq!((a.inbound.clone(), a.outbound.clone()), before);
    // And none at all leave nothing.
    a.with(|exchange, events| exchange.reconfigure(now, Settings::default(), events))
        .unwrap();
    assert!(a.inbound.is_empty() && a.outbound.is_empty());
    a.tick(seconds(1000.0));
    assert_eq!(a.exchange.next_deadline(), Instant::NEVER);
}

/// Gives the ends of a network another life of SAs.
fn set_life(network: &mut Network, ends: &[usize], life: u64) {
    for &end in ends {
        let (own, peer) = if end == 0 { (A, B) } else { (B, A) };
        let mut settings = settings(vec![route(0, own, peer)]);
        settings.timers.sa_ttl = Duration::from_secs(life);
        let now = network.now();
        network.with(end, |exchange, events| {
            exchange.reconfigure(now, settings, events).unwrap();
        });
    }
}

#[test]
fn another_life_is_that_of_present_sas_too_and_cuts_no_direction() {
    for ends in [&[0][..], &[0, 1]] {
        let mut network = network(&GOOD, false, 1);
        network.run_until(seconds(250.0));
        assert!(network.is_up());
        let first: Vec<u32> = network.end(0).inbound.keys().copied().collect();
        // Shorter than they are old: they are replaced, and then end.
        set_life(&mut network, ends, 40);
        let mut at = 250.0;
        while at < 275.0 {
            at += 0.05;
            network.run_until(seconds(at));
            assert!(network.is_up(), "{at}");
        }
        let left = |network: &Network| {
            let sas = &network.end(0).exchange.status(0).unwrap().inbound;
            sas.iter().map(|sa| sa.left.as_secs()).max().unwrap()
        };
        let inbound = &network.end(0).inbound;
        assert!(first.iter().all(|spi| !inbound.contains_key(spi)));
        // An inbound SA is accepted for the time of a negotiation longer.
        assert!(left(&network) <= 40 + 5);
        // Longer: they live on, and are replaced as early as the peer may expect.
        let last: Vec<u32> = network.end(0).inbound.keys().copied().collect();
        set_life(&mut network, ends, 4000);
        assert!(left(&network) > 3900);
        while at < 310.0 {
            at += 0.05;
            network.run_until(seconds(at));
            assert!(network.is_up(), "{at}");
        }
        let inbound = &network.end(0).inbound;
        assert!(last.iter().all(|spi| inbound.contains_key(spi)));
        assert!(inbound.len() > last.len());
    }
}

#[test]
fn an_spi_that_is_keyed_by_hand_now_is_given_up() {
    let (mut a, mut b) = connected(&routes(1, false), &routes(1, true));
    let now = seconds(10.0);
    settle(now, &mut a, &mut b);
    let taken = b.outbound[&0].spi;
    let mut settings = settings(routes(1, false));
    settings.reserved = HashSet::from([taken]);
    a.with(|exchange, events| exchange.reconfigure(now, settings, events))
        .unwrap();
    assert!(!a.inbound.contains_key(&taken));
    for s in 10..30 {
        settle(seconds(f64::from(s)), &mut a, &mut b);
    }
    assert!(carries(&a, &b, 0) && carries(&b, &a, 0));
}

#[test]
fn a_clock_that_steps_back_neither_stops_nor_hurries_anything() {
    let (mut a, mut b) = connected(&routes(1, false), &routes(1, true));
    // Both clocks go back to the beginning every 100 seconds; the gateways go on.
    let (mut first, mut changes) = (a.outbound[&0].spi, 0);
    for round in 0..20 {
        for second in 1..100 {
            let now = seconds(f64::from(second));
            for gateway in [&a, &b] {
                let next = gateway.exchange.next_deadline();
                assert!(next.since(now) < Duration::from_secs(600), "round {round}");
            }
            // They see a step only when they are called with the time.
            a.tick(now);
            b.tick(now);
            settle(now, &mut a, &mut b);
            assert!(carries(&a, &b, 0) && carries(&b, &a, 0));
            changes += usize::from(a.outbound[&0].spi != first);
            first = a.outbound[&0].spi;
        }
    }
    // 1,980 seconds, new keys each 300 to 375 and 7.5 more.
    assert!((5..=7).contains(&changes), "{changes}");
    // And one step forward makes all of it old at once.
    settle(seconds(100_000.0), &mut a, &mut b);
    assert!(carries(&a, &b, 0) && carries(&b, &a, 0));
}

#[test]
fn settings_that_make_no_sense_are_refused_with_a_reason() {
    let with = |change: fn(&mut Settings)| {
        let mut settings = settings(routes(2, false));
        change(&mut settings);
        let error = Exchange::new(settings, system_entropy().unwrap()).unwrap_err();
        (error, error.to_string())
    };
    type Change = fn(&mut Settings);
    let cases: [(Change, Error); 6] = [
        (|s| s.routes[1].route = 0, Error::SameRoute(0)),
        (|s| s.routes[1].spi = 1001, Error::SameSpi(1001)),
        (|s| s.routes[1].spi = 255, Error::LowSpi(255)),
        (
            |s| s.routes[1].remote = "2001:db8::1".parse().unwrap(),
            Error::Families(A, "2001:db8::1".parse().unwrap()),
        ),
        (|s| s.routes[1].remote = A, Error::Itself(A)),
        (
            |s| s.timers.sa_ttl = Duration::from_secs(19),
            Error::Timers(Timers {
                sa_ttl: Duration::from_secs(19),
                ..Timers::default()
            }),
        ),
    ];
    for (change, error) in cases {
        let (found, text) = with(change);
        assert_eq!(found, error);
        assert!(text.len() > 20, "{text}");
    }
}

#[test]
fn the_state_of_a_route_can_be_read() {
    let (a, _) = connected(&routes(1, false), &routes(1, true));
    let status = a.exchange.status(0).unwrap();
    let outbound: Vec<_> = status.outbound.iter().map(|sa| sa.spi).collect();
    assert_eq!(outbound, [a.outbound[&0].spi]);
    assert_eq!(status.inbound.len(), a.inbound.len());
    assert_eq!(status.inbound[0].left, Duration::from_secs(605));
    assert_eq!(status.outbound[0].left, Duration::from_secs(600));
    assert_eq!(status.negotiated, Some(Duration::ZERO));
    assert_eq!(
        (status.negotiation, status.failures),
        (Negotiation::Idle, 0)
    );
    assert!(!format!("{status:?} {:?} {:?}", a.exchange, a.inbound).contains("[0, 0, 0"));
}
