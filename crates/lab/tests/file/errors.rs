//! The errors of wrong files: the exact messages are in `errors.txt`.

use std::fmt::Write as _;

use tare_lab::file::{FileError, Size, MAX_ERRORS, MAX_FILE_BYTES};

use super::{read, right, BASE};

const CASES: &str = include_str!("errors.txt");

/// `BASE` with `text` in place of its line `line`.
fn with_line(line: usize, text: &str) -> String {
    let mut lines: Vec<&str> = BASE.lines().collect();
    lines[line - 1] = text;
    lines.join("\n") + "\n"
}

#[test]
fn every_error_names_its_place_what_was_found_and_what_was_expected() {
    let mut now = String::new();
    for block in CASES.split("\n\n") {
        let case = block.lines().next().and_then(|head| {
            let (line, text) = head.split_once(" > ")?;
            Some((line.parse().ok()?, text.replace(" ⏎ ", "\n")))
        });
        let Some((line, text)) = case else {
            writeln!(now, "{}\n", block.trim_end()).unwrap();
            continue;
        };
        let text = with_line(line, &text);
        writeln!(now, "{}", block.lines().next().unwrap()).unwrap();
        for error in read(&text, 2, Size::Quick).expect_err(&text) {
            writeln!(now, "{error}").unwrap();
        }
        now.push('\n');
    }
    for (now, expected) in now.trim_end().lines().zip(CASES.lines()) {
        assert_eq!(now, expected);
    }
    assert_eq!(now.trim_end(), CASES.trim_end());
    assert!(CASES.matches(" > ").count() > 100);
}

#[test]
fn an_error_has_its_column_and_its_parts() {
    let text = with_line(
        9,
        r#"metric = { name = "latency", unit = "ns", better = "hihger" }"#,
    );
    let errors = read(&text, 2, Size::Quick).unwrap_err();
    let expected = FileError {
        file: "test.toml".into(),
        line: 9,
        column: 52,
        key: "experiment[0].metric.better".into(),
        found: "\"hihger\"".into(),
        expected: "\"higher\" or \"lower\"".into(),
        suggestion: Some("\"higher\"".into()),
    };
    assert_eq!(errors, [expected]);
}

#[test]
fn all_errors_come_at_once_in_file_order_up_to_a_limit() {
    let mut text = with_line(3, "titel = \"x\"").replace("\"lower\"", "\"down\"");
    text += "\n[[experiment]]\nid = \"clio/other\"\n";
    let errors = read(&text, 2, Size::Quick).unwrap_err();
    let keys: Vec<&str> = errors.iter().map(|error| error.key.as_str()).collect();
    let expected = [
        "experiment[0].titel",
        "experiment[0].metric.better",
        "experiment[1].title",
        "experiment[1].source",
        "experiment[1].driver",
        "experiment[1].metric",
    ];
    assert_eq!(keys, expected);

    for n in 0..10 * MAX_ERRORS {
        writeln!(text, "key{n} = {n}").unwrap();
    }
    assert_eq!(read(&text, 2, Size::Quick).unwrap_err().len(), MAX_ERRORS);
}

#[test]
fn an_id_is_given_once_in_a_file() {
    let errors = read(&[BASE, BASE].join("\n"), 2, Size::Quick).unwrap_err();
    assert_eq!(
        errors[0].to_string(),
        "test.toml:19: experiment[1].id: found a second \"clio/processes\", expected a unique id"
    );
    assert_eq!(errors.len(), 1);
}

#[test]
fn a_file_is_bounded_and_not_empty() {
    let mut text = BASE.to_owned();
    text += &"#".repeat(MAX_FILE_BYTES - text.len());
    assert_eq!(right(&text, 2, Size::Quick).len(), 1);
    text += "#";
    for (text, expected) in [
        (
            text.as_str(),
            "test.toml:1: found a file of 1048577 bytes, expected at most 1048576 bytes",
        ),
        (
            "",
            "test.toml:1: experiment: found nothing, expected at least one [[experiment]]",
        ),
        (
            "experiment = []",
            "test.toml:1: experiment: found a list of 0, expected 1 to 100 [[experiment]] tables",
        ),
        (
            "experiment = [1]",
            "test.toml:1: experiment[0]: found 1, expected a table",
        ),
        (
            "[[experimnet]]",
            "test.toml:1: experimnet: found unknown key \"experimnet\", expected \"experiment\"; \
             did you mean \"experiment\"?",
        ),
    ] {
        let errors = read(text, 2, Size::Quick).unwrap_err();
        assert_eq!(errors[0].to_string(), expected);
        assert_eq!(errors.len(), 1);
    }
}

#[test]
fn cells_of_one_name_are_refused_unless_one_of_them_is_excluded() {
    let program = BASE
        .replace("\"farmem\"", "\"program\"")
        .replace("beside ", "# ")
        .replace("published", "# ")
        .replace(
            "[1, 8, 100, 400, 700, 1000]",
            "[1, \"1 x=2\"], x = [2, \"2 x=2\"]",
        );
    let errors = read(&program, 2, Size::Quick).unwrap_err();
    assert_eq!(
        errors[0].to_string(),
        "test.toml:7: experiment[0].matrix: found two cells of the same name, \
         { op = \"read\", sessions = 1, x = \"2 x=2\" } and \
         { op = \"read\", sessions = \"1 x=2\", x = 2 }, \
         expected cells that differ in \"axis=value axis=value …\""
    );
    assert_eq!(errors.len(), 1);
    let excluded = program.replace(
        "metric ",
        "exclude = [ { sessions = \"1 x=2\", x = 2 } ]\nmetric ",
    );
    assert_eq!(right(&excluded, 2, Size::Quick)[0].points().len(), 6);
}

#[test]
fn a_flat_axis_has_a_hundred_values_on_one_line_at_most() {
    let flat = |values: usize| {
        let axis = format!("{{ from = 1, to = {values} }}");
        let text = BASE.replace("[1, 8, 100, 400, 700, 1000]", &axis);
        let text = text.replace("at_most", "within = { op = \"read\" }, at_most");
        read(&text, 2, Size::Quick).map_err(|errors| errors[0].to_string())
    };
    assert!(flat(100).is_ok());
    assert_eq!(
        flat(101).unwrap_err(),
        "test.toml:15: experiment[0].claim[0].flat.over: found 10100 comparisons on lines of 101 \
         values, expected at most 10000: n (n - 1) on each line of n values along \"sessions\""
    );
}

#[test]
fn what_is_wrong_at_the_other_size_is_wrong_too() {
    let text = with_line(
        11,
        "[experiment.full]\nmatrix = { sessions = [1, 1000, 0] }",
    );
    for size in Size::ALL {
        let errors = read(&text, 2, size).unwrap_err();
        assert_eq!(
            errors[0].to_string(),
            "test.toml:12: experiment[0].full.matrix.sessions[2]: found 0, expected a whole number \
             from 1 to 100000"
        );
    }
}
