//! A format as a table: which lines it has, and what stands on them.

use std::collections::HashMap;
use std::sync::OnceLock;

use regex_lite::Regex;

use crate::formats;
use crate::record::Statistic;
use crate::unit::Unit;

/// A benchmark's output.
pub struct Format {
    /// Its name, for `--format`.
    pub name: &'static str,
    /// The program that prints it.
    pub about: &'static str,
    /// Its lines; the first that matches counts.
    pub(crate) lines: &'static [Line],
    /// Its tables, whose headers say what their columns are.
    pub(crate) tables: &'static [Table],
    /// Parameters that hold for the lines that follow and not for the whole run, outermost first:
    /// a new value of one forgets those after it.
    pub(crate) sections: &'static [&'static str],
    /// The line that ends a run, for a message.
    pub(crate) end: &'static str,
    /// Amount, time and rate: the first is the product of the others.
    pub(crate) products: &'static [[&'static str; 3]],
    /// The figures whose quotient is the bytes per response.
    pub(crate) work: Option<[&'static str; 2]>,
    /// True if one run is several repetitions.
    pub(crate) repeats: bool,
}

impl Format {
    /// A format without lines.
    pub(crate) const fn new(name: &'static str, about: &'static str) -> Format {
        Format {
            name,
            about,
            lines: &[],
            tables: &[],
            sections: &[],
            end: "",
            products: &[],
            work: None,
            repeats: false,
        }
    }

    /// Returns the format of that name.
    pub fn named(name: &str) -> Option<&'static Format> {
        Format::all().find(|format| format.name == name)
    }

    /// Returns whether one run of it is several repetitions.
    pub fn repeats(&self) -> bool {
        self.repeats
    }

    /// Returns every format.
    pub fn all() -> impl Iterator<Item = &'static Format> {
        formats::TEXT
            .iter()
            .copied()
            .chain(formats::json::ALL.iter().map(|json| &json.format))
    }
}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// A kind of line.
pub(crate) struct Line {
    pub(crate) key: Key,
    /// A regular expression with one group for each of `takes`; `{n}` stands for a number, `{q}`
    /// for a number with its unit.
    pattern: &'static str,
    pub(crate) takes: &'static [Take],
    pub(crate) flags: u8,
    pub(crate) ordinal: Option<&'static str>,
}

