//! Keys of spaces that are in use.

use std::hash::BuildHasher;

use tare_gcm::Key;
use tare_memory::{Arena, Placed, Shared};

use super::super::message::Direction;
use super::{secret::Capability, KEY_LEN};
use crate::operation::SpaceId;

/// The keys of a space in one epoch, expanded.
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

/// The same before they are expanded, in memory that is wiped when they are dropped.
pub(super) struct Derived(Shared<Bytes>);

/// Neither `Clone` nor `Copy`, so that no copy is made outside of the arena, which wipes it.
struct Bytes {
    request: [u8; KEY_LEN],
    response: [u8; KEY_LEN],
}

impl Placed for Bytes {
    fn arena() -> &'static Arena<Bytes> {
        static BYTES: Arena<Bytes> = Arena::new();
        &BYTES
    }
}

impl Derived {
    pub(super) fn new(capability: &Capability, epoch: u64) -> Derived {
        let empty = Bytes {
            request: [0; KEY_LEN],
            response: [0; KEY_LEN],
        };
        Derived(Shared::filled(empty, |bytes| {
            for (direction, to) in [
                (Direction::Request, &mut bytes.request),
                (Direction::Response, &mut bytes.response),
            ] {
                to.copy_from_slice(&capability.key(epoch, direction)[..KEY_LEN]);
            }
        }))
    }

    /// Expands the key of a direction.
    pub(super) fn expand(&self, direction: Direction) -> Option<Key> {
        Key::new(match direction {
            Direction::Request => &self.0.request,
            Direction::Response => &self.0.response,
        })
        .ok()
    }
}

/// The keys of as many spaces as there is room for; others are made again when they are needed.
///
/// A space has eight places, which it shares with others. With one place each, of 1,000 spaces in
/// 16,384 places 60 would share theirs with another, and make their keys at each of their
/// messages. The table doubles when half of it is used. Keys stay where they are until others take
/// their place: which of them were used last is not worth a copy per message.
pub(super) struct KeyCache<K> {
    sets: Vec<Set>,
    /// The keys in the places of all sets.
    keys: Vec<Option<K>>,
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

impl Name {
    fn is_empty(&self) -> bool {
        *self == Name::default()
    }
}

impl<K> KeyCache<K> {
    /// Room for `spaces_max` spaces, rounded up to a multiple of eight that is a power of two. If a
    /// set is full, one of `every` further keys takes the place of another.
    pub(super) fn new(spaces_max: usize, every: usize) -> KeyCache<K> {
        let random = std::hash::RandomState::new();
        let sets_max = spaces_max.clamp(1, 1 << 24).div_ceil(WAYS);
        KeyCache {
            sets: vec![Set::default()],
            keys: empty(1),
            sets_max: sets_max.next_power_of_two(),
            used: 0,
            refused: 0,
            every,
            hash: [random.hash_one(0), random.hash_one(1) | 1],
        }
    }

    /// The keys of a space, if they are there.
    #[inline]
    pub(super) fn find(&self, space: SpaceId, epoch: u64) -> Option<&K> {
        let set = self.set(space);
        let name = Name {
            space: space.0,
            epoch,
        };
        let way = self.sets[set].0.iter().position(|it| *it == name)?;
        self.keys[set * WAYS + way].as_ref()
    }

    /// Has the keys of a space made and keeps them, in place of older ones of it, or of others if
    /// its set is full. There `make` is not always called.
    pub(super) fn insert(&mut self, space: SpaceId, epoch: u64, make: impl FnOnce() -> Option<K>) {
        let name = Name {
            space: space.0,
            epoch,
        };
        if self.used >= self.sets.len() * WAYS / 2 && self.sets.len() < self.sets_max {
            self.grow();
        }
        if let Some(place) = self.place(space) {
            if let Some(keys) = make() {
                self.put(place, name, keys);
            }
        }
    }

    /// Forgets the keys of a space.
    pub(super) fn remove(&mut self, space: SpaceId) {
        let set = self.set(space);
        let names = &mut self.sets[set].0;
        for (name, keys) in names.iter_mut().zip(&mut self.keys[set * WAYS..]) {
            if name.space == space.0 && keys.take().is_some() {
                *name = Name::default();
                self.used -= 1;
            }
        }
    }

    /// Forgets all keys.
    pub(super) fn clear(&mut self) {
        *self = KeyCache::new(self.sets_max * WAYS, self.every);
    }

    fn grow(&mut self) {
        let count = self.sets.len() * 2;
        let sets = std::mem::replace(&mut self.sets, vec![Set::default(); count]);
        let keys = std::mem::replace(&mut self.keys, empty(count));
        self.used = 0;
        let names = sets.iter().flat_map(|set| set.0);
        for (name, keys) in names.zip(keys) {
            // A set has room for those of the one that it was a part of.
            if let (Some(keys), Some(place)) = (keys, self.place(SpaceId(name.space))) {
                self.put(place, name, keys);
            }
        }
    }

