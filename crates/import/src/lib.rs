#![doc = include_str!("../README.md")]

mod check;
mod format;
mod json;
mod number;
mod record;
mod text;
mod unit;

use std::io::{self, Read};

pub use check::check;
pub use format::Format;
pub use record::{Finding, Input, Parameters, Record, Refusal, Run, Statistic};
pub use unit::Unit;

use text::Lines;

/// The longest line of text, in bytes; a longer one is refused and passed over.
pub const LINE_MAX: usize = 64 << 10;

/// The largest input of JSON, in bytes.
pub const JSON_MAX: usize = 16 << 20;

/// The most figures of one input.
pub const RECORDS_MAX: usize = 50_000;

/// The most lines of one input that are refused one by one.
pub const REFUSALS_MAX: usize = 20;

/// Reads one input: bytes in, in pieces of any size, and an [`Input`] out.
///
/// It keeps a line of at most [`LINE_MAX`] bytes, or a JSON text of at most [`JSON_MAX`], and at
/// most [`RECORDS_MAX`] figures.
pub struct Reader {
    lines: Lines,
    /// The bytes of the line that is being read, or the JSON text so far.
    buffer: Vec<u8>,
    /// By the first byte that is not blank; `None` before.
    is_json: Option<bool>,
    after_return: bool,
}

impl Reader {
    /// A reader of the file of that name; by content, or by one format alone.
    pub fn new(file: &str, forced: Option<&'static Format>) -> Reader {
        let mut lines = Lines::default();
        lines.input.file = file.to_owned();
        lines.input.forced = forced;
        lines.input.at = 1;
        Reader {
            lines,
            buffer: Vec::new(),
            is_json: None,
            after_return: false,
        }
    }

    /// Takes the next bytes.
    pub fn push(&mut self, mut bytes: &[u8]) {
        if self.is_json.is_none() {
            let first = bytes.iter().position(|byte| !byte.is_ascii_whitespace());
            let (blanks, rest) = bytes.split_at(first.unwrap_or(bytes.len()));
            self.text(blanks);
            bytes = rest;
            self.is_json = bytes.first().map(|byte| *byte == b'{');
            if self.is_json == Some(true) {
                self.buffer.clear();
            }
        }
        match self.is_json {
            Some(true) => self.keep(bytes, JSON_MAX),
            _ => self.text(bytes),
        }
    }

    /// Ends the input.
    pub fn finish(mut self) -> Input {
        if self.is_json == Some(true) {
            let mut input = self.lines.input;
            if self.buffer.len() > JSON_MAX {
                let expected = format!("at most {JSON_MAX} bytes of JSON");
                input.refuse(("more".to_owned(), expected));
            } else {
                json::read(&mut input, &self.buffer);
            }
            return input;
        }
        let whole = self.after_return || self.buffer.is_empty();
        if !self.buffer.is_empty() {
            self.end_of_line(false);
        }
        let last = &mut self.lines.input.at;
        if whole {
            *last = 1.max(*last - 1);
        }
        self.lines.finish(whole)
    }

    /// Keeps bytes of a line or text that has at most `most`, and of a longer one a byte more.
    fn keep(&mut self, bytes: &[u8], most: usize) {
        let room = most + 1 - self.buffer.len();
        self.buffer.extend(&bytes[..room.min(bytes.len())]);
    }

    fn text(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            // A carriage return before a line feed is a part of the line's end. Before anything
            // else it ends what a program drew, and will draw over.
            if std::mem::take(&mut self.after_return) && piece != b"\n" {
                self.end_of_line(true);
            }
            let (body, end) = match piece.split_last() {
                Some((end @ (b'\n' | b'\r'), body)) => (body, Some(*end)),
                _ => (piece, None),
            };
            self.keep(body, LINE_MAX);
            self.after_return = end == Some(b'\r');
            if end == Some(b'\n') {
                self.end_of_line(false);
                self.lines.input.at += 1;
            }
        }
    }

    /// Ends a line, or what will be drawn over.
    fn end_of_line(&mut self, drawn_over: bool) {
        if self.buffer.len() > LINE_MAX {
            let expected = format!("lines of at most {LINE_MAX} bytes");
            let found = "a longer line".to_owned();
            self.lines.input.refuse((found, expected));
        } else {
            let text = String::from_utf8_lossy(&self.buffer);
            self.lines.line(&text, drawn_over);
        }
        self.buffer.clear();
    }
}

/// Reads all of `from`, as [`Reader`] does.
///
/// # Errors
/// The error of reading.
pub fn read(file: &str, forced: Option<&'static Format>, mut from: impl Read) -> io::Result<Input> {
    let mut reader = Reader::new(file, forced);
    let mut bytes = Vec::new();
    while from.by_ref().take(64 << 10).read_to_end(&mut bytes)? > 0 {
        reader.push(&bytes);
        bytes.clear();
    }
    Ok(reader.finish())
}
