//! The differences between the two versions of IP, for the inner packet of a tunnel.

use tare_packet::ethernet::HEADER;
use tare_packet::ipv4::{self, Ipv4};
use tare_packet::ipv6::{self, Ipv6};

use super::tables::Tables;
use super::{InterfaceHeaders, OwnAddresses};
use crate::dataplane::esp;

/// The address of a packet that selects its route.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RouteBy {
    Source,
    Destination,
}

/// The fields of an inner packet that the passes need.
pub(super) struct Inner {
    /// The route of the address that selects it, which is [`MARTIAN`] if packets are never
    /// forwarded from or to it.
    ///
    /// [`MARTIAN`]: super::prefixes::MARTIAN
    pub(super) route: u32,
    /// True if one of the [`Exception`]s holds. One bit for all, as three would not have registers
    /// until they are looked at.
    pub(super) is_exception: bool,
    pub(super) hops: u8,
    /// DSCP and ECN.
    pub(super) tos: u8,
    /// Bytes of header and payload.
    pub(super) len: usize,
}

/// The reasons that a packet is not simply forwarded because of its addresses.
pub(super) struct Exception {
    /// True if it is for this gateway itself.
    pub(super) own: bool,
    /// True if the source is an address of this gateway.
    pub(super) own_source: bool,
    /// True if packets are never forwarded from or to the address that does not select the route.
    pub(super) martian: bool,
}

impl Exception {
    #[inline(always)]
    fn holds(&self) -> bool {
        self.own | self.own_source | self.martian
    }
}

/// A version of IP.
pub(super) trait Version {
    /// Its next header value in the ESP trailer.
    const NEXT_HEADER: u8;

    /// Reads and checks the header at the start of `packet`; `None` if it is malformed.
    fn read(tables: &Tables, own: &OwnAddresses, packet: &[u8], by: RouteBy) -> Option<Inner>;

    /// Returns which exceptions hold for a packet that [`Version::read`] has read.
    fn exception(
        tables: &Tables,
        own: &OwnAddresses,
        packet: &[u8],
        by: RouteBy,
    ) -> Option<Exception>;

    /// Decrements TTL or hop limit.
    fn decrement_ttl(packet: &mut [u8]);

    /// Sets DSCP and ECN.
    fn set_tos(packet: &mut [u8], tos: u8);

    /// Returns the Ethernet header of such packets.
    fn link(headers: &InterfaceHeaders) -> &Option<[u8; HEADER]>;
}

pub(super) enum V4 {}

impl Version for V4 {
    const NEXT_HEADER: u8 = esp::INNER_IPV4;

    #[inline(always)]
    fn read(tables: &Tables, own: &OwnAddresses, packet: &[u8], by: RouteBy) -> Option<Inner> {
        let ip = Ipv4::parse(packet).ok()?;
        let address = match by {
            RouteBy::Source => ip.src,
            RouteBy::Destination => ip.dst,
        };
        Some(Inner {
            is_exception: exception4(tables, own, &ip, by).holds(),
            route: tables.prefixes.v4(address),
            hops: ip.ttl,
            tos: ip.tos,
            len: ip.total_len,
        })
    }

    #[cold]
    fn exception(
        tables: &Tables,
        own: &OwnAddresses,
        packet: &[u8],
        by: RouteBy,
    ) -> Option<Exception> {
        let ip = Ipv4::parse(packet).ok()?;
        Some(exception4(tables, own, &ip, by))
    }

    #[inline(always)]
    fn decrement_ttl(packet: &mut [u8]) {
        ipv4::decrement_ttl(packet);
    }

    #[inline(always)]
    fn set_tos(packet: &mut [u8], tos: u8) {
        ipv4::set_tos(packet, tos);
    }

    #[inline(always)]
    fn link(headers: &InterfaceHeaders) -> &Option<[u8; HEADER]> {
        &headers.v4
    }
}

pub(super) enum V6 {}

impl Version for V6 {
    const NEXT_HEADER: u8 = esp::INNER_IPV6;

    #[inline(always)]
    fn read(tables: &Tables, own: &OwnAddresses, packet: &[u8], by: RouteBy) -> Option<Inner> {
        let ip = Ipv6::parse(packet).ok()?;
        let address = match by {
            RouteBy::Source => ip.src,
            RouteBy::Destination => ip.dst,
        };
        Some(Inner {
            is_exception: exception6(own, &ip, by).holds(),
            route: tables.prefixes.v6(address),
            hops: ip.hop_limit,
            tos: ip.traffic_class,
            len: ip.total_len,
        })
    }

    #[cold]
    fn exception(_: &Tables, own: &OwnAddresses, packet: &[u8], by: RouteBy) -> Option<Exception> {
        let ip = Ipv6::parse(packet).ok()?;
        Some(exception6(own, &ip, by))
    }

    #[inline(always)]
    fn decrement_ttl(packet: &mut [u8]) {
        ipv6::decrement_hop_limit(packet);
    }

    #[inline(always)]
    fn set_tos(packet: &mut [u8], tos: u8) {
        ipv6::set_traffic_class(packet, tos);
    }

    #[inline(always)]
    fn link(headers: &InterfaceHeaders) -> &Option<[u8; HEADER]> {
        &headers.v6
    }
}

#[inline(always)]
fn exception4(tables: &Tables, own: &OwnAddresses, ip: &Ipv4, by: RouteBy) -> Exception {
    let other = match by {
        RouteBy::Source => ip.dst,
        RouteBy::Destination => ip.src,
    };
    Exception {
        own: own.has4(ip.dst),
        own_source: own.has4(ip.src),
        martian: tables.prefixes.is_martian4(other),
    }
}

#[inline(always)]
fn exception6(own: &OwnAddresses, ip: &Ipv6, by: RouteBy) -> Exception {
    let (other, group) = match by {
        RouteBy::Source => (ip.dst, false),
        RouteBy::Destination => (ip.src, ipv6::is_multicast(ip.dst)),
    };
    Exception {
        own: own.has6(ip.dst) || group,
        own_source: own.has6(ip.src),
        martian: !ipv6::is_host(other) || ipv6::is_link_local(other),
    }
}
