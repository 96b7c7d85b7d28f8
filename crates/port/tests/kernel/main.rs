//! Ports of the kernel, over pairs of veth in network namespaces that each test makes for itself.

mod every_kind;
mod handover;
mod namespace;
mod offloads;
mod opening;
mod tap;
mod traffic;
