//! RDRAND and AES in counter mode together: predicting the output takes both the key and the
//! hardware.
//!
//! - **Keys** are set by the caller or made at random: by [`Seeder`], and with `std` on Unix also
//!   by the operating system, both combined by exclusive or, so that the hardware alone does not
//!   determine them.
//! - **Under the caller's keys** the output is RDRAND, encrypted: RDRAND ⊕ keystream. It is as
//!   unpredictable as RDRAND even if the keys are known.
//! - **Under a random key** RDRAND goes into the counter blocks: 96 fresh bits beside a 32-bit
//!   counter for each block of 128. That takes three draws for 32 bytes instead of four, which is
//!   what makes it faster than RDRAND alone. As the counter never repeats under a key, no block
//!   does, whatever the hardware gives; and if the key became known, each block would still hold
//!   96 bits of RDRAND.
//! - **Replaced**: a random key encrypts at most [`RANDOM_KEY_BYTES`]; the caller's keys take
//!   turns every [`KEY_TURN_BYTES`], each with its own counter that never repeats. The [`Seeder`]
//!   is kept from key to key, so that its self-test runs once.
//! - **Thread-safe**: a call reserves counter values under a lock and works outside of it.
//! - **Safe across fork**: a child makes a new random key, or continues the caller's keys at
//!   random counters; parent and child never share keystream. See the module `fork`.
//! - **Wiped**: keys and cipher states are overwritten when they are dropped. There is no
//!   `Debug`.

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;

use aes::cipher::consts::U16;
use aes::cipher::{
    Array, BlockCipherEncrypt, BlockSizeUser, InnerIvInit, KeyInit, StreamCipher,
    StreamCipherCoreWrapper,
};
use zeroize::{Zeroize, Zeroizing};

use crate::error::Error;
use crate::fork::{generation, ForkLock};
use crate::generator::{Generator, Rdrand};
use crate::seed::Seeder;
use crate::source::Source;

/// The most bytes that one random key encrypts.
pub const RANDOM_KEY_BYTES: u64 = 1 << 20;

/// Bytes after which the next of the caller's keys takes its turn.
pub const KEY_TURN_BYTES: usize = 4096;

/// The most bytes that one reservation fills.
const CHUNK_BYTES: usize = 16 * 1024;

/// Bytes of a random key.
pub const RANDOM_KEY_LENGTH: usize = 32;

/// AES-CTR over RDRAND output; see the [module](self).
pub struct AesCtr {
    state: ForkLock<State>,
    /// For [`fill`](Self::fill).
    own: Option<Rdrand>,
}

struct State {
    keys: Vec<Key>,
    /// The index of the key whose turn it is.
    turn: usize,
    /// Bytes left of the turn, for random keys of the key.
    left: u64,
    /// True for keys that are made here and replaced, false for the caller's.
    random: bool,
    /// The generation of the process that the counters belong to.
    process: u64,
    /// The source of random keys and counters.
    seeder: Option<Seeder>,
}

impl AesCtr {
    /// Makes a random AES-256 key.
    ///
    /// # Errors
    /// The error of RDSEED or RDRAND.
    pub fn with_random_key() -> Result<Self, Error> {
        let mut state = State::new(Vec::new(), true);
        state.renew()?;
        Ok(AesCtr {
            state: ForkLock::new(state),
            own: None,
        })
    }

    /// Takes keys of 16, 24 or 32 bytes, each with a nonce of half its length, which becomes
    /// the leading bytes of the counter block. They take turns in the order given.
    ///
    /// # Errors
    /// [`Error::NoKey`] or [`Error::KeyLength`].
    pub fn with_keys(keys: &[(&[u8], &[u8])]) -> Result<Self, Error> {
        if keys.is_empty() {
            return Err(Error::NoKey);
        }
        // With the whole capacity at once: a vector that grows gives its old memory back with the
        // keys in it.
        let mut set = Vec::with_capacity(keys.len());
        for (key, nonce) in keys {
            Key::push(&mut set, key, nonce)?;
        }
        Ok(AesCtr {
            state: ForkLock::new(State::new(set, false)),
            own: None,
        })
    }

