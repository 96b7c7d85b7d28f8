//! No text makes the reader panic, and none is accepted with a part of it lost.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use tare_lab::file::{FileError, Size, MAX_CELLS, MAX_ERRORS};
use toml::de::DeTable;

use super::{read, right, BASE};

const KINDS: &str = include_str!("kinds.toml");

/// Words that mean something in some place, and some that mean trouble.
const WORDS: &[&str] = &[
    "cpus",
    "2 x cpus",
    "9999 x cpus",
    "0",
    "-1",
    "1.5",
    "nan",
    "inf",
    "9223372036854775807",
    "1e308",
    "true",
    "[]",
    "{}",
    "[[]]",
    "{ a = 1 }",
    "\"\"",
    "\"765 Hz\"",
    "\"16 B\"",
    "\"read\"",
    "\"cpus\"",
    "2026-01-01",
    "from",
    "to",
    "step",
    "times",
    "log",
    "values",
    "between",
    "at_least",
    "ratio",
    "flat",
    "scales",
    "order",
    "value",
    "zero",
    "beside",
    "of",
    "within",
    "over",
    "[[experiment]]",
    "[[experiment.claim]]",
    "[experiment.quick]",
    "\"é\u{202e}\"",
    "\0",
    "\n",
    "=",
    ",",
    "\"",
    "'''",
    "[",
    "]",
    "{",
    "}",
    ".",
    "#",
];

#[derive(Clone, Debug)]
enum Mutation {
    Remove,
    Double,
    Put(&'static str),
    Swap,
    Number(i64),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    prop_oneof![
        Just(Mutation::Remove),
        Just(Mutation::Double),
        Just(Mutation::Swap),
        proptest::sample::select(WORDS).prop_map(Mutation::Put),
        any::<i64>().prop_map(Mutation::Number),
        (0i64..20_000).prop_map(Mutation::Number),
    ]
}

/// Cuts a document into words, gaps and signs; joined, they are the document.
fn tokens(text: &str) -> Vec<String> {
    let kind = |c: char| match c {
        c if c.is_alphanumeric() || matches!(c, '_' | '-') => 0,
        '\n' => 1,
        c if c.is_whitespace() => 2,
        _ => 3,
    };
    let mut tokens: Vec<String> = Vec::new();
    let mut last = None;
    for c in text.chars() {
        match tokens.last_mut() {
            Some(token) if last == Some(kind(c)) && kind(c) != 3 => token.push(c),
            _ => tokens.push(c.to_string()),
        }
        last = Some(kind(c));
    }
    tokens
}

fn mutate(text: &str, mutations: &[(prop::sample::Index, Mutation)]) -> String {
    let mut tokens = tokens(text);
    for (place, mutation) in mutations {
        let i = place.index(tokens.len());
        match mutation {
            Mutation::Remove => tokens[i].clear(),
            Mutation::Double => tokens[i] = tokens[i].repeat(2),
            Mutation::Put(word) => tokens[i] = (*word).to_owned(),
            Mutation::Swap => tokens.swap(i, 0),
            Mutation::Number(n) => tokens[i] = n.to_string(),
        }
    }
    tokens.concat()
}

/// Returns the numbers of experiments, claims, published values and metrics of a document, as TOML
/// reads it.
fn parts(text: &str) -> [usize; 4] {
    let document = DeTable::parse(text).unwrap();
    let list = |table: &DeTable<'_>, key: &str| -> usize {
        table
            .get(key)
            .map_or(0, |value| match value.get_ref().as_array() {
                Some(list) => list.len(),
                None => 1,
            })
    };
    let mut parts = [0; 4];
    for experiment in document.get_ref()["experiment"]
        .get_ref()
        .as_array()
        .unwrap()
        .iter()
    {
        let table = experiment.get_ref().as_table().unwrap();
        parts[0] += 1;
        parts[1] += list(table, "claim") + list(table, "target");
        parts[2] += list(table, "published");
        parts[3] += list(table, "metric") + list(table, "metrics");
    }
    parts
}

