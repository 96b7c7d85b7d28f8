//! A document's values together with their places, and the report that collects errors.

use std::cell::RefCell;
use std::ops::Range;

use toml::de::{DeTable, DeValue};
use toml::Spanned;

use super::nearest::nearest;
use super::{FileError, MAX_ERRORS};

/// Texts are printed on terminals and in tables, so they are short and of one line.
const MAX_TEXT_CHARS: usize = 1000;
/// The number of characters of the document that an error quotes.
const MAX_QUOTE_CHARS: usize = 60;
/// The number of possibilities that an error lists.
const MAX_LISTED: usize = 40;
/// The number of syntax errors that are reported: later ones mostly follow from the first few.
const MAX_SYNTAX_ERRORS: usize = 3;

/// The number of errors that are kept before they are sorted and cut to [`MAX_ERRORS`].
const MAX_KEPT: usize = 10 * MAX_ERRORS;

/// Collects what is wrong with one file.
pub(super) struct Report<'a> {
    text: &'a str,
    name: &'a str,
    errors: RefCell<Vec<FileError>>,
}

impl<'a> Report<'a> {
    pub(super) fn new(text: &'a str, name: &'a str) -> Self {
        Report {
            text,
            name,
            errors: RefCell::default(),
        }
    }

    /// The errors in file order, the first [`MAX_ERRORS`] of them.
    pub(super) fn into_errors(self) -> Vec<FileError> {
        let mut errors = self.errors.into_inner();
        errors.sort_by_key(|error| (error.line, error.column));
        errors.dedup();
        errors.truncate(MAX_ERRORS);
        errors
    }

    pub(super) fn count(&self) -> usize {
        self.errors.borrow().len()
    }

    /// Reports the first few errors of syntax, at most one a line.
    pub(super) fn syntax(&self, errors: &[toml::de::Error]) {
        let mut errors: Vec<(usize, &str)> = errors
            .iter()
            .map(|error| (error.span().map_or(0, |span| span.start), error.message()))
            .collect();
        errors.sort_by_key(|(at, _)| *at);
        errors.dedup_by(|(at, _), (before, _)| {
            let between = self.text.as_bytes().get(*before..*at);
            !between.is_some_and(|between| between.contains(&b'\n'))
        });
        for (at, message) in errors.into_iter().take(MAX_SYNTAX_ERRORS) {
            let (what, expected) = message.split_once(", expected ").unwrap_or((message, ""));
            let expected = if expected == "nothing" { "" } else { expected };
            self.add(at, "", format!("broken TOML ({what})"), expected, None);
        }
    }

    pub(super) fn add(
        &self,
        at: usize,
        key: &str,
        found: impl Into<String>,
        expected: impl Into<String>,
        suggestion: Option<String>,
    ) {
        let mut errors = self.errors.borrow_mut();
        if errors.len() >= MAX_KEPT {
            return;
        }
        let before = &self.text[..self.text.floor_char_boundary(at)];
        let line = before.rsplit('\n').next().unwrap_or("");
        errors.push(FileError {
            file: self.name.to_owned(),
            line: before.matches('\n').count() + 1,
            column: line.chars().count() + 1,
            key: key.to_owned(),
            found: found.into(),
            expected: expected.into(),
            suggestion,
        });
    }
}

/// A value of the document with its place.
#[derive(Clone)]
pub(super) struct Node<'a> {
    path: String,
    value: &'a Spanned<DeValue<'a>>,
    report: &'a Report<'a>,
}

/// A value without structure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scalar<'a> {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(&'a str),
}

impl<'a> Node<'a> {
    fn new(path: String, value: &'a Spanned<DeValue<'a>>, report: &'a Report<'a>) -> Self {
        Node {
            path,
            value,
            report,
        }
    }

    fn value(&self) -> &'a DeValue<'a> {
        self.value.get_ref()
    }

    pub(super) fn report(&self) -> &'a Report<'a> {
        self.report
    }

