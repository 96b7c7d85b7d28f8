//! Encryption and authentication of messages with AES-GCM.
//!
//! The key of a message is a function of the space, the epoch and the direction in its header, and
//! of the node's secret. Keys that are at hand are only a cache: neither side keeps anything per
//! session that it could not derive again.

mod cache;
mod nonces;
mod secret;

use std::collections::HashMap;
use std::fmt;

use tare_gcm::{Key, Nonce, Tag};

use self::cache::{KeyCache, Pair};
use self::nonces::Nonces;
use super::message::{Direction, Malformed};
use crate::operation::SpaceId;
pub use secret::{Capability, Secret, TextError};

/// Bytes at the beginning of a message that are authenticated and not encrypted: kind, length,
/// space, number and epoch. The rest is: addresses tell what a client does, and the value of a
/// response is data.
pub(super) const CLEAR: usize = 32;

/// Bytes behind the body: nonce and tag.
pub(super) const TRAILER: usize = Nonce::LEN + Tag::LEN;

/// The keys of a client or a node.
pub(super) struct Aead {
    /// The node's; a client has capabilities instead.
    secret: Option<Secret>,
    capabilities: HashMap<SpaceId, Capability>,
    /// Keys of the present epoch.
    cache: KeyCache,
    epoch: u64,
    nonces: Nonces,
}

impl Aead {
    pub(super) fn new(first_nonce: [u8; 12], spaces_max: usize) -> Aead {
        Aead {
            secret: None,
            capabilities: HashMap::new(),
            cache: KeyCache::new(spaces_max),
            epoch: 0,
            nonces: Nonces::new(first_nonce),
        }
    }

    pub(super) fn set_secret(&mut self, secret: Secret) {
        self.cache.clear();
        self.secret = Some(secret);
    }

    pub(super) fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    pub(super) fn authorize(&mut self, capability: Capability) {
        self.cache.remove(capability.space());
        self.capabilities.insert(capability.space(), capability);
    }

    /// Returns true if messages of the space can be opened and sealed.
    pub(super) fn is_authorized(&mut self, space: SpaceId) -> bool {
        // The cache is looked at first because it is the faster of the two.
        self.cache.find(space, self.epoch).is_some()
            || self.secret.is_some()
            || self.capabilities.contains_key(&space)
    }

    /// Decrypts a whole message in place if it is authentic; else its encrypted part is wiped.
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
        let (nonce, tag) = (Nonce::from(*iv), Tag::from(*tag));
        let (space, epoch) = names(clear);
        if let Some(pair) = self.cache.find(space, epoch) {
            let key = pair.key(direction);
            let opened = key.open_in_place(&nonce, clear, hidden, &tag);
            return opened.map_err(|_| Malformed::Unauthenticated);
        }
        let open = |key: &Key| key.open_in_place(&nonce, clear, hidden, &tag).ok();
        self.with_new_key(space, epoch, direction, open)
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
        let nonce = self.nonces.take();
        let bytes = *nonce.as_bytes();
        let tag = match self.cache.find(space, epoch) {
            Some(pair) => pair.key(direction).seal_in_place(nonce, clear, hidden).ok(),
            None => self.with_new_key(space, epoch, direction, |key| {
                key.seal_in_place(nonce, clear, hidden).ok()
            }),
        };
        Some((bytes, tag?))
    }

    /// Derives the key of a message because it is not at hand, and uses it. Keys of the present
    /// epoch are kept if that succeeded: a forged message takes time, and no other space's place.
    #[cold]
    fn with_new_key<T>(
        &mut self,
        space: SpaceId,
        epoch: u64,
        direction: Direction,
        use_key: impl FnOnce(&Key) -> Option<T>,
    ) -> Option<T> {
        let capability = match &self.secret {
            Some(secret) => secret.capability(space),
            None => self.capabilities.get(&space)?.clone(),
        };
        let new = |direction| Key::new(&capability.key(epoch, direction)[..]).ok();
        let key = new(direction)?;
        let used = use_key(&key)?;
        if epoch == self.epoch {
            let other = new(direction.reverse())?;
            let (request, response) = match direction {
                Direction::Request => (key, other),
                Direction::Response => (other, key),
            };
            self.cache.insert(space, epoch, Pair { request, response });
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
