//! memcached's text protocol over a [`Store`].
//!
//! Source: `doc/protocol.txt` of memcached 1.6; its meta commands are not there. Lines have at most
//! [`LINE_MAX`] bytes, after which the connection ends, values [`VALUE_MAX`].

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tare_sim::Instant;

use super::lines::{Line, Lines};
use super::output::Output;
use super::store::{lock, Store};
use super::{Application, Service, Time};

/// The most bytes of a command's line with its end.
pub const LINE_MAX: usize = 16 << 10;

/// The most bytes of a value.
pub const VALUE_MAX: usize = 1 << 20;

const KEY_MAX: usize = 250;

/// The longest relative time: what is later is a date.
const RELATIVE_MAX_S: i64 = 30 * 24 * 3600;

const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";
const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";

/// A memcached server: connections that share a store.
pub struct Memcached {
    store: Arc<Mutex<Store>>,
}

impl Memcached {
    /// Returns a server over a store, which other servers may use as well, on other threads too.
    pub fn new(store: Arc<Mutex<Store>>) -> Memcached {
        Memcached { store }
    }
}

impl Service for Memcached {
    fn accept(&self) -> Box<dyn Application> {
        Box::new(Connection {
            store: Arc::clone(&self.store),
            lines: Lines::default(),
            state: State::Command,
            has_ended: false,
            wants_close: false,
        })
    }
}

struct Connection {
    store: Arc<Mutex<Store>>,
    lines: Lines,
    state: State,
    has_ended: bool,
    wants_close: bool,
}

/// The next bytes of the stream, or of the response.
enum State {
    Command,
    Value(Update),
    /// The bytes that are left of a value that was refused.
    Skip(usize),
    /// A `get` whose keys are not all answered, because the queue was full.
    Keys(Retrieval, Vec<u8>),
}

/// A storage command that waits for its value.
struct Update {
    how: How,
    key: Vec<u8>,
    flags: u32,
    expires: Instant,
    noreply: bool,
    value: Vec<u8>,
    len: usize,
    /// The two bytes after the value, as far as they are there.
    end: Vec<u8>,
}

enum How {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas(u64),
}

#[derive(Clone, Copy)]
struct Retrieval {
    with_cas: bool,
    touch: Option<Instant>,
}

impl Application for Connection {
    fn receive(&mut self, bytes: &[u8], time: Time, out: &mut Output) -> usize {
        let mut rest = bytes;
        while !rest.is_empty() && !self.wants_close && out.has_room() {
            match &mut self.state {
                State::Command => match self.lines.take(&mut rest, LINE_MAX) {
                    Line::Whole(line) => self.command(&line, time, out),
                    Line::Partial => {}
                    Line::TooLong => {
                        out.push(b"CLIENT_ERROR line too long\r\n");
                        self.wants_close = true;
                    }
                },
                State::Value(update) => {
                    if update.take(&mut rest) {
                        if let State::Value(update) =
                            std::mem::replace(&mut self.state, State::Command)
                        {
                            let noreply = update.noreply;
                            reply(self.store(update, time.now), noreply, out);
                        }
                    }
                }
                State::Skip(left) => {
                    let count = rest.len().min(*left);
                    rest = &rest[count..];
                    *left -= count;
                    if *left == 0 {
                        self.state = State::Command;
                    }
                }
                State::Keys(..) => break,
            }
        }
        bytes.len() - rest.len()
    }

    fn produce(&mut self, time: Time, out: &mut Output) {
        if let State::Keys(retrieval, keys) = &mut self.state {
            let (retrieval, keys) = (*retrieval, std::mem::take(keys));
            self.retrieve(retrieval, &keys, time.now, out);
        }
    }

    fn end(&mut self, _: Time, _: &mut Output) {
        self.has_ended = true;
    }

    fn wants_close(&self) -> bool {
        // A response that is not finished goes on.
        self.wants_close || (self.has_ended && !matches!(self.state, State::Keys(..)))
    }
}

