//! Keys: wiped when they are dropped, never displayed, compared in constant time.

use std::fmt;

use zeroize::{Zeroize as _, Zeroizing};

/// The 32 bytes that both ends of a route know.
#[derive(Clone)]
pub struct PresharedKey(Box<Zeroizing<[u8; 32]>>);

impl PresharedKey {
    /// The key of these bytes.
    pub fn new(bytes: [u8; 32]) -> PresharedKey {
        let bytes = Zeroizing::new(bytes);
        let mut key = Box::new(Zeroizing::new([0; 32]));
        key.copy_from_slice(&bytes[..]);
        PresharedKey(key)
    }

    /// The key.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns true if every byte is zero, as in the examples: a key that is public.
    pub fn is_zero(&self) -> bool {
        equal(self.bytes(), &[0; 32])
    }
}

impl PartialEq for PresharedKey {
    fn eq(&self, other: &PresharedKey) -> bool {
        equal(self.bytes(), other.bytes())
    }
}

impl Eq for PresharedKey {}

impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PresharedKey(32 bytes)")
    }
}

/// The algorithm that encrypts and authenticates packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Aead {
    /// AES-GCM with 128-bit keys and a 16-byte ICV (RFC 4106); Vita's `aes-gcm-16-icv`.
    #[default]
    Aes128Gcm,
    /// AES-GCM with 256-bit keys and a 16-byte ICV.
    Aes256Gcm,
}

impl Aead {
    /// Bytes of a key.
    pub const fn key_bytes(self) -> usize {
        match self {
            Aead::Aes128Gcm => 16,
            Aead::Aes256Gcm => 32,
        }
    }

    /// As the configuration spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Aead::Aes128Gcm => "aes-128-gcm",
            Aead::Aes256Gcm => "aes-256-gcm",
        }
    }

    /// The AEAD of this name, Vita's for the first included.
    pub fn by_name(name: &str) -> Option<Aead> {
        match name {
            "aes-128-gcm" | "aes-gcm-16-icv" => Some(Aead::Aes128Gcm),
            "aes-256-gcm" => Some(Aead::Aes256Gcm),
            _ => None,
        }
    }
}

impl fmt::Display for Aead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The key of one SA and its salt, the first four bytes of every nonce.
#[derive(Clone)]
pub struct SaKey {
    aead: Aead,
    bytes: Box<Zeroizing<[u8; 36]>>,
}

impl SaKey {
    /// An AES-128-GCM key.
    pub fn aes_128_gcm(key: &[u8; 16], salt: [u8; 4]) -> SaKey {
        SaKey::of(Aead::Aes128Gcm, key, salt)
    }

    /// An AES-256-GCM key.
    pub fn aes_256_gcm(key: &[u8; 32], salt: [u8; 4]) -> SaKey {
        SaKey::of(Aead::Aes256Gcm, key, salt)
    }

    fn of(aead: Aead, key: &[u8], mut salt: [u8; 4]) -> SaKey {
        let mut bytes = Box::new(Zeroizing::new([0; 36]));
        let (first, rest) = bytes.split_at_mut(4);
        first.copy_from_slice(&salt);
        salt.zeroize();
        for (to, from) in rest.iter_mut().zip(key) {
            *to = *from;
        }
        SaKey { aead, bytes }
    }

    /// The algorithm of the key.
    pub fn aead(&self) -> Aead {
        self.aead
    }

    /// The key: 16 or 32 bytes.
    pub fn key(&self) -> &[u8] {
        self.bytes
            .get(4..4 + self.aead.key_bytes())
            .unwrap_or_default()
    }

    /// The salt.
    pub fn salt(&self) -> [u8; 4] {
        let [a, b, c, d, ..] = **self.bytes;
        [a, b, c, d]
    }
}

impl PartialEq for SaKey {
    fn eq(&self, other: &SaKey) -> bool {
        self.aead == other.aead && equal(&self.bytes[..], &other.bytes[..])
    }
}

impl Eq for SaKey {}

impl fmt::Debug for SaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SaKey({})", self.aead)
    }
}

/// Returns true if two keys of one length are equal, in a time that does not depend on where they
/// differ.
fn equal(a: &[u8], b: &[u8]) -> bool {
    let differing = a.iter().zip(b).fold(0, |bits, (a, b)| bits | (a ^ b));
    a.len() == b.len() && std::hint::black_box(differing) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_compared_and_not_displayed() {
        let key = PresharedKey::new([0xab; 32]);
        assert_eq!(key, key.clone());
        assert_ne!(key, PresharedKey::new([0; 32]));
        assert!(PresharedKey::new([0; 32]).is_zero() && !key.is_zero());
        let sa = SaKey::aes_128_gcm(&[0xab; 16], [1, 2, 3, 4]);
        assert_eq!((sa.key(), sa.salt()), (&[0xab; 16][..], [1, 2, 3, 4]));
        assert_ne!(sa, SaKey::aes_128_gcm(&[0xab; 16], [1, 2, 3, 5]));
        let mut long = [0; 32];
        long[..16].fill(0xab);
        assert_ne!(sa, SaKey::aes_256_gcm(&long, [1, 2, 3, 4]));
        for debug in [format!("{key:?}"), format!("{sa:?}")] {
            assert!(!debug.contains("ab") && !debug.contains("171"), "{debug}");
        }
    }
}