    /// Reports that this value is not what was expected.
    pub(super) fn wrong(&self, expected: impl Into<String>) {
        self.reject(self.quote(), expected);
    }

    /// Reports `found` at this value.
    pub(super) fn reject(&self, found: impl Into<String>, expected: impl Into<String>) {
        let at = self.value.span().start;
        self.report.add(at, &self.path, found, expected, None);
    }

    /// Reports that this value is none of the `known` words, naming the nearest.
    pub(super) fn unknown(&self, found: &str, known: &[&str]) {
        self.unlisted(known, nearest(found, known));
    }

    /// Reports that this value is none of the `known` words, naming one of them.
    pub(super) fn unlisted(&self, known: &[&str], suggestion: Option<&str>) {
        self.report.add(
            self.value.span().start,
            &self.path,
            self.quote(),
            one_of(known),
            suggestion.map(quoted),
        );
    }

    /// The value as the file writes it, cut to a length that fits a line.
    pub(super) fn quote(&self) -> String {
        match self.value() {
            DeValue::String(text) => quoted(text),
            _ => {
                let text = self.report.text.get(self.value.span()).unwrap_or("");
                shortened(&text.split_whitespace().collect::<Vec<_>>().join(" "))
            }
        }
    }

    /// The value as a number, text or boolean; reports `expected` otherwise.
    pub(super) fn scalar(&self, expected: &str) -> Option<Scalar<'a>> {
        let scalar = match self.value() {
            DeValue::String(text) => Some(Scalar::Text(text)),
            DeValue::Boolean(value) => Some(Scalar::Bool(*value)),
            DeValue::Integer(digits) => i64::from_str_radix(digits.as_str(), digits.radix())
                .ok()
                .map(Scalar::Int),
            DeValue::Float(digits) => digits
                .as_str()
                .parse::<f64>()
                .ok()
                .filter(|value| value.is_finite())
                .map(Scalar::Float),
            DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
        };
        if scalar.is_none() {
            self.wrong(expected);
        }
        scalar
    }

    /// The value as a finite number.
    pub(super) fn number(&self, expected: &str) -> Option<f64> {
        match self.scalar(expected)? {
            Scalar::Int(n) => Some(n as f64),
            Scalar::Float(x) => Some(x),
            Scalar::Bool(_) | Scalar::Text(_) => {
                self.wrong(expected);
                None
            }
        }
    }

    /// The value as a line of text that is not empty.
    pub(super) fn text(&self) -> Option<&'a str> {
        const EXPECTED: &str = "a line of text";
        let Scalar::Text(text) = self.scalar(EXPECTED)? else {
            self.wrong(EXPECTED);
            return None;
        };
        if text.trim().is_empty() || text.chars().any(char::is_control) {
            self.wrong(EXPECTED);
            return None;
        }
        if text.chars().count() > MAX_TEXT_CHARS {
            self.wrong(format!("at most {MAX_TEXT_CHARS} characters"));
            return None;
        }
        Some(text)
    }

    /// The value as an id, `suite/name` or a name: it stands on command lines, in file names and
    /// in links.
    pub(super) fn id(&self, with_suite: bool) -> Option<String> {
        let text = self.text()?;
        let plain = |part: &str| {
            (1..=64).contains(&part.len())
                && part.starts_with(|c: char| c.is_ascii_alphanumeric())
                && part
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        };
        let (form, parts) = match with_suite {
            true => ("suite/name", 2),
            false => ("a name", 1),
        };
        if text.split('/').count() != parts || !text.split('/').all(plain) {
            self.wrong(format!("{form} of letters, digits, \"-\", \"_\" and \".\""));
            return None;
        }
        Some(text.to_owned())
    }

    /// The value as text, which may be empty.
    pub(super) fn string(&self) -> Option<&'a str> {
        match self.value() {
            DeValue::String(text) if text.is_empty() => Some(""),
            _ => self.text(),
        }
    }

    /// The value as `true` or `false`.
    pub(super) fn boolean(&self) -> Option<bool> {
        let Scalar::Bool(value) = self.scalar("true or false")? else {
            self.wrong("true or false");
            return None;
        };
        Some(value)
    }

    /// The text as one of a few words, each with its meaning.
    pub(super) fn word<T: Copy>(&self, words: &[(&str, T)]) -> Option<T> {
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let Scalar::Text(text) = self.scalar(&one_of(&known))? else {
            self.wrong(one_of(&known));
            return None;
        };
        let meaning = words.iter().find(|(word, _)| *word == text);
        if meaning.is_none() {
            self.unknown(text, &known);
        }
        meaning.map(|(_, meaning)| *meaning)
    }

    /// The items of a list of 1 to `max` `things`.
    pub(super) fn list(&self, things: &str, max: usize) -> Option<Vec<Node<'a>>> {
        let DeValue::Array(items) = self.value() else {
            self.wrong(format!("a list of {things}"));
            return None;
        };
        if items.is_empty() || items.len() > max {
            self.reject(
                format!("a list of {}", items.len()),
                format!("1 to {max} {things}"),
            );
            return None;
        }
        Some(
            items
                .iter()
                .enumerate()
                .map(|(i, item)| Node::new(format!("{}[{i}]", self.path), item, self.report))
                .collect(),
        )
    }

    /// Returns true if the value is a list.
    pub(super) fn is_list(&self) -> bool {
        self.value().is_array()
    }

    /// Returns the keys of this table; empty if it is no table.
    pub(super) fn keys(&self) -> Vec<String> {
        let table = self.value().as_table();
        let keys = table.into_iter().flat_map(|table| table.keys());
        keys.map(|key| key.get_ref().to_string()).collect()
    }

    /// The value of one key of this table, if there is one.
    pub(super) fn field(&self, name: &str) -> Option<Node<'a>> {
        let value = self.value().as_table()?.get(name)?;
        Some(Node::new(join(&self.path, name), value, self.report))
    }
}

