//! A format as a table: which lines it has, and what stands on them. `formats.txt` has the tables
//! and explains their form.

use std::sync::OnceLock;

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
    /// Its lines; the first that matches counts.
    pub(crate) lines: Vec<Line>,
    /// Its tables, whose headers say what their columns are.
    pub(crate) tables: Vec<Table>,
    /// Parameters that hold for the lines that follow and not for the whole run, outermost first.
    pub(crate) sections: Vec<&'static str>,
    /// The line that ends a run, for a message.
    pub(crate) end: &'static str,
    /// Amount, time and rate: the first is the product of the others.
    pub(crate) products: Vec<[&'static str; 3]>,
    /// The figures whose quotient is the bytes per response.
    pub(crate) work: Option<[&'static str; 2]>,
    /// True if one run is several repetitions.
    pub(crate) repeats: bool,
    /// Keys of a JSON document that tell it from others; empty if the format is text.
    pub(crate) keys: Vec<&'static str>,
    /// Objects of the JSON document, each by its path, with the paths below it.
    pub(crate) objects: Vec<(&'static str, Vec<(&'static str, Take)>)>,
}

/// A kind of line.
pub(crate) struct Line {
    /// A text that the line must have, looked for before the regular expression.
    pub(crate) key: &'static str,
    /// True if the line begins with it, after blanks. One that does and does not match is refused.
    pub(crate) is_start: bool,
    /// True if it can begin a run.
    pub(crate) begins: bool,
    pub(crate) flags: Vec<&'static str>,
    pattern: &'static str,
    compiled: OnceLock<Regex>,
    pub(crate) takes: Vec<Take>,
}

/// A table whose header names its columns.
pub(crate) struct Table {
    /// The beginning of the header, after blanks. Without columns the table is passed over.
    pub(crate) header: &'static str,
    pub(crate) flags: Vec<&'static str>,
    pub(crate) columns: Vec<(&'static str, Take)>,
}

/// The use of a group of a pattern, a cell of a table or a value of JSON.
#[derive(Clone, Copy)]
pub(crate) enum Take {
    /// A figure in a unit, and its spelling where the log has another.
    Figure(&'static str, Statistic, Unit, Option<&'static str>),
    /// A figure with its unit behind it, read by a list of spellings.
    Sized(&'static str, Statistic, &'static [Spelling]),
    /// A parameter.
    Parameter(&'static str),
    /// The level of the percentile that the next figure is.
    Level,
    /// Passed over.
    Nothing,
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
        static ALL: OnceLock<Vec<Format>> = OnceLock::new();
        ALL.get_or_init(|| parse(include_str!("formats.txt")))
            .iter()
    }

    /// Returns whether one run of it is several repetitions.
    pub fn repeats(&self) -> bool {
        self.repeats
    }
}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Line {
    /// Returns whether a line has the key; `trimmed` is without the blanks before it.
    pub(crate) fn may_be(&self, line: &str, trimmed: &str) -> bool {
        match self.is_start {
            true => trimmed.starts_with(self.key),
            false => line.contains(self.key),
        }
    }

    /// The compiled pattern.
    pub(crate) fn regex(&self) -> &Regex {
        self.compiled.get_or_init(|| {
            let number = r"[-+]?[0-9]+(?:[.,][0-9]+)*(?:[eE][-+]?[0-9]+)?";
            let sized = format!("{number} ?[A-Za-zµ/%]*");
            let whole = self.pattern.replace("{n}", number).replace("{q}", &sized);
            Regex::new(&whole).expect("a pattern of formats.txt")
        })
    }
}

impl Table {
    /// The cells of a row: between commas, or between two or more blanks.
    pub(crate) fn cells<'t>(&self, line: &'t str) -> Vec<&'t str> {
        if self.flags.contains(&"commas") {
            let cells = line.split(',');
            return cells.map(|cell| cell.trim().trim_matches('"')).collect();
        }
        let cells = line.split("  ").map(str::trim);
        cells.filter(|cell| !cell.is_empty()).collect()
    }
}

