//! The primitives that `snow` uses: Curve25519, AES-GCM and BLAKE2s, kept so that no secret
//! outlives its handshake.
//!
//! `snow` does not wipe what it stores. The objects here do, and hand it the pre-shared key and the
//! chaining keys only under a mask that is wiped with them. Vita's keys for the SAs are not those
//! of Noise's own split, so they are taken here, where the last chaining key passes by.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use curve25519_dalek::MontgomeryPoint;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use zeroize::Zeroizing;

use super::hmac::Hmac;

/// The key material for two SAs: three blocks of HKDF, of which the first 40 or 72 bytes
/// are used.
pub(crate) type KeyMaterial = Zeroizing<[u8; 96]>;

/// The secrets of one handshake that `snow` has no place for.
#[derive(Default)]
pub(crate) struct Secrets(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    mask: Zeroizing<[u8; 32]>,
    ephemeral: Zeroizing<[u8; 32]>,
    split: Option<KeyMaterial>,
    diffie_hellman: u64,
}

impl Secrets {
    pub(crate) fn new(mask: Zeroizing<[u8; 32]>) -> Secrets {
        Secrets(Mutex::new(Inner {
            mask,
            ..Inner::default()
        }))
    }

    /// Sets the private key that the next message is made with.
    pub(crate) fn set_ephemeral(&self, ephemeral: Zeroizing<[u8; 32]>) {
        self.lock().ephemeral = ephemeral;
    }

    /// Takes the key material of the handshake, once.
    pub(crate) fn take_split(&self) -> Option<KeyMaterial> {
        self.lock().split.take()
    }

    /// The operations on the curve since the last call.
    pub(crate) fn take_diffie_hellman(&self) -> u64 {
        std::mem::take(&mut self.lock().diffie_hellman)
    }

    /// The pre-shared key as `snow` may know it.
    pub(crate) fn mask(&self, psk: &[u8; 32]) -> Zeroizing<[u8; 32]> {
        let mut masked = Zeroizing::new(*psk);
        xor(&mut masked, &self.lock().mask);
        masked
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hands `snow` the objects of this module.
pub(crate) struct Suite(pub(crate) Arc<Secrets>);

impl CryptoResolver for Suite {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Prepared(Arc::clone(&self.0))))
    }

    fn resolve_dh(&self, _: &DHChoice) -> Option<Box<dyn Dh>> {
        Some(Box::new(Curve25519 {
            private: Zeroizing::default(),
            public: [0; 32],
            secrets: Arc::clone(&self.0),
        }))
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        Some(Box::new(Blake2s {
            inner: DefaultResolver.resolve_hash(choice)?,
            secrets: Arc::clone(&self.0),
        }))
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        Some(Box::new(AesGcm(DefaultResolver.resolve_cipher(choice)?)))
    }
}

/// The private key that was set, and nothing else that is random.
struct Prepared(Arc<Secrets>);

impl Random for Prepared {
    fn try_fill_bytes(&mut self, to: &mut [u8]) -> Result<(), snow::Error> {
        let ephemeral = std::mem::take(&mut self.0.lock().ephemeral);
        if to.len() != ephemeral.len() || *ephemeral == [0; 32] {
            return Err(snow::Error::Rng);
        }
        to.copy_from_slice(&ephemeral[..]);
        Ok(())
    }
}

struct Curve25519 {
    private: Zeroizing<[u8; 32]>,
    public: [u8; 32],
    secrets: Arc<Secrets>,
}

impl Dh for Curve25519 {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        32
    }

    fn priv_len(&self) -> usize {
        32
    }

    fn set(&mut self, private: &[u8]) {
        self.private.copy_from_slice(private);
        self.public = MontgomeryPoint::mul_base_clamped(*self.private).to_bytes();
        self.secrets.lock().diffie_hellman += 1;
    }

    fn generate(&mut self, random: &mut dyn Random) -> Result<(), snow::Error> {
        let mut private = Zeroizing::new([0; 32]);
        random.try_fill_bytes(&mut private[..])?;
        self.set(&private[..]);
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        &self.private[..]
    }

    /// RFC 7748, 6.1: "The check for the all-zero value results from the fact that the X25519
    /// function produces that value if it operates on an input corresponding to a point with small
    /// order".
    fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), snow::Error> {
        let (point, _) = public.split_first_chunk::<32>().ok_or(snow::Error::Dh)?;
        let shared = Zeroizing::new(
            MontgomeryPoint(*point)
                .mul_clamped(*self.private)
                .to_bytes(),
        );
        self.secrets.lock().diffie_hellman += 1;
        let any = shared.iter().fold(0, |any, byte| any | byte);
        if std::hint::black_box(any) == 0 {
            return Err(snow::Error::Dh);
        }
        let (out, _) = out.split_first_chunk_mut().ok_or(snow::Error::Dh)?;
        *out = *shared;
        Ok(())
    }
}

