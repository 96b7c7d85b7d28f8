//! Ends of cables in memory.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tare_farmem::memory::{Config, Store};
use tare_farmem::protocol::{ClientConfig, Node, NodeConfig};
use tare_farmem::serve::{FairMutex, Turn, XdpSource};
use tare_farmem::session::random_id;
use tare_farmem::transport::xdp::XdpStation;
use tare_farmem::transport::Waiting;
use tare_packet::ethernet::Mac;
use tare_port::{memory, Exclusive, Layout, Memory, Pool};

pub(crate) const NODE_MAC: Mac = [2, 0, 0, 0, 0, 1];
pub(crate) const CLIENT_MAC: Mac = [2, 0, 0, 0, 0, 2];
pub(crate) const MTU: usize = 1500;

/// The longest datagram over IPv6.
const DATAGRAM: usize = MTU - 48;

/// A node at a port in memory.
pub(crate) struct MemoryNode {
    pub(crate) node: FairMutex<Node<Store>>,
    pub(crate) source: XdpSource<Memory>,
}

impl MemoryNode {
    /// Makes a node, and the other end of its cable.
    pub(crate) fn new(address: SocketAddr) -> (MemoryNode, Exclusive<Memory>) {
        let (here, there) = cable();
        let station = XdpStation::new(here, NODE_MAC, address, MTU);
        let node = MemoryNode {
            node: FairMutex::new(node()),
            source: XdpSource::new(station),
        };
        (node, there)
    }

    /// Lets it answer what has come.
    pub(crate) fn turn(&mut self) -> Turn {
        let wait = Duration::ZERO;
        let turn = self.source.take_turn(&self.node, wait, Waiting::Busy);
        turn.unwrap()
    }
}

/// Both ends of a cable, each with frames of its own.
pub(crate) fn cable() -> (Exclusive<Memory>, Exclusive<Memory>) {
    let (a, b) = memory(1024);
    let end = |port| Exclusive::new(port, Pool::new(1024, 2048, Layout::Spread).unwrap());
    (end(a), end(b))
}

/// Timeouts that a test machine with other things to do can keep.
pub(crate) fn node() -> Node<Store> {
    let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let config = NodeConfig {
        timeout: Duration::from_secs(60),
        bytes_per_second: 50_000_000,
        datagram_bytes: DATAGRAM,
        ..NodeConfig::new(epoch.as_nanos() as u64)
    };
    Node::new(config, Store::new(&Config::new(16 << 20)))
}

pub(crate) fn client_config() -> ClientConfig {
    ClientConfig {
        timeout: Duration::from_secs(60),
        ..ClientConfig::new(random_id().unwrap())
    }
}

/// The frames that have come at an end.
pub(crate) fn frames(port: &mut Exclusive<Memory>) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while port
        .receive(64, |frame| frames.push(frame.to_vec()))
        .unwrap()
        > 0
    {}
    frames
}

pub(crate) fn send(port: &mut Exclusive<Memory>, frame: &[u8]) {
    assert!(port.put(frame.len(), |place| place.copy_from_slice(frame)));
    assert_eq!(port.send().unwrap(), 0);
}
