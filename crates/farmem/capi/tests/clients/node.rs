//! Nodes for the programs.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tare_farmem::memory::{Config, Store};
use tare_farmem::protocol::{Authentication, Node, NodeConfig, Secret};
use tare_farmem::serve::{Service, ServiceConfig};

use crate::tools::not_tested;

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Sends a datagram over the loopback interface, which may be down.
fn loopback() -> std::io::Result<usize> {
    let socket = UdpSocket::bind(ANY)?;
    socket.send_to(&[0], socket.local_addr()?)
}

/// A node that runs.
pub(crate) struct Running {
    service: Service<Store>,
}

impl Running {
    /// Starts a node of 64 MiB; `None`, with a note, without a loopback interface.
    pub(crate) fn start() -> Option<Running> {
        Running::with_secret(None)
    }

    /// The same with encryption, if there is a secret.
    pub(crate) fn with_secret(secret: Option<Secret>) -> Option<Running> {
        if let Err(error) = loopback() {
            not_tested(&format!("clients in C and Python: 127.0.0.1: {error}"));
            return None;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let epoch = now.expect("a time after 1970").as_nanos() as u64;
        let config = NodeConfig {
            // A timeout that a machine with other things to do can keep.
            timeout: Duration::from_secs(60),
            bytes_per_second: 4_000_000,
            ..NodeConfig::new(epoch)
        };
        let authentication = match secret {
            None => Authentication::None,
            // Keys differ by the epoch, so that no nonce is used twice with one.
            Some(_) => Authentication::Aead {
                first_nonce: *b"first nonce.",
            },
        };
        let config = NodeConfig {
            authentication,
            ..config
        };
        let mut node = Node::new(config, Store::new(&Config::new(64 << 20)));
        if let Some(secret) = secret {
            node.set_secret(secret);
        }
        let service = Service::start(&ServiceConfig::new(ANY), node).expect("a node");
        Some(Running { service })
    }

    /// Returns the address for clients.
    pub(crate) fn address(&self) -> String {
        format!("udp://{}", self.service.address().expect("an address"))
    }

    pub(crate) fn stop(self) {
        self.service.stop().expect("workers that did not fail");
    }
}

/// A socket that receives and never answers, and its address for clients.
pub(crate) fn silent() -> (UdpSocket, String) {
    let socket = UdpSocket::bind(ANY).expect("a socket");
    let address = socket.local_addr().expect("an address");
    (socket, format!("udp://{address}"))
}
