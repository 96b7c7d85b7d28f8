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

use text::{Lane, STAMP};

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
    input: Input,
    program: Lane,
    /// The lines that the kernel printed into the program's output.
    kernel: Lane,
    /// The beginning of a line into which the kernel printed.
    cut: String,
    /// The bytes of the line that is being read, or the JSON text so far.
    buffer: Vec<u8>,
    /// By the first byte that is not blank; `None` before.
    is_json: Option<bool>,
    after_return: bool,
}

impl Reader {
    /// A reader of the file of that name; by content, or by one format alone.
    pub fn new(file: &str, forced: Option<&'static Format>) -> Reader {
        let mut input = Input::default();
        (input.file, input.forced, input.at) = (file.to_owned(), forced, 1);
        Reader {
            input,
            program: Lane::default(),
            kernel: Lane::default(),
            cut: String::new(),
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
            if self.buffer.len() > JSON_MAX {
                let expected = format!("at most {JSON_MAX} bytes of JSON");
                self.input.refuse(("more".to_owned(), expected));
            } else {
                json::read(&mut self.input, &self.buffer);
            }
            return self.input;
        }
        let whole = self.after_return || self.buffer.is_empty();
        if !self.buffer.is_empty() {
            self.end_of_line(false);
        }
        if whole {
            self.input.at = 1.max(self.input.at - 1);
        }
        if !self.cut.is_empty() {
            self.line("", false);
        }
        let mut input = self.input;
        if !whole {
            let closed = input.runs.iter().flat_map(|run| &run.records);
            let open = self.program.records().iter().chain(self.kernel.records());
            if let Some(record) = closed.chain(open).rfind(|r| r.line == input.at) {
                let figure = check::shown(record);
                let problem = "the file ends within this line, so its last digits may be missing";
                input.find(figure, problem, "followed by the end of its line");
            }
        }
        self.program.close(&mut input);
        self.kernel.close(&mut input);
        if input.runs.is_empty() && input.refused.is_empty() {
            let known = "a benchmark that is known (tare import --help lists them)";
            let expected = input.forced.map_or(known, |format| format.about);
            let found = "no figures to the end of the file".into();
            input.refuse((found, format!("the output of {expected}")));
        }
        input
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
                self.input.at += 1;
            }
        }
    }

    /// Ends a line, or what will be drawn over.
    fn end_of_line(&mut self, drawn_over: bool) {
        let bytes = std::mem::take(&mut self.buffer);
        if bytes.len() > LINE_MAX {
            let expected = format!("lines of at most {LINE_MAX} bytes");
            self.input.refuse(("a longer line".to_owned(), expected));
        } else {
            self.line(&String::from_utf8_lossy(&bytes), drawn_over);
        }
        self.buffer = bytes;
        self.buffer.clear();
    }

    /// Hands a line to the stream that it belongs to.
    fn line(&mut self, text: &str, drawn_over: bool) {
        let text = &*text::plain(text);
        let has_stamp = text.contains("] ");
        if let Some(stamp) = has_stamp.then(|| STAMP.find(text)).flatten() {
            let before = &text[..stamp.start()];
            if !before.trim().is_empty() && self.cut.len() + before.len() <= LINE_MAX {
                self.cut.push_str(before);
            }
            let message = &text[stamp.end()..];
            self.kernel.feed(&mut self.input, message, false);
        } else {
            let whole = std::mem::take(&mut self.cut) + text;
            self.program.feed(&mut self.input, &whole, drawn_over);
        }
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
