//! A hash table that knows which of its entries was used longest ago, and what all weigh.

use std::collections::HashMap;
use std::sync::Arc;

/// The end of the list.
const NONE: u32 = u32::MAX;

/// Values by keys of bytes, in a list from the last used to the first to go.
///
/// The hash is std's, with a random key for each table, so a peer cannot choose keys that collide.
pub(super) struct Lru<V> {
    places: HashMap<Arc<[u8]>, u32>,
    /// The values, and places that are free.
    entries: Vec<Option<Entry<V>>>,
    free: Vec<u32>,
    first: u32,
    last: u32,
    weight: usize,
}

struct Entry<V> {
    key: Arc<[u8]>,
    value: V,
    weight: usize,
    before: u32,
    after: u32,
}

impl<V> Lru<V> {
    pub(super) fn new() -> Lru<V> {
        Lru {
            places: HashMap::new(),
            entries: Vec::new(),
            free: Vec::new(),
            first: NONE,
            last: NONE,
            weight: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// The sum of the weights that the values were inserted with.
    pub(super) fn weight(&self) -> usize {
        self.weight
    }

    /// Returns the value of a key, which is now the last used.
    pub(super) fn get(&mut self, key: &[u8]) -> Option<&mut V> {
        let place = *self.places.get(key)?;
        if self.first != place {
            self.unlink(place);
            self.link_first(place);
        }
        self.entry(place).map(|entry| &mut entry.value)
    }

    /// Returns the value of a key without counting it as used.
    pub(super) fn peek(&self, key: &[u8]) -> Option<&V> {
        let place = *self.places.get(key)?;
        let entry = self.entries.get(place as usize)?.as_ref()?;
        Some(&entry.value)
    }

    /// Inserts or replaces a value, which is now the last used.
    pub(super) fn insert(&mut self, key: &[u8], value: V, weight: usize) {
        if let Some(&place) = self.places.get(key) {
            self.unlink(place);
            self.link_first(place);
            if let Some(entry) = self.entry(place) {
                let old = std::mem::replace(&mut entry.weight, weight);
                entry.value = value;
                self.weight = self.weight - old + weight;
            }
            return;
        }
        let key: Arc<[u8]> = key.into();
        let place = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            u32::try_from(self.entries.len() - 1).expect("each entry weighs more than 4 bytes")
        });
        self.entries[place as usize] = Some(Entry {
            key: Arc::clone(&key),
            value,
            weight,
            before: NONE,
            after: NONE,
        });
        self.places.insert(key, place);
        self.weight += weight;
        self.link_first(place);
    }

    pub(super) fn remove(&mut self, key: &[u8]) -> Option<V> {
        let place = self.places.remove(key)?;
        self.unlink(place);
        let entry = self.entries[place as usize].take()?;
        self.free.push(place);
        self.weight -= entry.weight;
        Some(entry.value)
    }

    /// Removes the value that was used longest ago; returns false if there is none.
    pub(super) fn remove_oldest(&mut self) -> bool {
        let last = self.last;
        let key = self.entry(last).map(|entry| Arc::clone(&entry.key));
        key.is_some_and(|key| self.remove(&key).is_some())
    }

    fn entry(&mut self, place: u32) -> Option<&mut Entry<V>> {
        self.entries.get_mut(place as usize)?.as_mut()
    }

    fn unlink(&mut self, place: u32) {
        let Some(entry) = self.entry(place) else {
            return;
        };
        let (before, after) = (entry.before, entry.after);
        match self.entry(before) {
            Some(entry) => entry.after = after,
            None => self.first = after,
        }
        match self.entry(after) {
            Some(entry) => entry.before = before,
            None => self.last = before,
        }
    }

    fn link_first(&mut self, place: u32) {
        let first = std::mem::replace(&mut self.first, place);
        if let Some(entry) = self.entry(place) {
            (entry.before, entry.after) = (NONE, first);
        }
        match self.entry(first) {
            Some(entry) => entry.before = place,
            None => self.last = place,
        }
    }
}
