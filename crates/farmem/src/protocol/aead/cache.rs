//! Keys of spaces that are in use.

use std::hash::BuildHasher;

use tare_gcm::Key;
use tare_memory::{Arena, Placed, Shared};

use super::KEY_LEN;
use crate::operation::SpaceId;

/// The key of a space before it is expanded, in memory that is wiped when it is dropped.
pub(super) struct Derived(Shared<Bytes>);

/// Neither `Clone` nor `Copy`, so that no copy is made outside of the arena, which wipes it.
struct Bytes([u8; KEY_LEN]);

impl Placed for Bytes {
    fn arena() -> &'static Arena<Bytes> {
        static BYTES: Arena<Bytes> = Arena::new();
        &BYTES
    }
}

impl Derived {
    /// The first bytes of a key that [`Capability::key`](super::Capability) derived.
    pub(super) fn new(key: &[u8; 32]) -> Derived {
        let from = &key[..KEY_LEN];
        let empty = Bytes([0; KEY_LEN]);
        Derived(Shared::filled(empty, |bytes| bytes.0.copy_from_slice(from)))
    }

    pub(super) fn expand(&self) -> Option<Key> {
        Key::new(&self.0 .0).ok()
    }
}

/// The keys of as many spaces as there is room for, all of one epoch; others are made again when
/// they are needed.
///
/// A space has eight places, which it shares with others. With one place each, of 1,000 spaces in
/// 16,384 places 60 would share theirs with another, and make their keys at each of their
/// messages. The table doubles when half of it is used. Keys stay where they are until others take
/// their place: which of them were used last is not worth a copy per message.
pub(super) struct KeyCache<K> {
    sets: Vec<Set<K>>,
    sets_max: usize,
    used: usize,
    /// The number of keys for which the set was full.
    refused: usize,
    /// Of how many of those one takes the place of another.
    every: usize,
    /// The hash is keyed, so that spaces of one set cannot be chosen.
    hash: [u64; 2],
}

const WAYS: usize = 8;

/// Places of spaces. Number and key of a space are in one cache line, and all of a set in two.
#[repr(align(128))]
struct Set<K>([Place<K>; WAYS]);

struct Place<K> {
    space: u64,
    key: Option<K>,
}

impl<K> Place<K> {
    #[inline]
    fn is_of(&self, space: SpaceId) -> bool {
        self.space == space.0 && self.key.is_some()
    }
}

impl<K> KeyCache<K> {
    /// Room for `spaces_max` spaces, rounded up to a multiple of eight that is a power of two. If a
    /// set is full, one of `every` further keys takes the place of another.
    pub(super) fn new(spaces_max: usize, every: usize) -> KeyCache<K> {
        let random = std::hash::RandomState::new();
        let sets_max = spaces_max.clamp(1, 1 << 24).div_ceil(WAYS);
        KeyCache {
            sets: empty(1),
            sets_max: sets_max.next_power_of_two(),
            used: 0,
            refused: 0,
            every,
            hash: [random.hash_one(0), random.hash_one(1) | 1],
        }
    }

    /// The key of a space, if it is there.
    #[inline]
    pub(super) fn find(&self, space: SpaceId) -> Option<&K> {
        let places = &self.sets[self.set(space)].0;
        let place = places.iter().find(|place| place.is_of(space))?;
        place.key.as_ref()
    }

    /// Has the key of a space made and keeps it, in place of an older one of it, or of another's if
    /// its set is full. There `make` is not always called.
    pub(super) fn insert(&mut self, space: SpaceId, make: impl FnOnce() -> Option<K>) {
        if self.used >= self.sets.len() * WAYS / 2 && self.sets.len() < self.sets_max {
            self.grow();
        }
        if let Some(place) = self.place(space) {
            if let Some(key) = make() {
                self.put(place, space, key);
            }
        }
    }

    /// Forgets the key of a space.
    pub(super) fn remove(&mut self, space: SpaceId) {
        let set = self.set(space);
        let mut places = self.sets[set].0.iter_mut();
        if let Some(place) = places.find(|place| place.is_of(space)) {
            place.key = None;
            self.used -= 1;
        }
    }

    /// Forgets all keys.
    pub(super) fn clear(&mut self) {
        *self = KeyCache::new(self.sets_max * WAYS, self.every);
    }

    fn grow(&mut self) {
        let count = self.sets.len() * 2;
        let sets = std::mem::replace(&mut self.sets, empty(count));
        self.used = 0;
        for Place { space, key } in sets.into_iter().flat_map(|set| set.0) {
            let space = SpaceId(space);
            // A set has room for those of the one that it was a part of.
            if let (Some(key), Some(place)) = (key, self.place(space)) {
                self.put(place, space, key);
            }
        }
    }

