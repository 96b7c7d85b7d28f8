//! Datagrams of any content at a client with operations of every kind on the way: bytes as they
//! are, and responses that are sealed as the node would. Nothing panics, and every operation ends
//! once; with encryption, what was not sealed ends none.
#![no_main]

#[path = "../bodies/farmem_client.rs"]
mod body;
#[path = "../bodies/farmem.rs"]
mod farmem;

libfuzzer_sys::fuzz_target!(|input: &[u8]| body::run(input));
