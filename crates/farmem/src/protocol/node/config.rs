//! The settings and counters of a node.

use std::time::Duration;

use super::super::datagrams::NETWORK_DATAGRAM;
use super::super::message::{OPERATION_MAX, REQUEST_HEADER};
use super::super::protection::{Authentication, KEYS_MAX};
use super::super::HORIZON_TIMEOUTS;
use super::records::RECORD_BYTES;

/// The settings of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// A number other than 0 that no node of these clients had before, such as the time of its
    /// start in nanoseconds.
    pub epoch: u64,
    /// The protection of every message. With [`Authentication::Aead`] the node needs
    /// [`Node::set_secret`](super::Node::set_secret).
    pub authentication: Authentication,
    /// The number of spaces whose expanded keys are kept, with 1 KiB each that is allocated when
    /// it is needed. Those of eight times as many are kept as they were derived, with 128 bytes
    /// each, and expanded at each message of these spaces; those of still others are derived at
    /// each. Up to half of either number, 2 of 100 spaces at most have to share.
    pub keys_max: usize,
    /// Longest datagram in both directions, in bytes, at least 1024. Clients may have a lower
    /// limit: answers share a datagram of up to 1024 bytes, or as many as the longest of them has.
    pub datagram_bytes: usize,
    /// The longest time that clients try an operation for. The horizon is three times that.
    pub timeout: Duration,
    /// The bytes that the network can bring within a second. With the horizon it bounds the number
    /// of operations that are remembered.
    pub bytes_per_second: u64,
    /// Memory for the operations that are remembered, in bytes: 48 for each. It bounds their number
    /// where it is less than the network's bound.
    pub record_bytes: u64,
    /// Memory for segmented writes that are incomplete, in bytes.
    pub assembly_bytes: u64,
    /// The same for one space.
    pub assembly_bytes_per_space: u64,
}

impl NodeConfig {
    /// Settings for Ethernet at 10 Gb/s, a timeout of 250 ms, 1 GiB for the operations that are
    /// remembered, of which that takes 0.6, and two incomplete writes of 1 GiB.
    pub const fn new(epoch: u64) -> NodeConfig {
        NodeConfig {
            epoch,
            authentication: Authentication::None,
            keys_max: KEYS_MAX,
            datagram_bytes: NETWORK_DATAGRAM,
            timeout: Duration::from_millis(250),
            bytes_per_second: 1_250_000_000,
            record_bytes: 1 << 30,
            assembly_bytes: 2 << 30,
            assembly_bytes_per_space: OPERATION_MAX as u64,
        }
    }

    /// The age from which on a request is refused.
    pub fn horizon(&self) -> Duration {
        self.timeout * HORIZON_TIMEOUTS
    }

    /// The most operations that are remembered: as many requests as the network can bring within
    /// the horizon, if there is the memory for them. None is forgotten to make room: those that
    /// would be too many are not run.
    pub fn records_max(&self) -> usize {
        let bytes = u128::from(self.bytes_per_second) * self.horizon().as_nanos() / 1_000_000_000;
        let records = bytes / (REQUEST_HEADER + self.authentication.trailer_len()) as u128;
        let records = records.min(u128::from(self.record_bytes / RECORD_BYTES));
        usize::try_from(records).unwrap_or(usize::MAX).max(1)
    }
}

/// The work of a node, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCounters {
    /// Messages that could not be read; the rest of their datagrams is not counted.
    pub malformed: u64,
    /// Messages that were not sealed with the key of their space, epoch and direction, or were
    /// changed since; the rest of their datagrams is not counted.
    pub unauthenticated: u64,
    /// Requests read.
    pub requests: u64,
    /// Operations run, segments of reads apart.
    pub executed: u64,
    /// Requests for operations that had been run: answered with the same outcome.
    pub repeated: u64,
    /// Requests of another epoch.
    pub stale: u64,
    /// Requests whose send time was beyond the horizon.
    pub expired: u64,
    /// Requests that found no room for a record or for a segmented write.
    pub busy: u64,
    /// Segmented writes that were given up.
    pub abandoned: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_memory_bounds_the_outcomes_of_a_long_time_alone() {
        let usual = NodeConfig::new(1);
        assert_eq!(usual.records_max(), 1_250_000_000 * 3 / 4 / REQUEST_HEADER);
        let long = NodeConfig {
            timeout: Duration::from_secs(60),
            ..usual
        };
        assert_eq!(long.records_max(), (1 << 30) / 48);
    }
}
