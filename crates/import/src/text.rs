//! The reader of text: bytes in, runs of records out.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use regex_lite::{Captures, Regex};

use crate::format::{Format, Line, Table, Take};
use crate::number::number;
use crate::record::{Finding, Input, Parameters, Record, Refusal, Run, Statistic};
use crate::{LINE_MAX, RECORDS_MAX, REFUSALS_MAX};

/// The longest value of a parameter, in bytes.
const PARAMETER_MAX: usize = 256;

/// One stream of lines. What the kernel printed into a program's output is a stream of its own.
#[derive(Default)]
struct Lane {
    run: Option<Open>,
    table: Option<OpenTable>,
}

/// A run that is being read.
struct Open {
    format: &'static Format,
    run: Run,
    /// Parameters of the whole run.
    whole: Parameters,
    /// Parameters that the following lines inherit.
    section: Parameters,
    /// The number of times that each counted line was seen.
    ordinals: HashMap<&'static str, u64>,
    incomplete: bool,
    ended: bool,
}

/// A table that is being read.
struct OpenTable {
    table: &'static Table,
    columns: Vec<(Take, Option<Statistic>)>,
}

/// Reads lines of text into an [`Input`].
pub(crate) struct Lines {
    forced: Option<&'static Format>,
    input: Input,
    program: Lane,
    kernel: Lane,
    /// The beginning of a line into which the kernel printed.
    cut: String,
    records: usize,
    last_figures: usize,
}

impl Lines {
    pub(crate) fn new(file: &str, forced: Option<&'static Format>) -> Lines {
        Lines {
            forced,
            input: Input {
                file: file.to_owned(),
                runs: Vec::new(),
                findings: Vec::new(),
                refused: Vec::new(),
            },
            program: Lane::default(),
            kernel: Lane::default(),
            cut: String::new(),
            records: 0,
            last_figures: 0,
        }
    }

    /// Refuses a line, up to a limit of refusals.
    pub(crate) fn refuse(
        &mut self,
        line: usize,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) {
        refuse(&mut self.input, line, found.into(), expected.into());
    }

    /// Takes one line, or what a program drew before a carriage return and then drew over: that is
    /// taken if it is a line of the format, and ignored if not.
    pub(crate) fn line(&mut self, at: usize, text: &str, drawn_over: bool) {
        let text = &plain(text);
        let stamped = if text.contains("] ") {
            stamp().find(text)
        } else {
            None
        };
        match stamped {
            Some(stamp) => {
                let before = &text[..stamp.start()];
                if !before.trim().is_empty() && self.cut.len() + before.len() <= LINE_MAX {
                    self.cut.push_str(before);
                }
                self.feed(true, at, &text[stamp.end()..], false);
            }
            None if self.cut.is_empty() => self.feed(false, at, text, drawn_over),
            None => {
                let whole = std::mem::take(&mut self.cut) + text;
                self.feed(false, at, &whole, drawn_over);
            }
        }
    }

    /// Ends the input. `line` is its last line, `whole` is false if that has no line end.
    pub(crate) fn finish(mut self, line: usize, whole: bool) -> Input {
        if !self.cut.is_empty() {
            let cut = std::mem::take(&mut self.cut);
            self.feed(false, line, &cut, false);
        }
        if !whole && self.last_figures == line {
            let last = self.input.runs.iter().flat_map(|run| &run.records);
            let open = [&self.program, &self.kernel]
                .into_iter()
                .filter_map(|lane| lane.run.as_ref());
            let last = last
                .chain(open.flat_map(|open| &open.run.records))
                .rfind(|r| r.line == line);
            let figure = last.map(crate::check::shown).unwrap_or_default();
            self.input.findings.push(Finding {
                file: self.input.file.clone(),
                line,
                figure,
                problem: "the file ends within this line, so its last digits may be missing".into(),
                should_be: "followed by the end of its line".into(),
            });
        }
        for lane in [&mut self.program, &mut self.kernel] {
            close(lane, &mut self.input, line);
        }
        if self.input.runs.is_empty() && self.input.refused.is_empty() {
            let expected = match self.forced {
                Some(format) => format!("the output of {}", format.about),
                None => {
                    "the output of a benchmark that is known (tare import --help lists them)".into()
                }
            };
            refuse(
                &mut self.input,
                line.max(1),
                "no figures to the end of the file".into(),
                expected,
            );
        }
        self.input.runs.sort_by_key(|run| run.line);
        self.input
    }

