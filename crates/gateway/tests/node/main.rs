//! Two gateways, whole but for interfaces and threads, against each other in virtual time.

mod faults;
mod frames;
mod keys;
mod neighbors;
mod paths;
mod reload;
mod testbed;
