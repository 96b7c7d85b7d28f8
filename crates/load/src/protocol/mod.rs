//! Protocols: what a request looks like on the wire, and where its response ends.
//!
//! None opens a socket or reads a clock. A value that is read is counted and discarded as it
//! arrives, so memory does not depend on what a server sends.

mod handshake;
mod http;
mod memcached;
mod memcached_binary;
mod resp;
mod udp;

use std::sync::LazyLock;

pub use handshake::Handshake;
pub use http::Http;
pub use memcached::{Memcached, MemcachedMeta, MemcachedText};
pub use memcached_binary::MemcachedBinary;
pub use resp::{Resp, RespVersion};
pub use udp::Udp;

use crate::workload::{Key, Request};
use crate::Unexpected;

/// The longest line or header of a response, in bytes.
pub const HEAD_MAX: usize = 16 << 10;

/// A carrier of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// A connection of TCP, with or without TLS, for many requests.
    Stream,
    /// UDP: a datagram per request, one of which is in flight per socket.
    Datagrams,
    /// A connection with TLS per request, which is its handshake.
    Handshakes,
}

/// One connection's side of a protocol.
pub trait Protocol: Send {
    /// The carrier of its requests.
    fn wire() -> Wire
    where
        Self: Sized,
    {
        Wire::Stream
    }

    /// Appends what is sent when a connection opens, and returns the number of responses to it.
    fn greet(&mut self, _out: &mut Vec<u8>) -> usize {
        0
    }

    /// Appends a request.
    fn write(&mut self, request: &Request, out: &mut Vec<u8>);

    /// Reads the start of `bytes`, up to the end of one response. What is not consumed is to be
    /// given again with more behind it.
    ///
    /// # Errors
    /// The server breaks the protocol; the connection is of no more use.
    fn read(&mut self, bytes: &[u8]) -> Result<Progress, Unexpected>;

    /// Forgets a response that has begun, and returns it if the end of the connection is its end.
    fn end(&mut self) -> Option<Response> {
        None
    }
}

/// The outcome of reading.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that are done with.
    pub consumed: usize,
    /// The response that ends there.
    pub response: Option<Response>,
}

impl Progress {
    pub(crate) fn partial(consumed: usize) -> Progress {
        Progress {
            consumed,
            response: None,
        }
    }
}

/// A whole response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// Its content.
    pub outcome: Outcome,
    /// Bytes of the value or body.
    pub body_len: u64,
    /// True if the server closes the connection after it.
    pub closes: bool,
}

impl Response {
    /// A response after which the connection stays open.
    pub(crate) fn new(outcome: Outcome, body_len: u64) -> Response {
        Response {
            outcome,
            body_len,
            closes: false,
        }
    }
}

/// The content of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// The request was served.
    #[default]
    Served,
    /// There is no such key.
    Miss,
    /// The server reports an error, in its own words or by its number.
    Refused(String),
}

/// A protocol whose responses are lines, with values between them whose length is known.
pub(crate) trait Lines {
    /// Bytes of a value, and of what ends it, that have not arrived.
    fn left(&mut self) -> &mut u64;

    /// Takes a line, or `None` at the end of a value, and returns the response that ends there.
    fn next(&mut self, line: Option<&[u8]>) -> Result<Option<Response>, Unexpected>;

    /// Reads as [`Protocol::read`] does.
    #[inline]
    fn read_lines(&mut self, bytes: &[u8]) -> Result<Progress, Unexpected> {
        let mut consumed = 0;
        loop {
            let rest = &bytes[consumed..];
            let response = if *self.left() > 0 {
                consumed += skip(self.left(), rest);
                if *self.left() > 0 {
                    return Ok(Progress::partial(consumed));
                }
                self.next(None)?
            } else {
                let Some((text, len)) = line(rest)? else {
                    return Ok(Progress::partial(consumed));
                };
                consumed += len;
                self.next(Some(text))?
            };
            if response.is_some() {
                return Ok(Progress { consumed, response });
            }
        }
    }
}

/// Skips what has arrived of `left` bytes, and returns its length.
pub(crate) fn skip(left: &mut u64, bytes: &[u8]) -> usize {
    let part = bytes
        .len()
        .min(usize::try_from(*left).unwrap_or(usize::MAX));
    *left -= part as u64;
    part
}

/// Returns the line at the start of `bytes` and its length with the end of line; `None` if it is
/// not whole yet.
fn line(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, Unexpected> {
    let searched = &bytes[..bytes.len().min(HEAD_MAX)];
    match searched.iter().position(|&byte| byte == b'\n') {
        Some(end) if end > 0 && bytes[end - 1] == b'\r' => Ok(Some((&bytes[..end - 1], end + 1))),
        None if bytes.len() < HEAD_MAX => Ok(None),
        _ => {
            let expected = "a line of up to 16 KiB that CR LF ends";
            Err(Unexpected::bytes(bytes, expected))
        }
    }
}

/// Returns the number that is written in decimal.
pub(crate) fn number(digits: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(digits).ok()?;
    (digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse().ok())?
}

/// Appends the name of a key.
pub(crate) fn write_key(key: &Key, out: &mut Vec<u8>) {
    match key {
        Key::Number(n) => {
            out.extend_from_slice(b"tare:");
            write_number(*n, out);
        }
        Key::Name(name) => out.extend_from_slice(name),
    }
}

pub(crate) fn write_number(mut number: u64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends a value of `len` bytes, of letters.
pub(crate) fn write_value(len: u32, out: &mut Vec<u8>) {
    static LETTERS: LazyLock<Vec<u8>> =
        LazyLock::new(|| (b'a'..=b'z').cycle().take(4096).collect());
    let mut left = len as usize;
    while left > 0 {
        let part = left.min(LETTERS.len());
        out.extend_from_slice(&LETTERS[..part]);
        left -= part;
    }
}
