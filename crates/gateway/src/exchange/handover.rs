//! The SAs of routes, for another process.
//!
//! Negotiations in flight are given up. An SPI that was offered is offered again at once, because
//! the peer may have made an SA of it already, which the next negotiation with the same SPI
//! replaces.
//!
//! Outbound SAs that wait to be used go on waiting. To negotiate again in their place would be
//! simpler, but a peer keeps the SAs of four negotiations: handovers in a row would displace the
//! one that is in use.

use std::time::Duration;

use tare_histogram::Histogram;
use tare_sim::Instant;

use super::sas::handover::{InboundLife, OutboundLife, Proving, Waiting};
use super::{schedule, Counters, Exchange, Negotiation};

/// The state of a route that another process needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Negotiated {
    /// Oldest first.
    pub(crate) inbound: Vec<InboundLife>,
    /// In the order in which workers take them.
    pub(crate) outbound: Vec<OutboundLife>,
    pub(crate) pending: Pending,
}

/// The state of a route beside the SAs in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    /// Outbound SAs that are not used yet, oldest first.
    pub(crate) waiting: Vec<Waiting>,
    /// The time of the last successful negotiation as initiator.
    pub(crate) own: Option<Instant>,
    /// True if new keys are to be negotiated early.
    pub(crate) renew: bool,
    /// The SPI of the negotiation that is given up, where a proposal was sent with it.
    pub(crate) offered: Option<u32>,
    /// True if the peer makes marks.
    pub(crate) marks: bool,
    pub(crate) proof: Option<Proving>,
}

impl Exchange {
    /// Returns true while a peer may have made an SA that this side does not know yet.
    pub(crate) fn is_proposing(&self) -> bool {
        let mut routes = self.routes.values();
        routes.any(|route| route.negotiation() == Negotiation::Proposed)
    }

    /// Returns the state of a route; `None` if its keys are manual.
    pub(crate) fn export(&self, route: usize) -> Option<Negotiated> {
        let route = self.routes.get(&route)?;
        let mut negotiated = route.sas.export(&self.shared.clock);
        negotiated.pending.offered = route.spi.filter(|_| route.offered);
        negotiated.pending.marks = route.peer_marks;
        Some(negotiated)
    }

    /// Returns the life of SAs.
    pub(crate) fn sa_ttl(&self) -> Duration {
        self.shared.timers.sa_ttl
    }

    /// Takes over the state of a route of another process, where SAs lived for `sa_ttl`. There was
    /// no negotiation here yet. Returns the SPIs of the inbound SAs that are kept: all but those
    /// that other SAs have.
    pub(crate) fn import(
        &mut self,
        now: Instant,
        number: usize,
        negotiated: &Negotiated,
        sa_ttl: Duration,
    ) -> Vec<u32> {
        let now = self.shared.clock.inside(now);
        let Some(route) = self.routes.get_mut(&number) else {
            return Vec::new();
        };
        let shared = &mut self.shared;
        let mut take = |spi: &u32| {
            let free = !shared.is_reserved(*spi) && !shared.spis.contains_key(spi);
            if free {
                shared.spis.insert(*spi, number);
            }
            free
        };
        let inbound = negotiated.inbound.iter();
        let kept: Vec<u32> = inbound.map(|sa| sa.spi).filter(&mut take).collect();
        if let Some(spi) = negotiated.pending.offered.filter(&mut take) {
            (route.spi, route.offered) = (Some(spi), true);
        }
        route.peer_marks = negotiated.pending.marks;
        route.sas.import(negotiated, &kept);
        if sa_ttl != shared.timers.sa_ttl {
            route.sas.set_life(now, sa_ttl, shared);
        }
        schedule(route, &mut self.timer_queue);
        kept
    }

    /// Goes on with the counters and latencies of another process.
    pub(crate) fn go_on(&mut self, counters: &Counters, took: &Histogram) {
        self.shared.counters.add(counters);
        self.shared.took.merge(took);
    }
}
