//! Sealed bytes that are waiting to be sent or acknowledged, by reference.

use std::cell::Cell;
use std::collections::{vec_deque, VecDeque};
use std::ops::Range;

struct Queued<B> {
    buffer: B,
    /// The bytes of the buffer.
    range: Range<usize>,
    /// The position of their first byte in the stream.
    start: u64,
}

impl<B> Queued<B> {
    fn end(&self) -> u64 {
        self.start + self.range.len() as u64
    }
}

/// The bytes from the first that is not acknowledged on.
pub(crate) struct SendQueue<B> {
    queue: VecDeque<Queued<B>>,
    start: u64,
    end: u64,
    /// The piece that was looked for last: the next packet begins there or in the one behind it.
    last: Cell<usize>,
}

impl<B> SendQueue<B> {
    /// Creates an empty queue whose first byte will have this position.
    pub(crate) fn new(start: u64) -> SendQueue<B> {
        SendQueue {
            queue: VecDeque::new(),
            start,
            end: start,
            last: Cell::new(0),
        }
    }

    /// Returns the position behind the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Returns the number of bytes.
    pub(crate) fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// Returns the number of references.
    pub(crate) fn references(&self) -> usize {
        self.queue.len()
    }

    /// Adds bytes.
    pub(crate) fn push(&mut self, buffer: B, range: Range<usize>) {
        let start = self.end;
        self.end += range.len() as u64;
        if !range.is_empty() {
            self.queue.push_back(Queued {
                buffer,
                range,
                start,
            });
        }
    }

    /// Drops what is acknowledged: all below the position `at`.
    pub(crate) fn acknowledge(&mut self, at: u64) {
        let at = at.clamp(self.start, self.end);
        while let Some(first) = self.queue.front_mut() {
            let gone = (at - first.start) as usize;
            if gone < first.range.len() {
                first.range.start += gone;
                first.start = at;
                break;
            }
            self.queue.pop_front();
            self.last.set(self.last.get().saturating_sub(1));
        }
        self.start = at;
    }

    /// Drops all references.
    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        self.start = self.end;
    }

    /// Returns the length to which a packet from `at` with `len` bytes must be cut so that it
    /// consists of at most `max` pieces.
    pub(crate) fn limit(&self, at: u64, len: usize, max: usize) -> usize {
        let first = self.first(at);
        match self.queue.get(first + max) {
            Some(next) => len.min((next.start - at) as usize),
            None => len,
        }
    }

    /// Returns the pieces of the `len` bytes at `at`, which are all in the queue.
    pub(crate) fn pieces(&self, at: u64, len: usize) -> Pieces<'_, B> {
        let first = self.first(at).min(self.queue.len());
        Pieces {
            queue: Some(self.queue.range(first..)),
            at,
            len,
        }
    }

    fn first(&self, at: u64) -> usize {
        let last = self.last.get();
        for index in last..last + 2 {
            let piece = self.queue.get(index);
            if piece.is_some_and(|piece| piece.start <= at && at < piece.end()) {
                self.last.set(index);
                return index;
            }
        }
        let index = self.queue.partition_point(|piece| piece.end() <= at);
        self.last.set(index);
        index
    }
}

/// The pieces of a packet's payload, in their order: buffers and the ranges in them.
pub struct Pieces<'a, B> {
    queue: Option<vec_deque::Iter<'a, Queued<B>>>,
    at: u64,
    len: usize,
}

impl<B> Pieces<'_, B> {
    /// Returns the pieces of a packet without payload.
    pub(crate) fn none() -> Self {
        Pieces {
            queue: None,
            at: 0,
            len: 0,
        }
    }
}

impl<'a, B> Iterator for Pieces<'a, B> {
    type Item = (&'a B, Range<usize>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.len == 0 {
            return None;
        }
        let queued = self.queue.as_mut()?.next()?;
        let start = queued.range.start + (self.at - queued.start) as usize;
        let end = queued.range.end.min(start + self.len);
        self.at += (end - start) as u64;
        self.len -= end - start;
        Some((&queued.buffer, start..end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(queue: &SendQueue<Vec<u8>>, at: u64, len: usize) -> Vec<u8> {
        let pieces = queue.pieces(at, len);
        pieces
            .flat_map(|(buffer, range)| buffer[range].to_vec())
            .collect()
    }

    #[test]
    fn any_range_is_read_from_the_pieces_it_spans() {
        let mut queue = SendQueue::new(1);
        queue.push(vec![9, 1, 2, 3, 9], 1..4);
        queue.push(vec![4, 5], 0..2);
        queue.push(vec![6, 7, 8], 0..3);
        assert_eq!((queue.len(), queue.end()), (8, 9));
        assert_eq!(bytes(&queue, 1, 8), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes(&queue, 3, 4), [3, 4, 5, 6]);
        assert_eq!(queue.limit(3, 6, 2), 3);
        assert_eq!(queue.limit(3, 6, 3), 6);
        queue.acknowledge(5);
        assert_eq!((queue.len(), queue.references()), (4, 2));
        assert_eq!(bytes(&queue, 6, 2), [6, 7]);
        queue.acknowledge(100);
        assert_eq!((queue.len(), queue.references()), (0, 0));
    }
}
