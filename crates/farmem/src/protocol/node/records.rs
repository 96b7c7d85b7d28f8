//! The operations that a node ran and their outcomes, so that none runs twice.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

use crate::operation::SpaceId;

/// Outcomes of operations by space and number, each kept until every request of that operation is
/// refused for its age.
///
/// The records lie in the order of their arrival, and leave in it: writing one touches the end of a
/// queue and one word of the index, however many there are. A chain of the index runs from the
/// newest to the oldest and ends where a position has left the queue, so that nothing needs to be
/// removed from it. One record that expires later than its successors keeps them a little longer.
#[derive(Debug)]
pub(super) struct Records {
    queue: VecDeque<Record>,
    /// The number of the front record, counted modulo 2³² from the first ever.
    front: u32,
    /// The number of the newest record of each chain.
    chains: Vec<u32>,
    /// Secret, so that a client cannot choose numbers that share a chain.
    keys: [u64; 2],
    max: usize,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    space: SpaceId,
    operation: u64,
    expires_ns: u64,
    value: u64,
    status: u8,
    /// The number of the next older record of the same chain.
    older: u32,
}

/// Fewest chains.
const CHAINS_MIN: usize = 1024;

impl Records {
    /// Room for `max` records, at most 2³¹.
    pub(super) fn new(max: usize) -> Records {
        let random = RandomState::new();
        Records {
            queue: VecDeque::new(),
            front: 0,
            chains: vec![u32::MAX; CHAINS_MIN],
            keys: [random.hash_one(0), random.hash_one(1) | 1],
            max: max.min(1 << 31),
        }
    }

    /// The outcome of an operation.
    pub(super) fn find(&self, space: SpaceId, operation: u64) -> Option<(u8, u64)> {
        let mut number = self.chains[self.chain(space, operation)];
        let mut end = self.queue.len();
        loop {
            let position = number.wrapping_sub(self.front) as usize;
            // Older than the one before, or it is a number that was used 2³² records ago.
            let record = (position < end).then(|| self.queue.get(position))??;
            if record.operation == operation && record.space == space {
                return Some((record.status, record.value));
            }
            (number, end) = (record.older, position);
        }
    }

    /// Forgets what has expired; returns true if there is room for another record.
    pub(super) fn has_room(&mut self, now_ns: u64) -> bool {
        while self.next_expiry() < now_ns {
            self.queue.pop_front();
            self.front = self.front.wrapping_add(1);
        }
        self.queue.len() < self.max
    }

    /// Returns when the first record expires, in nanoseconds; `u64::MAX` if there is none. It is still there
    /// at that time.
    pub(super) fn next_expiry(&self) -> u64 {
        let front = self.queue.front();
        front.map_or(u64::MAX, |record| record.expires_ns)
    }

    /// Remembers an outcome until `expires_ns`.
    pub(super) fn insert(
        &mut self,
        (space, operation): (SpaceId, u64),
        expires_ns: u64,
        (status, value): (u8, u64),
    ) {
        if self.queue.len() >= self.chains.len() {
            self.rebuild(self.chains.len() * 2);
        }
        let chain = self.chain(space, operation);
        self.queue.push_back(Record {
            space,
            operation,
            expires_ns,
            value,
            status,
            older: self.chains[chain],
        });
        self.chains[chain] = self.front.wrapping_add(self.queue.len() as u32 - 1);
    }

    /// Records kept.
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    fn rebuild(&mut self, chains: usize) {
        self.chains = vec![self.front.wrapping_sub(1); chains];
        for position in 0..self.queue.len() {
            let Record {
                space, operation, ..
            } = self.queue[position];
            let chain = self.chain(space, operation);
            self.queue[position].older = self.chains[chain];
            self.chains[chain] = self.front.wrapping_add(position as u32);
        }
    }

    /// Operations with numbers that follow each other are in chains that do, 16 in a cache line,
    /// because clients number them so: an index of megabytes then costs a cache miss per line and
    /// not one per operation.
    fn chain(&self, space: SpaceId, operation: u64) -> usize {
        let line = (operation / 16) ^ self.keys[1];
        let product = u128::from(space.0 ^ self.keys[0]) * u128::from(line);
        let hash = (product >> 64) as u64 ^ product as u64;
        let line = (hash.wrapping_mul(self.keys[1]) >> 32) as usize * 16;
        (line | (operation % 16) as usize) & (self.chains.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_record_is_found_until_it_expires_and_there_are_never_more_than_allowed(
            max in 1usize..3000,
            front in any::<u32>(),
            operations in proptest::collection::vec((0u64..4, 0u64..1500, 0u64..20), 1..4000),
        ) {
            let mut records = Records::new(max);
            // Also where the count begins anew within the test.
            records.front = front.saturating_add(1 << 31);
            records.rebuild(CHAINS_MIN);
            let (mut model, mut now) = (HashMap::new(), 0);
            for (n, (space, operation, wait)) in (0u64..).zip(operations) {
                now += wait;
                let key = (SpaceId(space), operation);
                if let Some(&(expires, outcome)) = model.get(&key) {
                    if expires >= now {
                        prop_assert_eq!(records.find(key.0, key.1), Some(outcome));
                        continue;
                    }
                }
                if records.has_room(now) {
                    prop_assert_eq!(records.find(key.0, key.1), None);
                    let outcome = (n as u8, n);
                    records.insert(key, now + 1000, outcome);
                    model.insert(key, (now + 1000, outcome));
                }
                prop_assert!(records.len() <= max);
            }
        }
    }
}
