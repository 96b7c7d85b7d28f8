//! Negotiations that were recorded. Those with Vita show that both understand each other; all show
//! that no byte has changed.

use std::collections::VecDeque;
use std::net::IpAddr;

use tare_gateway::config::{Aead, PresharedKey};
use tare_gateway::exchange::{Event, Exchange, RouteKeys, SaKeys};

use crate::pair::{hex, seconds, settings, unhex, unmarked};

/// Says again what the peer said then and expects the gateway to do again what it did then.
fn replay(transcript: &str) {
    let word = |key: &str| {
        let line = transcript.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap_or_else(|| panic!("no {key}")).trim()
    };
    let remote: IpAddr = word("peer ").parse().unwrap();
    let psk: [u8; 32] = unhex(word("psk ")).try_into().unwrap();
    let keys = RouteKeys {
        route: 7,
        spi: word("spi ").parse().unwrap(),
        psk: PresharedKey::new(psk),
        aead: Aead::by_name(word("aead ")).unwrap(),
        local: word("tare ").parse().unwrap(),
        remote,
    };
    let entropy = Box::new(|bytes: &mut [u8]| bytes.fill(0x42));
    let mut exchange = Exchange::new(settings(vec![keys]), entropy).unwrap();
    let now = seconds(1.0);
    let mut events = Vec::new();
    let mut done: VecDeque<String> = VecDeque::new();
    let (mut lines, mut negotiated) = (0, Vec::new());
    let begins = transcript.lines().find(|line| line.contains("> "));
    if begins.is_some_and(|line| line.starts_with("tare> ")) {
        exchange.tick(now, &mut events);
    }
    for line in transcript.lines() {
        done.extend(events.drain(..).filter_map(written));
        if let Some(message) = line.strip_prefix("peer> ") {
            exchange.receive(now, remote, &unhex(message), &mut events);
        } else if let Some(sa) = line.strip_prefix("peer sa ") {
            negotiated.push(sa.replace("out ", "inbound ").replace("in ", "outbound "));
        } else if ["tare> ", "inbound ", "outbound "]
            .iter()
            .any(|kind| line.starts_with(kind))
        {
            assert_eq!(done.pop_front().as_deref(), Some(line));
            lines += 1;
        }
    }
    done.extend(events.drain(..).filter_map(written));
    assert_eq!(done, [] as [&str; 0]);
    assert!(lines >= 4);
    for sa in &negotiated {
        assert!(
            transcript.lines().any(|line| line == sa),
            "the peer has another SA: {sa}"
        );
    }
    assert_eq!(
        negotiated.len(),
        if transcript.contains("Vita") { 2 } else { 0 }
    );
}

/// Marks are left out, because what was recorded is older; Vita does not look at them.
fn written(event: Event) -> Option<String> {
    let sa = |name: &str, keys: &SaKeys| {
        format!(
            "{name} {} {} {}",
            keys.spi,
            hex(keys.key.key()),
            hex(&keys.key.salt())
        )
    };
    Some(match event {
        Event::Send { message, .. } => format!("tare> {}", hex(&unmarked(&message))),
        Event::InstallInbound { keys, .. } => sa("inbound", &keys),
        Event::InstallOutbound { keys, .. } => sa("outbound", &keys),
        Event::Prove { .. } => return None,
        other => format!("{other:?}"),
    })
}

#[test]
fn negotiations_with_vita_go_as_they_went() {
    replay(include_str!("transcripts/as-initiator-ipv4.txt"));
    replay(include_str!("transcripts/as-responder-ipv4.txt"));
    replay(include_str!("transcripts/as-initiator-ipv6.txt"));
    replay(include_str!("transcripts/as-responder-ipv6.txt"));
}

#[test]
fn a_negotiation_for_256_bit_keys_goes_as_it_went() {
    replay(include_str!("transcripts/as-initiator-256-bit.txt"));
    replay(include_str!("transcripts/as-responder-256-bit.txt"));
}
