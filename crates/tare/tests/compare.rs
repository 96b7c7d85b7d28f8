//! `tare compare` and `tare diff`, as people use them.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output};

fn tare(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tare"))
        .args(arguments)
        .current_dir(directory)
        .output()
        .expect("tare runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_program_that_needs_three_times_as_long_is_found_and_the_comparison_can_be_kept() {
    let compare = |budget: &'static str| {
        let directory = tempfile::tempdir().unwrap();
        let words = [
            "compare",
            "sleep 0.1",
            "sleep 0.3",
            "--json",
            "--save",
            "my kept.toml",
            "--out",
            "one",
            "--budget",
            budget,
        ];
        let ran = tare(directory.path(), &words);
        assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
        let result: serde_json::Value = serde_json::from_slice(&ran.stdout).expect("JSON");
        (directory, budget, text(&ran.stderr), result)
    };
    // On a busy machine a short time may decide nothing.
    let mut compared = compare("40 s");
    if compared.3["comparisons"][0]["difference"] != "more" {
        compared = compare("10 min");
    }
    let (directory, budget, said, result) = compared;
    let repeat = format!("to repeat: tare run 'my kept.toml' --budget \"{budget}\"\n");
    assert!(said.contains(&repeat), "{said}");
    let time = &result["comparisons"][0];
    assert_eq!(time["metric"], "time");
    assert_eq!(time["difference"], "more", "{time}");
    assert_eq!(time["judged"]["verdict"], "missed");
    // No publication has claimed it.
    let kept = &result["run"]["experiments"][0];
    assert_eq!(kept["claims"], serde_json::json!([]));
    assert_eq!(kept["targets"].as_array().map(Vec::len), Some(2));
    let page = std::fs::read_to_string(directory.path().join("one/report.html")).unwrap();
    assert!(page.contains("<h2>Targets") && !page.contains("<h2>Published claims"));
    // On a busy machine the start of each process takes a part of its time.
    let ratio = time["judged"]["measured"].as_f64().unwrap();
    assert!((1.1..4.0).contains(&ratio), "{ratio}");
    assert!(directory.path().join("one/report.html").exists());

    let again = tare(
        directory.path(),
        &["run", "my kept.toml", "--rounds", "2", "--out", "two"],
    );
    assert_eq!(again.status.code(), Some(0), "{}", text(&again.stderr));

    let changes = tare(directory.path(), &["diff", "one", "two", "--all"]);
    assert_eq!(changes.status.code(), Some(0), "{}", text(&changes.stderr));
    let shown = text(&changes.stdout);
    assert!(shown.contains("before: one\nafter:  two"), "{shown}");
    // Two rounds decide nothing.
    assert!(
        shown.contains("compare/commands/2-time: missed → inconclusive"),
        "{shown}"
    );
    assert!(shown.contains("command=sleep 0.3 time: "), "{shown}");
    let same = tare(directory.path(), &["diff", "one", "one"]);
    assert!(text(&same.stdout).contains("Verdicts: 0 changed of 2"));
    let json = tare(directory.path(), &["diff", "one", "two", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(json["cells"].as_array().map(Vec::len), Some(4));
}

#[test]
fn a_program_that_fails_or_is_missing_gets_no_verdict() {
    let directory = tempfile::tempdir().unwrap();
    let failing = [
        "compare",
        "true",
        "sh -c 'echo broken >&2; exit 3'",
        "--rounds",
        "10",
    ];
    let ran = tare(directory.path(), &failing);
    let shown = text(&ran.stdout);
    assert_eq!(ran.status.code(), Some(2), "{}", text(&ran.stderr));
    assert!(!shown.contains("needs"), "{shown}");
    let expected = "\nWall time: not compared: every trial of command 2 failed\n   10 of 10 trials";
    assert!(shown.contains(expected), "{shown}");
    assert!(!shown.contains("no difference"), "{shown}");
    assert!(
        shown.contains("exited with status 3") && shown.contains("broken"),
        "{shown}"
    );

    // A brace of a command is shown as it was given, in progress, reasons and failures too.
    for shell in [&[][..], &["--shell"]] {
        let braces = ["compare", "sh -c 'exit {1}'", "true", "--rounds", "1"];
        let ran = tare(directory.path(), &[&braces, shell].concat());
        let shown = text(&ran.stdout);
        assert_eq!(ran.status.code(), Some(2), "{}", text(&ran.stderr));
        assert!(
            shown.contains("1 of 1 trials of command=sh -c 'exit {1}' failed: "),
            "{shown}"
        );
        assert!(!shown.contains("{{"), "{shown}");
        let progress = text(&ran.stderr);
        let failed = "trial failed: compare/commands command=sh -c 'exit {1}': ";
        assert!(progress.contains(failed), "{progress}");
        assert!(!progress.contains("{{"), "{progress}");
    }

    let missing = tare(directory.path(), &["compare", "true", "no-such-program"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).contains("there is no program \"no-such-program\" here"));
    let one = tare(directory.path(), &["compare", "true"]);
    assert_eq!(one.status.code(), Some(2));
}

#[test]
fn a_command_whose_first_ten_trials_fail_ends_the_comparison_which_then_has_no_result() {
    let directory = tempfile::tempdir().unwrap();
    for (commands, words, rounds, last) in [
        // The first one runs twice in a round.
        (
            ["false", "true"],
            "every trial of command 1 failed",
            5,
            "the first 10 trials of command 1 all failed.\n",
        ),
        (
            ["false", "sh -c 'exit 1'"],
            "every trial of commands 1 and 2 failed",
            5,
            "the first 10 trials of command 1 all failed.\n",
        ),
        (
            ["true", "false"],
            "every trial of command 2 failed",
            10,
            "the first 10 trials of command 2 all failed.\n",
        ),
    ] {
        let words_of = |more: &[&'static str]| [&["compare"], &commands[..], more].concat();
        let ran = tare(directory.path(), &words_of(&["--budget", "60 s"]));
        let shown = text(&ran.stdout);
        assert_eq!(ran.status.code(), Some(2), "{}", text(&ran.stderr));
        for metric in ["Wall time", "Processor time"] {
            assert!(
                shown.contains(&format!("\n{metric}: not compared: {words}\n")),
                "{shown}"
            );
        }
        assert!(
            !shown.contains("budget") && !shown.contains("no ratio"),
            "{shown}"
        );
        let last = format!("\nThe comparison ended early: {last}");
        assert!(shown.ends_with(&last), "{shown}");

        let ran = tare(directory.path(), &words_of(&["--json", "--rounds", "40"]));
        assert_eq!(ran.status.code(), Some(2), "{}", text(&ran.stderr));
        let result: serde_json::Value = serde_json::from_slice(&ran.stdout).expect("JSON");
        assert_eq!(result["run"]["rounds"], rounds, "{commands:?}");
        for comparison in result["comparisons"].as_array().unwrap() {
            assert_eq!(comparison["difference"], "not-compared");
        }
    }
    // One success is enough to go on.
    let words = ["compare", "true", "mkdir once", "--rounds", "12", "--json"];
    let ran = tare(directory.path(), &words);
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    let result: serde_json::Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    assert_eq!(result["run"]["rounds"], 12);
}

#[test]
fn a_comparison_whose_budget_is_used_up_says_so_and_needs_no_temporary_directory_with_out() {
    let directory = tempfile::tempdir().unwrap();
    let compare = |more: &[&str]| {
        let words = ["compare", "sleep 0.3", "sleep 0.31"];
        Command::new(env!("CARGO_BIN_EXE_tare"))
            .args([&words, more].concat())
            .current_dir(directory.path())
            .env("TMPDIR", directory.path().join("nowhere"))
            .output()
            .expect("tare runs")
    };
    let refused = compare(&[]);
    assert_eq!(refused.status.code(), Some(2));
    let said = text(&refused.stderr);
    assert!(
        said.contains("nowhere") && said.contains("--out DIR"),
        "{said}"
    );

    let ran = compare(&["--budget", "0.5 s", "--out", "kept", "--save", "kept.toml"]);
    let (said, shown) = (text(&ran.stderr), text(&ran.stdout));
    assert_eq!(ran.status.code(), Some(0), "{said}");
    assert!(said.contains(", at most 0.5 s\n"), "{said}");
    assert!(
        shown.contains("1 round is too few for an interval"),
        "{shown}"
    );
    assert!(
        shown.ends_with("\nThe budget of 0.5 s was used up; --budget TIME gives more.\n"),
        "{shown}"
    );

    let ran = compare(&["--rounds", "2", "--out", "two", "--save", "two.toml"]);
    let (said, shown) = (text(&ran.stderr), text(&ran.stdout));
    assert!(
        said.contains("to repeat: tare run two.toml --rounds 2\n"),
        "{said}"
    );
    assert!(!shown.contains("budget"), "{shown}");
}

/// Returns the lines that a command prints in a terminal of so many columns; `None` if it cannot be
/// tested here.
fn in_terminal(directory: &Path, columns: usize, command: &str) -> Option<Vec<String>> {
    let script = format!("stty cols {columns} rows 24; \"$TARE\" {command} 2> errors");
    let ran = Command::new("script")
        .args(["--quiet", "--return", "--command", &script, "/dev/null"])
        .env("TARE", env!("CARGO_BIN_EXE_tare"))
        .env("SHELL", "/bin/sh")
        .current_dir(directory)
        .stdin(std::process::Stdio::null())
        .output();
    let Ok(ran) = ran else {
        let notice = "NOT TESTED: the width of output in a terminal, which needs `script`";
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{notice}");
        // Past the capture of the test runner: what is not tested must be seen.
        let _ = writeln!(std::io::stderr(), "{notice}");
        return None;
    };
    let lines: Vec<String> = text(&ran.stdout).lines().map(str::to_owned).collect();
    assert!(lines.len() > 5, "{lines:?} {}", text(&ran.stderr));
    for line in &lines {
        let width = line.trim_end_matches('\r').chars().count();
        assert!(width <= columns, "{columns}, {width}: {lines:#?}");
    }
    Some(lines)
}

#[test]
fn comparisons_and_tests_of_numbers_fit_the_terminal() {
    let directory = tempfile::tempdir().unwrap();
    for columns in [60, 80] {
        for command in [
            "compare 'sleep 0' 'sleep 0.001' 'sh -c \"echo a word and another; exit 1\"' --rounds 3",
            "rng bench -m getrandom_syscall -d 0.01 -r 1 -t 1 -c 64",
            "rng test --generator counter -n 1Mi --external none",
        ] {
            let is_testable = !command.contains("bench") || has_rdrand();
            if is_testable && in_terminal(directory.path(), columns, command).is_none() {
                return;
            }
        }
    }
}

/// Returns true if the processor has the instruction, with whose bare loop `rng bench` compares.
fn has_rdrand() -> bool {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    let has = std::arch::is_x86_feature_detected!("rdrand");
    #[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
    let has = false;
    if !has {
        eprintln!("NOT TESTED: the width of rng bench: the processor lacks RDRAND");
    }
    has
}

#[test]
fn a_saved_comparison_that_was_edited_is_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let saved = directory.path().join("mine.toml");
    let compare = |limit: &str| {
        let words = ["compare", "true", "sleep 0", "--rounds", "1", "--limit"];
        tare(
            directory.path(),
            &[&words, &[limit, "--save", "mine.toml"][..]].concat(),
        )
    };
    for _ in ["saved", "the same once more"] {
        let ran = compare("9 s");
        assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    }
    let edited = std::fs::read_to_string(&saved).unwrap() + "# mine\n";
    std::fs::write(&saved, &edited).unwrap();
    for limit in ["9 s", "8 s"] {
        let refused = compare(limit);
        assert_eq!(refused.status.code(), Some(2));
        assert!(refused.stdout.is_empty());
        assert_eq!(
            text(&refused.stderr),
            "tare: --save mine.toml: found a file with another text, expected none: give another \
             path, or remove it\n"
        );
        assert_eq!(std::fs::read_to_string(&saved).unwrap(), edited);
    }
}

#[test]
fn the_differences_of_what_is_no_run_are_an_error_that_names_it() {
    let directory = tempfile::tempdir().unwrap();
    let ran = tare(directory.path(), &["diff", "nothing", "nowhere"]);
    assert_eq!(ran.status.code(), Some(2));
    assert!(
        text(&ran.stderr).contains("nothing: found no run.json"),
        "{}",
        text(&ran.stderr)
    );
}
