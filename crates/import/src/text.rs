//! The reader of text: lines in, runs of records out.

use std::sync::{Arc, LazyLock};

use regex_lite::{Captures, Regex};

use crate::format::{Format, Line, Take};
use crate::number::number;
use crate::record::{quoted, too_many, Input, Outcome, Parameters, Record, Refused};
use crate::record::{Run, Statistic};
use crate::RECORDS_MAX;

/// The longest value of a parameter, in bytes.
pub(crate) const PARAMETER_MAX: usize = 256;

/// One stream of lines, with the run to which they belong.
#[derive(Default)]
pub(crate) struct Lane {
    run: Option<Open>,
    table: Option<Table>,
    /// The parameters of the whole run before.
    before: Parameters,
}

/// A run that is being read.
pub(crate) struct Open {
    format: &'static Format,
    run: Run,
    state: State,
    /// Parameters of the whole run.
    pub(crate) whole: Parameters,
    /// Parameters that the following lines inherit.
    section: Parameters,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Begun,
    /// It was cut if the line that ends it does not follow.
    Incomplete,
    Ended,
    /// The lines that follow are no longer of this run.
    Closed,
}

/// A table that is being read: its header, and its columns, some of which are percentiles.
type Table = (&'static Line, Vec<(Take, Option<Statistic>)>);

/// The time stamp of a kernel message.
pub(crate) static STAMP: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\[ *[0-9]+\.[0-9]{6}\] ").expect("a pattern of this file"));

/// `line` without escape sequences and control characters.
pub(crate) fn plain(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            // CSI: to its final byte. OSC: to BEL or ESC. Others: one character.
            '\u{1b}' => match chars.next() {
                Some('[') => drop(chars.find(|c| ('@'..='~').contains(c))),
                Some(']') => drop(chars.find(|c| matches!(c, '\u{7}' | '\u{1b}'))),
                _ => {}
            },
            c if c.is_control() && c != '\t' => {}
            c => out.push(c),
        }
    }
    out
}

impl Lane {
    /// Takes a line, or what a program drew before a carriage return and then drew over: that is
    /// taken if it is a line of the format, and ignored if not.
    pub(crate) fn feed(&mut self, input: &mut Input, text: &str, drawn_over: bool) {
        if text.trim().is_empty() {
            if drawn_over {
                return;
            }
            self.table = None;
        }
        let result = match self.table {
            Some(_) => self.row(input, text),
            None => self.line(input, text),
        };
        if let (Err(refused), false) = (result, drawn_over) {
            input.refuse(refused);
        }
        let is_closed = |open: &Open| open.state == State::Closed;
        if self.run.as_ref().is_some_and(is_closed) {
            self.close(input);
        }
    }

    /// Reads a row of the table that is open.
    fn row(&mut self, input: &mut Input, text: &str) -> Outcome {
        let (Some((header, columns)), Some(open)) = (&self.table, &mut self.run) else {
            return Ok(());
        };
        if header.takes.is_empty() || text.chars().all(|c| matches!(c, '-' | '=' | ' ')) {
            return Ok(());
        }
        let cells = header.cells(text);
        if cells.len() != columns.len() {
            let found = format!("{} cells in {}", cells.len(), quoted(text));
            let expected = format!("{} as in the table's header", columns.len());
            return Err((found, expected));
        }
        let mut taken = Taken::default();
        for ((take, statistic), cell) in columns.iter().zip(&cells) {
            if !matches!(*cell, "---" | "-nan" | "nan" | "") {
                taken.level = *statistic;
                taken.take(*take, cell, input.at)?;
            }
        }
        let is_last = header.flag("last=") == Some(cells[0]);
        if is_last || header.has("first") {
            open.state = if is_last { State::Closed } else { State::Ended };
            self.table = None;
        }
        open.add(input, taken, false)
    }

