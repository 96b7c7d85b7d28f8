//! Static files over HTTP/1.1 (RFC 9110, RFC 9112).
//!
//! `GET` and `HEAD` of the files below a folder, with keep-alive, pipelining, single ranges and
//! conditions. Names that begin with a dot are not there. Heads have at most [`HEAD_MAX`] bytes and
//! 64 lines; a request's body is skipped up to [`BODY_MAX`] bytes and refused beyond. A connection
//! without a whole request for [`REQUEST_TIME`] is closed.

mod date;
mod files;
mod range;
mod request;
mod target;

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use tare_sim::Instant;

use files::{Content, Entity, Files};
use range::Part;
use request::Request;
use target::Target;

use super::output::Output;
use super::{Application, Service, Time};

/// The most bytes of a request's head.
pub const HEAD_MAX: usize = 16 << 10;

/// The most bytes of a request's body that are skipped.
pub const BODY_MAX: u64 = 64 << 10;

/// The time in which a request must have come, after the one before or the connection's start.
pub const REQUEST_TIME: Duration = Duration::from_secs(75);

/// The bytes that are read from a large file at a time.
const READ_LEN: u64 = 64 << 10;

/// The folder and memory of a server of files.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// The folder whose files are served.
    pub folder: PathBuf,
    /// The most bytes of files that are kept in memory.
    pub cache_max: usize,
    /// The most bytes of a file that is kept; larger ones are read as they are sent.
    pub cached_file_max: usize,
}

/// The counters of a server, over all its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HttpCounters {
    /// Responses by the first digit of their status, 2 to 5.
    pub by_class: [u64; 4],
    /// The bytes of bodies that were queued or begun.
    pub body_bytes: u64,
}

/// A server of files: connections that share a cache.
pub struct Http {
    shared: Rc<Shared>,
}

struct Shared {
    files: RefCell<Files>,
    counters: Cell<HttpCounters>,
    /// The `Date` of a second.
    date: RefCell<(u64, String)>,
}

impl Http {
    /// Returns a server of a folder's files.
    ///
    /// # Errors
    /// The folder cannot be opened.
    pub fn new(config: &HttpConfig) -> io::Result<Http> {
        let files = Files::new(&config.folder, config.cache_max, config.cached_file_max)?;
        Ok(Http {
            shared: Rc::new(Shared {
                files: RefCell::new(files),
                counters: Cell::default(),
                date: RefCell::new((0, date::write(0))),
            }),
        })
    }

    /// The counters so far.
    pub fn counters(&self) -> HttpCounters {
        self.shared.counters.get()
    }
}

impl Service for Http {
    fn accept(&self) -> Box<dyn Application> {
        Box::new(Connection {
            shared: Rc::clone(&self.shared),
            head: Vec::new(),
            skip: 0,
            sending: None,
            waits_since: None,
            is_last: false,
            has_failed: false,
        })
    }
}

struct Connection {
    shared: Rc<Shared>,
    /// The start of a head whose end has not arrived.
    head: Vec<u8>,
    /// The bytes of a request's body that are still to come.
    skip: u64,
    sending: Option<(Rc<Entity>, Range<u64>)>,
    /// The time since which the next request is waited for, as far as that was looked at.
    waits_since: Option<Instant>,
    /// The connection ends after the current response.
    is_last: bool,
    /// A body cannot be sent as its head announced it.
    has_failed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Ok = 200,
    PartialContent = 206,
    MovedPermanently = 301,
    NotModified = 304,
    BadRequest = 400,
    Forbidden = 403,
    NotFound = 404,
    MethodNotAllowed = 405,
    PreconditionFailed = 412,
    ContentTooLarge = 413,
    UriTooLong = 414,
    RangeNotSatisfiable = 416,
    HeaderTooLarge = 431,
    InternalServerError = 500,
    NotImplemented = 501,
    VersionNotSupported = 505,
}

