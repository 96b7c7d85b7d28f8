//! Tags and nonces, in private memory.

use core::fmt;

use crate::{Error, SharedRead, SharedWrite};

/// A 16-byte authentication tag in private memory.
///
/// A tag is not secret, but what is compared must be what was read: a tag that lies in shared
/// memory is loaded once, by [`Tag::load`], and only the copy is used from then on.
#[derive(Clone, Copy, Eq)]
#[repr(C)]
pub struct Tag {
    // Words, because the compiler keeps them in registers. It moves bytes through memory, by stores
    // and loads of different widths right after each other, and such a load waits until the stores
    // have reached the cache.
    low: u64,
    high: u64,
}

impl Tag {
    /// The length in bytes.
    pub const LEN: usize = 16;

    /// Loads a tag, every byte once.
    ///
    /// # Errors
    /// [`Error::TagLength`] if the view has another length than 16 bytes.
    pub fn load(from: SharedRead<'_>) -> Result<Self, Error> {
        let mut tag = [0; Self::LEN];
        if from.len() != tag.len() {
            return Err(Error::TagLength { found: from.len() });
        }
        // SAFETY: the view vouches for 16 readable bytes; `tag` has 16.
        unsafe { crate::once::copy_in(from.start(), tag.as_mut_ptr(), tag.len()) };
        Ok(Self::from(tag))
    }

    /// Stores the tag, every byte once.
    ///
    /// # Errors
    /// [`Error::TagLength`] if the view has another length than 16 bytes; nothing is stored then.
    pub fn store(&self, to: SharedWrite<'_>) -> Result<(), Error> {
        if to.len() != Self::LEN {
            return Err(Error::TagLength { found: to.len() });
        }
        // SAFETY: the view vouches for 16 writable bytes.
        unsafe { crate::once::copy_out(self.as_bytes().as_ptr(), to.start(), Self::LEN) };
        Ok(())
    }

    /// Returns the bytes.
    #[inline]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        // SAFETY: two words in the order of memory, without padding, are 16 bytes.
        unsafe { &*(&raw const *self).cast() }
    }

    #[inline(always)]
    pub(crate) fn from_u128(tag: u128) -> Self {
        Self::from_words([tag as u64, (tag >> 64) as u64])
    }

    /// Returns the tag as two little-endian words.
    #[inline(always)]
    pub(crate) fn words(self) -> [u64; 2] {
        [u64::from_le(self.low), u64::from_le(self.high)]
    }

    #[inline(always)]
    pub(crate) fn from_words([low, high]: [u64; 2]) -> Self {
        Self {
            low: low.to_le(),
            high: high.to_le(),
        }
    }

    /// Returns true if `computed` is this tag, in a time that does not depend on where they differ.
    #[inline]
    pub(crate) fn matches(&self, computed: Self) -> bool {
        // One comparison of the whole difference: there is no early exit to time.
        core::hint::black_box((self.low ^ computed.low) | (self.high ^ computed.high)) == 0
    }
}

/// In a time that does not depend on where the tags differ, as when a message is opened: a caller
/// may well compare a tag that it has computed with one that it has received.
impl PartialEq for Tag {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.matches(*other)
    }
}

impl From<[u8; 16]> for Tag {
    #[inline(always)]
    fn from(bytes: [u8; 16]) -> Self {
        Self::from_u128(u128::from_le_bytes(bytes))
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tag").field(self.as_bytes()).finish()
    }
}

impl TryFrom<&[u8]> for Tag {
    type Error = Error;

    fn try_from(bytes: &[u8]) -> Result<Self, Error> {
        <[u8; 16]>::try_from(bytes)
            .map(Self::from)
            .map_err(|_| Error::TagLength { found: bytes.len() })
    }
}

/// A 96-bit nonce.
///
/// Not `Clone`: sealing consumes it, so the same value cannot seal twice by accident. A nonce that
/// repeats under one key reveals the difference of the plaintexts and the authentication key;
/// prefer a [`SealingContext`](crate::SealingContext), which counts.
///
/// One of a salt and a counter, as in ESP, is best made by [`Nonce::from_parts`].
#[derive(PartialEq, Eq)]
#[repr(C)]
pub struct Nonce {
    // Words, for the same reason as in a tag, and zero-padded: kernels load each by itself.
    low: u64,
    high: u64,
}

impl Nonce {
    /// The length in bytes.
    pub const LEN: usize = 12;

    /// A salt and, in network order, the 64-bit initialisation vector of a message: the nonce of
    /// ESP (RFC 4106, section 4).
    ///
    /// It is made in registers. An array that has just been written in these two parts and goes to
    /// [`Nonce::from`] is read in two others, which waits until the writes have reached the cache
    /// and doubles the time of a short call.
    #[inline(always)]
    pub const fn from_parts(salt: [u8; 4], iv: u64) -> Self {
        let iv = iv.swap_bytes();
        Self {
            low: (u32::from_le_bytes(salt) as u64 | iv << 32).to_le(),
            high: (iv >> 32).to_le(),
        }
    }

    /// Returns the nonce as two words in the order of memory, zero-padded.
    #[inline(always)]
    pub(crate) fn words(&self) -> &[u64; 2] {
        // SAFETY: the type is two words without padding.
        unsafe { &*(&raw const *self).cast() }
    }

    /// Returns the nonce of such words.
    #[inline(always)]
    pub(crate) fn of_words(words: &[u64; 2]) -> &Self {
        // SAFETY: as above; any words are a nonce.
        unsafe { &*words.as_ptr().cast() }
    }

    /// The same nonce, for the parts of one message.
    #[inline(always)]
    pub(crate) fn copy(&self) -> Self {
        Self { ..*self }
    }

    /// Returns the bytes.
    #[inline]
    pub const fn as_bytes(&self) -> &[u8; 12] {
        // SAFETY: the type is 16 bytes without padding.
        unsafe { &*(&raw const *self).cast() }
    }
}

impl From<[u8; 12]> for Nonce {
    #[inline(always)]
    fn from(bytes: [u8; 12]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
        Self {
            low: u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
            high: u64::from_ne_bytes([i, j, k, l, 0, 0, 0, 0]),
        }
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Nonce").field(self.as_bytes()).finish()
    }
}

impl TryFrom<&[u8]> for Nonce {
    type Error = Error;

    fn try_from(bytes: &[u8]) -> Result<Self, Error> {
        <[u8; 12]>::try_from(bytes)
            .map(Self::from)
            .map_err(|_| Error::NonceLength { found: bytes.len() })
    }
}
