//! A message that lies in several pieces on either side.

use crate::kernel::{Kernel, Progress};
use crate::once::{copy_in, copy_out};
use crate::portable::{self, PortableStream};
use crate::schedule::Schedule;

/// The longest step of any path, in bytes.
const STEP_LEN_MAX: usize = 256;

/// The state of a message on one of the paths.
#[allow(clippy::large_enum_variant)] // it lives on the stack for one call
pub(crate) enum Stream<'k> {
    Native {
        schedule: &'k Schedule,
        kernel: &'static Kernel,
        progress: Progress,
    },
    Portable(PortableStream<'k>),
}

/// The work on the bytes of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "comparison"), allow(dead_code, reason = "two readings"))]
pub(crate) enum Work {
    Seal,
    Open,
    /// The first of two readings: the tag is right, and the plaintext has gaps.
    Hash,
    /// The second: the plaintext is whole, and the tag means nothing.
    Decrypt,
}

impl Stream<'_> {
    fn step_len(&self) -> usize {
        match self {
            Stream::Native { kernel, .. } => kernel.shape.step_len,
            Stream::Portable(_) => portable::STEP_LEN,
        }
    }

    /// Bytes in the head of the message, which comes before the steps; 0 when it is done.
    fn head_len(&self) -> usize {
        match self {
            Stream::Native {
                kernel, progress, ..
            } if progress.is_new() => kernel.shape.head_len,
            _ => 0,
        }
    }

    /// The head, when it is still to be done, and `count` steps.
    ///
    /// # Safety
    /// The head and the steps must be readable at `src` and writable at `dst`, the same or without
    /// overlap.
    unsafe fn steps(&mut self, work: Work, src: *const u8, dst: *mut u8, count: usize) {
        // SAFETY: the caller's contract; a kernel is only ever paired with a schedule filled for it
        // on a processor that has its instructions (Key::with_path).
        unsafe {
            match self {
                Stream::Native {
                    schedule,
                    kernel,
                    progress,
                } => {
                    let steps = match work {
                        Work::Seal => kernel.seal_steps,
                        Work::Open => kernel.open_steps,
                        Work::Hash => kernel.hash_steps,
                        Work::Decrypt => kernel.decrypt_steps,
                    };
                    steps(schedule, progress, src, dst, count);
                }
                Stream::Portable(stream) => {
                    for at in (0..count).map(|i| i * portable::STEP_LEN) {
                        stream.step(work == Work::Seal, src.add(at), dst.add(at));
                    }
                }
            }
        }
    }

    /// # Safety
    /// As for `steps`, with `len` bytes, fewer than a step (or than the head, when it is still to
    /// be done).
    unsafe fn finish(&mut self, work: Work, src: *const u8, dst: *mut u8, len: usize) -> u128 {
        // SAFETY: as in `steps`.
        unsafe {
            match self {
                Stream::Native {
                    schedule,
                    kernel,
                    progress,
                } => {
                    let finish = match work {
                        Work::Seal => kernel.seal_finish,
                        _ => kernel.open_finish,
                    };
                    finish(schedule, progress, src, dst, len)
                }
                Stream::Portable(stream) => stream.last(work == Work::Seal, src, dst, len),
            }
        }
    }

    /// Seals or opens a whole message of `len` bytes and returns its tag.
    ///
    /// Steps that lie in one piece on both sides are worked on where they are. A step across a
    /// border is staged in private memory: copied in once, or out once, by the bytes. The caller
    /// wipes the stage, with the rest of the stack.
    ///
    /// # Safety
    /// The pieces on either side must add up to `len`, be readable or writable, and not overlap but
    /// where source and destination are the same.
    pub(crate) unsafe fn run(
        mut self,
        work: Work,
        src: &mut Pieces<impl Iterator<Item = (*mut u8, usize)>>,
        dst: &mut Pieces<impl Iterator<Item = (*mut u8, usize)>>,
        len: usize,
    ) -> u128 {
        let step_len = self.step_len();
        let mut stage = [0u8; STEP_LEN_MAX];
        let mut left = len;
        // SAFETY: each branch takes as many bytes as it hands on, and no more than the pieces have
        // left.
        unsafe {
            loop {
                let head_len = self.head_len();
                let contiguous = src.contiguous().min(dst.contiguous()).min(left);
                let direct = contiguous.checked_sub(head_len).map(|rest| rest / step_len);
                if let Some(count) = direct.filter(|count| head_len > 0 || *count > 0) {
                    let bytes = head_len + count * step_len;
                    self.steps(work, src.take(bytes), dst.take(bytes), count);
                    left -= bytes;
                    continue;
                }
                let (whole, count) = if head_len > 0 {
                    (head_len, 0)
                } else {
                    (step_len, 1)
                };
                let bytes = left.min(whole);
                let last = left < whole;
                let from = if src.contiguous() >= bytes {
                    Some(src.take(bytes).cast_const())
                } else {
                    src.copy_in(&mut stage[..bytes]);
                    None
                };
                let direct = dst.contiguous() >= bytes;
                // One pointer for both sides: the stage may be worked on in place.
                let on_stage = stage.as_mut_ptr();
                let from = from.unwrap_or(on_stage);
                let to = if direct { dst.take(bytes) } else { on_stage };
                let mut tag = 0;
                if last {
                    tag = self.finish(work, from, to, bytes);
                } else {
                    self.steps(work, from, to, count);
                }
                if !direct {
                    dst.copy_out(&stage[..bytes]);
                }
                if last {
                    return tag;
                }
                left -= bytes;
            }
        }
    }
}

