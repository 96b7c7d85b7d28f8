//! Ports of real interfaces, in network namespaces (root).

use std::time::Duration;

use tare_farmem::memory::Store;
use tare_farmem::serve::{Service, ServiceConfig, XdpSource};
use tare_farmem::session::{connect, Options, Session};
use tare_farmem::transport::xdp::{XdpAddress, XdpStation};
use tare_farmem::transport::Waiting;
use tare_port::namespaces::Namespaces;
use tare_port::Kind;

use crate::support::{client_config, node};

/// Busy for a moment, then asleep.
const ADAPTIVE: Waiting = Waiting::Adaptive(Duration::from_micros(50));

fn service(
    place: &str,
    spaces: &Namespaces,
    at: &str,
    kind: Kind,
    wait: Waiting,
) -> Service<Store> {
    let at: XdpAddress = at.parse().unwrap();
    let (station, opened) = spaces.within(place, || XdpStation::open(&at, kind).unwrap());
    if kind == Kind::Packet {
        assert_eq!(opened.kind, kind);
    }
    let sources: Vec<Vec<Box<dyn tare_farmem::serve::Source<Store>>>> =
        vec![vec![Box::new(XdpSource::new(station))]];
    Service::with_sources(node(), sources, wait).unwrap()
}

fn session(place: &str, spaces: &Namespaces, node: &str, waiting: Waiting) -> Session {
    let options = Options {
        waiting,
        client: Some(client_config()),
        ..Options::default()
    };
    spaces.within(place, || connect(node, &options).unwrap())
}

/// Writes and reads, in one piece and in small ones.
fn use_memory(session: &mut Session) {
    session.open().unwrap();
    let address = session.alloc(1 << 20).unwrap();
    let data: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
    session.write(address + 5, &data).unwrap();
    let mut back = vec![0; data.len()];
    session.read(address + 5, &mut back).unwrap();
    assert!(back == data);
    for number in 0..200u64 {
        assert_eq!(session.fetch_add(address + (1 << 19), 1).unwrap(), number);
    }
    session.close().unwrap();
}

#[test]
fn a_node_over_frames_serves_clients_over_sockets_and_over_frames_through_a_bridge() {
    let places = ["node", "switch", "socket", "frames"];
    let Some(spaces) = Namespaces::of_test("farmem", &places) else {
        return;
    };
    spaces.ip("switch", "link add bridge type bridge");
    spaces.ip("switch", "link set bridge up");
    for (place, port) in [("node", "port0"), ("socket", "port1"), ("frames", "port2")] {
        spaces.cable([place, "switch"], ["net", port]);
        spaces.ip("switch", &format!("link set {port} master bridge"));
    }
    spaces.ip("socket", "addr add 10.78.0.2/24 dev net");
    spaces.ip("socket", "addr add fd78::2/64 dev net nodad");
    let ends = [
        ("10.78.0.1:7311", "10.78.0.3"),
        ("[fd78::1]:7311", "fd78::3"),
    ];
    let ways = [
        (Kind::Auto, Waiting::Asleep),
        (Kind::Packet, Waiting::Asleep),
        (Kind::Auto, ADAPTIVE),
    ];
    for (kind, waiting) in ways {
        for (at, client) in ends {
            let service = service("node", &spaces, &format!("net,{at}"), kind, waiting);
            let mut socket = session("socket", &spaces, &format!("udp://{at}"), waiting);
            let place = format!("xdp:net,{client},{at}");
            let mut frames = session("frames", &spaces, &place, waiting);
            use_memory(&mut socket);
            use_memory(&mut frames);
            let work = service.work()[0];
            assert!(work.traffic.received > 400 && work.traffic.sent > 400);
            let node = service.stop().unwrap();
            assert_eq!(node.counters().malformed, 0);
        }
    }
}

#[test]
fn a_client_over_frames_uses_a_node_over_sockets() {
    let Some(spaces) = Namespaces::of_test("farmem", &["node", "client"]) else {
        return;
    };
    spaces.cable(["node", "client"], ["net", "net"]);
    spaces.ip("node", "addr add 10.78.0.1/24 dev net");
    spaces.ip("node", "addr add fd78::1/64 dev net nodad");
    for (at, client) in [
        ("10.78.0.1:7311", "10.78.0.3"),
        ("[fd78::1]:7311", "fd78::3"),
    ] {
        let listen = ServiceConfig::new(at.parse().unwrap());
        let service = spaces.within("node", || Service::start(&listen, node()).unwrap());
        let place = format!("xdp:net,{client},{at}");
        for waiting in [Waiting::Asleep, ADAPTIVE] {
            use_memory(&mut session("client", &spaces, &place, waiting));
        }
        service.stop().unwrap();
    }
}

#[test]
fn an_interface_whose_frames_another_station_receives_is_refused() {
    let Some(spaces) = Namespaces::of_test("farmem", &["node", "client"]) else {
        return;
    };
    spaces.cable(["node", "client"], ["net", "net"]);
    let at: XdpAddress = "net,10.78.0.1:7311".parse().unwrap();
    let (_first, opened) = spaces.within("node", || XdpStation::open(&at, Kind::Auto).unwrap());
    if opened.kind == Kind::Packet {
        // Without AF_XDP stations get what arrives beside each other.
        return;
    }
    let second = spaces.within("node", || XdpStation::open(&at, Kind::Auto).map(drop));
    let error = second.unwrap_err().to_string();
    assert!(error.contains("another socket has this queue"), "{error}");
    let absent: XdpAddress = "absent,10.78.0.1:7311".parse().unwrap();
    let absent = spaces.within("node", || XdpStation::open(&absent, Kind::Auto).map(drop));
    let error = absent.unwrap_err().to_string();
    assert!(error.contains("no interface \"absent\""), "{error}");
}
