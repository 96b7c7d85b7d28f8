//! Manual keys that were in use and are not any more: how far their sequence numbers went, and
//! where their IVs began. An IV used twice would give the key away, and a packet accepted twice
//! would be a replay.
//!
//! A key stays as long as a worker may use it. Then a keyed digest of it is left, and of those the
//! latest [`MAX`] in each direction.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, SystemTime};

use tare_memory::{Placed, Shared};

use crate::config::SaKey;
use crate::control::totals::{Counting, Traffic};
use crate::dataplane::{Highest, InboundSa, OutboundSa};
use crate::exchange::hmac::Hmac;
use crate::handover::{Digest, Used};

/// The most keys of one direction that are remembered: three for each of 20,000 routes.
pub(super) const MAX: usize = 1 << 16;

pub(super) struct Given {
    /// The key of the digests.
    key: [u8; 32],
    hmac: Hmac,
    pub(super) outbound: Numbers<OutboundSa>,
    pub(super) inbound: Numbers<InboundSa>,
    /// Returns the time of the system's clock, at which the IVs of a key begin that is not known.
    pub(super) since_1970: fn() -> Duration,
}

impl Default for Given {
    fn default() -> Given {
        // 128 bits from the system, stretched: enough for keys of 128 bits.
        let random = RandomState::new();
        let mut key = [0; 32];
        for (number, to) in (0u8..).zip(key.as_chunks_mut().0) {
            *to = random.hash_one(number).to_ne_bytes();
        }
        Given::with_key(key)
    }
}

impl Given {
    fn with_key(key: [u8; 32]) -> Given {
        Given {
            key,
            hmac: Hmac::new(&key),
            outbound: Numbers::default(),
            inbound: Numbers::default(),
            // A clock before 1970 is one that was never set.
            since_1970: || SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default(),
        }
    }

    /// Returns the digest of what makes a nonce unique but for the number.
    pub(super) fn outbound_digest(&self, key: &SaKey) -> Digest {
        self.digest(&[b"out", key.key(), &key.salt()])
    }

    /// Returns the digest of all that a packet must be sealed with to be authentic.
    pub(super) fn inbound_digest(&self, key: &SaKey, spi: u32, esn: bool) -> Digest {
        let parts = [&spi.to_be_bytes()[..], &[u8::from(esn)]];
        self.digest(&[b"in", key.key(), &key.salt(), parts[0], parts[1]])
    }

    fn digest(&self, parts: &[&[u8]]) -> Digest {
        let code = self.hmac.of(parts);
        code.first_chunk().copied().unwrap_or_default()
    }

    /// Lets go of the SAs that no worker uses any more. `count` gets what they have counted since
    /// they were removed, and the name of the route.
    pub(super) fn settle(&mut self, mut count: impl FnMut(&str, bool, Traffic)) {
        self.outbound.settle(|route, more| count(route, true, more));
        self.inbound.settle(|route, more| count(route, false, more));
    }

    pub(super) fn are_leaving(&self) -> bool {
        !(self.outbound.leaving.is_empty() && self.inbound.leaving.is_empty())
    }

    /// Returns what another process needs. No worker may use an SA meanwhile.
    pub(super) fn export(&self) -> Used {
        Used {
            key: self.key,
            outbound: self.outbound.all(),
            inbound: self.inbound.all(),
        }
    }

    /// Goes on in the place of another process; to be called before any SA is removed.
    pub(super) fn import(&mut self, used: &Used) {
        *self = Given::with_key(used.key);
        for &(digest, highest) in &used.outbound {
            self.outbound.remember(digest, highest);
        }
        for &(digest, highest) in &used.inbound {
            self.inbound.remember(digest, highest);
        }
    }
}

/// The numbers of removed SAs of one direction.
pub(super) struct Numbers<S: Placed> {
    /// The highest numbers by digest, with the time at which they were noted.
    last: HashMap<Digest, (Highest, u64)>,
    time: u64,
    leaving: HashMap<Digest, Vec<Removed<S>>>,
}

/// An SA that workers may still use.
struct Removed<S: Placed> {
    sa: Shared<S>,
    route: String,
    counted: Traffic,
}

impl<S: Placed> Default for Numbers<S> {
    fn default() -> Numbers<S> {
        Numbers {
            last: HashMap::new(),
            time: 0,
            leaving: HashMap::new(),
        }
    }
}

impl<S: Placed + Counting> Numbers<S> {
    /// Takes an SA of a route that is being removed, of which `counted` is known.
    pub(super) fn leave(&mut self, digest: Digest, sa: Shared<S>, route: &str, counted: Traffic) {
        let route = route.to_owned();
        let removed = Removed { sa, route, counted };
        self.leaving.entry(digest).or_default().push(removed);
    }

    /// Returns the highest numbers of the SAs with this digest; `None` if there was none.
    pub(super) fn highest(&self, digest: &Digest) -> Option<Highest> {
        let known = self.last.get(digest).map(|(highest, _)| *highest);
        let leaving = self.leaving.get(digest).into_iter().flatten();
        let leaving = leaving.map(|removed| removed.sa.highest());
        known.into_iter().chain(leaving).reduce(Highest::and)
    }

    /// Remembers the numbers of a key. Of too many the older half is forgotten.
    pub(super) fn remember(&mut self, digest: Digest, highest: Highest) {
        self.time += 1;
        let before = self.last.get(&digest).map(|(before, _)| *before);
        let highest = before.map_or(highest, |before| before.and(highest));
        self.last.insert(digest, (highest, self.time));
        if self.last.len() > MAX {
            let mut times: Vec<u64> = self.last.values().map(|(_, time)| *time).collect();
            let (_, &mut middle, _) = times.select_nth_unstable(MAX / 2);
            self.last.retain(|_, (_, time)| *time > middle);
        }
    }

    fn settle(&mut self, mut count: impl FnMut(&str, Traffic)) {
        let mut settled = Vec::new();
        self.leaving.retain(|digest, all| {
            all.retain_mut(|removed| {
                let Some(sa) = removed.sa.get_mut() else {
                    return true;
                };
                settled.push((*digest, sa.highest()));
                count(&removed.route, sa.traffic().since(removed.counted));
                false
            });
            !all.is_empty()
        });
        for (digest, highest) in settled {
            self.remember(digest, highest);
        }
    }

    fn all(&self) -> Vec<(Digest, Highest)> {
        let leaving = self.leaving.keys();
        let known = self.last.keys();
        let only_leaving = leaving.filter(|digest| !self.last.contains_key(*digest));
        known
            .chain(only_leaving)
            .filter_map(|digest| Some((*digest, self.highest(digest)?)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_that_are_remembered_are_bounded_and_the_oldest_are_forgotten() {
        let mut numbers = Numbers::<OutboundSa>::default();
        let digest = |n: usize| (n as u128).to_be_bytes();
        let highest = |number, iv_base| Highest { number, iv_base };
        for n in 0..3 * MAX {
            numbers.remember(digest(n), highest(n as u64, 1));
            assert!(numbers.last.len() <= MAX);
            assert_eq!(numbers.highest(&digest(n)), Some(highest(n as u64, 1)));
        }
        assert_eq!(numbers.highest(&digest(0)), None);
        let latest = 3 * MAX - MAX / 2..3 * MAX;
        assert!(latest
            .into_iter()
            .all(|n| numbers.highest(&digest(n)).is_some()));
        numbers.remember(digest(7), highest(9, 1));
        numbers.remember(digest(7), highest(8, 2));
        assert_eq!(numbers.highest(&digest(7)), Some(highest(9, 2)));
    }
}
