//! The state of a gateway that another process needs to go on in its place, as values and as bytes.
//!
//! It is made by [`crate::control::Control::export`] while no worker runs, and taken over by
//! [`crate::control::Control::import`] before the first one does. It holds keys: it is wiped when
//! it is dropped, never displayed, and leaves the process over a socket of its owner alone.
//!
//! Sequence numbers: an outbound SA goes on [`RESERVED`] numbers behind the last one that the other
//! process told of, so that even one that had used more than it told would not have used the same.
//! The IVs of a manual key go on from where they began in the other process, whatever the clock
//! says by then. Windows are complete, so nothing that was accepted is accepted again.

mod bytes;
mod format;

use std::net::IpAddr;
use std::time::Duration;

use tare_packet::ethernet::Mac;
use tare_sim::Instant;

use crate::config::{Aead, PresharedKey, SaKey};
use crate::dataplane::{Highest, Opened, Sent};
use crate::exchange::handover::{Negotiated, Pending};
use crate::exchange::sas::handover::{InboundLife, OutboundLife};

/// The numbers of an outbound SA that the process before keeps for itself: what all workers could
/// send in a tenth of a second at the least.
pub(crate) const RESERVED: u64 = 1 << 20;

/// The state of a gateway.
#[derive(Clone, Default)]
#[cfg_attr(test, derive(PartialEq))]
pub(crate) struct State {
    pub(crate) routes: Vec<RouteState>,
    /// The highest numbers of manual keys that are in use no more.
    pub(crate) given: Used,
    /// MAC addresses of next hops; true stands for the public interface.
    pub(crate) neighbors: Vec<(bool, IpAddr, Mac)>,
    /// Path MTUs that are less than the interface's, and when they are forgotten.
    pub(crate) paths: Vec<(IpAddr, u16, Instant)>,
    /// The life of SAs.
    pub(crate) sa_ttl: Duration,
    /// Counters as JSON: another version may have others.
    pub(crate) counters: String,
}

/// The first half of a keyed code, which is all that is kept of a key.
pub(crate) type Digest = [u8; 16];

/// The highest numbers of removed SAs with manual keys, by digest.
#[derive(Clone, Default)]
#[cfg_attr(test, derive(PartialEq))]
pub(crate) struct Used {
    /// The key of the digests.
    pub(crate) key: [u8; 32],
    pub(crate) outbound: Vec<(Digest, Highest)>,
    pub(crate) inbound: Vec<(Digest, Highest)>,
}

/// A route with its SAs.
#[derive(Clone)]
#[cfg_attr(test, derive(PartialEq))]
pub(crate) struct RouteState {
    pub(crate) id: String,
    pub(crate) terms: Terms,
    pub(crate) inbound: Vec<InboundState>,
    pub(crate) outbound: Vec<OutboundState>,
    pub(crate) pending: Pending,
    /// The time at which keys were agreed on last.
    pub(crate) handshake: Option<Instant>,
    /// Counters over all SAs as JSON, as [`State::counters`].
    pub(crate) counters: String,
}

/// The properties that a route must share with another for its SAs to be valid there.
#[derive(Clone, PartialEq)]
pub(crate) struct Terms {
    /// Our address, the same as the peer sees it, and the peer's.
    pub(crate) addresses: [IpAddr; 3],
    pub(crate) esn: bool,
    pub(crate) window: u32,
    /// `None` if keys are manual: then those of each SA are compared.
    pub(crate) exchange: Option<(PresharedKey, u32, Aead)>,
}

#[derive(Clone)]
#[cfg_attr(test, derive(PartialEq))]
pub(crate) struct InboundState {
    pub(crate) spi: u32,
    pub(crate) key: SaKey,
    pub(crate) opened: Opened,
    /// `None` if its key is manual.
    pub(crate) life: Option<InboundLife>,
}

#[derive(Clone)]
#[cfg_attr(test, derive(PartialEq))]
pub(crate) struct OutboundState {
    pub(crate) spi: u32,
    pub(crate) key: SaKey,
    pub(crate) sent: Sent,
    /// `None` if its key is manual.
    pub(crate) life: Option<OutboundLife>,
}

impl RouteState {
    /// Returns the part that the key exchange takes over.
    pub(crate) fn negotiated(&self) -> Negotiated {
        Negotiated {
            inbound: self.inbound.iter().filter_map(|sa| sa.life).collect(),
            outbound: self.outbound.iter().filter_map(|sa| sa.life).collect(),
            pending: self.pending.clone(),
        }
    }
}
