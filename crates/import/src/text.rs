//! The reader of text: lines in, runs of records out.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use regex_lite::{Captures, Regex};

use crate::check::shown;
use crate::format::{Format, Line, Table, Take};
use crate::number::number;
use crate::record::{Input, Parameters, Record, Run, Statistic};
use crate::{LINE_MAX, RECORDS_MAX};

/// The longest value of a parameter, in bytes.
pub(crate) const PARAMETER_MAX: usize = 256;

/// The text that was found and what was expected instead.
pub(crate) type Refused = (String, String);

pub(crate) fn too_many() -> Refused {
    let found = format!("more than {RECORDS_MAX} figures");
    (found, "fewer in one file".into())
}

/// Text of a log for a message, in quotation marks and not too long.
pub(crate) fn quoted(text: &str) -> String {
    let mut short: String = text.trim().chars().take(60).collect();
    if short.len() < text.trim().len() {
        short.push('…');
    }
    format!("{short:?}")
}

/// Reads lines of text into an [`Input`].
pub(crate) struct Lines {
    log: Log,
    program: Lane,
    /// The lines that the kernel printed into the program's output.
    kernel: Lane,
    /// The beginning of a line into which the kernel printed.
    cut: String,
    /// The last line that had figures.
    last_figures: usize,
}

/// The part that the lanes share.
struct Log {
    forced: Option<&'static Format>,
    input: Input,
    /// The number of figures so far.
    records: usize,
}

/// One stream of lines.
#[derive(Default)]
struct Lane {
    run: Option<Open>,
    table: Option<OpenTable>,
    /// The parameters of the run before.
    before: Parameters,
}

/// A run that is being read.
struct Open {
    format: &'static Format,
    run: Run,
    state: State,
    /// Parameters of the whole run.
    whole: Parameters,
    /// Parameters that the following lines inherit.
    section: Parameters,
    /// The number of times that each counted line was seen.
    ordinals: HashMap<&'static str, u64>,
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

/// A table that is being read.
struct OpenTable {
    table: &'static Table,
    columns: Vec<(Take, Option<Statistic>)>,
}

impl Lines {
    pub(crate) fn new(file: &str, forced: Option<&'static Format>) -> Lines {
        let input = Input::new(file);
        Lines {
            log: Log {
                forced,
                input,
                records: 0,
            },
            program: Lane::default(),
            kernel: Lane::default(),
            cut: String::new(),
            last_figures: 0,
        }
    }

    pub(crate) fn file(&self) -> &str {
        &self.log.input.file
    }

    /// Refuses a line.
    pub(crate) fn refuse(&mut self, line: usize, found: &str, expected: String) {
        self.log.input.refuse(line, (found.to_owned(), expected));
    }

    /// Takes one line, or what a program drew before a carriage return and then drew over: that is
    /// taken if it is a line of the format, and ignored if not.
    pub(crate) fn line(&mut self, at: usize, text: &str, drawn_over: bool) {
        let text = &plain(text);
        let stamp = text.contains("] ").then(|| stamp().find(text)).flatten();
        if let Some(stamp) = stamp {
            let before = &text[..stamp.start()];
            if !before.trim().is_empty() && self.cut.len() + before.len() <= LINE_MAX {
                self.cut.push_str(before);
            }
            self.feed(true, at, &text[stamp.end()..], false);
        } else if self.cut.is_empty() {
            self.feed(false, at, text, drawn_over);
        } else {
            let whole = std::mem::take(&mut self.cut) + text;
            self.feed(false, at, &whole, drawn_over);
        }
    }

    /// Ends the input. `line` is its last line, `whole` is false if that has no line end.
    pub(crate) fn finish(mut self, line: usize, whole: bool) -> Input {
        if !self.cut.is_empty() {
            let cut = std::mem::take(&mut self.cut);
            self.feed(false, line, &cut, false);
        }
        let Log {
            forced, mut input, ..
        } = self.log;
        if !whole && self.last_figures == line {
            let open = [&self.program, &self.kernel].map(|lane| lane.run.as_ref());
            let open = open.into_iter().flatten().map(|open| &open.run);
            let mut records = input.runs.iter().chain(open).flat_map(|run| &run.records);
            let last = records.rfind(|r| r.line == line);
            let figure = last.map(shown).unwrap_or_default();
            let problem = "the file ends within this line, so its last digits may be missing";
            input.find(line, figure, problem, "followed by the end of its line");
        }
        for lane in [&mut self.program, &mut self.kernel] {
            lane.close(&mut input, line);
        }
        if input.runs.is_empty() && input.refused.is_empty() {
            let known = "a benchmark that is known (tare import --help lists them)";
            let expected = forced.map_or(known, |format| format.about);
            let found = "no figures to the end of the file".into();
            input.refuse(line, (found, format!("the output of {expected}")));
        }
        input
    }

