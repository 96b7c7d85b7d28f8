//! The workspace's test programs, built once and run under whatever is put before them.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use crate::shell;

/// The arguments of `cargo test` that name the workspace's test programs. Benches measure, they do
/// not test; clippy builds them.
pub(crate) const WORKSPACE: &[&str] = &[
    "test",
    "--workspace",
    "--lib",
    "--bins",
    "--tests",
    "--examples",
    "--locked",
];

/// A test program.
pub(crate) struct Binary {
    /// Its package's folder below the root and the target's name: `crates/gcm vectors`.
    pub(crate) name: String,
    folder: PathBuf,
    program: PathBuf,
}

/// Builds the test programs, the same that [`WORKSPACE`] runs, and lists them.
pub(crate) fn build() -> Result<Vec<Binary>, String> {
    let mut arguments = WORKSPACE.to_vec();
    arguments.extend(["--no-run", "--message-format=json-render-diagnostics"]);
    let output = shell::command("cargo")
        .args(&arguments)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo could not be started: {error}"))?;
    if !output.status.success() {
        return Err(format!("failed: cargo {}", arguments.join(" ")));
    }
    let messages = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(messages.lines().filter_map(binary).collect())
}

/// The test program that a message of Cargo's is about.
fn binary(message: &str) -> Option<Binary> {
    // An example has no tests, and may be called as a test program is.
    if !message.contains(r#""test":true},"#) || message.contains(r#""kind":["example"]"#) {
        return None;
    }
    let program = PathBuf::from(text(message, "executable")?);
    let manifest = PathBuf::from(text(message, "manifest_path")?);
    let folder = manifest.parent()?.to_path_buf();
    // The target's object comes before everything else that has a name.
    let target = text(message, "name")?;
    let package = folder.strip_prefix(shell::root()).ok()?.display();
    Some(Binary {
        name: format!("{package} {target}"),
        folder,
        program,
    })
}

/// The first text in a JSON message that has this key. Cargo's paths need an escape for quotes and
/// backslashes only.
fn text(message: &str, key: &str) -> Option<String> {
    let (_, rest) = message.split_once(&format!("\"{key}\":\""))?;
    let (mut text, mut escaped) = (String::new(), false);
    for c in rest.chars() {
        match c {
            '"' if !escaped => return Some(text),
            '\\' if !escaped => escaped = true,
            c => {
                text.push(c);
                escaped = false;
            }
        }
    }
    None
}

/// The programs of these names; one that does not exist is an error, so that no list outlives what
/// it lists.
pub(crate) fn choose<'a>(all: &'a [Binary], names: &[&str]) -> Result<Vec<&'a Binary>, String> {
    names
        .iter()
        .map(|name| {
            let found = all.iter().find(|binary| binary.name == *name);
            found.ok_or_else(|| format!("there is no test program \"{name}\""))
        })
        .collect()
}

impl Binary {
    /// Runs its tests behind `prefix`, a program and arguments that run the rest of their command
    /// line. What it says of tests that it left out is shown, everything where it fails.
    pub(crate) fn run(
        &self,
        title: &str,
        prefix: &[String],
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<(), String> {
        let began = Instant::now();
        let mut words = prefix.iter().cloned().map(PathBuf::from);
        let mut command = Command::new(words.next().unwrap_or_else(|| self.program.clone()));
        command.args(words);
        if !prefix.is_empty() {
            command.arg(&self.program);
        }
        let output = command
            // With what passing tests print, as that says what was not tested.
            .args(["--nocapture", "--quiet"])
            .args(arguments)
            .envs(variables.iter().copied())
            .current_dir(&self.folder)
            .output()
            .map_err(|error| format!("{title}: {} could not be started: {error}", self.name))?;
        let (name, took) = (&self.name, began.elapsed().as_secs_f64());
        if !output.status.success() {
            let said = said(&output);
            return Err(format!(
                "{title}: {name} failed ({}) after {took:.1} s:\n{said}",
                output.status
            ));
        }
        let said = said(&output);
        let passed = said
            .lines()
            .find_map(|line| line.strip_prefix("test result: ok. "))
            .and_then(|line| line.split(';').next())
            .unwrap_or("no tests");
        eprintln!("xtask: {title}: {name}: {passed} in {took:.1} s");
        let mut shown = Vec::new();
        for line in said.lines().filter(|line| line.contains("NOT TESTED")) {
            if !shown.contains(&line) {
                eprintln!("    {}", line.trim());
                shown.push(line);
            }
        }
        Ok(())
    }
}

fn said(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    out + &String::from_utf8_lossy(&output.stderr)
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn a_path_with_spaces_quotes_and_other_letters_is_read_whole() {
        let message = r#"{"name":"a","executable":"/te st ü/\"x\"\\y","name":"b"}"#;
        assert_eq!(text(message, "executable").unwrap(), "/te st ü/\"x\"\\y");
        assert_eq!(text(message, "name").unwrap(), "a");
        assert_eq!(text(message, "missing"), None);
        assert_eq!(text(r#"{"executable":"/cut"#, "executable"), None);
    }
}
