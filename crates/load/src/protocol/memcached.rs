//! memcached's text protocol, and its meta commands.

use super::{
    line, number, write_key, write_number, write_value, Outcome, Progress, Protocol, Response,
    Violation,
};
use crate::workload::{Operation, Request};

/// The text protocol: `get` and `set`.
#[derive(Clone, Debug, Default)]
pub struct MemcachedText(Reply);

/// Meta commands: `mg` and `ms`.
#[derive(Clone, Debug, Default)]
pub struct MemcachedMeta(Reply);

/// A reply of either: lines, with values between them.
#[derive(Clone, Debug, Default)]
struct Reply {
    /// Bytes of a value and its end of line that are left.
    left: u64,
    body_len: u64,
    /// True if a value came, and its closing line or its last byte has not.
    has_value: bool,
}

impl Reply {
    /// Reads up to the end of one reply. `value` returns the length of a value that a line
    /// announces; `outcome` what a line that ends a reply says.
    fn read(
        &mut self,
        bytes: &[u8],
        value: impl Fn(&[u8]) -> Option<Option<u64>>,
        outcome: impl Fn(&[u8], bool) -> Option<Outcome>,
        ends_with_value: bool,
    ) -> Result<Progress, Violation> {
        let mut consumed = 0;
        loop {
            let rest = &bytes[consumed..];
            if self.left > 0 {
                let part = rest
                    .len()
                    .min(usize::try_from(self.left).unwrap_or(usize::MAX));
                self.left -= part as u64;
                consumed += part;
                if self.left > 0 {
                    return Ok(Progress::partial(consumed));
                }
                if ends_with_value {
                    return Ok(self.finish(consumed, Outcome::Served));
                }
                continue;
            }
            let Some((text, len)) = line(rest)? else {
                return Ok(Progress::partial(consumed));
            };
            consumed += len;
            if let Some(found) = value(text) {
                let found = found.filter(|&len| len <= u64::from(u32::MAX) && !self.has_value);
                let found =
                    found.ok_or_else(|| Violation::new("one value and its length", text))?;
                (self.left, self.body_len, self.has_value) = (found + 2, found, true);
                continue;
            }
            let outcome = outcome(text, self.has_value).or_else(|| {
                let is_error = text == b"ERROR"
                    || text.starts_with(b"CLIENT_ERROR ")
                    || text.starts_with(b"SERVER_ERROR ");
                is_error.then(|| Outcome::Refused(text.escape_ascii().to_string()))
            });
            let outcome = outcome.ok_or_else(|| Violation::new("a reply of memcached", text))?;
            return Ok(self.finish(consumed, outcome));
        }
    }

    fn finish(&mut self, consumed: usize, outcome: Outcome) -> Progress {
        let body_len = std::mem::take(self).body_len;
        Progress {
            consumed,
            response: Some(Response {
                outcome,
                body_len,
                closes: false,
            }),
        }
    }
}

/// The length in a line of words, of which it is the one numbered `at`.
fn length(text: &[u8], at: usize) -> Option<u64> {
    number(text.split(|&byte| byte == b' ').nth(at)?)
}

impl Protocol for MemcachedText {
    fn write(&mut self, request: &Request, out: &mut Vec<u8>) {
        match request.operation {
            Operation::Get => {
                out.extend_from_slice(b"get ");
                write_key(&request.key, out);
            }
            Operation::Set => {
                out.extend_from_slice(b"set ");
                write_key(&request.key, out);
                out.extend_from_slice(b" 0 0 ");
                write_number(request.value_len.into(), out);
                out.extend_from_slice(b"\r\n");
                write_value(request.value_len, out);
            }
        }
        out.extend_from_slice(b"\r\n");
    }

    fn read(&mut self, bytes: &[u8]) -> Result<Progress, Violation> {
        let value = |text: &[u8]| text.starts_with(b"VALUE ").then(|| length(text, 3));
        let outcome = |text: &[u8], has_value| match (text, has_value) {
            (b"END", true) | (b"STORED", false) => Some(Outcome::Served),
            (b"END", false) => Some(Outcome::Miss),
            (b"NOT_STORED", false) => Some(Outcome::Refused("NOT_STORED".into())),
            _ => None,
        };
        self.0.read(bytes, value, outcome, false)
    }

    fn end(&mut self) -> Option<Response> {
        self.0 = Reply::default();
        None
    }
}

impl Protocol for MemcachedMeta {
    fn write(&mut self, request: &Request, out: &mut Vec<u8>) {
        match request.operation {
            Operation::Get => {
                out.extend_from_slice(b"mg ");
                write_key(&request.key, out);
                out.extend_from_slice(b" v\r\n");
            }
            Operation::Set => {
                out.extend_from_slice(b"ms ");
                write_key(&request.key, out);
                out.push(b' ');
                write_number(request.value_len.into(), out);
                out.extend_from_slice(b"\r\n");
                write_value(request.value_len, out);
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    fn read(&mut self, bytes: &[u8]) -> Result<Progress, Violation> {
        let value = |text: &[u8]| text.starts_with(b"VA ").then(|| length(text, 1));
        let outcome = |text: &[u8], _| match text.get(..2)? {
            b"HD" => Some(Outcome::Served),
            b"EN" => Some(Outcome::Miss),
            b"NS" => Some(Outcome::Refused("NS".into())),
            _ => None,
        };
        self.0.read(bytes, value, outcome, true)
    }

    fn end(&mut self) -> Option<Response> {
        self.0 = Reply::default();
        None
    }
}
