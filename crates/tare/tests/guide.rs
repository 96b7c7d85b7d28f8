//! The guide in `docs/`: its examples run with the verdicts that it prints, its reference has every
//! key, unit and driver, and its links lead to pages.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");

/// A copy of `docs/examples`, as the guide asks for one.
fn examples() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(Path::new(DOCS).join("examples")).unwrap() {
        let file = entry.unwrap();
        fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    folder
}

fn examples_with_log() -> Option<tempfile::TempDir> {
    if !(has("awk", &["BEGIN{}"]) && has("gzip", &["--version"])) {
        return None;
    }
    let folder = examples();
    let made = Command::new("sh")
        .arg("make-log.sh")
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", text(&made.stderr));
    Some(folder)
}

/// Returns true if a program that an example needs is installed. Prints a notice if it is not, and
/// fails under CI.
fn has(program: &str, arguments: &[&str]) -> bool {
    let runs = Command::new(program).args(arguments).output();
    if runs.is_ok_and(|output| output.status.success()) {
        return true;
    }
    let said = format!("NOT TESTED: the guide's examples need {program}, which does not run");
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{said}");
    // Past the capture of the test runner: what is not tested must be seen.
    let _ = writeln!(io::stderr(), "{said}");
    false
}

fn tare(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tare"))
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap()
}

fn run(folder: &Path, file: &str, rounds: &str) -> Value {
    let run = ["run", file, "--rounds", rounds, "--seed", "1", "--json"];
    let done = tare(folder, &run);
    serde_json::from_slice(&done.stdout)
        .unwrap_or_else(|error| panic!("{file}: {error}: {}", text(&done.stderr)))
}

