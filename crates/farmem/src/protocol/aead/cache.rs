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
/// A space has eight places, which it shares with others; the last used is the first of them. With
/// one place each, of 1,000 spaces in 16,384 places 60 would share theirs with another, and derive
/// their keys at each of their messages. The table doubles when half of it is used.
pub(super) struct KeyCache {
    sets: Vec<[Way; WAYS]>,
    sets_max: usize,
    used: usize,
    /// The hash is keyed, so that spaces of one set cannot be chosen.
    keys: [u64; 2],
}

const WAYS: usize = 8;

#[derive(Default)]
struct Way {
    space: u64,
    epoch: u64,
    pair: Option<Pair>,
}

impl KeyCache {
    /// Room for `spaces_max` spaces, rounded up to a multiple of eight that is a power of two.
    pub(super) fn new(spaces_max: usize) -> KeyCache {
        let random = std::hash::RandomState::new();
        let sets_max = spaces_max.clamp(1, 1 << 24).div_ceil(WAYS);
        KeyCache {
            sets: vec![Default::default()],
            sets_max: sets_max.next_power_of_two(),
            used: 0,
            keys: [random.hash_one(0), random.hash_one(1) | 1],
        }
    }

    /// The keys of a space, if they are there.
    #[inline]
    pub(super) fn find(&mut self, space: SpaceId, epoch: u64) -> Option<&Pair> {
        let set = self.set(space);
        let is_it = |way: &Way| way.space == space.0 && way.epoch == epoch && way.pair.is_some();
        let at = set.iter().position(is_it)?;
        if at > 0 {
            set[..=at].rotate_right(1);
        }
        set[0].pair.as_ref()
    }

    /// Keeps the keys of a space, in place of older ones of it or of those in its set that were not
    /// used for the longest time.
    pub(super) fn insert(&mut self, space: SpaceId, epoch: u64, pair: Pair) {
        if self.used >= self.sets.len() * WAYS / 2 && self.sets.len() < self.sets_max {
            self.grow();
        }
        let way = Way {
            space: space.0,
            epoch,
            pair: Some(pair),
        };
        self.used += usize::from(self.put(way));
    }

    /// Forgets the keys of a space.
    pub(super) fn remove(&mut self, space: SpaceId) {
        let mut removed = 0;
        for way in self.set(space) {
            if way.space == space.0 {
                removed += usize::from(way.pair.take().is_some());
            }
        }
        self.used -= removed;
    }

    /// Forgets all keys.
    pub(super) fn clear(&mut self) {
        *self = KeyCache::new(self.sets_max * WAYS);
    }

    fn grow(&mut self) {
        let mut sets = Vec::new();
        sets.resize_with(self.sets.len() * 2, Default::default);
        let old = std::mem::replace(&mut self.sets, sets);
        self.used = 0;
        // From the last used on, which thereby ends at the front again.
        let ways = old.into_iter().flat_map(|set| set.into_iter().rev());
        for way in ways.filter(|way| way.pair.is_some()) {
            self.used += usize::from(self.put(way));
        }
    }

    /// Puts keys at the front of their set; returns true if that took a place that was free.
    fn put(&mut self, way: Way) -> bool {
        let set = self.set(SpaceId(way.space));
        let of_space = |old: &Way| old.pair.is_none() || old.space == way.space;
        let at = set.iter().position(of_space).unwrap_or(WAYS - 1);
        set[..=at].rotate_right(1);
        std::mem::replace(&mut set[0], way).pair.is_none()
    }

    #[inline]
    fn set(&mut self, space: SpaceId) -> &mut [Way; WAYS] {
        // Once is not enough: for some keys, spaces one after the other would share sets.
        let once = fold(space.0 ^ self.keys[0], self.keys[1]);
        let index = fold(once, self.keys[1]) as usize & (self.sets.len() - 1);
        &mut self.sets[index]
    }
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
    fn the_keys_of_the_spaces_last_used_are_kept() {
        let mut cache = KeyCache::new(8);
        for space in 1..=8 {
            cache.insert(SpaceId(space), 9, pair());
        }
        assert!(cache.find(SpaceId(1), 9).is_some());
        assert!(cache.find(SpaceId(1), 8).is_none(), "another epoch");
        assert!(
            cache.find(SpaceId(0), 0).is_none(),
            "an empty way is no space"
        );
        let kept = |cache: &mut KeyCache, spaces: [u64; 4]| {
            spaces.map(|space| cache.find(SpaceId(space), 9).is_some())
        };
        cache.insert(SpaceId(9), 9, pair());
        assert_eq!(kept(&mut cache, [1, 2, 3, 9]), [true, false, true, true]);
        cache.insert(SpaceId(3), 10, pair());
        assert_eq!(kept(&mut cache, [1, 3, 4, 9]), [true, false, true, true]);
        assert!(
            cache.find(SpaceId(3), 10).is_some(),
            "in place of older ones"
        );
        cache.remove(SpaceId(4));
        assert!(cache.find(SpaceId(4), 9).is_none());
        cache.insert(SpaceId(10), 9, pair());
        assert_eq!(
            kept(&mut cache, [1, 5, 6, 10]),
            [true; 4],
            "a free place is taken first"
        );
        cache.clear();
        assert!(cache.find(SpaceId(1), 9).is_none());
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
