//! Expanded keys of the spaces that were last used.

use std::hash::BuildHasher;

use tare_gcm::Key;

use super::super::message::Direction;
use crate::operation::SpaceId;

/// The keys of a space in one epoch.
pub(super) struct Pair {
    pub(super) request: Key,
    pub(super) response: Key,
}

impl Pair {
    pub(super) fn key(&self, direction: Direction) -> &Key {
        match direction {
            Direction::Request => &self.request,
            Direction::Response => &self.response,
        }
    }
}

/// The keys of as many spaces as there is room for; others are derived again when they are needed.
///
/// Four ways per set, the last used first. With one way, of 1,000 spaces in 16,384 places 30 would
/// share theirs with another, and derive their keys at each of their messages.
pub(super) struct KeyCache {
    sets: Vec<[Way; WAYS]>,
    sets_max: usize,
    /// The hash is keyed, so that spaces of one set cannot be chosen.
    keys: [u64; 2],
}

const WAYS: usize = 4;

#[derive(Default)]
struct Way {
    space: u64,
    epoch: u64,
    pair: Option<Box<Pair>>,
}

impl KeyCache {
    /// Room for at least `spaces_max` spaces, rounded up to a power of two.
    pub(super) fn new(spaces_max: usize) -> KeyCache {
        let random = std::hash::RandomState::new();
        KeyCache {
            sets: Vec::new(),
            sets_max: spaces_max
                .clamp(1, 1 << 24)
                .div_ceil(WAYS)
                .next_power_of_two(),
            keys: [random.hash_one(0), random.hash_one(1) | 1],
        }
    }

    /// The keys of a space, if they are there.
    #[inline]
    pub(super) fn find(&mut self, space: SpaceId, epoch: u64) -> Option<&Pair> {
        let index = self.index(space);
        let set = self.sets.get_mut(index)?;
        let is_it = |way: &Way| way.space == space.0 && way.epoch == epoch && way.pair.is_some();
        let at = set.iter().position(is_it)?;
        if at > 0 {
            set[..=at].rotate_right(1);
        }
        set[0].pair.as_deref()
    }

    /// Keeps the keys of a space, in place of older ones of it or of those in its set that were not
    /// used for the longest time.
    pub(super) fn insert(&mut self, space: SpaceId, epoch: u64, pair: Pair) -> &Pair {
        if self.sets.is_empty() {
            self.sets.resize_with(self.sets_max, Default::default);
        }
        let index = self.index(space);
        let set = &mut self.sets[index];
        let same = set.iter().position(|way| way.space == space.0);
        set[..=same.unwrap_or(WAYS - 1)].rotate_right(1);
        (set[0].space, set[0].epoch) = (space.0, epoch);
        set[0].pair.insert(Box::new(pair))
    }

    /// Forgets all keys.
    pub(super) fn clear(&mut self) {
        self.sets.clear();
    }

    /// Forgets the keys of a space.
    pub(super) fn remove(&mut self, space: SpaceId) {
        let index = self.index(space);
        for way in self.sets.get_mut(index).into_iter().flatten() {
            if way.space == space.0 {
                way.pair = None;
            }
        }
    }

    #[inline]
    fn index(&self, space: SpaceId) -> usize {
        let product = u128::from(space.0 ^ self.keys[0]) * u128::from(self.keys[1]);
        ((product >> 64) as u64 ^ product as u64) as usize & (self.sets_max - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> Pair {
        let key = || Key::new(&[1; 16]).expect("a key of 16 bytes");
        Pair {
            request: key(),
            response: key(),
        }
    }

    #[test]
    fn the_keys_of_the_spaces_last_used_are_kept() {
        let mut cache = KeyCache::new(4);
        for space in 1..=4 {
            cache.insert(SpaceId(space), 9, pair());
        }
        assert!(cache.find(SpaceId(1), 9).is_some());
        assert!(cache.find(SpaceId(1), 8).is_none(), "another epoch");
        assert!(
            cache.find(SpaceId(0), 0).is_none(),
            "an empty way is no space"
        );
        cache.insert(SpaceId(5), 9, pair());
        let kept = [1, 2, 3, 4, 5].map(|space| cache.find(SpaceId(space), 9).is_some());
        assert_eq!(kept, [true, false, true, true, true]);
        cache.insert(SpaceId(3), 10, pair());
        let kept = [1, 3, 4, 5].map(|space| cache.find(SpaceId(space), 9).is_some());
        assert_eq!(kept, [true, false, true, true], "in place of older ones");
        cache.remove(SpaceId(4));
        assert!(cache.find(SpaceId(4), 9).is_none());
    }

    #[test]
    fn a_thousand_spaces_do_not_take_each_others_places() {
        let mut cache = KeyCache::new(16384);
        (0..1000).for_each(|space| {
            cache.insert(SpaceId(space), 1, pair());
        });
        let kept = (0..1000).filter(|space| cache.find(SpaceId(*space), 1).is_some());
        assert!(kept.count() >= 999);
    }
}
