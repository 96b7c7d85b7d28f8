//! A request's head, as far as it matters here.

use httparse::Header;

use super::files::Entity;
use super::range::{self, Part};
use super::{date, Status, BODY_MAX};

/// A request that can be answered.
pub(super) struct Request<'a> {
    pub(super) method: &'a str,
    pub(super) target: &'a str,
    /// HTTP/1.0.
    pub(super) is_old: bool,
    pub(super) keep_alive: bool,
    /// The client waits for leave to send its body.
    pub(super) expects: bool,
    pub(super) body_len: u64,
    range: Option<&'a [u8]>,
    if_range: Option<&'a [u8]>,
    if_match: Option<&'a [u8]>,
    if_unmodified_since: Option<&'a [u8]>,
    if_none_match: Option<&'a [u8]>,
    if_modified_since: Option<&'a [u8]>,
}

impl<'a> Request<'a> {
    /// Parses a whole head.
    ///
    /// # Errors
    /// The status of a request whose end is not known, or that is refused before it is read on:
    /// the connection cannot go on.
    pub(super) fn parse(head: &'a [u8], headers: &mut [Header<'a>]) -> Result<Request<'a>, Status> {
        let mut parsed = httparse::Request::new(headers);
        match parsed.parse(head) {
            Ok(httparse::Status::Complete(_)) => {}
            Ok(httparse::Status::Partial) => return Err(Status::BadRequest),
            Err(httparse::Error::TooManyHeaders) => return Err(Status::HeaderTooLarge),
            Err(httparse::Error::Version) => return Err(Status::VersionNotSupported),
            Err(_) => return Err(Status::BadRequest),
        }
        let is_old = parsed.version == Some(0);
        let mut request = Request {
            method: parsed.method.ok_or(Status::BadRequest)?,
            target: parsed.path.ok_or(Status::BadRequest)?,
            is_old,
            keep_alive: !is_old,
            expects: false,
            body_len: 0,
            range: None,
            if_range: None,
            if_match: None,
            if_unmodified_since: None,
            if_none_match: None,
            if_modified_since: None,
        };
        let (mut hosts, mut lengths, mut is_coded) = (0, 0, false);
        for header in parsed.headers.iter() {
            let value = header.value.trim_ascii();
            match &header.name.to_ascii_lowercase()[..] {
                "host" => hosts += 1,
                "content-length" => {
                    lengths += 1;
                    let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
                    let text = std::str::from_utf8(value).ok().filter(|_| is_number);
                    let text = text.ok_or(Status::BadRequest)?;
                    request.body_len = text.parse().unwrap_or(u64::MAX);
                }
                "transfer-encoding" => is_coded = true,
                "expect" => request.expects = true,
                "connection" => {
                    for word in value.split(|&byte| byte == b',') {
                        let word = word.trim_ascii();
                        let is_close = word.eq_ignore_ascii_case(b"close");
                        let is_keep = is_old && word.eq_ignore_ascii_case(b"keep-alive");
                        request.keep_alive = (request.keep_alive || is_keep) && !is_close;
                    }
                }
                "range" => request.range = Some(value),
                "if-range" => request.if_range = Some(value),
                "if-match" => request.if_match = Some(value),
                "if-unmodified-since" => request.if_unmodified_since = Some(value),
                "if-none-match" => request.if_none_match = Some(value),
                "if-modified-since" => request.if_modified_since = Some(value),
                _ => {}
            }
        }
        // Two lengths, or a length and a coding, are how requests are smuggled past a proxy.
        if hosts > 1 || (hosts == 0 && !is_old) || lengths > 1 || (lengths > 0 && is_coded) {
            return Err(Status::BadRequest);
        }
        if is_coded {
            return Err(Status::NotImplemented);
        }
        if request.body_len > BODY_MAX {
            return Err(Status::ContentTooLarge);
        }
        Ok(request)
    }

    /// Returns the status of the first condition that a file does not meet, in the order of RFC
    /// 9110 section 13.2.2; `None` if it meets all.
    pub(super) fn failed_condition(&self, entity: &Entity) -> Option<Status> {
        let is_met = match self.if_match {
            Some(tags) => has_tag(tags, |tag| tag == entity.etag.as_bytes()),
            None => {
                let since = self.if_unmodified_since.and_then(date::read);
                since.is_none_or(|since| entity.modified_s <= since)
            }
        };
        if !is_met {
            return Some(Status::PreconditionFailed);
        }
        let has_current = match self.if_none_match {
            // The weak comparison, where the one above is strong.
            Some(tags) => has_tag(tags, |tag| {
                tag.strip_prefix(b"W/").unwrap_or(tag) == entity.etag.as_bytes()
            }),
            None => {
                let since = self.if_modified_since.and_then(date::read);
                since.is_some_and(|since| entity.modified_s <= since)
            }
        };
        has_current.then_some(Status::NotModified)
    }

    /// The part of a file that the request is for.
    pub(super) fn part(&self, entity: &Entity) -> Part {
        let is_current = self.if_range.is_none_or(|version| {
            version == entity.etag.as_bytes() || date::read(version) == Some(entity.modified_s)
        });
        match self.range {
            Some(range) if self.method == "GET" && is_current => range::parse(range, entity.len),
            _ => Part::Whole,
        }
    }
}

/// Returns true if a list of entity tags is `*` or has one that matches.
fn has_tag(tags: &[u8], matches: impl Fn(&[u8]) -> bool) -> bool {
    let mut tags = tags.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
    tags.any(|tag| tag == b"*" || matches(tag))
}