/// Reads the tables. They are a part of the program, so that a mistake in them is one of the
/// program, which every test would meet.
fn parse(text: &'static str) -> Vec<Format> {
    let mut units: Vec<(&str, &'static [Spelling])> = Vec::new();
    let mut formats: Vec<Format> = Vec::new();
    let text: &'static str = text.replace("\n    ", " ").leak();
    for line in text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        if let Some(name) = word.strip_prefix('[').and_then(|w| w.strip_suffix(']')) {
            let about = rest;
            formats.push(Format {
                name,
                about,
                ..Format::default()
            });
            continue;
        }
        let words = || rest.split(' ');
        if word == "units" {
            let spellings: Vec<Spelling> = words().skip(1).map(spelling).collect();
            units.push((words().next().unwrap_or(""), spellings.leak()));
            continue;
        }
        let fields: Vec<&str> = line.split(" ||").map(str::trim).collect();
        let flags = |at: usize| fields[at].split(' ').filter(|flag| *flag != "-").collect();
        let read = |word| take(word, &units);
        let format = formats.last_mut().expect("a [name] before its lines");
        match word {
            "end" => format.end = rest,
            "repeats" => format.repeats = true,
            "sections" => format.sections = words().collect(),
            "json" => format.keys = words().collect(),
            "work" => format.work = list(rest),
            "product" => format.products.extend(list::<3>(rest)),
            "at" => {
                let below = |word: &'static str| {
                    let (word, path) = word.split_once('@').expect("a take and its path");
                    (path, read(word))
                };
                let path = fields[0].trim_start_matches("at ");
                let below = fields[1].split(' ').map(below).collect();
                format.objects.push((path, below));
            }
            "table" => {
                let columns = fields[2].split("; ").filter_map(|c| c.rsplit_once(' '));
                format.tables.push(Table {
                    header: unquoted(fields[0].trim_start_matches("table ")),
                    flags: flags(1),
                    columns: columns.map(|(name, word)| (name, read(word))).collect(),
                });
            }
            _ => format.lines.push(Line {
                key: unquoted(fields[0].trim_start_matches('~')),
                is_start: !line.starts_with('~'),
                begins: ["begins", "joins", "new"]
                    .iter()
                    .any(|f| fields[1].contains(f)),
                flags: flags(1),
                pattern: fields[2],
                compiled: OnceLock::new(),
                takes: fields[3].split_whitespace().map(read).collect(),
            }),
        }
    }
    formats
}

fn unquoted(text: &str) -> &str {
    let inner = text.strip_prefix('"').and_then(|t| t.strip_suffix('"'));
    inner.expect("a text in quotation marks")
}

fn list<const N: usize>(text: &'static str) -> Option<[&'static str; N]> {
    text.split(' ').collect::<Vec<_>>().try_into().ok()
}

/// Reads `SPELLING=UNIT` or `SPELLING=FACTOR*UNIT`.
fn spelling(word: &'static str) -> Spelling {
    let (spelling, unit) = word.split_once('=').expect("a spelling and its unit");
    let (factor, unit) = unit.split_once('*').unwrap_or(("1", unit));
    let factor = factor.parse().expect("a number before *");
    (spelling, factor, Unit::named(unit))
}

fn take(word: &'static str, units: &[(&str, &'static [Spelling])]) -> Take {
    match (word, word.strip_prefix('=')) {
        ("%", _) => return Take::Level,
        ("-", _) => return Take::Nothing,
        (_, Some(name)) => return Take::Parameter(name),
        _ => {}
    }
    let (figure, unit) = word.split_once(':').expect("a figure and its unit");
    let (figure, statistic) = figure.split_once('.').expect("a figure and its statistic");
    let statistic = Statistic::named(statistic);
    if let Some(name) = unit.strip_prefix('*') {
        let found = units.iter().find(|(other, _)| *other == name);
        return Take::Sized(figure, statistic, found.expect("a list of units").1);
    }
    let spelled = unit.split_once('~');
    let (unit, spelling) = spelled.map_or((unit, None), |(unit, other)| (unit, Some(other)));
    Take::Figure(figure, statistic, Unit::named(unit), spelling)
}
