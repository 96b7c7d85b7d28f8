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
}

/// What the driver knows about a descriptor.
#[derive(Clone, Copy)]
struct Shadow {
    /// The next of the chain, or of the free list.
    next: u16,
    state: Use,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Free,
    /// The first of a chain: the number of descriptors, and the bytes that the device may write.
    Head {
        parts: u16,
        writable: u32,
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
        let Use::Head { parts, writable } = shadow.state else {
            return Err(Fault::NotInFlight { queue, id: head });
        };
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
    pub(super) fn disarm(&self) {
        if self.event_index {
            // An event that is one behind is never reached, but by a device that goes around once.
            self.set_used_event(self.used.wrapping_sub(1));
        } else {
            self.set_flags(NO_INTERRUPT);
        }
    }

    /// Asks for an interrupt after this number of completions, at least 1; by flags it comes after
    /// the first.
    ///
    /// # Errors
    /// As [`Queue::completed`]; `Ok(true)` if as many were added meanwhile, so that none may come.
    pub(super) fn arm(&self, completions: u16) -> Result<bool, Fault> {
        if self.event_index {
            self.set_used_event(self.used.wrapping_add(completions - 1));
        } else {
            self.set_flags(0);
        }
        fence(Ordering::SeqCst);
        Ok(self.completed()? >= completions)
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
mod tests {
    use super::*;
    use crate::breakdown::Off;
    use crate::region::Config;
    use proptest::prelude::*;

    struct Pair {
        queue: Queue<Off>,
        region: Region,
        layout: QueueLayout,
        used: u16,
    }

    impl Pair {
        fn new(direction: Direction, event_index: bool) -> Pair {
            let config = Config {
                receive_queue: 8,
                transmit_queue: 8,
                receive_posted: 8,
                ..Config::default()
            };
            let region = Region::create(&config).unwrap();
            let pair = *region.layout().pair(0).unwrap();
            let layout = match direction {
                Direction::Receive => pair.receive,
                Direction::Transmit => pair.transmit,
            };
            let ours = Rc::new(region.try_clone().unwrap());
            let mut queue = Queue::new(ours, layout, direction, event_index, Off);
            queue.reset();
            Pair {
                queue,
                region,
                layout,
                used: 0,
            }
        }

        fn add(&mut self, lengths: &[usize]) -> Option<u16> {
            let part = |len: &usize| Part {
                address: 4096,
                len: *len,
            };
            let parts: Vec<_> = lengths.iter().map(part).collect();
            self.queue.add(&parts)
        }

        /// The device's element, and its index.
        fn complete(&mut self, id: u32, len: u32) {
            let at = self.layout.used + 4 + 8 * usize::from(self.used % self.layout.size);
            self.region.store(at, id, Ordering::Relaxed);
            self.region.store(at + 4, len, Ordering::Relaxed);
            self.used = self.used.wrapping_add(1);
            self.index(self.used);
        }

        fn index(&mut self, index: u16) {
            let at = self.layout.used + 2;
            self.region.store(at, index, Ordering::Release);
        }

        fn take(&mut self) -> Result<Completion, Fault> {
            assert!(self.queue.completed()? > 0);
            self.queue.take()
        }
    }

    #[test]
    fn a_used_index_beyond_the_chains_in_flight_is_a_fault() {
        let mut pair = Pair::new(Direction::Receive, true);
        pair.add(&[100]).unwrap();
        pair.queue.publish();
        for (index, expected) in [(0, Some(0)), (1, Some(1)), (2, None), (0xffff, None)] {
            pair.index(index);
            assert_eq!(pair.queue.completed().ok(), expected, "{index}");
        }
        let fault = pair.queue.completed().unwrap_err();
        let queue = Direction::Receive;
        let (found, last, in_flight) = (0xffff, 0, 1);
        assert_eq!(
            fault,
            Fault::UsedIndex {
                queue,
                found,
                last,
                in_flight
            }
        );
    }

    #[test]
    fn a_used_index_that_goes_back_is_a_fault() {
        let mut pair = Pair::new(Direction::Transmit, true);
        let head = pair.add(&[100]).unwrap();
        pair.queue.publish();
        pair.complete(head.into(), 0);
        pair.take().unwrap();
        pair.add(&[100]).unwrap();
        pair.queue.publish();
        pair.index(0);
        assert!(matches!(
            pair.queue.completed(),
            Err(Fault::UsedIndex { .. })
        ));
    }

    #[test]
    fn a_chain_that_was_not_published_cannot_be_used() {
        let mut pair = Pair::new(Direction::Receive, true);
        let head = pair.add(&[100]).unwrap();
        pair.complete(head.into(), 1);
        assert!(matches!(
            pair.queue.completed(),
            Err(Fault::UsedIndex { .. })
        ));
    }

    #[test]
    fn an_id_beyond_the_queue_is_a_fault() {
        for id in [8, 9, 0x1_0000, u32::MAX] {
            let mut pair = Pair::new(Direction::Receive, true);
            pair.add(&[100]).unwrap();
            pair.queue.publish();
            pair.complete(id, 1);
            let (queue, size) = (Direction::Receive, 8);
            assert_eq!(pair.take(), Err(Fault::Id { queue, id, size }));
        }
    }

    #[test]
    fn an_id_of_a_free_descriptor_or_of_the_middle_of_a_chain_is_a_fault() {
        for id in [1, 2, 3, 7] {
            let mut pair = Pair::new(Direction::Transmit, true);
            assert_eq!(pair.add(&[100, 100, 100]), Some(0));
            pair.queue.publish();
            pair.complete(id, 0);
            let (queue, id) = (Direction::Transmit, id as u16);
            assert_eq!(pair.take(), Err(Fault::NotInFlight { queue, id }));
        }
    }

    #[test]
    fn an_id_that_was_used_already_is_a_fault() {
        let mut pair = Pair::new(Direction::Receive, true);
        let heads = [pair.add(&[100]).unwrap(), pair.add(&[100]).unwrap()];
        pair.queue.publish();
        pair.complete(heads[0].into(), 1);
        pair.take().unwrap();
        pair.complete(heads[0].into(), 1);
        let (queue, id) = (Direction::Receive, heads[0]);
        assert_eq!(pair.take(), Err(Fault::NotInFlight { queue, id }));
    }

    #[test]
    fn a_length_beyond_what_the_device_could_write_is_a_fault() {
        for (direction, max) in [(Direction::Receive, 150), (Direction::Transmit, 0)] {
            let mut pair = Pair::new(direction, true);
            let head = pair.add(&[100, 50]).unwrap();
            pair.queue.publish();
            pair.complete(head.into(), max);
            let len = max as usize;
            assert_eq!(pair.take(), Ok(Completion { head, len }));
            for found in [max + 1, u32::MAX] {
                let mut pair = Pair::new(direction, true);
                let id = pair.add(&[100, 50]).unwrap();
                pair.queue.publish();
                pair.complete(id.into(), found);
                let queue = direction;
                assert_eq!(
                    pair.take(),
                    Err(Fault::Length {
                        queue,
                        id,
                        found,
                        max
                    })
                );
            }
        }
    }

    #[test]
    fn descriptors_that_the_host_rewrites_change_nothing_for_the_driver() {
        let mut pair = Pair::new(Direction::Receive, true);
        let head = pair.add(&[100, 50, 20]).unwrap();
        pair.queue.publish();
        for at in (0..16 * 8).step_by(8) {
            let place = pair.layout.descriptors + at;
            pair.region.store(place, u64::MAX, Ordering::Relaxed);
        }
        let available = pair.layout.available;
        pair.region
            .store(available + 2, 0x5555u16, Ordering::Relaxed);
        pair.region
            .store(available + 4, 0x7777u16, Ordering::Relaxed);
        pair.complete(head.into(), 170);
        assert_eq!(pair.take(), Ok(Completion { head, len: 170 }));
        assert_eq!((pair.queue.free_count(), pair.queue.in_flight()), (8, 0));
        assert!(pair.add(&[1; 8]).is_some() && pair.add(&[1]).is_none());
    }

    #[test]
    fn notifications_follow_the_event_index() {
        let mut pair = Pair::new(Direction::Transmit, true);
        for (event, expected) in [
            (0u16, true),
            (0, false),
            (1, false),
            (3, true),
            (0xffff, false),
        ] {
            pair.add(&[1]).unwrap();
            let place = pair.layout.available_event();
            pair.region.store(place, event, Ordering::Relaxed);
            assert_eq!(pair.queue.publish(), expected, "{event}");
        }
        assert!(!pair.queue.publish(), "there is no new chain");
    }

    #[test]
    fn notifications_follow_the_flags_without_event_index() {
        let mut pair = Pair::new(Direction::Transmit, false);
        for (flags, expected) in [(0u16, true), (1, false), (2, true)] {
            pair.add(&[1]).unwrap();
            let used = pair.layout.used;
            pair.region.store(used, flags, Ordering::Relaxed);
            assert_eq!(pair.queue.publish(), expected, "{flags}");
        }
        let flags = |pair: &Pair| {
            pair.region
                .load::<u16>(pair.layout.available, Ordering::Relaxed)
        };
        pair.queue.disarm();
        assert_eq!(flags(&pair), 1);
        assert_eq!(pair.queue.arm(1), Ok(false));
        assert_eq!(flags(&pair), 0);
    }

    #[test]
    fn an_interrupt_is_asked_for_after_the_given_number_of_completions() {
        let mut pair = Pair::new(Direction::Transmit, true);
        let heads: Vec<u16> = (0..4).map(|_| pair.add(&[1]).unwrap()).collect();
        pair.queue.publish();
        let event = pair.layout.used_event();
        assert_eq!(pair.queue.arm(3), Ok(false));
        assert_eq!(pair.region.load::<u16>(event, Ordering::Relaxed), 2);
        for head in heads {
            pair.complete(head.into(), 0);
        }
        assert_eq!(pair.queue.arm(3), Ok(true), "they are there already");
        pair.queue.disarm();
        assert_eq!(pair.region.load::<u16>(event, Ordering::Relaxed), 0xffff);
    }

    proptest! {
        #[test]
        fn no_descriptor_is_lost_or_given_twice_in_any_order_of_completions(
            steps in proptest::collection::vec((any::<prop::sample::Index>(), 0usize..5), 1..400),
        ) {
            let mut pair = Pair::new(Direction::Receive, true);
            let mut live: Vec<(u16, usize)> = Vec::new();
            for (which, parts) in steps {
                if parts > 0 {
                    let room = pair.queue.free_count() >= parts;
                    let head = pair.add(&vec![10; parts]);
                    prop_assert_eq!(head.is_some(), room);
                    if let Some(head) = head {
                        prop_assert!(live.iter().all(|(other, _)| *other != head));
                        live.push((head, parts));
                        pair.queue.publish();
                    }
                } else if !live.is_empty() {
                    let (head, parts) = live.swap_remove(which.index(live.len()));
                    pair.complete(head.into(), 10 * parts as u32);
                    prop_assert_eq!(pair.take(), Ok(Completion { head, len: 10 * parts }));
                }
                let used: usize = live.iter().map(|(_, parts)| parts).sum();
                prop_assert_eq!(pair.queue.free_count(), 8 - used);
                prop_assert_eq!(pair.queue.in_flight(), live.len());
            }
        }
    }
}
