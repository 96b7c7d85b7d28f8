//! Any program: one that speaks the protocol, or one that is timed as a whole.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::anyhow;
use tare_lab::driver::{Expected, Invocation, Missing, Mistake, Role};
use tare_lab::file::nearest;
use tare_lab::parameters::Table;
use tare_lab::value::Parameters;
use tare_lab::{figures, parameters};

use super::workload::{mistake, Workload};
use crate::agent::{Agent, TrialError};
use crate::machine::Machine;
use crate::{program, terminal};

parameters! {
    /// The parameters of the driver `command`. In the commands, the folder and the variables
    /// `{name}` stands for the parameter of that name.
    pub(crate) struct CommandParameters {
        /// the program and its arguments; {name} stands for the parameter of that name
        command: String,
        /// a command to run before each trial, not measured
        prepare: String = "",
        /// a command to run after each trial, not measured
        cleanup: String = "",
        /// variables added to the environment
        environment: Table,
        /// the folder in which the commands start
        working_directory: String = ".",
        /// whether the program speaks the trial protocol
        protocol: bool = false,
        /// how long a trial, prepare and cleanup may each take
        limit: Duration = "60 s",
        .. all
    }
}

figures! {
    /// The figures of a program that does not speak the protocol; the lab measures them.
    pub(crate) struct CommandFigures {
        metrics {
            /// wall time of the program
            time: f64 [Seconds],
        }
        counters {
            /// runs of the program
            operations,
            /// bytes that it printed
            stdout_bytes,
        }
    }
}

/// The driver `command`, which runs any program.
pub(crate) struct Command;

impl Workload for Command {
    const NAME: &'static str = "command";
    const ABOUT: &'static str = "any program, timed as a whole or speaking JSON lines";
    type Parameters = CommandParameters;
    type Figures = CommandFigures;

    fn examine(parameters: &CommandParameters) -> Result<(), Mistake> {
        if parameters.limit.is_zero() {
            let found = parameters.all.get("limit").map(ToString::to_string);
            return Err(Mistake {
                parameter: "limit".into(),
                found: found.unwrap_or_default(),
                expected: "more than 0 s".into(),
            });
        }
        Process::of(parameters).map(drop)
    }

    fn check(parameters: &CommandParameters, _: &Machine) -> Result<(), Missing> {
        let process = Process::of(parameters).map_err(|mistake| Missing {
            reason: mistake.to_string(),
            remedy: None,
        })?;
        let folder = &process.folder;
        if !Path::new(folder).is_dir() {
            return Err(Missing {
                reason: format!("there is no folder \"{folder}\" here"),
                remedy: Some(format!("mkdir -p '{folder}', or correct working_directory")),
            });
        }
        let path = process.environment.get(OsStr::new("PATH"));
        for words in [&process.command, &process.prepare, &process.cleanup] {
            let Some(program) = words.first() else {
                continue;
            };
            let path = path.map(OsString::as_os_str);
            if program::find_in(program, Path::new(folder), path).is_none() {
                let found = program::not_executable_in(program, Path::new(folder), path);
                if let Some(file) = found {
                    // Without the second `.` of `././tool`.
                    let file: PathBuf = file.components().collect();
                    return Err(Missing {
                        reason: format!("the program \"{program}\" is not executable"),
                        remedy: Some(format!("chmod +x {}", terminal::word(&file))),
                    });
                }
                return Err(Missing {
                    reason: format!("there is no program \"{program}\" here"),
                    remedy: Some(format!("install {program}, or write its whole path")),
                });
            }
        }
        Ok(())
    }

    fn expected(_: &CommandParameters) -> Option<Expected> {
        None
    }

    fn invocation(_: &Role, parameters: &CommandParameters, own_trial: Invocation) -> Invocation {
        let Ok(process) = Process::of(parameters) else {
            // The trial finds the same mistake and reports it.
            return Invocation {
                speaks_protocol: parameters.protocol,
                ..own_trial
            };
        };
        let os = |words: Vec<String>| words.into_iter().map(OsString::from).collect();
        let mut command = process.command.into_iter();
        Invocation {
            program: command.next().unwrap_or_default().into(),
            arguments: os(command.collect()),
            environment: process.environment,
            directory: Some(process.folder.into()),
            prepare: os(process.prepare),
            cleanup: os(process.cleanup),
            speaks_protocol: parameters.protocol,
            limit: parameters.limit,
            expected: None,
        }
    }

