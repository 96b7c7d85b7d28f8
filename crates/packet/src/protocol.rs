//! IP protocol numbers (IANA, "Assigned Internet Protocol Numbers"): the protocol of an IPv4
//! header, the next header of IPv6 and ESP.

/// Hop-by-hop options of IPv6 (RFC 8200, 4.3).
pub const HOP_BY_HOP: u8 = 0;
/// ICMP for IPv4 (RFC 792).
pub const ICMP: u8 = 1;
/// IGMP (RFC 9776).
pub const IGMP: u8 = 2;
/// An IPv4 packet (RFC 2003).
pub const IPV4: u8 = 4;
/// TCP (RFC 9293).
pub const TCP: u8 = 6;
/// UDP (RFC 768).
pub const UDP: u8 = 17;
/// DCCP (RFC 4340).
pub const DCCP: u8 = 33;
/// An IPv6 packet (RFC 2473).
pub const IPV6: u8 = 41;
/// Routing header of IPv6 (RFC 8200, 4.4).
pub const ROUTING: u8 = 43;
/// Fragment header of IPv6 (RFC 8200, 4.5).
pub const FRAGMENT: u8 = 44;
/// Generic routing encapsulation (RFC 2784).
pub const GRE: u8 = 47;
/// Encapsulating security payload (RFC 4303).
pub const ESP: u8 = 50;
/// Authentication header (RFC 4302).
pub const AH: u8 = 51;
/// ICMP for IPv6 (RFC 4443).
pub const ICMPV6: u8 = 58;
/// No next header (RFC 8200, 4.7); in ESP a dummy packet (RFC 4303, 2.6).
pub const NO_NEXT_HEADER: u8 = 59;
/// Destination options of IPv6 (RFC 8200, 4.6).
pub const DESTINATION_OPTIONS: u8 = 60;
/// OSPF (RFC 2328, RFC 5340).
pub const OSPF: u8 = 89;
/// PIM (RFC 7761).
pub const PIM: u8 = 103;
/// VRRP (RFC 9568).
pub const VRRP: u8 = 112;
/// SCTP (RFC 9260).
pub const SCTP: u8 = 132;
/// The mobility header of IPv6 (RFC 6275).
pub const MOBILITY: u8 = 135;
/// UDP-Lite (RFC 3828).
pub const UDP_LITE: u8 = 136;

/// The time to live that a packet starts with (IANA, "Internet Protocol Version 4 Parameters").
pub const TTL_DEFAULT: u8 = 64;
