//! Events in virtual time.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::fmt;

use crate::Instant;

/// Events in the order of their time. Those of one moment keep the order in which they were pushed,
/// so the same pushes give the same order on every machine.
pub struct EventQueue<T> {
    events: BinaryHeap<Reverse<Event<T>>>,
    pushed: u64,
}

struct Event<T> {
    at: Instant,
    /// The number of events pushed before it: breaks ties.
    number: u64,
    event: T,
}

impl<T> EventQueue<T> {
    /// An empty queue.
    pub const fn new() -> EventQueue<T> {
        EventQueue {
            events: BinaryHeap::new(),
            pushed: 0,
        }
    }

    /// Adds an event.
    pub fn push(&mut self, at: Instant, event: T) {
        let number = self.pushed;
        self.pushed += 1;
        self.events.push(Reverse(Event { at, number, event }));
    }

    /// The time of the next event; [`Instant::NEVER`] if there is none.
    pub fn next_at(&self) -> Instant {
        self.events
            .peek()
            .map_or(Instant::NEVER, |Reverse(event)| event.at)
    }

    /// Takes the next event, if its time has come.
    pub fn pop(&mut self, now: Instant) -> Option<(Instant, T)> {
        if self.events.peek()?.0.at > now {
            return None;
        }
        let Reverse(Event { at, event, .. }) = self.events.pop()?;
        Some((at, event))
    }

    /// Events in the queue.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Keeps only the events for which `keep` returns true.
    pub fn retain(&mut self, keep: impl Fn(Instant, &T) -> bool) {
        self.events
            .retain(|Reverse(event)| keep(event.at, &event.event));
    }
}

impl<T> Default for EventQueue<T> {
    fn default() -> EventQueue<T> {
        EventQueue::new()
    }
}

impl<T> fmt::Debug for EventQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventQueue")
            .field("len", &self.len())
            .field("next_at", &self.next_at())
            .finish()
    }
}

// Of the time and the number alone, so that events need no order of their own.
impl<T> Ord for Event<T> {
    fn cmp(&self, other: &Event<T>) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl<T> PartialOrd for Event<T> {
    fn partial_cmp(&self, other: &Event<T>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Event<T> {
    fn eq(&self, other: &Event<T>) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T> Eq for Event<T> {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn events_come_by_time_and_those_of_one_moment_in_the_order_they_were_pushed(
            times in proptest::collection::vec(0u64..20, 0..100),
        ) {
            let mut queue = EventQueue::new();
            for (n, &at) in times.iter().enumerate() {
                queue.push(Instant::from_nanos(at), n);
            }
            let mut expected: Vec<_> = times.iter().copied().zip(0..).collect();
            expected.sort();
            for (at, n) in expected {
                let at = Instant::from_nanos(at);
                prop_assert_eq!(queue.next_at(), at);
                if at > Instant::ZERO {
                    prop_assert_eq!(queue.pop(Instant::from_nanos(at.as_nanos() - 1)), None);
                }
                prop_assert_eq!(queue.pop(at), Some((at, n)));
            }
            prop_assert!(queue.is_empty());
            prop_assert_eq!(queue.next_at(), Instant::NEVER);
        }
    }

    #[test]
    fn events_that_are_not_kept_never_come() {
        let mut queue = EventQueue::new();
        (0..10).for_each(|n| queue.push(Instant::from_nanos(n), n));
        queue.retain(|at, &n| at.as_nanos() == n && n % 3 == 0);
        let left: Vec<_> = std::iter::from_fn(|| queue.pop(Instant::NEVER)).collect();
        assert_eq!(
            left.iter().map(|(_, n)| *n).collect::<Vec<_>>(),
            [0, 3, 6, 9]
        );
    }
}