impl Update {
    /// Takes more of the value and its end; returns true if both are whole.
    fn take(&mut self, bytes: &mut &[u8]) -> bool {
        let count = bytes.len().min(self.len - self.value.len());
        self.value.extend_from_slice(&bytes[..count]);
        let rest = &bytes[count..];
        let count = match self.value.len() == self.len {
            true => rest.len().min(2 - self.end.len()),
            false => 0,
        };
        self.end.extend_from_slice(&rest[..count]);
        *bytes = &rest[count..];
        self.end.len() == 2
    }
}

impl Connection {
    fn command(&mut self, line: &[u8], time: Time, out: &mut Output) {
        let mut words = line.split(|&byte| byte == b' ').filter(|w| !w.is_empty());
        let name = words.next().unwrap_or_default();
        if matches!(name, b"get" | b"gets" | b"gat" | b"gats") {
            return self.get(name, line, time, out);
        }
        // No command has more.
        let words: Vec<&[u8]> = words.take(8).collect();
        let noreply = words.last() == Some(&&b"noreply"[..]);
        let how = match name {
            b"set" => Some(How::Set),
            b"add" => Some(How::Add),
            b"replace" => Some(How::Replace),
            b"append" => Some(How::Append),
            b"prepend" => Some(How::Prepend),
            b"cas" => Some(How::Cas(0)),
            _ => None,
        };
        if let Some(how) = how {
            return self.update(how, &words, noreply, time, out);
        }
        let answer = match (name, &words[..]) {
            (b"incr" | b"decr", [key, delta] | [key, delta, _]) => {
                self.arithmetic(name == b"incr", key, delta, time.now)
            }
            (b"touch", [key, exptime] | [key, exptime, _]) => self.touch(key, exptime, time),
            (b"delete", [key, options @ ..]) if options.len() <= 2 => match options {
                _ if key.len() > KEY_MAX => BAD_FORMAT.into(),
                [] | [b"0"] | [b"noreply"] | [b"0", b"noreply"] => {
                    let is_gone = lock(&self.store).remove(key, time.now).is_some();
                    if is_gone { "DELETED" } else { "NOT_FOUND" }.into()
                }
                _ => format!("{BAD_FORMAT}.  Usage: delete <key> [noreply]"),
            },
            (b"flush_all", [] | [b"noreply"]) => self.flush("0".as_bytes(), time),
            (b"flush_all", [delay, ..]) => self.flush(delay, time),
            (b"verbosity", [_, ..]) => "OK".into(),
            (b"version", []) => concat!("VERSION ", env!("CARGO_PKG_VERSION"), "-tare").into(),
            (b"stats", []) => return self.stats(time.now, out),
            (b"quit", []) => {
                self.wants_close = true;
                return;
            }
            _ => {
                // A browser was made to send a form here: what follows is not meant for a cache.
                let last = words.last().copied().unwrap_or_default();
                self.wants_close = last.starts_with(b"HTTP/");
                return out.push(b"ERROR\r\n");
            }
        };
        reply(answer, noreply, out);
    }

    fn get(&mut self, name: &[u8], line: &[u8], time: Time, out: &mut Output) {
        let (_, mut keys) = word(line);
        let mut retrieval = Retrieval {
            with_cas: name.ends_with(b"s"),
            touch: None,
        };
        if word(keys).0.is_empty() {
            return out.push(b"ERROR\r\n");
        }
        if name.starts_with(b"ga") {
            let (exptime, after) = word(keys);
            let Some(expires) = expiry(exptime, time) else {
                return out.print(format_args!("{BAD_EXPTIME}\r\n"));
            };
            (retrieval.touch, keys) = (Some(expires), after);
        }
        // All of them first: what was said cannot be taken back.
        if keys.split(|&byte| byte == b' ').any(|k| k.len() > KEY_MAX) {
            return out.print(format_args!("{BAD_FORMAT}\r\n"));
        }
        self.retrieve(retrieval, keys, time.now, out);
    }

