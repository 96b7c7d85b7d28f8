//! The network between the roles: loopback, a cable between two namespaces, or a bridge.
//!
//! ```text
//! node  net ──────────────────────────── net  client      cable
//! node  net ── port0  bridge  port1 ──── net  client      bridge, in a namespace of its own
//! ```
//!
//! The node's side makes all of it in its namespace and in that of the bridge; the client takes its
//! end from there.

use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, Command, Stdio};

use anyhow::{ensure, Context as _};
use tare_lab::choices;

use crate::systems::namespace::{await_link, ip, within};

choices! {
    /// The network between the roles.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Network {
        /// The loopback interface.
        Loopback = "loopback",
        /// A cable between two network namespaces.
        Cable = "cable",
        /// Two cables with a bridge of the kernel between them.
        Bridge = "bridge",
    }
}

/// The interface of each side.
pub(super) const INTERFACE: &str = "net";

/// The client's end while it is in the node's namespace.
const FAR: &str = "far";

/// The addresses of node and client on a cable or a bridge.
pub(super) const NODE: Ipv4Addr = Ipv4Addr::new(10, 80, 0, 1);
pub(super) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 80, 0, 2);

/// The namespace of the bridge, which ends with this value.
struct Switch(Child);

impl Switch {
    fn start() -> anyhow::Result<Switch> {
        let mut command = Command::new("unshare");
        // It ends with its standard input, so with this process at the latest.
        command.args(["--net", "--", "sh", "-c", "echo && exec cat"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut switch = Switch(command.spawn().context("unshare")?);
        let output = switch.0.stdout.take().context("its output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        ensure!(
            !line.is_empty(),
            "no namespace for the bridge could be made"
        );
        Ok(switch)
    }

    /// Lays a cable from an interface of this namespace to a port of the bridge.
    fn connect(&self, interface: &str, port: &str) -> anyhow::Result<()> {
        let pid = self.0.id().to_string();
        ip(&[
            "link", "add", interface, "type", "veth", "peer", "name", port, "netns", &pid,
        ])?;
        within(self.0.id(), || {
            ip(&["link", "set", port, "master", "bridge"])?;
            ip(&["link", "set", port, "up"]).map(drop)
        })
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The node's side of a network, which lasts as long.
pub(super) struct NodeEnd {
    _switch: Option<Switch>,
}

impl Network {
    /// Makes the network, on the node's side. With `is_ours` the kernel gets no address, since this
    /// process takes the frames.
    ///
    /// # Errors
    /// Without the rights of root.
    pub(super) fn make(self, is_ours: bool) -> anyhow::Result<NodeEnd> {
        let switch = match self {
            Network::Loopback => None,
            Network::Cable => {
                ip(&[
                    "link", "add", INTERFACE, "type", "veth", "peer", "name", FAR,
                ])?;
                None
            }
            Network::Bridge => {
                let switch = Switch::start()?;
                within(switch.0.id(), || {
                    ip(&["link", "add", "bridge", "type", "bridge"])?;
                    ip(&["link", "set", "bridge", "up"]).map(drop)
                })?;
                switch.connect(INTERFACE, "port0")?;
                switch.connect(FAR, "port1")?;
                Some(switch)
            }
        };
        if self != Network::Loopback {
            address(NODE, is_ours)?;
            ip(&["link", "set", INTERFACE, "up"])?;
        }
        Ok(NodeEnd { _switch: switch })
    }

    /// Takes the client's end from the namespace of the node's side.
    ///
    /// # Errors
    /// Without the rights of root, and if the cable does not come up.
    pub(super) fn join(self, node: u32, is_ours: bool) -> anyhow::Result<()> {
        if self == Network::Loopback {
            return Ok(());
        }
        let own = std::process::id().to_string();
        within(node, || {
            ip(&["link", "set", FAR, "name", INTERFACE, "netns", &own]).map(drop)
        })?;
        address(CLIENT, is_ours)?;
        await_link(INTERFACE)
    }

    /// Returns the address that sockets of a side are bound to.
    pub(super) fn socket(self, own: Ipv4Addr) -> IpAddr {
        match self {
            Network::Loopback => Ipv4Addr::LOCALHOST.into(),
            _ => own.into(),
        }
    }
}

fn address(own: Ipv4Addr, is_ours: bool) -> anyhow::Result<()> {
    if !is_ours {
        ip(&["addr", "add", &format!("{own}/24"), "dev", INTERFACE])?;
    }
    Ok(())
}
