//! HMAC-BLAKE2s that leaves no key behind.

use blake2::{Blake2s256, Digest};
use zeroize::Zeroizing;

/// RFC 2104, with the blocks that depend on the key alone computed in advance.
///
/// Its states are as good as the key: they are overwritten on drop, the copies that one code is
/// computed with too.
#[derive(Clone)]
pub(crate) struct Hmac {
    inner: Blake2s256,
    outer: Blake2s256,
}

impl Hmac {
    pub(crate) fn new(key: &[u8; 32]) -> Hmac {
        let padded = |with: u8| {
            let mut block = Zeroizing::new([with; 64]);
            block.iter_mut().zip(key).for_each(|(to, key)| *to ^= key);
            let mut state = Blake2s256::new();
            state.update(&block[..]);
            state
        };
        Hmac {
            inner: padded(0x36),
            outer: padded(0x5c),
        }
    }

    /// The code of all parts, one behind the other.
    pub(crate) fn of(&self, parts: &[&[u8]]) -> Zeroizing<[u8; 32]> {
        let mut copy = self.clone();
        parts.iter().for_each(|part| copy.inner.update(part));
        let inner = Zeroizing::new(<[u8; 32]>::from(copy.inner.finalize_reset()));
        copy.outer.update(&inner[..]);
        Zeroizing::new(copy.outer.finalize_reset().into())
    }

    fn wipe(&mut self) {
        self.inner = Blake2s256::new();
        self.outer = Blake2s256::new();
        // The crate of the hash has no wipe, and writes that nothing reads would be left out.
        std::hint::black_box(self);
    }
}

impl Drop for Hmac {
    fn drop(&mut self) {
        self.wipe();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the definition, step by step, in lengths around a block.
    #[test]
    fn codes_are_those_of_rfc_2104() {
        let key = std::array::from_fn(|n| n as u8 + 1);
        let text: Vec<u8> = (0..=200).collect();
        for length in [0, 1, 32, 63, 64, 65, 128, 200] {
            let (first, rest) = text[..length].split_at(length / 3);
            let mut inner = Blake2s256::new_with_prefix(key.map(|byte: u8| byte ^ 0x36));
            inner.update([0x36; 32]);
            inner.update(&text[..length]);
            let mut outer = Blake2s256::new_with_prefix(key.map(|byte| byte ^ 0x5c));
            outer.update([0x5c; 32]);
            outer.update(inner.finalize());
            let expected: [u8; 32] = outer.finalize().into();
            assert_eq!(*Hmac::new(&key).of(&[first, rest]), expected, "{length}");
        }
    }

    /// The states of a wiped one are those of a hash that has read nothing.
    #[test]
    fn a_wiped_one_computes_nothing_of_its_key() {
        let mut wiped = Hmac::new(&[7; 32]);
        assert_ne!(*wiped.of(&[b"text"]), *Hmac::new(&[8; 32]).of(&[b"text"]));
        wiped.wipe();
        let inner: [u8; 32] = Blake2s256::digest(b"text").into();
        let empty: [u8; 32] = Blake2s256::digest(inner).into();
        assert_eq!(*wiped.of(&[b"text"]), empty);
    }
}
