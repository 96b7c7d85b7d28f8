//! Repeated work on one path, to be timed.

use crate::{open_batch, seal_batch, OpenPacket};
use crate::{Error, Key, Nonce, Path, SealPacket, SharedRead, SharedWrite, Tag};
use std::time::{Duration, Instant};

/// The direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// From private to shared memory.
    Seal,
    /// From shared to private memory.
    Open,
}

/// Messages of one length, sealed or opened over and over.
pub struct Workload {
    key: Key,
    op: Op,
    len: usize,
    batch: usize,
    inputs: Vec<u8>,
    outputs: Vec<u8>,
    tags: Vec<Tag>,
}

const AAD: [u8; 12] = [7; 12];

impl Workload {
    /// `batch` messages of `len` bytes, with 12 bytes of additional data; a batch of 1 is timed by
    /// single calls.
    ///
    /// # Errors
    /// [`Error::PathUnavailable`] and [`Error::KeyLength`].
    pub fn new(
        path: Path,
        key_len: usize,
        op: Op,
        len: usize,
        batch: usize,
    ) -> Result<Self, Error> {
        let key = Key::with_path(&vec![9; key_len], path)?;
        let mut inputs: Vec<u8> = (0..len * batch).map(|i| i as u8).collect();
        let mut tags = vec![Tag::from([0; 16]); batch];
        if op == Op::Open && len > 0 {
            for (i, (message, tag)) in inputs.chunks_exact_mut(len).zip(&mut tags).enumerate() {
                *tag = key.seal_in_place(nonce(i), &AAD, message)?;
            }
        }
        Ok(Self {
            key,
            op,
            len,
            batch,
            outputs: vec![0; inputs.len()],
            inputs,
            tags,
        })
    }

    /// Bytes of payload in one repetition.
    pub fn bytes(&self) -> u64 {
        (self.len * self.batch) as u64
    }

    /// Repeats the work and returns the time taken.
    ///
    /// # Errors
    /// Those of sealing and opening; none are expected.
    pub fn run(&mut self, repetitions: u32) -> Result<Duration, Error> {
        let start = Instant::now();
        for _ in 0..repetitions {
            if self.batch == 1 {
                self.one()?;
            } else {
                self.many()?;
            }
        }
        Ok(start.elapsed())
    }

    fn one(&mut self) -> Result<(), Error> {
        match self.op {
            Op::Seal => {
                let out = SharedWrite::from(&mut self.outputs[..]);
                self.tags[0] = self.key.seal(nonce(0), &AAD, &self.inputs, out)?;
                Ok(())
            }
            Op::Open => {
                let input = SharedRead::from(&self.inputs[..]);
                self.key
                    .open(&nonce(0), &AAD, input, &self.tags[0], &mut self.outputs)
            }
        }
    }

    fn many(&mut self) -> Result<(), Error> {
        let len = self.len.max(1);
        let pairs = self
            .inputs
            .chunks_exact(len)
            .zip(self.outputs.chunks_exact_mut(len))
            .enumerate();
        match self.op {
            Op::Seal => {
                let mut packets = Vec::with_capacity(self.batch);
                for (i, (input, output)) in pairs {
                    packets.push(SealPacket::new(
                        &self.key,
                        nonce(i),
                        &AAD,
                        input,
                        SharedWrite::from(output),
                    )?);
                }
                seal_batch(&mut packets);
                for (tag, packet) in self.tags.iter_mut().zip(&packets) {
                    *tag = packet.tag().unwrap_or(*tag);
                }
            }
            Op::Open => {
                let mut packets = Vec::with_capacity(self.batch);
                for (i, (input, output)) in pairs {
                    let input = SharedRead::from(input);
                    packets.push(OpenPacket::new(
                        &self.key,
                        nonce(i),
                        &AAD,
                        input,
                        self.tags[i],
                        output,
                    )?);
                }
                if open_batch(&mut packets) != packets.len() {
                    return Err(Error::Forged);
                }
            }
        }
        Ok(())
    }
}

fn nonce(i: usize) -> Nonce {
    let mut nonce = [3; Nonce::LEN];
    nonce[4..].copy_from_slice(&(i as u64).to_be_bytes());
    Nonce::from(nonce)
}
