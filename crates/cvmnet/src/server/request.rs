//! Requests of RESP: arrays of bulk strings, or words in a line.

use std::borrow::Cow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use super::lines::{Line, Lines};

/// The most bytes of an inline request or of a length with its line's end.
pub const LINE_MAX: usize = 64 << 10;

/// The most arguments of a request.
pub const ARGUMENTS_MAX: usize = 1 << 20;

/// The bytes that an argument counts beside its own against the limit of a request.
pub const ARGUMENT_OVERHEAD: usize = 64;

/// The error of a request that is more than all connections together may leave unfinished.
pub(super) const TOO_MUCH: &str = "OOM unfinished requests of all connections hold too many bytes";

/// A reader of requests that may be cut anywhere. After an error there is no next request.
pub(super) struct Requests {
    lines: Lines,
    arguments: Vec<Vec<u8>>,
    /// The arguments of the array that are not whole yet; none outside of one.
    missing: usize,
    bulk: Option<Bulk>,
    /// The bytes that the arguments count.
    weight: usize,
    bulk_max: usize,
    request_max: usize,
    share: Share,
}

/// A bulk string that is arriving.
struct Bulk {
    bytes: Vec<u8>,
    len: usize,
    /// The bytes of the `\r\n` behind it that were seen.
    end: usize,
}

impl Requests {
    /// Returns a reader of bulk strings of at most `bulk_max` bytes and requests of at most
    /// `request_max`, arguments with [`ARGUMENT_OVERHEAD`]. `share` is for what is unfinished.
    pub(super) fn new(bulk_max: usize, request_max: usize, share: Share) -> Requests {
        Requests {
            lines: Lines::default(),
            arguments: Vec::new(),
            missing: 0,
            bulk: None,
            weight: 0,
            bulk_max,
            request_max,
            share,
        }
    }

    /// Takes bytes from the start of `bytes` up to the end of a request, and returns that; `None`
    /// if it has not arrived. Never an empty request.
    ///
    /// # Errors
    /// The text of the error; nothing is held any more.
    pub(super) fn next(
        &mut self,
        bytes: &mut &[u8],
    ) -> Result<Option<Vec<Vec<u8>>>, Cow<'static, str>> {
        let parsed = self.parse(bytes);
        let parsed = parsed.map_err(|error| format!("ERR Protocol error: {error}").into());
        if parsed.is_ok() && self.share.set(self.held()) {
            return parsed;
        }
        self.lines = Lines::default();
        (self.arguments, self.bulk) = (Vec::new(), None);
        self.share.set(0);
        parsed.and(Err(TOO_MUCH.into()))
    }

    /// Counts the bytes of a request that was taken and is not answered as unfinished, until the
    /// next call; returns false if they are too many.
    pub(super) fn keep(&mut self, bytes: usize) -> bool {
        self.share.set(bytes)
    }

    /// The bytes of the unfinished request that have arrived, with what each argument counts.
    fn held(&self) -> usize {
        let bulk = self.bulk.as_ref();
        let missing = bulk.map_or(0, |bulk| bulk.len - bulk.bytes.len());
        self.weight - missing + self.lines.held()
    }

    fn parse(&mut self, bytes: &mut &[u8]) -> Result<Option<Vec<Vec<u8>>>, String> {
        while !bytes.is_empty() {
            if let Some(bulk) = &mut self.bulk {
                if !bulk.take(bytes)? {
                    return Ok(None);
                }
                self.arguments.extend(self.bulk.take().map(|b| b.bytes));
                self.missing -= 1;
                if self.missing == 0 {
                    self.weight = 0;
                    return Ok(Some(std::mem::take(&mut self.arguments)));
                }
                continue;
            }
            let line = match self.lines.take(bytes, LINE_MAX) {
                Line::Whole(line) => line,
                Line::Partial => return Ok(None),
                Line::TooLong if self.missing > 0 => return Err("too big bulk count string".into()),
                Line::TooLong => return Err("too big inline request".into()),
            };
            if self.missing > 0 {
                self.begin_bulk(&line)?;
            } else if let Some(count) = line.strip_prefix(b"*") {
                let count = integer(count).filter(|&count| count <= ARGUMENTS_MAX as i64);
                let count = count.ok_or("invalid multibulk length")?;
                self.missing = usize::try_from(count).unwrap_or(0);
            } else {
                let words = words(&line).ok_or("unbalanced quotes in request")?;
                if !words.is_empty() {
                    return Ok(Some(words));
                }
            }
        }
        Ok(None)
    }

    fn begin_bulk(&mut self, line: &[u8]) -> Result<(), String> {
        let Some(len) = line.strip_prefix(b"$") else {
            let found = line.first().copied().unwrap_or(b'\r');
            return Err(format!("expected '$', got '{}'", char::from(found)));
        };
        let len = integer(len).and_then(|len| usize::try_from(len).ok());
        let len = len.filter(|&len| len <= self.bulk_max);
        let len = len.ok_or("invalid bulk length")?;
        self.weight += len + ARGUMENT_OVERHEAD;
        if self.weight > self.request_max {
            return Err("invalid multibulk length".into());
        }
        self.bulk = Some(Bulk {
            // What is only announced takes no memory.
            bytes: Vec::with_capacity(len.min(1 << 20)),
            len,
            end: 0,
        });
        Ok(())
    }
}

