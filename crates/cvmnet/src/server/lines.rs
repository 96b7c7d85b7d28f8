//! Lines of a stream that may be cut anywhere.

use std::borrow::Cow;

/// The start of a line whose end has not arrived.
#[derive(Default)]
pub(super) struct Lines {
    partial: Vec<u8>,
}

/// The outcome of looking for a line.
pub(super) enum Line<'a> {
    /// A line without its end, which is `\n` or `\r\n`.
    Whole(Cow<'a, [u8]>),
    /// All bytes were taken, and the end is not among them.
    Partial,
    /// The line has more bytes than it may.
    TooLong,
}

impl Lines {
    /// The bytes that are held.
    pub(super) fn held(&self) -> usize {
        self.partial.len()
    }

    /// Takes the next line, of at most `max` bytes with its end, from the start of `bytes`. It is
    /// copied only if it was cut.
    pub(super) fn take<'a>(&mut self, bytes: &mut &'a [u8], max: usize) -> Line<'a> {
        let allowed = max.saturating_sub(self.partial.len()).min(bytes.len());
        let Some(end) = bytes[..allowed].iter().position(|&byte| byte == b'\n') else {
            if allowed < bytes.len() || self.partial.len() + allowed >= max {
                return Line::TooLong;
            }
            self.partial.extend_from_slice(bytes);
            *bytes = &[];
            return Line::Partial;
        };
        let (line, rest) = bytes.split_at(end);
        *bytes = &rest[1..];
        if self.partial.is_empty() {
            return Line::Whole(Cow::Borrowed(line.strip_suffix(b"\r").unwrap_or(line)));
        }
        let mut whole = std::mem::take(&mut self.partial);
        whole.extend_from_slice(line);
        if whole.last() == Some(&b'\r') {
            whole.pop();
        }
        Line::Whole(Cow::Owned(whole))
    }
}