fn claim<'a>(result: &'a Value, id: &str) -> &'a Value {
    result["experiments"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|experiment| experiment["claims"].as_array().unwrap())
        .find(|claim| claim["id"] == id)
        .unwrap_or_else(|| panic!("no claim {id}"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn page(name: &str) -> String {
    let path = Path::new(DOCS).join("src").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn reading_a_packed_log_costs_what_the_guide_says() {
    let Some(folder) = examples_with_log() else {
        return;
    };
    // On a busy machine 20 rounds may decide nothing.
    let mut result = run(folder.path(), "gzip.toml", "20");
    if claim(&result, "gzip/read/unpacking-costs")["verdict"] == "inconclusive" {
        result = run(folder.path(), "gzip.toml", "100");
    }
    let costs = claim(&result, "gzip/read/unpacking-costs");
    let is_right = ["reproduced", "inconclusive"].contains(&costs["verdict"].as_str().unwrap());
    assert!(
        is_right && costs["measured"].as_f64() > Some(1.0),
        "{costs}"
    );
    for cell in result["experiments"][0]["cells"].as_array().unwrap() {
        assert_eq!(cell["work_per_operation"], 16_000_000.0, "{cell}");
    }
}

#[test]
fn packing_at_two_levels_is_refused_as_unequal_work() {
    let Some(folder) = examples_with_log() else {
        return;
    };
    let result = run(folder.path(), "gzip-unequal.toml", "2");
    let refused = claim(&result, "gzip/pack/fast-is-faster");
    assert_eq!(refused["verdict"], "not-testable", "{refused}");
    assert_eq!(refused["measured"], Value::Null, "no ratio: {refused}");
    let reason = refused["reason"].as_str().unwrap();
    let words = "not the same work: level=1 did ";
    assert!(reason.starts_with(words), "{reason}");
    assert!(
        page("own-experiment.md").contains(words),
        "the guide shows it"
    );
}

#[test]
fn a_python_program_that_speaks_the_protocol_is_a_driver() {
    if !has("python3", &["-c", "import zlib"]) {
        return;
    }
    let Some(folder) = examples_with_log() else {
        return;
    };
    let result = run(folder.path(), "zlib.toml", "20");
    for id in ["better-half", "what-goes-in-comes-out"] {
        let judged = claim(&result, &format!("zlib/levels/{id}"));
        assert_eq!(judged["verdict"], "reproduced", "{judged}");
    }
    // With trials of 0.1 s a claim about speed may stay inconclusive on a busy machine.
    let judged = claim(&result, "zlib/levels/level-1-is-faster");
    let is_right = ["reproduced", "inconclusive"].contains(&judged["verdict"].as_str().unwrap());
    assert!(
        is_right && judged["measured"].as_f64() > Some(1.0),
        "{judged}"
    );
}

#[test]
fn what_a_program_lacks_is_not_testable_with_the_remedy() {
    if !has("python3", &["-c", "import zlib"]) {
        return;
    }
    let folder = examples();
    let result = run(folder.path(), "zlib.toml", "20");
    let judged = claim(&result, "zlib/levels/level-1-is-faster");
    assert_eq!(judged["verdict"], "not-testable", "{judged}");
    assert_eq!(
        judged["reason"],
        "there is no file log.plain; sh make-log.sh"
    );
}

#[test]
fn every_kind_of_claim_in_the_reference_is_reproduced() {
    let folder = examples();
    let result = run(folder.path(), "claims.toml", "20");
    let claims: Vec<&Value> = result["experiments"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|experiment| experiment["claims"].as_array().unwrap())
        .collect();
    assert_eq!(claims.len(), 6, "one of each kind");
    for claim in claims {
        assert_eq!(claim["verdict"], "reproduced", "{claim}");
    }
}

/// The driver `command` takes any metric, so the answer to this lists all units.
const ANY_UNIT: &str = r#"
[[experiment]]
id = "a/b"
title = "t"
source = "s"
driver = "command"
fixed = { command = "true", protocol = true }
metric = { name = "mine", unit = "qqq", better = "lower" }
"#;

/// The names that an error lists as known, for a file with another name in that place.
fn words_known(file: &str) -> BTreeSet<String> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("wrong.toml"), file).unwrap();
    let said = text(&tare(folder.path(), &["show", "wrong.toml"]).stderr);
    let listed = said
        .lines()
        .find_map(|line| line.split_once("expected one of "))
        .unwrap_or_else(|| panic!("no list of words: {said}"))
        .1;
    let listed = listed.split("; did you mean").next().unwrap();
    listed
        .split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_reference_names_every_key_kind_unit_and_driver() {
    let good = fs::read_to_string(Path::new(DOCS).join("examples/claims.toml")).unwrap();
    let (experiment, _) = good.split_once("\n[[experiment.claim]]").unwrap();
    let reference = page("experiment-file.md");
    let wrong = |from: &str, to: &str| {
        let changed = experiment.replacen(from, to, 1);
        assert_ne!(changed, experiment, "{from} stands in claims.toml");
        words_known(&changed)
    };
    let metric = r#"metric   = { name = "time", unit = "ms","#;
    let cases = [
        ("keys of an experiment", wrong("\ntitle ", "\nqqq ")),
        (
            "drivers",
            wrong("driver   = \"synthetic\"", "driver = \"qqq\""),
        ),
        (
            "keys of a metric",
            wrong(metric, &format!("{metric} qqq = 1,")),
        ),
        (
            "statistics",
            wrong(metric, &format!("{metric} statistic = \"qqq\",")),
        ),
        (
            "statistics across trials",
            wrong(metric, &format!("{metric} across = \"qqq\",")),
        ),
        (
            "metrics of every program",
            wrong(metric, r#"metric   = { name = "qqq", unit = "ms","#),
        ),
        ("units", words_known(ANY_UNIT)),
        (
            "keys of a claim",
            words_known(&format!(
                "{experiment}\n[[experiment.claim]]\nid = \"a\"\ntext = \"a\"\nqqq = 1\n"
            )),
        ),
    ];
    for (what, words) in cases {
        assert!(words.len() >= 4, "{what}: {words:?}");
        for word in words {
            assert!(
                reference.contains(&format!("`{word}`"))
                    || reference.contains(&format!("`\"{word}\"`")),
                "experiment-file.md does not name {word:?}, one of the {what}"
            );
        }
    }
}

#[test]
fn the_table_of_drivers_has_every_parameter_metric_and_counter_of_each() {
    let folder = tempfile::tempdir().unwrap();
    let explained = tare(folder.path(), &["explain", "--json"]);
    let drivers: Value = serde_json::from_slice(&explained.stdout).unwrap();
    let page = page("experiment-file.md");
    for driver in drivers.as_array().unwrap() {
        let name = driver["name"].as_str().unwrap();
        let row = page
            .lines()
            .find(|line| line.starts_with(&format!("| `{name}`:")))
            .unwrap_or_else(|| panic!("no row of {name}"));
        for kind in ["parameters", "metrics", "counters"] {
            for one in driver[kind].as_array().unwrap() {
                let word = one["name"].as_str().unwrap();
                assert!(row.contains(&format!("`{word}`")), "{name}: {kind}: {word}");
            }
        }
    }
}

/// The Markdown files under `docs/src`.
fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

#[test]
fn every_page_is_in_the_summary_and_every_include_and_anchor_is_there() {
    let root = Path::new(DOCS).join("src");
    let mut all = Vec::new();
    pages(&root, &mut all);
    let summary = page("SUMMARY.md");
    for path in &all {
        let name = path.strip_prefix(&root).unwrap().to_str().unwrap();
        assert!(
            name == "SUMMARY.md" || summary.contains(&format!("({name})")),
            "SUMMARY.md does not list {name}"
        );
        let body = fs::read_to_string(path).unwrap();
        let here = path.parent().unwrap();
        for part in body.split("{{#include ").skip(1) {
            let target = part.split("}}").next().unwrap();
            assert!(here.join(target).is_file(), "{name} includes {target}");
        }
        for part in body.split("](").skip(1) {
            let link = part.split(')').next().unwrap();
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            if file.contains("://") {
                continue;
            }
            let target = if file.is_empty() {
                path.clone()
            } else {
                here.join(file)
            };
            assert!(target.is_file(), "{name} links {link}");
            let there = fs::read_to_string(&target).unwrap_or_default();
            let has_anchor = there
                .lines()
                .filter(|line| line.starts_with('#'))
                .any(|line| slug(line) == anchor);
            assert!(anchor.is_empty() || has_anchor, "{name} links {link}");
        }
    }
}

/// A heading's anchor, as mdBook makes it.
fn slug(heading: &str) -> String {
    heading
        .trim_start_matches('#')
        .trim()
        .to_lowercase()
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            _ => None,
        })
        .collect()
}

#[test]
fn the_c_example_compiles_against_the_header() {
    if !has("gcc", &["--version"]) {
        return;
    }
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../rdrand/capi/include");
    let compiled = Command::new("gcc")
        .args([
            "-std=c99",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fsyntax-only",
            "-I",
            include,
        ])
        .arg(Path::new(DOCS).join("examples/nonce.c"))
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", text(&compiled.stderr));
}

/// The Python example of remote memory, with a library that records what is called.
const RECORDER: &str = r#"
import ctypes

class Function:
    def __init__(self, name, calls):
        self.name, self.calls = name, calls
    def __call__(self, *arguments):
        self.calls.append(self.name)
        return 0

class Library:
    def __init__(self, path):
        self.calls = []
    def __getattr__(self, name):
        function = Function(name, self.calls)
        setattr(self, name, function)
        return function

ctypes.CDLL = Library
"#;

#[test]
fn the_python_example_has_its_imports() {
    if !has("python3", &["--version"]) {
        return;
    }
    let guide = page("memory.md");
    let block = guide.split("```python\n").nth(1).expect("an example");
    let code = block.split("```").next().unwrap();
    let program = format!("{RECORDER}{code}\nprint(*library.calls)\n");
    let mut command = Command::new("python3");
    let done = command.args(["-c", &program]).output().unwrap();
    assert!(done.status.success(), "{}", text(&done.stderr));
    let calls = "tfm_connect tfm_open tfm_alloc\n";
    assert_eq!(text(&done.stdout), calls);
}

#[test]
fn the_futures_of_a_session_are_those_that_the_guide_names() {
    let source = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../farmem/src/session/asynchronous.rs"
    );
    let source = fs::read_to_string(source).unwrap();
    let starts = source.split("pub async fn ").skip(1);
    let names: BTreeSet<_> = starts.filter_map(|rest| rest.split('(').next()).collect();
    let guide = page("memory.md");
    let from = guide.find("`AsyncSession` has").expect("a sentence");
    let sentence = guide[from..].split("\n\n").next().unwrap();
    let sentence = sentence.split("which takes").next().unwrap();
    let named: BTreeSet<_> = sentence.split('`').skip(3).step_by(2).collect();
    assert_eq!(named, names);
}
