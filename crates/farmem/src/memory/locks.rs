//! Locks that end by themselves, and the tokens that fence off their late holders.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::time::Duration;

use tare_sim::Instant;

use crate::operation::{Address, Error, SpaceId, LEASE_MAX};

/// Locks that a space may hold at a time.
pub const LOCKS_MAX: usize = 1024;

/// Expired locks that are forgotten with each new one, at most.
const EXPIRED_MAX: usize = 64;

/// The locks, by the physical address: spaces that share a page share its locks.
pub(super) struct Locks {
    held: BTreeMap<Place, Held>,
    ends: BTreeSet<End>,
    /// Those of each space. They are in the order of their ends, so that one that may be forgotten
    /// is the first of them, however many a space holds.
    spaces: HashMap<SpaceId, BTreeSet<End>>,
    last_token: u64,
}

/// A physical address.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place(u64);

/// The end of the lease of a lock.
type End = (Instant, Place);

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Place) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Place {
    fn cmp(&self, other: &Place) -> Ordering {
        #[cfg(test)]
        tests::count_comparison();
        self.0.cmp(&other.0)
    }
}

struct Held {
    by: SpaceId,
    /// The address by which the space took it.
    address: Address,
    token: u64,
    until: Instant,
}

impl Locks {
    /// All tokens will be greater than `token`.
    pub(super) fn after(token: u64) -> Locks {
        Locks {
            held: BTreeMap::new(),
            ends: BTreeSet::new(),
            spaces: HashMap::new(),
            last_token: token,
        }
    }

    /// Returns the number of locks that are held.
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    /// Returns true if there is a lock at a physical address, which may have expired.
    pub(super) fn has(&self, at: u64) -> bool {
        self.held.contains_key(&Place(at))
    }

    /// Returns the last token that was given.
    pub(super) fn last_token(&self) -> u64 {
        self.last_token
    }

    /// Checks what a lock needs besides its address, and forgets some locks that have expired: not
    /// all, because a million may do so at the same moment. Of a space that holds as many as it
    /// may, one is enough.
    pub(super) fn check_new(
        &mut self,
        now: Instant,
        space: SpaceId,
        lease: Duration,
    ) -> Result<(), Error> {
        if lease.is_zero() || lease > LEASE_MAX {
            return Err(Error::Lease);
        }
        for _ in 0..EXPIRED_MAX {
            match self.ends.first() {
                Some(&(until, at)) if until <= now => self.remove(at),
                _ => break,
            }
        }
        let of_space = self.spaces.get(&space);
        let Some(of_space) = of_space.filter(|of_space| of_space.len() >= LOCKS_MAX) else {
            return Ok(());
        };
        match of_space.first() {
            Some(&(until, at)) if until <= now => self.remove(at),
            _ => return Err(Error::Quota),
        }
        Ok(())
    }

    /// Takes a lock after [`Locks::check_new`]; returns its token. `at` is the physical address of
    /// the space's address.
    pub(super) fn lock(
        &mut self,
        now: Instant,
        space: SpaceId,
        (address, at): (Address, u64),
        lease: Duration,
    ) -> Result<u64, Error> {
        let at = Place(at);
        match self.held.get(&at) {
            Some(held) if now < held.until => {
                let retry_after = held.until.since(now);
                return Err(Error::Locked { retry_after });
            }
            Some(_) => self.remove(at),
            None => {}
        }
        self.last_token += 1;
        let (token, until) = (self.last_token, now + lease);
        self.spaces.entry(space).or_default().insert((until, at));
        let held = Held {
            by: space,
            address,
            token,
            until,
        };
        self.held.insert(at, held);
        self.ends.insert((until, at));
        Ok(token)
    }

    pub(super) fn unlock(
        &mut self,
        now: Instant,
        space: SpaceId,
        at: u64,
        token: u64,
    ) -> Result<(), Error> {
        self.check(now, space, at, token)?;
        self.remove(Place(at));
        Ok(())
    }

    /// Checks that the space holds the lock under this token and its lease has not expired.
    pub(super) fn check(
        &self,
        now: Instant,
        space: SpaceId,
        at: u64,
        token: u64,
    ) -> Result<(), Error> {
        match self.held.get(&Place(at)) {
            Some(held) if held.by == space && held.token == token && now < held.until => Ok(()),
            _ => Err(Error::StaleToken),
        }
    }