    /// The set and the way for the key of a space: those of an older one of it, free ones, or those
    /// of another.
    fn place(&mut self, space: SpaceId) -> Option<(usize, usize)> {
        let set = self.set(space);
        let places = &self.sets[set].0;
        let way = places.iter().position(|place| place.is_of(space));
        let way = way.or_else(|| places.iter().position(|place| place.key.is_none()));
        let way = way.or_else(|| {
            self.refused += 1;
            let turn = self.refused / self.every;
            let is_its_turn = self.refused.is_multiple_of(self.every);
            is_its_turn.then_some(turn % WAYS)
        })?;
        Some((set, way))
    }

    fn put(&mut self, (set, way): (usize, usize), space: SpaceId, key: K) {
        let place = &mut self.sets[set].0[way];
        place.space = space.0;
        self.used += usize::from(place.key.replace(key).is_none());
    }

    /// The number of a space's set.
    #[inline]
    fn set(&self, space: SpaceId) -> usize {
        // Once is not enough: for some keys, spaces one after the other would share sets.
        let once = fold(space.0 ^ self.hash[0], self.hash[1]);
        fold(once, self.hash[1]) as usize & (self.sets.len() - 1)
    }
}

/// Returns so many sets without a key.
fn empty<K>(sets: usize) -> Vec<Set<K>> {
    let place = |_| Place {
        space: 0,
        key: None,
    };
    let set = |_| Set(std::array::from_fn(place));
    (0..sets).map(set).collect()
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

    /// A cache of numbers in place of keys.
    fn cache(spaces_max: usize, every: usize) -> KeyCache<u64> {
        KeyCache::new(spaces_max, every)
    }

    fn insert(cache: &mut KeyCache<u64>, space: u64) {
        cache.insert(SpaceId(space), || Some(space + 9));
    }

    /// The spaces whose keys are there.
    fn kept(cache: &KeyCache<u64>) -> Vec<u64> {
        let mut kept = Vec::new();
        for space in 1..=40 {
            if let Some(key) = cache.find(SpaceId(space)) {
                assert_eq!(*key, space + 9);
                kept.push(space);
            }
        }
        kept
    }

    #[test]
    fn keys_are_kept_until_there_is_no_room_for_all() {
        let mut cache = cache(8, 1);
        assert!(
            cache.find(SpaceId(0)).is_none(),
            "an empty place is no space"
        );
        (1..=8).for_each(|space| insert(&mut cache, space));
        assert_eq!(kept(&cache), [1, 2, 3, 4, 5, 6, 7, 8]);
        // One has to go, and each time another one.
        insert(&mut cache, 9);
        insert(&mut cache, 10);
        let now = kept(&cache);
        assert!(now.len() == 8 && now.ends_with(&[9, 10]), "{now:?}");
        insert(&mut cache, now[0]);
        assert_eq!(kept(&cache), now, "in its own place");
        cache.remove(SpaceId(9));
        cache.remove(SpaceId(9));
        assert!(cache.find(SpaceId(9)).is_none());
        insert(&mut cache, 11);
        assert!(cache.find(SpaceId(11)).is_some());
        assert_eq!(kept(&cache).len(), 8, "a free place is taken first");
        cache.clear();
        assert!(kept(&cache).is_empty());
    }

    #[test]
    fn one_of_so_many_takes_the_place_of_another() {
        let mut cache = cache(8, 4);
        (1..=8).for_each(|space| insert(&mut cache, space));
        let mut made = Vec::new();
        for space in 9..=40 {
            cache.insert(SpaceId(space), || {
                made.push(space);
                Some(space + 9)
            });
        }
        assert_eq!(made, [12, 16, 20, 24, 28, 32, 36, 40]);
        assert_eq!(kept(&cache), made, "each took another place");
        cache.insert(SpaceId(40), || Some(50));
        let key = cache.find(SpaceId(40));
        assert_eq!(key, Some(&50), "its own place is always taken");
        cache.insert(SpaceId(40), || None);
        let key = cache.find(SpaceId(40));
        assert_eq!(key, Some(&50), "what could not be made changes nothing");
    }

    #[test]
    fn spaces_do_not_take_each_others_places_while_half_of_them_is_free() {
        // Whatever the keys of the hash: of 1,000 spaces in 256 sets of 8, 8 find theirs full on
        // average, and 50 practically never.
        for attempt in 0..20 {
            let mut cache = cache(2048, 1);
            for space in 0..1000 {
                insert(&mut cache, space);
                assert!(cache.sets.len() * WAYS <= 4 * (space as usize + 4));
            }
            let kept = (0..1000).filter(|space| cache.find(SpaceId(*space)).is_some());
            assert!(kept.count() >= 950, "attempt {attempt}: {:?}", cache.hash);
        }
    }
}
