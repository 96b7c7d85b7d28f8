#![doc = include_str!("../README.md")]

pub mod checksum;
pub mod esp;
pub mod ethernet;
pub mod frame;
pub mod imix;
pub mod ipv4;
pub mod ipv6;
pub mod pcap;
pub mod protocol;
pub mod udp;

pub use smoltcp::wire;
