//! HTTP/1.1 (RFC 9112).

use std::fmt;
use std::sync::Arc;

use super::{line, Outcome, Progress, Protocol, Response, Violation, HEAD_MAX};
use crate::workload::{Key, Request};

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
    /// The response whose body is read.
    response: Response,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    /// Bytes of the body that are left.
    Body(u64),
    ChunkSize,
    /// Bytes of a chunk and its end of line that are left.
    Chunk(u64),
    Trailer,
    /// The connection ends with the body.
    UntilClose,
}

/// The reason why a request cannot be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpError(String);

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for HttpError {}

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
    ) -> Result<Http, HttpError> {
        let refuse =
            |what: &str, found: &str| Err(HttpError(format!("found {found:?}, expected {what}")));
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
            response: EMPTY,
        })
    }

    fn head(&mut self, bytes: &[u8]) -> Result<Option<usize>, Violation> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut head = httparse::Response::new(&mut fields);
        let len = match head.parse(bytes) {
            Ok(httparse::Status::Complete(len)) if len <= HEAD_MAX => len,
            Ok(httparse::Status::Partial) if bytes.len() <= HEAD_MAX => return Ok(None),
            _ => return Err(Violation::new("the header of an HTTP response", bytes)),
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
                    return Err(Violation::new("one Content-Length", field.value));
                }
                body = found;
            } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
                if !field.value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Violation::new("Transfer-Encoding: chunked", field.value));
                }
                is_chunked = true;
            } else if field.name.eq_ignore_ascii_case("connection") {
                closes = field.value.eq_ignore_ascii_case(b"close");
            }
        }
        if is_chunked && body.is_some() {
            let expected = "either Content-Length or Transfer-Encoding";
            return Err(Violation::new(expected, &bytes[..len]));
        }
        self.response = Response {
            outcome: match status {
                200..400 => Outcome::Served,
                _ => Outcome::Refused(format!("HTTP status {status}")),
            },
            body_len: 0,
            closes,
        };
        self.state = match body {
            _ if matches!(status, 204 | 304) => State::Body(0),
            _ if is_chunked => State::ChunkSize,
            Some(len) => State::Body(len),
            None => State::UntilClose,
        };
        Ok(Some(len))
    }

    fn chunk_size(&mut self, bytes: &[u8]) -> Result<Option<usize>, Violation> {
        let Some((text, len)) = line(bytes)? else {
            return Ok(None);
        };
        let digits = text.split(|&byte| byte == b';').next().unwrap_or_default();
        let digits = digits.trim_ascii();
        let size = std::str::from_utf8(digits).ok();
        let size = size.filter(|_| digits.len() <= 15 && digits.iter().all(u8::is_ascii_hexdigit));
        let size = size.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let size = size.ok_or_else(|| Violation::new("the size of a chunk", text))?;
        self.response.body_len += size;
        self.state = match size {
            0 => State::Trailer,
            size => State::Chunk(size + 2),
        };
        Ok(Some(len))
    }

    fn finish(&mut self, consumed: usize) -> Progress {
        self.state = State::Head;
        Progress {
            consumed,
            response: Some(std::mem::replace(&mut self.response, EMPTY)),
        }
    }
}

const EMPTY: Response = Response {
    outcome: Outcome::Served,
    body_len: 0,
    closes: false,
};

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

    fn read(&mut self, bytes: &[u8]) -> Result<Progress, Violation> {
        let mut consumed = 0;
        loop {
            let rest = &bytes[consumed..];
            let step = match self.state {
                State::Head => self.head(rest)?,
                State::Body(0) => return Ok(self.finish(consumed)),
                State::Body(left) => {
                    let part = rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    self.response.body_len += part as u64;
                    self.state = State::Body(left - part as u64);
                    (part > 0).then_some(part)
                }
                State::ChunkSize => self.chunk_size(rest)?,
                State::Chunk(0) => {
                    self.state = State::ChunkSize;
                    continue;
                }
                State::Chunk(left) => {
                    let part = rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    self.state = State::Chunk(left - part as u64);
                    (part > 0).then_some(part)
                }
                State::Trailer => match line(rest)? {
                    Some((b"", len)) => return Ok(self.finish(consumed + len)),
                    Some((_, len)) => Some(len),
                    None => None,
                },
                State::UntilClose => {
                    self.response.body_len += rest.len() as u64;
                    (!rest.is_empty()).then_some(rest.len())
                }
            };
            match step {
                Some(len) => consumed += len,
                None => return Ok(Progress::partial(consumed)),
            }
        }
    }

    fn end(&mut self) -> Option<Response> {
        let state = std::mem::replace(&mut self.state, State::Head);
        let mut response = std::mem::replace(&mut self.response, EMPTY);
        response.closes = true;
        (state == State::UntilClose).then_some(response)
    }
}
