//! Packets to send.

use std::ops::Range;

use super::super::header::NetHeader;
use super::super::queue::Part;
use super::super::Fault;
use super::{Driver, Status};
use crate::bounce::{Bounce, Run};
use crate::breakdown::{Category, Probe};
use crate::pool::GuestBuffer;
use crate::region::{HEADER_BYTES, SLOTS_OF_PACKET};
use crate::variant::{Exits, RIF_COMPLETIONS};

/// The most pieces of payload in one packet.
pub const PIECES_MAX: usize = 17;

/// The reason why a packet was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// There is no room now, in the ring or in the bounce buffer.
    Full,
    /// The packet has too many pieces, or a piece is not within its buffer.
    Invalid,
    /// The device is being reset.
    Resetting,
    /// The device was given up.
    Broken(Fault),
}

/// Memory that the device still reads.
pub(super) enum Held {
    Buffer(#[allow(dead_code, reason = "held until it is dropped")] GuestBuffer),
    Run(Run),
}

/// The memory of one packet.
#[derive(Default)]
pub(super) struct Packet {
    /// The headers, and a payload in one or two pieces: a segment has no more, and needs no memory
    /// elsewhere that would have to be fetched into the cache for each.
    few: [Option<Held>; 3],
    rest: Vec<Held>,
}

impl Packet {
    /// Inlined, so that what is held is written to its place at once: a copy of what was written in
    /// parts just before waits for all writes to shared memory.
    #[inline(always)]
    fn push(&mut self, held: Held) {
        match self.few.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(held),
            None => self.rest.push(held),
        }
    }

    /// Gives all of it back.
    pub(super) fn release<P: Probe>(&mut self, bounce: &Bounce, probe: &P) {
        let few = self.few.iter_mut().map_while(Option::take);
        for held in few.chain(self.rest.drain(..)) {
            if let Held::Run(run) = held {
                let _span = probe.enter(Category::SlotRelease);
                bounce.release(run);
            }
        }
    }
}

impl<P: Probe> Driver<P> {
    /// Returns a buffer to seal a record into, of the kind that [`Driver::send`] sends without a
    /// copy if frames are not bounced; `None` if all are in use.
    pub fn record(&self) -> Option<GuestBuffer> {
        self.records.take()
    }

    /// Returns the number of buffers for records that are free.
    #[inline]
    pub(crate) fn records_free(&self) -> usize {
        self.records.free()
    }

    /// Returns the number of packets of up to 64 KiB for which there is room, whatever their
    /// pieces. A bounce buffer with few free slots may have them in too many places for a long
    /// piece all the same, and refuse it. After an answer of 0, [`Driver::wait`] returns at once if
    /// there is room.
    pub fn room(&mut self) -> usize {
        let room = self.find_room();
        self.is_room_wanted = room == 0;
        room
    }

    fn find_room(&mut self) -> usize {
        if !matches!(self.status, Status::Running) {
            return 0;
        }
        let room = |driver: &Self| {
            let ring = driver.transmit.free_count() / (PIECES_MAX + 1);
            match driver.layout.bounced {
                true => ring.min(driver.bounce.free() / SLOTS_OF_PACKET),
                false => ring.min(driver.headers.free()),
            }
        };
        if room(self) < 16 {
            // A fault is told by the next call that can.
            let _ = self.reap();
        }
        match self.status {
            Status::Running => room(self),
            _ => 0,
        }
    }

    /// Adds a packet to the ring: headers from private memory, payload by reference. Its buffers
    /// are held until the device has used them. The device learns of it by [`Driver::flush`].
    ///
    /// # Errors
    /// See [`SendError`]; nothing of the packet is on the ring then.
    pub fn send<'b>(
        &mut self,
        headers: &[u8],
        payload: impl IntoIterator<Item = (&'b GuestBuffer, Range<usize>)>,
        header: &NetHeader,
    ) -> Result<(), SendError> {
        if !self.is_running().map_err(SendError::Broken)? {
            return Err(SendError::Resetting);
        }
        let _ring = self.probe.enter(Category::Ring);
        if self.transmit.free_count() <= PIECES_MAX || self.headers.free() == 0 {
            self.reap().map_err(SendError::Broken)?;
        }
        let mut parts = [Part { address: 0, len: 0 }; PIECES_MAX + 1];
        let Some(head) = self.transmit.next_head() else {
            self.counters.full += 1;
            return Err(SendError::Full);
        };
        // Taken out for as long as `gather` needs the rest of the driver.
        let mut sent = std::mem::take(&mut self.sent);
        let holding = &mut sent[usize::from(head)];
        let added = self
            .gather(headers, payload, header, &mut parts, holding)
            .and_then(|count| {
                let head = self.transmit.add(&parts[..count]);
                head.ok_or(SendError::Full)
            });
        match added {
            Ok(_) => self.counters.sent += 1,
            Err(error) => {
                holding.release(&self.bounce, &self.probe);
                self.counters.full += u64::from(error == SendError::Full);
            }
        }
        self.sent = sent;
        added.map(|_| ())
    }