/// A table whose keys are read one by one; [`Fields::close`] reports those that were not read.
pub(super) struct Fields<'a> {
    path: String,
    span: Range<usize>,
    table: &'a DeTable<'a>,
    report: &'a Report<'a>,
    asked: Vec<&'static str>,
    missing: Vec<Missing>,
}

/// A key that a table lacks; reported when it is closed, unless an unknown key was meant to be it.
struct Missing {
    key: &'static str,
    instead: &'static [&'static str],
    expected: String,
}

impl<'a> Fields<'a> {
    pub(super) fn root(table: &'a Spanned<DeTable<'a>>, report: &'a Report<'a>) -> Self {
        Fields::of(String::new(), table.span(), table.get_ref(), report)
    }

    fn of(
        path: String,
        span: Range<usize>,
        table: &'a DeTable<'a>,
        report: &'a Report<'a>,
    ) -> Self {
        Fields {
            path,
            span,
            table,
            report,
            asked: Vec::new(),
            missing: Vec::new(),
        }
    }

    /// Opens a table; reports `expected` where `node` is none.
    pub(super) fn open(node: &Node<'a>, expected: &str) -> Option<Self> {
        let DeValue::Table(table) = node.value() else {
            node.wrong(expected);
            return None;
        };
        let (path, span) = (node.path.clone(), node.value.span());
        Some(Fields::of(path, span, table, node.report))
    }

    pub(super) fn report(&self) -> &'a Report<'a> {
        self.report
    }

