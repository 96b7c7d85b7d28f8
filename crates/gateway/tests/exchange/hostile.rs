//! Messages from attackers.

use std::time::Duration;

use proptest::prelude::*;
use tare_gateway::config::Aead;
use tare_gateway::exchange::{Counters, DropReason, Settings, Timers};
use tare_sim::Instant;

use crate::noise::{message, prologue, public, Noise};
use crate::pair::{carries, deliver, route, seconds, settings, Gateway, A, B};

/// Two gateways that wait long enough to be tried in every way.
fn patient() -> (Gateway, Gateway) {
    let patient = |local, remote| Settings {
        timers: Timers {
            sa_ttl: Duration::from_secs(80_000),
            negotiation_ttl: Duration::from_secs(10_000),
        },
        ..settings(vec![route(0, local, remote)])
    };
    let a = Gateway::new(A, patient(A, B), 1);
    (a, Gateway::new(B, patient(B, A), 2))
}

/// A negotiation up to one of its messages, 0 to 3, which is still to be delivered: it, its
/// receiver and its sender.
fn up_to(step: usize) -> (Vec<u8>, Gateway, Gateway) {
    let (mut a, mut b) = patient();
    let now = seconds(1.0);
    a.tick(now);
    for n in 0.. {
        let (from, to) = if n % 2 == 0 {
            (&mut a, &mut b)
        } else {
            (&mut b, &mut a)
        };
        let message = from.take_first();
        if n == step {
            return if n % 2 == 0 {
                (message, b, a)
            } else {
                (message, a, b)
            };
        }
        to.receive(now, from.address, &message);
    }
    unreachable!()
}

/// The number dropped for the reason between the two.
fn dropped(before: &Counters, after: &Counters, cause: DropReason) -> u64 {
    after.dropped(cause) - before.dropped(cause)
}

#[test]
fn no_change_to_any_byte_of_a_proposal_or_agreement_passes() {
    for step in [2, 3] {
        let (genuine, mut to, from) = up_to(step);
        let mut now = seconds(2.0);
        to.take();
        for n in (0..5).chain(8..genuine.len()) {
            for change in [1, 0x80, 0xff] {
                let mut changed = genuine.clone();
                changed[n] ^= change;
                now += Duration::from_millis(20);
                let before = to.exchange.counters();
                to.receive(now, from.address, &changed);
                let after = to.exchange.counters();
                assert_eq!(
                    after.dropped_in_all(),
                    before.dropped_in_all() + 1,
                    "byte {n}"
                );
                let cause = match n {
                    0..4 => DropReason::Route,
                    4 => continue,
                    _ => DropReason::Authentication,
                };
                assert_eq!(
                    dropped(&before, &after, cause),
                    1,
                    "byte {n} of step {step}"
                );
            }
        }
        assert!(to.inbound.is_empty() && to.outbound.is_empty());
        // Reserved bytes mean nothing, and nothing before has changed what is waited for.
        let mut genuine = genuine;
        genuine[5..8].fill(0xff);
        to.receive(now, from.address, &genuine);
        assert_eq!((to.inbound.len(), to.outbound.len()), (1, 1));
    }
}

#[test]
fn a_changed_challenge_leads_to_no_sa() {
    let (genuine, ..) = up_to(1);
    for n in 8..genuine.len() {
        let (mut challenge, mut a, mut b) = up_to(1);
        challenge[n] ^= 1;
        let now = seconds(2.0);
        let before = a.exchange.counters();
        a.receive(now, B, &challenge);
        let after = a.exchange.counters();
        match n {
            8..12 => assert_eq!(dropped(&before, &after, DropReason::Version), 1),
            12..44 => assert_eq!(dropped(&before, &after, DropReason::Aead), 1),
            _ => {
                let proposal = a.take_first();
                b.receive(now, A, &proposal);
                assert_eq!(b.exchange.counters().dropped(DropReason::Authentication), 1);
                assert!(b.inbound.is_empty());
                continue;
            }
        }
        // And the genuine one is still waited for.
        deliver(now, &mut a, &mut b);
        a.receive(now, B, &genuine);
        deliver(now, &mut a, &mut b);
        assert!(carries(&a, &b, 0) && carries(&b, &a, 0), "byte {n}");
    }
}

