//! The workspace's test programs, built once and run under whatever is put before them.

use std::io::{self, Read as _, Seek as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use wait4::{ResUse, Wait4 as _};

use crate::jobs::Job;
use crate::shell;

/// The arguments of `cargo test` that name the workspace's test programs. Benches measure, they do
/// not test, and no example has tests; clippy builds both.
const WORKSPACE: &[&str] = &[
    "test",
    "--workspace",
    "--lib",
    "--bins",
    "--tests",
    "--locked",
];

/// A test program.
#[derive(Clone)]
pub(crate) struct Binary {
    /// Its package's folder below the root and the target's name: `crates/gcm vectors`.
    pub(crate) name: String,
    package: String,
    folder: PathBuf,
    program: PathBuf,
}

/// The programs that take longest, in seconds of a quiet machine with two CPUs from 192 to 14. They
/// are begun first, so that none of them is left to run alone at the end.
const LONGEST: &[&str] = &[
    "crates/tare gateway_run",
    "crates/farmem/capi clients",
    "crates/lab instrument",
    "crates/tare loadtest",
    "crates/tare load",
    "crates/import hostile",
    "crates/tare rng",
    "crates/tare run",
    "crates/tare load_driver",
    "crates/lab report_chromium",
    "crates/gcm once",
    "crates/tare guide",
    "crates/rdrand/capi c_program",
    "crates/tare memory_run",
    "crates/tare compare",
    "crates/port kernel",
];

/// The time after which a test program is ended with its process group, in seconds: many times what
/// the longest takes on a busy machine, and a bound for one that hangs.
const LIMIT_SECONDS: u32 = 14_400;

/// The beginning of a command line that has a limit in seconds, and ends with this process:
/// `timeout` makes a process group of its own, which Ctrl-C at a terminal does not reach.
fn limited(seconds: u32) -> Vec<PathBuf> {
    let seconds = seconds.to_string();
    let with_parent = ["setpriv", "--pdeathsig", "TERM"].into_iter();
    let limit = ["timeout", "--kill-after=10", &seconds];
    let with_parent = with_parent.filter(|_| shell::has("setpriv"));
    with_parent.chain(limit).map(PathBuf::from).collect()
}

/// Builds the test programs of [`WORKSPACE`] and lists them, those that take longest first.
pub(crate) fn build() -> Result<Vec<Binary>, String> {
    let began = Instant::now();
    let mut all = build_by(WORKSPACE, &[])?;
    let took = began.elapsed().as_secs();
    eprintln!("xtask: test programs: built in {took} s");
    choose(&all, LONGEST)?;
    all.sort_by_key(|binary| {
        let rank = LONGEST.iter().position(|name| *name == binary.name);
        rank.unwrap_or(LONGEST.len())
    });
    Ok(all)
}

/// Builds the test programs that these arguments of `cargo` name, with these variables, and lists
/// them.
pub(crate) fn build_by(
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> Result<Vec<Binary>, String> {
    let mut arguments = arguments.to_vec();
    arguments.extend(["--no-run", "--message-format=json-render-diagnostics"]);
    let output = shell::command("cargo")
        .args(&arguments)
        .envs(variables.iter().copied())
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
    if !message.contains(r#""test":true},"features""#) {
        return None;
    }
    let program = PathBuf::from(text(message, "executable")?);
    let manifest = PathBuf::from(text(message, "manifest_path")?);
    let folder = manifest.parent()?.to_path_buf();
    // The target's object comes before everything else that has a name.
    let target = text(message, "name")?;
    let below = folder.strip_prefix(shell::root()).ok()?.display();
    Some(Binary {
        name: format!("{below} {target}"),
        package: package(&text(message, "package_id")?)?,
        folder,
        program,
    })
}

/// The name in a package's identifier, which leaves it out where it is that of the folder.
fn package(id: &str) -> Option<String> {
    let (path, rest) = id.rsplit_once('#')?;
    let name = match rest.split_once('@') {
        Some((name, _)) => name,
        None => path.rsplit('/').next()?,
    };
    Some(name.to_owned())
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
    /// The path of the program.
    pub(crate) fn path(&self) -> String {
        self.program.display().to_string()
    }

    /// [`Binary::run`] as a job.
    pub(crate) fn job(
        &self,
        title: &str,
        prefix: &[String],
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Job {
        let owned = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            let pairs = pairs.iter();
            pairs.map(|(a, b)| (a.to_string(), b.to_string())).collect()
        };
        let (binary, title, prefix) = (self.clone(), title.to_owned(), prefix.to_vec());
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let variables = owned(variables);
        Job::new(format!("{title}: {}", self.name), move || {
            binary.run(&title, &prefix, &arguments, &variables)
        })
    }

    /// Runs its tests behind `prefix`, a program and arguments that run the rest of their command
    /// line. What it says of tests that it left out is shown, everything where it fails.
    fn run(
        &self,
        title: &str,
        prefix: &[String],
        arguments: &[String],
        variables: &[(String, String)],
    ) -> Result<(), String> {
        let began = Instant::now();
        let mut words = limited(LIMIT_SECONDS);
        words.extend(prefix.iter().map(PathBuf::from));
        words.push(self.program.clone());
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            // With what passing tests print, as that says what was not tested.
            .args(["--nocapture", "--quiet"])
            .args(arguments)
            // As Cargo sets them for the tests that it runs.
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .env("CARGO_PKG_NAME", &self.package)
            .envs(variables.iter().cloned())
            .current_dir(&self.folder)
            .stdin(Stdio::null());
        let name = &self.name;
        let (said, end) = run_whole(&mut command)
            .map_err(|error| format!("{title}: {name} could not be run: {error}"))?;
        let took = began.elapsed().as_secs_f64();
        if !end.status.success() {
            let how = match took >= f64::from(LIMIT_SECONDS) {
                true => format!("was ended at its limit ({})", end.status),
                false => format!("failed ({})", end.status),
            };
            return Err(format!("{title}: {name} {how} after {took:.1} s:\n{said}"));
        }
        let processor = (end.rusage.utime + end.rusage.stime).as_secs_f64();
        let passed = said
            .lines()
            .find_map(|line| line.strip_prefix("test result: ok. "))
            .and_then(|line| line.split(';').next())
            .unwrap_or("no tests");
        let mut shown = vec![format!(
            "xtask: {title}: {name}: {passed} in {took:.1} s, {processor:.1} s of processor time"
        )];
        for line in said.lines().filter(|line| line.contains("NOT TESTED")) {
            // Behind the dots that other tests have printed meanwhile.
            let line = format!("    {}", line.trim().trim_start_matches(['.', 'i']));
            if !shown.contains(&line) {
                shown.push(line);
            }
        }
        // At once, as other programs say something at the same time.
        eprintln!("{}", shown.join("\n"));
        Ok(())
    }
}

/// Runs a program to its end: both of its outputs as they were mixed, and its end with what it and
/// the descendants that it waited for used.
fn run_whole(command: &mut Command) -> io::Result<(String, ResUse)> {
    let mut output = tempfile::tempfile()?;
    command.stdout(output.try_clone()?);
    command.stderr(output.try_clone()?);
    let end = command.spawn()?.wait4()?;
    let mut said = Vec::new();
    output.rewind()?;
    output.read_to_end(&mut said)?;
    Ok((String::from_utf8_lossy(&said).into_owned(), end))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::{limited, package, run_whole, text};

    #[test]
    fn a_program_that_hangs_is_ended_at_its_limit_with_what_it_started() {
        let marker = format!("{}", 8_000_000 + std::process::id());
        let mut words = limited(1);
        let script = format!("sleep {marker} & sleep {marker}");
        words.extend(["sh", "-c", &script].map(PathBuf::from));
        let (_, end) = run_whole(Command::new(&words[0]).args(&words[1..])).unwrap();
        assert!(!end.status.success(), "{}", end.status);
        let is_running = || {
            let processes = fs::read_dir("/proc").unwrap().flatten();
            let mut lines =
                processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
            lines.any(|line| {
                line.split(|byte| *byte == 0)
                    .any(|it| it == marker.as_bytes())
            })
        };
        let until = Instant::now() + Duration::from_secs(60);
        while is_running() {
            assert!(Instant::now() < until, "it left a process");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn packages_are_named_by_their_identifiers() {
        let named = package("path+file:///a/crates/sim#tare-sim@0.1.0");
        assert_eq!(named.unwrap(), "tare-sim");
        assert_eq!(package("path+file:///a/xtask#0.1.0").unwrap(), "xtask");
        assert_eq!(package("nothing"), None);
    }

    #[test]
    fn a_path_with_spaces_quotes_and_other_letters_is_read_whole() {
        let message = r#"{"name":"a","executable":"/te st ü/\"x\"\\y","name":"b"}"#;
        assert_eq!(text(message, "executable").unwrap(), "/te st ü/\"x\"\\y");
        assert_eq!(text(message, "name").unwrap(), "a");
        assert_eq!(text(message, "missing"), None);
        assert_eq!(text(r#"{"executable":"/cut"#, "executable"), None);
    }
}
