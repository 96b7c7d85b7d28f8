//! Client and node over the frames of an interface: in memory, and in network namespaces.

mod hostile;
mod kernel;
mod memory;
mod support;
