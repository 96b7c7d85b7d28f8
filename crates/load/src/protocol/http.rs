//! HTTP/1.1 (RFC 9112).

use std::sync::Arc;

use super::{Lines, Outcome, Progress, Protocol, Response, HEAD_MAX};
use crate::workload::{Key, Request};
use crate::Unexpected;

/// The largest number of header fields in a response.
const FIELDS_MAX: usize = 64;

/// A client of HTTP/1.1 that asks for resources with GET.
#[derive(Clone, Debug)]
pub struct Http {
    /// A whole request per resource.
    requests: Arc<[Vec<u8>]>,
    /// The part of a request after the path.
    head: Arc<[u8]>,
    state: State,
    /// Bytes of the body or the chunk that are left.
    left: u64,
    /// The response whose body is read.
    response: Response,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Body,
    ChunkSize,
    /// A chunk and its end of line.
    Chunk,
    Trailer,
    /// The connection ends with the body.
    UntilClose,
}

impl Http {
    /// A client of `host` (with the port, if it is not the usual one) that asks for these paths.
    /// `fields` are sent with each request.
    ///
    /// # Errors
    /// There is no path, or one, or a field, is none that can be sent.
    pub fn new(
        host: &str,
        paths: &[String],
        fields: &[(String, String)],
    ) -> Result<Http, Unexpected> {
        let refuse = |expected: &str, found: &str| Err(Unexpected::text(found, expected));
        if paths.is_empty() {
            return refuse("a path", "");
        }
        let is_sent = |byte: u8| byte.is_ascii_graphic();
        for path in paths {
            if !path.starts_with('/') || !path.bytes().all(is_sent) {
                return refuse("a path of ASCII letters that begins with /", path);
            }
        }
        let mut head = format!(" HTTP/1.1\r\nHost: {host}\r\n");
        for (name, value) in fields {
            if name.is_empty() || !name.bytes().all(|byte| is_sent(byte) && byte != b':') {
                return refuse("the name of a header field", name);
            }
            if !value.bytes().all(|byte| is_sent(byte) || byte == b' ') {
                return refuse("the value of a header field", value);
            }
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        let request = |path: &String| format!("GET {path}{head}").into_bytes();
        Ok(Http {
            requests: paths.iter().map(request).collect(),
            head: head.as_bytes().into(),
            state: State::Head,
            left: 0,
            response: Response::default(),
        })
    }

    /// Reads a header, and returns its length; `None` if it is not whole yet.
    fn head(&mut self, bytes: &[u8]) -> Result<Option<usize>, Unexpected> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut head = httparse::Response::new(&mut fields);
        let len = match head.parse(bytes) {
            Ok(httparse::Status::Complete(len)) if len <= HEAD_MAX => len,
            Ok(httparse::Status::Partial) if bytes.len() <= HEAD_MAX => return Ok(None),
            _ => return Err(Unexpected::bytes(bytes, "the header of an HTTP response")),
        };
        let status = head.code.unwrap_or(0);
        if (100..200).contains(&status) {
            return Ok(Some(len));
        }
        let mut body = None;
        let (mut is_chunked, mut closes) = (false, head.version == Some(0));
        for field in head.headers.iter() {
            if field.name.eq_ignore_ascii_case("content-length") {
                let found = super::number(field.value);
                if found.is_none() || body.is_some_and(|body| Some(body) != found) {
                    return Err(Unexpected::bytes(field.value, "one Content-Length"));
                }
                body = found;
            } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
                if !field.value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Unexpected::bytes(field.value, "Transfer-Encoding: chunked"));
                }
                is_chunked = true;
            } else if field.name.eq_ignore_ascii_case("connection") {
                closes = field.value.eq_ignore_ascii_case(b"close");
            }
        }
        if is_chunked && body.is_some() {
            let expected = "either Content-Length or Transfer-Encoding";
            return Err(Unexpected::bytes(&bytes[..len], expected));
        }
        (self.state, self.left) = match body {
            _ if matches!(status, 204 | 304) => (State::Body, 0),
            _ if is_chunked => (State::ChunkSize, 0),
            Some(len) => (State::Body, len),
            None => (State::UntilClose, 0),
        };
        self.response = Response {
            outcome: match status {
                200..400 => Outcome::Served,
                _ => Outcome::Refused(format!("HTTP status {status}")),
            },
            body_len: self.left,
            closes,
        };
        Ok(Some(len))
    }

    fn finish(&mut self) -> Option<Response> {
        self.state = State::Head;
        Some(std::mem::take(&mut self.response))
    }
}

impl Lines for Http {
    fn left(&mut self) -> &mut u64 {
        &mut self.left
    }

    fn next(&mut self, line: Option<&[u8]>) -> Result<Option<Response>, Unexpected> {
        match (self.state, line) {
            (State::ChunkSize, Some(text)) => {
                let digits = text.split(|&byte| byte == b';').next().unwrap_or_default();
                let digits = std::str::from_utf8(digits.trim_ascii()).unwrap_or_default();
                let is_size = digits.len() <= 15 && digits.bytes().all(|c| c.is_ascii_hexdigit());
                let size = u64::from_str_radix(digits, 16).ok().filter(|_| is_size);
                let size = size.ok_or_else(|| Unexpected::bytes(text, "the size of a chunk"))?;
                self.response.body_len += size;
                (self.state, self.left) = match size {
                    0 => (State::Trailer, 0),
                    size => (State::Chunk, size + 2),
                };
            }
            (State::Trailer, Some(text)) if !text.is_empty() => {}
            (State::Chunk, _) => self.state = State::ChunkSize,
            _ => return Ok(self.finish()),
        }
        Ok(None)
    }
}

impl Protocol for Http {
    fn write(&mut self, request: &Request, out: &mut Vec<u8>) {
        match &request.key {
            Key::Number(n) => {
                out.extend_from_slice(&self.requests[*n as usize % self.requests.len()]);
            }
            Key::Name(path) => {
                out.extend_from_slice(b"GET ");
                out.extend_from_slice(path);
                out.extend_from_slice(&self.head);
            }
        }
    }

    fn read(&mut self, bytes: &[u8]) -> Result<Progress, Unexpected> {
        let mut consumed = 0;
        while self.state == State::Head {
            match self.head(&bytes[consumed..])? {
                Some(len) => consumed += len,
                None => return Ok(Progress::partial(consumed)),
            }
        }
        let rest = &bytes[consumed..];
        let read = match self.state {
            State::Body if self.left == 0 => Progress {
                consumed: 0,
                response: self.finish(),
            },
            State::UntilClose => {
                self.response.body_len += rest.len() as u64;
                Progress::partial(rest.len())
            }
            _ => self.read_lines(rest)?,
        };
        consumed += read.consumed;
        Ok(Progress { consumed, ..read })
    }

    fn end(&mut self) -> Option<Response> {
        let state = std::mem::replace(&mut self.state, State::Head);
        self.left = 0;
        let mut response = std::mem::take(&mut self.response);
        response.closes = true;
        (state == State::UntilClose).then_some(response)
    }
}
