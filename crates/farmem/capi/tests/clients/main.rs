//! Clients of the C library: programs in C, C++ and Python that use a node on the loopback
//! interface, and what the library, its header, its manual page and its installation promise them.

mod library;
mod node;
mod programs;
#[path = "../../../../../contrib/c-library/tests.rs"]
mod tools;