    fn feed(&mut self, from_kernel: bool, at: usize, text: &str, drawn_over: bool) {
        if drawn_over && text.trim().is_empty() {
            return;
        }
        let lane = if from_kernel {
            &mut self.kernel
        } else {
            &mut self.program
        };
        let input = &mut self.input;
        let before = self.records;
        let result = row(lane, at, text, &mut self.records)
            .or_else(|| line(lane, self.forced, input, at, text, &mut self.records));
        if let (Some(Err((found, expected))), false) = (result, drawn_over) {
            refuse(input, at, found, expected);
        }
        if self.records > before {
            self.last_figures = at;
        }
        let ended = lane.run.as_ref().is_some_and(|open| open.run.line == 0);
        if ended {
            close(lane, input, at);
        }
    }
}

/// The text that was found and what was expected instead.
type Refused = (String, String);

fn refuse(input: &mut Input, line: usize, found: String, expected: String) {
    let (found, expected) = match input.refused.len() {
        n if n < REFUSALS_MAX => (found, expected),
        REFUSALS_MAX => (
            "more of the kind".to_owned(),
            format!("at most {REFUSALS_MAX} lines that cannot be read"),
        ),
        _ => return,
    };
    let file = input.file.clone();
    input.refused.push(Refusal {
        file,
        line,
        found,
        expected,
    });
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

/// Text of a log for a message, in quotation marks and not too long.
pub(crate) fn quoted(text: &str) -> String {
    let mut short: String = text.trim().chars().take(60).collect();
    if short.len() < text.trim().len() {
        short.push('…');
    }
    format!("{short:?}")
}

/// Reads a row of the table that is open; `None` if none is, or if it ended before this line.
fn row(lane: &mut Lane, at: usize, text: &str, records: &mut usize) -> Option<Result<(), Refused>> {
    let open = lane.table.as_ref()?;
    let table = open.table;
    if text.trim().is_empty() {
        lane.table = None;
        return None;
    }
    if table.columns.is_empty() || text.chars().all(|c| matches!(c, '-' | '=' | ' ')) {
        return Some(Ok(()));
    }
    let cells = cells(table, text);
    if cells.len() != open.columns.len() {
        let found = format!("{} cells in {}", cells.len(), quoted(text));
        return Some(Err((
            found,
            format!("{} as in the table's header", open.columns.len()),
        )));
    }
    let run = lane.run.as_mut()?;
    let mut taken = Taken::default();
    for ((take, statistic), cell) in open.columns.iter().zip(&cells) {
        if matches!(*cell, "---" | "-nan" | "nan" | "") {
            continue;
        }
        taken.level = *statistic;
        if let Err(refused) = taken.take(*take, cell) {
            return Some(Err(refused));
        }
    }
    let added = run.add(taken, &[], at, records);
    let last = table
        .flags
        .iter()
        .find_map(|flag| flag.strip_prefix("last="));
    if table.flags.contains(&"first") || last == Some(cells[0]) {
        run.flag(&[if last.is_some() { "closes" } else { "ends" }]);
        lane.table = None;
    }
    Some(added)
}

/// Reads a line by the format of the run, then by the beginnings of every format.
fn line(
    lane: &mut Lane,
    forced: Option<&'static Format>,
    input: &mut Input,
    at: usize,
    text: &str,
    records: &mut usize,
) -> Option<Result<(), Refused>> {
    let current = lane.run.as_ref().map(|open| open.format);
    let is_current = |format: &Format| current.is_some_and(|current| std::ptr::eq(current, format));
    let is_wanted = |format: &&Format| forced.is_none_or(|forced| std::ptr::eq(forced, *format));
    let others = Format::all().filter(is_wanted).filter(|f| !is_current(f));
    let mut expected = None;
    let trimmed = text.trim_start();
    for format in current.into_iter().chain(others) {
        let is_current = is_current(format);
        let may_be = |line: &&Line| (is_current || line.begins) && line.may_be(text, trimmed);
        for line in format.lines.iter().filter(may_be) {
            let found: Vec<Captures<'_>> = line.regex().captures_iter(text).collect();
            if found.is_empty() {
                if line.is_start && is_current {
                    expected.get_or_insert(line.key);
                }
                continue;
            }
            begin(lane, format, &line.flags, input, at);
            let open = lane.run.as_mut()?;
            for captures in &found {
                if let Err(refused) = open.apply(line, captures, at, records) {
                    return Some(Err(refused));
                }
            }
            if line.flags.contains(&"error") {
                input.error(at, text);
            }
            return Some(Ok(()));
        }
        let is_header = |table: &&Table| {
            trimmed.starts_with(table.header) && (is_current || table.flags.contains(&"new"))
        };
        if let Some(table) = format.tables.iter().find(is_header) {
            begin(lane, format, &table.flags, input, at);
            return Some(header(table, text).map(|open| lane.table = Some(open)));
        }
    }
    expected.map(|key| Err((quoted(text), format!("a whole line of {:?}", key.trim()))))
}

/// Begins a run of `format` where the line's flags say so.
fn begin(lane: &mut Lane, format: &'static Format, flags: &[&str], input: &mut Input, at: usize) {
    let same = lane
        .run
        .as_ref()
        .filter(|open| std::ptr::eq(open.format, format));
    let goes_on = same
        .is_some_and(|open| !(flags.contains(&"new") || flags.contains(&"begins") && open.ended));
    if !goes_on {
        close(lane, input, at);
        lane.run = Some(Open {
            format,
            run: Run {
                format: format.name,
                line: at,
                records: Vec::new(),
            },
            whole: BTreeMap::new(),
            section: BTreeMap::new(),
            ordinals: HashMap::new(),
            incomplete: false,
            ended: false,
        });
    }
}

/// Ends the run of a lane: it is kept if it is complete and has figures, and refused if it was cut.
fn close(lane: &mut Lane, input: &mut Input, at: usize) {
    lane.table = None;
    let Some(mut open) = lane.run.take() else {
        return;
    };
    if open.incomplete {
        let found = format!("the end of the output of {}", open.format.about);
        let expected = format!("{} first: the log is cut", open.format.end);
        return refuse(input, at, found, expected);
    }
    for record in &mut open.run.records {
        for (name, value) in &open.whole {
            record
                .parameters
                .entry(name)
                .or_insert_with(|| Arc::clone(value));
        }
    }
    if let Some(first) = open.run.records.first() {
        open.run.line = first.line;
        input.runs.push(open.run);
    }
}

/// The cells of a row: between commas, or between two or more blanks.
fn cells<'t>(table: &Table, line: &'t str) -> Vec<&'t str> {
    if table.flags.contains(&"commas") {
        let cells = line.split(',');
        return cells.map(|cell| cell.trim().trim_matches('"')).collect();
    }
    let cells = line.split("  ").map(str::trim);
    cells.filter(|cell| !cell.is_empty()).collect()
}