#[test]
fn dropped_messages_are_counted_by_cause() {
    let (proposal, mut b, _) = up_to(2);
    let now = seconds(2.0);
    let elsewhere = "203.0.113.9".parse().unwrap();
    let cases: [(DropReason, std::net::IpAddr, Vec<u8>); 9] = [
        (DropReason::Length, A, vec![]),
        (DropReason::Length, A, proposal[..87].to_vec()),
        (
            DropReason::Length,
            A,
            [&proposal[..], &[0; 65_400]].concat(),
        ),
        (DropReason::Type, A, message(1001, 15, &[&[0; 80]])),
        (DropReason::Route, A, message(1002, 11, &[&[0, 0, 0, 5]])),
        (DropReason::Address, elsewhere, proposal.clone()),
        (DropReason::Address, B, proposal.clone()),
        (DropReason::Unexpected, A, message(1001, 14, &[&[7; 80]])),
        (
            DropReason::Authentication,
            A,
            message(1001, 13, &[&[7; 80]]),
        ),
    ];
    for (cause, from, bytes) in cases {
        let before = b.exchange.counters();
        b.receive(now, from, &bytes);
        let after = b.exchange.counters();
        assert_eq!(dropped(&before, &after, cause), 1, "{cause:?}");
        assert_eq!(after.dropped_in_all(), before.dropped_in_all() + 1);
    }
    b.check_counters();
    b.receive(now, A, &proposal);
    assert_eq!(b.inbound.len(), 1);
}

#[test]
fn another_key_another_aead_and_exchanged_addresses_are_refused() {
    let now = seconds(1.0);
    let mut other = route(0, B, A);
    other.psk = crate::pair::psk(9);
    let mut wide = route(0, B, A);
    wide.aead = Aead::Aes256Gcm;
    let mut translated = route(0, B, A);
    translated.local = "203.0.113.9".parse().unwrap();
    for (keys, cause) in [
        (other, DropReason::Authentication),
        (wide, DropReason::Aead),
        (translated, DropReason::Authentication),
    ] {
        let mut a = Gateway::single(A, B, 1);
        let mut b = Gateway::new(keys.local, settings(vec![keys]), 2);
        b.address = "203.0.113.9".parse().unwrap_or(b.address);
        a.tick(now);
        let knock = a.take_first();
        b.with(|exchange, events| {
            let mut told = Vec::new();
            exchange.receive(now, A, &knock, &mut told);
            let challenge = told.into_iter().find_map(sent).unwrap();
            a.receive(now, B, &challenge);
            if let Some(proposal) = a.sent.pop() {
                exchange.receive(now, A, &proposal.1, events);
            }
        });
        let drops = a.exchange.counters().dropped(cause) + b.exchange.counters().dropped(cause);
        assert_eq!(drops, 1, "{cause:?}");
        assert!(a.inbound.is_empty() && b.inbound.is_empty());
    }
}

fn sent(event: tare_gateway::exchange::Event) -> Option<Vec<u8>> {
    match event {
        tare_gateway::exchange::Event::Send { message, .. } => Some(message),
        _ => None,
    }
}

/// Mistakes of a peer that knows the key.
#[test]
fn public_keys_of_low_order_and_reserved_spis_are_refused() {
    let low_order: [[u8; 32]; 3] = [
        [0; 32],
        std::array::from_fn(|n| u8::from(n == 0)),
        // 2²⁵⁵ - 19 - 1.
        std::array::from_fn(|n| [0xec, 0xff, 0x7f][usize::from(n > 0) + usize::from(n == 31)]),
    ];
    let (a4, b4) = ([192, 0, 2, 1], [198, 51, 100, 2]);
    let now = seconds(2.0);
    // As responder.
    let (genuine, mut b, _) = up_to(2);
    let (challenge, _, _) = up_to(1);
    let nonce: [u8; 32] = challenge[44..].try_into().unwrap();
    let forge = |key: [u8; 32], spi: u32| {
        let mut noise = Noise::new(
            &prologue(1001, &a4, &b4, "aes-gcm-16-icv", &nonce),
            &[0; 32],
        );
        noise.e(&key);
        let sealed = noise.payload(spi, 0xee);
        message(1001, 13, &[&key, &sealed])
    };
    for key in low_order {
        b.receive(now, A, &forge(key, 5000));
    }
    for spi in [0, 1, 255] {
        b.receive(now, A, &forge(public(&[5; 32]), spi));
    }
    let c = b.exchange.counters();
    assert_eq!(
        (c.dropped(DropReason::PublicKey), c.dropped(DropReason::Spi)),
        (3, 3)
    );
    assert!(b.inbound.is_empty() && b.outbound.is_empty());
    b.receive(now, A, &genuine);
    assert_eq!((b.inbound.len(), b.outbound.len()), (1, 1));

    // As initiator.
    let (genuine, mut a, _) = up_to(3);
    for key in low_order {
        a.receive(now, B, &message(1001, 14, &[&key, &[0; 48]]));
    }
    assert_eq!(a.exchange.counters().dropped(DropReason::PublicKey), 3);
    a.receive(now, B, &genuine);
    assert_eq!((a.inbound.len(), a.outbound.len()), (1, 1));
}

