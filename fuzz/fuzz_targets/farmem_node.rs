//! Datagrams of any content at a memory node with its real memory: bytes as they are, and messages
//! that are sealed as a client with the capability of a space would. Nothing panics, memory is
//! bounded, and every message is in one count. With encryption, what was not sealed changes
//! nothing.
#![no_main]

#[path = "../bodies/farmem_node.rs"]
mod body;
#[path = "../bodies/farmem.rs"]
mod farmem;

libfuzzer_sys::fuzz_target!(|input: &[u8]| body::run(input));
