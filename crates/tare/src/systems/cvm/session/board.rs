//! The counters of a measurement, which all of its threads see.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use tare_sim::Instant;

use crate::systems::cvm::client;

/// The counters of all queue pairs, and what their threads tell each other.
pub(super) struct Board {
    pub(super) stop: AtomicBool,
    /// A guest, or the connections of one, ended before the measurement did.
    pub(super) has_ended: AtomicBool,
    /// Raised at the start and the end of the measurement: the guests note their totals.
    pub(super) mark: AtomicU64,
    /// The bytes of memory for records that the peer of each pair is to seal ahead; 0 until it is
    /// to.
    pub(super) ahead: AtomicUsize,
    /// The peers that have sealed them.
    pub(super) ready: AtomicUsize,
    /// A connection has no records left that were sealed ahead.
    pub(super) is_used_up: AtomicBool,
    pub(super) pairs: Vec<Counts>,
}

/// The counters of a queue pair: of its guest, and those that its host stores in every turn. They
/// share no cache line: what one side stores would wait for the other one, and the guest's records
/// behind it.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Counts {
    pub(super) handshakes: AtomicU64,
    pub(super) bytes_in: AtomicU64,
    pub(super) bytes_out: AtomicU64,
    pub(super) records: AtomicU64,
    pub(super) busy_ns: AtomicU64,
    pub(super) frames: AtomicU64,
    pub(super) bounced: AtomicU64,
    pub(super) verified: AtomicU64,
    pub(super) wrong: AtomicU64,
    pub(super) faults: AtomicU64,
    /// Bytes of data that the peer has sealed ahead.
    pub(super) sealed_ahead: AtomicU64,
    /// The times that the guest has noted its totals.
    pub(super) marks: AtomicU64,
    /// Connections whose bulk data has arrived whole, at the guest or at the client.
    pub(super) finished: AtomicU64,
    pub(super) host: HostCounts,
}

/// The counters of a pair's host and of the clients beside it.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct HostCounts {
    /// Packets of the network that the host has made frames of.
    pub(super) packets: AtomicU64,
    /// These frames.
    pub(super) given: AtomicU64,
    client_requests: AtomicU64,
    client_turns: AtomicU64,
    client_verified: AtomicU64,
    client_wrong: AtomicU64,
}

impl HostCounts {
    /// Stores what the clients have counted.
    pub(super) fn tell(&self, clients: client::Counters) {
        self.client_requests.store(clients.requests, Relaxed);
        self.client_turns.store(clients.turns, Relaxed);
        self.client_verified.store(clients.verified, Relaxed);
        self.client_wrong.store(clients.wrong, Relaxed);
    }
}

impl Board {
    pub(super) fn new(pairs: usize) -> Board {
        Board {
            stop: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            mark: AtomicU64::new(0),
            ahead: AtomicUsize::new(0),
            ready: AtomicUsize::new(0),
            is_used_up: AtomicBool::new(false),
            pairs: std::iter::repeat_with(Counts::default)
                .take(pairs)
                .collect(),
        }
    }

    /// Returns a counter's sum over all pairs.
    pub(super) fn sum(&self, counter: fn(&Counts) -> &AtomicU64) -> u64 {
        let pairs = self.pairs.iter();
        pairs.map(|pair| counter(pair).load(Relaxed)).sum()
    }

    /// Returns the counters at this moment.
    pub(super) fn now(&self) -> Moment {
        Moment {
            now: Instant::now(),
            bytes_in: self.sum(|it| &it.bytes_in),
            bytes_out: self.sum(|it| &it.bytes_out),
            records: self.sum(|it| &it.records),
            busy_ns: self.sum(|it| &it.busy_ns),
            frames: self.sum(|it| &it.frames),
            packets: self.sum(|it| &it.host.packets),
            given: self.sum(|it| &it.host.given),
            bounced: self.sum(|it| &it.bounced),
            clients: client::Counters {
                requests: self.sum(|it| &it.host.client_requests),
                turns: self.sum(|it| &it.host.client_turns),
                verified: self.sum(|it| &it.host.client_verified),
                wrong: self.sum(|it| &it.host.client_wrong),
            },
        }
    }
}

/// The counters at a moment.
#[derive(Default)]
pub(super) struct Moment {
    pub(super) now: Instant,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) records: u64,
    pub(super) busy_ns: u64,
    pub(super) frames: u64,
    pub(super) packets: u64,
    pub(super) given: u64,
    pub(super) bounced: u64,
    pub(super) clients: client::Counters,
}

impl Moment {
    pub(super) fn data(&self) -> u64 {
        self.bytes_in + self.bytes_out
    }
}

/// Sets the flag when a thread ends, in a panic too.
pub(super) struct Ending<'a>(pub(super) &'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