    /// The value of a key, without asking for it.
    pub(super) fn field(&self, key: &str) -> Option<Node<'a>> {
        let value = self.table.get(key)?;
        Some(Node::new(join(&self.path, key), value, self.report))
    }

    /// The value of a key that may be absent.
    pub(super) fn get(&mut self, key: &'static str) -> Option<Node<'a>> {
        self.asked.push(key);
        self.field(key)
    }

    /// The value of a key that must be there.
    pub(super) fn need(&mut self, key: &'static str, expected: &str) -> Option<Node<'a>> {
        let node = self.get(key);
        if node.is_none() {
            self.need_one(key, &[], expected);
        }
        node
    }

    /// The line of text that must be there.
    pub(super) fn line(&mut self, key: &'static str, expected: &str) -> Option<String> {
        Some(self.need(key, expected)?.text()?.to_owned())
    }

    /// Records that neither `key` nor any of those `instead` of it are there, and one must be.
    pub(super) fn need_one(
        &mut self,
        key: &'static str,
        instead: &'static [&'static str],
        expected: &str,
    ) {
        self.missing.push(Missing {
            key,
            instead,
            expected: expected.to_owned(),
        });
    }

    /// Reports that `key` (a path, where it has dots) is not in this table.
    pub(super) fn lacks(&self, key: &str, expected: &str) {
        let path = [self.path.as_str(), key].join(".");
        let path = path.trim_start_matches('.');
        self.report
            .add(self.span.start, path, "nothing", expected, None);
    }

    /// Every key and its value, in file order.
    pub(super) fn entries(&self) -> Vec<(&'a str, Node<'a>)> {
        let mut entries: Vec<_> = self.table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        entries
            .into_iter()
            .map(|(key, value)| {
                let key: &'a str = key.get_ref();
                (key, Node::new(join(&self.path, key), value, self.report))
            })
            .collect()
    }

    /// Reports the keys that were not read, which are unknown, and those that must be there and are
    /// not. Every table whose keys are read is closed.
    pub(super) fn close(self) {
        self.close_with(&[]);
    }

    /// The same for a table that may have `others` too.
    pub(super) fn close_with(self, others: &[&str]) {
        let known: Vec<&str> = self.asked.iter().chain(others).copied().collect();
        let mut meant = Vec::new();
        for (key, _) in self.entries() {
            if !known.contains(&key) {
                meant.extend(self.unknown_key(key, &known));
            }
        }
        for Missing {
            key,
            instead,
            expected,
        } in &self.missing
        {
            if !meant.iter().any(|m| m == key || instead.contains(m)) {
                self.lacks(key, expected);
            }
        }
    }

    /// Reports that `key` is none of the `known` keys; returns the one it may be meant to be.
    pub(super) fn unknown_key<'k>(&self, key: &str, known: &[&'k str]) -> Option<&'k str> {
        let meant = nearest(key, known);
        let at = self
            .table
            .get_key_value(key)
            .map_or(self.span.start, |(key, _)| key.span().start);
        self.report.add(
            at,
            &join(&self.path, key),
            format!("unknown key {}", quoted(key)),
            one_of(known),
            meant.map(quoted),
        );
        meant
    }
}

/// The possibilities in words: `"a"`, `"a" or "b"`, `one of "a", "b", "c"`.
pub(super) fn one_of(known: &[&str]) -> String {
    let words: Vec<String> = known.iter().map(|word| quoted(word)).collect();
    alternatives(&words)
}

/// The possibilities in words, as they are.
pub(super) fn alternatives(words: &[String]) -> String {
    match words {
        [] => "nothing here".to_owned(),
        [one] => one.clone(),
        [one, other] => format!("{one} or {other}"),
        many => {
            let listed = &many[..many.len().min(MAX_LISTED)];
            let more = if many.len() > MAX_LISTED { ", …" } else { "" };
            format!("one of {}{more}", listed.join(", "))
        }
    }
}

/// Text in quotation marks, control characters escaped, cut to a length that fits a line.
pub(super) fn quoted(text: &str) -> String {
    format!("{:?}", shortened(text))
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTE_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn join(path: &str, key: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let key = if !key.is_empty() && key.chars().all(bare) {
        shortened(key)
    } else {
        quoted(key)
    };
    if path.is_empty() {
        key
    } else {
        format!("{path}.{key}")
    }
}