    fn retrieve(&mut self, retrieval: Retrieval, keys: &[u8], now: Instant, out: &mut Output) {
        let mut rest = keys;
        let mut store = lock(&self.store);
        while out.has_room() {
            let (key, after) = word(rest);
            if key.is_empty() {
                out.push(b"END\r\n");
                self.state = State::Command;
                return;
            }
            rest = after;
            let Some(item) = store.get(key, now) else {
                continue;
            };
            out.push(b"VALUE ");
            out.push(key);
            out.print(format_args!(" {} {}", item.flags, item.body.len()));
            if retrieval.with_cas {
                out.print(format_args!(" {}", item.cas));
            }
            out.push(b"\r\n");
            out.push_body(&item.body, 0..item.body.len());
            out.push(b"\r\n");
            if let Some(expires) = retrieval.touch {
                store.touch(key, expires, now);
            }
        }
        self.state = State::Keys(retrieval, rest.to_vec());
    }

    /// Begins a storage command: `KEY FLAGS EXPTIME BYTES [CAS] [noreply]`.
    fn update(&mut self, how: How, words: &[&[u8]], noreply: bool, time: Time, out: &mut Output) {
        let count = if matches!(how, How::Cas(_)) { 5 } else { 4 };
        if words.len() != count && words.len() != count + 1 {
            return out.push(b"ERROR\r\n");
        }
        let cas = match how {
            How::Cas(_) => number::<u64>(words[4]),
            _ => Some(0),
        };
        let parsed = (
            number::<u32>(words[1]),
            expiry(words[2], time),
            number::<i32>(words[3]).and_then(|len| usize::try_from(len).ok()),
            cas,
        );
        let (key, (Some(flags), Some(expires), Some(len), Some(cas))) = (words[0], parsed) else {
            return reply(BAD_FORMAT.into(), noreply, out);
        };
        if key.len() > KEY_MAX || len > i32::MAX as usize - 2 {
            return reply(BAD_FORMAT.into(), noreply, out);
        }
        if len > VALUE_MAX {
            // What was there is older than what the client believes to be there now.
            lock(&self.store).remove(key, time.now);
            self.state = State::Skip(len + 2);
            return reply(TOO_LARGE.into(), noreply, out);
        }
        let how = match how {
            How::Cas(_) => How::Cas(cas),
            how => how,
        };
        self.state = State::Value(Update {
            how,
            key: key.to_vec(),
            flags,
            expires,
            noreply,
            value: Vec::with_capacity(len),
            len,
            end: Vec::new(),
        });
    }

    /// Stores the value of a command; returns the answer.
    fn store(&mut self, update: Update, now: Instant) -> String {
        if update.end != b"\r\n" {
            return "CLIENT_ERROR bad data chunk".into();
        }
        let mut store = lock(&self.store);
        let (key, mut value) = (&update.key[..], update.value);
        let (mut flags, mut expires) = (update.flags, update.expires);
        let old = store.peek(key, now);
        match (&update.how, old) {
            (How::Add, Some(_)) | (How::Replace | How::Append | How::Prepend, None) => {
                return "NOT_STORED".into();
            }
            (How::Cas(_), None) => return "NOT_FOUND".into(),
            (How::Cas(cas), Some(old)) if old.cas != *cas => return "EXISTS".into(),
            (How::Append | How::Prepend, Some(old)) => {
                if old.body.len() + value.len() > VALUE_MAX {
                    return TOO_LARGE.into();
                }
                (flags, expires) = (old.flags, old.expires);
                value = match update.how {
                    How::Append => [&old.body[..], &value].concat(),
                    _ => [&value[..], &old.body].concat(),
                };
            }
            _ => {}
        }
        match store.set(key, Arc::new(value), flags, expires, now) {
            Ok(_) => "STORED".into(),
            Err(_) => TOO_LARGE.into(),
        }
    }

