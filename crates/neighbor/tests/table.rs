//! Two interfaces on one link, and hostile messages.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use proptest::prelude::*;
use tare_neighbor::{Handled, Ignored, Local, Neighbors, State, ADVERTISEMENT, SOLICITATION};
use tare_packet::ethernet::{self, Mac, HEADER};
use tare_packet::ipv6::{self, Ipv6};
use tare_sim::{Instant, TokenBucket};

const A: Local = Local {
    mac: [2, 0, 0, 0, 0, 1],
    ip4: Some(Ipv4Addr::new(192, 0, 2, 1)),
    ip6: Some(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1)),
};
const B: Local = Local {
    mac: [2, 0, 0, 0, 0, 2],
    ip4: Some(Ipv4Addr::new(192, 0, 2, 2)),
    ip6: Some(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2)),
};

fn addresses(of: &Local) -> [IpAddr; 2] {
    [of.ip4.unwrap().into(), of.ip6.unwrap().into()]
}

fn table(own: Local, target: &Local) -> Neighbors {
    let mut neighbors = Neighbors::new(own);
    neighbors.set_targets(addresses(target), Instant::ZERO);
    neighbors
}

fn limit() -> TokenBucket {
    TokenBucket::new(Duration::from_millis(10), 50)
}

/// Hands a frame to a table and returns its answers.
fn deliver(
    to: &mut Neighbors,
    now: Instant,
    frame: &[u8],
    answers: &mut TokenBucket,
) -> (Result<Handled, Ignored>, Vec<Vec<u8>>) {
    let mut send = Vec::new();
    let packet = &frame[HEADER..];
    let from: Mac = frame[6..12].try_into().unwrap();
    let outcome = match ethernet::kind(frame) {
        Some(ethernet::ARP) => to.receive_arp(now, packet, answers, &mut send),
        _ => {
            let ip = Ipv6::parse(packet).unwrap();
            let message = &packet[ipv6::HEADER..ip.total_len];
            match message[0] {
                SOLICITATION => {
                    to.receive_solicitation(now, &ip, from, message, answers, &mut send)
                }
                ADVERTISEMENT => to.receive_advertisement(now, &ip, from, message),
                kind => panic!("an ICMPv6 message of type {kind}"),
            }
        }
    };
    (outcome, send)
}

#[test]
fn two_interfaces_find_each_other_by_one_request_each() {
    let (mut a, mut b) = (table(A, &B), table(B, &A));
    let now = Instant::ZERO;
    let mut frames = Vec::new();
    a.tick(now, &mut frames);
    assert_eq!(frames.len(), 2);
    for frame in frames {
        let (outcome, replies) = deliver(&mut b, now, &frame, &mut limit());
        assert_eq!(outcome, Ok(Handled::Request));
        let [reply] = replies.as_slice() else {
            panic!("{} replies", replies.len());
        };
        let (outcome, none) = deliver(&mut a, now, reply, &mut limit());
        assert_eq!((outcome, none.len()), (Ok(Handled::Reply), 0));
    }
    // A request tells nothing that was asked for.
    for address in addresses(&A) {
        assert_eq!(b.mac(address), None, "{address}");
    }
    for answer in ask(&mut b, now, A) {
        let outcome = deliver(&mut b, now, &answer, &mut limit()).0;
        assert_eq!(outcome, Ok(Handled::Reply));
    }
    for (table, other) in [(&a, &B), (&b, &A)] {
        for address in addresses(other) {
            assert_eq!(table.mac(address), Some(other.mac), "{address}");
        }
        assert!(table.iter().all(|n| n.state == State::Reachable));
    }
    // Nothing more is asked for until the addresses are a minute old.
    assert_eq!(a.next_deadline(), now + Duration::from_secs(60));
}

#[test]
fn a_target_that_stays_keeps_its_address_and_one_that_goes_is_forgotten() {
    let mut a = table(A, &B);
    let [known, other] = addresses(&B);
    let answers = ask(&mut a, Instant::ZERO, B);
    deliver(&mut a, Instant::ZERO, &answers[0], &mut limit())
        .0
        .unwrap();
    assert_eq!(a.mac(known), Some(B.mac));
    let next = IpAddr::from([192, 0, 2, 3]);
    a.set_targets([known, next], Instant::ZERO);
    assert_eq!((a.mac(known), a.mac(other)), (Some(B.mac), None));
    assert_eq!(a.iter().count(), 2);
    a.set_targets([], Instant::ZERO);
    assert_eq!(a.next_deadline(), Instant::NEVER);
}

fn announcement(of: Local) -> Vec<u8> {
    announcements(of).swap_remove(0)
}

