//! A port with a pool that nothing else has, whose frames never leave.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use crate::frame::SLOT;
use crate::xdp::TAKEN;
use crate::{open, Burst, Counters, Error, Interface, Kind, Layout, Opened, Pool, Port};

/// A port together with its pool: frames are read and written in place, and none is handed out.
///
/// For programs that copy what a frame carries anyway. Since nothing of the pool is ever elsewhere,
/// the port of an interface may be moved to another thread, which ports and frames alone cannot.
pub struct Exclusive<P = OfInterface> {
    port: P,
    pool: Pool,
    received: Burst,
    /// Frames to be sent.
    out: Burst,
}

/// A port of an interface whose pool is in the same [`Exclusive`].
pub struct OfInterface(Box<dyn Port>);

// SAFETY: all that keeps a port on its thread are the counts and lists that it shares with its pool
// and with the frames of that pool, none of which is atomic or locked. Here the pool was made by
// `open` for this port alone, no method hands out the port, the pool, a clone of it or a frame, and
// all frames are in the two bursts. So every owner of these counts and lists moves together. The
// port is one of AF_XDP without lanes or a packet socket: besides its pool it has descriptors,
// mappings that are shared with the kernel, and what the ports of an interface share, which is
// locked because ports of several threads use it.
unsafe impl Send for Exclusive<OfInterface> {}

/// Slots of 2048 bytes: those that wait for what arrives, and several runs of datagrams.
const SLOTS: usize = 2048;

/// The least number of slots.
const SLOTS_MIN: usize = 1024;

/// The capacities that AF_XDP takes.
const CAPACITIES: [usize; 5] = [2048, 4096, 8192, 16_384, 32_768];

/// Bytes of a slot that no frame can use: its own header and the kernel's headroom
/// (XDP_PACKET_HEADROOM), and some behind.
const LOST: usize = SLOT + 256 + 64;

/// Bytes of an Ethernet header with a VLAN tag.
const LINK: usize = tare_packet::ethernet::HEADER + tare_packet::ethernet::VLAN_TAG;

/// Attempts to send what a port has no room for, each of which takes back what has left.
const TRIES: usize = 32;

impl Exclusive {
    /// Opens the only queue of an interface.
    ///
    /// # Errors
    /// Those of [`open()`]; [`Error::SeveralQueues`], since what arrives at the others would be
    /// lost; [`Error::Refused`] if another socket of AF_XDP receives what arrives.
    pub fn open(interface: &Interface, kind: Kind) -> Result<(Exclusive, Opened), Error> {
        let queues = interface.queues();
        if queues > 1 && kind != Kind::Packet {
            return Err(Error::SeveralQueues {
                interface: interface.name().to_owned(),
                queues,
            });
        }
        let os = |doing: &str, source| Error::Os {
            doing: doing.into(),
            source,
        };
        let mtu = interface.mtu().map_err(|error| os("the MTU", error))?;
        let capacity = capacity(mtu).ok_or_else(|| {
            let longest = CAPACITIES[CAPACITIES.len() - 1] - LOST - LINK;
            let said = format!("found an MTU of {mtu}, expected at most {longest}");
            os("memory for frames", io::Error::other(said))
        })?;
        let slots = (SLOTS * 2048 / capacity).max(SLOTS_MIN);
        let pool = Pool::new(slots, capacity, Layout::PowerOfTwo);
        let pool = pool.map_err(|error| os("memory for frames", error))?;
        let (port, opened) = open(interface, 0, &pool, kind)?;
        // A packet socket beside another one of AF_XDP would open, and receive nothing.
        if opened.kind == Kind::Packet && opened.refused.iter().any(|r| r.why.ends_with(TAKEN)) {
            return Err(Error::Refused {
                interface: interface.name().to_owned(),
                refused: opened.refused,
            });
        }
        Ok((Exclusive::new(OfInterface(port), pool), opened))
    }
}

/// Returns the least capacity of slots for frames of this MTU.
fn capacity(mtu: usize) -> Option<usize> {
    let fits = |capacity: &usize| capacity - LOST >= mtu.saturating_add(LINK);
    CAPACITIES.into_iter().find(fits)
}

impl<P: Port> Exclusive<P> {
    /// Puts a port and a pool for what it sends together.
    pub fn new(port: P, pool: Pool) -> Exclusive<P> {
        Exclusive {
            port,
            pool,
            received: Burst::new(),
            out: Burst::new(),
        }
    }