    fn arithmetic(&mut self, is_incr: bool, key: &[u8], delta: &[u8], now: Instant) -> String {
        if key.len() > KEY_MAX {
            return BAD_FORMAT.into();
        }
        let Some(delta) = number::<u64>(delta) else {
            return "CLIENT_ERROR invalid numeric delta argument".into();
        };
        let mut store = lock(&self.store);
        let Some(item) = store.peek(key, now) else {
            return "NOT_FOUND".into();
        };
        // What an earlier `decr` left ends with blanks; memcached reads up to the first.
        let mut words = item.body.trim_ascii_start().split(u8::is_ascii_whitespace);
        let Some(old) = number::<u64>(words.next().unwrap_or_default()) else {
            return "CLIENT_ERROR cannot increment or decrement non-numeric value".into();
        };
        let new = match is_incr {
            true => old.wrapping_add(delta),
            false => old.saturating_sub(delta),
        };
        let answer = new.to_string();
        // A value never becomes shorter, as in memcached. Not by a width of `format!`, which may be
        // 65,535 at most.
        let mut body = answer.clone().into_bytes();
        body.resize(body.len().max(item.body.len()), b' ');
        let (flags, expires) = (item.flags, item.expires);
        match store.set(key, Arc::new(body), flags, expires, now) {
            Ok(_) => answer,
            Err(_) => "SERVER_ERROR out of memory in incr".into(),
        }
    }

    fn touch(&mut self, key: &[u8], exptime: &[u8], time: Time) -> String {
        if key.len() > KEY_MAX {
            return BAD_FORMAT.into();
        }
        let Some(expires) = expiry(exptime, time) else {
            return BAD_EXPTIME.into();
        };
        match lock(&self.store).touch(key, expires, time.now) {
            true => "TOUCHED".into(),
            false => "NOT_FOUND".into(),
        }
    }

    fn flush(&mut self, delay: &[u8], time: Time) -> String {
        let Some(at) = expiry(delay, time) else {
            return BAD_EXPTIME.into();
        };
        let at = if at == Instant::NEVER { time.now } else { at };
        lock(&self.store).flush(at, time.now);
        "OK".into()
    }

    fn stats(&mut self, now: Instant, out: &mut Output) {
        let mut store = lock(&self.store);
        let counters = store.counters();
        let items = store.len(now);
        for (name, value) in [
            ("curr_items", items as u64),
            ("bytes", store.bytes() as u64),
            ("limit_maxbytes", store.bytes_max() as u64),
            ("get_hits", counters.hits),
            ("get_misses", counters.misses),
            ("cmd_set", counters.stored),
            ("evictions", counters.evicted),
        ] {
            out.print(format_args!("STAT {name} {value}\r\n"));
        }
        out.push(b"END\r\n");
    }
}

/// Appends an answer unless the client wants none.
fn reply(answer: String, noreply: bool, out: &mut Output) {
    if !noreply {
        out.print(format_args!("{answer}\r\n"));
    }
}

/// Returns the first word of a line and what is behind it.
fn word(line: &[u8]) -> (&[u8], &[u8]) {
    let start = line.iter().position(|&byte| byte != b' ');
    let line = &line[start.unwrap_or(line.len())..];
    let end = line.iter().position(|&byte| byte == b' ');
    line.split_at(end.unwrap_or(line.len()))
}

fn number<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The time of an `exptime`: 0 is never, up to 30 days are from now, more is a date, and a negative
/// one has passed.
fn expiry(exptime: &[u8], time: Time) -> Option<Instant> {
    let seconds = i64::from(number::<i32>(exptime)?);
    let left = match seconds {
        0 => return Some(Instant::NEVER),
        ..0 => 0,
        1..=RELATIVE_MAX_S => seconds,
        date => date.saturating_sub_unsigned(time.unix.as_secs()).max(0),
    };
    Some(time.now + Duration::from_secs(left.unsigned_abs()))
}
