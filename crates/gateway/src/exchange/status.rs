//! The status of a route.

use std::time::Duration;

use tare_sim::Instant;

use super::route::Route;

/// The state of the initiator's side of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Negotiation {
    /// Idle: there is nothing to negotiate, or a pause after failures.
    Idle,
    /// In line behind other routes.
    Waiting,
    /// Has knocked.
    Knocking,
    /// Has proposed.
    Proposed,
}

/// One SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaStatus {
    /// Its SPI.
    pub spi: u32,
    /// Since it was negotiated.
    pub age: Duration,
    /// Until it ends.
    pub left: Duration,
}

/// One route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteStatus {
    /// The state of its initiator.
    pub negotiation: Negotiation,
    /// Negotiations in a row that ran out of time.
    pub failures: u32,
    /// Inbound SAs, oldest first.
    pub inbound: Vec<SaStatus>,
    /// Outbound SAs, in the order in which workers take them.
    pub outbound: Vec<SaStatus>,
    /// Outbound SAs that wait to take their place, oldest first.
    pub queued: Vec<SaStatus>,
    /// Since the last negotiation that succeeded, if an SA of it is left.
    pub negotiated: Option<Duration>,
}

impl RouteStatus {
    pub(crate) fn of(route: &Route, now: Instant) -> RouteStatus {
        let sa = |spi: u32, since: Instant, expires: Instant| SaStatus {
            spi,
            age: now.since(since),
            left: expires.since(now),
        };
        let sas = &route.sas;
        RouteStatus {
            negotiation: route.negotiation(),
            failures: route.failures,
            inbound: sas
                .inbound
                .iter()
                .map(|i| sa(i.spi, i.since, i.expires))
                .collect(),
            outbound: sas
                .outbound
                .iter()
                .map(|o| sa(o.spi, o.since, o.expires))
                .collect(),
            queued: sas
                .queue
                .iter()
                .map(|q| sa(q.spi(), q.since(), q.expires()))
                .collect(),
            negotiated: sas.youngest(now),
        }
    }
}
