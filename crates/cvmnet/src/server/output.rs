//! A connection's queue of plaintext to be sealed, in pieces that are not copied.

use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// A value's or a file's bytes, shared by their owner and every queue that they stand in.
///
/// Not `Arc<[u8]>`: bytes arrive in a vector, and would be copied to be counted. Behind an
/// `Arc<Vec<u8>>` they stay where they arrived.
pub type Body = Arc<Vec<u8>>;

/// The most slices that [`Output::pieces`] returns.
pub const PIECES_MAX: usize = 8;

/// Shorter ones are copied: a piece costs more than so many bytes.
const COPY_BELOW: usize = 512;

/// The length at which an own piece is not appended to any more: what was sent of it is freed with
/// the whole.
const OWN_FULL: usize = 16 << 10;

#[derive(Debug)]
enum Piece {
    Own(Vec<u8>),
    Shared(Body, Range<usize>),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Piece::Own(bytes) => bytes,
            Piece::Shared(body, range) => &body[range.clone()],
        }
    }
}

/// The queue of what is to be sealed, in the order of its bytes.
///
/// Applications stop appending when it has no room; what they append last may exceed the limit by
/// one response's head and one body.
#[derive(Debug)]
pub struct Output {
    pieces: VecDeque<Piece>,
    /// The bytes of the first piece that were consumed.
    consumed: usize,
    len: usize,
    limit: usize,
    /// The last own piece that was consumed, for the next one.
    spare: Vec<u8>,
}

impl Output {
    /// Returns an empty queue that has room while it holds less than `limit` bytes.
    pub fn new(limit: usize) -> Output {
        Output {
            pieces: VecDeque::new(),
            consumed: 0,
            len: 0,
            limit,
            spare: Vec::new(),
        }
    }

    /// The number of bytes that are queued.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns true if an application may append.
    pub fn has_room(&self) -> bool {
        self.len < self.limit
    }

    /// Appends bytes by copying them.
    pub fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.len += bytes.len();
        match self.pieces.back_mut() {
            Some(Piece::Own(last)) if last.len() < OWN_FULL => last.extend_from_slice(bytes),
            _ => {
                let mut own = std::mem::take(&mut self.spare);
                own.extend_from_slice(bytes);
                self.pieces.push_back(Piece::Own(own));
            }
        }
    }

    /// Appends formatted text: `out.print(format_args!(…))`.
    pub fn print(&mut self, text: fmt::Arguments<'_>) {
        // The writer below never fails.
        let _ = fmt::Write::write_fmt(self, text);
    }

    /// Appends a vector without a copy.
    pub fn push_own(&mut self, bytes: Vec<u8>) {
        if bytes.len() < COPY_BELOW {
            return self.push(&bytes);
        }
        self.len += bytes.len();
        self.pieces.push_back(Piece::Own(bytes));
    }

    /// Appends a part of a body without a copy, unless it is short. The part must be within it: a
    /// range that is not is cut.
    pub fn push_body(&mut self, body: &Body, range: Range<usize>) {
        let end = range.end.min(body.len());
        let range = range.start.min(end)..end;
        if range.len() < COPY_BELOW {
            return self.push(&body[range]);
        }
        self.len += range.len();
        self.pieces
            .push_back(Piece::Shared(Arc::clone(body), range));
    }

    /// Returns the first bytes of the queue: at most [`PIECES_MAX`] slices of together at most
    /// `max` bytes, none empty.
    pub fn pieces(&self, max: usize) -> Pieces<'_> {
        let mut pieces = Pieces {
            slices: [&[]; PIECES_MAX],
            count: 0,
        };
        let (mut skip, mut left) = (self.consumed, max);
        for piece in self.pieces.iter().take(PIECES_MAX) {
            if left == 0 {
                break;
            }
            let bytes = &piece.bytes()[skip..];
            let bytes = &bytes[..bytes.len().min(left)];
            pieces.slices[pieces.count] = bytes;
            pieces.count += 1;
            left -= bytes.len();
            skip = 0;
        }
        pieces
    }

    /// Removes the first `count` bytes, or all if there are fewer.
    pub fn consume(&mut self, count: usize) {
        let mut left = count.min(self.len);
        self.len -= left;
        while let Some(first) = self.pieces.front() {
            let here = first.bytes().len() - self.consumed;
            if left < here {
                self.consumed += left;
                return;
            }
            left -= here;
            self.consumed = 0;
            if let Some(Piece::Own(mut own)) = self.pieces.pop_front() {
                if own.capacity() <= 2 * OWN_FULL {
                    own.clear();
                    self.spare = own;
                }
            }
        }
    }
}

impl fmt::Write for Output {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

/// The slices that [`Output::pieces`] returns.
#[derive(Debug)]
pub struct Pieces<'a> {
    slices: [&'a [u8]; PIECES_MAX],
    count: usize,
}

impl<'a> Deref for Pieces<'a> {
    type Target = [&'a [u8]];

    fn deref(&self) -> &[&'a [u8]] {
        &self.slices[..self.count]
    }
}
