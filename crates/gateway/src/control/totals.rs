//! The traffic of a route over all its SAs, those that are gone included.

use std::sync::Arc;

use tare_memory::{Placed, Shared};

use tare_daemon::Reason;

use crate::dataplane::{DropReason, Highest, InboundSa, OutboundSa, RouteDrops};

tare_daemon::counters! {
    /// Counters of one direction of a route, which survive its SAs.
    pub struct RouteCounters {
        packets => "route_packets_total": "Packets of a route that were sealed or opened",
        bytes => "route_bytes_total": "Bytes of those packets that were encrypted: inner packets and padding";
        /// Packets dropped of which the route is known.
        dropped: DropReason,
    }
}

/// The counters of a route that its present SAs do not have.
#[derive(Default)]
pub(super) struct Totals {
    pub(super) drops: Arc<RouteDrops>,
    outbound: Leaving<OutboundSa>,
    inbound: Leaving<InboundSa>,
}

/// SAs of one direction that are in the tables no longer.
struct Leaving<S: Placed> {
    packets: u64,
    bytes: u64,
    /// Workers may go on counting in these until they have newer tables.
    sas: Vec<Shared<S>>,
}

/// Packets and their bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct Traffic {
    packets: u64,
    bytes: u64,
}

impl Traffic {
    /// Returns what came after `before`.
    pub(super) fn since(self, before: Traffic) -> Traffic {
        Traffic {
            packets: self.packets.saturating_sub(before.packets),
            bytes: self.bytes.saturating_sub(before.bytes),
        }
    }
}

/// An SA that counts.
pub(super) trait Counting {
    fn traffic(&self) -> Traffic;
    /// Returns the highest numbers so far.
    fn highest(&self) -> Highest;
}

impl Counting for OutboundSa {
    fn traffic(&self) -> Traffic {
        Traffic {
            packets: self.packets(),
            bytes: self.bytes(),
        }
    }

    fn highest(&self) -> Highest {
        self.sent().highest()
    }
}

impl Counting for InboundSa {
    fn traffic(&self) -> Traffic {
        Traffic {
            packets: self.packets(),
            bytes: self.bytes(),
        }
    }

    fn highest(&self) -> Highest {
        Highest {
            number: self.top(),
            iv_base: 0,
        }
    }
}

impl<S: Placed> Default for Leaving<S> {
    fn default() -> Leaving<S> {
        Leaving {
            packets: 0,
            bytes: 0,
            sas: Vec::new(),
        }
    }
}

impl<S: Counting + Placed> Leaving<S> {
    /// Adds the counters of the SAs that no worker has any more, and lets go of them with their
    /// keys.
    fn settle(&mut self) {
        let mut sum = Traffic::default();
        self.sas.retain_mut(|sa| match sa.get_mut() {
            Some(sa) => {
                let traffic = sa.traffic();
                sum.packets += traffic.packets;
                sum.bytes += traffic.bytes;
                false
            }
            None => true,
        });
        self.add(sum);
    }

    fn add(&mut self, traffic: Traffic) {
        self.packets += traffic.packets;
        self.bytes += traffic.bytes;
    }

    fn add_rest(&mut self, counted: &RouteCounters, present: &RouteCounters) {
        self.packets += counted.packets.saturating_sub(present.packets);
        self.bytes += counted.bytes.saturating_sub(present.bytes);
    }

    /// Returns the counters, with those of the present SAs.
    fn sum<'a>(
        &'a self,
        present: impl Iterator<Item = &'a Shared<S>>,
        dropped: <DropReason as Reason>::Counts,
    ) -> RouteCounters
    where
        S: 'a,
    {
        let mut counters = RouteCounters {
            packets: self.packets,
            bytes: self.bytes,
            dropped,
        };
        for sa in self.sas.iter().chain(present) {
            let traffic = sa.traffic();
            counters.packets += traffic.packets;
            counters.bytes += traffic.bytes;
        }
        counters
    }
}

impl Totals {
    /// Goes on with what another process has counted in both directions, of which this one has a
    /// part in the present SAs.
    pub(super) fn go_on(&mut self, counted: &[RouteCounters; 2], present: &[RouteCounters; 2]) {
        let [sent, received] = counted;
        self.outbound.add_rest(sent, &present[0]);
        self.inbound.add_rest(received, &present[1]);
        self.drops.outbound.go_on(&sent.dropped);
        self.drops.inbound.go_on(&received.dropped);
    }

    pub(super) fn outbound_leaves(&mut self, sa: Shared<OutboundSa>) {
        self.outbound.sas.push(sa);
    }

    pub(super) fn inbound_leaves(&mut self, sa: Shared<InboundSa>) {
        self.inbound.sas.push(sa);
    }

    /// Adds what an SA has counted that is kept elsewhere until no worker uses it.
    pub(super) fn add(&mut self, outbound: bool, traffic: Traffic) {
        match outbound {
            true => self.outbound.add(traffic),
            false => self.inbound.add(traffic),
        }
    }

    /// Adds up what SAs that are gone have counted; returns false if there are others to wait for.
    pub(super) fn settle(&mut self) -> bool {
        self.outbound.settle();
        self.inbound.settle();
        self.outbound.sas.is_empty() && self.inbound.sas.is_empty()
    }

    pub(super) fn outbound<'a>(
        &'a self,
        present: impl Iterator<Item = &'a Shared<OutboundSa>>,
    ) -> RouteCounters {
        self.outbound.sum(present, self.drops.outbound.read())
    }

    pub(super) fn inbound<'a>(
        &'a self,
        present: impl Iterator<Item = &'a Shared<InboundSa>>,
    ) -> RouteCounters {
        self.inbound.sum(present, self.drops.inbound.read())
    }
}
