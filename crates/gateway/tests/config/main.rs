//! Configurations as people write them: read, refused in words, written and read again.

mod accepted;
mod refused;
mod round_trip;

use tare_gateway::config::{Config, Warning};

/// The configuration of `text`.
#[track_caller]
fn read(text: &str) -> (Config, Vec<Warning>) {
    match Config::parse("node.conf", text.as_bytes()) {
        Ok(read) => read,
        Err(error) => panic!("{error}\nin\n{text}"),
    }
}

/// The error for `text`.
#[track_caller]
fn refusal(text: &[u8]) -> String {
    match Config::parse("node.conf", text) {
        Ok(_) => panic!("accepted: {}", String::from_utf8_lossy(text)),
        Err(error) => error.to_string(),
    }
}
