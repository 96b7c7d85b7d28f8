//! Which route has something to do next.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tare_sim::Instant;

/// Times and routes, earliest first. A route whose time moved has an entry for each of them; the
/// caller skips those that are not the route's own any more.
#[derive(Default)]
pub(crate) struct TimerQueue(BinaryHeap<Reverse<(Instant, usize)>>);

impl TimerQueue {
    pub(crate) fn push(&mut self, at: Instant, route: usize) {
        self.0.push(Reverse((at, route)));
    }

    pub(crate) fn next(&self) -> Instant {
        self.0.peek().map_or(Instant::NEVER, |Reverse((at, _))| *at)
    }

    /// The next entry, if its time has come.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<(Instant, usize)> {
        let due = self.next() <= now;
        due.then(|| self.0.pop())
            .flatten()
            .map(|Reverse(entry)| entry)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Keeps the entries that are still their route's own.
    pub(crate) fn retain(&mut self, keep: impl Fn(Instant, usize) -> bool) {
        self.0.retain(|Reverse((at, route))| keep(*at, *route));
    }
}