/// Reads the header of a table.
fn header(table: &'static Table, text: &str) -> Result<OpenTable, Refused> {
    let cells = cells(table, text);
    let column = |cell: &&str| {
        // "p99 Latency": a percentile of the column "p Latency".
        let digits = |c: char| c.is_ascii_digit() || c == '.';
        let percentile = cell.strip_prefix('p').and_then(|rest| {
            let end = rest.find(|c| !digits(c)).unwrap_or(rest.len());
            let level = rest[..end].parse().ok()?;
            Some((format!("p{}", &rest[end..]), Statistic::Percentile(level)))
        });
        let (name, statistic) = match &percentile {
            Some((name, level)) => (name.as_str(), Some(*level)),
            None => (*cell, None),
        };
        let known = table.columns.iter().find(|(known, _)| *known == name);
        known.map(|(_, take)| (*take, statistic)).ok_or_else(|| {
            let names: Vec<&str> = table.columns.iter().map(|(name, _)| *name).collect();
            (
                format!("the column {}", quoted(cell)),
                format!("one of {}", names.join(", ")),
            )
        })
    };
    let columns = match table.columns.is_empty() {
        true => Vec::new(),
        false => cells.iter().map(column).collect::<Result<_, _>>()?,
    };
    Ok(OpenTable { table, columns })
}

/// The parameters and figures of one line.
#[derive(Default)]
struct Taken {
    parameters: Parameters,
    figures: Vec<Record>,
    level: Option<Statistic>,
}