fn check(text: &str, cpus: usize, size: Size) {
    match read(text, cpus, size) {
        Ok(experiments) => {
            let sum = |count: fn(&tare_lab::experiment::Experiment) -> usize| -> usize {
                experiments.iter().map(count).sum()
            };
            let read = [
                experiments.len(),
                sum(|e| e.claims.len()),
                sum(|e| e.published.len()),
                sum(|e| e.metrics.len()),
            ];
            assert_eq!(read, parts(text), "{text}");
            for experiment in experiments {
                let cells = experiment.points().len();
                assert!((1..=MAX_CELLS + 64).contains(&cells), "{cells} cells");
                assert!(experiment.axes.iter().all(|axis| !axis.values.is_empty()));
            }
        }
        Err(errors) => {
            assert!((1..=MAX_ERRORS).contains(&errors.len()));
            let lines = text.split('\n').count();
            for error in &errors {
                assert!((1..=lines).contains(&error.line), "{error}");
                assert!(error.column >= 1 && !error.found.is_empty(), "{error}");
                let shown = FileError::to_string(error);
                assert!(!shown.chars().any(char::is_control), "{shown:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_mutated_document_is_read_whole_or_refused(
        base in proptest::sample::select(&[BASE, KINDS][..]),
        mutations in prop::collection::vec((any::<prop::sample::Index>(), mutation()), 0..4),
        cpus in 0usize..10,
        size in proptest::sample::select(&Size::ALL[..]),
    ) {
        check(&mutate(base, &mutations), cpus, size);
    }

    #[test]
    fn any_text_at_all_is_read_or_refused(text in "\\PC{0,80}") {
        check(&text, 2, Size::Quick);
        check(&format!("{BASE}{text}"), 2, Size::Quick);
    }
}

#[test]
fn the_documents_that_are_mutated_are_right() {
    for size in Size::ALL {
        for cpus in [1, 2, 64] {
            assert_eq!(right(BASE, cpus, size).len(), 1);
            assert_eq!(right(KINDS, cpus, size).len(), 2);
        }
    }
}

#[test]
fn deep_and_long_documents_are_refused_without_harm() {
    let long = format!("[[experiment]]\nid = \"{}\"", "x".repeat(500_000));
    for text in [
        format!("a = {}", "[".repeat(100_000)),
        format!("[{}a]", "a.".repeat(300_000)),
        format!("a = {}", "{ a = ".repeat(100_000)),
        "x = 1\n".repeat(150_000),
        (0..60_000).map(|n| format!("k{n} = 1\n")).collect(),
        long,
    ] {
        check(&text, 2, Size::Quick);
    }
}

#[test]
fn the_longest_axes_are_read_or_refused_in_a_moment() {
    let began = Instant::now();
    let axis = |from: usize| format!("{{ from = {from}, to = {} }}", from + 9_998);
    let list = "[1, 8, 100, 400, 700, 1000]";
    let long = BASE
        .replace("[\"read\", \"write\"]", "[\"read\"]")
        .replace("op = \"write\"", "op = \"read\"")
        .replace(list, &axis(1));
    let (head, claim) = long.split_once("\n[[experiment.claim]]").unwrap();
    // The axis has other values at the other size, and many selectors name them.
    let exclude: Vec<String> = (2..200).map(|n| format!("{{ sessions = {n} }}")).collect();
    let text = format!(
        "{head}\nexclude = [{}]\nfull = {{ matrix = {{ sessions = {} }} }}",
        exclude.join(", "),
        axis(2)
    );
    assert_eq!(right(&text, 2, Size::Quick)[0].points().len(), 9_802);
    check(
        &format!("{text}\n[[experiment.claim]]{claim}"),
        2,
        Size::Quick,
    );
    let quantities: Vec<String> = (0..1000).map(|n| format!("\"{n} B\"")).collect();
    let text = BASE
        .replace(", size = \"16 B\"", "")
        .replace(
            list,
            &format!("[1, 1000], size = [{}]", quantities.join(", ")),
        )
        .replace("published", "# ");
    assert_eq!(right(&text, 2, Size::Quick)[0].points().len(), 4_001);
    for axes in [8, 2_000] {
        let axes: Vec<String> = (0..axes).map(|n| format!("a{n} = {}", axis(1))).collect();
        let text = format!(
            "[[experiment]]\nid = \"a/b\"\ndriver = \"program\"\nmatrix = {{ {} }}\n",
            axes.join(", ")
        );
        check(&text, 2, Size::Quick);
    }
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
}
