//! Deliberate faults: each is put into a copy of the sources, where a named test must fail.
//!
//! The lists are `xtask/mutants/CRATE.toml`, by hand. A tool that changes every operator of a crate
//! takes hours here and is mostly about code that no promise depends on; these are the faults that
//! would break one.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use serde::Deserialize;

use crate::shell::root;

/// The copy, and what is built of it. Not in the sources' own folder: Cargo would take one for the
/// other there.
const TREE: &str = "target/mutants/tree";
const BUILD: &str = "target/mutants/build";

/// The time that the tests of one mutant may take. One that hangs is killed by that.
const LIMIT_SECONDS: &str = "600";

/// The faults of one crate.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    /// The crate's package.
    package: String,
    mutant: Vec<Mutant>,
}

/// A fault: a text of a file, found once, and what replaces it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutant {
    /// The effect, in words.
    fault: String,
    file: String,
    find: String,
    replace: String,
    /// The arguments of `cargo test -p PACKAGE` that must fail.
    test: String,
    /// The flags of the processor (Linux's names) without which the code does not run.
    needs: Option<String>,
    /// The reason why no test can fail.
    survives: Option<String>,
}

/// Runs the lists of these crates, or of all.
pub(crate) fn run(name: Option<&str>) -> Result<(), String> {
    let all = lists()?;
    let chosen: Vec<_> = all
        .iter()
        .filter(|(own, _)| name.is_none_or(|name| name == own))
        .collect();
    if chosen.is_empty() {
        let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        let found = name.unwrap_or_default();
        return Err(format!(
            "no list of mutants is called \"{found}\", expected one of {}",
            names.join(", ")
        ));
    }
    let tree = root().join(TREE);
    let mut complaints = Vec::new();
    for (name, list) in chosen {
        copy(&tree)?;
        let tests: BTreeSet<&str> = list.mutant.iter().map(|m| m.test.as_str()).collect();
        for test in tests {
            eprintln!("mutants: {name}: without a fault: {test}");
            let outcome = test_run(&tree, &list.package, test)?;
            if outcome != Outcome::Passed {
                return Err(format!("{name}: {test}: {outcome:?} without a fault"));
            }
        }
        for (i, mutant) in list.mutant.iter().enumerate() {
            if !mutant.runs_here() {
                let (fault, needs) = (&mutant.fault, mutant.needs.as_deref().unwrap_or_default());
                eprintln!("mutants: NOT TESTED: {name}: {fault}: needs {needs}");
                continue;
            }
            let began = Instant::now();
            let verdict = mutant.verdict(&tree, &list.package)?;
            eprintln!(
                "mutants: {name} {}/{}: {verdict} in {:.0} s: {}",
                i + 1,
                list.mutant.len(),
                began.elapsed().as_secs_f64(),
                mutant.fault
            );
            if let Some(complaint) = mutant.complaint(&verdict) {
                complaints.push(format!("{name}: {}: {complaint}", mutant.fault));
            }
        }
    }
    if complaints.is_empty() {
        return Ok(());
    }
    Err(format!("mutants:\n  {}", complaints.join("\n  ")))
}

/// The result of a test program.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    /// The tests that failed.
    Failed(Vec<String>),
    TookTooLong,
    DidNotBuild,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Outcome::Passed => write!(f, "SURVIVED"),
            Outcome::Failed(tests) => match &tests[..] {
                [] => write!(f, "killed (the test program ended early)"),
                [test] => write!(f, "killed by {test}"),
                [test, ..] => write!(f, "killed by {test} and {} more", tests.len() - 1),
            },
            Outcome::TookTooLong => write!(f, "killed (after {LIMIT_SECONDS} s)"),
            Outcome::DidNotBuild => write!(f, "DOES NOT BUILD"),
        }
    }
}

impl Mutant {
    /// The source with the fault in it.
    fn apply(&self, source: &str) -> Result<String, String> {
        let (file, count) = (&self.file, source.matches(&self.find).count());
        if count != 1 {
            let fault = &self.fault;
            return Err(format!(
                "{file}: the text of the mutant \"{fault}\" is there {count} times, expected once"
            ));
        }
        Ok(source.replacen(&self.find, &self.replace, 1))
    }

    fn runs_here(&self) -> bool {
        let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let flags = text.lines().find(|line| line.starts_with("flags"));
        let flags: Vec<&str> = flags.unwrap_or_default().split_whitespace().collect();
        let needs = self.needs.as_deref().unwrap_or_default();
        needs.split_whitespace().all(|flag| flags.contains(&flag))
    }

    /// Puts the fault into the copy, tests, and takes it out again.
    fn verdict(&self, tree: &Path, package: &str) -> Result<Outcome, String> {
        let file = tree.join(&self.file);
        let source = read(&file)?;
        write(&file, &self.apply(&source)?)?;
        let outcome = test_run(tree, package, &self.test);
        write(&file, &source)?;
        outcome
    }