    fn run(_: CommandParameters, _: &mut Agent) -> Result<CommandFigures, TrialError> {
        Err(anyhow!("found driver \"command\", expected one with trials of its own").into())
    }
}

/// A process as the parameters describe it, filled in.
struct Process {
    command: Vec<String>,
    prepare: Vec<String>,
    cleanup: Vec<String>,
    environment: BTreeMap<OsString, OsString>,
    folder: String,
}

impl Process {
    fn of(parameters: &CommandParameters) -> Result<Process, Mistake> {
        let all = &parameters.all;
        let command = words(&parameters.command, all, "command")?;
        let prepare = words(&parameters.prepare, all, "prepare")?;
        let cleanup = words(&parameters.cleanup, all, "cleanup")?;
        if command.is_empty() {
            return Err(Mistake {
                parameter: "command".into(),
                found: "no words".into(),
                expected: "a program and its arguments".into(),
            });
        }
        Ok(Process {
            command,
            prepare,
            cleanup,
            folder: fill_in(&parameters.working_directory, all, "working_directory")?,
            environment: environment(&parameters.environment, all)?,
        })
    }
}

/// The parameters that hold a command.
const COMMANDS: [&str; 3] = ["command", "prepare", "cleanup"];

/// A command's words: split as a shell splits, then filled in, so that a value with a space in it
/// stays one word and nothing is interpreted twice.
fn words(command: &str, parameters: &Parameters, name: &str) -> Result<Vec<String>, Mistake> {
    let words = shlex::split(command)
        .ok_or_else(|| mistake(name, command, "words with matching quotes"))?;
    let words = words.iter().map(|word| fill_in(word, parameters, name));
    words.collect()
}

/// The variables that the program gets beside those of this process.
fn environment(
    variables: &Table,
    parameters: &Parameters,
) -> Result<BTreeMap<OsString, OsString>, Mistake> {
    let variables = variables.0.iter();
    variables
        .map(|(variable, value)| {
            let parameter = format!("environment.{variable}");
            if variable.is_empty() || variable.contains(['=', '\0']) {
                return Err(Mistake {
                    parameter,
                    found: format!("a variable named {variable:?}"),
                    expected: "a name without \"=\"".into(),
                });
            }
            let value = fill_in(value, parameters, &parameter)?;
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
    use crate::systems::workload::On;
    use tare_lab::driver::Driver as _;
    use tare_lab::figures::Figures as _;
    use tare_lab::trial::{STDOUT_BYTES, TIME};
    use tare_lab::value::Value;

    fn driver() -> On<Command> {
        On::new(Machine::This)
    }

    #[test]
    fn the_figures_are_those_that_the_lab_measures() {
        assert_eq!(CommandFigures::metrics()[0].name, TIME);
        assert_eq!(CommandFigures::counters()[1].name, STDOUT_BYTES);
    }

    #[test]
    fn a_value_stays_one_word_and_is_not_filled_in_again() {
        let parameters = Parameters::from([
            ("file".into(), "a b; {n}".into()),
            ("n".into(), Value::Int(3)),
        ]);
        assert_eq!(
            words("cat '{file}' --n={n} {} '{a b}' {", &parameters, "command").unwrap(),
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
            ("limit", "0 ms", "more than 0 s"),
        ];
        for (name, value, expected) in cases {
            let mut parameters = Parameters::from([
                ("command".into(), "gzip -{level}".into()),
                ("level".into(), Value::Int(1)),
            ]);
            parameters.insert(name.into(), value.into());
            let parameters = driver().vocabulary().complete(parameters);
            let mistake = driver().examine(&parameters).expect_err(value);
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
            driver().invocation(&Role::only(), &driver().vocabulary().complete(parameters));
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
