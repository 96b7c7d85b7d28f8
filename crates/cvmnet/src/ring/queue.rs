//! One split virtqueue (virtio 1.2, 2.7), from the driver's side.
//!
//! The other side can write every byte of it at any time. So the driver believes no byte that it
//! has written before: descriptors, free list and indices are private, and the tables in shared
//! memory are write-only. It reads five fields that the device writes, each once for each decision:
//! the used index, the id and length of an element, and the two that suppress notifications.

use std::rc::Rc;
use std::sync::atomic::{fence, Ordering};

use super::Fault;
use crate::breakdown::{Field, Probe, State};
use crate::region::{QueueLayout, Region};

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const NO_INTERRUPT: u16 = 1;
const NO_NOTIFY: u16 = 1;

/// A part of a chain: bytes of the region that the device reads or writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) address: usize,
    pub(super) len: usize,
}

/// The direction of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The device writes.
    Receive,
    /// The device reads.
    Transmit,
}

/// A chain that the device has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Completion {
    /// The descriptor that the chain began with.
    pub(super) head: u16,
    /// Bytes that the device has written, at most those that it could.
    pub(super) len: usize,
}

pub(super) struct Queue<P> {
    region: Rc<Region>,
    layout: QueueLayout,
    direction: Direction,
    event_index: bool,
    probe: P,
    shadow: Box<[Shadow]>,
    /// The first free descriptor; each names the next.
    free: u16,
    free_count: u16,
    /// Chains that the device has.
    in_flight: u16,
    /// The available index: with chains that are not published, and without.
    available: u16,
    published: u16,
    /// The used index up to which elements were taken.
    used: u16,
    /// The used index at which an interrupt was asked for.
    armed: u16,
}

/// The driver's own record of a descriptor.
#[derive(Clone, Copy)]
struct Shadow {
    /// The next of the chain, or of the free list.
    next: u16,
    state: Use,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Free,
    /// The first of a chain: the number of descriptors, the bytes that the device may write, and
    /// the available index at which the chain was added.
    Head {
        parts: u16,
        writable: u32,
        added: u16,
    },
    /// A further one of a chain.
    Chained,
}

impl<P: Probe> Queue<P> {
    /// Returns a queue without chains. The device must not be looking at it: [`Queue::reset`]
    /// writes the rings.
    pub(super) fn new(
        region: Rc<Region>,
        layout: QueueLayout,
        direction: Direction,
        event_index: bool,
        probe: P,
    ) -> Queue<P> {
        let mut queue = Queue {
            region,
            layout,
            direction,
            event_index,
            probe,
            shadow: Box::default(),
            free: 0,
            free_count: 0,
            in_flight: 0,
            available: 0,
            published: 0,
            used: 0,
            armed: 0,
        };
        queue.forget();
        queue
    }

    /// Forgets all chains.
    pub(super) fn forget(&mut self) {
        let size = self.layout.size;
        self.shadow = (0..size)
            .map(|n| Shadow {
                next: (n + 1) % size,
                state: Use::Free,
            })
            .collect();
        (self.free, self.free_count, self.in_flight) = (0, size, 0);
        (self.available, self.published, self.used) = (0, 0, 0);
        self.armed = 0;
    }

    /// Forgets all chains and writes empty rings.
    pub(super) fn reset(&mut self) {
        self.forget();
        let zero = |at: usize, len: usize| {
            let range = self.region.bytes(at, len);
            range
                .copy_from(&vec![0; len])
                .expect("the lengths are equal");
        };
        let n = usize::from(self.layout.size);
        zero(self.layout.descriptors, 16 * n);
        zero(self.layout.available, 6 + 2 * n);
        zero(self.layout.used, 6 + 8 * n);
        self.disarm();
    }

    /// Returns the number of descriptors that are free.
    #[inline]
    pub(super) fn free_count(&self) -> usize {
        self.free_count.into()
    }

