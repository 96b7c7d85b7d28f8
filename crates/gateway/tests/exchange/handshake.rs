//! One negotiation, message by message.

use tare_gateway::config::{Aead, SaKey};
use tare_gateway::exchange::{Exchange, SaKeys};

use crate::noise::{mark, message, prologue, public, Noise};
use crate::pair::{carries, deliver, route, seconds, settings, unmarked, Gateway, A, B};

#[test]
fn four_messages_give_both_sides_the_same_two_sas() {
    let now = seconds(1.0);
    let (mut a, mut b) = (Gateway::single(A, B, 1), Gateway::single(B, A, 2));
    a.tick(now);
    for (n, length) in [12, 76, 88, 88].into_iter().enumerate() {
        let (from, to) = if n % 2 == 0 {
            (&mut a, &mut b)
        } else {
            (&mut b, &mut a)
        };
        let message = from.take_first();
        assert_eq!(message.len(), length);
        to.receive(now, from.address, &message);
    }
    assert!(carries(&a, &b, 0) && carries(&b, &a, 0));
    assert_eq!((a.inbound.len(), b.inbound.len()), (1, 1));
    deliver(now, &mut a, &mut b);
    a.check_counters();
    b.check_counters();
}

#[test]
fn a_negotiation_lasts_from_the_first_knock_to_the_agreement_on_the_side_that_began_it() {
    let (mut a, mut b) = (Gateway::single(A, B, 1), Gateway::single(B, A, 2));
    a.tick(seconds(1.0));
    // The first knock is lost.
    a.take_first();
    a.tick(seconds(1.3));
    for (n, at) in [1.31, 1.33, 1.36, 1.4].into_iter().enumerate() {
        let (from, to) = if n % 2 == 0 {
            (&mut a, &mut b)
        } else {
            (&mut b, &mut a)
        };
        let message = from.take_first();
        to.receive(seconds(at), from.address, &message);
    }
    let latency = |gateway: &Gateway| gateway.exchange.negotiation_latency().summary();
    let ofa = latency(&a).unwrap();
    assert_eq!((ofa.count, latency(&b)), (1, None));
    assert!(ofa.p50_ns.abs_diff(400_000_000) <= 400_000, "{ofa:?}");
}

