//! The work of workers: packets of the private side become ESP, ESP of the public side becomes
//! packets again.
//!
//! Each direction takes a burst and goes over it in passes (look at headers and find the SA; write
//! headers; seal or open; finish), so that what one packet waits for, a load or a cipher, the
//! others fill.

mod counters;
pub mod ecn;
pub mod esp;
mod fragment;
mod group;
mod icmp;
mod inbound;
mod outbound;
mod prefixes;
mod sa;
mod sequence;
mod tables;
mod version;
mod window;
mod worker;

use std::sync::Arc;

use tare_packet::ethernet::HEADER;
use tare_port::{Burst, Frame, Pool};
use tare_sim::{Instant, TokenBucket};

pub use counters::{DropReason, TrafficCounters};
pub(crate) use icmp::error_limit;
pub use icmp::{ERROR_BURST, ERROR_INTERVAL};

pub use group::{BoundTables, WorkerGroup};
pub use prefixes::{Prefixes, NONE};
pub use sa::{InboundSa, OutboundSa, Outer};
pub(crate) use sa::{Opened, Sent};
pub use sequence::SequenceMode;
pub use tables::{Route, SpiTable, Tables};
pub(crate) use window::Received;
pub use window::{Refused, Window, WINDOW_DEFAULT, WINDOW_MAX};
pub use worker::WorkerId;

use crate::interface::InterfaceHeaders;
pub use crate::interface::InterfaceView;

/// One worker's half of the gateway: no clock, no ports, no locks of its own.
pub struct Dataplane {
    /// In an [`Arc`] of the worker's own, which each burst holds on to: counting holders in the one
    /// that all workers share would take the tables' first line from core to core.
    #[allow(clippy::redundant_allocation)]
    tables: Arc<Arc<BoundTables>>,
    private: InterfaceHeaders,
    public: InterfaceHeaders,
    pool: Pool,
    id: WorkerId,
    errors: TokenBucket,
    outbound: outbound::Scratch,
    inbound: inbound::Scratch,
    sent: TrafficCounters,
    received: TrafficCounters,
}

/// The packets that leave a data plane, by destination. Bursts are added to, and the caller's to
/// empty.
#[derive(Default)]
pub struct Output {
    /// To the other side.
    pub forward: Burst,
    /// Back to the side they came from: errors about them.
    pub back: Burst,
    /// To the control side, from the wire: ARP, neighbor discovery, ICMP to this gateway, the key
    /// exchange.
    pub control: Burst,
    /// To the control side, out of the tunnel: packets to this gateway. Their Ethernet header is
    /// undefined.
    pub inner: Burst,
    /// To the peers, through the tunnel: errors about packets that came through it. They are to be
    /// given to [`Dataplane::outbound`] like packets of the private side.
    pub tunnel: Burst,
}

impl Dataplane {
    /// Creates a data plane that takes the frames of fragments and errors from `pool`.
    ///
    /// # Panics
    /// If the tables are bound to another group of workers.
    pub fn new(tables: Arc<BoundTables>, pool: Pool, worker: WorkerId) -> Dataplane {
        tables.assert_member(&worker);
        Dataplane {
            private: InterfaceHeaders::new(&tables.private),
            public: InterfaceHeaders::new(&tables.public),
            tables: Arc::new(tables),
            pool,
            id: worker,
            errors: error_limit(),
            outbound: outbound::Scratch::default(),
            inbound: inbound::Scratch::default(),
            sent: TrafficCounters::default(),
            received: TrafficCounters::default(),
        }
    }

    /// Ends this data plane and returns the identity of its worker, for another.
    pub fn into_worker(self) -> WorkerId {
        self.id
    }

    /// Takes over other tables.
    ///
    /// # Panics
    /// If the tables are bound to another group of workers.
    pub fn replace(&mut self, tables: Arc<BoundTables>) {
        tables.assert_member(&self.id);
        self.private = InterfaceHeaders::new(&tables.private);
        self.public = InterfaceHeaders::new(&tables.public);
        self.tables = Arc::new(tables);
    }

    /// Returns the tables in use.
    pub fn tables(&self) -> &Arc<BoundTables> {
        &self.tables
    }

    /// Returns the counters of packets of the private side.
    pub fn sent(&self) -> &TrafficCounters {
        &self.sent
    }

    /// Returns the counters of packets of the public side.
    pub fn received(&self) -> &TrafficCounters {
        &self.received
    }

    /// Takes back frames of the private side that the public port did not take, and counts them as
    /// dropped.
    pub fn not_sent(&mut self, refused: &mut Burst) {
        self.sent.take_back(refused);
    }

    /// Takes back frames of the public side that the private port did not take, and counts them as
    /// dropped.
    pub fn not_delivered(&mut self, refused: &mut Burst) {
        self.received.take_back(refused);
    }

    /// Seals the packets of `input`, which came in on the private side.
    pub fn outbound(&mut self, now: Instant, input: &mut Burst, output: &mut Output) {
        outbound::run(self, now, input, output);
    }

    /// Opens the packets of `input`, which came in on the public side.
    pub fn inbound(&mut self, now: Instant, input: &mut Burst, output: &mut Output) {
        inbound::run(self, now, input, output);
    }
}

/// Returns true if a packet to `dst` is for this gateway itself.
#[inline]
fn is_own4(tables: &Tables, dst: u32) -> bool {
    tables.private.ip4 == Some(dst) || tables.public.ip4 == Some(dst)
}

#[inline]
fn is_own6(tables: &Tables, dst: u128) -> bool {
    tables.private.ip6 == Some(dst) || tables.public.ip6 == Some(dst)
}

/// Returns true if an IPv6 destination is multicast, as those of neighbor discovery are.
#[inline]
fn is_multicast6(dst: u128) -> bool {
    dst >> 120 == 0xff
}

/// Drops the frames whose jobs are not to be kept, and closes the gaps.
#[cold]
fn discard<J>(frames: &mut Vec<Frame>, jobs: &mut [J], keep: impl Fn(&J) -> bool) {
    let mut kept = 0;
    for at in 0..frames.len() {
        if keep(&jobs[at]) {
            frames.swap(kept, at);
            jobs.swap(kept, at);
            kept += 1;
        }
    }
    frames.truncate(kept);
}

/// Writes an Ethernet header over the first bytes of a frame.
#[inline]
fn address(frame: &mut Frame, header: &Option<[u8; HEADER]>) -> Result<(), DropReason> {
    let header = header.as_ref().ok_or(DropReason::NextHopUnknown)?;
    let place = frame.first_chunk_mut().ok_or(DropReason::NoBuffer)?;
    *place = *header;
    Ok(())
}
