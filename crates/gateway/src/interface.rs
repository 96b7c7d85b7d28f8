//! The types of an interface: which one it is, the state that the system reports, what workers
//! know of it, and the headers that its packets leave with. Its configuration is
//! [`crate::config::InterfaceConfig`]; the control side keeps its next hops.

use tare_packet::ethernet::{self, Mac, HEADER};

/// The interface that a frame comes from or goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InterfaceId {
    /// The private interface.
    Private,
    /// The public interface.
    Public,
    /// The tunnel: what comes out of it is authentic and addressed to this gateway; what goes into
    /// it is to be given to [`crate::dataplane::Dataplane::outbound_own`].
    Tunnel,
}

impl InterfaceId {
    /// Returns its name in records and status reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            InterfaceId::Private => "private",
            InterfaceId::Public => "public",
            InterfaceId::Tunnel => "tunnel",
        }
    }
}

/// The state of an interface, as the operating system or a simulation reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceState {
    /// MAC address.
    pub mac: Mac,
    /// Maximum bytes of a packet, without the Ethernet header.
    pub mtu: u16,
    /// True if the interface is up.
    pub up: bool,
}

impl InterfaceState {
    /// Returns the same with an MTU of at most `most` bytes, the longest packet that a frame holds.
    /// The gateway can neither receive nor send longer ones, and a probe of the path MTU that was
    /// never sent would count as one that the path has dropped.
    pub(crate) fn limited_to(self, most: usize) -> InterfaceState {
        InterfaceState {
            mtu: self.mtu.min(u16::try_from(most).unwrap_or(u16::MAX)),
            ..self
        }
    }
}

/// An interface as workers see it: our addresses and those of the next hops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceView {
    /// MAC address.
    pub mac: Mac,
    /// Our IPv4 address.
    pub ip4: Option<u32>,
    /// Our IPv6 address.
    pub ip6: Option<u128>,
    /// MAC address of the next hop for IPv4; `None` if unknown.
    pub next_hop4: Option<Mac>,
    /// MAC address of the next hop for IPv6; `None` if unknown.
    pub next_hop6: Option<Mac>,
    /// Maximum bytes of a packet, without the Ethernet header.
    pub mtu: u16,
}

/// The MAC address of an interface, and the Ethernet headers of packets that leave by it; `None` if
/// the MAC address of the next hop is unknown.
#[derive(Clone, Copy, Default)]
pub(crate) struct InterfaceHeaders {
    pub(crate) mac: Mac,
    pub(crate) v4: Option<[u8; HEADER]>,
    pub(crate) v6: Option<[u8; HEADER]>,
}

impl InterfaceHeaders {
    pub(crate) fn new(interface: &InterfaceView) -> InterfaceHeaders {
        let header =
            |hop: Option<_>, kind| hop.map(|hop| ethernet::header(hop, interface.mac, kind));
        InterfaceHeaders {
            mac: interface.mac,
            v4: header(interface.next_hop4, ethernet::IPV4),
            v6: header(interface.next_hop6, ethernet::IPV6),
        }
    }
}
