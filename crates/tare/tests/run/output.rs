//! Terminals, pipes and disks that a run writes to.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::{commands, doors, folder, output, tare, text};

/// The output of a run on a terminal of that size; `None`, with a notice, without `script`.
fn on_a_terminal(folder: &Path, columns: usize, term: &str) -> Option<String> {
    let tare = env!("CARGO_BIN_EXE_tare");
    let run = format!(
        "stty cols {columns} rows 24; exec '{tare}' run two.toml --rounds 16 --out on-{columns}-{term}"
    );
    let done = Command::new("script")
        .args(["--quiet", "--return", "--command", &run, "/dev/null"])
        .current_dir(folder)
        .env("TERM", term)
        .env_remove("NO_COLOR")
        .env("SHELL", "/bin/sh")
        .stdin(Stdio::null())
        .output();
    let Ok(done) = done else {
        let said = "*** NOT TESTED HERE: a run on a terminal: `script` (bsdutils) does not run ***";
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{said}");
        eprintln!("\n{said}\n");
        return None;
    };
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stdout));
    Some(text(&done.stdout))
}

#[test]
fn the_table_of_a_run_fits_its_terminal_and_a_dumb_one_gets_lines() {
    let folder = folder();
    doors(folder.path(), "[1.8, 2.2]", "[1.8, 2.2]");
    for columns in [60, 100, 200] {
        let Some(said) = on_a_terminal(folder.path(), columns, "xterm") else {
            return;
        };
        let drawn: Vec<&str> = said
            .split("\r\n")
            .filter(|l| l.ends_with("\x1b[K"))
            .collect();
        assert!(drawn.len() > 12 * 3, "{columns}: a table a round: {said:?}");
        for line in drawn {
            let bare = console::strip_ansi_codes(line);
            let wide = console::measure_text_width(&bare);
            assert!(wide < columns, "{columns}: {bare:?}");
        }
        assert!(said.contains("doors/speed/twice"), "{said:?}");
    }
    let Some(said) = on_a_terminal(folder.path(), 100, "dumb") else {
        return;
    };
    assert!(!said.contains('\u{1b}'), "{said:?}");
    let line = said.lines().find(|l| l.contains("doors/speed/twice"));
    assert!(line.unwrap().contains("✓ reproduced"), "{said}");
}

/// Runs a command and closes the pipe of its standard output at once.
fn unread(folder: &Path, arguments: &[&str]) -> Output {
    let mut child = tare(folder, arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    child.wait_with_output().unwrap()
}

#[test]
fn a_closed_pipe_is_a_quiet_end() {
    let folder = folder();
    let done = unread(folder.path(), &["show", "rdrand"]);
    assert_eq!(text(&done.stderr), "");
    assert_eq!(done.status.code(), Some(0));
}

#[test]
fn a_closed_pipe_does_not_change_the_exit_status() {
    let folder = folder();
    doors(folder.path(), "[2.8, 3.2]", "[1.8, 2.2]");
    let run = ["run", "two.toml", "--out", "r"];
    assert_eq!(output(folder.path(), &run).status.code(), Some(0));
    fs::write(folder.path().join("zeros"), vec![0; 1 << 20]).unwrap();
    for (arguments, said) in [
        (&["rng", "test", "zeros", "--external", "none"][..], ""),
        (
            &["report", "r", "--strict"],
            "tare: report: r/report.html\n",
        ),
        (
            &["report", "r", "--strict", "--json"],
            "tare: report: r/report.html\n",
        ),
    ] {
        let done = unread(folder.path(), arguments);
        assert_eq!(text(&done.stderr), said);
        assert_eq!(done.status.code(), Some(1), "{arguments:?}");
    }
}

#[test]
fn a_run_goes_on_and_prints_its_result_when_its_progress_cannot_be_written() {
    let folder = folder();
    let full = fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let done = tare(folder.path(), &["run", "doors.toml", "--rounds", "1"])
        .stderr(full)
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(0));
    assert!(text(&done.stdout).contains("inconclusive"));
}

#[test]
fn a_result_that_cannot_be_printed_says_where() {
    let folder = folder();
    let full = fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let done = tare(folder.path(), &["list"])
        .stdout(full)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(2));
    let said = text(&done.stderr);
    assert!(said.contains("standard output: No space left"), "{said}");
}

#[test]
fn no_text_of_a_trial_or_a_file_controls_the_terminal() {
    let folder = folder();
    commands(
        folder.path(),
        "5 s",
        "[\"hostile\", \"\\u001b[2J\\u009b2J\"]",
    );
    let hostile = r#"echo '{"type":"version","protocol":1,"program":"sh"}'
        echo '{"type":"error","message":"\u001b[2J\u009b2Jgone\ntare: all is well"}'"#;
    fs::write(folder.path().join("hostile"), hostile).unwrap();
    let odd = "my \u{1b}[2J.toml";
    fs::copy(folder.path().join("ways.toml"), folder.path().join(odd)).unwrap();
    for arguments in [
        &["run", "ways.toml", "--rounds", "1", "--out", "r"][..],
        &["show", "ways.toml"],
        &["show", "ways.toml", "--json"],
        &["show", odd],
        &["report", "r", "--cells"],
        &["report", "r", "--json"],
        &["export", "r", "--format", "json"],
        &["export", "r", "--format", "csv"],
        &["export", "r", "--format", "claims-csv"],
        &["export", "r", "--format", "markdown"],
        &["export", "r", "--format", "html"],
        &["diff", "r", "r", "--json"],
        &["doctor", "ways.toml", "--json"],
        &["run", "\u{1b}[2J"],
    ] {
        let done = output(folder.path(), arguments);
        let said = text(&done.stderr) + &text(&done.stdout);
        let controls = |c: char| c.is_control() && !matches!(c, '\n' | '\r');
        assert!(!said.contains(controls), "{arguments:?}: {said:?}");
        assert!(!said.contains("\ntare: all is well"), "{said}");
    }
}

#[test]
fn the_command_that_runs_a_file_quotes_its_name() {
    let folder = folder();
    fs::rename(
        folder.path().join("doors.toml"),
        folder.path().join("my doors.toml"),
    )
    .unwrap();
    let done = output(folder.path(), &["show", "my doors.toml"]);
    let said = text(&done.stdout);
    assert!(said.ends_with("tare run 'my doors.toml'\n"), "{said}");
}

#[test]
fn a_result_is_printed_though_its_page_cannot_be_written() {
    let folder = folder();
    let run = ["run", "doors.toml", "--rounds", "1", "--out", "r"];
    assert_eq!(output(folder.path(), &run).status.code(), Some(0));
    let page = folder.path().join("r/report.html");
    fs::remove_file(&page).unwrap();
    fs::create_dir(&page).unwrap();
    let done = output(folder.path(), &["report", "r"]);
    assert_eq!(done.status.code(), Some(2));
    assert!(text(&done.stdout).contains("inconclusive"));
    let said = text(&done.stderr);
    assert_eq!(said.matches("os error").count(), 1, "{said}");
    assert!(said.contains("report.html: "), "{said}");
}
