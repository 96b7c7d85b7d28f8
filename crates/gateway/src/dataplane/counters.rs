//! What happened to packets: every one that comes in is forwarded, handed to the control side, or
//! dropped for a cause that has a name.

use tare_port::Burst;

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum DropReason {
    /// No Ethernet frame, or of a type that is neither IP nor ARP.
    NotIp,
    /// The IP header is truncated, contradicts itself or has a wrong checksum.
    Malformed,
    /// No hop left.
    TtlExceeded,
    /// No route has a prefix that covers the destination.
    NoRoute,
    /// No keys for the route yet.
    NoSa,
    /// The SA has no sequence number left.
    SequenceExhausted,
    /// Longer than the path takes, and not to be fragmented.
    TooBig,
    /// The station of the next hop is not known yet.
    NextHopUnknown,
    /// No frame was free, or none had the room.
    NoBuffer,
    /// Addressed to somebody else.
    NotForUs,
    /// For this gateway, but neither ESP nor the key exchange nor ICMP.
    UnknownProtocol,
    /// A fragment of an outer packet.
    OuterFragment,
    /// No SA has the SPI.
    UnknownSpi,
    /// The sequence number was seen before.
    Replayed,
    /// The sequence number is behind the window.
    TooOld,
    /// Not authentic.
    Forged,
    /// Authentic, but its trailer or inner header contradicts itself.
    InnerMalformed,
    /// Authentic, and a dummy (next header 59), which is to be dropped (RFC 4303, 2.6).
    Dummy,
    /// The inner source belongs to another route, or to none.
    InnerSource,
    /// Congestion was marked on a packet that does not take part (RFC 6040, 4.2).
    EcnIllegal,
    /// The port could not take it.
    PortFull,
}

impl DropReason {
    /// All causes, in the order of their numbers.
    pub const ALL: [DropReason; 21] = [
        DropReason::NotIp,
        DropReason::Malformed,
        DropReason::TtlExceeded,
        DropReason::NoRoute,
        DropReason::NoSa,
        DropReason::SequenceExhausted,
        DropReason::TooBig,
        DropReason::NextHopUnknown,
        DropReason::NoBuffer,
        DropReason::NotForUs,
        DropReason::UnknownProtocol,
        DropReason::OuterFragment,
        DropReason::UnknownSpi,
        DropReason::Replayed,
        DropReason::TooOld,
        DropReason::Forged,
        DropReason::InnerMalformed,
        DropReason::Dummy,
        DropReason::InnerSource,
        DropReason::EcnIllegal,
        DropReason::PortFull,
    ];

    /// Its name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            DropReason::NotIp => "not_ip",
            DropReason::Malformed => "malformed",
            DropReason::TtlExceeded => "ttl_exceeded",
            DropReason::NoRoute => "no_route",
            DropReason::NoSa => "no_sa",
            DropReason::SequenceExhausted => "sequence_exhausted",
            DropReason::TooBig => "too_big",
            DropReason::NextHopUnknown => "next_hop_unknown",
            DropReason::NoBuffer => "no_buffer",
            DropReason::NotForUs => "not_for_us",
            DropReason::UnknownProtocol => "unknown_protocol",
            DropReason::OuterFragment => "outer_fragment",
            DropReason::UnknownSpi => "unknown_spi",
            DropReason::Replayed => "replayed",
            DropReason::TooOld => "too_old",
            DropReason::Forged => "forged",
            DropReason::InnerMalformed => "inner_malformed",
            DropReason::Dummy => "dummy",
            DropReason::InnerSource => "inner_source",
            DropReason::EcnIllegal => "ecn_illegal",
            DropReason::PortFull => "port_full",
        }
    }
}

/// What happened in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficCounters {
    /// Packets that came in.
    pub received: u64,
    /// Their bytes, with Ethernet headers.
    pub received_bytes: u64,
    /// Packets that went on, each fragment counted.
    pub forwarded: u64,
    /// Bytes that went on, with Ethernet headers.
    pub forwarded_bytes: u64,
    /// Packets of those that the control side got.
    pub control: u64,
    /// Packets of those that were dropped, by [`DropReason`].
    pub dropped: [u64; DropReason::ALL.len()],
    /// Packets more than came in, by fragmenting.
    pub fragments: u64,
    /// ICMP errors made on top.
    pub errors_sent: u64,
    /// ICMP errors not made, because there were too many.
    pub errors_suppressed: u64,
}

impl TrafficCounters {
    #[inline]
    pub(crate) fn drop(&mut self, cause: DropReason) {
        self.dropped[cause as usize] += 1;
    }

    /// Counts frames as dropped after all that were counted as forwarded, and drops them.
    #[cold]
    pub(crate) fn take_back(&mut self, refused: &mut Burst) {
        for frame in refused.drain(..) {
            self.forwarded = self.forwarded.saturating_sub(1);
            self.forwarded_bytes = self.forwarded_bytes.saturating_sub(frame.len() as u64);
            self.drop(DropReason::PortFull);
        }
    }

    /// How many were dropped for this cause.
    pub fn dropped(&self, cause: DropReason) -> u64 {
        self.dropped[cause as usize]
    }

    /// How many were dropped in all.
    pub fn dropped_total(&self) -> u64 {
        self.dropped.iter().sum()
    }

    /// Whether every packet that came in is accounted for.
    pub fn adds_up(&self) -> bool {
        self.received + self.fragments == self.forwarded + self.control + self.dropped_total()
    }

    /// What was counted on top of an earlier state.
    pub fn since(&self, earlier: &TrafficCounters) -> TrafficCounters {
        let mut since = *self;
        since.merge(earlier, u64::wrapping_sub);
        since
    }

    /// Adds what another worker counted.
    pub fn add(&mut self, other: &TrafficCounters) {
        self.merge(other, u64::wrapping_add);
    }

    fn merge(&mut self, other: &TrafficCounters, merge: fn(u64, u64) -> u64) {
        let mine = [
            &mut self.received,
            &mut self.received_bytes,
            &mut self.forwarded,
            &mut self.forwarded_bytes,
            &mut self.control,
            &mut self.fragments,
            &mut self.errors_sent,
            &mut self.errors_suppressed,
        ];
        let theirs = [
            other.received,
            other.received_bytes,
            other.forwarded,
            other.forwarded_bytes,
            other.control,
            other.fragments,
            other.errors_sent,
            other.errors_suppressed,
        ];
        let dropped = self.dropped.iter_mut().zip(other.dropped);
        for (mine, theirs) in mine.into_iter().zip(theirs).chain(dropped) {
            *mine = merge(*mine, theirs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tare_port::{Layout, Pool};

    #[test]
    fn what_a_port_refuses_is_dropped_and_still_adds_up() {
        let pool = Pool::new(8, 512, Layout::Spread).unwrap();
        let mut direction = TrafficCounters {
            received: 3,
            forwarded: 5,
            forwarded_bytes: 500,
            fragments: 2,
            ..TrafficCounters::default()
        };
        let mut burst: Burst = (0..4).map(|_| pool.copy(&[0; 100]).unwrap()).collect();
        direction.take_back(&mut burst);
        assert!(burst.is_empty() && direction.adds_up());
        assert_eq!((direction.forwarded, direction.forwarded_bytes), (1, 100));
        assert_eq!(direction.dropped(DropReason::PortFull), 4);
    }
}
