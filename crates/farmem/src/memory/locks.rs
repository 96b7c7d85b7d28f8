//! Locks that end by themselves, and the tokens that fence off their late holders.

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
    held: BTreeMap<u64, Held>,
    ends: BTreeSet<(Instant, u64)>,
    spaces: HashMap<SpaceId, BTreeSet<u64>>,
    last_token: u64,
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

    /// Returns the last token that was given.
    pub(super) fn last_token(&self) -> u64 {
        self.last_token
    }

    /// Checks what a lock needs besides its address, and forgets some locks that have expired: not
    /// all, because a million may do so at the same moment.
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
        if self.is_full(space) {
            let of_space = self.spaces.get(&space).into_iter().flatten().copied();
            let is_over = |at: &u64| self.held.get(at).is_some_and(|held| held.until <= now);
            for at in of_space.filter(is_over).collect::<Vec<_>>() {
                self.remove(at);
            }
        }
        match self.is_full(space) {
            true => Err(Error::Quota),
            false => Ok(()),
        }
    }

    /// Returns true if a space has as many locks as it may, with expired ones.
    fn is_full(&self, space: SpaceId) -> bool {
        let held = self.spaces.get(&space);
        held.is_some_and(|held| held.len() >= LOCKS_MAX)
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
        match self.held.get(&at) {
            Some(held) if now < held.until => {
                let retry_after = held.until.since(now);
                return Err(Error::Locked { retry_after });
            }
            Some(_) => self.remove(at),
            None => {}
        }
        self.spaces.entry(space).or_default().insert(at);
        self.last_token += 1;
        let (token, until) = (self.last_token, now + lease);
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
        self.remove(at);
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
        match self.held.get(&at) {
            Some(held) if held.by == space && held.token == token && now < held.until => Ok(()),
            _ => Err(Error::StaleToken),
        }
    }

    /// Removes the locks of physical memory that is freed.
    pub(super) fn forget(&mut self, range: Range<u64>) {
        while let Some((&at, _)) = self.held.range(range.clone()).next() {
            self.remove(at);
        }
    }

    /// Removes the locks that a space took in a range of its addresses, which it cannot give back
    /// any more.
    pub(super) fn forget_addresses(&mut self, space: SpaceId, range: &Range<Address>) {
        let of_space = self.spaces.get(&space).into_iter().flatten().copied();
        let is_within = |at: &u64| {
            let held = self.held.get(at);
            held.is_some_and(|held| range.contains(&held.address))
        };
        for at in of_space.filter(is_within).collect::<Vec<_>>() {
            self.remove(at);
        }
    }

    /// Removes the locks that a space holds.
    pub(super) fn forget_space(&mut self, space: SpaceId) {
        for at in self.spaces.get(&space).cloned().unwrap_or_default() {
            self.remove(at);
        }
    }

    fn remove(&mut self, at: u64) {
        let Some(held) = self.held.remove(&at) else {
            return;
        };
        self.ends.remove(&(held.until, at));
        if let Some(of_space) = self.spaces.get_mut(&held.by) {
            of_space.remove(&at);
            if of_space.is_empty() {
                self.spaces.remove(&held.by);
            }
        }
    }
}
