//! Traces: the requests of a file, one a line.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::workload::{Key, Operation, Request, DATAGRAM_VALUE_MAX, VALUE_LEN_MAX};
use crate::{Error, Unexpected};

/// The longest line, in bytes.
const LINE_MAX: u64 = 16 << 10;

/// The longest key, in bytes, which is memcached's.
const KEY_MAX: usize = 250;

/// The requests that the lines of a trace are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceKind {
    /// `GET /path`.
    Http,
    /// `GET key` and `SET key bytes`.
    KeyValue,
    /// The same, each in one datagram.
    Datagrams,
}

/// A file of requests that was checked from its first line to its last. It is read again while it
/// is replayed, a line at a time, so memory does not depend on its length.
#[derive(Clone, Debug)]
pub struct Trace {
    path: PathBuf,
    kind: TraceKind,
    requests: u64,
    is_timed: bool,
}

impl Trace {
    /// Checks a file. Each line is a request, of which all or none have a time in seconds before
    /// them. The times never decrease; the first is the start of the trial.
    ///
    /// # Errors
    /// The file cannot be read twice, or a line is no such request.
    pub fn check(path: &Path, kind: TraceKind) -> Result<Trace, Error> {
        let mut trace = Trace {
            path: path.into(),
            kind,
            requests: 0,
            is_timed: false,
        };
        let data = path.metadata().map_err(|error| trace.failed(error))?;
        if !data.is_file() {
            let error = "found no regular file, which can be read twice";
            return Err(trace.failed(io::Error::other(error)));
        }
        let mut lines = trace.lines(0, 1)?;
        while let Some((at, _)) = lines.next()? {
            trace.is_timed = at.is_some();
            trace.requests += 1;
        }
        match trace.requests {
            0 => Err(lines.wrong("", "a request")),
            _ => Ok(trace),
        }
    }

    /// Lines, each of which is a request.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// True if the lines have times.
    pub fn is_timed(&self) -> bool {
        self.is_timed
    }

    /// The lines that thread `thread` of `threads` replays.
    pub(crate) fn lines(&self, thread: u64, threads: u64) -> Result<Lines, Error> {
        let file = File::open(&self.path).map_err(|error| self.failed(error))?;
        Ok(Lines {
            trace: self.clone(),
            file: BufReader::new(file),
            line: Vec::new(),
            number: 0,
            skips: (thread, threads),
            start: None,
            last: None,
        })
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::system(io::Error::other(format!(
            "{}: {error}",
            self.path.display()
        )))
    }
}

/// Reads the lines of one thread.
#[derive(Debug)]
pub(crate) struct Lines {
    trace: Trace,
    file: BufReader<File>,
    line: Vec<u8>,
    number: u64,
    /// The thread, and of how many, in whose turn a line is read.
    skips: (u64, u64),
    /// The time of the first line.
    start: Option<f64>,
    /// The time of the last line that was read, from that one on; `None` before the first line.
    last: Option<Option<f64>>,
}

impl Lines {
    /// The next line: its time since the first one, if it has one, and the request. `None` at the
    /// end of the file.
    pub(crate) fn next(&mut self) -> Result<Option<(Option<Duration>, Request)>, Error> {
        loop {
            self.line.clear();
            let mut piece = self.file.by_ref().take(LINE_MAX);
            let read = piece.read_until(b'\n', &mut self.line);
            if read.map_err(|error| self.trace.failed(error))? == 0 {
                return Ok(None);
            }
            let (thread, threads) = self.skips;
            self.number += 1;
            let is_first = self.number == 1;
            if !is_first && (self.number - 1) % threads != thread {
                continue;
            }
            let text = String::from_utf8_lossy(self.line.trim_ascii_end()).into_owned();
            let (at, request) = self.parse(&text)?;
            if !is_first || thread == 0 {
                return Ok(Some((at, request)));
            }
        }
    }

    fn parse(&mut self, text: &str) -> Result<(Option<Duration>, Request), Error> {
        let expected = match self.trace.kind {
            TraceKind::Http => "GET /PATH, with or without seconds before it",
            TraceKind::KeyValue => "GET KEY or SET KEY BYTES, with or without seconds before it",
            TraceKind::Datagrams => {
                "GET KEY or SET KEY BYTES with at most 65000 bytes, for a request is one datagram"
            }
        };
        let value_max = match self.trace.kind {
            TraceKind::Datagrams => DATAGRAM_VALUE_MAX,
            TraceKind::Http | TraceKind::KeyValue => VALUE_LEN_MAX,
        };
        if self.line.len() as u64 == LINE_MAX && !self.line.ends_with(b"\n") {
            return Err(self.wrong(text, "a line of at most 16 KiB"));
        }
        let mut words = text.split_ascii_whitespace().peekable();
        let starts_with_digit = |word: &&str| word.as_bytes()[0].is_ascii_digit();
        let at = words.next_if(starts_with_digit).map(|word| {
            let at = word.parse::<f64>().ok().filter(|at| *at <= 1e11);
            at.ok_or_else(|| self.wrong(text, expected))
        });
        let at = at.transpose()?;
        let at = at.map(|at| at - *self.start.get_or_insert(at));
        if self.last.is_some_and(|last| last.is_some() != at.is_some()) {
            return Err(self.wrong(text, "a time on each line or on none"));
        }
        if at < self.last.replace(at).flatten() {
            return Err(self.wrong(text, "a time that is not before the one of the line above"));
        }
        let words: Vec<&str> = words.collect();
        let len = |digits: &str| digits.parse().ok().filter(|&len| len <= value_max);
        let is_sent = |word: &str| word.bytes().all(|byte| byte.is_ascii_graphic());
        let is_key = |key: &str| key.len() <= KEY_MAX && is_sent(key);
        let is_path = |path: &str| path.starts_with('/') && is_sent(path);
        let (operation, name, value_len) = match (self.trace.kind, words.as_slice()) {
            (TraceKind::Http, &["GET", path]) if is_path(path) => (Operation::Get, path, 0),
            (TraceKind::Http, _) => return Err(self.wrong(text, expected)),
            (_, &["GET", key]) if is_key(key) => (Operation::Get, key, 0),
            (_, &["SET", key, bytes]) if is_key(key) => {
                let len = len(bytes).ok_or_else(|| self.wrong(text, expected))?;
                (Operation::Set, key, len)
            }
            _ => return Err(self.wrong(text, expected)),
        };
        let request = Request {
            operation,
            key: Key::Name(name.as_bytes().into()),
            value_len,
        };
        Ok((at.map(Duration::from_secs_f64), request))
    }

    fn wrong(&self, found: &str, expected: &str) -> Error {
        Error::Trace {
            path: self.trace.path.clone(),
            line: self.number.max(1),
            error: Unexpected::text(&found.chars().take(60).collect::<String>(), expected),
        }
    }

    /// The error of a file that has fewer lines than when it was checked.
    pub(crate) fn ended(&self) -> Error {
        self.wrong("the end of the file", "the lines that it had before")
    }
}