    /// Fills with numbers that `generator` and the key make together; see the
    /// [module](self). `written` of an error counts bytes.
    ///
    /// # Errors
    /// The error of the generator or of making a key, or [`Error::KeyExhausted`]. Up to 16 KiB
    /// behind the bytes that were encrypted are zeroed and what follows is left as it was; after
    /// [`Error::Health`] all of `destination` is zeroed.
    pub fn fill_bytes<S: Source>(
        &self,
        generator: &mut Generator<S>,
        destination: &mut [u8],
    ) -> Result<(), Error> {
        let mut written = 0;
        while written < destination.len() {
            let rest = &mut destination[written..];
            let chunk_length = rest.len().min(CHUNK_BYTES);
            let filled = match self.reserve(chunk_length) {
                Ok(reserved) => {
                    let chunk = &mut rest[..reserved.length];
                    let filled = reserved.fill(generator, chunk);
                    let good = filled
                        .as_ref()
                        .map_or_else(Error::written, |()| chunk.len());
                    chunk[good..].fill(0);
                    written += good;
                    filled
                }
                Err(error) => {
                    rest[..chunk_length].fill(0);
                    Err(error)
                }
            };
            match filled {
                Ok(()) => {}
                Err(error @ Error::Health { .. }) => {
                    destination.fill(0);
                    return Err(error);
                }
                Err(error) => return Err(error.with_written(written)),
            }
        }
        Ok(())
    }

    /// [`fill_bytes`](Self::fill_bytes) with a generator of RDRAND that is made at first use and
    /// kept here.
    ///
    /// # Errors
    /// As [`fill_bytes`](Self::fill_bytes), or the error of making the generator.
    pub fn fill(&mut self, destination: &mut [u8]) -> Result<(), Error> {
        let mut own = match self.own.take() {
            Some(own) => own,
            None => Rdrand::new()?,
        };
        let filled = self.fill_bytes(&mut own, destination);
        // One that failed a health test is made and tested anew.
        if !matches!(filled, Err(Error::Health { .. })) {
            self.own = Some(own);
        }
        filled
    }

    /// Encrypts `source` into `destination` with the next keystream. Applied with the same
    /// keys in the same order of calls, it decrypts.
    ///
    /// # Errors
    /// [`Error::Length`] if the lengths differ, [`Error::KeyExhausted`], or the error of making
    /// a key.
    pub fn encrypt(&self, destination: &mut [u8], source: &[u8]) -> Result<(), Error> {
        if destination.len() != source.len() {
            let (source, destination) = (source.len(), destination.len());
            return Err(Error::Length {
                source,
                destination,
            });
        }
        destination.copy_from_slice(source);
        self.apply(destination).inspect_err(|_| destination.fill(0))
    }

    /// Encrypts in place with the next keystream, as [`encrypt`](Self::encrypt) does.
    ///
    /// # Errors
    /// As [`encrypt`](Self::encrypt); the data are zeroed then.
    pub fn encrypt_in_place(&self, data: &mut [u8]) -> Result<(), Error> {
        self.apply(data).inspect_err(|_| data.fill(0))
    }

    /// Encrypts in place.
    fn apply(&self, mut data: &mut [u8]) -> Result<(), Error> {
        while !data.is_empty() {
            let reserved = self.reserve(data.len())?;
            let (now, later) = data.split_at_mut(reserved.length);
            reserved.apply(now);
            data = later;
        }
        Ok(())
    }

    fn reserve(&self, length: usize) -> Result<Reserved, Error> {
        let mut state = self.state.lock();
        let here = state.here;
        state.reserve(length, here)
    }
}

/// Holds the one [`AesCtr`] of a whole program. Any thread may change and use it, and so may a
/// child process, whatever the parent's threads were doing at the fork.
pub struct Slot {
    current: ForkLock<Option<Arc<AesCtr>>>,
}

impl Slot {
    /// Returns an empty slot.
    #[must_use]
    pub const fn new() -> Self {
        Slot {
            current: ForkLock::new(None),
        }
    }

    /// Stores a generator, or removes it with `None`. The previous one is wiped as soon as no call
    /// uses it any more.
    pub fn set(&self, next: Option<AesCtr>) {
        let next = next.map(Arc::new);
        // A fork in between leaves the pointer of before or of after, never a half of each;
        // the old one is dropped after the lock is free again.
        let before = core::mem::replace(&mut *self.current.lock(), next);
        drop(before);
    }

