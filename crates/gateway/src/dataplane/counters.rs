//! What happened to packets: every one that comes in is forwarded, handed to the control side, or
//! dropped for a cause that has a name.

use tare_port::Burst;

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum Cause {
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

impl Cause {
    /// All causes, in the order of their numbers.
    pub const ALL: [Cause; 21] = [
        Cause::NotIp,
        Cause::Malformed,
        Cause::TtlExceeded,
        Cause::NoRoute,
        Cause::NoSa,
        Cause::SequenceExhausted,
        Cause::TooBig,
        Cause::NextHopUnknown,
        Cause::NoBuffer,
        Cause::NotForUs,
        Cause::UnknownProtocol,
        Cause::OuterFragment,
        Cause::UnknownSpi,
        Cause::Replayed,
        Cause::TooOld,
        Cause::Forged,
        Cause::InnerMalformed,
        Cause::Dummy,
        Cause::InnerSource,
        Cause::EcnIllegal,
        Cause::PortFull,
    ];

    /// Its name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Cause::NotIp => "not_ip",
            Cause::Malformed => "malformed",
            Cause::TtlExceeded => "ttl_exceeded",
            Cause::NoRoute => "no_route",
            Cause::NoSa => "no_sa",
            Cause::SequenceExhausted => "sequence_exhausted",
            Cause::TooBig => "too_big",
            Cause::NextHopUnknown => "next_hop_unknown",
            Cause::NoBuffer => "no_buffer",
            Cause::NotForUs => "not_for_us",
            Cause::UnknownProtocol => "unknown_protocol",
            Cause::OuterFragment => "outer_fragment",
            Cause::UnknownSpi => "unknown_spi",
            Cause::Replayed => "replayed",
            Cause::TooOld => "too_old",
            Cause::Forged => "forged",
            Cause::InnerMalformed => "inner_malformed",
            Cause::Dummy => "dummy",
            Cause::InnerSource => "inner_source",
            Cause::EcnIllegal => "ecn_illegal",
            Cause::PortFull => "port_full",
        }
    }
}

/// What happened in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Direction {
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
    /// Packets of those that were dropped, by [`Cause`].
    pub dropped: [u64; Cause::ALL.len()],
    /// Packets more than came in, by fragmenting.
    pub fragments: u64,
    /// ICMP errors made on top.
    pub errors_sent: u64,
    /// ICMP errors not made, because there were too many.
    pub errors_suppressed: u64,
}

impl Direction {
    #[inline]
    pub(crate) fn drop(&mut self, cause: Cause) {
        self.dropped[cause as usize] += 1;
    }

    /// Counts frames as dropped after all that were counted as forwarded, and drops them.
    #[cold]
    pub(crate) fn take_back(&mut self, refused: &mut Burst) {
        for frame in refused.drain(..) {
            self.forwarded = self.forwarded.saturating_sub(1);
            self.forwarded_bytes = self.forwarded_bytes.saturating_sub(frame.len() as u64);
            self.drop(Cause::PortFull);
        }
    }

    /// How many were dropped for this cause.
    pub fn dropped(&self, cause: Cause) -> u64 {
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
    pub fn since(&self, earlier: &Direction) -> Direction {
        let mut since = *self;
        since.merge(earlier, u64::wrapping_sub);
        since
    }

    /// Adds what another worker counted.
    pub fn add(&mut self, other: &Direction) {
        self.merge(other, u64::wrapping_add);
    }

    fn merge(&mut self, other: &Direction, merge: fn(u64, u64) -> u64) {
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
        let mut direction = Direction {
            received: 3,
            forwarded: 5,
            forwarded_bytes: 500,
            fragments: 2,
            ..Direction::default()
        };
        let mut burst: Burst = (0..4).map(|_| pool.copy(&[0; 100]).unwrap()).collect();
        direction.take_back(&mut burst);
        assert!(burst.is_empty() && direction.adds_up());
        assert_eq!((direction.forwarded, direction.forwarded_bytes), (1, 100));
        assert_eq!(direction.dropped(Cause::PortFull), 4);
    }
}
