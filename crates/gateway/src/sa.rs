//! Security associations: what a worker needs to seal and to open packets.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use tare_gcm::Key;

use crate::window::Window;

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
        src: u128,
        /// The peer.
        dst: u128,
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
                src: src.to_bits(),
                dst: dst.to_bits(),
            }),
            _ => None,
        }
    }
}

/// How the sequence numbers of an SA are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// In 64 bits, of which a packet carries the lower half: extended sequence numbers, ESN.
    Extended,
    /// In 32 bits; the SA ends with them.
    Plain,
}

/// Packets on their way out, to one peer.
#[repr(align(64))]
pub struct OutboundSa {
    /// The last number used.
    sequence: AtomicU64,
    bytes: AtomicU64,
    pub(crate) key: Key,
    pub(crate) outer: Outer,
    pub(crate) salt: [u8; 4],
    pub(crate) spi: u32,
    pub(crate) counting: Counting,
}

impl OutboundSa {
    /// An SA whose first packet has the number 1.
    pub fn new(spi: u32, key: Key, salt: [u8; 4], counting: Counting, outer: Outer) -> OutboundSa {
        OutboundSa {
            sequence: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            key,
            outer,
            salt,
            spi,
            counting,
        }
    }

    /// The security parameters index.
    pub fn spi(&self) -> u32 {
        self.spi
    }

    /// Packets sent.
    pub fn packets(&self) -> u64 {
        self.sequence.load(Ordering::Relaxed)
    }

    /// Bytes of inner packets sent.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Takes `n` numbers in a row, of `bytes` in all, and gives the first; none where the SA has no more.
    ///
    /// The number is the nonce: that no two packets share one is what keeps the key secret, so it is taken from one
    /// counter whoever asks.
    #[inline]
    pub(crate) fn take(&self, n: u64, bytes: u64) -> Option<u64> {
        let first = self
            .sequence
            .fetch_add(n, Ordering::Relaxed)
            .checked_add(1)?;
        // RFC 4303, 3.3.3: "the sender checks to ensure that the counter has not cycled".
        let last = first.checked_add(n - 1)?;
        let end = match self.counting {
            // The top half is left to a counter that goes on being asked.
            Counting::Extended => u64::MAX / 2,
            Counting::Plain => u64::from(u32::MAX),
        };
        if last > end {
            self.sequence.fetch_sub(n, Ordering::Relaxed);
            return None;
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Some(first)
    }
}

/// Packets on their way in, from one peer.
#[repr(align(64))]
pub struct InboundSa {
    pub(crate) key: Key,
    pub(crate) spi: u32,
    pub(crate) salt: [u8; 4],
    /// The route that inner packets must come from.
    pub(crate) route: u32,
    pub(crate) counting: Counting,
    pub(crate) window: Window,
    pub(crate) packets: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) replayed: AtomicU64,
    pub(crate) forged: AtomicU64,
}

impl InboundSa {
    /// An SA of the route with this number.
    pub fn new(
        spi: u32,
        key: Key,
        salt: [u8; 4],
        counting: Counting,
        window: u32,
        route: usize,
    ) -> InboundSa {
        InboundSa {
            key,
            spi,
            salt,
            route: route as u32,
            counting,
            window: Window::new(window),
            packets: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            replayed: AtomicU64::new(0),
            forged: AtomicU64::new(0),
        }
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
