//! Standard output and the terminal behind it.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::Path;

use serde::Serialize;
use tare_lab::report::text::{clean, json_for_terminals};
use tare_port::stdio;
use textwrap::{Options, WordSeparator, WordSplitter};

/// The fewest columns that the last column of a line is wrapped into; with less, it has lines of
/// its own.
const LAST_COLUMN_MIN: usize = 24;

/// Prints to standard output. A closed pipe is an error, with which `main` ends in silence.
pub(crate) fn print(text: &str) -> io::Result<()> {
    need_output()?;
    let mut out = io::stdout().lock();
    let mut printed = out.write_all(text.as_bytes());
    if !text.ends_with('\n') {
        printed = printed.and_then(|()| out.write_all(b"\n"));
    }
    printed
        .and_then(|()| out.flush())
        .map_err(|error| io::Error::new(error.kind(), format!("standard output: {error}")))
}

/// As [`print()`], for the last output of a command that has an exit status to give. A closed pipe
/// is no error: who reads no more of the result may still ask for the status.
pub(crate) fn print_last(text: &str) -> io::Result<()> {
    match print(text) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed,
    }
}

/// The JSON of a value in one line, without control characters.
pub(crate) fn json(value: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string(value).map(|json| json_for_terminals(&json))
}

/// The same over several lines.
pub(crate) fn json_pretty(value: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string_pretty(value).map(|json| json_for_terminals(&json))
}

/// Refuses a standard output that was closed when the program started.
///
/// # Errors
/// It was closed.
pub(crate) fn need_output() -> io::Result<()> {
    if stdio::output_was_closed() {
        return Err(io::Error::other("standard output is closed"));
    }
    Ok(())
}

/// Prints lines to standard error. That this fails (a full disk, a closed pipe) is no reason to
/// lose a run, so errors are ignored.
pub(crate) fn say(text: &str) {
    let mut lines = plain(text);
    lines.push('\n');
    let _ = io::stderr().write_all(lines.as_bytes());
}

/// The path as a word of a shell's command line.
pub(crate) fn word(path: &Path) -> String {
    let path = path.to_string_lossy();
    // Only a NUL byte, which no path has, cannot be quoted.
    shlex::try_quote(&path).map_or_else(|_| path.to_string(), Into::into)
}

/// As [`say`], with lines broken between words where standard error is a terminal.
pub(crate) fn say_wrapped(text: &str) {
    if !io::stderr().is_terminal() {
        return say(text);
    }
    let (width, _) = size_of(&io::stderr());
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if console::measure_text_width(line) + 1 + word.len() < width => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) => lines.push(format!("  {word}")),
            None => lines.push(word.to_owned()),
        }
    }
    say(&lines.join("\n"));
}

/// `text` line by line, without control characters.
pub(crate) fn plain(text: &str) -> String {
    text.lines().map(clean).collect::<Vec<_>>().join("\n")
}

/// Returns `text` with its lines broken between words where standard output is a terminal, and as
/// it is elsewhere: other programs read it line by line.
pub(crate) fn fitted(text: &str) -> String {
    if !io::stdout().is_terminal() {
        return text.to_owned();
    }
    let lines = text.lines().flat_map(|line| fit(line, width()));
    lines.map(|line| line + "\n").collect()
}

/// Breaks a line of columns, which two spaces or more separate. The words of the last column stay
/// under each other, or follow in lines of their own where that column would be too narrow.
fn fit(line: &str, width: usize) -> Vec<String> {
    let wrap = |text: &str, indents: [usize; 2]| -> Vec<String> {
        let [first, later] = indents.map(|columns| " ".repeat(columns));
        let options = Options::new(width)
            .initial_indent(&first)
            .subsequent_indent(&later)
            .word_separator(WordSeparator::AsciiSpace)
            .word_splitter(WordSplitter::NoHyphenation);
        let lines = textwrap::wrap(text, options);
        lines.into_iter().map(|line| line.into_owned()).collect()
    };
    if console::measure_text_width(line) <= width {
        return vec![line.to_owned()];
    }
    let margin = line.len() - line.trim_start().len();
    let last = line.trim_end().rfind("  ").map_or(0, |at| at + 2);
    let (before, column) = line.split_at(last.max(margin));
    let columns = console::measure_text_width(before);
    if columns + LAST_COLUMN_MIN <= width {
        let mut lines = wrap(column, [columns; 2]);
        lines[0].replace_range(..columns, before);
        return lines;
    }
    let indent = margin + 4;
    let mut lines = wrap(before.trim(), [margin, indent]);
    lines.extend(wrap(column, [indent; 2]));
    lines
}

/// Returns true if the error is a pipe whose reader has closed it.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}

/// Returns true if standard output may be coloured: it is a terminal with colours, and `NO_COLOR`
/// is not set.
pub(crate) fn colour() -> bool {
    colour_of(&io::stdout())
}

/// Returns true if output to `stream` may be coloured.
pub(crate) fn colour_of(stream: &impl IsTerminal) -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    stream.is_terminal() && !refused && !is_dumb()
}

/// Returns true if standard error is a terminal that can move its cursor.
pub(crate) fn is_drawable() -> bool {
    io::stderr().is_terminal() && !is_dumb()
}

/// Returns true if the terminal takes plain text only.
fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb")
}

/// The columns, at least 40, and lines of the terminal behind `stream`; 80 and 24 if they are
/// unknown.
pub(crate) fn size_of(stream: &impl AsFd) -> (usize, usize) {
    let size = rustix::termios::tcgetwinsize(stream).ok();
    let size = size.filter(|size| size.ws_col > 0 && size.ws_row > 0);
    size.map_or((80, 24), |size| {
        (usize::from(size.ws_col).max(40), size.ws_row.into())
    })
}

/// The terminal's width in columns; 100 if standard output is no terminal.
pub(crate) fn width() -> usize {
    rustix::termios::tcgetwinsize(io::stdout())
        .ok()
        .map(|size| usize::from(size.ws_col))
        .filter(|&columns| columns >= 40)
        .unwrap_or(100)
}

#[cfg(test)]
mod tests {
    use super::fit;

    #[test]
    fn long_lines_are_broken_under_their_last_column() {
        let line = "  claim    flat: Latency is the same for every number of pages";
        assert_eq!(fit(line, 80), [line]);
        let broken = [
            "  claim    flat: Latency is the same for",
            "           every number of pages",
        ];
        assert_eq!(fit(line, 40), broken);
        let row = "rdrand/width    8 cells  3 claims, 1 target    16, 32 and 64 bits per draw";
        let broken = [
            "rdrand/width    8 cells  3 claims, 1 target",
            "    16, 32 and 64 bits per draw",
        ];
        assert_eq!(fit(row, 60), broken);
        assert_eq!(fit("", 40), [""]);
    }

    #[test]
    fn lines_fit_and_lose_no_word() {
        let line =
            "  axis     größe = 1, 8, 64  日本語 a/name/that/is/longer/than/the/terminal/is/wide x";
        for width in 40..100 {
            let lines = fit(line, width);
            let wide = |line: &String| console::measure_text_width(line) > width;
            assert!(!lines.iter().any(wide), "{width}: {lines:#?}");
            let words = |text: &str| text.split_whitespace().collect::<String>();
            assert_eq!(words(&lines.concat()), words(line), "{width}");
        }
    }
}
