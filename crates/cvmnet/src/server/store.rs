//! The key-value store behind memcached and RESP.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tare_sim::Instant;

use super::lru::Lru;
use super::output::Body;

/// The bytes that an item counts beside its key and value.
pub const OVERHEAD: usize = 160;

/// A value with what belongs to it.
#[derive(Clone, Debug)]
pub struct Item {
    /// The value.
    pub body: Body,
    /// The number that memcached's clients store beside a value.
    pub flags: u32,
    /// The time at which it is gone.
    pub expires: Instant,
    /// A number that no other version of any item had.
    pub cas: u64,
}

/// The error of a value that is larger than the whole store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

/// The counters of a store, since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounters {
    /// Reads that found their key.
    pub hits: u64,
    /// Reads that did not.
    pub misses: u64,
    /// Values that were stored.
    pub stored: u64,
    /// Items removed to make room.
    pub evicted: u64,
}

/// A table of values by key, of at most so many bytes: what was used longest ago makes room.
///
/// An item past its time is removed when its key is used, or by eviction.
pub struct Store {
    items: Lru<Item>,
    bytes_max: usize,
    last_cas: u64,
    /// The time at which all that is older is gone.
    flush_at: Instant,
    counters: StoreCounters,
    /// The bytes that unfinished requests hold on the connections of all servers over this store.
    unfinished: Arc<AtomicUsize>,
}

/// Returns the store that connections share, on one thread or several. A command that reads and
/// writes keeps it until it is done, so that no other one comes between.
pub(super) fn lock(store: &Mutex<Store>) -> MutexGuard<'_, Store> {
    store.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    /// Returns an empty store of at most `bytes_max` bytes of keys, values and [`OVERHEAD`].
    pub fn new(bytes_max: usize) -> Store {
        Store {
            items: Lru::new(),
            bytes_max,
            last_cas: 0,
            flush_at: Instant::NEVER,
            counters: StoreCounters::default(),
            unfinished: Arc::default(),
        }
    }

    /// Returns the item of a key, which is now the last used, and counts a hit or a miss.
    pub fn get(&mut self, key: &[u8], now: Instant) -> Option<&Item> {
        self.expire(key, now);
        let item = self.items.get(key);
        match item {
            Some(_) => self.counters.hits += 1,
            None => self.counters.misses += 1,
        }
        item.map(|item| &*item)
    }

    /// Returns the item of a key without counting it as used.
    pub fn peek(&mut self, key: &[u8], now: Instant) -> Option<&Item> {
        self.expire(key, now);
        self.items.peek(key)
    }

    /// Returns true if a value of a length can be stored with a key.
    pub fn fits(&self, key: &[u8], len: usize) -> bool {
        key.len() + len + OVERHEAD <= self.bytes_max
    }

    /// Stores a value, evicts what was used longest ago until all fit, and returns the item's
    /// `cas`.
    ///
    /// # Errors
    /// [`TooLarge`] if it does not fit alone; an older value of the key is removed, for it is not
    /// what was last stored.
    pub fn set(
        &mut self,
        key: &[u8],
        mut body: Body,
        flags: u32,
        expires: Instant,
        now: Instant,
    ) -> Result<u64, TooLarge> {
        self.expire(key, now);
        if !self.fits(key, body.len()) {
            self.items.remove(key);
            return Err(TooLarge);
        }
        // The room that a vector has to grow counts, and is given up where it is too much.
        if !self.fits(key, body.capacity()) {
            Arc::make_mut(&mut body).shrink_to_fit();
        }
        let weight = key.len() + body.capacity() + OVERHEAD;
        self.last_cas += 1;
        self.counters.stored += 1;
        let item = Item {
            body,
            flags,
            expires,
            cas: self.last_cas,
        };
        self.items.insert(key, item, weight);
        while self.items.weight() > self.bytes_max && self.items.remove_oldest() {
            self.counters.evicted += 1;
        }
        Ok(self.last_cas)
    }

    /// Removes an item and returns it.
    pub fn remove(&mut self, key: &[u8], now: Instant) -> Option<Item> {
        self.expire(key, now);
        self.items.remove(key)
    }

    /// Changes when an item expires, which may be now; returns false if there is none.
    pub fn touch(&mut self, key: &[u8], expires: Instant, now: Instant) -> bool {
        self.expire(key, now);
        let item = self.items.get(key);
        let is_there = item.map(|item| item.expires = expires).is_some();
        self.expire(key, now);
        is_there
    }

    /// Removes all items that are there at a time, now or later; a later call replaces the time.
    pub fn flush(&mut self, at: Instant, now: Instant) {
        self.flush_at = at;
        self.flush_if_due(now);
    }

    /// The number of items. Some may have expired.
    pub fn len(&mut self, now: Instant) -> usize {
        self.flush_if_due(now);
        self.items.len()
    }

    /// The bytes of keys, values and [`OVERHEAD`].
    pub fn bytes(&self) -> usize {
        self.items.weight()
    }

    /// The most of [`Store::bytes`].
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// The bytes that unfinished requests hold on the connections of all servers over this store.
    pub(super) fn unfinished(&self) -> &Arc<AtomicUsize> {
        &self.unfinished
    }

    /// The counters since the start.
    pub fn counters(&self) -> StoreCounters {
        self.counters
    }

    fn expire(&mut self, key: &[u8], now: Instant) {
        self.flush_if_due(now);
        if self.items.peek(key).is_some_and(|item| item.expires <= now) {
            self.items.remove(key);
        }
    }

    fn flush_if_due(&mut self, now: Instant) {
        if self.flush_at <= now {
            self.flush_at = Instant::NEVER;
            self.items = Lru::new();
        }
    }
}
