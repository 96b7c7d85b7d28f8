//! Encryption and authentication of messages with AES-GCM.
//!
//! The key of a message is a function of the space and the epoch in its header, and of the node's
//! secret. Keys that are at hand are only a cache: neither side keeps anything per session that it
//! could not derive again.

mod cache;
mod nonces;
mod secret;

use std::collections::HashMap;
use std::fmt;

use tare_gcm::{Key, Nonce, Tag};

use self::cache::{Derived, KeyCache};
use self::nonces::{is_of, Nonces};
use super::message::{Direction, Malformed};
use crate::operation::SpaceId;
pub use secret::{Capability, Secret, TextError};

/// Bytes at the beginning of a message that are authenticated and not encrypted: kind, length,
/// space, number and epoch. The rest is: addresses tell what a client does, and the value of a
/// response is data.
pub(super) const CLEAR: usize = 32;

/// Bytes behind the body: nonce and tag.
pub(super) const TRAILER: usize = Nonce::LEN + Tag::LEN;

/// Bytes of a message's key: AES-128. With AES-256 a round trip took 9 ns more with one space, and
/// 70 with 1,000, whose round keys then take a quarter more of the cache.
const KEY_LEN: usize = 16;

/// Keys that are derived and not expanded take an eighth of the memory of those that are.
const DERIVED_PER_EXPANDED: usize = 8;

/// If there is no room for the expanded keys of a space, one of so many times they take the place
/// of others. If spaces take turns, the others are needed as soon as these.
const EXPANDED_EVERY: usize = 8;

/// Bytes of a short message, with those that are not encrypted.
const SHORT: usize = 96;

/// The keys of a client or a node.
pub(super) struct Aead {
    /// The node's; a client has capabilities instead.
    secret: Option<Secret>,
    capabilities: HashMap<SpaceId, Capability>,
    /// Expanded keys of the present epoch.
    cache: KeyCache<Key>,
    /// Keys of the present epoch of which there are too many to have them expanded.
    derived: KeyCache<Derived>,
    epoch: u64,
    nonces: Nonces,
}

impl Aead {
    pub(super) fn new(first_nonce: [u8; 12], spaces_max: usize) -> Aead {
        Aead {
            secret: None,
            capabilities: HashMap::new(),
            cache: KeyCache::new(spaces_max, EXPANDED_EVERY),
            derived: KeyCache::new(spaces_max.saturating_mul(DERIVED_PER_EXPANDED), 1),
            epoch: 0,
            nonces: Nonces::new(first_nonce),
        }
    }

    pub(super) fn set_secret(&mut self, secret: Secret) {
        self.forget_keys();
        self.secret = Some(secret);
    }

    pub(super) fn set_epoch(&mut self, epoch: u64) {
        if self.epoch != epoch {
            self.forget_keys();
            self.epoch = epoch;
        }
    }

    fn forget_keys(&mut self) {
        self.cache.clear();
        self.derived.clear();
    }

    pub(super) fn authorize(&mut self, capability: Capability) {
        self.cache.remove(capability.space());
        self.derived.remove(capability.space());
        self.capabilities.insert(capability.space(), capability);
    }

    /// Returns true if messages of the space can be opened and sealed.
    pub(super) fn is_authorized(&mut self, space: SpaceId) -> bool {
        // The cache is looked at first because it is the faster of the two.
        if let Some(key) = self.cache.find(space) {
            key.prefetch(SHORT);
            return true;
        }
        self.secret.is_some() || self.capabilities.contains_key(&space)
    }

