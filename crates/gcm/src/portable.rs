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
use alloc::boxed::Box;
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
    /// Bits of the key.
    pub(crate) fn bits(&self) -> usize {
        match self.cipher {
            Cipher::Aes128(_) => 128,
            Cipher::Aes256(_) => 256,
        }
    }

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
    /// That of a piece, and behind that of the last one the mask of the tag.
    keystream: [aes::Block; STEP_LEN / 16 + 1],
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
            keystream: [Array::default(); STEP_LEN / 16 + 1],
        }
    }

    fn counter_block(&self, counter: u32) -> aes::Block {
        let mut block = Array::default();
        block[..12].copy_from_slice(&self.nonce);
        block[12..].copy_from_slice(&counter.to_be_bytes());
        block
    }

    /// Seals or opens [`STEP_LEN`] bytes.
    ///
    /// # Safety
    /// They must be readable at `src` and writable at `dst`.
    pub(crate) unsafe fn step(&mut self, seal: bool, src: *const u8, dst: *mut u8) {
        // SAFETY: the caller's contract.
        unsafe { self.piece(seal, src, dst, STEP_LEN, STEP_LEN / 16) };
    }

    /// Seals or opens the last bytes, up to [`STEP_LEN`], and returns the tag.
    ///
    /// # Safety
    /// `len` bytes must be readable at `src` and writable at `dst`.
    pub(crate) unsafe fn last(
        &mut self,
        seal: bool,
        src: *const u8,
        dst: *mut u8,
        len: usize,
    ) -> u128 {
        // Together with the keystream: of a short message, a call of the cipher is a fourth.
        let mask = len.div_ceil(16);
        self.keystream[mask] = self.counter_block(1);
        // SAFETY: the caller's contract.
        unsafe { self.piece(seal, src, dst, len, mask + 1) };
        let mut lengths = Array::default();
        lengths[..8].copy_from_slice(&(self.aad_len * 8).to_be_bytes());
        lengths[8..].copy_from_slice(&(self.data_len * 8).to_be_bytes());
        self.hash.update(&[lengths]);
        let hash = self.hash.clone().finalize();
        u128::from_le_bytes(self.keystream[mask].into()) ^ u128::from_le_bytes(hash.into())
    }

    /// Seals or opens `len` bytes, up to [`STEP_LEN`], and encrypts so many blocks for it: those of
    /// the keystream, and what is behind them.
    ///
    /// # Safety
    /// They must be readable at `src` and writable at `dst`.
    unsafe fn piece(
        &mut self,
        seal: bool,
        src: *const u8,
        dst: *mut u8,
        len: usize,
        blocks: usize,
    ) {
        let first = counter_after(self.data_len);
        for i in 0..len.div_ceil(16) {
            self.keystream[i] = self.counter_block(first.wrapping_add(i as u32));
        }
        self.key.cipher.encrypt(&mut self.keystream[..blocks]);
        let stage = &mut self.stage[..len];
        // SAFETY: the caller vouches for `src`, and the stage has `len` bytes.
        unsafe { copy_in(src, stage.as_mut_ptr(), len) };
        if !seal {
            self.hash.update_padded(stage);
        }
        let (whole, rest) = stage.as_chunks_mut();
        for (block, key) in whole.iter_mut().zip(&self.keystream) {
            let output = u128::from_ne_bytes(*block) ^ u128::from_ne_bytes((*key).into());
            *block = output.to_ne_bytes();
        }
        for (byte, key) in rest.iter_mut().zip(&self.keystream[whole.len()]) {
            *byte ^= key;
        }
        if seal {
            self.hash.update_padded(stage);
        }
        // SAFETY: the caller vouches for `dst`, and the stage has `len` bytes.
        unsafe { copy_out(stage.as_ptr(), dst, len) };
        self.data_len += len as u64;
    }
}

/// Seals or opens a whole message of `len` bytes and returns its tag. Not inlined, so that all it
/// uses of the stack is below its caller, who wipes it.
///
/// # Safety
/// `len` bytes must be readable at `src` and writable at `dst`, the same or without overlap.
#[inline(never)]
pub(crate) unsafe fn whole(
    key: &PortableKey,
    seal: bool,
    nonce: &[u8; 12],
    aad: &[u8],
    src: *const u8,
    dst: *mut u8,
    len: usize,
) -> u128 {
    let mut stream = PortableStream::new(key, nonce, aad);
    let mut done = 0;
    // SAFETY: the caller's contract; the steps and the rest add up to `len`.
    unsafe {
        while len - done > STEP_LEN {
            stream.step(seal, src.add(done), dst.add(done));
            done += STEP_LEN;
        }
        stream.last(seal, src.add(done), dst.add(done), len - done)
    }
}
