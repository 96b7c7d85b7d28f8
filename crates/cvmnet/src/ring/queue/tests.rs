//! Faults of the device, each by its name.

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
            transmit_queue: 32,
            receive_posted: 8,
            ..Config::default()
        };
        let region = Region::create(&config).unwrap();
        let pair = *region.layout().pair(0).unwrap();
        let mut layout = match direction {
            Direction::Receive => pair.receive,
            Direction::Transmit => pair.transmit,
        };
        layout.size = 8;
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
fn a_chain_that_was_not_published_is_no_id_beside_one_that_was() {
    for direction in [Direction::Receive, Direction::Transmit] {
        let mut pair = Pair::new(direction, true);
        // Around the wrap of the indices too.
        for round in 0..0x1_0010_u32 {
            let first = pair.add(&[100]).unwrap();
            pair.queue.publish();
            if round % 0x3ff4 == 0 || round > 0xfff0 {
                let second = pair.add(&[100, 100]).unwrap();
                let used = pair.used;
                pair.complete(second.into(), 0);
                let (queue, id) = (direction, second);
                assert_eq!(pair.take(), Err(Fault::NotInFlight { queue, id }));
                // Nothing was taken; once it is published it may be used.
                pair.used = used;
                pair.queue.publish();
                pair.complete(second.into(), 0);
                assert_eq!(pair.take().map(|it| it.head), Ok(second));
            }
            pair.complete(first.into(), 0);
            assert_eq!(pair.take().map(|it| it.head), Ok(first));
        }
        assert_eq!((pair.queue.free_count(), pair.queue.in_flight()), (8, 0));
    }
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
