//! Ports of the kernel, over pairs of veth in network namespaces that each test makes for itself.

mod every_kind;
mod handover;
mod jumbo;
mod namespace;
mod offloads;
mod opening;
mod sender;
mod tap;
mod traffic;