struct AesGcm(Box<dyn Cipher>);

impl Cipher for AesGcm {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn set(&mut self, key: &[u8; 32]) {
        self.0.set(key);
    }

    fn encrypt(&self, nonce: u64, aad: &[u8], plaintext: &[u8], out: &mut [u8]) -> usize {
        self.0.encrypt(nonce, aad, plaintext, out)
    }

    fn decrypt(
        &self,
        nonce: u64,
        aad: &[u8],
        ciphertext: &[u8],
        out: &mut [u8],
    ) -> Result<usize, snow::Error> {
        self.0.decrypt(nonce, aad, ciphertext, out)
    }
}

impl Drop for AesGcm {
    fn drop(&mut self) {
        self.0.set(&[0; 32]);
    }
}

struct Blake2s {
    inner: Box<dyn Hash>,
    secrets: Arc<Secrets>,
}

impl Hash for Blake2s {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn block_len(&self) -> usize {
        self.inner.block_len()
    }

    fn hash_len(&self) -> usize {
        self.inner.hash_len()
    }

    fn reset(&mut self) {
        self.inner.reset();
    }

    fn input(&mut self, data: &[u8]) {
        self.inner.input(data);
    }

    fn result(&mut self, out: &mut [u8]) {
        self.inner.result(out);
    }

    /// Noise's HKDF between masked chaining keys. `snow` asks for three outputs to mix the
    /// pre-shared key in, which is masked too and meets the one chaining key that is not, the hash
    /// of the protocol's name; it has no input for the split.
    fn hkdf(
        &mut self,
        chaining_key: &[u8],
        input: &[u8],
        outputs: usize,
        out1: &mut [u8],
        out2: &mut [u8],
        out3: &mut [u8],
    ) {
        let mask = self.secrets.lock().mask.clone();
        let mut key = Zeroizing::new([0; 32]);
        key.iter_mut()
            .zip(chaining_key)
            .for_each(|(to, from)| *to = *from);
        let mut psk = Zeroizing::new([0; 32]);
        let input = if outputs == 3 {
            psk.iter_mut().zip(input).for_each(|(to, from)| *to = *from);
            xor(&mut psk, &mask);
            &psk[..]
        } else {
            xor(&mut key, &mask);
            input
        };
        if input.is_empty() {
            // README.exchange has the SAs' keys from HKDF with the chaining key as its input and no
            // salt, where Noise has it as the salt of no input. `snow` gets keys that it will not
            // use.
            let split = Blake2s::expand(&[0; 32], &key[..], 3);
            self.secrets.lock().split = Some(split);
            out1.fill(0);
            out2.fill(0);
            return;
        }
        let mut blocks = Blake2s::expand(&key, input, outputs);
        // The first is the next chaining key, the one that is stored.
        blocks
            .iter_mut()
            .zip(mask.iter())
            .for_each(|(to, mask)| *to ^= mask);
        for (to, from) in [out1, out2, out3]
            .into_iter()
            .zip(blocks.chunks_exact(32))
            .take(outputs)
        {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        }
    }
}

impl Blake2s {
    /// RFC 5869 with an empty info: the first blocks, up to three.
    fn expand(salt: &[u8; 32], input: &[u8], count: usize) -> KeyMaterial {
        let mut blocks = Zeroizing::new([0; 96]);
        let keyed = Hmac::new(&Hmac::new(salt).of(&[input]));
        let mut text = Zeroizing::new([0; 33]);
        let mut used = 0;
        for (counter, block) in (1..).zip(blocks.chunks_exact_mut(32)).take(count) {
            text[used] = counter;
            block.copy_from_slice(&keyed.of(&[&text[..=used]])[..]);
            text[..32].copy_from_slice(block);
            used = 32;
        }
        blocks
    }
}

impl Drop for Blake2s {
    fn drop(&mut self) {
        self.inner.reset();
    }
}

fn xor(to: &mut [u8; 32], mask: &[u8; 32]) {
    to.iter_mut().zip(mask).for_each(|(to, mask)| *to ^= mask);
}
