//! The reader of JSON, which knows the line of every figure.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::value::RawValue;
use serde_json::Deserializer;

use crate::format::{Format, Take};
use crate::record::{quoted, too_many, Input, Outcome};
use crate::text::{Open, Taken, PARAMETER_MAX};
use crate::RECORDS_MAX;

/// A JSON text, for the lines of its parts.
struct Document<'a> {
    text: &'a [u8],
    /// The number of its first line.
    first: usize,
    /// The ends of its lines.
    ends: Vec<usize>,
}

impl Document<'_> {
    /// The line of a part of the text.
    fn line(&self, part: &RawValue) -> usize {
        let start = self.text.as_ptr() as usize;
        let at = (part.get().as_ptr() as usize).saturating_sub(start);
        self.first + self.ends.partition_point(|end| *end < at)
    }
}

/// Reads one or more JSON documents.
pub(crate) fn read(input: &mut Input, text: &[u8]) {
    let is_end = |at: &usize| text[*at] == b'\n';
    let ends = (0..text.len()).filter(is_end).collect();
    let first = input.at;
    let document = Document { text, first, ends };
    // A list of values costs several times its text, so their number is bounded before.
    if text.iter().filter(|byte| **byte == b',').count() > 20 * RECORDS_MAX {
        return input.refuse(too_many());
    }
    for raw in Deserializer::from_slice(text).into_iter::<&RawValue>() {
        let result = match raw {
            Ok(raw) => {
                input.at = document.line(raw);
                one(&document, raw, input)
            }
            Err(error) => {
                input.at = document.first + error.line().max(1) - 1;
                Err((error.to_string(), "whole JSON in UTF-8".into()))
            }
        };
        if let Err(refused) = result {
            return input.refuse(refused);
        }
    }
}

/// Reads one document.
fn one(document: &Document<'_>, raw: &RawValue, input: &mut Input) -> Outcome {
    let all = || Format::all().filter(|format| !format.keys.is_empty());
    let unknown = || {
        let names: Vec<&str> = all().map(|format| format.about).collect();
        let names = names.join(", ");
        (quoted(raw.get()), format!("the output of {names}"))
    };
    if let [error] = at(raw, "/error")[..] {
        let start = std::mem::replace(&mut input.at, document.line(error));
        input.error(error.get());
        input.at = start;
    }
    let has = |key: &&str| !below(raw, key).is_empty();
    let format = all().find(|format| format.keys.iter().all(has));
    let format = format.ok_or_else(unknown)?;
    let found = format!("the output of {}", format.about);
    if let Some(forced) = input.forced.filter(|forced| forced.name != format.name) {
        return Err((found, forced.about.to_owned()));
    }
    let mut open = Open::new(format, input.at);
    if let Some(benchmark) = benchmark(&input.file) {
        open.whole.insert("benchmark", Arc::from(benchmark));
    }
    let before = input.records;
    for object in &format.lines {
        for part in at(raw, object.key) {
            let mut taken = Taken::default();
            for (path, take) in &object.takes {
                for value in at(part, path) {
                    let mut text = value.get();
                    if matches!(take, Take::Parameter(_)) {
                        text = text.trim_matches('"');
                        text = &text[..text.floor_char_boundary(PARAMETER_MAX)];
                    } else if text == "null" {
                        continue;
                    }
                    let taken = taken.take(*take, text, document.line(value));
                    taken.map_err(|(found, expected)| (found, format!("{expected} at {path}")))?;
                }
            }
            open.add(input, taken, false)?;
        }
    }
    if input.records == before {
        return Err((format!("no figures in {found}"), "some".into()));
    }
    open.close(input);
    Ok(())
}

/// criterion names the benchmark in the path of its file alone.
fn benchmark(file: &str) -> Option<&str> {
    let (_, path) = file.split_once("criterion/")?;
    let (name, _) = path.strip_suffix("/estimates.json")?.rsplit_once('/')?;
    Some(name)
}

/// The values at a path; none if it leads nowhere.
fn at<'a>(raw: &'a RawValue, path: &str) -> Vec<&'a RawValue> {
    let keys = path.split('/').skip(1);
    keys.fold(vec![raw], |parts, key| {
        let parts = parts.into_iter();
        parts.flat_map(|part| below(part, key)).collect()
    })
}

/// The value of that key of an object, or every item of a list.
fn below<'a>(raw: &'a RawValue, key: &str) -> Vec<&'a RawValue> {
    if key == "*" {
        return serde_json::from_str(raw.get()).unwrap_or_default();
    }
    let object: BTreeMap<String, &RawValue> = serde_json::from_str(raw.get()).unwrap_or_default();
    object.get(key).copied().into_iter().collect()
}