/// A connection's part of the bytes that all connections may hold.
pub(super) struct Share {
    all: Arc<AtomicUsize>,
    max: usize,
    bytes: usize,
}

impl Share {
    /// Returns a part of nothing. `all` counts the parts of all connections, together at most
    /// `max`.
    pub(super) fn new(all: Arc<AtomicUsize>, max: usize) -> Share {
        Share { all, max, bytes: 0 }
    }

    /// Changes the part; returns false, and changes nothing, if all would be more than they may.
    fn set(&mut self, bytes: usize) -> bool {
        if bytes > self.bytes {
            let (max, more) = (self.max, bytes - self.bytes);
            let grown = |all: usize| all.checked_add(more).filter(|all| *all <= max);
            let order = Ordering::Relaxed;
            if self.all.fetch_update(order, order, grown).is_err() {
                return false;
            }
        } else if bytes < self.bytes {
            self.all.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl Bulk {
    /// Takes more; returns true if the string and its end are whole.
    fn take(&mut self, bytes: &mut &[u8]) -> Result<bool, String> {
        let (body, rest) = bytes.split_at(bytes.len().min(self.len - self.bytes.len()));
        self.bytes.extend_from_slice(body);
        *bytes = rest;
        while self.bytes.len() == self.len && self.end < 2 {
            let Some((&byte, rest)) = bytes.split_first() else {
                return Ok(false);
            };
            // Redis skips two bytes, whatever they are; what follows a wrong length is no request.
            if byte != b"\r\n"[self.end] {
                return Err("expected CRLF after a bulk string".into());
            }
            self.end += 1;
            *bytes = rest;
        }
        Ok(self.end == 2)
    }
}

/// Returns the number of a text that is written as Redis would write it.
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_canonical = match digits {
        [b'0'] => text.len() == 1,
        [first, ..] => matches!(first, b'1'..=b'9'),
        [] => false,
    };
    let text = std::str::from_utf8(text).ok().filter(|_| is_canonical)?;
    text.parse().ok()
}

/// Returns the words of a line, which may be quoted; `None` if a quote is not closed or followed by
/// anything but a blank.
fn words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        rest = rest.trim_ascii_start();
        if rest.is_empty() {
            return Some(words);
        }
        let mut word = Vec::new();
        loop {
            rest = match rest {
                [] => break,
                [blank, ..] if blank.is_ascii_whitespace() => break,
                [quote @ (b'"' | b'\''), quoted @ ..] => {
                    let after = unquote(*quote, quoted, &mut word)?;
                    if after
                        .first()
                        .is_some_and(|byte| !byte.is_ascii_whitespace())
                    {
                        return None;
                    }
                    after
                }
                [byte, rest @ ..] => {
                    word.push(*byte);
                    rest
                }
            };
        }
        words.push(word);
    }
}

/// Appends what is quoted, and returns what is behind the closing quote.
fn unquote<'a>(quote: u8, quoted: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    let mut rest = quoted;
    loop {
        let (byte, after) = match (quote, rest) {
            (_, []) => return None,
            (_, [byte, after @ ..]) if *byte == quote => return Some(after),
            (b'"', [b'\\', b'x', high, low, after @ ..])
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                let digit = |byte: &u8| char::from(*byte).to_digit(16).unwrap_or(0) as u8;
                (digit(high) << 4 | digit(low), after)
            }
            (b'"', [b'\\', byte, after @ ..]) => match byte {
                b'n' => (b'\n', after),
                b'r' => (b'\r', after),
                b't' => (b'\t', after),
                b'b' => (8, after),
                b'a' => (7, after),
                other => (*other, after),
            },
            (b'\'', [b'\\', b'\'', after @ ..]) => (b'\'', after),
            (_, [byte, after @ ..]) => (*byte, after),
        };
        word.push(byte);
        rest = after;
    }
}
