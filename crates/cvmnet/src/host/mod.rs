//! The host's side: the device that serves the ring, and the merging of segments before it.

mod capture;
mod device;
mod flipper;
mod lossy;
pub mod merge;
mod peer;
mod port;
mod steering;
mod tap;

use std::os::fd::BorrowedFd;

pub use capture::{Capture, Captured};
pub use device::{Device, DeviceCounters, DeviceError, DeviceSettings};
pub use flipper::Flipper;
pub use lossy::Lossy;
pub use peer::{ConnectFailure, Peer, AHEAD_MAX};
pub use port::PortFrames;
pub use steering::{Pairs, Steered, Target};
pub use tap::TapFrames;

use crate::ring::NetHeader;

/// The longest frame: an Ethernet header and the longest IP packet.
pub const FRAME_MAX: usize = 14 + 65_535;

/// The network behind the device: a source of frames for the guest, and a sink of its frames.
pub trait Frames {
    /// Appends the next frame for the guest to `frame`, which is empty, and returns its header;
    /// `None` if there is none now. Frames are at most [`FRAME_MAX`] bytes.
    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<NetHeader>;

    /// Takes a frame from the guest; returns false if there is no room for it now. The guest's
    /// header is checked, and what the frame has in it is the guest's word.
    fn send(&mut self, frame: &[u8], header: NetHeader) -> bool;

    /// A descriptor that is readable when there may be a frame for the guest.
    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl<F: Frames + ?Sized> Frames for Box<F> {
    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<NetHeader> {
        (**self).receive(frame)
    }

    fn send(&mut self, frame: &[u8], header: NetHeader) -> bool {
        (**self).send(frame, header)
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        (**self).wait_on()
    }
}

/// Frames in memory.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Frames for the guest.
    pub to_guest: std::collections::VecDeque<(Vec<u8>, NetHeader)>,
    /// Frames of the guest.
    pub from_guest: Vec<(Vec<u8>, NetHeader)>,
}

impl Frames for Memory {
    fn receive(&mut self, frame: &mut Vec<u8>) -> Option<NetHeader> {
        let (next, header) = self.to_guest.pop_front()?;
        frame.extend_from_slice(&next);
        Some(header)
    }

    fn send(&mut self, frame: &[u8], header: NetHeader) -> bool {
        self.from_guest.push((frame.to_vec(), header));
        true
    }
}
