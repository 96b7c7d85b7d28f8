//! Datagrams in a buffer that the node may keep.

use std::ops::Range;

use tare_sim::Instant;

use super::super::datagrams::Datagrams;
use super::{Execute, Node};

/// A buffer with what came in it, of which a [`Node`] takes one piece after the other.
///
/// Segments of a write need not be copied before the write is complete if the buffer is
/// [given away](Pieces::give) in the end.
pub struct Pieces<'a, S: Execute> {
    node: &'a mut Node<S>,
    buffer: &'a mut Box<[u8]>,
    is_given: bool,
}

impl<'a, S: Execute> Pieces<'a, S> {
    pub(super) fn new(node: &'a mut Node<S>, buffer: &'a mut Box<[u8]>) -> Pieces<'a, S> {
        Pieces {
            node,
            buffer,
            is_given: false,
        }
    }

    /// Takes the datagrams in a range of the buffer, one behind the other, as [`Node::receive`]
    /// does, but ends before a message once the replies have `enough` bytes; returns the bytes that
    /// were taken. The rest is to be given to it as another range, so that long answers to many
    /// requests leave as they are made. A range that is not within the buffer is passed over.
    #[inline]
    pub fn receive(
        &mut self,
        now: Instant,
        range: Range<usize>,
        replies: &mut Datagrams,
        enough: usize,
    ) -> usize {
        let until = self.buffer.get_mut(..range.end);
        let Some(until) = until.filter(|_| !range.is_empty()) else {
            return range.len();
        };
        (self.node).receive_from(now, until, range.start, true, replies, enough)
    }

    /// Lets the node have the buffer, of which the caller needs nothing any more. If it has use for
    /// it, there is another of the same length in its place, with any bytes.
    pub fn give(mut self) {
        self.is_given = true;
    }
}

impl<S: Execute> Drop for Pieces<'_, S> {
    #[inline]
    fn drop(&mut self) {
        (self.node.assemblies).end_buffer(self.buffer, self.is_given);
    }
}