    fn feed(&mut self, from_kernel: bool, at: usize, text: &str, drawn_over: bool) {
        if drawn_over && text.trim().is_empty() {
            return;
        }
        let lane = match from_kernel {
            true => &mut self.kernel,
            false => &mut self.program,
        };
        let before = self.log.records;
        let row = lane.row(&mut self.log, at, text);
        let result = row.or_else(|| lane.line(&mut self.log, at, text));
        if let (Some(Err(refused)), false) = (result, drawn_over) {
            self.log.input.refuse(at, refused);
        }
        if self.log.records > before {
            self.last_figures = at;
        }
        let state = lane.run.as_ref().map(|open| open.state);
        if state == Some(State::Closed) {
            lane.close(&mut self.log.input, at);
        }
    }
}

/// The time stamp of a kernel message.
fn stamp() -> &'static Regex {
    static STAMP: OnceLock<Regex> = OnceLock::new();
    STAMP.get_or_init(|| Regex::new(r"\[ *[0-9]+\.[0-9]{6}\] ").expect("a pattern of this file"))
}

/// `line` without escape sequences and control characters.
fn plain(line: &str) -> Cow<'_, str> {
    if !line.contains(|c: char| c.is_control() && c != '\t') {
        return Cow::Borrowed(line);
    }
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
            '\t' => out.push(c),
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

impl Lane {
    /// Reads a row of the table that is open; `None` if none is, or if it ended before this line.
    fn row(&mut self, log: &mut Log, at: usize, text: &str) -> Option<Result<(), Refused>> {
        let OpenTable { table, columns } = self.table.as_ref()?;
        if text.trim().is_empty() {
            self.table = None;
            return None;
        }
        if table.columns.is_empty() || text.chars().all(|c| matches!(c, '-' | '=' | ' ')) {
            return Some(Ok(()));
        }
        let cells = table.cells(text);
        if cells.len() != columns.len() {
            let found = format!("{} cells in {}", cells.len(), quoted(text));
            let expected = format!("{} as in the table's header", columns.len());
            return Some(Err((found, expected)));
        }
        let mut taken = Taken::default();
        for ((take, statistic), cell) in columns.iter().zip(&cells) {
            if matches!(*cell, "---" | "-nan" | "nan" | "") {
                continue;
            }
            taken.level = *statistic;
            if let Err(refused) = taken.take(*take, cell) {
                return Some(Err(refused));
            }
        }
        let open = self.run.as_mut()?;
        let added = open.add(log, taken, &[], at);
        let mut last = table
            .flags
            .iter()
            .filter_map(|flag| flag.strip_prefix("last="));
        let is_last = last.next() == Some(cells[0]);
        if is_last || table.flags.contains(&"first") {
            open.state = if is_last { State::Closed } else { State::Ended };
            self.table = None;
        }
        Some(added)
    }

