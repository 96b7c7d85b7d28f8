//! The differences between the two versions of IP, for the inner packet of a tunnel.

use tare_packet::ethernet::HEADER;
use tare_packet::ipv4::{self, Ipv4};
use tare_packet::ipv6::{self, Ipv6};

use super::tables::Tables;
use super::{is_multicast6, is_own4, is_own6, InterfaceHeaders};
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
    pub(super) route: u32,
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
    fn read(tables: &Tables, packet: &[u8], by: RouteBy) -> Option<Inner>;

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
    fn read(tables: &Tables, packet: &[u8], by: RouteBy) -> Option<Inner> {
        let ip = Ipv4::parse(packet).ok()?;
        let address = match by {
            RouteBy::Source => ip.src,
            RouteBy::Destination => ip.dst,
        };
        Some(Inner {
            own: is_own4(tables, ip.dst),
            route: tables.prefixes.v4(address),
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
    fn read(tables: &Tables, packet: &[u8], by: RouteBy) -> Option<Inner> {
        let ip = Ipv6::parse(packet).ok()?;
        let (address, group) = match by {
            RouteBy::Source => (ip.src, false),
            RouteBy::Destination => (ip.dst, is_multicast6(ip.dst)),
        };
        Some(Inner {
            own: is_own6(tables, ip.dst) || group,
            route: tables.prefixes.v6(address),
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
