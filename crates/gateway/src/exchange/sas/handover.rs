//! The SAs of a route, for another process on this machine, which has the same clock.

use tare_sim::Instant;

use super::{Inbound, Outbound, Proof, Queued, Sas, PROOFS};
use crate::clock::MonotonicClock;
use crate::exchange::handover::{Negotiated, Pending};
use crate::exchange::SaKeys;

/// The life of an inbound SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InboundLife {
    pub(crate) spi: u32,
    /// The SPI of the outbound SA that was negotiated with it.
    pub(crate) partner: u32,
    pub(crate) since: Instant,
    pub(crate) expires: Instant,
}

/// The life of an outbound SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutboundLife {
    pub(crate) spi: u32,
    pub(crate) since: Instant,
    pub(crate) expires: Instant,
    /// The time for negotiating its successor.
    pub(crate) rekey: Instant,
}

/// An outbound SA that is not used yet; see [`Queued`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) keys: SaKeys,
    pub(crate) partner: u32,
    pub(crate) confirmed: bool,
    pub(crate) anew: bool,
    pub(crate) continued: Option<Instant>,
    pub(crate) since: Instant,
    pub(crate) expires: Instant,
    pub(crate) rekey: Instant,
    pub(crate) activate: Instant,
}

/// An SA of which the peer is to know that it is in use; see [`Proof`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Proving {
    pub(crate) partner: u32,
    pub(crate) next: Instant,
    pub(crate) left: u32,
}

impl Sas {
    /// Returns the SAs.
    pub(crate) fn export(&self, clock: &MonotonicClock) -> Negotiated {
        let inbound = self.inbound.iter().map(|sa| InboundLife {
            spi: sa.spi,
            partner: sa.partner,
            since: clock.outside(sa.since),
            expires: clock.outside(sa.expires),
        });
        let used = self.outbound.iter().filter(|sa| !sa.lost);
        let outbound = used.map(|sa| OutboundLife {
            spi: sa.spi,
            since: clock.outside(sa.since),
            expires: clock.outside(sa.expires),
            rekey: clock.outside(sa.rekey),
        });
        let waiting = self.queue.iter().map(|sa| Waiting {
            keys: sa.keys.clone(),
            partner: sa.partner,
            confirmed: sa.confirmed,
            anew: sa.anew,
            continued: sa.continued.map(|at| clock.outside(at)),
            since: clock.outside(sa.since),
            expires: clock.outside(sa.expires),
            rekey: clock.outside(sa.rekey),
            activate: clock.outside(sa.activate),
        });
        Negotiated {
            inbound: inbound.collect(),
            outbound: outbound.collect(),
            pending: Pending {
                waiting: waiting.collect(),
                renew: self.renew,
                own: self.own.map(|at| clock.outside(at)),
                proof: self.proof.as_ref().map(|proof| Proving {
                    partner: proof.partner,
                    next: clock.outside(proof.next),
                    left: proof.left,
                }),
                ..Pending::default()
            },
        }
    }

    /// Takes over the SAs of another process, of the inbound ones those with the SPIs in `kept`.
    /// Lives that have ended meanwhile end with the next [`Sas::tick`].
    pub(crate) fn import(&mut self, negotiated: &Negotiated, kept: &[u32]) {
        let inbound = negotiated.inbound.iter();
        let inbound = inbound.filter(|sa| kept.contains(&sa.spi));
        self.inbound.extend(inbound.map(|sa| Inbound {
            spi: sa.spi,
            partner: sa.partner,
            since: sa.since,
            expires: sa.expires,
        }));
        let outbound = negotiated.outbound.iter();
        self.outbound.extend(outbound.map(|sa| Outbound {
            spi: sa.spi,
            since: sa.since,
            expires: sa.expires,
            rekey: sa.rekey,
            lost: false,
        }));
        let pending = &negotiated.pending;
        self.queue.extend(pending.waiting.iter().map(|sa| Queued {
            keys: sa.keys.clone(),
            partner: sa.partner,
            confirmed: sa.confirmed,
            anew: sa.anew,
            continued: sa.continued,
            since: sa.since,
            expires: sa.expires,
            rekey: sa.rekey,
            activate: sa.activate,
        }));
        self.own = pending.own;
        self.proof = pending.proof.map(|proof| Proof {
            partner: proof.partner,
            next: proof.next,
            left: proof.left.clamp(1, PROOFS),
        });
        // The traffic of an SA that is not kept has to move.
        self.renew |= pending.renew || kept.len() < negotiated.inbound.len();
    }
}
