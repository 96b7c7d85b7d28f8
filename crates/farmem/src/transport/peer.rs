//! The other end of a datagram, and the address of this machine that it was sent to.

use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};

use nix::libc::{in6_addr, in6_pktinfo, in_addr, in_pktinfo};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, SockaddrStorage};

/// The sender of a datagram, to whom its answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// The address of this machine that the datagram was sent to, and from which the answer must
    /// leave; `None` to leave that to the kernel, whose choice is right for a socket that is bound
    /// to one address.
    pub(crate) local: Option<IpAddr>,
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Peer {
        Peer {
            address,
            local: None,
        }
    }
}

impl Peer {
    /// Returns the control message of [`Peer::local`].
    pub(super) fn source(&self) -> Option<Source> {
        Some(match self.local? {
            IpAddr::V4(address) => Source::V4(in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: in_addr {
                    s_addr: u32::from(address).to_be(),
                },
                ipi_addr: in_addr { s_addr: 0 },
            }),
            IpAddr::V6(address) => Source::V6(in6_pktinfo {
                ipi6_addr: in6_addr {
                    s6_addr: address.octets(),
                },
                ipi6_ifindex: 0,
            }),
        })
    }
}

/// The address that a datagram leaves from, for the kernel.
pub(super) enum Source {
    V4(in_pktinfo),
    V6(in6_pktinfo),
}

impl Source {
    pub(super) fn message(&self) -> ControlMessage<'_> {
        match self {
            Source::V4(info) => ControlMessage::Ipv4PacketInfo(info),
            Source::V6(info) => ControlMessage::Ipv6PacketInfo(info),
        }
    }
}

/// Returns the address of this machine that a datagram was sent to, if the message says it.
pub(super) fn destination(message: &ControlMessageOwned) -> Option<IpAddr> {
    match message {
        // Not the header's destination, which may be a broadcast address.
        ControlMessageOwned::Ipv4PacketInfo(info) => {
            Some(IpAddr::V4(u32::from_be(info.ipi_spec_dst.s_addr).into()))
        }
        ControlMessageOwned::Ipv6PacketInfo(info) => {
            Some(IpAddr::V6(info.ipi6_addr.s6_addr.into()))
        }
        _ => None,
    }
}

/// Returns the address of a sender; `None` if it is not one of IP.
pub(super) fn sender(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in();
    let v6 = address.as_sockaddr_in6();
    v4.map(|v4| SocketAddrV4::from(*v4).into())
        .or_else(|| v6.map(|v6| SocketAddrV6::from(*v6).into()))
}
