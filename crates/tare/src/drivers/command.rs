//! Any program: one that speaks the protocol, or one that is timed as a whole.

use std::time::Duration;

use tare_lab::driver::{Driver, Invocation, Missing, ParameterKind, Vocabulary};
use tare_lab::sample::OPERATIONS;
use tare_lab::trial::{STDOUT_BYTES, TIME};
use tare_lab::unit::Dimension;
use tare_lab::value::{Parameters, Value};

use super::{duration, parameter, text};
use crate::program;

/// Runs `command`, in which `{name}` stands for the parameter of that name.
pub(super) struct Command;

impl Driver for Command {
    fn vocabulary(&self) -> Vocabulary {
        Vocabulary {
            name: "command".into(),
            about: "any program, timed as a whole or speaking JSON lines".into(),
            parameters: vec![
                parameter(
                    "command",
                    ParameterKind::Text,
                    None,
                    "the program and its arguments; {name} stands for the parameter of that name",
                ),
                parameter(
                    "protocol",
                    ParameterKind::Bool,
                    Some(Value::Bool(false)),
                    "whether the program speaks the trial protocol",
                ),
                parameter(
                    "limit",
                    ParameterKind::Quantity(Dimension::Time),
                    Some("60 s".into()),
                    "how long a trial may take",
                ),
            ],
            peers: vec![],
            metrics: vec![(TIME.into(), Dimension::Time)],
            counters: vec![OPERATIONS.into(), STDOUT_BYTES.into()],
            open: true,
            deterministic: false,
        }
    }

    fn check(&self, parameters: &Parameters) -> Result<(), Missing> {
        let words = words(parameters)?;
        if program::find(&words[0]).is_some() {
            return Ok(());
        }
        Err(Missing {
            reason: format!("there is no program \"{}\" here", words[0]),
            remedy: Some(format!("install {}, or write its whole path", words[0])),
        })
    }

    fn invocation(&self, parameters: &Parameters) -> Invocation {
        let mut words = words(parameters).unwrap_or_default().into_iter();
        Invocation {
            program: words.next().unwrap_or_default().into(),
            arguments: words.map(Into::into).collect(),
            environment: Default::default(),
            speaks_protocol: parameters.get("protocol") == Some(&Value::Bool(true)),
            limit: duration(parameters, "limit").unwrap_or(Duration::from_secs(60)),
        }
    }
}

/// The command's words: split as a shell splits, then filled in, so that a value with a space in
/// it stays one word and nothing is interpreted twice. At least one word.
fn words(parameters: &Parameters) -> Result<Vec<String>, Missing> {
    let missing = |reason: String| Missing {
        reason,
        remedy: None,
    };
    let command = text(parameters, "command").map_err(|error| missing(error.to_string()))?;
    let words = shlex::split(command)
        .filter(|words| !words.is_empty())
        .ok_or_else(|| {
            missing(format!(
                "found command \"{command}\", expected words with matching quotes"
            ))
        })?;
    words
        .iter()
        .map(|word| fill_in(word, parameters).map_err(&missing))
        .collect()
}

/// Replaces each `{name}` by the parameter of that name. Braces around anything that is no name
/// stay as they are.
fn fill_in(word: &str, parameters: &Parameters) -> Result<String, String> {
    let mut filled = String::new();
    let mut rest = word;
    while let Some(open) = rest.find('{') {
        filled.push_str(&rest[..open]);
        let after = &rest[open + 1..];
        let name = after.split_once('}').map(|(name, _)| name);
        match name.filter(|name| is_name(name)) {
            Some(name) => {
                let value = parameters.get(name).ok_or_else(|| {
                    format!("the command names {{{name}}}, and there is no parameter {name}")
                })?;
                filled.push_str(&value.to_string());
                rest = &after[name.len() + 1..];
            }
            None => {
                filled.push('{');
                rest = after;
            }
        }
    }
    filled.push_str(rest);
    Ok(filled)
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_stays_one_word_and_is_not_filled_in_again() {
        let parameters = Parameters::from([
            ("command".into(), "cat '{file}' --n={n} {} '{a b}' {".into()),
            ("file".into(), "a b; {n}".into()),
            ("n".into(), Value::Int(3)),
        ]);
        assert_eq!(
            words(&parameters).unwrap(),
            ["cat", "a b; {n}", "--n=3", "{}", "{a b}", "{"]
        );
    }

    #[test]
    fn a_name_that_is_no_parameter_is_refused() {
        let parameters = Parameters::from([("command".into(), "gzip -{levl}".into())]);
        let refused = words(&parameters).unwrap_err().reason;
        assert!(refused.contains("no parameter levl"), "{refused}");
    }

    #[test]
    fn a_command_without_words_or_with_an_open_quote_is_refused() {
        for command in ["", "  ", "echo 'open"] {
            let parameters = Parameters::from([("command".into(), command.into())]);
            assert!(words(&parameters).is_err(), "{command}");
        }
    }
}
