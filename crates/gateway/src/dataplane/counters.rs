//! Counters of packets: each one that comes in is forwarded, passed to the control side, or dropped
//! for a reason that has a name.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use tare_daemon::Reason;
use tare_port::Burst;

use super::sequence::add;
use super::worker::WorkerId;

tare_daemon::reasons! {
    /// The reason why a packet was dropped.
    pub enum DropReason {
        /// Not an Ethernet frame, or of a type that is neither IP nor ARP.
        NotIp => "not_ip",
        /// The IP header is truncated, contradicts itself or has a wrong checksum.
        Malformed => "malformed",
        /// TTL or hop limit exceeded.
        TtlExceeded => "ttl_exceeded",
        /// No route has a prefix that covers the destination.
        NoRoute => "no_route",
        /// The route has no keys yet.
        NoSa => "no_sa",
        /// The SA has no sequence number left.
        SequenceExhausted => "sequence_exhausted",
        /// Longer than the path MTU, and not to be fragmented.
        TooBig => "too_big",
        /// The MAC address of the next hop is unknown.
        NextHopUnknown => "next_hop_unknown",
        /// No frame was free, or none had the room.
        NoBuffer => "no_buffer",
        /// Addressed to another station's MAC address: the interface is promiscuous.
        OtherStation => "other_station",
        /// Addressed to a broadcast or multicast MAC address, and not for the control side (RFC
        /// 1812, 5.3.4).
        LinkBroadcast => "link_broadcast",
        /// The source address is not that of a host beyond this gateway: of 0/8, 127/8, 169.254/16,
        /// 224/4, 240/4, ::/64, fe80::/10 or ff00::/8, or an address of this gateway.
        MartianSource => "martian_source",
        /// The destination address is of one of these networks.
        MartianDestination => "martian_destination",
        /// Addressed to another host.
        NotForUs => "not_for_us",
        /// For this gateway, but neither ESP nor the key exchange nor ICMP.
        UnknownProtocol => "unknown_protocol",
        /// A fragment of an outer packet.
        OuterFragment => "outer_fragment",
        /// No SA has the SPI.
        UnknownSpi => "unknown_spi",
        /// The sequence number was seen before.
        Replayed => "replayed",
        /// The sequence number is behind the window.
        TooOld => "too_old",
        /// Not authentic.
        Forged => "forged",
        /// Authentic, but its padding is not 1, 2, 3, … (RFC 4303, 2.4).
        Padding => "padding",
        /// Authentic, but its trailer or inner header contradicts itself.
        InnerMalformed => "inner_malformed",
        /// Authentic, and a dummy (next header 59), which is to be dropped (RFC 4303, 2.6).
        Dummy => "dummy",
        /// The inner source belongs to another route, or to none.
        InnerSource => "inner_source",
        /// Congestion was marked on a packet that is not ECN-capable (RFC 6040, 4.2).
        EcnIllegal => "ecn_illegal",
        /// The port could not take it.
        PortFull => "port_full",
    }
}

tare_daemon::counters! {
    /// Counters of one direction. Bytes are with Ethernet headers.
    pub struct TrafficCounters {
        received => "received_packets_total": "Packets that came in",
        received_bytes => "received_bytes_total": "Bytes that came in",
        forwarded => "forwarded_packets_total": "Packets forwarded, each fragment counted",
        forwarded_bytes => "forwarded_bytes_total": "Bytes forwarded",
        control => "control_packets_total": "Packets for the gateway itself",
        fragments => "fragments_total": "Packets added by fragmenting",
        errors_sent => "icmp_errors_total": "ICMP errors sent",
        errors_suppressed => "icmp_errors_suppressed_total":
            "ICMP errors not sent because there were too many";
        /// Packets dropped.
        dropped: DropReason,
    }
}

impl TrafficCounters {
    #[inline]
    pub(crate) fn drop(&mut self, reason: DropReason) {
        self.dropped.count(reason);
    }

    /// Counts frames that a port refused as dropped instead of forwarded, and drops them.
    #[cold]
    pub(crate) fn take_back(&mut self, refused: &mut Burst) {
        for frame in refused.drain(..) {
            self.forwarded = self.forwarded.saturating_sub(1);
            self.forwarded_bytes = self.forwarded_bytes.saturating_sub(frame.len() as u64);
            self.drop(DropReason::PortFull);
        }
    }