    /// Reads a line by the format of the run, then by the beginnings of every format.
    fn line(&mut self, log: &mut Log, at: usize, text: &str) -> Option<Result<(), Refused>> {
        let current = self.run.as_ref().map(|open| open.format);
        let is_current = |format: &Format| current.is_some_and(|c| std::ptr::eq(c, format));
        let is_wanted = |format: &&Format| log.forced.is_none_or(|f| std::ptr::eq(f, *format));
        let others = Format::all().filter(is_wanted).filter(|f| !is_current(f));
        let mut expected = None;
        let trimmed = text.trim_start();
        for format in current.into_iter().chain(others) {
            let is_current = is_current(format);
            let may_be = |line: &&Line| (is_current || line.begins) && line.may_be(text, trimmed);
            for line in format.lines.iter().filter(may_be) {
                let found: Vec<Captures<'_>> = line.regex().captures_iter(text).collect();
                let start = found.first().and_then(|captures| captures.get(0));
                let anchored = line.flags.contains(&"anchored");
                if start.is_none_or(|start| anchored && start.start() > 0) {
                    if line.is_start && is_current {
                        expected.get_or_insert(line.key);
                    }
                    continue;
                }
                let open = self.begin(log, format, &line.flags, at);
                let mut taken = found
                    .iter()
                    .map(|captures| open.apply(log, line, captures, at));
                let result = taken.find(Result::is_err).unwrap_or(Ok(()));
                if result.is_ok() && line.flags.contains(&"error") {
                    log.input.error(at, text);
                }
                return Some(result);
            }
            let is_header = |table: &&Table| {
                let begins = is_current || table.flags.contains(&"new");
                begins && trimmed.starts_with(table.header)
            };
            if let Some(table) = format.tables.iter().find(is_header) {
                self.begin(log, format, &table.flags, at);
                return Some(header(table, text).map(|open| self.table = Some(open)));
            }
        }
        expected.map(|key| Err((quoted(text), format!("a whole line of {:?}", key.trim()))))
    }

    /// The run of `format` that is under way, or a new one where the line's flags say so.
    fn begin(
        &mut self,
        log: &mut Log,
        format: &'static Format,
        flags: &[&str],
        at: usize,
    ) -> &mut Open {
        let is_new = |open: &Open| {
            let ended = flags.contains(&"begins") && open.state == State::Ended;
            ended || flags.contains(&"new") || !std::ptr::eq(open.format, format)
        };
        if self.run.as_ref().is_some_and(is_new) {
            self.close(&mut log.input, at);
        }
        self.run.get_or_insert_with(|| Open {
            format,
            run: Run {
                format: format.name,
                line: at,
                records: Vec::new(),
            },
            state: State::Begun,
            whole: match flags.contains(&"inherits") {
                true => self.before.clone(),
                false => Parameters::new(),
            },
            section: Parameters::new(),
            ordinals: HashMap::new(),
        })
    }

    /// Ends the run: it is kept if it is complete and has figures, and refused if it was cut.
    fn close(&mut self, input: &mut Input, at: usize) {
        self.table = None;
        let Some(mut open) = self.run.take() else {
            return;
        };
        if open.state == State::Incomplete {
            let found = format!("the end of the output of {}", open.format.about);
            let expected = format!("{} first: the log is cut", open.format.end);
            return input.refuse(at, (found, expected));
        }
        self.before.clone_from(&open.whole);
        for record in &mut open.run.records {
            for (name, value) in &open.whole {
                let value = || Arc::clone(value);
                record.parameters.entry(name).or_insert_with(value);
            }
        }
        if let Some(first) = open.run.records.first() {
            open.run.line = first.line;
            input.runs.push(open.run);
        }
    }
}

/// Reads the header of a table.
fn header(table: &'static Table, text: &str) -> Result<OpenTable, Refused> {
    let column = |cell: &&str| {
        // "p99 Latency": a percentile of the column "p Latency".
        let percentile = cell.strip_prefix('p').and_then(|rest| {
            let name = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
            let level = rest[..rest.len() - name.len()].parse().ok()?;
            Some((format!("p{name}"), Statistic::Percentile(level)))
        });
        let (name, statistic) = match &percentile {
            Some((name, level)) => (name.as_str(), Some(*level)),
            None => (*cell, None),
        };
        let known = table.columns.iter().find(|(known, _)| *known == name);
        known.map(|(_, take)| (*take, statistic)).ok_or_else(|| {
            let names: Vec<&str> = table.columns.iter().map(|(name, _)| *name).collect();
            let found = format!("the column {}", quoted(cell));
            (found, format!("one of {}", names.join(", ")))
        })
    };
    let columns = match table.columns.is_empty() {
        true => Vec::new(),
        false => table
            .cells(text)
            .iter()
            .map(column)
            .collect::<Result<_, _>>()?,
    };
    Ok(OpenTable { table, columns })
}

