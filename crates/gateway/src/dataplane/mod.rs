//! The work of workers: packets of the private side become ESP, ESP of the public side becomes
//! packets again.
//!
//! Each direction takes a burst and goes over it in passes (look at headers and find the SA; write
//! headers; seal or open; finish), so that what one packet waits for, a load or a cipher, the
//! others fill.

mod counters;
pub mod ecn;
pub mod esp;
#[cfg(test)]
pub(crate) mod fixture;
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

use tare_packet::ethernet::{self, Mac, HEADER};
use tare_packet::ipv4;
use tare_port::{Burst, Frame, Pool};
use tare_sim::Instant;

pub use counters::{DropCounts, DropReason, DropTable, RouteDrops, TrafficCounters};
pub(crate) use icmp::error_limit;
pub use icmp::{ERROR_BURST, ERROR_INTERVAL};

pub use group::{BoundTables, WorkerGroup};
pub use prefixes::{Prefixes, NONE};
pub(crate) use sa::{Highest, Opened, Sent, IV_BASE_MAX};
pub use sa::{InboundSa, OutboundSa, Outer};
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
    own: OwnAddresses,
    pool: Pool,
    id: WorkerId,
    errors: icmp::ErrorLimits,
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
    /// given to [`Dataplane::outbound_own`].
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
            own: OwnAddresses::new(&tables),
            tables: Arc::new(tables),
            pool,
            id: worker,
            errors: icmp::ErrorLimits::default(),
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
        self.own = OwnAddresses::new(&tables);
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
        outbound::run(self, now, Origin::Private, input, output);
    }

    /// Seals the packets of `input`, which are this gateway's own: they come from an address of its
    /// own, and the addresses of their Ethernet header are not looked at.
    pub fn outbound_own(&mut self, now: Instant, input: &mut Burst, output: &mut Output) {
        outbound::run(self, now, Origin::Own, input, output);
    }

    /// Opens the packets of `input`, which came in on the public side.
    pub fn inbound(&mut self, now: Instant, input: &mut Burst, output: &mut Output) {
        inbound::run(self, now, input, output);
    }
}

/// The origin of packets that are to be sealed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// The private interface.
    Private,
    /// This gateway.
    Own,
}

/// The addresses of this gateway, the unspecified address in place of one that it does not have.
/// Without options, whose tags would be looked at for every packet.
struct OwnAddresses {
    v4: [u32; 2],
    /// Each of them twice, as it stands in packets.
    pairs4: [u32; 4],
    v6: [u128; 2],
}

impl OwnAddresses {
    fn new(tables: &Tables) -> OwnAddresses {
        let interfaces = [&tables.private, &tables.public];
        let v4 = interfaces.map(|interface| interface.ip4.unwrap_or(0));
        let [private, public] = v4.map(u32::to_be);
        OwnAddresses {
            v4,
            pairs4: [private, private, public, public],
            v6: interfaces.map(|interface| interface.ip6.unwrap_or(0)),
        }
    }

    #[inline]
    fn has4(&self, address: u32) -> bool {
        (address == self.v4[0]) | (address == self.v4[1])
    }

    /// Returns true if either of the addresses at the end of an IPv4 header is one of these: four
    /// comparisons, which compilers make one of a vector.
    #[inline(always)]
    fn has_either4(&self, header: &[u8; ipv4::HEADER]) -> bool {
        let [.., a, b, c, d, e, f, g, h] = *header;
        let (src, dst) = (
            u32::from_ne_bytes([a, b, c, d]),
            u32::from_ne_bytes([e, f, g, h]),
        );
        let same = |at: usize, address| u32::from(self.pairs4[at] == address);
        (same(0, src) | same(1, dst) | same(2, src) | same(3, dst)) != 0
    }

    #[inline]
    fn has6(&self, address: u128) -> bool {
        address == self.v6[0] || address == self.v6[1]
    }
}

/// Returns the EtherType of a frame that came in by the interface with this MAC address.
///
/// Ports are promiscuous, so frames of other stations come in too.
#[inline]
fn link_kind(frame: &[u8], own: Station) -> Result<u16, DropReason> {
    let header: &[u8; HEADER] = frame.first_chunk().ok_or(DropReason::NotIp)?;
    let kind = u16::from_be_bytes([header[12], header[13]]);
    if Station::destination(header) != own {
        check_group(frame, kind)?;
    }
    Ok(kind)
}

/// Returns true if a frame with this Ethernet header is an IPv4 packet to the interface with this
/// MAC address.
#[inline(always)]
fn is_ipv4_to(header: &[u8; HEADER], own: Station) -> bool {
    Station::destination(header) == own
        && u16::from_be_bytes([header[12], header[13]]) == ethernet::IPV4
}

/// A MAC address as one word, which compares in one step.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Station(u64);

impl Station {
    fn new(mac: Mac) -> Station {
        let [a, b, c, d, e, f] = mac;
        Station(u64::from_le_bytes([0, 0, a, b, c, d, e, f]))
    }

    #[inline]
    fn destination(header: &[u8; HEADER]) -> Station {
        let [a, b, c, d, e, f, g, h, ..] = *header;
        Station(u64::from_le_bytes([a, b, c, d, e, f, g, h]) << 16)
    }
}

/// Returns an error about a frame that is not addressed to this station, unless it is one that the
/// control side has to see: ARP and IPv6 multicast. RFC 1812, 5.3.4: "A router MUST NOT forward any
/// packet that the router received as a Link Layer broadcast".
#[cold]
fn check_group(frame: &[u8], kind: u16) -> Result<(), DropReason> {
    /// The offset of the destination of an IPv6 packet.
    const DESTINATION: usize = HEADER + 24;
    match kind {
        _ if frame[0] & 1 == 0 => Err(DropReason::OtherStation),
        ethernet::ARP => Ok(()),
        ethernet::IPV6 if frame.get(DESTINATION) == Some(&0xff) => Ok(()),
        ethernet::IPV4 | ethernet::IPV6 => Err(DropReason::LinkBroadcast),
        _ => Err(DropReason::NotIp),
    }
}

/// The number of packets between prefetching a key and using it, where there are so many that the
/// caches do not hold them.
///
/// A processor loads about twenty lines at a time, which is three keys. Where the keys of a whole
/// burst were prefetched by the pass before, it waited for them all the same: with 10,000 routes
/// 1.3 times as long for the whole packet, on a processor with AES-NI alone. So only the first are,
/// and each further one while an earlier packet is sealed or opened.
const KEYS_AHEAD: usize = 6;

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

/// Takes the frames out that `keep` does not return, and closes the gaps. All others keep their
/// order, as do those that are taken out. `spare` is empty before and after.
#[cold]
fn set_aside<J: Copy>(
    frames: &mut Vec<Frame>,
    spare: &mut Vec<Frame>,
    jobs: &mut [J],
    mut keep: impl FnMut(Frame, &mut J) -> Option<Frame>,
) {
    spare.reserve(frames.len());
    for (at, frame) in frames.drain(..).enumerate() {
        if let Some(frame) = keep(frame, &mut jobs[at]) {
            jobs[spare.len()] = jobs[at];
            spare.push(frame);
        }
    }
    std::mem::swap(frames, spare);
}