/// A position in a list of pieces of memory.
pub(crate) struct Pieces<I> {
    rest: I,
    start: *mut u8,
    left: usize,
}

impl<I: Iterator<Item = (*mut u8, usize)>> Pieces<I> {
    pub(crate) fn new(pieces: I) -> Self {
        let mut this = Self {
            rest: pieces,
            start: core::ptr::null_mut(),
            left: 0,
        };
        this.skip_empty();
        this
    }

    fn skip_empty(&mut self) {
        while self.left == 0 {
            match self.rest.next() {
                Some((start, len)) => (self.start, self.left) = (start, len),
                None => return,
            }
        }
    }

    /// Bytes before the next border.
    fn contiguous(&self) -> usize {
        self.left
    }

    /// The address of the next `bytes` bytes, at most [`Pieces::contiguous`], which it moves past.
    ///
    /// # Safety
    /// The pieces must be what they claim to be.
    unsafe fn take(&mut self, bytes: usize) -> *mut u8 {
        debug_assert!(bytes <= self.left);
        let start = self.start;
        // SAFETY: the piece has `bytes` more bytes.
        self.start = unsafe { start.add(bytes) };
        self.left -= bytes;
        self.skip_empty();
        start
    }

    /// # Safety
    /// The pieces must have `to.len()` more bytes, readable.
    unsafe fn copy_in(&mut self, mut to: &mut [u8]) {
        while !to.is_empty() && self.left > 0 {
            let bytes = to.len().min(self.left);
            let (now, rest) = to.split_at_mut(bytes);
            // SAFETY: both sides have `bytes` bytes.
            unsafe { copy_in(self.take(bytes), now.as_mut_ptr(), bytes) };
            to = rest;
        }
    }

    /// # Safety
    /// The pieces must have `from.len()` more bytes, writable.
    unsafe fn copy_out(&mut self, mut from: &[u8]) {
        while !from.is_empty() && self.left > 0 {
            let bytes = from.len().min(self.left);
            let (now, rest) = from.split_at(bytes);
            // SAFETY: both sides have `bytes` bytes.
            unsafe { copy_out(now.as_ptr(), self.take(bytes), bytes) };
            from = rest;
        }
    }
}