    /// Returns the number of chains that the device has, or will have when they are published.
    #[inline]
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.into()
    }

    /// Returns the first descriptor of the chain that [`Queue::add`] adds next; `None` if none is
    /// free.
    #[inline]
    pub(super) fn next_head(&self) -> Option<u16> {
        (self.free_count > 0).then_some(self.free)
    }

    /// Adds a chain; returns its first descriptor, or `None` if there are not as many free ones as
    /// parts, or no parts.
    #[inline]
    pub(super) fn add(&mut self, parts: &[Part]) -> Option<u16> {
        if parts.is_empty() || parts.len() > self.free_count() {
            return None;
        }
        let head = self.free;
        let write = match self.direction {
            Direction::Receive => WRITE,
            Direction::Transmit => 0,
        };
        let (mut at, mut writable) = (head, 0);
        for (n, part) in parts.iter().enumerate() {
            let next = self.shadow[usize::from(at)].next;
            let more = if n + 1 < parts.len() { NEXT } else { 0 };
            let len = part.len as u32;
            self.describe(at, part.address as u64, len, write | more, next);
            self.shadow[usize::from(at)].state = Use::Chained;
            if write != 0 {
                writable += len;
            }
            at = next;
        }
        self.free = at;
        self.free_count -= parts.len() as u16;
        self.in_flight += 1;
        self.shadow[usize::from(head)].state = Use::Head {
            parts: parts.len() as u16,
            writable,
            added: self.available,
        };
        let slot = usize::from(self.available % self.layout.size);
        let place = self.layout.available + 4 + 2 * slot;
        self.region.store(place, head.to_le(), Ordering::Relaxed);
        self.available = self.available.wrapping_add(1);
        Some(head)
    }

    /// Writes a descriptor, as two words.
    #[inline]
    fn describe(&self, at: u16, address: u64, len: u32, flags: u16, next: u16) {
        let place = self.layout.descriptors + 16 * usize::from(at);
        let second = u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48;
        self.region.store(place, address.to_le(), Ordering::Relaxed);
        self.region
            .store(place + 8, second.to_le(), Ordering::Relaxed);
    }

    /// Gives the device the chains that were added; returns true if it wants to be notified.
    pub(super) fn publish(&mut self) -> bool {
        let old = self.published;
        if self.available == old {
            return false;
        }
        let (at, new) = (self.layout.available + 2, self.available);
        self.region.store(at, new.to_le(), Ordering::Release);
        self.published = new;
        // The device must see the index, or this the device's request (2.7.13.4.1).
        fence(Ordering::SeqCst);
        if self.event_index {
            let event = self.read_u16(Field::AvailableEvent, self.layout.available_event());
            needs_event(event, new, old)
        } else {
            self.read_u16(Field::UsedFlags, self.layout.used) & NO_NOTIFY == 0
        }
    }

    #[inline]
    fn read_u16(&self, field: Field, at: usize) -> u16 {
        let value = u16::from_le(self.region.load(at, Ordering::Relaxed));
        self.note(field, value.into());
        value
    }

    #[inline]
    fn note(&self, field: Field, value: u64) {
        let state = match self.in_flight {
            0 => State::Empty,
            _ if self.free_count == 0 => State::Full,
            _ => State::Partial,
        };
        self.probe
            .consumed(self.direction as usize, field, state, value);
    }

    /// Returns the number of elements that the device has added to the used ring: at most as many
    /// as it has chains.
    ///
    /// # Errors
    /// The index is further than that.
    #[inline]
    pub(super) fn completed(&self) -> Result<u16, Fault> {
        let found = u16::from_le(self.region.load(self.layout.used + 2, Ordering::Acquire));
        self.note(Field::UsedIndex, found.into());
        let count = found.wrapping_sub(self.used);
        // A chain that is not published cannot be used.
        let unpublished = self.available.wrapping_sub(self.published);
        if count > self.in_flight - unpublished {
            return Err(Fault::UsedIndex {
                queue: self.direction,
                found,
                last: self.used,
                in_flight: self.in_flight - unpublished,
            });
        }
        Ok(count)
    }

    /// Takes the next element of the used ring, one of those that [`Queue::completed`] has counted,
    /// and frees its chain.
    ///
    /// # Errors
    /// It is no chain of the device's, or longer than the device could make it.
    #[inline]
    pub(super) fn take(&mut self) -> Result<Completion, Fault> {
        let slot = usize::from(self.used % self.layout.size);
        let element = self.layout.used + 4 + 8 * slot;
        let id = u32::from_le(self.region.load(element, Ordering::Relaxed));
        self.note(Field::UsedId, id.into());
        let len = u32::from_le(self.region.load(element + 4, Ordering::Relaxed));
        self.note(Field::UsedLength, len.into());
        let queue = self.direction;
        let size = self.layout.size;
        let Some(shadow) = self.shadow.get(id as usize) else {
            return Err(Fault::Id { queue, id, size });
        };
        let head = id as u16;
        let Use::Head {
            parts,
            writable,
            added,
        } = shadow.state
        else {
            return Err(Fault::NotInFlight { queue, id: head });
        };
        // Those that are not published are the last that were added.
        let unpublished = self.available.wrapping_sub(self.published);
        if self.available.wrapping_sub(added) <= unpublished {
            return Err(Fault::NotInFlight { queue, id: head });
        }
        if len > writable {
            return Err(Fault::Length {
                queue,
                id: head,
                found: len,
                max: writable,
            });
        }
        self.used = self.used.wrapping_add(1);
        self.release(head, parts);
        Ok(Completion {
            head,
            len: len as usize,
        })
    }

    fn release(&mut self, head: u16, parts: u16) {
        let mut at = head;
        for n in 1..=parts {
            let shadow = &mut self.shadow[usize::from(at)];
            shadow.state = Use::Free;
            if n == parts {
                shadow.next = self.free;
            } else {
                at = shadow.next;
            }
        }
        self.free = head;
        self.free_count += parts;
        self.in_flight -= 1;
    }

    /// Asks for no interrupts.
    pub(super) fn disarm(&mut self) {
        self.armed = self.used;
        if self.event_index {
            // An event that is one behind is never reached, but by a device that goes around once.
            self.set_used_event(self.used.wrapping_sub(1));
        } else {
            self.set_flags(NO_INTERRUPT);
        }
    }

    /// Asks for an interrupt after this number of completions, at least 1, or leaves it as it was
    /// asked for if that comes earlier; by flags it comes after the first. Returns true if as many
    /// were added meanwhile, so that none may come.
    ///
    /// # Errors
    /// As [`Queue::completed`].
    pub(super) fn arm(&mut self, completions: u16) -> Result<bool, Fault> {
        let left = self.armed.wrapping_sub(self.used);
        if !(1..=completions).contains(&left) {
            self.armed = self.used.wrapping_add(completions);
            if self.event_index {
                self.set_used_event(self.armed.wrapping_sub(1));
            } else {
                self.set_flags(0);
            }
        }
        fence(Ordering::SeqCst);
        Ok(self.completed()? >= self.armed.wrapping_sub(self.used))
    }

    fn set_used_event(&self, value: u16) {
        let place = self.layout.used_event();
        self.region.store(place, value.to_le(), Ordering::Relaxed);
    }

    fn set_flags(&self, flags: u16) {
        let place = self.layout.available;
        self.region.store(place, flags.to_le(), Ordering::Relaxed);
    }
}

/// Returns true if an index that moved from `old` to `new` has passed `event` (virtio 1.2, 2.7.10).
fn needs_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
mod tests;
