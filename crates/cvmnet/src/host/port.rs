//! A port as the network behind the device.

use std::io;
use std::os::fd::BorrowedFd;

use tare_packet::checksum;
use tare_port::{Burst, Frame, Pool, Port, BURST};

use super::Frames;
use crate::ring::{Checksum, NetHeader};

/// Frames that arrive at a port and leave by it: an interface, a TAP device, memory.
///
/// A port has none of the device's offloads. Checksums that the guest left open are filled in;
/// packets that the device should have cut are dropped and counted.
pub struct PortFrames<P> {
    port: P,
    pool: Pool,
    /// Frames for the guest, the next one last.
    arrived: Burst,
    /// The frame that the port had no room for.
    leaving: Burst,
    dropped: u64,
    error: Option<io::Error>,
}

impl<P: Port> PortFrames<P> {
    /// Returns the network behind a port, which sends out of the pool.
    pub fn new(port: P, pool: Pool) -> PortFrames<P> {
        PortFrames {
            port,
            pool,
            arrived: Burst::new(),
            leaving: Burst::new(),
            dropped: 0,
            error: None,
        }
    }

    /// Returns the number of the guest's frames that were dropped: large ones that a port cannot
    /// cut, and those longer than the pool's.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the error that the port has ended with, if it has: no more frames pass.
    pub fn error(&self) -> Option<&io::Error> {
        self.error.as_ref()
    }

    fn flush(&mut self) {
        if let Err(error) = self.port.send(&mut self.leaving) {
            self.error = Some(error);
            self.leaving.clear();
        }
    }

    /// Returns a copy of a frame with its checksum filled in; `None` if it does not fit.
    fn copy(&self, bytes: &[u8], header: NetHeader) -> Option<Frame> {
        let mut frame = self.pool.copy(bytes)?;
        if let Checksum::Partial { start, offset } = header.checksum {
            let (start, offset) = (usize::from(start), usize::from(offset));
            let sum = checksum::finish(checksum::sum(frame.get(start..)?));
            let field = frame.get_mut(start + offset..start + offset + 2)?;
            field.copy_from_slice(&sum.to_be_bytes());
        }
        Some(frame)
    }
}

impl<P: Port> Frames for PortFrames<P> {
    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<NetHeader> {
        if self.arrived.is_empty() && self.error.is_none() {
            if let Err(error) = self.port.receive(&mut self.arrived, BURST) {
                self.error = Some(error);
            }
            self.arrived.reverse();
        }
        frame.extend_from_slice(&self.arrived.pop()?);
        Some(NetHeader::default())
    }

    fn send(&mut self, frame: &[u8], header: NetHeader) -> bool {
        self.flush();
        if !self.leaving.is_empty() || self.pool.available() == 0 {
            return false;
        }
        match self.copy(frame, header) {
            Some(copy) if header.segments.is_none() && self.error.is_none() => {
                self.leaving.push(copy);
                self.flush();
            }
            _ => self.dropped += 1,
        }
        true
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        self.port.wait_on()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::{Protocol, Segments};
    use tare_port::{memory, Layout};

    #[test]
    fn frames_pass_in_their_order_both_ways_and_wait_for_room() {
        let pool = Pool::new(64, 2048, Layout::Spread).unwrap();
        let (near, mut far) = memory(4);
        let mut frames = PortFrames::new(near, pool.clone());
        let mut burst: Burst = (0..4).filter_map(|n| pool.copy(&[n; 60])).collect();
        far.send(&mut burst).unwrap();
        let mut received = Vec::new();
        for _ in 0..4 {
            let mut frame = Vec::new();
            assert_eq!(frames.receive(&mut frame), Some(NetHeader::default()));
            assert_eq!(frame.len(), 60);
            received.push(frame[0]);
        }
        assert_eq!(received, [0, 1, 2, 3]);
        assert_eq!(frames.receive(&mut Vec::new()), None);
        // The line has room for four, and one more waits here.
        let sent = (0..10).take_while(|n| frames.send(&[*n; 60], NetHeader::default()));
        assert_eq!(sent.count(), 5);
        let mut all = Vec::new();
        for _ in 0..2 {
            far.receive(&mut burst, 64).unwrap();
            all.extend(burst.drain(..).map(|frame| frame[0]));
            assert!(frames.send(&[9; 60], NetHeader::default()));
        }
        assert_eq!(all, [0, 1, 2, 3, 4, 9]);
    }

    #[test]
    fn an_open_checksum_is_filled_in_and_a_packet_to_be_cut_is_dropped() {
        let pool = Pool::new(64, 2048, Layout::Spread).unwrap();
        let (near, mut far) = memory(64);
        let mut frames = PortFrames::new(near, pool);
        let bytes: Vec<u8> = (0..100).collect();
        let checksum = Checksum::Partial {
            start: 34,
            offset: 16,
        };
        let segments = Some(Segments {
            protocol: Protocol::Tcp4,
            bytes: 10,
            header_bytes: 54,
        });
        assert!(frames.send(
            &bytes,
            NetHeader {
                checksum,
                segments: None
            }
        ));
        assert!(frames.send(&bytes, NetHeader { checksum, segments }));
        assert!(frames.send(&[0; 4000], NetHeader::default()));
        assert_eq!((frames.dropped(), frames.error().is_none()), (2, true));
        let mut burst = Burst::new();
        far.receive(&mut burst, 64).unwrap();
        assert_eq!(burst.len(), 1);
        let mut expected = bytes;
        let sum = checksum::finish(checksum::sum(&expected[34..]));
        expected[50..52].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(*burst[0], *expected);
    }
}
