//! The operations that a node ran and their outcomes, so that none runs twice.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

use crate::operation::SpaceId;

/// Outcomes of operations by space and number, each kept until every request of that operation is
/// refused for its age.
///
/// The records lie in the order of their arrival, and leave in it: writing one touches the end of a
/// queue and one word of the index, however many there are. A chain of the index runs from the
/// newest to the oldest and ends where a number has left the queue, so that nothing needs to be
/// removed from it. One record that expires later than its successors keeps them a little longer.
///
/// Nothing is ever moved or rebuilt: with millions of records that would hold up every client for
/// longer than their retransmission timeouts.
#[derive(Debug)]
pub(super) struct Records {
    /// Blocks of [`BLOCK`] records, all full except the last.
    blocks: VecDeque<Vec<Record>>,
    /// Records of the first block that have left.
    left: usize,
    len: usize,
    /// A block to be used again.
    spare: Option<Vec<Record>>,
    /// The number of the front record, counted modulo 2³² from the first ever.
    front: u32,
    /// One more than the number of the newest record of each chain. Memory that is zero from the
    /// start, of which the system provides what is used.
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
    /// As in `chains`: the next older record of the same chain.
    older: u32,
}

/// Memory per record: its own, and up to two words of the index, whose length is a power of two.
pub(super) const RECORD_BYTES: u64 = 48;

const _: () = assert!(size_of::<Record>() + 2 * size_of::<u32>() == RECORD_BYTES as usize);

const BLOCK: usize = 1024;

/// Fewest and most chains.
const CHAINS: [usize; 2] = [1 << 10, 1 << 24];

impl Records {
    /// Room for `max` records, at most 2³¹.
    pub(super) fn new(max: usize) -> Records {
        let random = RandomState::new();
        let max = max.min(1 << 31);
        Records {
            blocks: VecDeque::new(),
            left: 0,
            len: 0,
            spare: None,
            front: 0,
            chains: vec![0; max.next_power_of_two().clamp(CHAINS[0], CHAINS[1])],
            keys: [random.hash_one(0), random.hash_one(1) | 1],
            max,
        }
    }

    /// The outcome of an operation.
    pub(super) fn find(&self, space: SpaceId, operation: u64) -> Option<(u8, u64)> {
        let mut newest = self.chains[self.chain(space, operation)];
        let mut end = self.len;
        loop {
            let position = newest.wrapping_sub(1).wrapping_sub(self.front) as usize;
            // Beyond the end: it has left, or its number was given again 2³² records later.
            let record = (position < end).then(|| self.get(position))??;
            if record.operation == operation && record.space == space {
                return Some((record.status, record.value));
            }
            (newest, end) = (record.older, position);
        }
    }

    /// Forgets what has expired; returns true if there is room for another record.
    pub(super) fn has_room(&mut self, now_ns: u64) -> bool {
        while self.next_expiry() < now_ns {
            self.front = self.front.wrapping_add(1);
            self.len -= 1;
            self.left += 1;
            if self.left == BLOCK {
                self.left = 0;
                self.spare = self.blocks.pop_front();
            }
        }
        self.len < self.max
    }

    /// Returns when the first record expires, in nanoseconds; `u64::MAX` if there is none. It is
    /// still there at that time.
    pub(super) fn next_expiry(&self) -> u64 {
        let front = self.get(0);
        front.map_or(u64::MAX, |record| record.expires_ns)
    }

    /// Remembers an outcome until `expires_ns`.
    pub(super) fn insert(
        &mut self,
        (space, operation): (SpaceId, u64),
        expires_ns: u64,
        (status, value): (u8, u64),
    ) {
        let chain = self.chain(space, operation);
        let record = Record {
            space,
            operation,
            expires_ns,
            value,
            status,
            older: self.chains[chain],
        };
        match self.blocks.back_mut().filter(|block| block.len() < BLOCK) {
            Some(block) => block.push(record),
            None => {
                let mut block = self.spare.take().unwrap_or(Vec::with_capacity(BLOCK));
                block.clear();
                block.push(record);
                self.blocks.push_back(block);
            }
        }
        self.len += 1;
        self.chains[chain] = self.front.wrapping_add(self.len as u32);
    }

    /// Records kept.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn get(&self, position: usize) -> Option<&Record> {
        let at = self.left + position;
        self.blocks.get(at / BLOCK)?.get(at % BLOCK)
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
            front in prop_oneof![Just(0), (u32::MAX - 3000)..=u32::MAX, any::<u32>()],
            operations in proptest::collection::vec((0u64..4, 0u64..1500, 0u64..20), 1..4000),
        ) {
            let mut records = Records::new(max);
            // Also where the count begins anew within the test.
            records.front = front;
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
