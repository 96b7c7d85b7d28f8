//! The settings of a node, and its counters.

#[cfg(doc)]
use super::Server;
use super::Violation;
use crate::operation::SpaceId;
use crate::protocol::Secret;

/// Decides whether a capability is that of a space. It must take the same time for all.
pub type Authorize = Box<dyn Fn(SpaceId, &[u8; 32]) -> bool + Send>;

/// The settings of a [`Server`].
pub struct ServerConfig {
    /// The number that tells one run of the node from another, such as the time of its start in
    /// nanoseconds.
    pub epoch: u64,
    /// The most clients.
    pub clients_max: usize,
    /// The most bytes of all regions.
    pub region_bytes_max: u64,
    /// The most bytes of writes that are in parts, and not complete.
    pub assembly_bytes_max: u64,
    /// Rounds through all clients after which one that had nothing is not polled any more but has
    /// to notify the node.
    pub idle_rounds: u32,
    /// The check of capabilities; without it, each client may use each space.
    pub authorize: Option<Authorize>,
}

impl ServerConfig {
    /// Settings for 1,024 clients with 4 GiB of regions, and two writes of 1 GiB in parts.
    pub fn new(epoch: u64) -> ServerConfig {
        ServerConfig {
            epoch,
            clients_max: 1024,
            region_bytes_max: 4 << 30,
            assembly_bytes_max: 2 << 30,
            idle_rounds: 1 << 16,
            authorize: None,
        }
    }

    /// The same for a node whose clients need the capabilities that follow from a secret.
    pub fn with_secret(epoch: u64, secret: Secret) -> ServerConfig {
        let check = move |space, shown: &[u8; 32]| secret.capability(space).is(shown);
        ServerConfig {
            authorize: Some(Box::new(check)),
            ..ServerConfig::new(epoch)
        }
    }
}

/// The work of a [`Server`], counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Clients that got a region.
    pub connected: u64,
    /// Connections refused.
    pub refused: u64,
    /// Clients that have gone.
    pub gone: u64,
    /// Clients cut off.
    pub cut_off: u64,
    /// The reason of the last one.
    pub last_violation: Option<Violation>,
    /// Entries answered.
    pub entries: u64,
    /// Bytes that were asked for, those of refused reads included.
    pub read_bytes: u64,
    /// Bytes that were to be written, those of refused writes included.
    pub written_bytes: u64,
    /// Incomplete writes in parts that gave way to others.
    pub evicted: u64,
    /// Messages sent to wake clients.
    pub notifications: u64,
    /// Clients that were not polled any more, and later notified the node.
    pub wakeups: u64,
}