#[test]
fn a_peer_may_leave_anything_behind_its_spi() {
    let (challenge, _, _) = up_to(1);
    let (_, mut b, _) = up_to(2);
    let nonce: [u8; 32] = challenge[44..].try_into().unwrap();
    let prologue = prologue(
        1001,
        &[192, 0, 2, 1],
        &[198, 51, 100, 2],
        "aes-gcm-16-icv",
        &nonce,
    );
    let mut noise = Noise::new(&prologue, &[0; 32]);
    noise.e(&public(&[5; 32]));
    let sealed = noise.payload(0x0102_0304, 0xee);
    b.receive(
        seconds(2.0),
        A,
        &message(1001, 13, &[&public(&[5; 32]), &sealed]),
    );
    let agreement = b.take_first();
    assert_eq!(b.outbound[&0].spi, 0x0102_0304);
    let theirs: [u8; 32] = agreement[8..40].try_into().unwrap();
    noise.e(&theirs);
    noise.ee(&[5; 32], &theirs);
    assert!(b.inbound.contains_key(&noise.read(&agreement[40..])));
}

#[test]
fn nothing_that_was_recorded_has_an_effect_again() {
    let (mut a, mut b) = (Gateway::single(A, B, 1), Gateway::single(B, A, 2));
    let mut recorded = Vec::new();
    let mut now = seconds(1.0);
    a.tick(now);
    b.tick(now);
    loop {
        let (to_b, to_a) = (a.take(), b.take());
        if to_a.is_empty() && to_b.is_empty() {
            break;
        }
        to_b.iter().for_each(|m| b.receive(now, A, m));
        to_a.iter().for_each(|m| a.receive(now, B, m));
        recorded.extend(to_b);
        recorded.extend(to_a);
    }
    let before = (
        a.inbound.clone(),
        b.inbound.clone(),
        a.outbound.clone(),
        b.outbound.clone(),
    );
    let pairs = |g: &Gateway| g.exchange.counters().agreements + g.exchange.counters().proposals;
    let negotiated = (pairs(&a), pairs(&b));
    for _ in 0..50 {
        now += Duration::from_secs(4);
        for message in &recorded {
            a.receive(now, B, message);
            b.receive(now, A, message);
            let (to_b, to_a) = (a.take(), b.take());
            // What they are answered with has no effect either.
            to_b.iter().for_each(|m| b.receive(now, A, m));
            to_a.iter().for_each(|m| a.receive(now, B, m));
            a.take();
            b.take();
        }
        a.tick(now);
        b.tick(now);
    }
    assert_eq!((pairs(&a), pairs(&b)), negotiated);
    assert_eq!(before.0, a.inbound);
    assert_eq!(before.1, b.inbound);
    // Both began at once, so each may have changed to its second pair by now.
    assert!(carries(&a, &b, 0) && carries(&b, &a, 0));
    a.check_counters();
    b.check_counters();
}

#[test]
fn a_flood_costs_no_curve_operation_and_no_memory_and_keeps_no_peer_out() {
    let (mut a, mut b) = (Gateway::single(A, B, 1), Gateway::single(B, A, 2));
    let mut now = seconds(1.0);
    let knock = message(1001, 11, &[&[0, 0, 0, 5]]);
    let flood = |b: &mut Gateway, now: Instant| {
        for n in 0..1000u32 {
            let mut proposal = message(1001, 13, &[&[1; 80]]);
            proposal[20..24].copy_from_slice(&n.to_be_bytes());
            b.receive(now, A, &knock);
            b.receive(now, A, &proposal);
        }
    };
    // The first deadline is left out, so that only the flood is at work.
    for _ in 0..100 {
        now += Duration::from_millis(10);
        flood(&mut b, now);
    }
    let c = b.exchange.counters();
    assert_eq!(c.diffie_hellman, 0);
    // In one second: 20 at once and 50 a second, and 4,000 at once and 62,500 a second.
    assert!((65..=71).contains(&c.knocks), "{}", c.knocks);
    let looked = c.dropped(DropReason::Authentication);
    assert!((62_500..=66_501).contains(&looked), "{looked}");
    assert_eq!(c.dropped(DropReason::Rate) + c.knocks + looked, c.received);
    assert!(b.inbound.is_empty());
    b.take();
    // While it goes on, the two come together: challenges go to the peer whatever address asked,
    // and its proposal is one of those that are looked at, soon enough.
    let begun = now;
    while !(carries(&a, &b, 0) && carries(&b, &a, 0)) {
        now += Duration::from_millis(10);
        a.tick(now);
        b.tick(now);
        let to_b = a.take();
        flood(&mut b, now);
        to_b.iter().for_each(|m| b.receive(now, A, m));
        b.take().iter().for_each(|m| a.receive(now, B, m));
        assert!(now.since(begun) < Duration::from_secs(20));
    }
    b.check_counters();
}

