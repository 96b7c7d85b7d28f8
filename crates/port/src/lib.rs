#![doc = include_str!("../README.md")]

mod cache;
mod error;
mod exclusive;
mod frame;
mod handover;
mod interface;
mod line_port;
mod memory;
#[cfg(feature = "namespaces")]
pub mod namespaces;
mod open;
mod packet_socket;
mod pcap_file;
mod port;
pub mod stdio;
mod syscall;
mod tap;
mod xdp;

pub use cache::prefetch;
pub use error::{Error, Refused};
pub use exclusive::{Exclusive, OfInterface};
pub use frame::{Frame, Layout, Pool, HEADROOM};
pub use handover::{Descriptors, Handover};
pub use interface::{Interface, Offload};
pub use line_port::{joined, LinePort};
pub use memory::{memory, Memory};
pub use open::{open, open_to_send, open_with_lanes, Kind, Opened};
pub use packet_socket::PacketPort;
pub use pcap_file::{PcapPort, CAPTURE_BYTES_MAX};
pub use port::{Burst, Counters, Port, BURST};
pub use tap::{TapPort, VnetTap, VNET_HEADER};
pub use xdp::{XdpMode, XdpPort, XdpProgram, XdpSender};