    /// Runs `work` with the generator.
    ///
    /// # Errors
    /// [`Error::NoKey`] if the slot is empty, otherwise the error of `work`.
    pub fn with<T>(&self, work: impl FnOnce(&AesCtr) -> Result<T, Error>) -> Result<T, Error> {
        let current = self.current.lock().clone();
        current.map_or(Err(Error::NoKey), |cipher| work(&cipher))
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    fn new(keys: Vec<Key>, random: bool) -> Self {
        State {
            keys,
            turn: 0,
            left: KEY_TURN_BYTES as u64,
            random,
            process: generation(),
            seeder: None,
        }
    }

    /// Reserves up to `length` bytes of keystream for one caller, in the process whose generation
    /// is `here`.
    fn reserve(&mut self, length: usize, here: u64) -> Result<Reserved, Error> {
        if self.process != here {
            self.part_from_parent()?;
            self.process = here;
        }
        if self.left == 0 {
            self.next_turn()?;
        }
        let length = length.min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let key = self.keys.get_mut(self.turn).ok_or(Error::NoKey)?;
        let mut reserved = key.reserve(length)?;
        reserved.random = self.random;
        // Counted in whole blocks, as the counter is, so that no turn ends within a block.
        self.left = self
            .left
            .saturating_sub(length.next_multiple_of(BLOCK) as u64);
        Ok(reserved)
    }

    /// Sets up counters or a key that the parent of this process cannot use.
    fn part_from_parent(&mut self) -> Result<(), Error> {
        if self.random {
            return self.renew();
        }
        for turn in 0..self.keys.len() {
            let mut counter = [0; BLOCK];
            self.seed(&mut counter)?;
            self.keys[turn].counter = u128::from_be_bytes(counter);
        }
        Ok(())
    }

    fn next_turn(&mut self) -> Result<(), Error> {
        if self.random {
            return self.renew();
        }
        self.turn = (self.turn + 1) % self.keys.len().max(1);
        self.left = KEY_TURN_BYTES as u64;
        Ok(())
    }

    fn renew(&mut self) -> Result<(), Error> {
        let mut bytes = Zeroizing::new([0; RANDOM_KEY_LENGTH]);
        self.seed(&mut *bytes)?;
        add_system_randomness(&mut bytes);
        self.keys.clear();
        // All of its counter is beside the random bits of a nonce.
        Key::push(&mut self.keys, &*bytes, &[0; RANDOM_KEY_LENGTH / 2])?;
        self.turn = 0;
        self.left = RANDOM_KEY_BYTES;
        Ok(())
    }

    /// Fills with seed material from the seeder that is kept; after an error from a new one.
    fn seed(&mut self, destination: &mut [u8]) -> Result<(), Error> {
        let mut seeder = match self.seeder.take() {
            Some(seeder) => seeder,
            None => Seeder::new()?,
        };
        seeder.fill_bytes(destination)?;
        self.seeder = Some(seeder);
        Ok(())
    }
}

/// Bytes of an AES block.
const BLOCK: usize = 16;

/// The most blocks that one key encrypts: far below the 2⁶⁴ at which AES-CTR can be distinguished
/// from random, since its blocks never repeat, and all values of the counter beside a nonce of
/// twelve bytes.
const KEY_BLOCKS: u64 = 1 << 32;

/// A key and its next counter block.
struct Key {
    bytes: [u8; 32],
    length: usize,
    counter: u128,
    blocks_left: u64,
}

impl Key {
    /// Appends a key. It is copied once, to where it stays: what a move leaves behind is not wiped.
    fn push(keys: &mut Vec<Key>, key: &[u8], nonce: &[u8]) -> Result<(), Error> {
        if !matches!(key.len(), 16 | 24 | 32) || nonce.len() != key.len() / 2 {
            return Err(Error::KeyLength {
                key: key.len(),
                nonce: nonce.len(),
            });
        }
        let mut counter = [0; BLOCK];
        counter[..nonce.len()].copy_from_slice(nonce);
        keys.push(Key {
            bytes: [0; 32],
            length: key.len(),
            counter: u128::from_be_bytes(counter),
            blocks_left: KEY_BLOCKS,
        });
        if let Some(pushed) = keys.last_mut() {
            pushed.bytes[..key.len()].copy_from_slice(key);
        }
        Ok(())
    }

