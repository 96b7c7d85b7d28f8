//! A format as a table: which lines it has, and what stands on them. `formats.txt` has the tables
//! and explains their form.

use std::collections::HashMap;
use std::sync::{LazyLock, OnceLock};

use regex_lite::Regex;

use crate::record::Statistic;
use crate::unit::Unit;

/// A benchmark's output.
#[derive(Default)]
pub struct Format {
    /// Its name, for `--format`.
    pub name: &'static str,
    /// The program that prints it.
    pub about: &'static str,
    /// True if one run is several repetitions.
    pub repeats: bool,
    /// Its lines; the first that matches counts.
    pub(crate) lines: Vec<Line>,
    /// Parameters that hold for the lines that follow and not for the whole run, outermost first.
    pub(crate) sections: Vec<&'static str>,
    /// The line that ends a run, for a message.
    pub(crate) end: &'static str,
    /// Amount, time and rate: the first is the product of the others.
    pub(crate) products: Vec<[&'static str; 3]>,
    /// The figures whose quotient is the bytes per response.
    pub(crate) work: Option<[&'static str; 2]>,
    /// The parameter that shows a flaw if it is above the limit; the problem, and what is right.
    pub(crate) flaws: Vec<[&'static str; 3]>,
    /// Keys of a JSON document that tell it from others; empty if the format is text.
    pub(crate) keys: Vec<&'static str>,
}

/// A kind of line, the header of a table, or an object of JSON.
pub(crate) struct Line {
    /// A text that the line must have, looked for before the regular expression; the path of an
    /// object.
    pub(crate) key: &'static str,
    /// True if the line begins with it, after blanks. One that does and does not match is refused.
    pub(crate) is_start: bool,
    /// True if it can begin a run.
    pub(crate) begins: bool,
    pub(crate) flags: Vec<&'static str>,
    pattern: &'static str,
    compiled: OnceLock<Regex>,
    /// By the names of columns or the paths of values, which the groups of a pattern lack.
    pub(crate) takes: Vec<(&'static str, Take)>,
}

/// The use of a group of a pattern, a cell of a table or a value of JSON.
#[derive(Clone, Copy)]
pub(crate) enum Take {
    /// A figure in a unit that is known.
    Figure(&'static str, Statistic, Spelling),
    /// A figure with its unit behind it, read by a list of spellings.
    Sized(&'static str, Statistic, &'static [Spelling]),
    /// A parameter.
    Parameter(&'static str),
    /// The level of the percentile that the next figure is.
    Level,
}

/// The spelling of a unit: the factor by which a number is to be multiplied, and the unit.
pub(crate) type Spelling = (&'static str, f64, Unit);

impl Format {
    /// Returns the format of that name.
    pub fn named(name: &str) -> Option<&'static Format> {
        Format::all().find(|format| format.name == name)
    }

    /// Returns every format.
    pub fn all() -> impl Iterator<Item = &'static Format> {
        static ALL: LazyLock<Vec<Format>> = LazyLock::new(|| parse(include_str!("formats.txt")));
        ALL.iter()
    }
}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Line {
    pub(crate) fn has(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }

    /// The rest of the flag that begins so.
    pub(crate) fn flag(&self, start: &str) -> Option<&'static str> {
        self.flags.iter().find_map(|flag| flag.strip_prefix(start))
    }

    /// The regular expression; `None` for the header of a table.
    pub(crate) fn regex(&self) -> Option<&Regex> {
        let compile = || {
            let number = r"[-+]?[0-9]+(?:[.,][0-9]+)*(?:[eE][-+]?[0-9]+)?";
            let sized = format!("{number} ?[A-Za-zµ/%]*");
            let whole = self.pattern.replace("{n}", number).replace("{q}", &sized);
            Regex::new(&whole).expect("a pattern of formats.txt")
        };
        (self.pattern != "-").then(|| self.compiled.get_or_init(compile))
    }

    /// The cells of a row: between commas, or between two or more blanks.
    pub(crate) fn cells<'t>(&self, row: &'t str) -> Vec<&'t str> {
        if self.has("commas") {
            let cells = row.split(',');
            return cells.map(|cell| cell.trim().trim_matches('"')).collect();
        }
        let cells = row.split("  ").map(str::trim);
        cells.filter(|cell| !cell.is_empty()).collect()
    }
}

/// The lists of spellings by their names.
type Units = HashMap<&'static str, &'static [Spelling]>;

/// Reads the tables. They are a part of the program, so that a mistake in them is one of the
/// program, which every test would meet.
fn parse(text: &'static str) -> Vec<Format> {
    let mut units = Units::new();
    let mut formats: Vec<Format> = Vec::new();
    let text: &'static str = text.replace("\n    ", " ").leak();
    let lines = text.lines();
    for text in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        let words = rest.split(' ');
        if word == "units" {
            let [name, list] = parts(rest, " ");
            let spellings: Vec<Spelling> = list.split(' ').map(spelling).collect();
            units.insert(name, spellings.leak());
            continue;
        }
        if word == "format" {
            formats.push(Format::default());
        }
        let format = formats.last_mut().expect("a format before its lines");
        match word {
            "format" => [format.name, format.about] = parts(rest, " "),
            "end" => format.end = rest,
            "repeats" => format.repeats = true,
            "sections" => format.sections = words.collect(),
            "json" => format.keys = words.collect(),
            "work" => format.work = Some(parts(rest, " ")),
            "product" => format.products.push(parts(rest, " ")),
            "flaw" => format.flaws.push(parts(rest, " ")),
            _ => format.lines.push(line(text, &units)),
        }
    }
    formats
}

/// The parts of a line of the tables.
fn parts<const N: usize>(text: &'static str, separator: &str) -> [&'static str; N] {
    let parts: Vec<&str> = text.splitn(N, separator).map(str::trim).collect();
    let parts = parts.try_into();
    parts.unwrap_or_else(|_| panic!("found {text}, expected {N} parts"))
}

fn line(text: &'static str, units: &Units) -> Line {
    let [key, flags, pattern, takes] = parts(text, " ||");
    let quoted = key.trim_start_matches('~');
    let takes = takes.split_whitespace().map(|word| {
        let (word, name) = word.split_once('@').unwrap_or((word, ""));
        (&*name.replace('~', " ").leak(), take(word, units))
    });
    Line {
        key: &quoted[1..quoted.len() - 1],
        is_start: quoted == key,
        begins: ["begins", "joins", "new"].map(|f| flags.contains(f)) != [false; 3],
        flags: flags.split(' ').collect(),
        pattern,
        compiled: OnceLock::new(),
        takes: takes.collect(),
    }
}

/// Reads `SPELLING=UNIT` or `SPELLING=FACTOR*UNIT`.
fn spelling(word: &'static str) -> Spelling {
    let [spelling, unit] = parts(word, "=");
    let (factor, unit) = unit.split_once('*').unwrap_or(("1", unit));
    let factor = factor.parse().expect("a number before *");
    (spelling, factor, Unit::named(unit))
}

fn take(word: &'static str, units: &Units) -> Take {
    if let Some(name) = word.strip_prefix('=') {
        return Take::Parameter(name);
    }
    if word == "%" {
        return Take::Level;
    }
    let [figure, unit] = parts(word, ":");
    let (figure, statistic) = figure.split_once('.').unwrap_or((figure, "total"));
    let statistic = Statistic::named(statistic);
    if let Some(list) = unit.strip_prefix('*') {
        return Take::Sized(figure, statistic, units[list]);
    }
    let (unit, spelling) = unit.split_once('~').unwrap_or((unit, unit));
    Take::Figure(figure, statistic, (spelling, 1.0, Unit::named(unit)))
}