#[test]
fn a_flood_leaves_nothing_in_memory() {
    let (genuine, mut b, _) = up_to(2);
    b.receive(seconds(2.0), A, &genuine);
    let knock = message(1001, 11, &[&[0, 0, 0, 5]]);
    let forged = message(1001, 13, &[&[1; 80]]);
    let mut now = seconds(3.0);
    let mut events = Vec::with_capacity(16);
    let mut flood = |messages: usize| {
        for _ in 0..messages {
            now += Duration::from_millis(20);
            for message in [&knock, &forged, &genuine] {
                b.exchange.receive(now, A, message, &mut events);
            }
            b.exchange.tick(now, &mut events);
            events.clear();
        }
    };
    flood(1000);
    let allocated = allocation_counter::measure(|| flood(20_000));
    assert_eq!(allocated.bytes_current, 0, "{allocated:?}");
    assert!(allocated.bytes_max < 16_384, "{allocated:?}");
    let c = b.exchange.counters();
    assert!(
        c.knocks > 10_000 && c.repeats > 10_000 && c.dropped(DropReason::Authentication) > 10_000
    );
}

#[test]
fn forged_agreements_are_processed_a_hundred_times_per_second() {
    let (genuine, mut a, _) = up_to(3);
    let before = a.exchange.counters().diffie_hellman;
    let mut now = seconds(2.0);
    for n in 0..100_000u32 {
        let mut forged = genuine.clone();
        forged[30..34].copy_from_slice(&n.to_be_bytes());
        now += Duration::from_micros(10);
        a.receive(now, B, &forged);
    }
    let looked = a.exchange.counters().diffie_hellman - before;
    assert!((100..=121).contains(&looked), "{looked}");
    a.receive(now + Duration::from_millis(300), B, &genuine);
    assert_eq!(a.inbound.len(), 1);
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_dropped_and_counted(
        messages in prop::collection::vec(
            (prop::option::of(8u8..18), prop::collection::vec(any::<u8>(), 0..100), any::<bool>()),
            1..100,
        ),
    ) {
        let (mut a, mut b) = (Gateway::single(A, B, 1), Gateway::single(B, A, 2));
        let now = seconds(1.0);
        a.tick(now);
        for (kind, mut bytes, cut) in messages {
            if let Some(kind) = kind {
                let length = match kind { 11 => 4, 12 => 68, _ => 80 };
                if cut { bytes.resize(length, 5); }
                bytes = message(1001, kind, &[&bytes]);
            }
            a.receive(now, B, &bytes);
            b.receive(now, A, &bytes);
        }
        a.check_counters();
        b.check_counters();
        prop_assert!(a.inbound.is_empty() && b.inbound.is_empty());
        prop_assert!(a.outbound.is_empty() && b.outbound.is_empty());
    }
}

/// A forged agreement costs a Diffie-Hellman operation for each challenge that was answered, so it
/// counts as so many.
#[test]
fn a_forged_agreement_counts_for_each_challenge_that_it_may_answer() {
    let routes = 0..5;
    let keys = routes.clone().map(|n| route(n, A, B)).collect();
    let mut a = Gateway::new(A, settings(keys), 1);
    let mut aead = b"aes-gcm-16-icv".to_vec();
    aead.resize(32, 0);
    let version = [0, 0, 0, 5];
    let step = std::time::Duration::from_millis(10);
    let mut now = seconds(1.0);
    let mut knocked = Vec::new();
    // Eight challenges come equally late after each knock.
    for _ in 0..300 {
        now += step;
        for spi in std::mem::take(&mut knocked) {
            for nonce in 0..8 {
                a.receive(now, B, &message(spi, 12, &[&version, &aead, &[nonce; 32]]));
            }
        }
        a.tick(now);
        let messages = a.take();
        let knocks = messages.iter().filter(|message| message[4] == 11);
        knocked = knocks
            .map(|message| u32::from_be_bytes(message[..4].try_into().unwrap()))
            .collect();
    }
    let before = a.exchange.counters();
    assert_eq!(before.challenges, 5 * 8, "{before:?}");
    for n in 0..1000u32 {
        now += step / 10;
        for route in routes.clone() {
            let mut agreement = message(1001 + route as u32, 14, &[&[1; 80]]);
            agreement[20..24].copy_from_slice(&n.to_be_bytes());
            a.receive(now, B, &agreement);
        }
    }
    let after = a.exchange.counters();
    assert_eq!(after.negotiations, before.negotiations, "all of them go on");
    let operations = after.diffie_hellman - before.diffie_hellman;
    assert!((1500..=2010).contains(&operations), "{operations}");
}