    /// Reads a line by the format of the run, then by the beginnings of every format.
    fn line(&mut self, input: &mut Input, text: &str) -> Outcome {
        let current = self.run.as_ref().map(|open| open.format);
        let is_current = |format: &Format| current.is_some_and(|c| c.name == format.name);
        let forced = input.forced;
        let others = Format::all().filter(|f| forced.is_none_or(|forced| forced.name == f.name));
        let others = others.filter(|f| !is_current(f));
        let (text, trimmed) = (text.trim_end(), text.trim_start());
        let mut expected = None;
        for format in current.into_iter().chain(others) {
            let is_current = is_current(format);
            let may_be = |line: &&Line| match line.is_start {
                _ if !is_current && !line.begins => false,
                true => trimmed.starts_with(line.key),
                false => text.contains(line.key),
            };
            for line in format.lines.iter().filter(may_be) {
                let Some(regex) = line.regex() else {
                    self.begin(input, format, line);
                    self.table = Some(table(line, text)?);
                    return Ok(());
                };
                let mut matches = regex.captures_iter(text).peekable();
                let start = matches.peek().and_then(|captures| captures.get(0));
                if start.is_none_or(|start| line.has("anchored") && start.start() > 0) {
                    if line.is_start && is_current {
                        expected.get_or_insert(line.key);
                    }
                    continue;
                }
                let open = self.begin(input, format, line);
                matches.try_for_each(|captures| open.apply(input, line, &captures))?;
                if line.has("error") {
                    input.error(text);
                }
                return Ok(());
            }
        }
        let whole = |key: &str| (quoted(text), format!("a whole line of {:?}", key.trim()));
        expected.map_or(Ok(()), |key| Err(whole(key)))
    }

    /// The run of `format` that is under way, or a new one where the line's flags say so.
    fn begin(&mut self, input: &mut Input, format: &'static Format, line: &Line) -> &mut Open {
        let is_new = |open: &Open| {
            let ended = line.has("begins") && open.state == State::Ended;
            ended || line.has("new") || open.format.name != format.name
        };
        if self.run.as_ref().is_some_and(is_new) {
            self.close(input);
        }
        self.run.get_or_insert_with(|| {
            let mut open = Open::new(format, input.at);
            if line.has("inherits") {
                open.whole.clone_from(&self.before);
            }
            open
        })
    }

    /// The figures of the run that is under way.
    pub(crate) fn records(&self) -> &[Record] {
        self.run.as_ref().map_or(&[], |open| &open.run.records)
    }

    /// Ends the run: it is kept if it is complete and has figures, and refused if it was cut.
    pub(crate) fn close(&mut self, input: &mut Input) {
        self.table = None;
        let Some(mut open) = self.run.take() else {
            return;
        };
        if open.state == State::Incomplete {
            let found = format!("the end of the output of {}", open.format.about);
            let expected = format!("{} first: the log is cut", open.format.end);
            return input.refuse((found, expected));
        }
        self.before.clone_from(&open.whole);
        if let Some(first) = open.run.records.first() {
            open.run.line = first.line;
            open.close(input);
        }
    }
}

/// Reads the header of a table.
fn table(header: &'static Line, text: &str) -> Result<Table, Refused> {
    let column = |cell: &str| {
        // "p99 Latency": a percentile of the column "p Latency".
        let percentile = cell.strip_prefix('p').and_then(|rest| {
            let name = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
            let level = rest[..rest.len() - name.len()].parse().ok()?;
            Some((format!("p{name}"), Some(Statistic::Percentile(level))))
        });
        let (name, statistic) = percentile.unwrap_or_else(|| (cell.to_owned(), None));
        let mut takes = header.takes.iter();
        let known = takes.find(|(known, _)| *known == name);
        known.map(|(_, take)| (*take, statistic)).ok_or_else(|| {
            let names: Vec<&str> = header.takes.iter().map(|(name, _)| *name).collect();
            let found = format!("the column {}", quoted(cell));
            (found, format!("one of {}", names.join(", ")))
        })
    };
    let cells = header.cells(text).into_iter();
    // A table without columns is passed over.
    let cells = cells.filter(|_| !header.takes.is_empty());
    let columns: Result<_, _> = cells.map(column).collect();
    Ok((header, columns?))
}

/// The parameters and figures of one line, row or object.
#[derive(Default)]
pub(crate) struct Taken {
    parameters: Parameters,
    figures: Vec<Record>,
    /// The percentile that the next figure is.
    level: Option<Statistic>,
    /// True if a comma of its numbers groups thousands.
    thousands: bool,
}