impl Status {
    fn reason(self) -> &'static str {
        match self {
            Status::Ok => "OK",
            Status::PartialContent => "Partial Content",
            Status::MovedPermanently => "Moved Permanently",
            Status::NotModified => "Not Modified",
            Status::BadRequest => "Bad Request",
            Status::Forbidden => "Forbidden",
            Status::NotFound => "Not Found",
            Status::MethodNotAllowed => "Method Not Allowed",
            Status::PreconditionFailed => "Precondition Failed",
            Status::ContentTooLarge => "Content Too Large",
            Status::UriTooLong => "URI Too Long",
            Status::RangeNotSatisfiable => "Range Not Satisfiable",
            Status::HeaderTooLarge => "Request Header Fields Too Large",
            Status::InternalServerError => "Internal Server Error",
            Status::NotImplemented => "Not Implemented",
            Status::VersionNotSupported => "HTTP Version Not Supported",
        }
    }
}

/// A response but for what all have.
struct Response {
    status: Status,
    /// Lines of the header, each with its end.
    fields: String,
    body: Option<(Rc<Entity>, Range<u64>)>,
}

impl From<Status> for Response {
    fn from(status: Status) -> Response {
        Response {
            status,
            fields: String::new(),
            body: None,
        }
    }
}

impl Application for Connection {
    fn receive(&mut self, bytes: &[u8], time: Time, out: &mut Output) -> usize {
        let mut rest = bytes;
        while !rest.is_empty() && !self.is_last && self.sending.is_none() && out.has_room() {
            if self.skip > 0 {
                let count = self.skip.min(rest.len() as u64);
                self.skip -= count;
                rest = &rest[count as usize..];
            } else if self.head.is_empty() && matches!(rest[0], b'\r' | b'\n') {
                // Empty lines before a request are ignored (RFC 9112 section 2.2).
                rest = &rest[1..];
            } else {
                self.take_head(&mut rest, time, out);
            }
        }
        bytes.len() - rest.len()
    }

    fn produce(&mut self, _: Time, out: &mut Output) {
        while out.has_room() {
            let Some((entity, range)) = &mut self.sending else {
                return;
            };
            let len = READ_LEN.min(range.end - range.start);
            match &entity.content {
                Content::Memory(body) => {
                    out.push_body(body, range.start as usize..range.end as usize);
                    self.sending = None;
                    return;
                }
                Content::Disk(file) => {
                    let mut bytes = vec![0; len as usize];
                    if file.read_exact_at(&mut bytes, range.start).is_err() {
                        // Shorter than its head announced: the client must not take it for whole.
                        (self.has_failed, self.sending) = (true, None);
                        return;
                    }
                    out.push_own(bytes);
                }
            }
            range.start += len;
            if range.is_empty() {
                self.sending = None;
            }
        }
    }

    fn end(&mut self, _: Time, _: &mut Output) {
        self.is_last = true;
    }

    fn wants_close(&self) -> bool {
        self.has_failed || (self.is_last && self.sending.is_none())
    }

    fn expire(&mut self, now: Instant, is_sending: bool) -> bool {
        if is_sending || self.sending.is_some() {
            self.waits_since = None;
            return false;
        }
        let since = *self.waits_since.get_or_insert(now);
        let is_late = now.since(since) >= REQUEST_TIME;
        self.is_last |= is_late;
        is_late
    }
}

impl Connection {
    /// Takes bytes up to the end of a head, and answers the request.
    fn take_head(&mut self, rest: &mut &[u8], time: Time, out: &mut Output) {
        let had = self.head.len();
        let offered = &rest[..rest.len().min(HEAD_MAX - had)];
        let whole = match had {
            0 => head_len(offered, 0),
            _ => {
                self.head.extend_from_slice(offered);
                head_len(&self.head, had.saturating_sub(3))
            }
        };
        if let Some(len) = whole {
            let mut head = std::mem::take(&mut self.head);
            head.truncate(len);
            let head = if had == 0 { &offered[..len] } else { &head };
            *rest = &rest[len - had..];
            return self.answer(head, time, out);
        }
        *rest = &rest[offered.len()..];
        if had == 0 {
            self.head.extend_from_slice(offered);
        }
        if self.head.len() == HEAD_MAX {
            let status = match self.head.contains(&b'\n') {
                true => Status::HeaderTooLarge,
                false => Status::UriTooLong,
            };
            self.is_last = true;
            self.respond(status.into(), None, time, out);
        }
    }

