//! Metrics taken from what a program prints, for programs that do not speak the protocol.

use std::borrow::Cow;

use regex_lite::Regex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::unit::Unit;

/// The most of a stream that is searched, in bytes; a program that prints more fails its trial.
pub const OUTPUT_MAX: usize = 4 << 20;

/// The place of a metric in a program's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extract {
    /// The output that holds it.
    pub stream: Stream,
    /// The place in that output.
    pub place: Place,
}

/// One of a program's two outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// Standard output.
    #[default]
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    /// Its name in words.
    pub const fn name(self) -> &'static str {
        match self {
            Stream::Stdout => "standard output",
            Stream::Stderr => "standard error",
        }
    }
}

/// A place in a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// A JSON Pointer (RFC 6901) to a number, or to a list of numbers, in a text that is one JSON
    /// value.
    Json(String),
    /// A regular expression. Its first group is a number; its second, if there is one, the
    /// number's unit. Each match is a sample.
    Regex(String),
}

impl Place {
    /// Returns whether it is well formed.
    ///
    /// # Errors
    /// It is malformed: says what was expected.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Place::Json(pointer) => {
                let parts: Vec<&str> = pointer.split('/').collect();
                let escapes_hold = |part: &&str| {
                    let mut rest = part.split('~').skip(1);
                    rest.all(|after| after.starts_with(['0', '1']))
                };
                if (pointer.is_empty() || parts[0].is_empty()) && parts.iter().all(escapes_hold) {
                    return Ok(());
                }
                Err("a JSON Pointer such as \"/summary/0/rate\" (\"~1\" is a slash, \"~0\" a tilde)".into())
            }
            Place::Regex(pattern) => {
                let regex = compiled(pattern)?;
                match regex.captures_len() - 1 {
                    1 | 2 => Ok(()),
                    _ => Err("one group in parentheses around the number, and perhaps a second around its unit; (?:…) groups without capturing".into()),
                }
            }
        }
    }
}

fn compiled(pattern: &str) -> Result<Regex, String> {
    Regex::new(pattern).map_err(|error| format!("a regular expression ({error})"))
}

impl Extract {
    /// The samples in `output`, in `unit`: at least one.
    ///
    /// # Errors
    /// The output has no such samples: says what it lacks.
    pub fn samples(&self, output: &[u8], unit: Unit) -> Result<Vec<f64>, String> {
        let stream = self.stream.name();
        if output.len() > OUTPUT_MAX {
            return Err(format!(
                "its {stream} is longer than {OUTPUT_MAX} bytes, the most that is searched"
            ));
        }
        let text = String::from_utf8_lossy(output);
        let samples = match &self.place {
            Place::Json(pointer) => in_json(&text, pointer),
            Place::Regex(pattern) => in_text(&text, pattern, unit),
        };
        let samples = samples.map_err(|what| format!("its {stream} {what}"))?;
        let measured = samples.into_iter().map(|sample| unit.measured(sample));
        measured
            .collect::<Result<_, _>>()
            .map_err(|what| format!("in its {stream}: {what}"))
    }
}

fn in_json(text: &str, pointer: &str) -> Result<Vec<f64>, String> {
    let document: Value =
        serde_json::from_str(text).map_err(|error| format!("is not one JSON value: {error}"))?;
    let found = document
        .pointer(pointer)
        .ok_or_else(|| format!("has nothing at \"{pointer}\""))?;
    let numbers = match found {
        Value::Array(items) => items.iter().map(Value::as_f64).collect(),
        one => one.as_f64().map(|number| vec![number]),
    };
    numbers
        .filter(|numbers: &Vec<f64>| !numbers.is_empty())
        .ok_or_else(|| {
            let written = found.to_string();
            format!("has {} at \"{pointer}\", not a number", short(&written))
        })
}

fn in_text(text: &str, pattern: &str, unit: Unit) -> Result<Vec<f64>, String> {
    let regex = compiled(pattern)?;
    let mut samples = Vec::new();
    for found in regex.captures_iter(text) {
        let group = |n: usize| found.get(n).map(|group| group.as_str());
        let Some(number) = group(1) else { continue };
        let value: f64 = number.trim().parse().map_err(|_| {
            let number = short(number);
            format!("has {number:?} where {pattern:?} expects a number")
        })?;
        let printed = match group(2) {
            Some(spelling) => short(spelling.trim()).parse::<Unit>(),
            None => Ok(unit),
        };
        let converted = printed.and_then(|printed| printed.convert(value, unit));
        let matched = || short(&found[0]);
        samples.push(converted.map_err(|error| format!("has {:?}: {error}", matched()))?);
    }
    if samples.is_empty() {
        return Err(format!("has nothing that matches {pattern:?}"));
    }
    Ok(samples)
}

