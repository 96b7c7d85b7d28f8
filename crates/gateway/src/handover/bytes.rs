//! Numbers and keys as bytes, big-endian, in memory that is wiped.

use std::net::IpAddr;

use zeroize::Zeroizing;

use crate::config::{Aead, SaKey};

/// Writes values. Memory that it grows out of is wiped, as it may hold keys.
#[derive(Default)]
pub(super) struct Writer {
    bytes: Zeroizing<Vec<u8>>,
}

impl Writer {
    pub(super) fn into_bytes(self) -> Zeroizing<Vec<u8>> {
        self.bytes
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        let needed = self.bytes.len() + bytes.len();
        if needed > self.bytes.capacity() {
            let mut larger = Zeroizing::new(Vec::with_capacity((2 * needed).max(4096)));
            larger.extend_from_slice(&self.bytes);
            self.bytes = larger;
        }
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn flag(&mut self, value: bool) {
        self.put(&[u8::from(value)]);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.put(&value.to_be_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.put(&value.to_be_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.put(&value.to_be_bytes());
    }

    pub(super) fn count(&mut self, count: usize) {
        self.u64(count as u64);
    }

    pub(super) fn text(&mut self, text: &str) {
        self.count(text.len());
        self.put(text.as_bytes());
    }

    pub(super) fn address(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(v4) => {
                self.put(&[4]);
                self.put(&v4.octets());
            }
            IpAddr::V6(v6) => {
                self.put(&[6]);
                self.put(&v6.octets());
            }
        }
    }

    pub(super) fn aead(&mut self, aead: Aead) {
        self.flag(aead == Aead::Aes256Gcm);
    }

    pub(super) fn key(&mut self, key: &SaKey) {
        self.aead(key.aead());
        self.put(key.key());
        self.put(&key.salt());
    }

    /// A value that may be absent.
    pub(super) fn option<T>(&mut self, value: Option<T>, put: impl FnOnce(&mut Self, T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            put(self, value);
        }
    }

    pub(super) fn all<T>(&mut self, values: &[T], mut put: impl FnMut(&mut Self, &T)) {
        self.count(values.len());
        values.iter().for_each(|value| put(self, value));
    }
}

/// Reads values. Every method returns `None` if the bytes are no such value.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes }
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (array, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(array)
    }

    pub(super) fn flag(&mut self) -> Option<bool> {
        match *self.array()? {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().copied().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().copied().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().copied().map(u64::from_be_bytes)
    }

    pub(super) fn text(&mut self) -> Option<String> {
        let len = usize::try_from(self.u64()?).ok()?;
        let (text, rest) = self.bytes.split_at_checked(len)?;
        self.bytes = rest;
        std::str::from_utf8(text).ok().map(str::to_owned)
    }

    pub(super) fn address(&mut self) -> Option<IpAddr> {
        match *self.array()? {
            [4] => Some(IpAddr::from(*self.array::<4>()?)),
            [6] => Some(IpAddr::from(*self.array::<16>()?)),
            _ => None,
        }
    }

    pub(super) fn aead(&mut self) -> Option<Aead> {
        Some(match self.flag()? {
            true => Aead::Aes256Gcm,
            false => Aead::Aes128Gcm,
        })
    }

    pub(super) fn key(&mut self) -> Option<SaKey> {
        Some(match self.aead()? {
            Aead::Aes128Gcm => {
                let key = self.array()?;
                SaKey::aes_128_gcm(key, *self.array()?)
            }
            Aead::Aes256Gcm => {
                let key = self.array()?;
                SaKey::aes_256_gcm(key, *self.array()?)
            }
        })
    }

    pub(super) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Option<Option<T>> {
        match self.flag()? {
            true => read(self).map(Some),
            false => Some(None),
        }
    }

    /// Reads as many values as are said to follow. Each takes at least one byte, so a false number
    /// ends with the bytes, and nothing is allocated for it before.
    pub(super) fn all<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let count = self.u64()?;
        if count > self.bytes.len() as u64 {
            return None;
        }
        (0..count).map(|_| read(self)).collect()
    }
}