    /// Decrypts a whole message in place if it is authentic; else its encrypted part is left as it
    /// was, or wiped.
    #[inline]
    pub(super) fn open(
        &mut self,
        direction: Direction,
        message: &mut [u8],
    ) -> Result<(), Malformed> {
        let at = message
            .len()
            .checked_sub(TRAILER)
            .ok_or(Malformed::Length)?;
        let (content, trailer) = message.split_at_mut(at);
        let (clear, hidden) = content
            .split_first_chunk_mut::<CLEAR>()
            .ok_or(Malformed::Length)?;
        let (Some(iv), Some(tag)) = (trailer.first_chunk(), trailer.last_chunk()) else {
            return Err(Malformed::Length);
        };
        // Requests and responses have one key: a sender that took the nonces of the other
        // direction would sooner or later repeat one.
        if !is_of(direction, iv) {
            return Err(Malformed::Unauthenticated);
        }
        let (nonce, tag) = (Nonce::from(*iv), Tag::from(*tag));
        let (space, epoch) = names(clear);
        if let Some(key) = self.at_hand(space, epoch) {
            let opened = key.open_in_place(&nonce, clear, hidden, &tag);
            return opened.map_err(|_| Malformed::Unauthenticated);
        }
        let open = |key: &Key| key.open_in_place(&nonce, clear, hidden, &tag).ok();
        self.with_new_key(space, epoch, open)
            .ok_or(Malformed::Unauthenticated)
    }

    /// Encrypts the message that begins at `start` and appends the trailer; its length is that with
    /// the trailer already. If there is no capability for its space, the message is removed.
    #[inline]
    pub(super) fn seal(
        &mut self,
        direction: Direction,
        start: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Unauthorized> {
        let sealed = self.seal_in_place(direction, &mut out[start..]);
        let Some((nonce, tag)) = sealed else {
            out.truncate(start);
            return Err(Unauthorized);
        };
        out.extend_from_slice(&nonce);
        out.extend_from_slice(tag.as_bytes());
        Ok(())
    }

    #[inline]
    fn seal_in_place(
        &mut self,
        direction: Direction,
        message: &mut [u8],
    ) -> Option<([u8; Nonce::LEN], Tag)> {
        let (clear, hidden) = message.split_first_chunk_mut::<CLEAR>()?;
        let (space, epoch) = names(clear);
        let nonce = self.nonces.take(direction);
        let bytes = *nonce.as_bytes();
        let seal = |key: &Key| key.seal_in_place(nonce, clear, hidden).ok();
        let tag = match self.at_hand(space, epoch) {
            Some(key) => seal(key),
            None => self.with_new_key(space, epoch, seal),
        };
        Some((bytes, tag?))
    }

    /// The expanded key of a space, if it is in the cache.
    #[inline]
    fn at_hand(&self, space: SpaceId, epoch: u64) -> Option<&Key> {
        self.cache.find(space).filter(|_| epoch == self.epoch)
    }

    /// Expands the key of a message because it is not at hand, and uses it. Keys of the present
    /// epoch are kept if that succeeded: a forged message takes time, and no other space's place.
    #[cold]
    fn with_new_key<T>(
        &mut self,
        space: SpaceId,
        epoch: u64,
        use_key: impl FnOnce(&Key) -> Option<T>,
    ) -> Option<T> {
        let known = self.derived.find(space).filter(|_| epoch == self.epoch);
        let (key, derived) = match known {
            Some(derived) => (derived.expand()?, None),
            None => {
                let derived = match &self.secret {
                    Some(secret) => secret.capability(space).key(epoch),
                    None => self.capabilities.get(&space)?.key(epoch),
                };
                (Key::new(&derived[..KEY_LEN]).ok()?, Some(derived))
            }
        };
        let used = use_key(&key)?;
        // Epoch 0 is that of a client that does not know the node's yet.
        if epoch == self.epoch && epoch != 0 {
            if let Some(derived) = derived {
                let derived = || Some(Derived::new(&derived));
                self.derived.insert(space, derived);
            }
            self.cache.insert(space, || Some(key));
        }
        Some(used)
    }
}

impl fmt::Debug for Aead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aead").finish_non_exhaustive()
    }
}

/// A message was not written because there is no capability for its space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unauthorized;

impl fmt::Display for Unauthorized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("there is no capability for the space: authorize it first")
    }
}

impl std::error::Error for Unauthorized {}