    fn gather<'b>(
        &mut self,
        headers: &[u8],
        payload: impl IntoIterator<Item = (&'b GuestBuffer, Range<usize>)>,
        header: &NetHeader,
        parts: &mut [Part; PIECES_MAX + 1],
        holding: &mut Packet,
    ) -> Result<usize, SendError> {
        let prefix = header.to_bytes();
        let len = prefix.len() + headers.len();
        let slot = match !self.layout.bounced && len <= HEADER_BYTES {
            true => Some(self.headers.take().ok_or(SendError::Full)?),
            false => None,
        };
        let address = match slot {
            Some(slot) => {
                let written = slot
                    .write(0, &prefix)
                    .and(slot.write(prefix.len(), headers));
                written.ok_or(SendError::Invalid)?;
                let address = slot.address().ok_or(SendError::Invalid)?;
                holding.push(Held::Buffer(slot));
                address
            }
            None => self.bounce_in(&[&prefix, headers], holding)?,
        };
        parts[0] = Part { address, len };
        let mut count = 1;
        for (buffer, range) in payload {
            let part = parts.get_mut(count).ok_or(SendError::Invalid)?;
            let len = range.len();
            if range.end > buffer.capacity() || len == 0 {
                return Err(SendError::Invalid);
            }
            let address = match buffer.address() {
                Some(address) => {
                    holding.push(Held::Buffer(buffer.clone()));
                    address + range.start
                }
                None => {
                    let bytes = buffer.private(range).ok_or(SendError::Invalid)?;
                    self.bounce_in(&[&bytes], holding)?
                }
            };
            *part = Part { address, len };
            count += 1;
        }
        Ok(count)
    }

    /// Copies bytes into a run of the bounce buffer and returns its address.
    fn bounce_in(&mut self, from: &[&[u8]], holding: &mut Packet) -> Result<usize, SendError> {
        let len = from.iter().map(|bytes| bytes.len()).sum();
        let run = self.find(len).ok_or(SendError::Full)?;
        let _span = self.probe.enter(Category::BounceCopy);
        let mut at = 0;
        for bytes in from {
            let to = self.bounce.view(&run, at..at + bytes.len());
            to.and_then(|to| to.copy_from(bytes))
                .expect("the run was found for these bytes");
            at += bytes.len();
        }
        self.counters.bounced += at as u64;
        let address = self.bounce.address(&run);
        holding.push(Held::Run(run));
        Ok(address)
    }

    /// Gives the device the packets that were sent, and takes back the memory of those that it has
    /// used.
    ///
    /// # Errors
    /// The device was given up, now or before.
    pub fn flush(&mut self) -> Result<(), Fault> {
        if !self.is_running()? {
            return Ok(());
        }
        let _ring = self.probe.enter(Category::Ring);
        if self.transmit.publish() {
            self.kick();
        }
        self.reap()?;
        if self.has_interrupts() {
            let armed = self.arm_transmit(u16::MAX);
            armed.map_err(|fault| self.give_up(fault))?;
        }
        Ok(())
    }

    /// Takes back the memory of packets that the device has used: at most those that it had.
    fn reap(&mut self) -> Result<(), Fault> {
        let reaped = self.try_reap();
        reaped.map_err(|fault| self.give_up(fault))
    }

    fn try_reap(&mut self) -> Result<(), Fault> {
        for _ in 0..self.transmit.completed()? {
            let completion = self.transmit.take()?;
            let held = &mut self.sent[usize::from(completion.head)];
            held.release(&self.bounce, &self.probe);
        }
        Ok(())
    }

    /// Asks for an interrupt after the next transmit completion or, with RIF, after 16 of them.
    pub(super) fn arm_transmit(&mut self, most: u16) -> Result<bool, Fault> {
        let completions = match self.settings.exits {
            Exits::Rif => RIF_COMPLETIONS,
            Exits::Each | Exits::Posted => 1,
        };
        match self.transmit.in_flight() {
            0 => Ok(false),
            _ => self.transmit.arm(completions.min(most)),
        }
    }
}