impl Taken {
    fn take(&mut self, take: Take, text: &str) -> Result<(), Refused> {
        let read =
            |text: &str, whole| number(text, whole).map_err(|expected| (quoted(text), expected));
        let (figure, statistic, unit, printed_unit, n, factor) = match take {
            Take::Nothing => return Ok(()),
            Take::Parameter(name) => {
                if text.len() > PARAMETER_MAX {
                    return Err((
                        quoted(text),
                        format!("a {name} of at most {PARAMETER_MAX} bytes"),
                    ));
                }
                self.parameters.insert(name, Arc::from(text.trim()));
                return Ok(());
            }
            Take::Level => {
                self.level = Some(Statistic::Percentile(read(text, false)?.value));
                return Ok(());
            }
            Take::Figure(figure, statistic, unit, spelling) => {
                let n = read(text, unit.name == "count")?;
                (figure, statistic, unit, spelling, n, 1.0)
            }
            Take::Sized(figure, statistic, spellings) => {
                let end = text.find(|c: char| c.is_ascii_alphabetic() || matches!(c, 'µ' | '%'));
                let (digits, unit) = text.split_at(end.unwrap_or(text.len()));
                let found = spellings.iter().find(|(name, ..)| *name == unit.trim());
                let &(spelling, factor, unit) = found.ok_or_else(|| {
                    let names: Vec<&str> = spellings.iter().map(|(name, ..)| *name).collect();
                    (
                        quoted(text),
                        format!("a number and one of {:?}", names.join(" ")),
                    )
                })?;
                let spelled = (factor == 1.0 && spelling != unit.name).then_some(spelling);
                (
                    figure,
                    statistic,
                    unit,
                    spelled,
                    read(digits.trim(), false)?,
                    factor,
                )
            }
        };
        self.figures.push(Record {
            figure,
            statistic: self.level.take().unwrap_or(statistic),
            value: n.value * factor,
            unit,
            printed_unit,
            parameters: Parameters::new(),
            line: 0,
            resolution: n.resolution * factor,
        });
        Ok(())
    }
}

impl Open {
    /// Takes what a line says.
    fn apply(
        &mut self,
        line: &Line,
        captures: &Captures<'_>,
        at: usize,
        records: &mut usize,
    ) -> Result<(), Refused> {
        for name in line.flags.iter().filter_map(|flag| flag.strip_prefix('#')) {
            let count = self.ordinals.entry(name).or_insert(0);
            *count += 1;
            self.section.insert(name, Arc::from(count.to_string()));
        }
        let mut taken = Taken::default();
        for (place, take) in line.takes.iter().enumerate() {
            if let Some(group) = captures.get(place + 1) {
                taken.take(*take, group.as_str())?;
            }
        }
        if line.flags.contains(&"whole") {
            self.section.clear();
        }
        let added = self.add(taken, &line.flags, at, records);
        self.flag(&line.flags);
        added
    }

    /// Adds figures, or parameters for the lines that follow.
    fn add(
        &mut self,
        taken: Taken,
        flags: &[&str],
        at: usize,
        records: &mut usize,
    ) -> Result<(), Refused> {
        if taken.figures.is_empty() || flags.contains(&"keeps") {
            for (name, value) in &taken.parameters {
                let mut sections = self.format.sections.iter();
                let is_section = sections.any(|section| section == name);
                for inner in sections.filter(|_| is_section) {
                    self.section.remove(inner);
                }
                let parameters = match is_section {
                    true => &mut self.section,
                    false => &mut self.whole,
                };
                parameters.insert(name, Arc::clone(value));
            }
        }
        for mut record in taken.figures {
            *records += 1;
            if *records > RECORDS_MAX {
                let found = format!("more than {RECORDS_MAX} figures");
                return Err((found, "fewer in one file".into()));
            }
            record.line = at;
            record.parameters.clone_from(&self.section);
            record.parameters.extend(taken.parameters.clone());
            self.run.records.push(record);
        }
        Ok(())
    }

    fn flag(&mut self, flags: &[&str]) {
        let closes = flags.contains(&"closes");
        if flags.contains(&"needs") {
            (self.incomplete, self.ended) = (true, false);
        }
        if closes || flags.contains(&"ends") {
            (self.incomplete, self.ended) = (false, true);
        }
        if closes {
            // The mark of a run that is over; lines are counted from 1.
            self.run.line = 0;
        }
    }
}
