//! Expanded keys of spaces that are in use.

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
/// A space has eight places, which it shares with others. With one place each, of 1,000 spaces in
/// 16,384 places 60 would share theirs with another, and derive their keys at each of their
/// messages. The table doubles when half of it is used. Keys stay where they are until others take
/// their place: which of them were used last is not worth a copy per message.
pub(super) struct KeyCache {
    sets: Vec<Set>,
    /// The keys in the places of all sets.
    pairs: Vec<Option<Pair>>,
    sets_max: usize,
    used: usize,
    /// The place that is taken next in a set that is full.
    next: usize,
    /// The hash is keyed, so that spaces of one set cannot be chosen.
    keys: [u64; 2],
}

const WAYS: usize = 8;

/// The content of the places of a set, apart from the keys: two cache lines say where a space is.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Set([Name; WAYS]);

/// A space and an epoch, of which no node's is 0; 0 of an empty place.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Name {
    space: u64,
    epoch: u64,
}

impl KeyCache {
    /// Room for `spaces_max` spaces, rounded up to a multiple of eight that is a power of two.
    pub(super) fn new(spaces_max: usize) -> KeyCache {
        let random = std::hash::RandomState::new();
        let sets_max = spaces_max.clamp(1, 1 << 24).div_ceil(WAYS);
        KeyCache {
            sets: vec![Set::default()],
            pairs: empty(1),
            sets_max: sets_max.next_power_of_two(),
            used: 0,
            next: 0,
            keys: [random.hash_one(0), random.hash_one(1) | 1],
        }
    }

    /// The keys of a space, if they are there.
    #[inline]
    pub(super) fn find(&self, space: SpaceId, epoch: u64) -> Option<&Pair> {
        let set = self.set(space);
        let name = Name {
            space: space.0,
            epoch,
        };
        let way = self.sets[set].0.iter().position(|it| *it == name)?;
        self.pairs[set * WAYS + way].as_ref()
    }

    /// Keeps the keys of a space, in place of older ones of it, or of others if its set is full.
    pub(super) fn insert(&mut self, space: SpaceId, epoch: u64, pair: Pair) {
        if self.used >= self.sets.len() * WAYS / 2 && self.sets.len() < self.sets_max {
            self.grow();
        }
        let name = Name {
            space: space.0,
            epoch,
        };
        self.put(name, pair);
    }

    /// Forgets the keys of a space.
    pub(super) fn remove(&mut self, space: SpaceId) {
        let set = self.set(space);
        for (name, pair) in self.sets[set]
            .0
            .iter_mut()
            .zip(&mut self.pairs[set * WAYS..])
        {
            if name.space == space.0 && pair.take().is_some() {
                *name = Name::default();
                self.used -= 1;
            }
        }
    }

    /// Forgets all keys.
    pub(super) fn clear(&mut self) {
        *self = KeyCache::new(self.sets_max * WAYS);
    }

    fn grow(&mut self) {
        let count = self.sets.len() * 2;
        let sets = std::mem::replace(&mut self.sets, vec![Set::default(); count]);
        let pairs = std::mem::replace(&mut self.pairs, empty(count));
        self.used = 0;
        let names = sets.iter().flat_map(|set| set.0);
        for (name, pair) in names.zip(pairs) {
            if let Some(pair) = pair {
                self.put(name, pair);
            }
        }
    }

    fn put(&mut self, name: Name, pair: Pair) {
        let set = self.set(SpaceId(name.space));
        let ways = set * WAYS..(set + 1) * WAYS;
        let (names, pairs) = (&mut self.sets[set].0, &mut self.pairs[ways]);
        let mut places = 0..WAYS;
        let way = places
            .find(|way| pairs[*way].is_some() && names[*way].space == name.space)
            .or_else(|| pairs.iter().position(Option::is_none))
            .unwrap_or_else(|| {
                self.next = (self.next + 1) % WAYS;
                self.next
            });
        names[way] = name;
        self.used += usize::from(pairs[way].replace(pair).is_none());
    }

    /// The number of a space's set.
    #[inline]
    fn set(&self, space: SpaceId) -> usize {
        // Once is not enough: for some keys, spaces one after the other would share sets.
        let once = fold(space.0 ^ self.keys[0], self.keys[1]);
        fold(once, self.keys[1]) as usize & (self.sets.len() - 1)
    }
}

/// The places of so many sets.
fn empty(sets: usize) -> Vec<Option<Pair>> {
    (0..sets * WAYS).map(|_| None).collect()
}

/// Multiplies, and folds the two halves of the product.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
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
    fn keys_are_kept_until_there_is_no_room_for_all() {
        let mut cache = KeyCache::new(8);
        for space in 1..=8 {
            cache.insert(SpaceId(space), 9, pair());
        }
        let kept = |cache: &KeyCache| {
            let spaces = 1..=12;
            let kept = spaces.filter(|space| cache.find(SpaceId(*space), 9).is_some());
            kept.collect::<Vec<u64>>()
        };
        assert_eq!(kept(&cache), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(cache.find(SpaceId(1), 8).is_none(), "another epoch");
        assert!(
            cache.find(SpaceId(0), 0).is_none(),
            "an empty place is no space"
        );
        // One has to go, and each time another one.
        cache.insert(SpaceId(9), 9, pair());
        cache.insert(SpaceId(10), 9, pair());
        let now = kept(&cache);
        assert!(now.len() == 8 && now.ends_with(&[9, 10]), "{now:?}");
        let changed = now[0];
        cache.insert(SpaceId(changed), 10, pair());
        assert_eq!(kept(&cache), now[1..], "in place of its older ones");
        assert!(cache.find(SpaceId(changed), 10).is_some());
        cache.remove(SpaceId(9));
        assert!(cache.find(SpaceId(9), 9).is_none());
        cache.insert(SpaceId(11), 9, pair());
        assert!(cache.find(SpaceId(11), 9).is_some());
        assert_eq!(kept(&cache).len(), 7, "a free place is taken first");
        assert!(cache.find(SpaceId(changed), 10).is_some());
        cache.clear();
        assert!(kept(&cache).is_empty());
    }

    #[test]
    fn spaces_do_not_take_each_others_places_while_half_of_them_is_free() {
        // Whatever the keys of the hash: of 1,000 spaces in 256 sets of 8, 8 find theirs full on
        // average, and 50 practically never.
        for attempt in 0..20 {
            let mut cache = KeyCache::new(2048);
            for space in 0..1000 {
                cache.insert(SpaceId(space), 1, pair());
                assert!(cache.sets.len() * WAYS <= 4 * (space as usize + 4));
            }
            let kept = (0..1000).filter(|space| cache.find(SpaceId(*space), 1).is_some());
            assert!(kept.count() >= 950, "attempt {attempt}: {:?}", cache.keys);
        }
    }
}
