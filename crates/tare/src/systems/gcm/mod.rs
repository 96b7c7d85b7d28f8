//! AES-GCM on shared memory: its throughput, and the race against a hostile thread.

pub(crate) mod driver;
pub(crate) mod race;