    fn complaint(&self, outcome: &Outcome) -> Option<&str> {
        match (outcome, &self.survives) {
            (Outcome::DidNotBuild, _) => Some("does not build"),
            (Outcome::Passed, None) => Some("survived, without an explanation in the list"),
            (Outcome::Passed, Some(_)) | (_, None) => None,
            (_, Some(_)) => Some("is killed, and the list explains why it survives"),
        }
    }
}

/// The lists and their names.
fn lists() -> Result<Vec<(String, List)>, String> {
    let folder = root().join("xtask/mutants");
    let entries = fs::read_dir(&folder).map_err(|error| named(&folder, error))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    files
        .iter()
        .map(|file| {
            let name = file.file_stem().unwrap_or_default().to_string_lossy();
            let list = toml::from_str(&read(file)?).map_err(|error| named(file, error))?;
            Ok((name.into_owned(), list))
        })
        .collect()
}

/// Copies the sources as they are now, those that are not committed included. What has not changed
/// keeps its time, so that it is not built anew.
fn copy(tree: &Path) -> Result<(), String> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .map_err(|error| format!("git could not be started: {error}"))?;
    for name in String::from_utf8_lossy(&listed.stdout).lines() {
        let (from, to) = (root().join(name), tree.join(name));
        let Ok(bytes) = fs::read(&from) else {
            // It has been removed, and not yet from the index.
            let _ = fs::remove_file(&to);
            continue;
        };
        if fs::read(&to).ok().as_ref() != Some(&bytes) {
            let folder = to.parent().unwrap_or(tree);
            fs::create_dir_all(folder).map_err(|error| named(folder, error))?;
            fs::write(&to, bytes).map_err(|error| named(&to, error))?;
        }
    }
    Ok(())
}

/// Builds and runs tests in the copy.
fn test_run(tree: &Path, package: &str, test: &str) -> Result<Outcome, String> {
    let cargo = |limit: &str, more: &[&str]| -> Result<Output, String> {
        let (before, after) = test.split_once(" -- ").unwrap_or((test, ""));
        Command::new("timeout")
            .args([limit, "cargo", "test", "--quiet", "--locked", "-p", package])
            .args(before.split_whitespace())
            .args(more)
            .arg("--")
            .args(after.split_whitespace())
            .env("CARGO_TARGET_DIR", root().join(BUILD))
            .env("RUST_BACKTRACE", "0")
            .current_dir(tree)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("timeout could not be started: {error}"))
    };
    if !cargo("0", &["--no-run"])?.status.success() {
        return Ok(Outcome::DidNotBuild);
    }
    let output = cargo(LIMIT_SECONDS, &[])?;
    const TIMED_OUT: i32 = 124;
    if output.status.success() {
        return Ok(Outcome::Passed);
    } else if output.status.code() == Some(TIMED_OUT) {
        return Ok(Outcome::TookTooLong);
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let failed = text
        .lines()
        .filter_map(|line| line.strip_prefix("---- ")?.strip_suffix(" stdout ----"));
    Ok(Outcome::Failed(failed.map(str::to_owned).collect()))
}

fn read(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|error| named(file, error))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|error| named(file, error))
}

fn named(file: &Path, error: impl std::fmt::Display) -> String {
    format!("{}: {error}", file.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_applies_to_the_sources_as_they_are() {
        let lists = lists().unwrap();
        assert!(!lists.is_empty());
        let mut problems = Vec::new();
        for (name, list) in lists {
            assert!(list.mutant.len() >= 10, "{name}");
            for mutant in list.mutant {
                let source = read(&root().join(&mutant.file)).unwrap();
                match mutant.apply(&source) {
                    Ok(changed) => assert_ne!(changed, source, "{name}: {}", mutant.fault),
                    Err(problem) => problems.push(problem),
                }
            }
        }
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    #[test]
    fn survivors_want_an_explanation_and_explanations_a_survivor() {
        let mut mutant = Mutant {
            fault: String::new(),
            file: String::new(),
            find: "a".into(),
            replace: "b".into(),
            test: String::new(),
            needs: None,
            survives: None,
        };
        assert_eq!(mutant.apply("xay").as_deref(), Ok("xby"));
        assert!(mutant.apply("aa").is_err() && mutant.apply("x").is_err());
        let failed = Outcome::Failed(Vec::new());
        assert!(mutant.complaint(&Outcome::Passed).is_some());
        assert!(mutant.complaint(&failed).is_none());
        mutant.survives = Some("equal results".into());
        assert!(mutant.complaint(&Outcome::Passed).is_none());
        assert!(mutant.complaint(&failed).is_some());
        assert!(mutant.complaint(&Outcome::DidNotBuild).is_some());
    }
}
