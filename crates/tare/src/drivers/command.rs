//! Any program: one that speaks the protocol, or one that is timed as a whole.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Duration;

use tare_lab::driver::{Driver, Invocation, Missing, Mistake, ParameterKind, Role, Vocabulary};
use tare_lab::file::nearest;
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
                    "prepare",
                    ParameterKind::Text,
                    Some("".into()),
                    "a command to run before each trial, not measured",
                ),
                parameter(
                    "cleanup",
                    ParameterKind::Text,
                    Some("".into()),
                    "a command to run after each trial, not measured",
                ),
                parameter(
                    "environment",
                    ParameterKind::Table,
                    None,
                    "variables added to the environment",
                ),
                parameter(
                    "working_directory",
                    ParameterKind::Text,
                    Some(".".into()),
                    "the folder in which the commands start",
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
                    "how long a trial, prepare and cleanup may each take",
                ),
            ],
            references: vec![],
            metrics: vec![(TIME.into(), Dimension::Time)],
            counters: vec![OPERATIONS.into(), STDOUT_BYTES.into()],
            open: true,
            deterministic: false,
        }
    }

    fn examine(&self, parameters: &Parameters) -> Result<(), Mistake> {
        for name in COMMANDS {
            words(parameters, name)?;
        }
        if words(parameters, "command")?.is_empty() {
            return Err(Mistake {
                parameter: "command".into(),
                found: "no words".into(),
                expected: "a program and its arguments".into(),
            });
        }
        filled(parameters, "working_directory")?;
        environment(parameters)?;
        if duration(parameters, "limit").is_ok_and(|limit| limit.is_zero()) {
            return Err(Mistake {
                parameter: "limit".into(),
                found: text(parameters, "limit").unwrap_or_default().into(),
                expected: "more than no time".into(),
            });
        }
        Ok(())
    }

    fn check(&self, parameters: &Parameters) -> Result<(), Missing> {
        let missing = |mistake: Mistake| Missing {
            reason: format!(
                "{}: found {}, expected {}",
                mistake.parameter, mistake.found, mistake.expected
            ),
            remedy: None,
        };
        self.examine(parameters).map_err(missing)?;
        let folder = filled(parameters, "working_directory").map_err(missing)?;
        if !Path::new(&folder).is_dir() {
            return Err(Missing {
                reason: format!("there is no folder \"{folder}\" here"),
                remedy: Some(format!("mkdir -p '{folder}', or correct working_directory")),
            });
        }
        let path = environment(parameters)
            .map_err(missing)?
            .remove(OsStr::new("PATH"));
        for name in COMMANDS {
            let words = words(parameters, name).map_err(missing)?;
            let Some(program) = words.first() else {
                continue;
            };
            if program::find_in(program, Path::new(&folder), path.as_deref()).is_none() {
                return Err(Missing {
                    reason: format!("there is no program \"{program}\" here"),
                    remedy: Some(format!("install {program}, or write its whole path")),
                });
            }
        }
        Ok(())
    }

    fn invocation(&self, _: &Role, parameters: &Parameters) -> Invocation {
        let words = |name| -> Vec<OsString> {
            let words = words(parameters, name).unwrap_or_default();
            words.into_iter().map(Into::into).collect()
        };
        let mut command = words("command").into_iter();
        Invocation {
            program: command.next().unwrap_or_default().into(),
            arguments: command.collect(),
            environment: environment(parameters).unwrap_or_default(),
            directory: filled(parameters, "working_directory").ok().map(Into::into),
            prepare: words("prepare"),
            cleanup: words("cleanup"),
            speaks_protocol: parameters.get("protocol") == Some(&Value::Bool(true)),
            limit: duration(parameters, "limit").unwrap_or(Duration::from_secs(60)),
            expected: None,
        }
    }
}

/// The parameters that hold a command.
const COMMANDS: [&str; 3] = ["command", "prepare", "cleanup"];

/// A command's words: split as a shell splits, then filled in, so that a value with a space in it
/// stays one word and nothing is interpreted twice.
fn words(parameters: &Parameters, name: &str) -> Result<Vec<String>, Mistake> {
    let command = text(parameters, name).unwrap_or_default();
    let words = shlex::split(command).ok_or_else(|| Mistake {
        parameter: name.into(),
        found: format!("{command:?}"),
        expected: "words with matching quotes".into(),
    })?;
    let words = words.iter().map(|word| fill_in(word, parameters, name));
    words.collect()
}

