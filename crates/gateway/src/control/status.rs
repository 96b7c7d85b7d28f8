//! What a gateway is doing, for people and their programs to read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The control side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The routes, in the order of the file.
    pub routes: Vec<RouteStatus>,
    /// The next hops.
    pub neighbors: Vec<NeighborStatus>,
    /// Messages of the key exchange and what became of them.
    pub exchange: BTreeMap<String, u64>,
    /// Frames that the control side got and what became of them.
    pub control: BTreeMap<String, u64>,
}

/// One route.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RouteStatus {
    /// Its name.
    pub id: String,
    /// The peer.
    pub gateway: String,
    /// What is behind the peer.
    pub prefixes: Vec<String>,
    /// Where keys come from: `exchange` or `manual`.
    pub keys: String,
    /// `up` where packets can be sent, else what the exchange does about it: `waiting`, `knocking`, `proposed`, `idle`.
    pub state: String,
    /// Negotiations in a row that were not answered.
    pub failures: u32,
    /// Bytes that an outer packet may have.
    pub path_mtu: u16,
    /// Bytes that an inner packet may have.
    pub inner_mtu: u16,
    /// What seals packets now.
    pub outbound: Option<SaStatus>,
    /// What opens packets, oldest first.
    pub inbound: Vec<SaStatus>,
}

/// One SA.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SaStatus {
    /// Its SPI.
    pub spi: u32,
    /// Packets sealed or opened.
    pub packets: u64,
    /// Their bytes, without what encapsulates them.
    pub bytes: u64,
    /// Packets that were not authentic.
    pub forged: u64,
    /// Packets that were seen before, or may have been.
    pub replayed: u64,
    /// Seconds since its keys were agreed on; none where they are given.
    pub age_s: Option<u64>,
    /// Seconds until it ends.
    pub left_s: Option<u64>,
}

/// One next hop.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NeighborStatus {
    /// `private` or `public`.
    pub interface: String,
    /// Its address.
    pub address: String,
    /// Its station address, while it is known.
    pub mac: Option<String>,
    /// `fixed`, `asking`, `reachable` or `probing`.
    pub state: String,
}
