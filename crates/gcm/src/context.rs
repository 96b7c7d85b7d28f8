//! Keys that count their own nonces.

use crate::{Error, Key, Nonce, SharedWrite, Tag};
use core::fmt;

/// The way in which a protocol makes a 96-bit nonce of a 64-bit sequence number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum NonceScheme {
    /// Four bytes of salt, then the sequence number, big-endian: ESP (RFC 4106, section 4; RFC 8750
    /// for the implicit form).
    Salt([u8; 4]),
    /// Twelve bytes of initialisation vector, the sequence number exclusive-ored onto the last
    /// eight, big-endian: TLS 1.3 (RFC 8446, section 5.3).
    Xor([u8; 12]),
}

impl NonceScheme {
    /// Returns the nonce of a sequence number, for opening messages of the peer.
    #[inline]
    pub fn nonce(&self, sequence: u64) -> Nonce {
        match *self {
            NonceScheme::Salt(salt) => Nonce::from_parts(salt, sequence),
            NonceScheme::Xor([a, b, c, d, e, f, g, h, i, j, k, l]) => {
                let iv = u64::from_be_bytes([e, f, g, h, i, j, k, l]);
                Nonce::from_parts([a, b, c, d], iv ^ sequence)
            }
        }
    }
}

impl fmt::Debug for NonceScheme {
    /// Writes the kind alone: salt and initialisation vector are agreed on with the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NonceScheme::Salt(_) => "Salt(..)",
            NonceScheme::Xor(_) => "Xor(..)",
        })
    }
}

/// A key for sealing with its own counter: every message gets the next sequence number, and none is
/// used twice.
///
/// The context owns its key: take nonces for it from [`SealingContext::take`] alone. Two contexts
/// must not be made from the same key bytes and the same scheme with overlapping sequence numbers.
pub struct SealingContext {
    key: Key,
    scheme: NonceScheme,
    /// `None` after the last number.
    next: Option<u64>,
    last: u64,
}

impl SealingContext {
    /// Returns a context whose first message has the sequence number `first` and whose last one
    /// `last`.
    ///
    /// Protocols bound how much one key may seal: for TLS 1.3 with AES-GCM 2^24.5 full records (RFC
    /// 8446, section 5.5), for ESP the sequence numbers.
    pub fn new(key: Key, scheme: NonceScheme, first: u64, last: u64) -> Self {
        Self {
            key,
            scheme,
            next: (first <= last).then_some(first),
            last,
        }
    }

    /// Returns the sequence number of the next message; `None` if all are used.
    pub fn next_sequence(&self) -> Option<u64> {
        self.next
    }

    /// Takes the next sequence number and its nonce, for a [`SealPacket`](crate::SealPacket) with
    /// [`SealingContext::key`].
    ///
    /// # Errors
    /// [`Error::NoncesExhausted`].
    #[inline]
    pub fn take(&mut self) -> Result<(u64, Nonce), Error> {
        let sequence = self.next.ok_or(Error::NoncesExhausted)?;
        self.next = if sequence < self.last {
            Some(sequence + 1)
        } else {
            None
        };
        Ok((sequence, self.scheme.nonce(sequence)))
    }

    /// Returns the key, for batches. Sealing with it under any nonce but one from
    /// [`SealingContext::take`] breaks the promise.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// [`Key::seal`] with the next sequence number, which is returned with the tag.
    ///
    /// `aad` makes the additional data from the sequence number, which ESP and DTLS put there.
    ///
    /// # Errors
    /// [`Error::NoncesExhausted`], and those of [`Key::seal`]; the sequence number is used up then
    /// too.
    pub fn seal<A: AsRef<[u8]>>(
        &mut self,
        aad: impl FnOnce(u64) -> A,
        plaintext: &[u8],
        out: SharedWrite<'_>,
    ) -> Result<(u64, Tag), Error> {
        let (sequence, nonce) = self.take()?;
        let tag = self
            .key
            .seal(nonce, aad(sequence).as_ref(), plaintext, out)?;
        Ok((sequence, tag))
    }

    /// [`Key::seal_in_place`] with the next sequence number.
    ///
    /// # Errors
    /// As [`SealingContext::seal`].
    pub fn seal_in_place<A: AsRef<[u8]>>(
        &mut self,
        aad: impl FnOnce(u64) -> A,
        data: &mut [u8],
    ) -> Result<(u64, Tag), Error> {
        let (sequence, nonce) = self.take()?;
        let tag = self
            .key
            .seal_in_place(nonce, aad(sequence).as_ref(), data)?;
        Ok((sequence, tag))
    }

    /// [`Key::seal_scattered`] with the next sequence number.
    ///
    /// # Errors
    /// As [`SealingContext::seal`].
    pub fn seal_scattered<A: AsRef<[u8]>>(
        &mut self,
        aad: impl FnOnce(u64) -> A,
        plaintext: &[&[u8]],
        out: &mut [SharedWrite<'_>],
    ) -> Result<(u64, Tag), Error> {
        let (sequence, nonce) = self.take()?;
        let tag = self
            .key
            .seal_scattered(nonce, aad(sequence).as_ref(), plaintext, out)?;
        Ok((sequence, tag))
    }
}

impl fmt::Debug for SealingContext {
    /// Writes the size and path of the key, the kind of nonces, and the sequence numbers that are
    /// left.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealingContext")
            .field("key", &self.key)
            .field("scheme", &self.scheme)
            .field("next", &self.next)
            .field("last", &self.last)
            .finish()
    }
}