/// Very long messages, from a state that claims to be near their end.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Block;
    use crate::{Key, Path};
    use aes::cipher::{Array, BlockCipherEncrypt, KeyInit};
    use ghash::universal_hash::UniversalHash;
    use ghash::GHash;

    const NONCE: [u8; 12] = [3; 12];
    /// Two steps and an end of any path.
    const STEPS: usize = 2 * STEP_LEN_MAX;
    const END: usize = 37;

    /// The encryption of the block with this counter.
    fn encrypted(key: &[u8], nonce: &[u8; 12], counter: u32) -> aes::Block {
        let mut block = Array::default();
        block[..12].copy_from_slice(nonce);
        block[12..].copy_from_slice(&counter.to_be_bytes());
        match key.len() {
            16 => aes::Aes128Enc::new_from_slice(key).map(|aes| aes.encrypt_block(&mut block)),
            _ => aes::Aes256Enc::new_from_slice(key).map(|aes| aes.encrypt_block(&mut block)),
        }
        .expect("16 or 32 bytes");
        block
    }

    /// The tag of a message whose hash was zero before its last bytes.
    fn tag(key: &[u8], last: &[u8], data_len: u64) -> u128 {
        let mut h = Array::default();
        match key.len() {
            16 => aes::Aes128Enc::new_from_slice(key).map(|aes| aes.encrypt_block(&mut h)),
            _ => aes::Aes256Enc::new_from_slice(key).map(|aes| aes.encrypt_block(&mut h)),
        }
        .expect("16 or 32 bytes");
        let mut hash = GHash::new(&h);
        hash.update_padded(last);
        let mut lengths = Array::default();
        lengths[8..].copy_from_slice(&(data_len * 8).to_be_bytes());
        hash.update(&[lengths]);
        let mask = encrypted(key, &NONCE, 1);
        u128::from_le_bytes(hash.finalize().into()) ^ u128::from_le_bytes(mask.into())
    }

    /// A message of which so many bytes are done, with a hash of zero.
    fn after<'k>(key: &'k Key, bytes: &[u8], data_len: u64) -> Stream<'k> {
        let mut stream = key.stream(&NONCE.into(), &[]);
        match &mut stream {
            Stream::Native { progress, .. } => {
                progress.data_len = data_len;
                progress.tag_mask = Block(encrypted(bytes, &NONCE, 1).into());
            }
            Stream::Portable(stream) => stream.data_len = data_len,
        }
        stream
    }

    #[test]
    fn counter_and_length_of_the_longest_message_are_right() {
        // The first counter after what is done; the last of a message is 2^32 − 1.
        let counters = [
            (1 << 20) + 16,
            (1 << 24) + 16,
            (1 << 28) + 32,
            (1 << 31) - 16,
            u32::MAX - 63,
        ];
        for path in Path::available() {
            for bytes in [vec![7; 16], vec![7; 32]] {
                let key = Key::with_path(&bytes, path).expect("an available path");
                for first in counters {
                    let done = (u64::from(first) - 2) * 16;
                    let keystream: Vec<u8> = (0..(STEPS + END).div_ceil(16) as u32)
                        .flat_map(|i| <[u8; 16]>::from(encrypted(&bytes, &NONCE, first + i)))
                        .collect();
                    let mut stream = after(&key, &bytes, done);
                    let mut data = [0; STEPS];
                    let p = data.as_mut_ptr();
                    // SAFETY: whole steps in place, within `data`.
                    unsafe { stream.steps(Work::Seal, p, p, STEPS / stream.step_len()) };
                    assert_eq!(data[..], keystream[..STEPS], "{path}, {first:#x}");

                    let mut stream = after(&key, &bytes, done);
                    let mut end = [0; END];
                    let p = end.as_mut_ptr();
                    // SAFETY: less than a step in place, within `end`.
                    let computed = unsafe { stream.finish(Work::Seal, p, p, END) };
                    assert_eq!(end[..], keystream[..END], "{path}, {first:#x}");
                    let expected = tag(&bytes, &end, done + END as u64);
                    assert_eq!(computed, expected, "{path}, {first:#x}");
                }
            }
        }
    }

    /// The counter after the last block of the longest message is 2^32: it must not be computed
    /// with a check for overflow.
    #[test]
    fn the_longest_message_ends_without_overflow() {
        for path in Path::available() {
            let bytes = [7; 16];
            let key = Key::with_path(&bytes, path).expect("an available path");
            let mut stream = after(&key, &bytes, crate::MESSAGE_LEN_MAX);
            let mut end = [0; 1];
            let p = end.as_mut_ptr();
            // SAFETY: no bytes at all.
            let computed = unsafe { stream.finish(Work::Seal, p, p, 0) };
            assert_eq!(computed, tag(&bytes, &[], crate::MESSAGE_LEN_MAX), "{path}");
        }
    }
}