    /// Returns the number of packets dropped for this reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped.get(reason)
    }

    /// Returns the number of packets dropped.
    pub fn dropped_total(&self) -> u64 {
        self.dropped.total()
    }

    /// Returns true if every packet that came in is accounted for.
    pub fn adds_up(&self) -> bool {
        self.received + self.fragments == self.forwarded + self.control + self.dropped_total()
    }
}

/// Packets dropped by reason; counted by all workers.
pub struct DropCounts([AtomicU64; DropReason::ALL.len()]);

impl Default for DropCounts {
    fn default() -> DropCounts {
        DropCounts([const { AtomicU64::new(0) }; DropReason::ALL.len()])
    }
}

impl DropCounts {
    fn count(&self, reason: DropReason, worker: &WorkerId) {
        if let Some(count) = self.0.get(reason.index()) {
            add(count, 1, worker);
        }
    }

    /// Goes on with the counts of another process. No worker may count meanwhile.
    pub(crate) fn go_on(&self, counts: &<DropReason as Reason>::Counts) {
        for (count, (_, before)) in self.0.iter().zip(counts.iter()) {
            count.fetch_add(before, Ordering::Relaxed);
        }
    }

    /// Returns the counts.
    pub fn read(&self) -> <DropReason as Reason>::Counts {
        let count = |reason: DropReason| self.0.get(reason.index());
        <DropReason as Reason>::Counts::of(|reason| {
            count(reason).map_or(0, |count| count.load(Ordering::Relaxed))
        })
    }
}

/// Packets of one route that were dropped, where it was known that they were of that route.
#[derive(Default)]
pub struct RouteDrops {
    /// Of the private side.
    pub outbound: DropCounts,
    /// Of the public side.
    pub inbound: DropCounts,
}

/// The counters of routes by their number.
///
/// They are apart from what packets touch on their way: only a packet that is dropped comes here.
#[derive(Default)]
pub struct DropTable(Box<[Option<Arc<RouteDrops>>]>);

impl FromIterator<Option<Arc<RouteDrops>>> for DropTable {
    fn from_iter<I: IntoIterator<Item = Option<Arc<RouteDrops>>>>(routes: I) -> DropTable {
        DropTable(routes.into_iter().collect())
    }
}

impl DropTable {
    #[cold]
    pub(super) fn outbound(&self, route: u32, reason: DropReason, worker: &WorkerId) {
        if let Some(Some(drops)) = self.0.get(route as usize) {
            drops.outbound.count(reason, worker);
        }
    }

    #[cold]
    pub(super) fn inbound(&self, route: u32, reason: DropReason, worker: &WorkerId) {
        if let Some(Some(drops)) = self.0.get(route as usize) {
            drops.inbound.count(reason, worker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tare_daemon::CountsBy;
    use tare_port::{Layout, Pool};

    #[test]
    fn what_a_port_refuses_is_dropped_and_still_adds_up() {
        let pool = Pool::new(8, 512, Layout::Spread).unwrap();
        let mut counters = TrafficCounters {
            received: 3,
            forwarded: 5,
            forwarded_bytes: 500,
            fragments: 2,
            ..TrafficCounters::default()
        };
        let mut burst: Burst = (0..4).map(|_| pool.copy(&[0; 100]).unwrap()).collect();
        counters.take_back(&mut burst);
        assert!(burst.is_empty() && counters.adds_up());
        assert_eq!((counters.forwarded, counters.forwarded_bytes), (1, 100));
        assert_eq!(counters.dropped(DropReason::PortFull), 4);
    }

    fn check<R, const N: usize>()
    where
        R: Reason<Counts = CountsBy<R, N>> + PartialEq + std::fmt::Debug,
    {
        let mut counts = CountsBy::<R, N>::default();
        for (n, reason) in R::REASONS.iter().enumerate() {
            assert_eq!(reason.index(), n);
            (0..=n).for_each(|_| counts.count(*reason));
        }
        for (n, reason) in R::REASONS.iter().enumerate() {
            assert_eq!(counts.get(*reason), n as u64 + 1);
            let mut others = R::REASONS.iter().filter(|other| *other != reason);
            assert!(others.all(|other| other.reason_name() != reason.reason_name()));
        }
    }

    #[test]
    fn reasons_are_counted_apart_and_have_names_of_their_own() {
        check::<DropReason, 26>();
        check::<crate::exchange::DropReason, 11>();
        check::<crate::control::Ignored, 12>();
        check::<crate::control::Taken, 7>();
    }
}
