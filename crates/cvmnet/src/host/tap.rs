//! A TAP device with the virtio-net header as the network behind the device.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use tare_port::{VnetTap, VNET_HEADER};

use super::{Frames, FRAME_MAX};
use crate::ring::{NetHeader, NET_HEADER};

/// The frames of a TAP device. What the guest leaves to its device, the kernel does: checksums, and
/// the cutting of large packets, if they ever leave the machine.
pub struct TapFrames {
    tap: VnetTap,
    /// The frame that arrives, with room for a byte more than the longest, which tells if it was
    /// cut.
    arriving: Box<[u8]>,
    malformed: u64,
    error: Option<io::Error>,
}

impl TapFrames {
    /// Returns the network behind a TAP device.
    pub fn new(tap: VnetTap) -> TapFrames {
        TapFrames {
            tap,
            arriving: vec![0; FRAME_MAX + 1].into(),
            malformed: 0,
            error: None,
        }
    }

    /// Returns the number of frames that were dropped, in both directions.
    pub fn dropped(&self) -> u64 {
        self.tap.dropped() + self.malformed
    }

    /// Returns the error that the device has ended with, if it has: no more frames pass.
    pub fn error(&self) -> Option<&io::Error> {
        self.error.as_ref()
    }
}

impl Frames for TapFrames {
    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<NetHeader> {
        // The kernel leaves out the last field, the number of buffers, which is 1.
        let mut bytes = NetHeader::default().to_bytes();
        while self.error.is_none() {
            let header: &mut [u8; VNET_HEADER] = bytes.first_chunk_mut().expect("12 bytes");
            let len = match self.tap.receive(header, &mut self.arriving) {
                Ok(len) => len?,
                Err(error) => {
                    self.error = Some(error);
                    return None;
                }
            };
            match NetHeader::parse(&bytes, len) {
                Ok(header) => {
                    frame.extend_from_slice(&self.arriving[..len]);
                    return Some(header);
                }
                Err(_) => self.malformed += 1,
            }
        }
        None
    }

    fn send(&mut self, frame: &[u8], header: NetHeader) -> bool {
        let bytes: [u8; NET_HEADER] = header.to_bytes();
        let header = bytes.first_chunk().expect("12 bytes");
        self.tap.send(header, frame).unwrap_or_else(|error| {
            self.error = Some(error);
            true
        })
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        Some(self.tap.as_fd())
    }
}

impl fmt::Debug for TapFrames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TapFrames({:?}, {} malformed)", self.tap, self.malformed)
    }
}