/// The beginning of a piece of output, as long as fits an error: a match may be all of the output.
fn short(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(60) {
        Some((end, _)) => Cow::Owned(text[..end].to_owned() + "…"),
        None => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(place: Place, output: &str) -> Result<Vec<f64>, String> {
        let extract = Extract {
            stream: Stream::Stdout,
            place,
        };
        extract.samples(output.as_bytes(), Unit::Milliseconds)
    }

    #[test]
    fn a_number_is_found_by_json_pointer_and_by_regular_expression() {
        let json = |pointer: &str, text| samples(Place::Json(pointer.into()), text);
        assert_eq!(json("/a/1", r#"{"a":[1,2.5]}"#), Ok(vec![2.5]));
        assert_eq!(json("/a", r#"{"a":[1,2.5]}"#), Ok(vec![1.0, 2.5]));
        assert_eq!(json("/x~1y", r#"{"x/y":3}"#), Ok(vec![3.0]));
        assert_eq!(json("", "7\n"), Ok(vec![7.0]));
        let regex = |pattern: &str, text| samples(Place::Regex(pattern.into()), text);
        assert_eq!(
            regex(r"time=([0-9.]+) ms", "time=1.5 ms\ntime=2 ms"),
            Ok(vec![1.5, 2.0])
        );
        let with_unit = r"Latency\s+([0-9.]+)(us|ms|s)\b";
        assert_eq!(regex(with_unit, "Latency   250us"), Ok(vec![0.25]));
        assert_eq!(regex(with_unit, "Latency   2s"), Ok(vec![2000.0]));
    }

    #[test]
    fn a_negative_time_is_refused_and_a_negative_change_is_not() {
        let json = || Place::Json("/a".into());
        let regex = || Place::Regex(r"a: (\S+) ?(us)?".into());
        for (place, output, found) in [
            (json(), r#"{"a":[1,-2.5]}"#, "found -2.5 ms"),
            (regex(), "a: -3", "found -3 ms"),
            (regex(), "a: 3\na: -500 us", "found -0.5 ms"),
        ] {
            let error = samples(place, output).unwrap_err();
            let expected = format!("in its standard output: {found}, expected 0 or more");
            assert!(error.starts_with(&expected), "{error}");
        }
        let change = Extract {
            stream: Stream::Stdout,
            place: regex(),
        };
        assert_eq!(change.samples(b"a: -3", Unit::Percent), Ok(vec![-3.0]));
    }

    #[test]
    fn what_the_output_lacks_is_an_error_with_its_reason() {
        let cases = [
            (Place::Json("/a".into()), "{}", "has nothing at \"/a\""),
            (
                Place::Json("/a".into()),
                r#"{"a":"1"}"#,
                "has \"1\" at \"/a\", not a number",
            ),
            (
                Place::Json("/a".into()),
                r#"{"a":[1,null]}"#,
                "not a number",
            ),
            (Place::Json("/a".into()), r#"{"a":[]}"#, "not a number"),
            (
                Place::Json("/a".into()),
                "ready\n{}",
                "is not one JSON value",
            ),
            (Place::Json("/a".into()), "", "is not one JSON value"),
            (
                Place::Regex("r: ([0-9]+)".into()),
                "q: 1",
                "nothing that matches",
            ),
            (Place::Regex("r: (.*)".into()), "r: many", "\"many\" where"),
            (
                Place::Regex("r: ([0-9]+)(.*)".into()),
                "r: 1GB",
                "GB cannot be converted to ms",
            ),
        ];
        for (place, output, expected) in cases {
            let error = samples(place.clone(), output).unwrap_err();
            assert!(error.contains(expected), "{place:?}: {error}");
        }
        for (pattern, output) in [
            ("r: (.*)", "r: ".to_owned() + &"\u{7}".repeat(100_000)),
            ("([0-9]+)(.*)", "1".to_owned() + &" GB".repeat(100_000)),
        ] {
            let error = samples(Place::Regex(pattern.into()), &output).unwrap_err();
            assert!(error.len() < 1000, "{} bytes", error.len());
        }
        let flood = vec![b'1'; OUTPUT_MAX + 1];
        let extract = Extract {
            stream: Stream::Stderr,
            place: Place::Json(String::new()),
        };
        let error = extract.samples(&flood, Unit::Count).unwrap_err();
        assert!(error.contains("standard error is longer than"), "{error}");
    }

    #[test]
    fn a_place_that_cannot_be_one_is_refused() {
        for right in ["", "/", "/a/0", "/a~1b~0c"] {
            assert_eq!(Place::Json(right.into()).check(), Ok(()), "{right}");
        }
        for wrong in ["a", "a/b", "/a~", "/a~2"] {
            assert!(Place::Json(wrong.into()).check().is_err(), "{wrong}");
        }
        for right in ["([0-9]+)", "(?:a|b)=([0-9]+) (ms|s)"] {
            assert_eq!(Place::Regex(right.into()).check(), Ok(()), "{right}");
        }
        for wrong in ["[0-9]+", "([0-9]+", "(a)(b)(c)", "*"] {
            assert!(Place::Regex(wrong.into()).check().is_err(), "{wrong}");
        }
    }
}