/// Unsolicited messages about an ARP address and an IPv6 address.
fn announcements(of: Local) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    Neighbors::new(of).announce(&mut frames);
    frames
}

/// Lets a table ask, and returns the answers of `station`.
fn ask(table: &mut Neighbors, now: Instant, station: Local) -> Vec<Vec<u8>> {
    let mut requests = Vec::new();
    table.tick(now, &mut requests);
    let mut other = Neighbors::new(station);
    let answers = requests
        .iter()
        .map(|request| deliver(&mut other, now, request, &mut limit()).1);
    answers.flatten().collect()
}

fn at(seconds: f64) -> Instant {
    Instant::from_nanos((seconds * 1e9) as u64)
}

const IMPOSTOR: Mac = [2, 0, 0, 0, 6, 6];

/// Every message by which a station can claim the addresses of B as its own: announcements,
/// requests, and answers to requests of A.
fn claims() -> Vec<Vec<u8>> {
    let impostor = Local { mac: IMPOSTOR, ..B };
    let mut claims = announcements(impostor);
    table(impostor, &A).tick(Instant::ZERO, &mut claims);
    claims.extend(ask(&mut table(A, &B), Instant::ZERO, impostor));
    assert_eq!(claims.len(), 6);
    claims
}

#[test]
fn what_was_not_asked_for_changes_no_address() {
    // Before the first request, after the answer, and while the known station is asked again.
    for asked in [0, 1, 2] {
        let mut a = table(A, &B);
        if asked > 0 {
            for answer in ask(&mut a, Instant::ZERO, B) {
                deliver(&mut a, Instant::ZERO, &answer, &mut limit())
                    .0
                    .unwrap();
            }
        }
        if asked > 1 {
            a.tick(at(60.0), &mut Vec::new());
            assert!(a.iter().all(|n| n.state == State::Probing));
        }
        let wanted = (asked > 0).then_some(B.mac);
        for claim in claims() {
            let outcome = deliver(&mut a, at(60.1), &claim, &mut limit()).0;
            let expected = [Err(Ignored::Unsolicited), Ok(Handled::Request)];
            assert!(expected.contains(&outcome), "{outcome:?}");
            for address in addresses(&B) {
                assert_eq!(a.mac(address), wanted, "{address} after {outcome:?}");
            }
        }
    }
}

#[test]
fn a_claim_has_the_known_station_asked_and_an_answer_keeps_it() {
    let mut a = table(A, &B);
    for answer in ask(&mut a, Instant::ZERO, B) {
        deliver(&mut a, Instant::ZERO, &answer, &mut limit())
            .0
            .unwrap();
    }
    for claim in claims() {
        deliver(&mut a, at(30.0), &claim, &mut limit()).0.ok();
    }
    let mut requests = Vec::new();
    a.clone().tick(at(30.0), &mut requests);
    assert_eq!(requests.len(), 2);
    assert!(requests.iter().all(|request| request[..6] == B.mac));
    for answer in ask(&mut a, at(30.0), B) {
        let outcome = deliver(&mut a, at(30.0), &answer, &mut limit()).0;
        assert_eq!(outcome, Ok(Handled::Reply));
    }
    assert_eq!(a.next_deadline(), at(90.0));
}

#[test]
fn a_neighbor_that_answers_no_more_is_followed_to_its_new_address() {
    let mut a = table(A, &B);
    for answer in ask(&mut a, Instant::ZERO, B) {
        deliver(&mut a, Instant::ZERO, &answer, &mut limit())
            .0
            .unwrap();
    }
    let moved = Local { mac: [4; 6], ..B };
    for claim in announcements(moved) {
        deliver(&mut a, at(30.0), &claim, &mut limit()).0.ok();
    }
    // Three requests to the station that is known, which is silent, and then one to all.
    for n in 0..3 {
        let mut requests = Vec::new();
        a.tick(at(30.0 + f64::from(n) * 0.025), &mut requests);
        assert_eq!(requests.len(), 2);
        assert!(requests.iter().all(|request| request[..6] == B.mac));
    }
    let now = at(30.075);
    for (n, answer) in ask(&mut a, now, moved).iter().enumerate() {
        let address = addresses(&B)[n];
        let outcome = deliver(&mut a, now, answer, &mut limit()).0;
        let (from, to) = (B.mac, moved.mac);
        assert_eq!(outcome, Ok(Handled::Moved { address, from, to }));
        assert_eq!(a.mac(address), Some(moved.mac));
        // A second answer to the same request comes too late.
        let impostor = Local { mac: IMPOSTOR, ..B };
        let late = ask(&mut table(A, &B), now, impostor);
        let outcome = deliver(&mut a, now, &late[n], &mut limit()).0;
        assert_eq!(outcome, Err(Ignored::Unsolicited));
        assert_eq!(a.mac(address), Some(moved.mac));
    }
}

