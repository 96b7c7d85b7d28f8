//! Users' own programs under `tare run`: mistakes in their files, processes that they leave, runs
//! that are resumed elsewhere.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn tare(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tare"))
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// An experiment of the driver `command`.
fn experiment(fixed: &str, metric: &str) -> String {
    format!(
        r#"[[experiment]]
id     = "own/program"
title  = "A program"
source = "the test"
driver = "command"
fixed  = {{ {fixed} }}
matrix = {{ n = [1, 2] }}
metric = {{ {metric}, better = "lower" }}

[[experiment.claim]]
id    = "same"
text  = "Both are the same"
ratio = {{ of = {{ n = 2 }}, to = {{ n = 1 }}, at_most = 10 }}
"#
    )
}

const TIME: &str = r#"name = "time", unit = "s""#;

#[test]
fn show_and_run_find_what_is_wrong_with_a_command_in_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        (r#"command = "true""#, r#"name = "tiem", unit = "s""#, "own.toml:8: experiment[0].metric.name: found \"tiem\", expected one of \"time\", \"cpu_time\""),
        (r#"command = "true""#, r#"name = "time", unit = "s", work = "stdout_byts""#, "own.toml:8: experiment[0].metric.work: found \"stdout_byts\""),
        (r#"command = "echo 'open""#, TIME, "own.toml:6: experiment[0].fixed.command: found \"echo 'open\", expected words with matching quotes"),
        (r#"command = "gzip {pakced}""#, TIME, "own.toml:6: experiment[0].fixed.command: found {pakced}"),
        (r#"command = "true", limit = "0 s""#, TIME, "own.toml:6: experiment[0].fixed.limit: found 0 s, expected more than 0 s"),
        (r#"command = "true", environment = { A = "{m}" }"#, TIME, "own.toml:6: experiment[0].fixed.environment.A: found {m}"),
        (r#"command = "true", protocol = true"#, r#"name = "rate", unit = "s", from = { json = "/a" }"#, "the standard output of a program that speaks the protocol"),
        (r#"command = "true""#, r#"name = "rate", unit = "s", from = { regex = "(" }"#, "own.toml:8: experiment[0].metric.from.regex"),
    ];
    for (fixed, metric, expected) in cases {
        fs::write(folder.path().join("own.toml"), experiment(fixed, metric)).unwrap();
        for command in ["show", "run", "doctor"] {
            let said = tare(folder.path(), &[command, "own.toml"]);
            let error = text(&said.stderr);
            assert_eq!(said.status.code(), Some(2), "{command} {fixed}: {error}");
            assert!(error.contains(expected), "{command} {fixed}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
    assert!(!folder.path().join("tare-runs").exists());
}

#[test]
fn show_and_doctor_say_what_the_cells_of_a_file_lack() {
    let folder = tempfile::tempdir().unwrap();
    let lacks = [
        (
            r#"command = "no-such-program-{n}""#,
            "there is no program \"no-such-program-2\" here",
            "install no-such-program-2",
        ),
        (
            r#"command = "true", prepare = "./not-here""#,
            "there is no program \"./not-here\" here",
            "install ./not-here",
        ),
        (
            r#"command = "./own.toml {n}""#,
            "the program \"./own.toml\" is not executable",
            "chmod +x ./own.toml",
        ),
        (
            r#"command = "true", working_directory = "no/{n}""#,
            "there is no folder \"no/2\" here",
            "mkdir -p 'no/2'",
        ),
    ];
    for (fixed, reason, remedy) in lacks {
        fs::write(folder.path().join("own.toml"), experiment(fixed, TIME)).unwrap();
        for command in ["show", "doctor"] {
            let said = tare(folder.path(), &[command, "own.toml"]);
            assert_eq!(said.status.code(), Some(0), "{}", text(&said.stderr));
            let shown = text(&said.stdout);
            assert!(
                shown.contains(reason) && shown.contains(remedy),
                "{command}: {shown}"
            );
        }
        let doctor = tare(folder.path(), &["doctor", "own.toml", "--json"]);
        let doctor: Value = serde_json::from_slice(&doctor.stdout).unwrap();
        let experiments = doctor["experiments"].as_array().unwrap();
        assert_eq!(experiments.len(), 1);
        assert_eq!(experiments[0]["testable"], 0, "{doctor}");
    }
    fs::write(
        folder.path().join("own.toml"),
        experiment(r#"command = "true""#, TIME),
    )
    .unwrap();
    let said = text(&tare(folder.path(), &["doctor", "own.toml"]).stdout);
    assert!(
        said.contains("own/program  2 of 2 cells can run here"),
        "{said}"
    );
}

#[test]
fn a_file_that_is_no_regular_file_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = Command::new("mkfifo")
        .arg(folder.path().join("fifo.toml"))
        .status();
    assert!(fifo.unwrap().success());
    fs::create_dir(folder.path().join("folder.toml")).unwrap();
    for file in ["fifo.toml", "folder.toml", "/dev/zero"] {
        let began = Instant::now();
        let said = tare(folder.path(), &["show", file]);
        assert_eq!(said.status.code(), Some(2), "{file}");
        let error = text(&said.stderr);
        assert!(error.contains("found no regular file"), "{file}: {error}");
        assert!(began.elapsed() < Duration::from_secs(20), "{file}");
    }
}

/// Processes that have `marker` on their command line, once those that were killed had a minute to
/// vanish.
fn processes_with(marker: &str) -> usize {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let lines = processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
        let alive = lines
            .filter(|line| {
                line.split(|&byte| byte == 0)
                    .any(|word| word == marker.as_bytes())
            })
            .count();
        if alive == 0 || Instant::now() > until {
            return alive;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn whatever_a_trial_started_ends_with_it_wherever_it_went() {
    let folder = tempfile::tempdir().unwrap();
    let marker = format!("{}", 7_000_000 + std::process::id());
    let ways = [
        ("session", format!("setsid sleep {marker} &")),
        (
            "daemon",
            format!("(setsid sh -c 'sleep {marker} & sleep {marker}' &) &"),
        ),
        (
            "cleared",
            format!("env -i setsid sleep {marker} & sleep 0.1"),
        ),
        ("group", format!("set -m; sleep {marker} &")),
    ];
    for (name, script) in ways {
        fs::write(folder.path().join("way.sh"), script).unwrap();
        fs::write(
            folder.path().join("own.toml"),
            experiment(r#"command = "sh way.sh {n}""#, TIME),
        )
        .unwrap();
        let run = tare(
            folder.path(),
            &["run", "own.toml", "--rounds", "1", "--out", name],
        );
        assert_eq!(run.status.code(), Some(0), "{name}: {}", text(&run.stderr));
        assert_eq!(processes_with(&marker), 0, "{name}");
    }
}

fn records(run: &Path) -> Vec<Value> {
    let lines = fs::read_to_string(run.join("samples.jsonl")).unwrap();
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// A folder in which programs run, which they perhaps do not below /tmp.
fn runs_programs() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A run of `./tool` in `here`, of which the last four records are cut off again.
fn half_a_run(here: &Path) {
    fs::create_dir(here).unwrap();
    let tool = here.join("tool");
    fs::write(&tool, "#!/bin/sh\ncat data\n").unwrap();
    fs::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    fs::write(here.join("data"), "some").unwrap();
    fs::write(
        here.join("own.toml"),
        experiment(r#"command = "./tool {n}""#, TIME),
    )
    .unwrap();
    let run = tare(here, &["run", "own.toml", "--rounds", "4", "--out", "r"]);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    let file = here.join("r/samples.jsonl");
    let lines = fs::read_to_string(&file).unwrap();
    let kept: Vec<&str> = lines.lines().take(8).collect();
    fs::write(&file, kept.join("\n") + "\n").unwrap();
}

#[test]
fn a_run_that_is_resumed_elsewhere_goes_on_in_the_folder_where_it_began() {
    let folder = runs_programs();
    let here = folder.path().join("here");
    half_a_run(&here);
    let resumed = tare(folder.path(), &["run", "--resume", "here/r"]);
    assert_eq!(resumed.status.code(), Some(0), "{}", text(&resumed.stderr));
    let records = records(&here.join("r"));
    assert_eq!(records.len(), 12);
    for record in records {
        assert_eq!(record["outcome"]["status"], "done", "{record}");
        assert_eq!(record["outcome"]["counters"]["stdout_bytes"], 4, "{record}");
    }
    fs::rename(&here, folder.path().join("there")).unwrap();
    let moved = tare(folder.path(), &["run", "--resume", "there/r"]);
    let error = text(&moved.stderr);
    assert_eq!(moved.status.code(), Some(2), "{error}");
    assert!(
        error.contains("this run began in") && error.contains("cannot be entered"),
        "{error}"
    );
}

#[test]
fn a_run_that_was_stopped_before_its_first_trial_goes_on_when_its_program_is_back() {
    let folder = runs_programs();
    let here = folder.path().join("here");
    half_a_run(&here);
    fs::write(here.join("r/samples.jsonl"), "").unwrap();
    fs::rename(here.join("tool"), here.join("tool.away")).unwrap();
    let resume = || tare(&here, &["run", "--resume", "r"]);
    for _ in 0..2 {
        let without = resume();
        let said = text(&without.stderr);
        assert_eq!(without.status.code(), Some(0), "{said}");
        assert!(said.contains("nothing is testable here"), "{said}");
        assert_eq!(records(&here.join("r")).len(), 2);
    }
    fs::rename(here.join("tool.away"), here.join("tool")).unwrap();
    let with = resume();
    assert_eq!(with.status.code(), Some(0), "{}", text(&with.stderr));
    let records = records(&here.join("r"));
    assert_eq!(records.len(), 12);
    for record in records {
        assert_eq!(record["outcome"]["status"], "done", "{record}");
    }
}

#[test]
fn a_run_whose_measured_cell_cannot_run_any_more_is_not_resumed_and_not_harmed() {
    let folder = runs_programs();
    let here = folder.path().join("here");
    half_a_run(&here);
    fs::rename(here.join("tool"), here.join("tool.away")).unwrap();
    let before = fs::read(here.join("r/samples.jsonl")).unwrap();
    let refused = tare(&here, &["run", "--resume", "r"]);
    let error = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{error}");
    assert!(error.contains("r: own/program at n="), "{error}");
    assert!(
        error.contains("there is no program \"./tool\" here"),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1, "{error}");
    assert_eq!(fs::read(here.join("r/samples.jsonl")).unwrap(), before);
    fs::rename(here.join("tool.away"), here.join("tool")).unwrap();
    assert_eq!(
        tare(&here, &["run", "--resume", "r"]).status.code(),
        Some(0)
    );
    assert_eq!(records(&here.join("r")).len(), 12);
}
