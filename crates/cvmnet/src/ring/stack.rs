//! The ring under the guest's TCP/IP.

use std::ops::Range;

use super::header::{self, NetHeader, Protocol, Segments};
use super::{Driver, Received};
use crate::breakdown::Probe;
use crate::pool::GuestBuffer;
use crate::tcp::{Buffer, Checksum, Frame};
use crate::tcp::{Offload, Packet, Segmentation, Transmit};

impl Buffer for GuestBuffer {
    fn capacity(&self) -> usize {
        self.capacity()
    }

    /// Reads nothing if the bytes are not all within the buffer.
    fn read(&self, at: usize, to: &mut [u8]) {
        let read = self.read(at, to);
        debug_assert!(read.is_some(), "{self:?} is read beyond its end");
    }

    /// Returns 0 if the bytes are not all within the buffer.
    fn sum(&self, range: Range<usize>) -> u64 {
        let sum = self.sum(range);
        debug_assert!(sum.is_some(), "{self:?} is read beyond its end");
        sum.unwrap_or(0)
    }
}

impl From<Received> for Frame<GuestBuffer> {
    fn from(received: Received) -> Frame<GuestBuffer> {
        Frame {
            buffer: received.buffer,
            range: received.range,
            checksum: match received.header.checksum {
                header::Checksum::Unverified => Checksum::Unverified,
                header::Checksum::Verified | header::Checksum::Partial { .. } => Checksum::Trusted,
            },
        }
    }
}

impl From<Offload> for NetHeader {
    fn from(offload: Offload) -> NetHeader {
        let protocol = match offload.segmentation {
            Segmentation::None => None,
            Segmentation::Tcp4 => Some(Protocol::Tcp4),
            Segmentation::Tcp6 => Some(Protocol::Tcp6),
        };
        NetHeader {
            checksum: match offload.needs_checksum {
                true => header::Checksum::Partial {
                    start: offload.checksum_start,
                    offset: offload.checksum_offset,
                },
                false => header::Checksum::Unverified,
            },
            segments: protocol.map(|protocol| Segments {
                protocol,
                bytes: offload.segment_bytes,
                header_bytes: offload.header_bytes,
            }),
        }
    }
}

/// Packets are added to the ring: call [`Driver::flush`] after the stack was polled. One that is
/// refused all the same counts as lost, as on any network.
impl<P: Probe> Transmit<GuestBuffer> for Driver<P> {
    fn room(&mut self) -> usize {
        Driver::room(self)
    }

    fn send(&mut self, packet: Packet<'_, GuestBuffer>) {
        let _ = Driver::send(self, packet.headers, packet.payload, &packet.offload.into());
    }
}
