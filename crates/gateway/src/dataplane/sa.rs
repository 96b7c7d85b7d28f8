//! Security associations: what a worker needs to seal and to open packets.

mod handover;

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tare_gcm::Key;
use tare_memory::{Arena, Placed};
use tare_packet::{ipv4, ipv6, protocol};
use tare_port::prefetch;

use super::sequence::{add, SequenceCounter, SequenceMode};
use super::window::Window;
use super::worker::{Binding, WorkerId};

pub(crate) use handover::{Highest, Opened, Sent};

/// The addresses of a tunnel's outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outer {
    /// Over IPv4.
    V4 {
        /// This gateway.
        src: u32,
        /// The peer.
        dst: u32,
    },
    /// Over IPv6.
    V6 {
        /// This gateway.
        src: [u8; 16],
        /// The peer.
        dst: [u8; 16],
    },
}

impl Outer {
    /// Returns the addresses of a tunnel; `None` if their families differ.
    pub fn between(src: IpAddr, dst: IpAddr) -> Option<Outer> {
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Outer::V4 {
                src: src.to_bits(),
                dst: dst.to_bits(),
            }),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Outer::V6 {
                src: src.octets(),
                dst: dst.octets(),
            }),
            _ => None,
        }
    }
}

/// Returns the outer header of a tunnel over IPv4, without what packets differ in: DSCP, ECN and
/// length.
#[inline(always)]
fn header4(src: u32, dst: u32) -> ipv4::Repr {
    ipv4::Repr {
        src,
        dst,
        protocol: protocol::ESP,
        ttl: protocol::TTL_DEFAULT,
        tos: 0,
        total_len: 0,
        // Outer packets are never fragmented: what is too long for the path is reported, and inner
        // packets are fragmented instead.
        fragment: ipv4::DONT_FRAGMENT,
    }
}

/// The outer headers of an SA's packets.
#[derive(Clone, Copy)]
pub(super) enum OuterHeader {
    V4(OuterHeader4),
    V6(OuterHeader6),
}

/// [`OuterHeader`] over IPv4. Its sum is that of all words that packets do not differ in.
#[derive(Clone, Copy)]
pub(super) struct OuterHeader4 {
    header: ipv4::Repr,
    sum: u16,
}

impl OuterHeader4 {
    /// Writes the header of a packet with `payload` bytes behind it and this DSCP and ECN.
    #[inline(always)]
    pub(super) fn write(&self, to: &mut [u8; ipv4::HEADER], payload: usize, tos: u8) {
        let header = ipv4::Repr {
            tos,
            total_len: (ipv4::HEADER + payload) as u16,
            ..self.header
        };
        header.write_with(self.sum, to);
    }
}

/// [`OuterHeader`] over IPv6.
#[derive(Clone, Copy)]
pub(super) struct OuterHeader6(ipv6::Repr);

impl OuterHeader6 {
    /// As [`OuterHeader4::write`].
    #[inline(always)]
    pub(super) fn write(&self, to: &mut [u8; ipv6::HEADER], payload: usize, tos: u8) {
        let header = ipv6::Repr {
            traffic_class: tos,
            payload_len: payload as u16,
            ..self.0
        };
        header.write(to);
    }
}

const _: () = assert!(std::mem::offset_of!(OutboundSa, outer) + 12 <= 64);
const _: () = assert!(std::mem::offset_of!(InboundSa, window) + Window::FRONT <= 64);

/// The unit of [`OutboundSa::with_ivs_from`]: 62.5 million in a second.
const IV_TICK: Duration = Duration::from_nanos(16);

/// The highest IV of a packet less its sequence number: numbers end at half of the range.
pub(crate) const IV_BASE_MAX: u64 = u64::MAX / 2;

/// An outbound SA. Over IPv4, the fields that a packet touches are one cache line.
#[repr(C, align(64))]
pub struct OutboundSa {
    sequence: SequenceCounter,
    bytes: AtomicU64,
    pub(crate) key: Key,
    pub(crate) salt: [u8; 4],
    pub(crate) spi: u32,
    pub(crate) sequence_mode: SequenceMode,
    /// The IV is not the sequence number alone.
    has_iv_base: bool,
    /// Over IPv4, the sum of the outer header without what packets differ in.
    outer_sum: u16,
    outer: Outer,
    /// The IV of a packet less its sequence number.
    iv_base: u64,
    /// Sequence numbers that were left to an earlier SA.
    skipped: u64,
    pub(super) group: Binding,
}

