//! The network path of a confidential VM: for now the servers in the guest, without I/O.
#![forbid(unsafe_code)]

pub mod server;
