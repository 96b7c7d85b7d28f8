//! The libraries that this crate is held against, each behind the same two calls.

use aws_lc_rs::aead as aws;
use ring::aead as ring_aead;
use tare_gcm::{Key, Nonce, SharedRead, SharedWrite, Tag};

/// Bytes of additional data: those of ESP with extended sequence numbers.
pub const AAD_LEN: usize = 12;

/// The direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Seal,
    Open,
}

impl Op {
    pub fn name(self) -> &'static str {
        match self {
            Op::Seal => "seal",
            Op::Open => "open",
        }
    }
}

/// Bytes at a fixed offset in a page: the offset decides which loads and stores wait for each other
/// (4 KiB aliasing), so it must be the same for all.
pub struct Placed {
    room: Vec<u8>,
    start: usize,
    len: usize,
}

impl Placed {
    fn new(bytes: &[u8], offset: usize) -> Self {
        let mut room = vec![0; bytes.len() + 4 * 4096];
        let start = room.as_ptr().align_offset(4096) + offset;
        room[start..start + bytes.len()].copy_from_slice(bytes);
        Self {
            room,
            start,
            len: bytes.len(),
        }
    }
}

impl std::ops::Deref for Placed {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.room[self.start..self.start + self.len]
    }
}

impl std::ops::DerefMut for Placed {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.room[self.start..self.start + self.len]
    }
}

/// One message, and room for its result.
pub struct Message {
    pub nonce: [u8; 12],
    pub aad: [u8; AAD_LEN],
    /// Plaintext to seal or ciphertext to open.
    pub input: Placed,
    pub output: Placed,
    pub tag: [u8; 16],
}

impl Message {
    /// A message of `len` bytes, sealed under `key` when it is to be opened.
    ///
    /// `offset` moves both its buffers within their pages.
    pub fn new(key: &[u8], op: Op, len: usize, seed: u8, offset: usize) -> Self {
        let plaintext: Vec<u8> = (0..len)
            .map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed))
            .collect();
        let mut this = Self {
            nonce: [seed; 12],
            aad: [7; AAD_LEN],
            input: Placed::new(&plaintext, 64 + offset),
            output: Placed::new(&vec![0; len], 2048 + 64 + offset),
            tag: [0; 16],
        };
        if op == Op::Open {
            let key = Key::new(key).expect("a key of a supported length");
            let tag = key.seal_in_place(Nonce::from(this.nonce), &this.aad, &mut this.input);
            this.tag = *tag.expect("a short message").as_bytes();
        }
        this
    }
}

/// An implementation under test.
pub trait Contender {
    fn name(&self) -> &str;
    /// Seals or opens one message; the nonce is the message's own.
    fn run(&mut self, op: Op, message: &mut Message);
}

/// This crate on one path.
pub struct Ours(pub Key);

impl Contender for Ours {
    fn name(&self) -> &str {
        self.0.path().name()
    }

    fn run(&mut self, op: Op, m: &mut Message) {
        match op {
            Op::Seal => {
                let out = SharedWrite::from(&mut m.output[..]);
                let tag = self.0.seal(Nonce::from(m.nonce), &m.aad, &m.input, out);
                m.tag = *tag.expect("a short message").as_bytes();
            }
            Op::Open => {
                let input = SharedRead::from(&m.input[..]);
                let tag = Tag::from(m.tag);
                self.0
                    .open(&Nonce::from(m.nonce), &m.aad, input, &tag, &mut m.output)
                    .expect("a valid tag");
            }
        }
    }
}

/// aws-lc-rs; seals in place, opens from one buffer into another.
pub struct AwsLc(pub aws::LessSafeKey);

impl AwsLc {
    pub fn new(key: &[u8]) -> Self {
        let algorithm = if key.len() == 16 {
            &aws::AES_128_GCM
        } else {
            &aws::AES_256_GCM
        };
        Self(aws::LessSafeKey::new(
            aws::UnboundKey::new(algorithm, key).expect("the key fits the algorithm"),
        ))
    }
}

impl AwsLc {
    /// Opens ciphertext and tag where they are.
    pub fn open_in_place(&self, m: &mut Message, ciphertext_and_tag: &mut [u8]) {
        let nonce = aws::Nonce::assume_unique_for_key(m.nonce);
        self.0
            .open_in_place(nonce, aws::Aad::from(m.aad), ciphertext_and_tag)
            .expect("a valid tag");
    }
}

impl Contender for AwsLc {
    fn name(&self) -> &str {
        "aws-lc-rs"
    }

    fn run(&mut self, op: Op, m: &mut Message) {
        let nonce = aws::Nonce::assume_unique_for_key(m.nonce);
        let aad = aws::Aad::from(m.aad);
        match op {
            Op::Seal => {
                let tag = self.0.seal_in_place_separate_tag(nonce, aad, &mut m.output);
                m.tag
                    .copy_from_slice(tag.expect("a short message").as_ref());
            }
            Op::Open => self
                .0
                .open_separate_gather(nonce, aad, &m.input, &m.tag, &mut m.output)
                .expect("a valid tag"),
        }
    }
}

/// ring; works in place only, so opening includes restoring the ciphertext.
pub struct Ring {
    key: ring_aead::LessSafeKey,
    scratch: Vec<u8>,
}

impl Ring {
    pub fn new(key: &[u8]) -> Self {
        let algorithm = if key.len() == 16 {
            &ring_aead::AES_128_GCM
        } else {
            &ring_aead::AES_256_GCM
        };
        let key = ring_aead::UnboundKey::new(algorithm, key).expect("the key fits the algorithm");
        Self {
            key: ring_aead::LessSafeKey::new(key),
            scratch: Vec::new(),
        }
    }
}

impl Contender for Ring {
    fn name(&self) -> &str {
        "ring"
    }

    fn run(&mut self, op: Op, m: &mut Message) {
        let nonce = ring_aead::Nonce::assume_unique_for_key(m.nonce);
        let aad = ring_aead::Aad::from(m.aad);
        match op {
            Op::Seal => {
                let tag = self
                    .key
                    .seal_in_place_separate_tag(nonce, aad, &mut m.output);
                m.tag
                    .copy_from_slice(tag.expect("a short message").as_ref());
            }
            Op::Open => {
                self.scratch.clear();
                self.scratch.extend_from_slice(&m.input);
                self.scratch.extend_from_slice(&m.tag);
                self.key
                    .open_in_place(nonce, aad, &mut self.scratch)
                    .expect("a valid tag");
            }
        }
    }
}