impl OutboundSa {
    /// An SA whose first packet has the number 1.
    pub fn new(
        spi: u32,
        key: Key,
        salt: [u8; 4],
        sequence_mode: SequenceMode,
        outer: Outer,
    ) -> OutboundSa {
        let outer_sum = match outer {
            Outer::V4 { src, dst } => header4(src, dst).partial_sum(),
            Outer::V6 { .. } => 0,
        };
        OutboundSa {
            sequence: SequenceCounter::default(),
            bytes: AtomicU64::new(0),
            key,
            has_iv_base: false,
            outer_sum,
            outer,
            salt,
            spi,
            sequence_mode,
            iv_base: 0,
            skipped: 0,
            group: Binding::default(),
        }
    }

    /// Takes IVs that no SA with this key had that was made earlier, even in a process that is
    /// gone: they start at the time since 1970 in units of 16 ns, and the sequence number is added.
    /// A key that was given by hand outlives the numbers that were used with it, and a nonce used
    /// twice would give it away. This holds while the clock is not set back behind an earlier
    /// start, and an SA sends no more than a packet per 16 ns on average.
    #[must_use]
    pub fn with_ivs_from(self, since_1970: Duration) -> OutboundSa {
        let ticks = since_1970.as_nanos() / IV_TICK.as_nanos();
        self.with_iv_base(u64::try_from(ticks).unwrap_or(IV_BASE_MAX))
    }

    /// Takes IVs from this one on, to which the sequence number is added.
    #[must_use]
    pub(crate) fn with_iv_base(mut self, base: u64) -> OutboundSa {
        self.iv_base = base.min(IV_BASE_MAX);
        self.has_iv_base = true;
        self
    }

    /// The IV of the packet with this sequence number.
    #[inline(always)]
    pub(super) fn iv(&self, number: u64) -> u64 {
        match self.has_iv_base {
            true => self.iv_base.wrapping_add(number),
            false => number,
        }
    }

    /// Goes on behind the numbers of an earlier SA with the same key, which may still be in use for
    /// as long as it takes a worker to send `margin` packets: a number used twice would give the
    /// key away.
    pub fn follow(&mut self, earlier: &OutboundSa, margin: u64) {
        self.begin_after(earlier.last_number().saturating_add(margin));
    }

    /// Uses no number up to `last`.
    pub(crate) fn begin_after(&mut self, last: u64) {
        self.sequence.skip_to(last);
        self.skipped = last.max(self.skipped);
    }

    /// The security parameters index.
    pub fn spi(&self) -> u32 {
        self.spi
    }

    /// The addresses of the tunnel.
    pub(super) fn outer(&self) -> &Outer {
        &self.outer
    }

    /// Returns the outer headers of its packets.
    #[inline(always)]
    pub(super) fn outer_header(&self) -> OuterHeader {
        match self.outer {
            Outer::V4 { src, dst } => OuterHeader::V4(OuterHeader4 {
                header: header4(src, dst),
                sum: self.outer_sum,
            }),
            Outer::V6 { src, dst } => OuterHeader::V6(OuterHeader6(ipv6::Repr {
                src: u128::from_be_bytes(src),
                dst: u128::from_be_bytes(dst),
                next_header: protocol::ESP,
                hop_limit: protocol::TTL_DEFAULT,
                traffic_class: 0,
                payload_len: 0,
            })),
        }
    }

    /// The last sequence number used.
    pub(crate) fn last_number(&self) -> u64 {
        self.sequence.last()
    }

    /// Packets sent.
    pub fn packets(&self) -> u64 {
        self.sequence.last().saturating_sub(self.skipped)
    }

    /// Bytes encrypted: inner packets with padding, its length and the next header. RFC 4301,
    /// 4.4.2.1 counts the life of an SA in these.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Takes `n` consecutive sequence numbers and returns the first; `None` if the SA has no more.
    #[inline]
    pub(crate) fn take(&self, n: u64, worker: &WorkerId) -> Option<u64> {
        self.sequence.take(n, self.sequence_mode, worker)
    }