/// The parameters and figures of one line.
#[derive(Default)]
struct Taken {
    parameters: Parameters,
    figures: Vec<Record>,
    /// The percentile that the next figure is.
    level: Option<Statistic>,
    /// True if a comma of its numbers groups thousands.
    thousands: bool,
}

impl Taken {
    fn take(&mut self, take: Take, text: &str) -> Result<(), Refused> {
        let read = |text: &str, whole| number(text, whole).map_err(|what| (quoted(text), what));
        let (figure, statistic, digits, factor, unit, printed_unit) = match take {
            Take::Nothing => return Ok(()),
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
            Take::Figure(figure, statistic, unit, spelling) => {
                (figure, statistic, text, 1.0, unit, spelling)
            }
            Take::Sized(figure, statistic, spellings) => {
                let end = text.find(|c: char| c.is_ascii_alphabetic() || matches!(c, 'µ' | '%'));
                let (digits, unit) = text.split_at(end.unwrap_or(text.len()));
                let found = spellings.iter().find(|(name, ..)| *name == unit.trim());
                let &(spelling, factor, unit) = found.ok_or_else(|| {
                    let names: Vec<&str> = spellings.iter().map(|(name, ..)| *name).collect();
                    let expected = format!("a number and one of {:?}", names.join(" "));
                    (quoted(text), expected)
                })?;
                let is_other = factor == 1.0 && spelling != unit.name;
                let printed_unit = is_other.then_some(spelling);
                (figure, statistic, digits.trim(), factor, unit, printed_unit)
            }
        };
        let whole = self.thousands || unit.name == "count" && factor == 1.0;
        let n = read(digits, whole)?;
        let (mut value, resolution) = (n.value * factor, n.resolution * factor);
        if factor != 1.0 && resolution >= 1.0 {
            // 4.06 k is 4060, and not 4059.9999999999995.
            value = (value / resolution).round() * resolution;
        }
        self.figures.push(Record {
            figure,
            statistic: self.level.take().unwrap_or(statistic),
            value,
            unit,
            printed_unit,
            parameters: Parameters::new(),
            line: 0,
            resolution,
        });
        Ok(())
    }
}

impl Open {
    /// Takes what a line says.
    fn apply(
        &mut self,
        log: &mut Log,
        line: &Line,
        captures: &Captures<'_>,
        at: usize,
    ) -> Result<(), Refused> {
        for name in line.flags.iter().filter_map(|flag| flag.strip_prefix('#')) {
            let count = self.ordinals.entry(name).or_insert(0);
            *count += 1;
            self.section.insert(name, Arc::from(count.to_string()));
        }
        let thousands = line.flags.contains(&"thousands");
        let mut taken = Taken {
            thousands,
            ..Taken::default()
        };
        for (take, group) in line.takes.iter().zip(captures.iter().skip(1)) {
            if let Some(group) = group {
                taken.take(*take, group.as_str())?;
            }
        }
        if line.flags.contains(&"whole") {
            self.section.clear();
        }
        for flag in &line.flags {
            match *flag {
                "needs" => self.state = State::Incomplete,
                "ends" => self.state = State::Ended,
                "closes" => self.state = State::Closed,
                _ => {}
            }
        }
        self.add(log, taken, &line.flags, at)
    }

    /// Adds figures, or parameters for the lines that follow.
    fn add(
        &mut self,
        log: &mut Log,
        taken: Taken,
        flags: &[&str],
        at: usize,
    ) -> Result<(), Refused> {
        for (name, value) in &taken.parameters {
            let mut sections = self.format.sections.iter();
            if sections.any(|section| section == name) {
                if taken.figures.is_empty() || flags.contains(&"keeps") {
                    sections.for_each(|inner| drop(self.section.remove(inner)));
                    self.section.insert(name, Arc::clone(value));
                }
            } else if taken.figures.is_empty() {
                self.whole.insert(name, Arc::clone(value));
            }
        }
        for mut record in taken.figures {
            if log.records == RECORDS_MAX {
                return Err(too_many());
            }
            log.records += 1;
            record.line = at;
            record.parameters.clone_from(&self.section);
            record.parameters.extend(taken.parameters.clone());
            self.run.records.push(record);
        }
        Ok(())
    }
}
