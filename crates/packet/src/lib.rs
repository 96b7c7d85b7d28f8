//! Packet formats.
//!
//! What the packet paths look at a million times a second is read here, once, into plain values:
//! [`ipv4`], [`ipv6`], [`ethernet`], [`checksum`]. [`frame`] makes whole frames. Everything else (ARP, neighbor discovery, ICMP,
//! UDP) is [`wire`], smoltcp's views.

pub mod checksum;
pub mod ethernet;
pub mod frame;
pub mod imix;
pub mod ipv4;
pub mod ipv6;
pub mod pcap;

pub use smoltcp::wire;
