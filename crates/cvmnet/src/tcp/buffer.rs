//! Memory that frames arrive in and sealed bytes leave from.

use std::ops::Range;

/// A piece of memory that the other side of the network path may be writing to: a buffer of the
/// region shared with the host, which goes back to its pool when the value is dropped.
///
/// The stack never sees it as a slice. It copies headers and small payloads out with
/// [`Buffer::read`], each byte once, and hands larger payloads on by reference, so that the first
/// to read them is what decrypts them into private memory.
pub trait Buffer {
    /// Returns the bytes of the pool that the buffer keeps from being used again.
    fn capacity(&self) -> usize;

    /// Copies the bytes from `at` on into private memory, each read once. The stack asks for
    /// nothing beyond the range that it was given with the buffer.
    fn read(&self, at: usize, to: &mut [u8]);

    /// Returns the sum of the bytes as [`tare_packet::checksum::sum`] does.
    fn sum(&self, range: Range<usize>) -> u64;
}

/// Private memory, for tests and simulations.
impl Buffer for Vec<u8> {
    fn capacity(&self) -> usize {
        self.len()
    }

    fn read(&self, at: usize, to: &mut [u8]) {
        to.copy_from_slice(&self[at..at + to.len()]);
    }

    fn sum(&self, range: Range<usize>) -> u64 {
        tare_packet::checksum::sum(&self[range])
    }
}

/// The state of a received frame's transport checksum, from the device's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// The stack verifies it.
    Unverified,
    /// The device says that it is right, or that it was never computed because the frame did not
    /// leave the machine. This protects against damage only: a host can lie about either.
    Trusted,
}

/// A frame as it came from the device.
#[derive(Debug)]
pub struct Frame<B> {
    /// The memory that it is in.
    pub buffer: B,
    /// The bytes of the Ethernet frame in that memory, behind the device's own header.
    pub range: Range<usize>,
    /// The state of its checksum.
    pub checksum: Checksum,
}

/// A part of the bytes received on a connection, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chunk<'a, B> {
    /// A buffer, and the place of the bytes in it.
    Shared(&'a B, Range<usize>),
    /// Bytes that were copied out on arrival.
    Private(&'a [u8]),
}

impl<B> Chunk<'_, B> {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Chunk::Shared(_, range) => range.len(),
            Chunk::Private(bytes) => bytes.len(),
        }
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The payload of a segment, before and after it is in a receive queue.
#[derive(Debug)]
pub(crate) enum Payload<B> {
    /// By reference.
    Shared { buffer: B, range: Range<usize> },
    /// Copied.
    Private(Vec<u8>),
}

impl<B: Buffer> Payload<B> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Payload::Shared { range, .. } => range.len(),
            Payload::Private(bytes) => bytes.len(),
        }
    }

    /// Returns the bytes of the pool that this keeps.
    pub(crate) fn pinned(&self) -> usize {
        match self {
            Payload::Shared { buffer, .. } => buffer.capacity(),
            Payload::Private(_) => 0,
        }
    }

    pub(crate) fn chunk(&self) -> Chunk<'_, B> {
        match self {
            Payload::Shared { buffer, range } => Chunk::Shared(buffer, range.clone()),
            Payload::Private(bytes) => Chunk::Private(bytes),
        }
    }

    /// Drops `n` bytes at the front; `n` is at most the length.
    pub(crate) fn trim_front(&mut self, n: usize) {
        match self {
            Payload::Shared { range, .. } => range.start += n,
            Payload::Private(bytes) => drop(bytes.drain(..n)),
        }
    }

    /// Keeps the first `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        match self {
            Payload::Shared { range, .. } => range.end = range.end.min(range.start + len),
            Payload::Private(bytes) => bytes.truncate(len),
        }
    }

    /// Returns the bytes in private memory, and gives the buffer back.
    pub(crate) fn copied(self) -> Payload<B> {
        match self {
            Payload::Shared { buffer, range } => {
                let mut bytes = vec![0; range.len()];
                buffer.read(range.start, &mut bytes);
                Payload::Private(bytes)
            }
            private => private,
        }
    }
}
