#![doc = include_str!("../README.md")]

pub mod daemon;
pub mod memory;
pub mod operation;
pub mod protocol;
mod random;
pub mod serve;
pub mod session;
pub mod transport;
