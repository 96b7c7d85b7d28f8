//! Segments of a write that are in the buffers that they arrived in.

use super::super::message::Request;

/// The most buffers that are kept of those that segments arrived in, and the most segments that
/// stay in them.
pub(super) const BUFFERS_MAX: usize = 4;
const SEGMENTS_MAX: usize = 1024;

/// The place of a segment in the buffer that it arrived in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    /// The bytes of the buffer before the segment's message.
    pub(super) before: &'a [u8],
    /// The place of the segment's bytes in the buffer.
    pub(super) body_at: usize,
}

/// A segment and its place.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// Its place in the write.
    offset: u32,
    len: u32,
    /// Its buffer among those that are kept; their number for the present one.
    buffer: usize,
    /// Its place there.
    at: usize,
}

impl Held {
    /// Returns its bytes; `present` is the buffer that the present requests came in.
    #[inline]
    fn bytes<'a>(&self, buffers: &'a [Box<[u8]>], present: &'a [u8]) -> &'a [u8] {
        let buffer = buffers.get(self.buffer).map_or(present, |kept| &kept[..]);
        let bytes = buffer.get(self.at..self.at + self.len as usize);
        bytes.unwrap_or_default()
    }
}

/// The segments of one write, and the buffers that they are in. The present one is that which
/// requests come in at the moment.
#[derive(Debug, Default)]
pub(super) struct HeldSegments {
    /// In the order of their arrival.
    segments: Vec<Held>,
    buffers: Vec<Box<[u8]>>,
    /// Buffers that are free.
    spares: Vec<Box<[u8]>>,
}

impl HeldSegments {
    /// Adds a segment that is in the present buffer; returns false if there are too many.
    #[inline]
    pub(super) fn push(&mut self, request: &Request<'_>, place: Place<'_>) -> bool {
        let has_room = self.segments.len() < SEGMENTS_MAX;
        if has_room {
            self.segments.push(Held {
                offset: request.offset,
                len: request.body.len() as u32,
                buffer: self.buffers.len(),
                at: place.body_at,
            });
        }
        has_room
    }

    /// Returns the offset and the bytes of each segment.
    pub(super) fn all<'a>(&'a self, present: &'a [u8]) -> impl Iterator<Item = (u32, &'a [u8])> {
        let segments = self.segments.iter();
        segments.map(|segment| (segment.offset, segment.bytes(&self.buffers, present)))
    }

    /// Calls `write` with a function that fills one part of the whole write after the other.
    /// `last`, the segment that came last, is behind `before` in the present buffer.
    pub(super) fn gather<R>(
        &mut self,
        before: &[u8],
        last: &[u8],
        write: impl FnOnce(&mut dyn FnMut(&mut [u8])) -> R,
    ) -> R {
        self.segments.sort_unstable_by_key(|segment| segment.offset);
        let mut segments = self.segments.iter().map(|segment| {
            let is_last = segment.buffer == self.buffers.len() && segment.at >= before.len();
            match is_last {
                true => last,
                false => segment.bytes(&self.buffers, before),
            }
        });
        let mut segment: &[u8] = &[];
        let written = write(&mut |mut to| {
            while !to.is_empty() {
                if segment.is_empty() {
                    segment = segments.next().unwrap_or_default();
                }
                let len = segment.len().min(to.len());
                if len == 0 {
                    break;
                }
                let (now, later) = std::mem::take(&mut to).split_at_mut(len);
                now.copy_from_slice(&segment[..len]);
                (to, segment) = (later, &segment[len..]);
            }
        });
        self.release();
        written
    }

    /// Forgets the segments; their buffers are free.
    pub(super) fn release(&mut self) {
        self.segments.clear();
        self.spares.append(&mut self.buffers);
        self.spares.truncate(BUFFERS_MAX);
    }

    /// Returns true if there are segments in the present buffer.
    #[inline]
    pub(super) fn needs_present(&self) -> bool {
        let last = self.segments.last();
        last.is_some_and(|last| last.buffer == self.buffers.len())
    }

    /// Keeps the present buffer and puts another in its place; returns false if there are too many.
    pub(super) fn keep(&mut self, buffer: &mut Box<[u8]>) -> bool {
        let has_room = self.buffers.len() < BUFFERS_MAX;
        if has_room {
            let spare = self.spares.pop();
            let spare = spare.filter(|spare| spare.len() == buffer.len());
            let spare = spare.unwrap_or_else(|| vec![0; buffer.len()].into());
            self.buffers.push(std::mem::replace(buffer, spare));
        }
        has_room
    }

    /// Returns the numbers of buffers that are kept, and that are free.
    #[cfg(test)]
    pub(super) fn buffers(&self) -> (usize, usize) {
        (self.buffers.len(), self.spares.len())
    }
}
