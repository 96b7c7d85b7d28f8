#![doc = include_str!("../README.md")]

mod clock;
pub mod config;
pub mod control;
pub mod daemon;
pub mod dataplane;
pub mod exchange;
mod forwarder;
mod handover;
mod interface;
mod node;
pub mod tools;

pub use interface::{InterfaceId, InterfaceState};
pub use node::Node;