/// Every byte of the four messages and of the keys, computed a second time.
#[test]
fn messages_and_keys_are_those_of_the_description() {
    for (aead, name, key_bytes) in [
        (Aead::Aes128Gcm, "aes-gcm-16-icv", 16),
        (Aead::Aes256Gcm, "aes-256-gcm-16-icv", 32),
    ] {
        let now = seconds(1.0);
        let gateway = |local, remote, byte: u8| {
            let mut keys = route(3, local, remote);
            keys.aead = aead;
            let mut gateway = Gateway::new(local, settings(vec![keys.clone()]), 0);
            gateway.exchange =
                Exchange::new(settings(vec![keys]), Box::new(move |b| b.fill(byte))).unwrap();
            gateway
        };
        // All that is random is one byte again and again: keys, nonce, SPIs.
        let (mut a, mut b) = (gateway(A, B, 0x11), gateway(B, A, 0x22));
        let (nonce, spi) = ([0x22; 32], 1004);
        let (addresses, psk) = ([[192, 0, 2, 1], [198, 51, 100, 2]], [3; 32]);

        a.tick(now);
        let knock = a.take_first();
        assert_eq!(unmarked(&knock), message(spi, 11, &[&[0, 0, 0, 5]]));

        b.receive(now, A, &knock);
        let challenge = b.take_first();
        let mut padded = name.as_bytes().to_vec();
        padded.resize(32, 0);
        assert_eq!(
            unmarked(&challenge),
            message(spi, 12, &[&[0, 0, 0, 5], &padded, &nonce])
        );

        a.receive(now, B, &challenge);
        let proposal = a.take_first();
        let prologue = prologue(spi, &addresses[0], &addresses[1], name, &nonce);
        let mut noise = Noise::new(&prologue, &psk);
        noise.e(&public(&[0x11; 32]));
        let sealed = noise.payload(0x1111_1111, 0);
        let expected = message(spi, 13, &[&public(&[0x11; 32]), &sealed]);
        assert_eq!(unmarked(&proposal), expected);

        b.receive(now, A, &proposal);
        let agreement = b.take_first();
        noise.e(&public(&[0x22; 32]));
        noise.ee(&[0x22; 32], &public(&[0x11; 32]));
        // The responder's own negotiation was waiting for its answer with the first SPI.
        let chosen = b.inbound.keys().next().copied().unwrap();
        assert!((0x2222_2222..0x2222_2224).contains(&chosen));
        let sealed = noise.payload(chosen, 0);
        assert_eq!(
            unmarked(&agreement),
            message(spi, 14, &[&public(&[0x22; 32]), &sealed])
        );
        // Half of a knock's mark is its number.
        let number = (u16::from_be_bytes([knock[5], knock[6]]) >> 4).to_be_bytes();
        let answers: [&[u8]; 4] = [&number, &number, &nonce, &proposal[8..]];
        let messages = [&knock, &challenge, &proposal, &agreement];
        for (n, message) in messages.into_iter().enumerate() {
            let (from, to) = (addresses[n % 2], addresses[1 - n % 2]);
            let mark = mark(&psk, message, from, to, answers[n]);
            match n {
                0 => assert_eq!((knock[6] & 15, knock[7]), (mark[0] >> 4, mark[1])),
                _ => assert_eq!(message[5..8], mark),
            }
        }

        a.receive(now, B, &agreement);
        let keys = noise.split(2 * key_bytes + 8);
        let sa = |spi: u32, from: usize| {
            let (key, salt) = keys[from..from + key_bytes + 4].split_at(key_bytes);
            let salt = salt.try_into().unwrap();
            let key = match aead {
                Aead::Aes128Gcm => SaKey::aes_128_gcm(key.try_into().unwrap(), salt),
                Aead::Aes256Gcm => SaKey::aes_256_gcm(key.try_into().unwrap(), salt),
            };
            SaKeys { spi, key }
        };
        let (to_a, to_b) = (sa(0x1111_1111, 0), sa(chosen, key_bytes + 4));
        assert_eq!(a.inbound[&to_a.spi], (3, to_a.clone()));
        assert_eq!(b.inbound[&to_b.spi], (3, to_b.clone()));
        assert_eq!((&a.outbound[&3], &b.outbound[&3]), (&to_b, &to_a));
    }
}

#[test]
fn a_lost_message_costs_a_fraction_of_a_second() {
    for lost in 0..4 {
        let (mut a, mut b) = (Gateway::single(A, B, 1), Gateway::single(B, A, 2));
        let mut now = seconds(1.0);
        let mut n = 0;
        a.tick(now);
        while !(carries(&a, &b, 0) && carries(&b, &a, 0)) {
            let to_b = a.take();
            let to_a: Vec<_> = b.take().into_iter().filter(|m| m[4] != 11).collect();
            if to_a.is_empty() && to_b.is_empty() {
                now = a.exchange.next_deadline();
                a.tick(now);
            }
            for (message, gateway, from) in to_b
                .iter()
                .map(|m| (m, 0, A))
                .chain(to_a.iter().map(|m| (m, 1, B)))
            {
                if n != lost {
                    [&mut b, &mut a][gateway].receive(now, from, message);
                }
                n += 1;
            }
        }
        assert!(
            now.since(seconds(1.0)).as_secs_f64() <= 0.3,
            "message {lost}: {now}"
        );
        assert_eq!((a.inbound.len(), b.inbound.len()), (1, 1), "message {lost}");
    }
}

#[test]
fn both_may_begin_at_once() {
    let now = seconds(1.0);
    let (mut a, mut b) = (Gateway::single(A, B, 1), Gateway::single(B, A, 2));
    a.tick(now);
    b.tick(now);
    deliver(now, &mut a, &mut b);
    assert!(carries(&a, &b, 0) && carries(&b, &a, 0));
    assert_eq!(a.inbound.len(), b.inbound.len());
    assert!(a.inbound.len() <= 2);
}
