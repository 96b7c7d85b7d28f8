//! Frames of several chunks.

use crate::Frame;

/// A frame whose chunks are being received.
#[derive(Debug, Default)]
pub(super) enum Partial {
    /// None.
    #[default]
    Closed,
    /// The chunks so far, side by side.
    Open(Frame),
    /// It is longer than a slot: what follows of it is dropped.
    TooLong,
}

/// The result of a further chunk.
pub(super) enum Joined {
    Whole(Frame),
    Part,
    /// The last chunk of a frame that no slot holds.
    TooLong,
}

impl Partial {
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        !matches!(self, Partial::Closed)
    }

    /// Adds a chunk, behind which there are `more` of the same frame.
    ///
    /// The kernel puts the parts of a frame into whichever chunks are next in the fill ring, which
    /// has the first chunk of each slot. So the first part stays where it is, the others are copied
    /// behind it, into the chunks of the same slot that no ring knows, and their slots are free
    /// again.
    #[cold]
    pub(super) fn join(&mut self, chunk: Frame, more: bool) -> Joined {
        let joined = match std::mem::take(self) {
            Partial::Closed => Some(chunk),
            Partial::Open(mut frame) => frame
                .append(chunk.len())
                .map(|room| room.copy_from_slice(&chunk))
                .map(|()| frame),
            Partial::TooLong => None,
        };
        match (joined, more) {
            (Some(frame), false) => Joined::Whole(frame),
            (Some(frame), true) => {
                *self = Partial::Open(frame);
                Joined::Part
            }
            (None, false) => Joined::TooLong,
            (None, true) => {
                *self = Partial::TooLong;
                Joined::Part
            }
        }
    }
}

/// The end of the chunk that `at` lies in.
#[inline]
pub(super) fn boundary(at: usize, chunk: usize) -> usize {
    (at & !(chunk - 1)) + chunk
}
