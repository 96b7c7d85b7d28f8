//! Client and node over sockets of the loopback interface.

mod operations;
mod support;
