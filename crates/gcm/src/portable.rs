//! The path for any processor: small stages in private memory, and the `aes` and `ghash` crates.
//!
//! A one-shot AEAD would need the whole message in private memory at once, up to 64 GiB, before the
//! first byte of ciphertext could be stored. The block cipher and the hash apart need a stage of
//! [`STEP_LEN`] bytes: each byte is copied in once, worked on there, and copied out once, final.
//! Both crates are constant-time in software and use the processor's instructions where it has
//! them.

use crate::kernel::counter_after;
use crate::once::volatile::{copy_in, copy_out};
use aes::cipher::{Array, BlockCipherEncrypt, KeyInit};
use aes::{Aes128Enc, Aes256Enc};
use ghash::universal_hash::UniversalHash;
use ghash::GHash;
use zeroize::Zeroize;

/// Bytes on the stage: enough blocks for the bit-sliced cipher to work on several at once.
pub(crate) const STEP_LEN: usize = 256;

enum Cipher {
    Aes128(Aes128Enc),
    Aes256(Aes256Enc),
}

impl Cipher {
    fn encrypt(&self, blocks: &mut [aes::Block]) {
        match self {
            Cipher::Aes128(cipher) => cipher.encrypt_blocks(blocks),
            Cipher::Aes256(cipher) => cipher.encrypt_blocks(blocks),
        }
    }
}

/// The expanded key; both parts wipe themselves on drop.
pub(crate) struct PortableKey {
    cipher: Cipher,
    hash: GHash,
}

impl PortableKey {
    /// Expands a key of 16 or 32 bytes, and leaves copies of it on the stack. Not inlined, so that
    /// they are below the caller, who wipes them.
    #[inline(never)]
    pub(crate) fn boxed(key: &[u8]) -> Option<Box<Self>> {
        let cipher = match key.len() {
            16 => Cipher::Aes128(Aes128Enc::new_from_slice(key).ok()?),
            32 => Cipher::Aes256(Aes256Enc::new_from_slice(key).ok()?),
            _ => return None,
        };
        let mut h = [Array::default()];
        cipher.encrypt(&mut h);
        let hash = GHash::new(&h[0]);
        h[0].zeroize();
        Some(Box::new(Self { cipher, hash }))
    }
}

/// The state of a message.
pub(crate) struct PortableStream<'k> {
    key: &'k PortableKey,
    hash: GHash,
    nonce: [u8; 12],
    aad_len: u64,
    pub(crate) data_len: u64,
    stage: [u8; STEP_LEN],
    keystream: [aes::Block; STEP_LEN / 16],
}

impl<'k> PortableStream<'k> {
    pub(crate) fn new(key: &'k PortableKey, nonce: &[u8; 12], aad: &[u8]) -> Self {
        let mut hash = key.hash.clone();
        hash.update_padded(aad);
        Self {
            key,
            hash,
            nonce: *nonce,
            aad_len: aad.len() as u64,
            data_len: 0,
            stage: [0; STEP_LEN],
            keystream: [Array::default(); STEP_LEN / 16],
        }
    }

    fn counter_block(&self, counter: u32) -> aes::Block {
        let mut block = Array::default();
        block[..12].copy_from_slice(&self.nonce);
        block[12..].copy_from_slice(&counter.to_be_bytes());
        block
    }

    /// Seals or opens up to [`STEP_LEN`] bytes; less only at the end of the message.
    ///
    /// # Safety
    /// `len` bytes must be readable at `src` and writable at `dst`.
    pub(crate) unsafe fn piece(&mut self, seal: bool, src: *const u8, dst: *mut u8, len: usize) {
        let first = counter_after(self.data_len);
        let blocks = len.div_ceil(16);
        for i in 0..blocks {
            self.keystream[i] = self.counter_block(first.wrapping_add(i as u32));
        }
        self.key.cipher.encrypt(&mut self.keystream[..blocks]);
        let stage = &mut self.stage[..len];
        // SAFETY: the caller vouches for `src`, and the stage has `len` bytes.
        unsafe { copy_in(src, stage.as_mut_ptr(), len) };
        if !seal {
            self.hash.update_padded(stage);
        }
        for (byte, key) in stage.iter_mut().zip(self.keystream.iter().flatten()) {
            *byte ^= key;
        }
        if seal {
            self.hash.update_padded(stage);
        }
        // SAFETY: the caller vouches for `dst`, and the stage has `len` bytes.
        unsafe { copy_out(stage.as_ptr(), dst, len) };
        self.data_len += len as u64;
    }

    /// Returns the tag, after all pieces.
    pub(crate) fn tag(&mut self) -> u128 {
        let mut lengths = Array::default();
        lengths[..8].copy_from_slice(&(self.aad_len * 8).to_be_bytes());
        lengths[8..].copy_from_slice(&(self.data_len * 8).to_be_bytes());
        self.hash.update(&[lengths]);
        self.keystream[0] = self.counter_block(1);
        self.key.cipher.encrypt(&mut self.keystream[..1]);
        let hash = self.hash.clone().finalize();
        for (byte, hash) in self.keystream[0].iter_mut().zip(hash) {
            *byte ^= hash;
        }
        u128::from_le_bytes(self.keystream[0].into())
    }
}
