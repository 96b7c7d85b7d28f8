//! A node whose link carries anything: what it takes, what it answers, and to whom.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use tare_farmem::operation::{Operation, SpaceId};
use tare_farmem::protocol::{Client, Datagrams};
use tare_neighbor::{Local, Neighbors};
use tare_packet::ethernet::{self, Mac};
use tare_packet::frame;
use tare_port::{Exclusive, Memory};
use tare_sim::{Instant, TokenBucket};

use crate::support::{client_config, frames, send, MemoryNode, CLIENT_MAC, NODE_MAC};

const PORT: u16 = 7311;
const NODE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// The first datagram of a client, which a node always answers.
fn question() -> Vec<u8> {
    let mut client = Client::new(client_config());
    let now = Instant::now();
    client.submit(now, SpaceId(1), &Operation::Open).unwrap();
    let mut out = Datagrams::new();
    while client.transmit(now, &mut out) {}
    let datagram = out.iter().next().unwrap().to_vec();
    datagram
}

fn datagram(mac: Mac, from: Ipv4Addr, bytes: &[u8]) -> Vec<u8> {
    frame::udp(NODE_MAC, mac, from.into(), NODE.into(), PORT, bytes).unwrap()
}

/// A station that answers for an address.
fn station(mac: Mac, address: Ipv4Addr) -> Neighbors {
    Neighbors::new(Local {
        mac,
        ip4: Some(address),
        ip6: None,
    })
}

/// Lets a station answer what was asked; returns the frames that were no requests.
fn answer(station: &mut Neighbors, link: &mut Exclusive<Memory>) -> Vec<Vec<u8>> {
    let mut limit = TokenBucket::new(Duration::from_nanos(1), 1 << 20);
    let (mut others, mut replies) = (Vec::new(), Vec::new());
    for frame in frames(link) {
        match ethernet::kind(&frame) {
            Some(ethernet::ARP) => {
                let packet = &frame[ethernet::HEADER..];
                let _ = station.receive_arp(Instant::now(), packet, &mut limit, &mut replies);
            }
            _ => others.push(frame),
        }
    }
    replies.iter().for_each(|reply| send(link, reply));
    others
}

/// Sends a question from an address until the answer comes, and returns it.
fn ask(node: &mut MemoryNode, link: &mut Exclusive<Memory>, client: &mut Neighbors) -> Vec<u8> {
    send(link, &datagram(CLIENT_MAC, CLIENT, &question()));
    loop {
        node.turn();
        let mut answers = answer(client, link);
        if let Some(answer) = answers.pop() {
            assert!(answers.is_empty(), "one question, several answers");
            return answer;
        }
    }
}

#[test]
fn nothing_is_sent_to_an_address_whose_station_does_not_answer_for_it() {
    let (mut node, mut link) = MemoryNode::new((NODE, PORT).into());
    let question = question();
    let started = Instant::now();
    let floods = 20_000u32;
    let mut received = 0;
    let mut requests = 0;
    for number in 0..floods {
        let from = Ipv4Addr::from_bits(Ipv4Addr::new(10, 1, 0, 1).to_bits() + number);
        send(&mut link, &datagram([2, 9, 9, 9, 9, 9], from, &question));
        received += node.turn().received;
        for frame in frames(&mut link) {
            assert_eq!(ethernet::kind(&frame), Some(ethernet::ARP));
            assert_eq!(frame[..6], ethernet::BROADCAST);
            requests += 1;
        }
    }
    assert_eq!(received, u64::from(floods));
    // At most 64 at once, one more per millisecond, and each repeated with longer pauses: five
    // times within three seconds, after which it is given up.
    let elapsed = Instant::now().since(started).as_millis() as u64;
    let bound = 5 * (64 + elapsed + 1);
    assert!(requests <= bound, "{requests} requests in {elapsed} ms");
    let unsent = node.source.station_mut().counters().unsent;
    assert!(unsent + 128 + requests >= u64::from(floods), "{unsent}");

    // One that is there is answered all the same, once the limit allows.
    let mut client = station(CLIENT_MAC, CLIENT);
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        send(&mut link, &datagram(CLIENT_MAC, CLIENT, &question));
        node.turn();
        let answers = answer(&mut client, &mut link);
        if answers.iter().any(|frame| frame[..6] == CLIENT_MAC) {
            break;
        }
        assert!(answers.is_empty());
        assert!(Instant::now() < deadline, "no answer");
    }
}

