//! The part that the tests of the logs share.

use tare_import::{check, read, Finding, Input, Record, Statistic};

/// The path of a log of `tests/logs`.
pub(crate) fn path(name: &str) -> String {
    format!("{}/tests/logs/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// A log of `tests/logs`, imported.
pub(crate) fn log(name: &str) -> Input {
    let path = path(name);
    let file = std::fs::File::open(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let input = read(name, None, file).expect("a file that can be read");
    assert_eq!(input.refused, [], "{name}");
    input
}

/// The figures that sum up the runs of an input: `LINE NAME VALUE UNIT`.
pub(crate) fn figures(input: &Input) -> Vec<String> {
    let shown = |r: &Record| {
        let text = format!("{} {} {} {}", r.line, r.name(), r.value, r.unit);
        text.trim_end().to_owned()
    };
    let records = input.runs.iter().flat_map(|run| &run.records);
    let records = records.filter(|r| r.statistic != Statistic::Progress);
    records.map(shown).collect()
}

/// Returns what is wrong with one log.
pub(crate) fn findings(name: &str) -> Vec<Finding> {
    check(&[log(name)])
}

/// Asserts that there is a finding on that line whose text has all of `words`.
pub(crate) fn finds(findings: &[Finding], line: usize, words: &[&str]) {
    let found = |f: &&Finding| {
        let text = f.to_string();
        f.line == line && words.iter().all(|word| text.contains(word))
    };
    let all: Vec<String> = findings.iter().map(Finding::to_string).collect();
    assert!(
        findings.iter().any(|f| found(&f)),
        "line {line}: {words:?} not in\n{}",
        all.join("\n")
    );
}

/// Asserts that no finding has this text.
pub(crate) fn lacks(findings: &[Finding], word: &str) {
    let with: Vec<String> = findings
        .iter()
        .map(Finding::to_string)
        .filter(|f| f.contains(word))
        .collect();
    assert!(with.is_empty(), "{word}: {with:?}");
}