#[test]
fn on_another_link_all_stations_are_asked_at_once() {
    let mut a = table(A, &B);
    for answer in ask(&mut a, Instant::ZERO, B) {
        deliver(&mut a, Instant::ZERO, &answer, &mut limit())
            .0
            .unwrap();
    }
    a.doubt_all(at(5.0));
    let moved = Local { mac: [4; 6], ..B };
    for answer in ask(&mut a, at(5.0), moved) {
        let outcome = deliver(&mut a, at(5.0), &answer, &mut limit()).0;
        assert!(matches!(outcome, Ok(Handled::Moved { .. })), "{outcome:?}");
    }
}

#[test]
fn a_station_that_claims_our_address_is_answered_once_in_ten_seconds() {
    let mut a = table(A, &B);
    let claim = announcement(Local { mac: [2; 6], ..A });
    let mut answers = 0;
    for second in 0..30 {
        let now = Instant::ZERO + Duration::from_secs(second);
        let (outcome, frames) = deliver(&mut a, now, &claim, &mut limit());
        assert_eq!(outcome, Err(Ignored::Source));
        answers += usize::from(!frames.is_empty());
    }
    assert_eq!(answers, 3);
}

#[test]
fn options_of_no_length_or_beyond_the_end_are_refused() {
    let mut frames = Vec::new();
    table(A, &B).tick(Instant::ZERO, &mut frames);
    let solicitation = frames.swap_remove(1);
    let length = HEADER + ipv6::HEADER + 24 + 1;
    for (len, outcome) in [
        (1, Ok(Handled::Request)),
        (0, Err(Ignored::Malformed)),
        (2, Err(Ignored::Malformed)),
        (255, Err(Ignored::Malformed)),
    ] {
        let mut changed = solicitation.clone();
        changed[length] = len;
        let mut b = table(B, &A);
        let found = deliver(&mut b, Instant::ZERO, &changed, &mut limit()).0;
        assert_eq!(found, outcome, "length {len}");
    }
}

#[test]
fn requests_are_answered_at_the_rate_of_the_bucket() {
    let mut b = table(B, &A);
    let mut frames = Vec::new();
    table(A, &B).tick(Instant::ZERO, &mut frames);
    let mut answers = TokenBucket::new(Duration::from_secs(1), 3);
    let mut outcomes = (0..10).map(|_| deliver(&mut b, Instant::ZERO, &frames[0], &mut answers).0);
    assert!(outcomes.by_ref().take(3).all(|o| o == Ok(Handled::Request)));
    assert!(outcomes.all(|o| o == Err(Ignored::Rate)));
}

proptest! {
    /// Messages of any length and content, valid ones with some bytes changed among them.
    #[test]
    fn no_message_panics_or_adds_an_entry(
        messages in proptest::collection::vec(
            (proptest::collection::vec(any::<u8>(), 0..200), 0usize..4, 0usize..120, any::<u8>()), 1..40),
        src in any::<u128>(), dst in any::<u128>(), hop_limit in prop_oneof![Just(255u8), any::<u8>()],
    ) {
        let mut a = table(A, &B);
        let mut valid = vec![announcement(B), announcement(Local { mac: [2; 6], ..A })];
        table(B, &A).tick(Instant::ZERO, &mut valid);
        let mut answers = limit();
        let mut send = Vec::new();
        for (n, (mut bytes, kind, at, value)) in messages.into_iter().enumerate() {
            let now = Instant::from_nanos(n as u64 * 1_000_000);
            if kind < 3 {
                bytes = valid[kind % valid.len()][HEADER..].to_vec();
                let at = at % bytes.len();
                bytes[at] = value;
            }
            let header = ipv6::Repr {
                src, dst, next_header: 58, hop_limit, traffic_class: 0, payload_len: bytes.len() as u16,
            };
            let mut packet = header.to_bytes().to_vec();
            packet.extend_from_slice(&bytes);
            let ip = Ipv6::parse(&packet).unwrap();
            let _ = a.receive_arp(now, &bytes, &mut answers, &mut send);
            let _ = a.receive_solicitation(now, &ip, B.mac, &bytes, &mut answers, &mut send);
            let _ = a.receive_advertisement(now, &ip, B.mac, &bytes);
        }
        prop_assert_eq!(a.iter().count(), 2);
        // Every answer costs a token, but for the announcements of our own two addresses.
        prop_assert!(send.len() <= 50 + 2 + 40);
    }
}
