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
    /// True if it is for this gateway itself.
    pub(super) own: bool,
    /// The route of the address that selects it, which is [`MARTIAN`] if packets are never
    /// forwarded from or to it.
    ///
    /// [`MARTIAN`]: super::prefixes::MARTIAN
    pub(super) route: u32,
    /// True if packets are never forwarded from or to the other address.
    pub(super) martian: bool,
    /// True if the source is an address of this gateway.
    pub(super) own_source: bool,
    pub(super) hops: u8,
    /// DSCP and ECN.
    pub(super) tos: u8,
    /// Bytes of header and payload.
    pub(super) len: usize,
}

/// A version of IP.
pub(super) trait Version {
    /// Its next header value in the ESP trailer.
    const NEXT_HEADER: u8;

    /// Reads and checks the header at the start of `packet`; `None` if it is malformed.
    fn read(tables: &Tables, own: &OwnAddresses, packet: &[u8], by: RouteBy) -> Option<Inner>;

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
        let (address, other) = match by {
            RouteBy::Source => (ip.src, ip.dst),
            RouteBy::Destination => (ip.dst, ip.src),
        };
        Some(Inner {
            own: own.has4(ip.dst),
            route: tables.prefixes.v4(address),
            martian: tables.prefixes.is_martian4(other),
            own_source: own.has4(ip.src),
            hops: ip.ttl,
            tos: ip.tos,
            len: ip.total_len,
        })
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
        let (address, other, group) = match by {
            RouteBy::Source => (ip.src, ip.dst, false),
            RouteBy::Destination => (ip.dst, ip.src, ipv6::is_multicast(ip.dst)),
        };
        Some(Inner {
            own: own.has6(ip.dst) || group,
            route: tables.prefixes.v6(address),
            martian: !ipv6::is_host(other) || ipv6::is_link_local(other),
            own_source: own.has6(ip.src),
            hops: ip.hop_limit,
            tos: ip.traffic_class,
            len: ip.total_len,
        })
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