    /// Prefetches the fields that a packet touches, without the key.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(&self.sequence);
    }

    #[inline]
    pub(crate) fn count(&self, bytes: u64, worker: &WorkerId) {
        add(&self.bytes, bytes, worker);
    }
}

/// An inbound SA. The fields that every packet touches which arrives in order stand
/// in front: one cache line.
#[repr(C, align(64))]
pub struct InboundSa {
    pub(crate) key: Key,
    pub(crate) packets: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) salt: [u8; 4],
    /// The route that inner packets must come from.
    pub(crate) route: u32,
    pub(crate) window: Window,
    pub(crate) spi: u32,
    pub(crate) replayed: AtomicU64,
    pub(crate) forged: AtomicU64,
    /// True if padding may be zeros instead of 1, 2, 3, …
    zeros_are_padding: bool,
    pub(super) group: Binding,
}

impl InboundSa {
    /// An SA of the route with this number.
    pub fn new(
        spi: u32,
        key: Key,
        salt: [u8; 4],
        sequence_mode: SequenceMode,
        window: u32,
        route: usize,
    ) -> InboundSa {
        InboundSa {
            key,
            spi,
            salt,
            route: route as u32,
            window: Window::new(window, sequence_mode),
            packets: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            replayed: AtomicU64::new(0),
            forged: AtomicU64::new(0),
            zeros_are_padding: false,
            group: Binding::default(),
        }
    }

    /// Accepts padding of zeros too, which is what Vita writes.
    #[must_use]
    pub fn with_zeros_as_padding(self) -> InboundSa {
        InboundSa {
            zeros_are_padding: true,
            ..self
        }
    }

    /// Returns true if padding of zeros is accepted too.
    pub fn accepts_zeros_as_padding(&self) -> bool {
        self.zeros_are_padding
    }

    /// Prefetches the fields that a packet touches, without the key.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(&self.packets);
    }

    /// The security parameters index.
    pub fn spi(&self) -> u32 {
        self.spi
    }

    /// Authentic packets received.
    pub fn packets(&self) -> u64 {
        self.packets.load(Ordering::Relaxed)
    }

    /// Bytes decrypted, as [`OutboundSa::bytes`] counts them at the other end.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Packets refused because they were seen before, or may have been.
    pub fn replayed(&self) -> u64 {
        self.replayed.load(Ordering::Relaxed)
    }

    /// Packets refused because they are not authentic.
    pub fn forged(&self) -> u64 {
        self.forged.load(Ordering::Relaxed)
    }

    /// The highest sequence number received.
    pub fn top(&self) -> u64 {
        self.window.top()
    }
}

impl Placed for OutboundSa {
    fn arena() -> &'static Arena<OutboundSa> {
        static OUTBOUND: Arena<OutboundSa> = Arena::new();
        &OUTBOUND
    }
}

impl Placed for InboundSa {
    fn arena() -> &'static Arena<InboundSa> {
        static INBOUND: Arena<InboundSa> = Arena::new();
        &INBOUND
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::WorkerGroup;
    use tare_memory::Shared;

    #[test]
    fn an_sa_that_follows_another_uses_none_of_its_numbers_and_counts_its_own_packets() {
        let sa = |sequence_mode| {
            let outer = Outer::V4 { src: 1, dst: 2 };
            OutboundSa::new(
                300,
                Key::new(&[1; 16]).unwrap(),
                [0; 4],
                sequence_mode,
                outer,
            )
        };
        let (_, worker) = WorkerGroup::sole();
        let (first, mut second, mut third) = (
            sa(SequenceMode::Extended),
            sa(SequenceMode::Extended),
            sa(SequenceMode::Extended),
        );
        assert_eq!(first.take(5, &worker), Some(1));
        second.follow(&first, 100);
        assert_eq!(second.take(2, &worker), Some(106));
        third.follow(&second, 100);
        assert_eq!(third.take(1, &worker), Some(208));
        let packets = [first, second, third].map(|sa| sa.packets());
        assert_eq!(packets, [5, 2, 1]);
    }