    fn answer(&mut self, head: &[u8], time: Time, out: &mut Output) {
        self.waits_since = None;
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let request = match Request::parse(head, &mut headers) {
            Ok(request) => request,
            Err(status) => {
                self.is_last = true;
                return self.respond(status.into(), None, time, out);
            }
        };
        self.skip = request.body_len;
        // After a final response the client may keep back a body that it asked to send.
        self.is_last = !request.keep_alive || (request.expects && self.skip > 0);
        let response = self.find(&request, time).unwrap_or_else(|status| {
            let mut response = Response::from(status);
            if status == Status::MethodNotAllowed {
                response.fields += "Allow: GET, HEAD\r\n";
            }
            response
        });
        self.respond(response, Some(&request), time, out);
    }

    fn find(&self, request: &Request<'_>, time: Time) -> Result<Response, Status> {
        match request.method {
            "GET" | "HEAD" => {}
            "POST" | "PUT" | "DELETE" | "OPTIONS" | "PATCH" | "TRACE" | "CONNECT" => {
                return Err(Status::MethodNotAllowed);
            }
            _ => return Err(Status::NotImplemented),
        }
        let target = Target::parse(request.target)?;
        let found = self.shared.files.borrow_mut().find(&target.file(), time)?;
        let Some(entity) = found else {
            if target.is_folder {
                return Err(Status::NotFound);
            }
            let mut response = Response::from(Status::MovedPermanently);
            response.fields = format!("Location: {}\r\n", target.folder());
            return Ok(response);
        };
        let mut response = Response::from(Status::Ok);
        response.fields = entity.head.clone();
        match request.failed_condition(&entity) {
            Some(Status::NotModified) => {
                response.status = Status::NotModified;
                return Ok(response);
            }
            Some(status) => return Err(status),
            None => {}
        }
        let len = entity.len;
        let mut body = 0..len;
        match request.part(&entity) {
            Part::Whole => {}
            Part::Range(range) => {
                let (first, last) = (range.start, range.end - 1);
                response.status = Status::PartialContent;
                response.fields += &format!("Content-Range: bytes {first}-{last}/{len}\r\n");
                body = range;
            }
            Part::Unsatisfiable => {
                let mut response = Response::from(Status::RangeNotSatisfiable);
                response.fields = format!("Content-Range: bytes */{len}\r\n");
                return Ok(response);
            }
        }
        response.body = Some((entity, body));
        Ok(response)
    }

    /// Queues the head of a response, and its body or what of it there is room for.
    fn respond(
        &mut self,
        response: Response,
        request: Option<&Request<'_>>,
        time: Time,
        out: &mut Output,
    ) {
        let Response {
            status,
            fields,
            body,
        } = response;
        let mut date = self.shared.date.borrow_mut();
        if date.0 != time.unix.as_secs() {
            *date = (time.unix.as_secs(), date::write(time.unix.as_secs()));
        }
        let (code, reason) = (status as u16, status.reason());
        let is_head = request.is_some_and(|request| request.method == "HEAD");
        let connection = match (self.is_last, request) {
            (true, _) => "Connection: close\r\n",
            (_, Some(request)) if request.is_old => "Connection: keep-alive\r\n",
            _ => "",
        };
        out.print(format_args!(
            "HTTP/1.1 {code} {reason}\r\nDate: {}\r\n{connection}{fields}",
            date.1
        ));
        drop(date);
        let mut counters = self.shared.counters.get();
        counters.by_class[usize::from(code / 100 - 2)] += 1;
        match body {
            Some((entity, range)) => {
                let len = range.end - range.start;
                out.print(format_args!("Content-Length: {len}\r\n\r\n"));
                if !is_head && len > 0 {
                    counters.body_bytes += len;
                    self.sending = Some((entity, range));
                }
            }
            None if status == Status::NotModified => out.push(b"\r\n"),
            None => {
                let text = format!("{code} {reason}\n");
                out.print(format_args!(
                    "Content-Type: text/plain\r\nContent-Length: {}\r\n\r\n{}",
                    text.len(),
                    if is_head { "" } else { &text },
                ));
            }
        }
        self.shared.counters.set(counters);
        self.produce(time, out);
    }
}

/// Returns the length of a head with the empty line at its end, whose end is not before `from`.
fn head_len(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    while let Some(found) = bytes.get(at..)?.iter().position(|&byte| byte == b'\n') {
        at += found + 1;
        match &bytes[at..] {
            [b'\n', ..] => return Some(at + 1),
            [b'\r', b'\n', ..] => return Some(at + 2),
            _ => {}
        }
    }
    None
}