    /// The place for the keys of a space: that of older ones of it, a free one, or that of others.
    /// It looks at names alone, as the keys are in other cache lines.
    fn place(&mut self, space: SpaceId) -> Option<usize> {
        let set = self.set(space);
        let names = &self.sets[set].0;
        let older = |name: &Name| !name.is_empty() && name.space == space.0;
        let way = names.iter().position(older);
        let way = way.or_else(|| names.iter().position(Name::is_empty));
        let way = way.or_else(|| {
            self.refused += 1;
            let turn = self.refused / self.every;
            let is_its_turn = self.refused.is_multiple_of(self.every);
            is_its_turn.then_some(turn % WAYS)
        })?;
        Some(set * WAYS + way)
    }

    fn put(&mut self, place: usize, name: Name, keys: K) {
        self.sets[place / WAYS].0[place % WAYS] = name;
        self.used += usize::from(self.keys[place].replace(keys).is_none());
    }

    /// The number of a space's set.
    #[inline]
    fn set(&self, space: SpaceId) -> usize {
        // Once is not enough: for some keys, spaces one after the other would share sets.
        let once = fold(space.0 ^ self.hash[0], self.hash[1]);
        fold(once, self.hash[1]) as usize & (self.sets.len() - 1)
    }
}

/// The places of so many sets.
fn empty<K>(sets: usize) -> Vec<Option<K>> {
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

    /// A cache of numbers in place of keys.
    fn cache(spaces_max: usize, every: usize) -> KeyCache<u64> {
        KeyCache::new(spaces_max, every)
    }

    fn insert(cache: &mut KeyCache<u64>, space: u64, epoch: u64) {
        cache.insert(SpaceId(space), epoch, || Some(space + epoch));
    }

    /// The spaces whose keys of the epoch are there.
    fn kept(cache: &KeyCache<u64>, epoch: u64) -> Vec<u64> {
        let mut kept = Vec::new();
        for space in 1..=40 {
            if let Some(keys) = cache.find(SpaceId(space), epoch) {
                assert_eq!(*keys, space + epoch);
                kept.push(space);
            }
        }
        kept
    }

    #[test]
    fn keys_are_kept_until_there_is_no_room_for_all() {
        let mut cache = cache(8, 1);
        (1..=8).for_each(|space| insert(&mut cache, space, 9));
        assert_eq!(kept(&cache, 9), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(cache.find(SpaceId(1), 8).is_none(), "another epoch");
        assert!(
            cache.find(SpaceId(0), 0).is_none(),
            "an empty place is no space"
        );
        // One has to go, and each time another one.
        insert(&mut cache, 9, 9);
        insert(&mut cache, 10, 9);
        let now = kept(&cache, 9);
        assert!(now.len() == 8 && now.ends_with(&[9, 10]), "{now:?}");
        let changed = now[0];
        insert(&mut cache, changed, 10);
        assert_eq!(kept(&cache, 9), now[1..], "in place of its older ones");
        assert!(cache.find(SpaceId(changed), 10).is_some());
        cache.remove(SpaceId(9));
        assert!(cache.find(SpaceId(9), 9).is_none());
        insert(&mut cache, 11, 9);
        assert!(cache.find(SpaceId(11), 9).is_some());
        assert_eq!(kept(&cache, 9).len(), 7, "a free place is taken first");
        assert!(cache.find(SpaceId(changed), 10).is_some());
        cache.clear();
        assert!(kept(&cache, 9).is_empty());
    }

    #[test]
    fn one_of_so_many_takes_the_place_of_another() {
        let mut cache = cache(8, 4);
        (1..=8).for_each(|space| insert(&mut cache, space, 9));
        let mut made = Vec::new();
        for space in 9..=40 {
            cache.insert(SpaceId(space), 9, || {
                made.push(space);
                Some(space + 9)
            });
        }
        assert_eq!(made, [12, 16, 20, 24, 28, 32, 36, 40]);
        assert_eq!(kept(&cache, 9), made, "each took another place");
        cache.insert(SpaceId(40), 10, || Some(50));
        assert_eq!(kept(&cache, 10), [40], "its own place is always taken");
        cache.insert(SpaceId(40), 11, || None);
        assert_eq!(
            kept(&cache, 10),
            [40],
            "what could not be made changes nothing"
        );
    }

    #[test]
    fn spaces_do_not_take_each_others_places_while_half_of_them_is_free() {
        // Whatever the keys of the hash: of 1,000 spaces in 256 sets of 8, 8 find theirs full on
        // average, and 50 practically never.
        for attempt in 0..20 {
            let mut cache = cache(2048, 1);
            for space in 0..1000 {
                insert(&mut cache, space, 1);
                assert!(cache.sets.len() * WAYS <= 4 * (space as usize + 4));
            }
            let kept = (0..1000).filter(|space| cache.find(SpaceId(*space), 1).is_some());
            assert!(kept.count() >= 950, "attempt {attempt}: {:?}", cache.hash);
        }
    }
}
