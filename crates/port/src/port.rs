//! The operations of every kind of port.

use std::io;
use std::os::fd::BorrowedFd;

use crate::{Frame, Handover};

/// Frames that move together, first to last.
pub type Burst = Vec<Frame>;

/// The most frames that the systems here move at a time: enough to share the cost of a system call,
/// few enough for the first-level cache to hold their headers.
pub const BURST: usize = 64;

/// Frames of a port since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames received and handed over.
    pub rx_packets: u64,
    /// Their bytes, without the Ethernet checksum.
    pub rx_bytes: u64,
    /// Frames that arrived and were lost before they were handed over: no room, no buffer.
    pub rx_dropped: u64,
    /// Frames taken for sending.
    pub tx_packets: u64,
    /// Their bytes, without the Ethernet checksum.
    pub tx_bytes: u64,
    /// Frames taken for sending that never left.
    pub tx_dropped: u64,
}

/// Receives and sends Ethernet frames in bursts, without waiting.
pub trait Port {
    /// Adds up to `max` received frames to `burst`, in their order, and returns how many.
    ///
    /// # Errors
    /// If the interface is gone for good. That it is down for now is no error: there is nothing to
    /// receive.
    fn receive(&mut self, burst: &mut Burst, max: usize) -> io::Result<usize>;

    /// Takes frames from the front of `burst` and sends them, in their order. What the port has no
    /// room for now stays in `burst`: try again, or drop it. Returns how many were taken.
    ///
    /// # Errors
    /// As [`Port::receive`].
    fn send(&mut self, burst: &mut Burst) -> io::Result<usize>;

    /// The counters since the port was opened.
    fn counters(&self) -> Counters;

    /// A descriptor that is readable when there may be something to receive; `None` if the port
    /// has none to wait on.
    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The operations by which another process takes the port over; `None` if none can.
    fn handover(&mut self) -> Option<&mut dyn Handover> {
        None
    }
}

impl<P: Port + ?Sized> Port for Box<P> {
    fn receive(&mut self, burst: &mut Burst, max: usize) -> io::Result<usize> {
        (**self).receive(burst, max)
    }

    fn send(&mut self, burst: &mut Burst) -> io::Result<usize> {
        (**self).send(burst)
    }

    fn counters(&self) -> Counters {
        (**self).counters()
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        (**self).wait_on()
    }

    fn handover(&mut self) -> Option<&mut dyn Handover> {
        (**self).handover()
    }
}