    fn reserve(&mut self, length: usize) -> Result<Reserved, Error> {
        let blocks = length.div_ceil(BLOCK) as u64;
        if blocks > self.blocks_left {
            return Err(Error::KeyExhausted);
        }
        self.blocks_left -= blocks;
        let counter = self.counter;
        self.counter = counter.wrapping_add(u128::from(blocks));
        Ok(Reserved {
            key: self.bytes,
            key_length: self.length,
            counter,
            length,
            random: false,
        })
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.bytes.zeroize();
        self.counter.zeroize();
    }
}

/// Keystream that belongs to one caller.
struct Reserved {
    key: [u8; 32],
    key_length: usize,
    counter: u128,
    length: usize,
    /// The key is a random one, of which RDRAND goes into the counter blocks.
    random: bool,
}

/// Bytes of RDRAND in a counter block under a random key. Its counter starts at zero, and four
/// bytes hold it: [`KEY_BLOCKS`].
const NONCE: usize = 12;

impl Reserved {
    /// Fills `destination`, which is as long as the reservation. The bytes after those that an
    /// error counts are not for use.
    fn fill<S: Source>(
        &self,
        generator: &mut Generator<S>,
        destination: &mut [u8],
    ) -> Result<(), Error> {
        if self.random {
            return self.fill_from_nonces(generator, destination);
        }
        let drawn = generator.fill_bytes(destination);
        let good = drawn
            .as_ref()
            .map_or_else(Error::written, |()| destination.len());
        self.apply(&mut destination[..good]);
        drawn
    }

    fn fill_from_nonces<S: Source>(
        &self,
        generator: &mut Generator<S>,
        destination: &mut [u8],
    ) -> Result<(), Error> {
        let cipher = aes::Aes256Enc::new((&self.key).into());
        let counter = |index: usize| {
            (self.counter as u32)
                .wrapping_add(index as u32)
                .to_be_bytes()
        };
        let (blocks, rest) = Array::<u8, U16>::slice_as_chunks_mut(destination);
        // The nonces are drawn into the front of the blocks' own memory, and then moved to their
        // places from the last to the first, so that none is overwritten before it has moved.
        let wanted = NONCE * blocks.len();
        let bytes = Array::slice_as_flattened_mut(blocks);
        let drawn = generator.fill_bytes(&mut bytes[..wanted]);
        let whole = drawn.as_ref().map_or_else(Error::written, |()| wanted) / NONCE;
        for index in (0..whole).rev() {
            bytes.copy_within(NONCE * index..NONCE * (index + 1), BLOCK * index);
            bytes[BLOCK * index + NONCE..BLOCK * (index + 1)].copy_from_slice(&counter(index));
        }
        cipher.encrypt_blocks(&mut blocks[..whole]);
        drawn.map_err(|error| error.with_written(BLOCK * whole))?;
        if rest.is_empty() {
            return Ok(());
        }
        // The last block is cut, so its nonce needs no more random bits than are delivered.
        let mut last = Array::from([0; BLOCK]);
        let drawn = generator.fill_bytes(&mut last[..rest.len().min(NONCE)]);
        drawn.map_err(|error| error.with_written(BLOCK * whole))?;
        last[NONCE..].copy_from_slice(&counter(whole));
        cipher.encrypt_block(&mut last);
        rest.copy_from_slice(&last[..rest.len()]);
        last.zeroize();
        Ok(())
    }

    fn apply(&self, data: &mut [u8]) {
        let nonce = self.counter.to_be_bytes();
        match self.key_length {
            16 => apply::<aes::Aes128Enc>(&self.key[..16], nonce, data),
            24 => apply::<aes::Aes192Enc>(&self.key[..24], nonce, data),
            _ => apply::<aes::Aes256Enc>(&self.key, nonce, data),
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.key.zeroize();
        self.counter.zeroize();
    }
}

/// AES in counter mode with a 128-bit big-endian counter (SP 800-38A, 6.5). The cipher wipes
/// itself when it is dropped.
fn apply<C>(key: &[u8], counter: [u8; BLOCK], data: &mut [u8])
where
    C: BlockCipherEncrypt + BlockSizeUser<BlockSize = U16> + KeyInit,
{
    if let Ok(cipher) = C::new_from_slice(key) {
        let core =
            ctr::CtrCore::<C, ctr::flavors::Ctr128BE>::inner_iv_init(cipher, &counter.into());
        let mut stream = StreamCipherCoreWrapper::from_core(core);
        // Cannot fail: a turn is far shorter than the period of the counter.
        stream.apply_keystream(data);
    }
}

/// Adds the output of the operating system's generator to a key, if there is one.
#[cfg(all(feature = "std", unix))]
fn add_system_randomness(key: &mut [u8; 32]) {
    let mut system = Zeroizing::new([0; 32]);
    let mut filled = 0;
    while filled < system.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        match rustix::rand::getrandom(&mut system[filled..], flags) {
            Ok(bytes) => filled += bytes,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => break, // the key is the hardware's alone
        }
    }
    key.iter_mut()
        .zip(system.iter())
        .for_each(|(byte, other)| *byte ^= other);
}

#[cfg(not(all(feature = "std", unix)))]
fn add_system_randomness(_key: &mut [u8; 32]) {}

#[cfg(test)]
mod tests;
