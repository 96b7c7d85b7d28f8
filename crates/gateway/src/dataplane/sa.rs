//! Security associations: what a worker needs to seal and to open packets.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use tare_gcm::Key;

use tare_port::prefetch;

use super::window::Window;

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
    /// From one address to another; none where their families differ.
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

const _: () = assert!(std::mem::offset_of!(OutboundSa, outer) + 12 <= 64);
const _: () = assert!(std::mem::offset_of!(InboundSa, window) + Window::FRONT <= 64);

/// How the sequence numbers of an SA are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceMode {
    /// In 64 bits, of which a packet carries the lower half: extended sequence numbers, ESN.
    Extended,
    /// In 32 bits; the SA ends with them.
    Plain,
}

/// Packets on their way out, to one peer. Over IPv4, what a packet touches is one cache line.
#[repr(C, align(64))]
pub struct OutboundSa {
    /// The last number used.
    sequence: AtomicU64,
    bytes: AtomicU64,
    pub(crate) key: Key,
    pub(crate) salt: [u8; 4],
    pub(crate) spi: u32,
    pub(crate) sequence_mode: SequenceMode,
    pub(crate) outer: Outer,
    /// Numbers that were left to an earlier SA.
    skipped: AtomicU64,
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
        OutboundSa {
            sequence: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            key,
            outer,
            salt,
            spi,
            sequence_mode,
            skipped: AtomicU64::new(0),
        }
    }

    /// Goes on behind the numbers of an earlier SA with the same key, which may still be in use for
    /// as long as it takes a worker to send `margin` packets: a number used twice would give the
    /// key away.
    pub fn follow(&self, earlier: &OutboundSa, margin: u64) {
        let last = earlier.last_number().saturating_add(margin);
        self.sequence.fetch_max(last, Ordering::Relaxed);
        self.skipped.fetch_max(last, Ordering::Relaxed);
    }

    /// The security parameters index.
    pub fn spi(&self) -> u32 {
        self.spi
    }

    /// The last sequence number used.
    pub(crate) fn last_number(&self) -> u64 {
        self.sequence.load(Ordering::Relaxed)
    }

    /// Packets sent.
    pub fn packets(&self) -> u64 {
        let skipped = self.skipped.load(Ordering::Relaxed);
        self.sequence
            .load(Ordering::Relaxed)
            .saturating_sub(skipped)
    }

    /// Bytes of inner packets sent.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Takes `n` numbers in a row and gives the first; none where the SA has no more.
    ///
    /// The number is the nonce: that no two packets share one is what keeps the key secret, so it
    /// is taken from one counter whoever asks. `alone` must be true only for the one worker of a
    /// gateway that has no other: it need not keep others out, which waits for all that it loaded
    /// and stored before, and with a route of its own for each packet is a tenth of its time.
    #[inline]
    pub(crate) fn take(&self, n: u64, alone: bool) -> Option<u64> {
        let before = if alone {
            let before = self.sequence.load(Ordering::Relaxed);
            self.sequence
                .store(before.wrapping_add(n), Ordering::Relaxed);
            before
        } else {
            self.sequence.fetch_add(n, Ordering::Relaxed)
        };
        let first = before.checked_add(1)?;
        // RFC 4303, 3.3.3: "the sender checks to ensure that the counter has not cycled".
        let last = first.checked_add(n - 1)?;
        let end = match self.sequence_mode {
            // The top half is left to a counter that goes on being asked.
            SequenceMode::Extended => u64::MAX / 2,
            SequenceMode::Plain => u64::from(u32::MAX),
        };
        if last > end {
            self.sequence.fetch_sub(n, Ordering::Relaxed);
            return None;
        }
        Some(first)
    }

    /// Asks for what a packet will touch, but for the key.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(&self.sequence);
    }

    #[inline]
    pub(crate) fn count(&self, bytes: u64, alone: bool) {
        add(&self.bytes, bytes, alone);
    }
}

/// Adds to a counter. A worker that is alone need not keep others out, which takes as long as
/// twenty instructions.
#[inline]
pub(crate) fn add(counter: &AtomicU64, n: u64, alone: bool) {
    if alone {
        counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    } else {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

/// Packets on their way in, from one peer. What every packet touches that comes in its order stands
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
        }
    }

    /// Asks for what a packet will touch, but for the key.
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

    /// Bytes received, of inner packets and their padding.
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

#[cfg(test)]
mod tests {
    use super::*;

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
        let (first, second, third) = (
            sa(SequenceMode::Extended),
            sa(SequenceMode::Extended),
            sa(SequenceMode::Extended),
        );
        assert_eq!(first.take(5, false), Some(1));
        second.follow(&first, 100);
        assert_eq!(second.take(2, false), Some(106));
        third.follow(&second, 100);
        assert_eq!(third.take(1, false), Some(208));
        let packets = [first, second, third].map(|sa| sa.packets());
        assert_eq!(packets, [5, 2, 1]);
    }

    #[test]
    fn an_sa_ends_with_its_numbers() {
        let outer = Outer::V4 { src: 1, dst: 2 };
        let key = Key::new(&[1; 16]).unwrap();
        let sa = OutboundSa::new(300, key, [0; 4], SequenceMode::Plain, outer);
        let all = u64::from(u32::MAX);
        assert_eq!(sa.take(all - 1, false), Some(1));
        assert_eq!(sa.take(2, false), None);
        assert_eq!(sa.take(1, false), Some(all));
        assert_eq!(sa.take(1, false), None);
    }
}