    /// Shows up to `max` received frames to `each`, in their order, and returns how many.
    ///
    /// # Errors
    /// As [`Port::receive`].
    #[inline]
    pub fn receive(&mut self, max: usize, mut each: impl FnMut(&[u8])) -> io::Result<usize> {
        let count = self.port.receive(&mut self.received, max)?;
        if count == 0 {
            return Ok(0);
        }
        for frame in self.received.drain(..) {
            each(&frame);
        }
        Ok(count)
    }

    /// Adds a frame of `len` bytes to those that the next [`Exclusive::send`] sends. `fill` writes
    /// all of it: what it finds is left over from earlier. Returns false if there is no room.
    #[inline]
    #[must_use = "there may have been no room"]
    pub fn put(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        let Some(mut frame) = self.pool.take() else {
            return false;
        };
        let place = frame.append(len);
        let has_room = place.is_some();
        if let Some(place) = place {
            fill(place);
            self.out.push(frame);
        }
        has_room
    }

    /// Sends the frames that were put, and returns how many were dropped because the port had no
    /// room for them for some time.
    ///
    /// # Errors
    /// As [`Port::send`].
    #[inline]
    pub fn send(&mut self) -> io::Result<usize> {
        let mut tries = 0;
        while !self.out.is_empty() && tries < TRIES {
            let taken = self.port.send(&mut self.out)?;
            tries = if taken > 0 { 0 } else { tries + 1 };
        }
        let dropped = self.out.len();
        self.out.clear();
        Ok(dropped)
    }

    /// Returns the counters of the port.
    pub fn counters(&self) -> Counters {
        self.port.counters()
    }

    /// Returns a descriptor that is readable when there may be something to receive.
    pub fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        self.port.wait_on()
    }
}

impl Port for OfInterface {
    #[inline]
    fn receive(&mut self, burst: &mut Burst, max: usize) -> io::Result<usize> {
        self.0.receive(burst, max)
    }

    #[inline]
    fn send(&mut self, burst: &mut Burst) -> io::Result<usize> {
        self.0.send(burst)
    }

    fn counters(&self) -> Counters {
        self.0.counters()
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        self.0.wait_on()
    }
}

impl<P: Port> fmt::Debug for Exclusive<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exclusive({:?})", self.counters())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory;

    fn ends(room: usize, slots: usize) -> [Exclusive<crate::Memory>; 2] {
        let (a, b) = memory(room);
        [a, b].map(|port| Exclusive::new(port, Pool::new(slots, 512, Layout::Spread).unwrap()))
    }

    #[test]
    fn frames_arrive_as_they_were_written_and_in_their_order() {
        let [mut a, mut b] = ends(8, 8);
        for number in 1..=3u8 {
            assert!(a.put(usize::from(number), |place| place.fill(number)));
        }
        let mut seen = Vec::new();
        assert_eq!(b.receive(8, |frame| seen.push(frame.to_vec())).unwrap(), 0);
        assert_eq!(a.send().unwrap(), 0);
        assert_eq!(b.receive(2, |frame| seen.push(frame.to_vec())).unwrap(), 2);
        assert_eq!(b.receive(8, |frame| seen.push(frame.to_vec())).unwrap(), 1);
        assert_eq!(seen, [vec![1], vec![2, 2], vec![3, 3, 3]]);
        assert_eq!((a.counters().tx_packets, b.counters().rx_bytes), (3, 6));
    }

    #[test]
    fn what_finds_no_room_is_refused_or_dropped_and_counted() {
        let [mut a, mut b] = ends(2, 4);
        assert!(!a.put(4096, |_| panic!("longer than a slot")));
        for _ in 0..4 {
            assert!(a.put(1, |place| place.fill(0)));
        }
        assert!(!a.put(1, |_| panic!("no slot is free")));
        assert_eq!(a.send().unwrap(), 2);
        assert_eq!(b.receive(8, |_| ()).unwrap(), 2);
        // Dropped and received, their slots are free again.
        for _ in 0..4 {
            assert!(a.put(1, |place| place.fill(0)));
        }
    }

    #[test]
    fn slots_hold_the_frames_of_an_mtu_and_no_more_than_needed() {
        for (mtu, expected) in [
            (68, Some(2048)),
            (1500, Some(2048)),
            (2000, Some(4096)),
            (9000, Some(16_384)),
            (32_000, Some(32_768)),
            (65_535, None),
            (usize::MAX, None),
        ] {
            assert_eq!(capacity(mtu), expected, "{mtu}");
        }
        assert_eq!(capacity(2048 - LOST - LINK), Some(2048));
        assert_eq!(capacity(2048 - LOST - LINK + 1), Some(4096));
    }
}
