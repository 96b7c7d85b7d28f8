//! Tags and nonces, in private memory.

use crate::{Error, SharedRead, SharedWrite};

/// A 16-byte authentication tag in private memory.
///
/// A tag is not secret, but what is compared must be what was read: a tag that lies in shared memory is
/// loaded once, by [`Tag::load`], and only the copy is used from then on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag([u8; 16]);

impl Tag {
    /// The length in bytes.
    pub const LEN: usize = 16;

    /// Loads a tag, every byte once.
    ///
    /// # Errors
    /// [`Error::TagLength`] when the view has another length than 16 bytes.
    pub fn load(from: SharedRead<'_>) -> Result<Self, Error> {
        let mut tag = [0; Self::LEN];
        if from.len() != tag.len() {
            return Err(Error::TagLength { found: from.len() });
        }
        // SAFETY: the view vouches for 16 readable bytes; `tag` has 16.
        unsafe { crate::once::copy_in(from.start(), tag.as_mut_ptr(), tag.len()) };
        Ok(Self(tag))
    }

    /// Stores the tag, every byte once.
    ///
    /// # Errors
    /// [`Error::TagLength`] when the view has another length than 16 bytes; nothing is stored then.
    pub fn store(&self, to: SharedWrite<'_>) -> Result<(), Error> {
        if to.len() != self.0.len() {
            return Err(Error::TagLength { found: to.len() });
        }
        // SAFETY: the view vouches for 16 writable bytes.
        unsafe { crate::once::copy_out(self.0.as_ptr(), to.start(), self.0.len()) };
        Ok(())
    }

    /// The bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// As two little-endian words.
    #[inline(always)]
    pub(crate) fn words(self) -> [u64; 2] {
        let tag = u128::from_le_bytes(self.0);
        [tag as u64, (tag >> 64) as u64]
    }

    #[inline(always)]
    pub(crate) fn from_words([low, high]: [u64; 2]) -> Self {
        Self::from_u128(u128::from(low) | u128::from(high) << 64)
    }

    #[inline(always)]
    pub(crate) fn from_u128(tag: u128) -> Self {
        Self(tag.to_le_bytes())
    }

    /// Whether `computed` is this tag, in a time that does not depend on where they differ.
    #[inline]
    pub(crate) fn matches(&self, computed: u128) -> bool {
        // One comparison of the whole difference: there is no early exit to time.
        let difference = u128::from_le_bytes(self.0) ^ computed;
        core::hint::black_box(difference as u64 | (difference >> 64) as u64) == 0
    }
}

impl From<[u8; 16]> for Tag {
    fn from(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl TryFrom<&[u8]> for Tag {
    type Error = Error;

    fn try_from(bytes: &[u8]) -> Result<Self, Error> {
        Ok(Self(
            bytes
                .try_into()
                .map_err(|_| Error::TagLength { found: bytes.len() })?,
        ))
    }
}

/// A 96-bit nonce.
///
/// Not `Clone`: sealing consumes it, so the same value cannot seal twice by accident. A nonce that
/// repeats under one key gives away the plaintexts' difference and the authentication key; prefer a
/// [`SealingContext`](crate::SealingContext), which counts.
#[derive(Debug, PartialEq, Eq)]
pub struct Nonce(pub(crate) [u8; 12]);

impl Nonce {
    /// The length in bytes.
    pub const LEN: usize = 12;

    /// As two little-endian words, zero-padded.
    #[inline(always)]
    pub(crate) fn words(self) -> [u64; 2] {
        let n = self.0;
        [
            u64::from_le_bytes([n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7]]),
            u64::from(u32::from_le_bytes([n[8], n[9], n[10], n[11]])),
        ]
    }

    #[inline(always)]
    pub(crate) fn from_words([low, high]: [u64; 2]) -> Self {
        let mut nonce = [0; Self::LEN];
        nonce[..8].copy_from_slice(&low.to_le_bytes());
        nonce[8..].copy_from_slice(&(high as u32).to_le_bytes());
        Self(nonce)
    }

    /// The bytes.
    pub const fn as_bytes(&self) -> &[u8; 12] {
        &self.0
    }
}

impl From<[u8; 12]> for Nonce {
    fn from(bytes: [u8; 12]) -> Self {
        Self(bytes)
    }
}

impl TryFrom<&[u8]> for Nonce {
    type Error = Error;

    fn try_from(bytes: &[u8]) -> Result<Self, Error> {
        Ok(Self(
            bytes
                .try_into()
                .map_err(|_| Error::NonceLength { found: bytes.len() })?,
        ))
    }
}
