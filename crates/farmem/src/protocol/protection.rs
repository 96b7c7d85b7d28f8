//! The protection of messages, as it is configured, and with its keys.

use super::aead::{Aead, Capability, Secret, Unauthorized, TRAILER};
use super::checksum::checksum;
use super::message::{Direction, Malformed};
use crate::operation::SpaceId;

/// The protection of all messages. Both sides are configured with the same one, and refuse messages
/// of any other: a message does not choose how far it is trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Authentication {
    /// No protection: the transport has a checksum, and all who can reach the node are trusted.
    #[default]
    None,
    /// A checksum of eight bytes, for lines that may corrupt messages. It does not authenticate.
    Checksum,
    /// AES-128-GCM with keys of the space, the epoch and the direction.
    Aead {
        /// The first nonce: a number from a cryptographic random source, drawn anew for each client
        /// and each start of a node. A nonce that is used twice with one key reveals what two
        /// messages differ in and lets others be forged, so that two clients must not be made from
        /// a copy of the same settings.
        first_nonce: [u8; 12],
    },
}

impl Authentication {
    /// Bytes behind the body.
    pub const fn trailer_len(self) -> usize {
        match self {
            Authentication::None => 0,
            Authentication::Checksum => CHECKSUM_LEN,
            Authentication::Aead { .. } => TRAILER,
        }
    }
}

const CHECKSUM_LEN: usize = 8;

/// The number of spaces whose expanded keys are kept at hand unless settings say otherwise.
pub(super) const KEYS_MAX: usize = 64 << 10;

/// The protection of the messages of a client or a node, with its keys: what makes messages of
/// bytes, and bytes of messages.
#[derive(Debug)]
pub struct Protection(Kind);

#[derive(Debug)]
enum Kind {
    None,
    Checksum,
    Aead(Box<Aead>),
}

impl Protection {
    /// A protection without keys: if it needs any, no message is accepted and none is written.
    pub fn new(authentication: Authentication) -> Protection {
        Protection::with_keys_max(authentication, KEYS_MAX)
    }

    /// The same with room for the expanded keys of this many spaces.
    pub(super) fn with_keys_max(authentication: Authentication, keys_max: usize) -> Protection {
        Protection(match authentication {
            Authentication::None => Kind::None,
            Authentication::Checksum => Kind::Checksum,
            Authentication::Aead { first_nonce } => {
                Kind::Aead(Box::new(Aead::new(first_nonce, keys_max)))
            }
        })
    }

    /// Adds the keys of all spaces of a node. Without encryption it has no effect.
    pub fn set_secret(&mut self, secret: Secret) {
        if let Kind::Aead(aead) = &mut self.0 {
            aead.set_secret(secret);
        }
    }

    /// Adds the keys of a space, in place of any that it had. Without encryption it has no effect.
    pub fn authorize(&mut self, capability: Capability) {
        if let Kind::Aead(aead) = &mut self.0 {
            aead.authorize(capability);
        }
    }

    /// Tells what epoch's keys are worth keeping.
    pub(super) fn set_epoch(&mut self, epoch: u64) {
        if let Kind::Aead(aead) = &mut self.0 {
            aead.set_epoch(epoch);
        }
    }

    /// Returns true if messages of the space can be written.
    #[inline]
    pub(super) fn is_authorized(&mut self, space: SpaceId) -> bool {
        match &mut self.0 {
            Kind::None | Kind::Checksum => true,
            Kind::Aead(aead) => aead.is_authorized(space),
        }
    }

    /// Returns true if messages are encrypted.
    #[inline]
    pub(super) fn is_secret(&self) -> bool {
        matches!(self.0, Kind::Aead(_))
    }

    /// The number in messages.
    #[inline]
    pub(super) fn number(&self) -> u8 {
        match self.0 {
            Kind::None => 0,
            Kind::Checksum => 1,
            Kind::Aead(_) => 2,
        }
    }

    /// Bytes behind the body.
    #[inline]
    pub(super) fn trailer_len(&self) -> usize {
        match self.0 {
            Kind::None => 0,
            Kind::Checksum => CHECKSUM_LEN,
            Kind::Aead(_) => TRAILER,
        }
    }

    /// Checks a whole message, and decrypts it in place.
    #[inline]
    pub(super) fn open(
        &mut self,
        direction: Direction,
        message: &mut [u8],
    ) -> Result<(), Malformed> {
        match &mut self.0 {
            Kind::None => Ok(()),
            Kind::Checksum => {
                let (content, sum) = message.split_last_chunk().ok_or(Malformed::Length)?;
                match u64::from_le_bytes(*sum) == checksum(content) {
                    true => Ok(()),
                    false => Err(Malformed::Checksum),
                }
            }
            Kind::Aead(aead) => aead.open(direction, message),
        }
    }

    /// Appends the trailer to the message that begins at `start`, encrypted in place. Its length is
    /// that with the trailer already.
    #[inline]
    pub(super) fn seal(
        &mut self,
        direction: Direction,
        start: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Unauthorized> {
        match &mut self.0 {
            Kind::None => Ok(()),
            Kind::Checksum => {
                let sum = checksum(&out[start..]);
                out.extend_from_slice(&sum.to_le_bytes());
                Ok(())
            }
            Kind::Aead(aead) => aead.seal(direction, start, out),
        }
    }
}
