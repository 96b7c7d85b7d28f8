//! Nodes and sessions of the tests.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tare_farmem::memory::{Config, Store};
use tare_farmem::protocol::{Node, NodeConfig};
use tare_farmem::serve::{Service, ServiceConfig};
use tare_farmem::session::{connect, Options, Session};

pub(crate) const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A number that no earlier node had.
pub(crate) fn epoch() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_nanos() as u64
}

/// A timeout that a test machine with other things to do can keep.
pub(crate) fn node_config() -> NodeConfig {
    NodeConfig {
        timeout: Duration::from_secs(60),
        bytes_per_second: 50_000_000,
        ..NodeConfig::new(epoch())
    }
}

pub(crate) fn store() -> Store {
    Store::new(&Config::new(64 << 20))
}

pub(crate) fn service(listen: SocketAddr, workers: usize) -> Service<Store> {
    let config = ServiceConfig {
        workers,
        ..ServiceConfig::new(listen)
    };
    Service::start(&config, Node::new(node_config(), store())).unwrap()
}

pub(crate) fn session(service: &Service<Store>) -> Session {
    let address = format!("udp://{}", service.address().unwrap());
    connect(&address, &options()).unwrap()
}

pub(crate) fn options() -> Options {
    let client =
        tare_farmem::protocol::ClientConfig::new(tare_farmem::session::random_id().unwrap());
    Options {
        client: Some(tare_farmem::protocol::ClientConfig {
            timeout: Duration::from_secs(60),
            ..client
        }),
        ..Options::default()
    }
}
