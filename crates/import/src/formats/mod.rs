//! The table of formats.

mod http;
mod library;
mod memory;
mod network;
mod packets;
mod processor;

pub(crate) mod json;

use crate::format::Format;

/// Every format of text.
pub(crate) const TEXT: &[&Format] = &[
    &http::WRK,
    &memory::MEMTIER,
    &memory::REDIS,
    &packets::LOADTEST,
    &packets::TRANSIENT,
    &packets::SOFTWARE,
    &memory::CLIO,
    &network::TLS,
    &network::BREAKDOWN,
    &network::SOCKPERF,
    &processor::UNIXBENCH,
    &processor::RDRAND,
    &library::CRITERION,
    &library::GO,
];
