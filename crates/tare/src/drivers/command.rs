//! Any program: one that speaks the protocol, or one that is timed as a whole.

use std::time::Duration;

use tare_lab::driver::{Driver, Invocation, Missing, ParameterKind, Vocabulary};
use tare_lab::sample::OPERATIONS;
use tare_lab::trial::{STDOUT_BYTES, TIME};
use tare_lab::unit::Dimension;
use tare_lab::value::{Parameters, Value};

use super::{duration, parameter, text};

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
        }
    }

    fn check(&self, parameters: &Parameters) -> Result<(), Missing> {
        let words = words(parameters)?;
        let program = std::path::Path::new(&words[0]);
        let found = if program.components().count() > 1 {
            program.is_file()
        } else {
            std::env::var_os("PATH").is_some_and(|path| {
                std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
            })
        };
        if found {
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
    Ok(words.iter().map(|word| fill_in(word, parameters)).collect())
}

fn fill_in(word: &str, parameters: &Parameters) -> String {
    let mut filled = String::new();
    let mut rest = word;
    while let Some(open) = rest.find('{') {
        filled.push_str(&rest[..open]);
        let after = &rest[open + 1..];
        let value = after
            .find('}')
            .and_then(|close| Some((close, parameters.get(&after[..close])?)));
        match value {
            Some((close, value)) => {
                filled.push_str(&value.to_string());
                rest = &after[close + 1..];
            }
            None => {
                filled.push('{');
                rest = after;
            }
        }
    }
    filled.push_str(rest);
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_stays_one_word_and_is_not_filled_in_again() {
        let parameters = Parameters::from([
            ("command".into(), "cat '{file}' --n={n} {unknown} {".into()),
            ("file".into(), "a b; {n}".into()),
            ("n".into(), Value::Int(3)),
        ]);
        assert_eq!(
            words(&parameters).unwrap(),
            ["cat", "a b; {n}", "--n=3", "{unknown}", "{"]
        );
    }

    #[test]
    fn a_command_without_words_or_with_an_open_quote_is_refused() {
        for command in ["", "  ", "echo 'open"] {
            let parameters = Parameters::from([("command".into(), command.into())]);
            assert!(words(&parameters).is_err(), "{command}");
        }
    }
}
