//! The reader of JSON, which knows the line of every figure.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::de::{Deserialize, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::Deserializer;

use crate::format::{Format, Take};
use crate::record::{Input, Parameters, Record, Run};
use crate::text::{quoted, too_many, Refused, PARAMETER_MAX};
use crate::RECORDS_MAX;

type Object<'a> = BTreeMap<String, &'a RawValue>;

/// A JSON text, for the lines of its parts.
struct Document<'a> {
    text: &'a str,
    /// The number of its first line.
    first: usize,
    /// The ends of its lines.
    ends: Vec<usize>,
}

impl Document<'_> {
    /// The line of a part of the text.
    fn line(&self, part: &str) -> usize {
        let at = (part.as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize);
        self.first + self.ends.partition_point(|end| *end < at)
    }
}

/// Reads one or more JSON documents.
pub(crate) fn read(file: &str, forced: Option<&Format>, first: usize, bytes: &[u8]) -> Input {
    let mut input = Input::new(file);
    let (text, valid) = match std::str::from_utf8(bytes) {
        Ok(text) => (text, true),
        Err(error) => {
            let valid = &bytes[..error.valid_up_to()];
            (std::str::from_utf8(valid).unwrap_or(""), false)
        }
    };
    let ends = text.match_indices('\n').map(|(at, _)| at).collect();
    let document = Document { text, first, ends };
    let mut documents = Deserializer::from_str(text).into_iter::<&RawValue>();
    loop {
        let at = document.line(&text[documents.byte_offset()..]);
        let (line, refused) = match documents.next() {
            Some(Ok(raw)) => match one(&document, raw, forced, &mut input) {
                Ok(()) => continue,
                Err(refused) => (document.line(raw.get()), refused),
            },
            Some(Err(error)) => {
                let line = at.max(first + error.line().max(1) - 1);
                (line, (error.to_string(), "whole JSON".into()))
            }
            None if valid => return input,
            None => {
                let found = "bytes that are not UTF-8".into();
                (at, (found, "JSON in UTF-8".into()))
            }
        };
        input.refuse(line, refused);
        return input;
    }
}

/// Reads one document.
fn one(
    document: &Document<'_>,
    raw: &RawValue,
    forced: Option<&Format>,
    input: &mut Input,
) -> Result<(), Refused> {
    let all = || Format::all().filter(|format| !format.keys.is_empty());
    let unknown = || {
        let names: Vec<&str> = all().map(|format| format.about).collect();
        let names = names.join(", ");
        (quoted(raw.get()), format!("the output of {names}"))
    };
    let object: Object<'_> = serde_json::from_str(raw.get()).map_err(|_| unknown())?;
    if let Some(error) = object.get("error") {
        input.error(document.line(error.get()), error.get());
    }
    let has_keys = |format: &&Format| format.keys.iter().all(|key| object.contains_key(*key));
    let format = all().find(has_keys).ok_or_else(unknown)?;
    let found = format!("the output of {}", format.about);
    if let Some(forced) = forced.filter(|forced| forced.name != format.name) {
        return Err((found, forced.about.to_owned()));
    }
    let mut run = Run {
        format: format.name,
        line: document.line(raw.get()),
        records: Vec::new(),
    };
    let mut whole = Parameters::new();
    if let Some(benchmark) = benchmark(&input.file) {
        whole.insert("benchmark", Arc::from(benchmark));
    }
    for (path, takes) in &format.objects {
        for part in at(raw, path)? {
            take(document, part, takes, &mut whole, &mut run)?;
        }
    }
    if run.records.is_empty() {
        return Err((format!("no figures in {found}"), "some".into()));
    }
    input.runs.push(run);
    Ok(())
}

/// criterion names the benchmark in the path of its file alone.
fn benchmark(file: &str) -> Option<&str> {
    let (_, path) = file.split_once("criterion/")?;
    let (name, _) = path.strip_suffix("/estimates.json")?.rsplit_once('/')?;
    Some(name)
}

/// Takes the parameters and figures of one object.
fn take(
    document: &Document<'_>,
    part: &RawValue,
    takes: &[(&str, Take)],
    whole: &mut Parameters,
    run: &mut Run,
) -> Result<(), Refused> {
    let mut own = Parameters::new();
    let before = run.records.len();
    for (path, what) in takes {
        for value in at(part, path)? {
            match *what {
                Take::Parameter(name) => {
                    let text = value.get().trim_matches('"');
                    let text: String = text.chars().take(PARAMETER_MAX).collect();
                    own.insert(name, Arc::from(text));
                }
                Take::Figure(figure, statistic, unit, _) if value.get() != "null" => {
                    let number = serde_json::from_str(value.get());
                    let no_number = |_| (quoted(value.get()), format!("a number at {path}"));
                    if run.records.len() == RECORDS_MAX {
                        return Err(too_many());
                    }
                    run.records.push(Record {
                        figure,
                        statistic,
                        value: number.map_err(no_number)?,
                        unit,
                        printed_unit: None,
                        parameters: Parameters::new(),
                        line: document.line(value.get()),
                        resolution: 0.0,
                    });
                }
                _ => {}
            }
        }
    }
    if run.records.len() == before {
        whole.append(&mut own);
    }
    for record in &mut run.records[before..] {
        record.parameters.clone_from(whole);
        record.parameters.extend(own.clone());
    }
    Ok(())
}

/// The values at a path; none if it leads nowhere.
fn at<'a>(raw: &'a RawValue, path: &str) -> Result<Vec<&'a RawValue>, Refused> {
    let mut parts = vec![raw];
    for key in path.split('/').skip(1) {
        let mut below = Vec::new();
        for part in parts {
            if key == "*" {
                let Items(items) = serde_json::from_str(part.get()).unwrap_or_default();
                below.extend(items);
            } else {
                let object: Object<'a> = serde_json::from_str(part.get()).unwrap_or_default();
                below.extend(object.get(key));
            }
        }
        if below.len() > RECORDS_MAX {
            return Err(too_many());
        }
        parts = below;
    }
    Ok(parts)
}

/// The first items of a list: one more than there may be figures, so that memory is bounded.
#[derive(Default)]
struct Items<'a>(Vec<&'a RawValue>);

impl<'de> Deserialize<'de> for Items<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(list: D) -> Result<Items<'de>, D::Error> {
        list.deserialize_seq(Items::default())
    }
}

impl<'de> Visitor<'de> for Items<'de> {
    type Value = Items<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<S: SeqAccess<'de>>(mut self, mut items: S) -> Result<Items<'de>, S::Error> {
        while let Some(item) = items.next_element()? {
            if self.0.len() <= RECORDS_MAX {
                self.0.push(item);
            }
        }
        Ok(self)
    }
}
