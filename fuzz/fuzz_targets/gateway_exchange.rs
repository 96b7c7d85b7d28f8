//! Any bytes as messages of the key exchange, from the peer's address and from others.
#![no_main]

use std::net::{IpAddr, Ipv4Addr};

use libfuzzer_sys::fuzz_target;
use tare_gateway::config::{Aead, PresharedKey};
use tare_gateway::exchange::{system_entropy, Exchange, RouteKeys, Settings};
use tare_sim::Instant;

fuzz_target!(|input: &[u8]| {
    let address = |last| IpAddr::V4(Ipv4Addr::new(192, 0, 2, last));
    let route = RouteKeys {
        route: 0,
        spi: 1001,
        psk: PresharedKey::new([1; 32]),
        aead: Aead::Aes128Gcm,
        local: address(1),
        remote: address(2),
    };
    let settings = Settings {
        routes: vec![route],
        ..Settings::default()
    };
    let mut exchange = Exchange::new(settings, system_entropy().unwrap()).unwrap();
    let mut events = Vec::new();
    let mut now = Instant::ZERO;
    exchange.tick(now, &mut events);
    for piece in input.chunks(90) {
        let [from, rest @ ..] = piece else { break };
        now = Instant::from_nanos(now.as_nanos() + u64::from(*from) * 10_000_000);
        // Header of a message of our route, where the first bit says so.
        let mut message = rest.to_vec();
        if from & 1 == 1 && message.len() >= 5 {
            message[..4].copy_from_slice(&1001u32.to_be_bytes());
            message[4] = 11 + (from >> 1) % 4;
        }
        exchange.receive(now, address(2 + (from >> 6)), &message, &mut events);
        exchange.tick(now, &mut events);
        events.clear();
    }
    let counters = exchange.counters();
    assert!(counters.dropped_in_all() <= counters.received);
});