/// A parameter's text, filled in.
fn filled(parameters: &Parameters, name: &str) -> Result<String, Mistake> {
    fill_in(text(parameters, name).unwrap_or("."), parameters, name)
}

/// The variables that the program gets beside those of this process.
fn environment(parameters: &Parameters) -> Result<BTreeMap<OsString, OsString>, Mistake> {
    let variables = parameters.iter().filter_map(|(parameter, value)| {
        let variable = parameter.strip_prefix("environment.")?;
        Some((parameter, variable, value))
    });
    variables
        .map(|(parameter, variable, value)| {
            if variable.is_empty() || variable.contains(['=', '\0']) {
                return Err(Mistake {
                    parameter: parameter.clone(),
                    found: format!("a variable named {variable:?}"),
                    expected: "a name without \"=\"".into(),
                });
            }
            let value = fill_in(&value.to_string(), parameters, parameter)?;
            Ok((variable.into(), value.into()))
        })
        .collect()
}

/// Replaces each `{name}` by the parameter of that name. Braces around anything that is no name
/// stay as they are; `{{` is one brace, whatever follows.
fn fill_in(word: &str, parameters: &Parameters, place: &str) -> Result<String, Mistake> {
    let mut filled = String::new();
    let mut rest = word;
    while let Some(open) = rest.find('{') {
        filled.push_str(&rest[..open]);
        let after = &rest[open + 1..];
        if let Some(literal) = after.strip_prefix('{') {
            filled.push('{');
            rest = literal;
            continue;
        }
        let name = after.split_once('}').map(|(name, _)| name);
        match name.filter(|name| is_name(name)) {
            Some(name) => {
                let value = parameters
                    .get(name)
                    .ok_or_else(|| unknown(name, parameters, place))?;
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

fn unknown(name: &str, parameters: &Parameters, place: &str) -> Mistake {
    let own = |known: &&str| !COMMANDS.contains(known);
    let known: Vec<&str> = parameters.keys().map(String::as_str).filter(own).collect();
    let meant = nearest(name, &known)
        .map_or_else(String::new, |known| format!(" (did you mean {{{known}}}?)"));
    Mistake {
        parameter: place.into(),
        found: format!("{{{name}}}"),
        expected: format!(
            "the name of one of the parameters: {}{meant}",
            known.join(", ")
        ),
    }
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
            words(&parameters, "command").unwrap(),
            ["cat", "a b; {n}", "--n=3", "{}", "{a b}", "{"]
        );
    }

    #[test]
    fn what_no_machine_could_run_is_a_mistake_with_its_parameter() {
        let cases = [
            ("command", "", "no words"),
            ("command", "  ", "no words"),
            ("command", "echo 'open", "matching quotes"),
            ("command", "gzip -{levl}", "did you mean {level}?"),
            ("prepare", "rm \"", "matching quotes"),
            ("cleanup", "rm {fiel}", "{fiel}"),
            ("working_directory", "{nowhere}", "{nowhere}"),
            ("environment.LEVEL", "{levl}", "{levl}"),
            ("environment.", "1", "a variable named"),
            ("limit", "0 ms", "more than no time"),
        ];
        for (name, value, expected) in cases {
            let mut parameters = Parameters::from([
                ("command".into(), "gzip -{level}".into()),
                ("level".into(), Value::Int(1)),
            ]);
            parameters.insert(name.into(), value.into());
            let parameters = Command.vocabulary().complete(parameters);
            let mistake = Command.examine(&parameters).expect_err(value);
            assert_eq!(mistake.parameter, name, "{mistake:?}");
            assert!(format!("{mistake:?}").contains(expected), "{mistake:?}");
        }
    }

    #[test]
    fn a_command_starts_where_and_with_what_its_parameters_say() {
        let parameters = Parameters::from([
            ("command".into(), "./run {n}".into()),
            ("prepare".into(), "make data".into()),
            ("environment.THREADS".into(), "{n}".into()),
            ("working_directory".into(), "work-{n}".into()),
            ("limit".into(), "2 s".into()),
            ("n".into(), Value::Int(3)),
        ]);
        let invocation =
            Command.invocation(&Role::only(), &Command.vocabulary().complete(parameters));
        let expected = Invocation {
            program: "./run".into(),
            arguments: vec!["3".into()],
            environment: [("THREADS".into(), "3".into())].into(),
            directory: Some("work-3".into()),
            prepare: vec!["make".into(), "data".into()],
            limit: Duration::from_secs(2),
            ..Invocation::default()
        };
        assert_eq!(invocation, expected);
    }
}
