//! The settings of a client.

use std::time::Duration;

/// The settings of a [`Client`](super::Client).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// Entries of each ring, a power of two from 16 to 4096: the most requests on the way.
    pub entries: u32,
    /// Bytes of the data area, whole pages from 16 KiB to 64 MiB.
    pub data_bytes: u32,
    /// The most operations that have not completed, those that wait for room included.
    pub operations_max: usize,
    /// The time after which an operation is given up. For one of several parts it begins again
    /// with each answer to a part.
    pub timeout: Duration,
    /// The time for which the client polls before it sleeps; the longest lets it never sleep. A
    /// node may be on the same processor, so that polling keeps it from running.
    pub busy: Duration,
}

impl ClientConfig {
    /// Settings with 256 entries, 2 MiB of data and a timeout of 250 ms, for a client that never
    /// sleeps.
    pub const fn busy() -> ClientConfig {
        ClientConfig {
            entries: 256,
            data_bytes: 2 << 20,
            operations_max: 4096,
            timeout: Duration::from_millis(250),
            busy: Duration::MAX,
        }
    }

    /// The same for a client that sleeps after polling for 20 µs.
    pub const fn blocking() -> ClientConfig {
        ClientConfig {
            busy: Duration::from_micros(20),
            ..ClientConfig::busy()
        }
    }
}