/// A text that a line must have, looked for before the regular expression.
#[derive(Clone, Copy)]
pub(crate) enum Key {
    /// The line begins with it, after blanks. A line that does and does not match is refused.
    Start(&'static str),
    /// The line has it somewhere, and may still be another.
    Within(&'static str),
}

impl Key {
    /// Returns whether `line` has it; `trimmed` is without the blanks before it.
    pub(crate) fn is_in(self, line: &str, trimmed: &str) -> bool {
        match self {
            Key::Start(text) => trimmed.starts_with(text),
            Key::Within(text) => line.contains(text),
        }
    }
}

/// The line begins a run of its format, if none is under way.
pub(crate) const BEGINS: u8 = 1;
/// The line begins a run whatever is under way.
pub(crate) const NEW: u8 = 2;
/// The run is not complete before a line with [`ENDS`].
pub(crate) const NEEDS: u8 = 4;
/// The run is complete.
pub(crate) const ENDS: u8 = 8;
/// As [`ENDS`], and what follows is no longer this format.
pub(crate) const CLOSES: u8 = 16;
/// The parameters of the line hold beyond it, though it has figures.
pub(crate) const KEEPS: u8 = 32;
/// The figures of the line belong to the run as a whole: they inherit nothing.
pub(crate) const WHOLE: u8 = 64;
/// The line reports an error, which becomes a finding.
pub(crate) const ERROR: u8 = 128;

/// A line that begins with `key`.
pub(crate) const fn start(
    key: &'static str,
    pattern: &'static str,
    takes: &'static [Take],
) -> Line {
    line(Key::Start(key), pattern, takes)
}

/// A line that has `key` somewhere.
pub(crate) const fn within(
    key: &'static str,
    pattern: &'static str,
    takes: &'static [Take],
) -> Line {
    line(Key::Within(key), pattern, takes)
}

const fn line(key: Key, pattern: &'static str, takes: &'static [Take]) -> Line {
    Line {
        key,
        pattern,
        takes,
        flags: 0,
        ordinal: None,
    }
}

impl Line {
    /// With these flags.
    pub(crate) const fn flags(mut self, flags: u8) -> Line {
        self.flags = flags;
        self
    }

    /// Counted: the parameter of that name is the line's number among its like in a run.
    pub(crate) const fn ordinal(mut self, name: &'static str) -> Line {
        self.ordinal = Some(name);
        self
    }

    /// The compiled pattern.
    pub(crate) fn regex(&self) -> &'static Regex {
        static ALL: OnceLock<HashMap<&str, Regex>> = OnceLock::new();
        let all = ALL.get_or_init(|| {
            let lines = formats::TEXT.iter().flat_map(|format| format.lines);
            lines
                .map(|line| (line.pattern, compiled(line.pattern)))
                .collect()
        });
        &all[self.pattern]
    }
}

fn compiled(pattern: &str) -> Regex {
    let number = r"[-+]?[0-9]+(?:[.,][0-9]+)*(?:[eE][-+]?[0-9]+)?";
    let whole = pattern.replace("{n}", number);
    let whole = whole.replace("{q}", &format!("{number} ?[A-Za-zµ/%]*"));
    Regex::new(&whole).expect("a pattern of the formats, which a test compiles")
}

/// A table whose header names its columns.
pub(crate) struct Table {
    /// The beginning of the header, after blanks. Without columns the table is passed over.
    pub(crate) header: &'static str,
    pub(crate) columns: &'static [(&'static str, Take)],
    pub(crate) separator: Separator,
    pub(crate) last: Last,
    /// Of the header.
    pub(crate) flags: u8,
    /// Of the last row.
    pub(crate) row_flags: u8,
}

/// The last row of a table.
#[derive(Clone, Copy)]
pub(crate) enum Last {
    /// The one before a blank line.
    BeforeBlank,
    /// The one that begins with this cell.
    Cell(&'static str),
    /// The first.
    First,
}

impl Last {
    /// Returns whether a row that begins with `cell` is the last.
    pub(crate) fn is(self, cell: &str) -> bool {
        match self {
            Last::BeforeBlank => false,
            Last::Cell(last) => cell == last,
            Last::First => true,
        }
    }
}

/// The separator of a table's cells.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Separator {
    /// Two or more blanks.
    Blanks,
    /// Commas, with quotation marks that do not count.
    Commas,
}

impl Separator {
    /// The cells of a line.
    pub(crate) fn split(self, line: &str) -> Vec<&str> {
        match self {
            Separator::Commas => line
                .split(',')
                .map(|cell| cell.trim().trim_matches('"'))
                .collect(),
            Separator::Blanks => {
                let cells = line.split("  ").map(str::trim);
                cells.filter(|cell| !cell.is_empty()).collect()
            }
        }
    }
}

/// The use of a group of a pattern or a cell of a table.
#[derive(Clone, Copy)]
pub(crate) enum Take {
    /// A figure in a unit.
    Figure(&'static str, Statistic, Unit),
    /// A figure in a unit that the log spells otherwise.
    Spelled(&'static str, Statistic, Unit, &'static str),
    /// A figure with its unit behind it, read by a table of spellings.
    Sized(&'static str, Statistic, Suffixes),
    /// A parameter.
    Parameter(&'static str),
    /// The level of the percentile that the next figure is.
    Level,
    /// Passed over.
    Nothing,
}

/// Spellings of units: the factor by which the number is to be multiplied, and the unit.
pub(crate) type Suffixes = &'static [(&'static str, f64, Unit)];