    #[test]
    fn ivs_that_start_at_the_time_are_not_those_of_an_earlier_sa() {
        let made = |seconds: u64| {
            let outer = Outer::V4 { src: 1, dst: 2 };
            let key = Key::new(&[1; 16]).unwrap();
            OutboundSa::new(300, key, [0; 4], SequenceMode::Extended, outer)
                .with_ivs_from(Duration::from_secs(seconds))
        };
        let (first, second) = (made(1_800_000_000), made(1_800_000_010));
        // Ten seconds at the highest rate lie between them.
        assert_eq!(second.iv(1) - first.iv(1), 625_000_000);
        assert_eq!(first.iv(7) - first.iv(1), 6);
        let end = u64::MAX / 2;
        assert!(made(u64::MAX).iv(end) > made(1).iv(end));
    }

    fn line<T>(value: &T) -> usize {
        (&raw const *value).addr() / 64
    }

    /// The lines of thousands of SAs are what a worker waits for: see [`Arena`].
    #[test]
    fn sas_are_an_odd_number_of_lines_apart_with_all_that_a_packet_touches_in_one_of_their_own() {
        let outer = Outer::V4 { src: 1, dst: 2 };
        let key = || Key::new(&[1; 16]).unwrap();
        let outbound = |spi| {
            let sa = OutboundSa::new(spi, key(), [0; 4], SequenceMode::Extended, outer);
            Shared::new(sa)
        };
        let inbound = |spi| {
            let sa = InboundSa::new(spi, key(), [0; 4], SequenceMode::Extended, 64, 0);
            Shared::new(sa)
        };
        let strides = [Arena::<OutboundSa>::STRIDE, Arena::<InboundSa>::STRIDE];
        // The guide has these figures.
        assert_eq!(strides, [192, 704]);
        assert!(strides.iter().all(|stride| stride / 64 % 2 == 1));
        let (sent, received): (Vec<_>, Vec<_>) =
            (256..300).map(|n| (outbound(n), inbound(n))).unzip();
        let mut lines = std::collections::HashSet::new();
        for sa in &sent {
            let own = line(&sa.sequence);
            let others = [
                line(&sa.bytes),
                line(&sa.has_iv_base),
                line(&sa.key),
                line(&sa.salt),
                line(&sa.spi),
            ];
            assert_eq!(others, [own; 5]);
            let Outer::V4 { src, dst } = &sa.outer else {
                unreachable!()
            };
            let header = [line(src), line(dst), line(&sa.outer_sum)];
            assert_eq!(header, [own; 3]);
            assert_eq!(line(&sa.sequence_mode), own);
            assert!(lines.insert(own));
        }
        for sa in &received {
            let own = line(&sa.key);
            let others = [
                line(&sa.packets),
                line(&sa.bytes),
                line(&sa.salt),
                line(&sa.route),
            ];
            assert_eq!(others, [own; 4]);
            assert_eq!(line(&sa.window), own);
            assert!(lines.insert(own));
        }
        // The next SA takes the slot of one that has ended, not one that tables still hold.
        let held = sent[3].clone();
        let ended: Vec<usize> = sent.iter().map(|sa| line(&**sa)).collect();
        drop(sent);
        let fresh: Vec<_> = (300..400).map(outbound).collect();
        assert!(fresh.iter().any(|sa| ended.contains(&line(&**sa))));
        assert!(fresh.iter().all(|sa| line(&**sa) != line(&*held)));
        assert_eq!((held.spi(), held.packets()), (259, 0));
    }

    #[test]
    fn an_sa_ends_with_its_numbers() {
        let outer = Outer::V4 { src: 1, dst: 2 };
        let key = Key::new(&[1; 16]).unwrap();
        let sa = OutboundSa::new(300, key, [0; 4], SequenceMode::Plain, outer);
        let (_, worker) = WorkerGroup::sole();
        let all = u64::from(u32::MAX);
        assert_eq!(sa.take(all - 1, &worker), Some(1));
        assert_eq!(sa.take(2, &worker), None);
        assert_eq!(sa.take(1, &worker), Some(all));
        assert_eq!(sa.take(1, &worker), None);
    }
}
