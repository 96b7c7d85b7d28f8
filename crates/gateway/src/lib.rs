//! A user-space IPsec gateway: ESP tunnels with AES-GCM over IPv4 and IPv6, and the keys for them.
//!
//! The core knows no clock and no interface: it takes packets and a time and returns packets. What
//! runs it on real interfaces is the command; what runs it in a test is a loop.

mod clock;
pub mod config;
pub mod control;
pub mod daemon;
pub mod dataplane;
pub mod exchange;
mod forwarder;
mod interface;
mod node;
pub mod tools;

pub use interface::{InterfaceId, InterfaceState};
pub use node::Node;
