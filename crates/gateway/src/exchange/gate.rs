//! A first look at proposals, which drops forgeries at a fraction of the cost of a handshake.
//!
//! Vita proposes once in a negotiation, so where every forgery cost a handshake, a flood of them
//! would leave no time to find the proposal that is authentic. Everything before the proposal's own
//! public key is computed once per nonce here; what is left is a hash, one HKDF and one decryption
//! of 32 bytes.

use blake2::{Blake2s256, Digest};
use tare_gcm::{Key, Nonce, Tag};
use zeroize::Zeroizing;

use super::handshake::Terms;
use super::hmac::Hmac;
use super::message::Noise;

/// The responder's handshake up to the proposal: after the token `psk`.
pub(crate) struct Gate {
    hash: [u8; 32],
    /// Keyed with the chaining key.
    chain: Hmac,
}

impl Gate {
    pub(crate) fn new(terms: &Terms<'_>) -> Gate {
        // Noise, 5.2: a protocol name longer than 32 bytes is hashed.
        let name = hash(&[b"Noise_NNpsk0_25519_AESGCM_BLAKE2s"]);
        let before = hash(&[&name, &terms.prologue()]);
        let pseudorandom = Hmac::new(&Hmac::new(&name).of(&[terms.psk.bytes()]));
        let chaining_key = pseudorandom.of(&[&[1]]);
        let mixed = pseudorandom.of(&[&*chaining_key, &[2]]);
        Gate {
            hash: hash(&[&before, &*mixed]),
            chain: Hmac::new(&chaining_key),
        }
    }

    /// Returns true if a proposal is authentic.
    pub(crate) fn admits(&self, proposal: &Noise) -> bool {
        let (public, sealed) = proposal.split_at(32);
        let Some((text, tag)) = sealed.split_last_chunk::<16>() else {
            return false;
        };
        let pseudorandom = Hmac::new(&self.chain.of(&[public]));
        let chaining_key = pseudorandom.of(&[&[1]]);
        let Ok(key) = Key::new(&pseudorandom.of(&[&*chaining_key, &[2]])[..]) else {
            return false;
        };
        let mut opened = Zeroizing::new([0; 32]);
        opened.copy_from_slice(text);
        let aad = hash(&[&self.hash, public]);
        let tag = Tag::from(*tag);
        key.open_in_place(&Nonce::from([0; 12]), &aad, &mut opened[..], &tag)
            .is_ok()
    }
}

fn hash(parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = Blake2s256::new();
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize().into()
}
