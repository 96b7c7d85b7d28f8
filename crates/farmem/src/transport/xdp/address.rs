//! Addresses of ends on the frames of an interface.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// An interface, and the address of this end on it, which the kernel does not have: written
/// `IFACE,ADDRESS:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpAddress {
    /// The name of the interface, or its PCI address.
    pub interface: String,
    /// The address and port of this end.
    pub address: SocketAddr,
}

/// A text that is no [`XdpAddress`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotXdp;

impl XdpAddress {
    /// Reads what a client needs: `IFACE,ADDRESS,NODE:PORT`, with the address of this end, which
    /// may have a port (`ADDRESS:PORT`), and that of the node. Without a port it is 0.
    pub fn with_node(text: &str) -> Result<(XdpAddress, SocketAddr), NotXdp> {
        let (own, node) = text.rsplit_once(',').ok_or(NotXdp)?;
        let node: SocketAddr = node.parse().map_err(|_| NotXdp)?;
        let (interface, address) = own.split_once(',').ok_or(NotXdp)?;
        let without_port = || {
            let address: IpAddr = address.parse().map_err(|_| NotXdp)?;
            Ok((address, 0).into())
        };
        let address: SocketAddr = address.parse().or_else(|_| without_port())?;
        let own = XdpAddress {
            interface: interface.into(),
            address,
        };
        let is_one_family = own.address.is_ipv4() == node.is_ipv4();
        if interface.is_empty() || node.port() == 0 || !is_one_family {
            return Err(NotXdp);
        }
        Ok((own, node))
    }
}

impl FromStr for XdpAddress {
    type Err = NotXdp;

    fn from_str(text: &str) -> Result<XdpAddress, NotXdp> {
        let (interface, address) = text.split_once(',').ok_or(NotXdp)?;
        let address: SocketAddr = address.parse().map_err(|_| NotXdp)?;
        if interface.is_empty() || address.port() == 0 {
            return Err(NotXdp);
        }
        Ok(XdpAddress {
            interface: interface.into(),
            address,
        })
    }
}

impl fmt::Display for XdpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "xdp:{},{}", self.interface, self.address)
    }
}

impl fmt::Display for NotXdp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected IFACE,ADDRESS:PORT")
    }
}

impl std::error::Error for NotXdp {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_has_an_interface_an_address_and_a_port() {
        let end: XdpAddress = "eth1,10.0.0.1:7311".parse().unwrap();
        assert_eq!(end.interface, "eth1");
        assert_eq!(end.to_string(), "xdp:eth1,10.0.0.1:7311");
        let end: XdpAddress = "23:00.0,[fd00::1]:7311".parse().unwrap();
        assert_eq!(end.interface, "23:00.0");
        for wrong in [
            "",
            "eth1",
            ",10.0.0.1:7311",
            "eth1,10.0.0.1",
            "eth1,10.0.0.1:0",
            "a,b,c",
        ] {
            assert_eq!(wrong.parse::<XdpAddress>(), Err(NotXdp), "{wrong}");
        }
    }

    #[test]
    fn a_client_has_a_node_of_its_own_family_beside() {
        let read = XdpAddress::with_node;
        let (own, node) = read("eth1,10.0.0.2,10.0.0.1:7311").unwrap();
        assert_eq!(own.address, "10.0.0.2:0".parse().unwrap());
        assert_eq!(node, "10.0.0.1:7311".parse().unwrap());
        let (own, _) = read("eth1,[fd00::2]:9,[fd00::1]:7311").unwrap();
        assert_eq!(own.address.port(), 9);
        assert!(read("eth1,fd00::2,[fd00::1]:7311").is_ok());
        for wrong in [
            "eth1,10.0.0.1:7311",
            "eth1,fd00::2,10.0.0.1:7311",
            "eth1,10.0.0.2,10.0.0.1:0",
            "eth1,10.0.0.2,10.0.0.1",
            ",10.0.0.2,10.0.0.1:7311",
            "eth1,host,10.0.0.1:7311",
        ] {
            assert_eq!(read(wrong), Err(NotXdp), "{wrong}");
        }
    }
}