impl Taken {
    /// Takes the text of a group, cell or value, which is on that line.
    pub(crate) fn take(&mut self, take: Take, text: &str, line: usize) -> Outcome {
        let read = |text: &str, whole| number(text, whole).map_err(|what| (quoted(text), what));
        let (figure, statistic, digits, (spelling, factor, unit)) = match take {
            Take::Parameter(name) if text.len() > PARAMETER_MAX => {
                let expected = format!("a {name} of at most {PARAMETER_MAX} bytes");
                return Err((quoted(text), expected));
            }
            Take::Parameter(name) => {
                self.parameters.insert(name, Arc::from(text.trim()));
                return Ok(());
            }
            Take::Level => {
                self.level = Some(Statistic::Percentile(read(text, false)?.value));
                return Ok(());
            }
            Take::Figure(figure, statistic, spelling) => (figure, statistic, text, spelling),
            Take::Sized(figure, statistic, spellings) => {
                let end = text.find(|c: char| c.is_ascii_alphabetic() || matches!(c, 'µ' | '%'));
                let (digits, unit) = text.split_at(end.unwrap_or(text.len()));
                let found = spellings.iter().find(|(name, ..)| *name == unit.trim());
                let spelling = found.ok_or_else(|| {
                    let names: Vec<&str> = spellings.iter().map(|(name, ..)| *name).collect();
                    let expected = format!("a number and one of {:?}", names.join(" "));
                    (quoted(text), expected)
                })?;
                (figure, statistic, digits.trim(), *spelling)
            }
        };
        let whole = self.thousands || unit.name == "count" && factor == 1.0;
        let n = read(digits, whole)?;
        let (mut value, resolution) = (n.value * factor, n.resolution * factor);
        if factor != 1.0 && resolution >= 1.0 {
            // 4.06 k is 4060, and not 4059.9999999999995.
            value = (value / resolution).round() * resolution;
        }
        if !value.is_finite() {
            let expected = format!("a number that is finite in {}", unit.name);
            return Err((quoted(text), expected));
        }
        if self.figures.len() == RECORDS_MAX {
            return Err(too_many());
        }
        let is_other = factor == 1.0 && spelling != unit.name;
        self.figures.push(Record {
            figure,
            statistic: self.level.take().unwrap_or(statistic),
            value,
            unit,
            printed_unit: is_other.then_some(spelling),
            parameters: Parameters::new(),
            line,
            resolution,
        });
        Ok(())
    }
}

impl Open {
    /// A run that begins on that line.
    pub(crate) fn new(format: &'static Format, line: usize) -> Open {
        let run = Run {
            format: format.name,
            line,
            records: Vec::new(),
        };
        Open {
            format,
            run,
            state: State::Begun,
            whole: Parameters::new(),
            section: Parameters::new(),
        }
    }

    /// Takes what a line says.
    fn apply(&mut self, input: &mut Input, line: &Line, captures: &Captures<'_>) -> Outcome {
        if let Some(name) = line.flag("#") {
            let count = self.section.get(name).and_then(|n| n.parse().ok());
            let count = count.unwrap_or(0u64) + 1;
            self.section.insert(name, Arc::from(count.to_string()));
        }
        let mut taken = Taken {
            thousands: line.has("thousands"),
            ..Taken::default()
        };
        for ((_, take), group) in line.takes.iter().zip(captures.iter().skip(1)) {
            if let Some(group) = group {
                taken.take(*take, group.as_str(), input.at)?;
            }
        }
        for flag in &line.flags {
            match *flag {
                "needs" => self.state = State::Incomplete,
                "ends" => self.state = State::Ended,
                "closes" => self.state = State::Closed,
                "whole" => self.section.clear(),
                _ => {}
            }
        }
        let last = line.flag("ends:").and_then(|flag| flag.split_once('='));
        if last.is_some_and(|(name, value)| *taken.parameters[name] == *value) {
            self.state = State::Ended;
        }
        self.add(input, taken, line.has("keeps"))
    }

    /// Adds figures, or parameters for the lines that follow; `keeps` says that sections hold
    /// beyond these figures.
    pub(crate) fn add(&mut self, input: &mut Input, taken: Taken, keeps: bool) -> Outcome {
        let (parameters, figures) = (taken.parameters, taken.figures);
        for (name, value) in &parameters {
            let mut sections = self.format.sections.iter();
            if sections.any(|section| section == name) {
                if figures.is_empty() || keeps {
                    sections.for_each(|inner| drop(self.section.remove(inner)));
                    self.section.insert(name, Arc::clone(value));
                }
            } else if figures.is_empty() {
                self.whole.insert(name, Arc::clone(value));
            }
        }
        for mut record in figures {
            if input.records == RECORDS_MAX {
                return Err(too_many());
            }
            input.records += 1;
            record.parameters.clone_from(&self.section);
            record.parameters.extend(parameters.clone());
            self.run.records.push(record);
        }
        Ok(())
    }

    /// Keeps the run, whose figures have the parameters of the whole run.
    pub(crate) fn close(mut self, input: &mut Input) {
        for record in &mut self.run.records {
            let own = std::mem::replace(&mut record.parameters, self.whole.clone());
            record.parameters.extend(own);
        }
        input.runs.push(self.run);
    }
}