/// The space and the epoch of a message, which are at the same places in both directions.
#[inline]
fn names(clear: &[u8; CLEAR]) -> (SpaceId, u64) {
    let words = clear.as_chunks::<8>().0;
    let word = |n: usize| u64::from_le_bytes(words[n]);
    (SpaceId(word(1)), word(3))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message without a body, of a space and an epoch.
    fn message(space: u64, epoch: u64) -> Vec<u8> {
        [1, space, 3, epoch, 5, 6].map(u64::to_le_bytes).concat()
    }

    fn aead() -> Aead {
        let mut aead = Aead::new([7; 12], 16);
        aead.set_secret(Secret::new(&[1; 32]));
        aead.set_epoch(9);
        aead
    }

    #[test]
    fn only_authentic_messages_of_the_present_epoch_leave_keys_behind() {
        let (mut sender, mut receiver) = (aead(), aead());
        let direction = Direction::Request;
        for epoch in [0, 8, 9] {
            let mut sealed = message(1, epoch);
            assert_eq!(sender.seal(direction, 0, &mut sealed), Ok(()));
            let mut forged = sealed.clone();
            forged[40] ^= 1;
            let refused = receiver.open(direction, &mut forged);
            assert_eq!(refused, Err(Malformed::Unauthenticated));
            assert!(receiver.at_hand(SpaceId(1), epoch).is_none());
            assert_eq!(receiver.open(direction, &mut sealed), Ok(()));
            assert_eq!(sealed[..48], message(1, epoch));
            let kept = receiver.at_hand(SpaceId(1), epoch).is_some();
            assert_eq!(kept, epoch == 9);
        }
    }

    #[test]
    fn keys_at_hand_are_those_that_would_be_derived() {
        let (mut one, mut other) = (aead(), aead());
        for epoch in [9, 9, 9, 9, 10, 10] {
            one.set_epoch(epoch);
            other.set_epoch(epoch);
            for space in [0, 1] {
                for direction in [Direction::Request, Direction::Response] {
                    let mut sealed = message(space, epoch);
                    assert_eq!(one.seal(direction, 0, &mut sealed), Ok(()));
                    assert_eq!(aead().open(direction, &mut sealed.clone()), Ok(()));
                    assert_eq!(other.open(direction, &mut sealed), Ok(()));
                    assert_eq!(sealed[..48], message(space, epoch));
                    std::mem::swap(&mut one, &mut other);
                }
            }
        }
    }

    /// Both have one key, and these messages one clear part.
    #[test]
    fn a_message_with_a_nonce_of_the_other_direction_is_refused() {
        let (request, response) = (Direction::Request, Direction::Response);
        for (direction, other) in [(request, response), (response, request)] {
            let mut sealed = message(1, 9);
            assert_eq!(aead().seal(direction, 0, &mut sealed), Ok(()));
            let refused = aead().open(other, &mut sealed.clone());
            assert_eq!(refused, Err(Malformed::Unauthenticated));
            assert_eq!(aead().open(direction, &mut sealed), Ok(()));
        }
    }

    #[test]
    fn a_new_secret_or_capability_replaces_what_is_at_hand() {
        let seal = |aead: &mut Aead| {
            let mut sealed = message(1, 9);
            assert_eq!(aead.seal(Direction::Request, 0, &mut sealed), Ok(()));
            sealed
        };
        let (mut node, mut client) = (aead(), Aead::new([8; 12], 16));
        client.set_epoch(9);
        let first = Secret::new(&[1; 32]).capability(SpaceId(1));
        let second = Secret::new(&[2; 32]).capability(SpaceId(1));
        client.authorize(first);
        let mut sealed = seal(&mut client);
        assert_eq!(node.open(Direction::Request, &mut sealed), Ok(()));
        client.authorize(second);
        let mut sealed = seal(&mut client);
        let refused = node.open(Direction::Request, &mut sealed.clone());
        assert_eq!(refused, Err(Malformed::Unauthenticated));
        node.set_secret(Secret::new(&[2; 32]));
        assert_eq!(node.open(Direction::Request, &mut sealed), Ok(()));
    }
}
