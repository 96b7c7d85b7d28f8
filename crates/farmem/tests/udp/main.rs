//! Client and node over sockets of the loopback interface.

mod asynchronous;
mod faults;
mod operations;
mod service;
mod sessions;
mod support;
