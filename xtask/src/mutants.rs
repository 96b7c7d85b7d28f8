//! Deliberate faults: each is put into a copy of the sources, where a named test must fail.
//!
//! The lists are `xtask/mutants/CRATE.toml`, by hand. A tool that changes every operator of a crate
//! takes hours here and is mostly about code that no promise depends on; these are the faults that
//! would break one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;

use crate::shell::root;

/// The copy, and what is built of it. Not in the sources' own folder: Cargo would take one for the
/// other there.
const TREE: &str = "target/mutants/tree";
const BUILD: &str = "target/mutants/build";

/// The faults of one crate.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    /// The crate's package.
    package: String,
    /// Settings of Cargo (`--config`), such as less optimization where building takes longer than
    /// testing.
    #[serde(default)]
    config: Vec<String>,
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

/// Checks that the text of every fault is in the sources once, and is changed by it.
pub(crate) fn check() -> Result<(), String> {
    let mut problems = Vec::new();
    for (name, list) in lists()? {
        if list.mutant.len() < 10 {
            let found = list.mutant.len();
            problems.push(format!(
                "{name}: found {found} mutants, expected at least 10"
            ));
        }
        for mutant in list.mutant {
            let source = read(&root().join(&mutant.file))?;
            match mutant.apply(&source) {
                Ok(changed) if changed == source => {
                    problems.push(format!("{name}: \"{}\" changes nothing", mutant.fault));
                }
                Ok(_) => {}
                Err(problem) => problems.push(problem),
            }
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(problems.join("\n"))
}

/// Runs the faults of this crate with these numbers, or all of it, or of all crates.
pub(crate) fn run(name: Option<&str>, numbers: RangeInclusive<usize>) -> Result<(), String> {
    let mut chosen = lists()?;
    let names: Vec<String> = chosen.iter().map(|(name, _)| name.clone()).collect();
    chosen.retain(|(own, _)| name.is_none_or(|name| name == own));
    for (_, list) in &mut chosen {
        let mut number = 0;
        list.mutant.retain(|_| {
            number += 1;
            numbers.contains(&number)
        });
    }
    let all: usize = chosen.iter().map(|(_, list)| list.mutant.len()).sum();
    if all == 0 {
        return Err(format!(
            "mutants: found no fault of \"{}\" with numbers {} to {}, expected one of {}",
            name.unwrap_or_default(),
            numbers.start(),
            numbers.end(),
            names.join(", ")
        ));
    }
    let bar = ProgressBar::new(all as u64);
    let style = "{bar:20} {pos} of {len} faults, about {eta} left: {wide_msg}";
    bar.set_style(ProgressStyle::with_template(style).map_err(|error| error.to_string())?);
    bar.enable_steady_tick(Duration::from_secs(1));
    let mut table = Vec::new();
    let mut complaints = Vec::new();
    let outcome = chosen.iter().try_for_each(|(name, list)| {
        let mut row = Row::default();
        let outcome = one(
            name,
            list,
            *numbers.start(),
            &bar,
            &mut row,
            &mut complaints,
        );
        table.push((name, row));
        outcome
    });
    bar.finish_and_clear();
    println!("crate     faults  killed  by limit  explained  survived  not tested   time");
    for (name, row) in table {
        println!(
            "{name:<8}  {:>6}  {:>6}  {:>8}  {:>9}  {:>8}  {:>10}  {:>3.0} min",
            row.faults,
            row.killed,
            row.by_limit,
            row.explained,
            row.survived,
            row.not_tested,
            row.time.as_secs_f64() / 60.0
        );
    }
    outcome?;
    if complaints.is_empty() {
        return Ok(());
    }
    Err(format!("mutants:\n  {}", complaints.join("\n  ")))
}

/// Reads the first and the last number of a part of a list.
pub(crate) fn numbers(words: &[&str]) -> Result<RangeInclusive<usize>, String> {
    let number = |at: usize, otherwise: usize| match words.get(at) {
        None => Ok(otherwise),
        Some(word) => word
            .parse()
            .map_err(|_| format!("mutants: found \"{word}\", expected the number of a fault")),
    };
    Ok(number(0, 1)?..=number(1, usize::MAX)?)
}

/// The numbers of a crate's faults in the table at the end.
#[derive(Default)]
struct Row {
    faults: usize,
    killed: usize,
    by_limit: usize,
    explained: usize,
    survived: usize,
    not_tested: usize,
    time: Duration,
}

/// Runs the faults of one crate, of which the first has the number `first`.
fn one(
    name: &str,
    list: &List,
    first: usize,
    bar: &ProgressBar,
    row: &mut Row,
    complaints: &mut Vec<String>,
) -> Result<(), String> {
    let began = Instant::now();
    let say = |line: String| bar.suspend(|| eprintln!("mutants: {name} {line}"));
    let tree = root().join(TREE);
    copy(&tree)?;
    let mut limits = BTreeMap::new();
    for (number, mutant) in (first..).zip(&list.mutant) {
        let (fault, test) = (&mutant.fault, mutant.test.as_str());
        row.faults += 1;
        if mutant.runs_here() {
            let limit = match limits.get(test) {
                Some(limit) => *limit,
                None => {
                    bar.set_message(format!("{name}: without a fault: {test}"));
                    let (outcome, took) = test_run(&tree, list, test, None)?;
                    if outcome != Outcome::Passed {
                        return Err(format!("{name}: {test}: {outcome} without a fault"));
                    }
                    say(format!(
                        "without a fault: {:.1} s: {test}",
                        took.as_secs_f64()
                    ));
                    // A busy machine must not look like a fault that hangs.
                    let limit = 10 * took + Duration::from_secs(60);
                    limits.insert(test, limit);
                    limit
                }
            };
            bar.set_message(format!("{name}: {fault}"));
            let began = Instant::now();
            let outcome = mutant.outcome(&tree, list, limit)?;
            let took = began.elapsed().as_secs_f64();
            say(format!("{number}: {outcome} in {took:.0} s: {fault}"));
            let complaint = mutant.complaint(&outcome);
            complaints.extend(complaint.map(|text| format!("{name} {number}: {fault}: {text}")));
            *match (outcome, complaint) {
                (Outcome::Passed, None) => &mut row.explained,
                (Outcome::Passed | Outcome::DidNotBuild, _) => &mut row.survived,
                (Outcome::Failed(_), _) => &mut row.killed,
                (Outcome::TookTooLong(_), _) => &mut row.by_limit,
            } += 1;
        } else {
            let needs = mutant.needs.as_deref().unwrap_or_default();
            say(format!("{number}: NOT TESTED: {fault}: needs {needs}"));
            row.not_tested += 1;
        }
        row.time = began.elapsed();
        bar.inc(1);
    }
    Ok(())
}

/// The result of a test program.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    /// The tests that failed.
    Failed(Vec<String>),
    /// The limit, which a fault that hangs reaches.
    TookTooLong(Duration),
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
            Outcome::TookTooLong(limit) => write!(f, "killed by the limit of {limit:.0?}"),
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
    fn outcome(&self, tree: &Path, list: &List, limit: Duration) -> Result<Outcome, String> {
        let file = tree.join(&self.file);
        let source = read(&file)?;
        write(&file, &self.apply(&source)?)?;
        let outcome = test_run(tree, list, &self.test, Some(limit));
        write(&file, &source)?;
        Ok(outcome?.0)
    }

    fn complaint(&self, outcome: &Outcome) -> Option<&'static str> {
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
    let listed = String::from_utf8_lossy(&listed.stdout);
    let names: BTreeSet<&str> = listed.lines().collect();
    // Cargo takes every file under `tests` for a test.
    remove_others(tree, tree, &names)?;
    for name in names {
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

/// Removes the files of a folder in the copy that have none of these names in it.
fn remove_others(tree: &Path, folder: &Path, names: &BTreeSet<&str>) -> Result<(), String> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(());
    };
    for entry in entries {
        let path = entry.map_err(|error| named(folder, error))?.path();
        let name = path.strip_prefix(tree).ok().and_then(Path::to_str);
        if path.is_dir() && !path.is_symlink() {
            remove_others(tree, &path, names)?;
        } else if name.is_none_or(|name| !names.contains(name)) {
            fs::remove_file(&path).map_err(|error| named(&path, error))?;
        }
    }
    Ok(())
}

/// Builds tests in the copy and runs them, at most for `limit`. Returns also how long they ran.
fn test_run(
    tree: &Path,
    list: &List,
    test: &str,
    limit: Option<Duration>,
) -> Result<(Outcome, Duration), String> {
    let cargo = |limit: Option<Duration>, more: &[&str]| -> Result<Output, String> {
        let (before, after) = test.split_once(" -- ").unwrap_or((test, ""));
        // 0 is no limit.
        let limit = limit.map_or(0, |limit| limit.as_secs()).to_string();
        Command::new("timeout")
            .args(["--kill-after=10", &limit, "cargo"])
            .args(list.config.iter().flat_map(|setting| ["--config", setting]))
            .args(["test", "--quiet", "--locked", "-p", &list.package])
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
    if !cargo(None, &["--no-run"])?.status.success() {
        return Ok((Outcome::DidNotBuild, Duration::ZERO));
    }
    let began = Instant::now();
    let output = cargo(limit, &[])?;
    let took = began.elapsed();
    if output.status.success() {
        return Ok((Outcome::Passed, took));
    }
    if let Some(limit) = limit.filter(|limit| took >= *limit) {
        return Ok((Outcome::TookTooLong(limit), took));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let failed = text
        .lines()
        .filter_map(|line| line.strip_prefix("---- ")?.strip_suffix(" stdout ----"));
    let failed = failed.map(str::to_owned).collect();
    Ok((Outcome::Failed(failed), took))
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
        check().unwrap();
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
