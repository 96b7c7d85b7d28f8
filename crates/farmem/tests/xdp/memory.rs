//! Client and node at the ends of a cable in memory, on one thread.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use tare_farmem::operation::{Operation, PageSize, Permission, SpaceId, Value};
use tare_farmem::protocol::{Client, ClientConfig, Completion, Datagrams};
use tare_farmem::transport::xdp::{XdpLink, XdpStation};
use tare_farmem::transport::{Channel as _, Link as _, Remote, Waiting};
use tare_neighbor::{Local, Neighbors};
use tare_packet::{ethernet, frame};
use tare_port::{Exclusive, Memory};
use tare_sim::{Instant, TokenBucket};

use crate::support::{cable, client_config, frames, send, MemoryNode, CLIENT_MAC, MTU, NODE_MAC};

/// Both ends.
struct World {
    node: MemoryNode,
    client: Remote<XdpLink<Memory>>,
}

impl World {
    fn new(node: &str, client: &str) -> World {
        let address: SocketAddr = node.parse().unwrap();
        let (node, there) = MemoryNode::new(address);
        let station = XdpStation::new(there, CLIENT_MAC, client.parse().unwrap(), MTU);
        let config = ClientConfig {
            datagram_bytes: Some(station.datagram_max()),
            ..client_config()
        };
        let link = XdpLink::new(station, address, Waiting::Busy);
        World {
            node,
            client: Remote::new(Client::new(config), link),
        }
    }

    fn run(&mut self, operation: &Operation<'_>) -> Completion {
        self.client.submit(SpaceId(7), operation).unwrap();
        loop {
            self.client.progress(Duration::ZERO).unwrap();
            self.node.turn();
            if let Some(completion) = self.client.poll() {
                return completion;
            }
        }
    }
}

#[test]
fn a_node_whose_address_names_its_zone_is_heard() {
    let (mut node, there) = MemoryNode::new("[fe80::1]:7311".parse().unwrap());
    let own = "[fe80::2]:50000".parse().unwrap();
    let station = XdpStation::new(there, CLIENT_MAC, own, MTU);
    let address = "[fe80::1%3]:7311".parse().unwrap();
    let link = XdpLink::new(station, address, Waiting::Busy);
    let mut client = Remote::new(Client::new(client_config()), link);
    client.submit(SpaceId(7), &Operation::Open).unwrap();
    let completion = loop {
        client.progress(Duration::ZERO).unwrap();
        node.turn();
        if let Some(completion) = client.poll() {
            break completion;
        }
    };
    assert_eq!(completion.outcome, Ok(Value::None));
}

#[test]
fn operations_over_frames_do_over_ipv4_and_ipv6_what_they_say() {
    let ends = [
        ("10.0.0.1:7311", "10.0.0.2:50000"),
        ("[fd00::1]:7311", "[fd00::2]:50000"),
    ];
    for (node, client) in ends {
        let mut world = World::new(node, client);
        let start = Instant::now();
        world.run(&Operation::Open).outcome.unwrap();
        let greeted_in = Instant::now().since(start);
        let alloc = Operation::Alloc {
            bytes: 1 << 20,
            page: PageSize::Small,
            at: None,
            permission: Permission::READ_WRITE,
            sparse: false,
        };
        let Value::Address(address) = world.run(&alloc).outcome.unwrap() else {
            panic!("no address");
        };
        let data: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
        let write = Operation::Write {
            address: address + 5,
            data: &data,
            guard: None,
        };
        world.run(&write).outcome.unwrap();
        let read = Operation::Read {
            address: address + 5,
            len: data.len() as u32,
        };
        let read = world.run(&read);
        read.outcome.unwrap();
        assert!(read.data == data);
        let link = world.client.link().station().counters();
        let node = world.node.source.station_mut().counters();
        let dropped = [link, node].map(|c| c.foreign + c.malformed);
        assert_eq!(dropped, [0, 0], "{link:?} {node:?}");
        // A node that was slow to answer has been asked twice, and both answers came.
        if greeted_in < Duration::from_millis(250) {
            assert_eq!([link, node].map(|c| c.ignored), [0, 0], "{link:?} {node:?}");
        }
    }
}

#[test]
fn datagrams_wait_for_the_address_of_their_station_and_leave_in_their_order() {
    let (here, mut there) = cable();
    let node = Ipv4Addr::new(10, 0, 0, 1);
    let station = XdpStation::new(here, CLIENT_MAC, "10.0.0.2:7311".parse().unwrap(), MTU);
    let mut link = XdpLink::new(station, (node, 7311).into(), Waiting::Busy);
    let mut datagrams = Datagrams::new();
    for number in 1..=3 {
        datagrams.push(&[number; 100]);
    }
    link.send(&datagrams).unwrap();
    let request = frames(&mut there);
    let [request] = &request[..] else {
        panic!("{} frames", request.len());
    };
    answer(request, node, &mut there);
    let mut buffer = vec![0; 1 << 16];
    assert_eq!(link.receive(&mut buffer, Duration::ZERO).unwrap(), 0);
    let sent = frames(&mut there);
    let first: Vec<_> = sent.iter().map(|frame| frame[42]).collect();
    assert_eq!(first, [1, 2, 3]);
    assert!(sent.iter().all(|frame| frame[..6] == NODE_MAC));

    // What the node sends comes in one piece; what another station sends does not come at all.
    let [own, node, other] = [2, 1, 3].map(|last| IpAddr::from(Ipv4Addr::new(10, 0, 0, last)));
    for (from, bytes) in [(node, [4; 60]), (other, [5; 60]), (node, [6; 60])] {
        let frame = frame::udp(CLIENT_MAC, NODE_MAC, from, own, 7311, &bytes).unwrap();
        send(&mut there, &frame);
    }
    assert_eq!(link.receive(&mut buffer, Duration::ZERO).unwrap(), 120);
    assert_eq!((buffer[0], buffer[60]), (4, 6));
}

#[test]
fn a_datagram_longer_than_the_interface_takes_is_not_sent_and_counted() {
    let (here, mut there) = cable();
    let station = XdpStation::new(here, CLIENT_MAC, "10.0.0.2:7311".parse().unwrap(), MTU);
    assert_eq!(station.datagram_max(), 1472);
    let node = Ipv4Addr::new(10, 0, 0, 1);
    let mut link = XdpLink::new(station, (node, 7311).into(), Waiting::Busy);
    let mut datagrams = Datagrams::new();
    for len in [1472, 1473, 4000] {
        datagrams.push(&vec![1; len]);
    }
    link.send(&datagrams).unwrap();
    answer(&frames(&mut there)[0], node, &mut there);
    let mut buffer = vec![0; 1 << 16];
    link.receive(&mut buffer, Duration::ZERO).unwrap();
    let sent: Vec<_> = frames(&mut there).iter().map(Vec::len).collect();
    assert_eq!(sent, [MTU + ethernet::HEADER]);
    assert_eq!(link.station().counters().unsent, 2);
}

/// Answers a request for an address.
fn answer(request: &[u8], address: Ipv4Addr, link: &mut Exclusive<Memory>) {
    assert_eq!(ethernet::kind(request), Some(ethernet::ARP));
    let mut neighbors = Neighbors::new(Local {
        mac: NODE_MAC,
        ip4: Some(address),
        ip6: None,
    });
    let mut replies = Vec::new();
    let mut limit = TokenBucket::new(Duration::from_secs(1), 1);
    let packet = &request[ethernet::HEADER..];
    neighbors
        .receive_arp(Instant::now(), packet, &mut limit, &mut replies)
        .unwrap();
    send(link, &replies[0]);
}
