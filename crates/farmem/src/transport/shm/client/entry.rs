//! Operations as entries, and what comes back.

use tare_memory::SharedMemory;

use super::Client;
use crate::operation::{Operation, SpaceId, Value};
use crate::protocol::codec::{self, code, status, Head};
use crate::protocol::Failure;
use crate::transport::shm::layout::{self, flag, to_words, Entry, Layout, READ_INLINE};

impl Client {
    /// Makes the entry of a whole operation or, at `at` > 0 or where it is too long, of a part of
    /// it; puts its data into the data area. Returns the lines that it takes there, or `None` if
    /// there is no room.
    #[inline]
    pub(super) fn entry(
        &mut self,
        space: SpaceId,
        head: &Head,
        body: &[u8],
        at: u32,
    ) -> Option<(Entry, u32)> {
        let mut entry = Entry {
            code: head.code,
            space: space.0,
            address: head.address,
            ..Entry::default()
        };
        if let Some(guard) = head.guard {
            entry.flags |= flag::GUARD;
            (entry.body[2], entry.body[3]) = (guard.lock, guard.token);
        }
        if head.code == code::READ {
            let left = head.length - at;
            entry.length = left.min(self.part_max);
            entry.address = head.address.wrapping_add(at.into());
            if entry.length as usize <= READ_INLINE {
                return Some((entry, 0));
            }
            entry.flags |= flag::AREA;
            let (line, lines) = self.area.take(entry.length)?;
            entry.line = line;
            return Some((entry, lines));
        }
        let is_write = head.code == code::WRITE;
        if body.len() <= Entry::inline_max(head.guard.is_some()) {
            let [a, b, c, d] = to_words(body);
            (entry.body[0], entry.body[1]) = (a, b);
            if head.guard.is_none() {
                (entry.body[2], entry.body[3]) = (c, d);
            }
            if is_write {
                entry.length = body.len() as u32;
            } else {
                entry.arguments = body.len() as u8;
            }
            return Some((entry, 0));
        }
        let rest = body.get(at as usize..)?;
        let part = &rest[..rest.len().min(self.part_max as usize)];
        let len = part.len() as u32;
        if !is_write {
            entry.arguments = u8::try_from(len).ok()?;
        }
        let (line, lines) = self.area.take(len)?;
        (entry.flags, entry.line) = (entry.flags | flag::AREA, line);
        if is_write {
            entry.length = len;
            if part.len() < body.len() {
                entry.flags |= flag::PART;
                entry.body[0] = u64::from(at) | (body.len() as u64) << 32;
            }
        }
        let to = self.layout.area(&self.memory, line, len)?;
        self.copier.copy(to, part)?;
        Some((entry, lines))
    }
}

/// Returns the parts of an operation; the body is the data of a write, and else in the buffer.
#[inline]
pub(super) fn encode<'a>(operation: &Operation<'a>, buffer: &'a mut Vec<u8>) -> (Head, &'a [u8]) {
    if let Operation::Write {
        address,
        data,
        guard,
    } = *operation
    {
        let head = Head {
            code: code::WRITE,
            address,
            length: data.len() as u32,
            guard,
        };
        return (head, data);
    }
    (codec::encode(operation, buffer), buffer)
}

/// Returns the outcome of an operation.
pub(super) fn outcome(code: u8, status: u8, value: u64) -> Result<Value, Failure> {
    match codec::decode_outcome(code, status, value) {
        Some(Ok(value)) => Ok(value),
        Some(Err(error)) => Err(Failure::Refused(error)),
        None if status == status::EXPIRED => Err(Failure::Timeout),
        // The node answered something that this operation cannot have.
        None => Err(Failure::OutcomeUnknown),
    }
}

/// Copies what was read, from a completion or from the data area.
#[inline]
pub(super) fn take_read(
    memory: &SharedMemory,
    layout: Layout,
    is_inline: bool,
    at: usize,
    line: u32,
    out: &mut [u8],
) {
    if !is_inline {
        if let Some(from) = layout.area(memory, line, out.len() as u32) {
            let _ = from.copy_to(out);
        }
        return;
    }
    let word = |n: usize| layout::word(memory, at, 2 + n).to_le_bytes();
    if let Ok(out) = <&mut [u8; 16]>::try_from(&mut *out) {
        out[..8].copy_from_slice(&word(0));
        out[8..].copy_from_slice(&word(1));
        return;
    }
    for (n, bytes) in out.chunks_mut(8).enumerate() {
        bytes.copy_from_slice(&word(n)[..bytes.len()]);
    }
}