    /// Removes the locks of physical memory that is freed.
    pub(super) fn forget(&mut self, range: Range<u64>) {
        let range = Place(range.start)..Place(range.end);
        while let Some((&at, _)) = self.held.range(range.clone()).next() {
            self.remove(at);
        }
    }

    /// Removes the locks that a space took in a range of its addresses, which it cannot give back
    /// any more. All of the space are looked at, of which there are [`LOCKS_MAX`] at most.
    pub(super) fn forget_addresses(&mut self, space: SpaceId, range: &Range<Address>) {
        let of_space = self.spaces.get(&space).into_iter().flatten();
        let is_within = |at: &Place| {
            let held = self.held.get(at);
            held.is_some_and(|held| range.contains(&held.address))
        };
        let of_space = of_space.map(|&(_, at)| at);
        for at in of_space.filter(is_within).collect::<Vec<_>>() {
            self.remove(at);
        }
    }

    /// Removes the locks that a space holds.
    pub(super) fn forget_space(&mut self, space: SpaceId) {
        for (_, at) in self.spaces.get(&space).cloned().unwrap_or_default() {
            self.remove(at);
        }
    }

    fn remove(&mut self, at: Place) {
        let Some(held) = self.held.remove(&at) else {
            return;
        };
        let end = (held.until, at);
        self.ends.remove(&end);
        if let Some(of_space) = self.spaces.get_mut(&held.by) {
            of_space.remove(&end);
            if of_space.is_empty() {
                self.spaces.remove(&held.by);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static COMPARISONS: Cell<u64> = const { Cell::new(0) };
    }

    pub(super) fn count_comparison() {
        COMPARISONS.set(COMPARISONS.get() + 1);
    }

    fn comparisons<R>(of: impl FnOnce() -> R) -> (R, u64) {
        let before = COMPARISONS.get();
        let returned = of();
        (returned, COMPARISONS.get() - before)
    }

    #[test]
    fn a_lock_takes_hardly_longer_where_a_space_holds_as_many_as_it_may() {
        const SPACE: SpaceId = SpaceId(1);
        let mut locks = Locks::after(0);
        let lease = |n: u64| Duration::from_secs(10 + n % 2);
        let lock = |locks: &mut Locks, now, n: u64| {
            locks.check_new(now, SPACE, lease(n))?;
            locks.lock(now, SPACE, (8 * n, 8 * n), lease(n))
        };
        let all = LOCKS_MAX as u64;
        for n in 0..all {
            lock(&mut locks, Instant::ZERO, n).unwrap();
        }
        // The nodes of a tree have up to 11 keys: 4 levels, in three trees.
        let few = 3 * 4 * 11 * 2;
        let live = Instant::from_nanos(1);
        let (refused, steps) = comparisons(|| lock(&mut locks, live, all));
        assert_eq!(refused, Err(Error::Quota));
        assert!(steps <= few, "{steps} to refuse one");
        let (done, steps) = comparisons(|| locks.unlock(live, SPACE, 8 * 7, 8));
        assert_eq!(done, Ok(()));
        assert!(steps <= few, "{steps} to give one back");
        let (done, steps) = comparisons(|| lock(&mut locks, live, 7));
        done.unwrap();
        assert!(steps <= few, "{steps} to take one");

        // Those of another space have expired before, more than are forgotten at a time.
        const OTHER: SpaceId = SpaceId(2);
        for n in 0..2 * EXPIRED_MAX as u64 {
            let at = 1 << 20 | n;
            let second = Duration::from_secs(1);
            locks.lock(Instant::ZERO, OTHER, (at, at), second).unwrap();
        }
        let half = Instant::ZERO + Duration::from_secs(10);
        let (done, steps) = comparisons(|| lock(&mut locks, half, all));
        done.unwrap();
        let most = few * (EXPIRED_MAX as u64 + 2);
        assert!(steps <= most, "{steps} where half have expired");
        assert_eq!(locks.len(), LOCKS_MAX + EXPIRED_MAX);
    }
}