#[test]
fn a_station_that_claims_a_clients_address_does_not_get_its_answers() {
    let (mut node, mut link) = MemoryNode::new((NODE, PORT).into());
    let mut client = station(CLIENT_MAC, CLIENT);
    assert_eq!(ask(&mut node, &mut link, &mut client)[..6], CLIENT_MAC);
    let thief = [2, 6, 6, 6, 6, 6];
    for target in [NODE, CLIENT] {
        // An answer without a question, a request, and an announcement.
        let mut replies = Vec::new();
        station(thief, CLIENT).announce(&mut replies);
        let mut asking = station(thief, CLIENT);
        asking.set_targets([IpAddr::from(target)], Instant::now());
        asking.tick(Instant::now(), &mut replies);
        let mut reply = replies[0].clone();
        reply[21] = 2;
        reply[38..42].copy_from_slice(&NODE.octets());
        reply[..6].copy_from_slice(&NODE_MAC);
        replies.push(reply);
        replies.iter().for_each(|claim| send(&mut link, claim));
        node.turn();
        assert_eq!(ask(&mut node, &mut link, &mut client)[..6], CLIENT_MAC);
    }
    assert!(node.source.station_mut().counters().ignored >= 4);
}

#[test]
fn every_frame_is_taken_or_counted_and_the_node_goes_on() {
    let (mut node, mut link) = MemoryNode::new((NODE, PORT).into());
    let mut client = station(CLIENT_MAC, CLIENT);
    ask(&mut node, &mut link, &mut client);
    let valid = datagram(CLIENT_MAC, CLIENT, &question());
    let mut arp = Vec::new();
    client.set_targets([IpAddr::from(NODE)], Instant::now());
    client.tick(Instant::now(), &mut arp);
    let mut random = 1u64;
    let mut next = |below: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) as usize % below
    };
    let before = node.source.station_mut().counters();
    let (mut sent, mut received, mut refused) = (0, 0, 0);
    for round in 0..20_000 {
        let mut frame = if round % 4 == 0 {
            arp[0].clone()
        } else {
            valid.clone()
        };
        // Not the address of the client: a datagram of another one is in order.
        for _ in 0..1 + next(4) {
            let at = next(frame.len());
            frame[at] = next(256) as u8;
        }
        if round % 8 == 1 {
            frame.truncate(next(frame.len()));
        }
        send(&mut link, &frame);
        sent += 1;
        let turn = node.turn();
        received += turn.received;
        refused += turn.refused;
        // Answers of ARP are in no count.
        frames(&mut link);
    }
    let after = node.source.station_mut().counters();
    let dropped =
        |c: &tare_farmem::transport::xdp::XdpCounters| c.foreign + c.malformed + c.ignored;
    assert_eq!(dropped(&after) - dropped(&before), refused);
    assert!(after.foreign > before.foreign && after.malformed > before.malformed);
    // A quarter was ARP, of which those that are requests all the same are answered.
    assert!(received + refused <= sent);
    assert!(
        received + refused > sent * 3 / 4 - 1,
        "{received} {refused}"
    );
    assert!(refused > sent / 2, "{refused}");
    let answer = ask(&mut node, &mut link, &mut client);
    assert_eq!(answer[..6], CLIENT_MAC);
}

#[test]
fn requests_for_the_own_address_are_answered_but_not_without_a_limit() {
    let (mut node, mut link) = MemoryNode::new((NODE, PORT).into());
    let mut asking = station(CLIENT_MAC, CLIENT);
    asking.set_targets([IpAddr::from(NODE)], Instant::now());
    let mut request = Vec::new();
    asking.tick(Instant::now(), &mut request);
    let started = Instant::now();
    let mut answers = 0;
    for _ in 0..20_000 {
        send(&mut link, &request[0]);
        node.turn();
        for frame in frames(&mut link) {
            assert_eq!(frame[..6], CLIENT_MAC);
            answers += 1;
        }
    }
    let elapsed = Instant::now().since(started).as_millis() as u64;
    assert!(
        answers > 0 && answers <= 64 + elapsed + 1,
        "{answers} in {elapsed} ms"
    );
    assert!(node.source.station_mut().counters().ignored >= 20_000 - answers);
}
