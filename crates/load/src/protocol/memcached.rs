//! memcached's text protocol, and its meta commands.

use super::{
    number, write_key, write_number, write_value, Lines, Outcome, Progress, Protocol, Response,
};
use crate::workload::{Operation, Request};
use crate::Unexpected;

/// A client of memcached that writes commands as lines: `mg` and `ms` if `META`, and `get` and
/// `set` if not.
#[derive(Clone, Debug, Default)]
pub struct Memcached<const META: bool> {
    /// Bytes of a value and its end of line that are left.
    left: u64,
    body_len: u64,
    /// True if a value came, and its closing line or its last byte has not.
    has_value: bool,
}

/// The text protocol: `get` and `set`.
pub type MemcachedText = Memcached<false>;

/// Meta commands: `mg` and `ms`.
pub type MemcachedMeta = Memcached<true>;

impl<const META: bool> Memcached<META> {
    fn finish(&mut self, outcome: Outcome) -> Response {
        let body_len = std::mem::take(self).body_len;
        Response::new(outcome, body_len)
    }
}

impl<const META: bool> Lines for Memcached<META> {
    fn left(&mut self) -> &mut u64 {
        &mut self.left
    }

    fn next(&mut self, line: Option<&[u8]>) -> Result<Option<Response>, Unexpected> {
        let Some(text) = line else {
            // The text protocol has a line after the value.
            return Ok(META.then(|| self.finish(Outcome::Served)));
        };
        let (value, place) = match META {
            true => (&b"VA "[..], 1),
            false => (&b"VALUE "[..], 3),
        };
        if text.starts_with(value) {
            let len = text.split(|&byte| byte == b' ').nth(place);
            let len = len.and_then(number);
            let len = len.filter(|&len| len <= u64::from(u32::MAX) && !self.has_value);
            let len = len.ok_or_else(|| Unexpected::bytes(text, "one value and its length"))?;
            (self.left, self.body_len, self.has_value) = (len + 2, len, true);
            return Ok(None);
        }
        // Flags follow the two letters of a meta reply.
        let code = text.get(..2).filter(|_| META).unwrap_or(text);
        let outcome = match (META, code, self.has_value) {
            (false, b"END", true) | (false, b"STORED", false) | (true, b"HD", _) => Outcome::Served,
            (false, b"END", false) | (true, b"EN", _) => Outcome::Miss,
            (false, b"NOT_STORED", false) | (true, b"NS", _) => {
                Outcome::Refused(code.escape_ascii().to_string())
            }
            _ if text == b"ERROR"
                || text.starts_with(b"CLIENT_ERROR ")
                || text.starts_with(b"SERVER_ERROR ") =>
            {
                Outcome::Refused(text.escape_ascii().to_string())
            }
            _ => return Err(Unexpected::bytes(text, "a reply of memcached")),
        };
        Ok(Some(self.finish(outcome)))
    }
}

impl<const META: bool> Protocol for Memcached<META> {
    fn write(&mut self, request: &Request, out: &mut Vec<u8>) {
        let (command, after_key): (&[u8], &[u8]) = match (META, request.operation) {
            (false, Operation::Get) => (b"get ", b"\r\n"),
            (false, Operation::Set) => (b"set ", b" 0 0 "),
            (true, Operation::Get) => (b"mg ", b" v\r\n"),
            (true, Operation::Set) => (b"ms ", b" "),
        };
        out.extend_from_slice(command);
        write_key(&request.key, out);
        out.extend_from_slice(after_key);
        if request.operation == Operation::Set {
            write_number(request.value_len.into(), out);
            out.extend_from_slice(b"\r\n");
            write_value(request.value_len, out);
            out.extend_from_slice(b"\r\n");
        }
    }

    fn read(&mut self, bytes: &[u8]) -> Result<Progress, Unexpected> {
        self.read_lines(bytes)
    }

    fn end(&mut self) -> Option<Response> {
        *self = Memcached::default();
        None
    }
}
