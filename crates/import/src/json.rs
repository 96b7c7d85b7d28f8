//! The reader of JSON, which knows the line of every figure.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::value::RawValue;
use serde_json::Deserializer;

use crate::format::{Format, Take};
use crate::record::{Input, Parameters, Record, Refusal, Run};
use crate::text::quoted;
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
    let mut input = Input {
        file: file.to_owned(),
        runs: Vec::new(),
        findings: Vec::new(),
        refused: Vec::new(),
    };
    let (text, valid) = match std::str::from_utf8(bytes) {
        Ok(text) => (text, true),
        Err(error) => (
            std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or(""),
            false,
        ),
    };
    let ends = text.match_indices('\n').map(|(at, _)| at).collect();
    let document = Document { text, first, ends };
    let mut documents = Deserializer::from_str(text).into_iter::<&RawValue>();
    let mut expected = "JSON in UTF-8".to_owned();
    loop {
        let at = first
            + document
                .ends
                .partition_point(|end| *end < documents.byte_offset());
        let (found, line) = match documents.next() {
            Some(Ok(raw)) => match one(&document, raw, forced, &mut input) {
                Ok(()) => continue,
                Err((found, what)) => {
                    expected = what;
                    (found, document.line(raw.get()))
                }
            },
            Some(Err(error)) => {
                expected = "whole JSON".to_owned();
                (error.to_string(), at.max(first + error.line().max(1) - 1))
            }
            None if !valid => ("bytes that are not UTF-8".to_owned(), at),
            None => break,
        };
        input.refused.push(Refusal {
            file: input.file.clone(),
            line,
            found,
            expected,
        });
        break;
    }
    input
}

/// Reads one document.
fn one(
    document: &Document<'_>,
    raw: &RawValue,
    forced: Option<&Format>,
    input: &mut Input,
) -> Result<(), (String, String)> {
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
        for part in at(raw, path) {
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
) -> Result<(), (String, String)> {
    let mut own = Parameters::new();
    let mut figures = Vec::new();
    for (path, what) in takes {
        for value in at(part, path) {
            match *what {
                Take::Parameter(name) => {
                    let text = value.get().trim_matches('"');
                    own.insert(name, Arc::from(text.chars().take(256).collect::<String>()));
                }
                Take::Figure(figure, statistic, unit, _) if value.get() != "null" => {
                    let number: f64 = serde_json::from_str(value.get())
                        .map_err(|_| (quoted(value.get()), format!("a number at {path}")))?;
                    figures.push(Record {
                        figure,
                        statistic,
                        value: number,
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
    if run.records.len() + figures.len() > RECORDS_MAX {
        return Err((
            format!("more than {RECORDS_MAX} figures"),
            "fewer in one file".into(),
        ));
    }
    if figures.is_empty() {
        whole.append(&mut own);
    }
    for mut record in figures {
        record.parameters.clone_from(whole);
        record.parameters.extend(own.clone());
        run.records.push(record);
    }
    Ok(())
}

/// The values at a path; none if it leads nowhere.
fn at<'a>(raw: &'a RawValue, path: &str) -> Vec<&'a RawValue> {
    path.split('/').skip(1).fold(vec![raw], |parts, key| {
        let below = |part: &'a RawValue| -> Vec<&'a RawValue> {
            if key == "*" {
                return serde_json::from_str(part.get()).unwrap_or_default();
            }
            let object: Option<Object<'a>> = serde_json::from_str(part.get()).ok();
            object
                .and_then(|object| object.get(key).copied())
                .into_iter()
                .collect()
        };
        parts.into_iter().flat_map(below).collect()
    })
}
