//! `tare run` as a person meets it: files, exit codes, Ctrl-C, SIGKILL, mistakes.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;

/// Two variants a factor of two apart, one that crashes, one that the machine lacks.
const EXPERIMENT: &str = r#"
[[experiment]]
id     = "doors/speed"
title  = "Two doors"
source = "the test"
driver = "synthetic"
fixed  = { noise = 0.01, duration = "10 ms" }
matrix = { reading = [1.0, 2.0] }
metric = { name = "time", unit = "ms", better = "lower", work = "bytes" }

[[experiment.claim]]
id    = "twice"
text  = "The second door takes twice as long"
ratio = { of = { reading = 2.0 }, to = { reading = 1.0 }, between = [1.8, 2.2] }

[[experiment]]
id     = "doors/faults"
title  = "Doors that jam"
source = "the test"
driver = "synthetic"
matrix = { fault = ["none", "crash", "hang", "missing"] }
metric = { name = "time", unit = "ms", better = "lower" }

[[experiment.claim]]
id    = "jammed"
text  = "A door that jams is as fast as one that does not"
ratio = { of = { fault = "crash" }, to = { fault = "none" }, at_most = 1.1 }

[[experiment.claim]]
id    = "absent"
text  = "A door that is not there is as fast as one that is"
ratio = { of = { fault = "missing" }, to = { fault = "none" }, at_most = 1.1 }
"#;

/// The command with signals at their defaults: a runner may have been started with some ignored, as
/// by `nohup`.
fn tare(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("env");
    command
        .arg("--default-signal=HUP,INT,QUIT,TERM")
        .arg(env!("CARGO_BIN_EXE_tare"))
        .args(arguments)
        .current_dir(folder);
    command
}

fn output(folder: &Path, arguments: &[&str]) -> Output {
    tare(folder, arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("doors.toml"), EXPERIMENT).unwrap();
    folder
}

fn samples(run: &Path) -> usize {
    fs::read_to_string(run.join("samples.jsonl")).map_or(0, |text| text.lines().count())
}

fn start_and_wait_for_samples(folder: &Path, n: usize) -> Child {
    let child = tare(
        folder,
        &[
            "run",
            "doors.toml",
            "--rounds",
            "12",
            "--seed",
            "5",
            "--out",
            "r",
        ],
    )
    .stdout(Stdio::null())
    .stderr(Stdio::null())
    .spawn()
    .unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while samples(&folder.join("r")) < n {
        assert!(Instant::now() < until, "the run did not get going");
        sleep(Duration::from_millis(5));
    }
    child
}

fn verdict<'a>(result: &'a Value, id: &str) -> &'a Value {
    result["experiments"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|experiment| experiment["claims"].as_array().unwrap())
        .find(|claim| claim["id"] == id)
        .unwrap()
}

/// Processes that run one of our trials out of `folder`.
fn trials_alive(folder: &Path) -> usize {
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(|process| {
            let words = fs::read(process.path().join("cmdline")).unwrap_or_default();
            let here = fs::read_link(process.path().join("cwd")).unwrap_or_default();
            here == folder && words.split(|&byte| byte == 0).any(|word| word == b"trial")
        })
        .count()
}

#[test]
fn a_run_leaves_its_files_and_prints_its_claims() {
    let folder = folder();
    let done = output(
        folder.path(),
        &[
            "run",
            "doors.toml",
            "--rounds",
            "14",
            "--seed",
            "1",
            "--out",
            "r",
            "--json",
        ],
    );
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let result: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(result["schema"], 2);
    assert_eq!(result["complete"], true);
    assert_eq!(
        verdict(&result, "doors/speed/twice")["verdict"],
        "reproduced"
    );
    let jammed = verdict(&result, "doors/faults/jammed");
    assert_eq!(jammed["verdict"], "inconclusive");
    assert_eq!(
        jammed["measured"],
        Value::Null,
        "a missing value is missing"
    );
    assert!(
        jammed["reason"].as_str().unwrap().contains("signal 6"),
        "{jammed}"
    );
    let absent = verdict(&result, "doors/faults/absent");
    assert_eq!(absent["verdict"], "not-testable");
    assert!(
        absent["reason"].as_str().unwrap().contains("order fault"),
        "{absent}"
    );
    let run = folder.path().join("r");
    for file in ["run.json", "samples.jsonl", "report.html"] {
        assert!(run.join(file).is_file(), "{file}");
    }
    assert_eq!(
        fs::read_dir(run.join("logs")).unwrap().count(),
        28,
        "a log per failed trial"
    );
    let plan: Value = serde_json::from_slice(&fs::read(run.join("run.json")).unwrap()).unwrap();
    for key in ["cpu_flags", "kernel", "mitigations", "memory", "interfaces"] {
        assert!(!plan["machine"][key].is_null(), "{key}");
    }
    // The same figures come out of the files again.
    let again = output(folder.path(), &["report", "r", "--json"]);
    assert_eq!(
        serde_json::from_slice::<Value>(&again.stdout).unwrap(),
        result
    );
}

/// The two doors alone, with a claim and a target that are right or wrong.
fn doors(folder: &Path, claim: &str, target: &str) {
    let (speed, _) = EXPERIMENT.split_at(EXPERIMENT.rfind("[[experiment]]").unwrap());
    let ratio = |between| {
        format!(
            "ratio = {{ of = {{ reading = 2.0 }}, to = {{ reading = 1.0 }}, between = {between} }}"
        )
    };
    let speed = speed.replace(&ratio("[1.8, 2.2]"), &ratio(claim));
    let target = format!(
        "[[experiment.target]]\nid = \"own\"\ntext = \"A target\"\n{}\n",
        ratio(target)
    );
    fs::write(folder.join("two.toml"), speed + &target).unwrap();
}

#[test]
fn verdicts_are_results_and_exit_with_1_only_if_asked() {
    const RIGHT: &str = "[1.8, 2.2]";
    const WRONG: &str = "[2.8, 3.2]";
    for (claim, target, said, strict) in [
        (RIGHT, RIGHT, ["reproduced", "held"], 0),
        (WRONG, RIGHT, ["not-reproduced", "held"], 1),
        (RIGHT, WRONG, ["reproduced", "missed"], 1),
    ] {
        let folder = folder();
        doors(folder.path(), claim, target);
        let run = ["run", "two.toml", "--json", "--out", "r"];
        let done = output(folder.path(), &run);
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        let result: Value = serde_json::from_slice(&done.stdout).unwrap();
        let one = &result["experiments"][0];
        let verdicts = [&one["claims"][0]["verdict"], &one["targets"][0]["verdict"]];
        assert_eq!(verdicts, said);
        for words in [
            &["report", "r", "--strict"][..],
            &["run", "two.toml", "--strict", "--out", "s"],
        ] {
            let done = output(folder.path(), words);
            assert_eq!(done.status.code(), Some(strict), "{words:?}");
        }
    }
}

#[test]
fn a_run_stops_when_all_is_decided_and_rounds_fix_their_number() {
    let folder = folder();
    doors(folder.path(), "[1.8, 2.2]", "[2.8, 3.2]");
    let rounds = |extra: &[&str], out: &str| -> u64 {
        let run = ["run", "two.toml", "--json", "--out", out];
        let done = output(folder.path(), &[&run, extra].concat());
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        let result: Value = serde_json::from_slice(&done.stdout).unwrap();
        assert_eq!(result["complete"], true);
        result["experiments"][0]["rounds"].as_u64().unwrap()
    };
    let needed = rounds(&[], "needed");
    assert!((10..30).contains(&needed), "{needed} rounds of 10 to 60");
    assert_eq!(rounds(&["--rounds", "3"], "three"), 3);
    assert_eq!(rounds(&["--rounds", "33"], "more"), 33);
    assert!(rounds(&["--budget", "150 ms"], "budget") < 10);
    // What is over is not gone on with.
    let before = samples(&folder.path().join("budget"));
    let done = output(folder.path(), &["run", "--resume", "budget"]);
    assert_eq!(done.status.code(), Some(0));
    assert_eq!(samples(&folder.path().join("budget")), before);
}

#[test]
fn the_tour_runs_what_its_claims_speak_of_and_says_what_else_there_is() {
    let folder = folder();
    let run = ["run", "--rounds", "1", "--json", "--out", "r"];
    let done = output(folder.path(), &run);
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(0), "{said}");
    let result: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(result["size"], "tour");
    let experiments = result["experiments"].as_array().unwrap();
    let suite = |e: &Value| {
        e["id"]
            .as_str()
            .unwrap()
            .split('/')
            .next()
            .unwrap()
            .to_owned()
    };
    let suites: BTreeSet<String> = experiments.iter().map(suite).collect();
    assert_eq!(suites.iter().collect::<Vec<_>>(), ["gcm", "rdrand", "vita"]);
    let width = experiments.iter().find(|e| e["id"] == "rdrand/width");
    let cells = width.unwrap()["cells"].as_array().unwrap();
    let methods: Vec<&Value> = cells.iter().map(|cell| &cell["at"]["method"]).collect();
    assert_eq!(methods, ["bare_32", "bare_64"]);
    for words in [
        "tare run all ",
        "tare run gcm ",
        "tare run rdrand ",
        "tare run vita ",
    ] {
        let line = said.lines().find(|line| line.contains(words));
        assert!(line.unwrap().contains("about "), "{said}");
    }
    let full = output(folder.path(), &["run", "--full"]);
    assert_eq!(full.status.code(), Some(2));
    assert!(text(&full.stderr).contains("tare run all --full"));
}

#[test]
fn equal_parameters_give_equal_figures_in_virtual_time() {
    let folder = folder();
    for parameters in [
        r#"{"measure":"find_limit","size":"60","duration":"4 ms","precision":"10 Mbit/s"}"#,
        r#"{"measure":"load","size":"IMIX","duration":"4 ms","load":0.9}"#,
        r#"{"measure":"load","size":"590","duration":"6 s","load":0.001,"event":"rekey"}"#,
    ] {
        let mut all: serde_json::Map<String, Value> = serde_json::from_str(parameters).unwrap();
        for (name, value) in [
            ("routes", Value::from(2)),
            ("line", "1 Gbit/s".into()),
            ("queue", "3 kB".into()),
        ] {
            all.insert(name.into(), value);
        }
        all.entry("event").or_insert("none".into());
        let all = serde_json::to_string(&all).unwrap();
        let trial = || {
            let done = output(folder.path(), &["trial", "vita", &all]);
            let said = text(&done.stdout);
            assert!(said.contains("counters"), "{said}");
            said
        };
        assert_eq!(trial(), trial(), "{parameters}");
    }
}

/// What a run writes to a terminal of that size; `None`, loudly, where there is none to be had.
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

#[test]
fn ctrl_c_leaves_a_valid_run_and_no_child() {
    let folder = folder();
    let mut child = start_and_wait_for_samples(folder.path(), 7);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(trials_alive(folder.path()), 0);
    let report = output(folder.path(), &["report", "r", "--json"]);
    let result: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(result["complete"], false);
    finish(folder.path());
}

#[test]
fn sigkill_in_the_middle_and_resume_gives_every_cell_its_rounds() {
    let folder = folder();
    for more in [9, 11] {
        let had = samples(&folder.path().join("r"));
        let mut child = if had == 0 {
            start_and_wait_for_samples(folder.path(), more)
        } else {
            let child = tare(folder.path(), &["run", "--resume", "r"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            while samples(&folder.path().join("r")) < had + more {
                sleep(Duration::from_millis(5));
            }
            child
        };
        kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
        child.wait().unwrap();
        let until = Instant::now() + Duration::from_secs(2);
        while trials_alive(folder.path()) > 0 {
            assert!(Instant::now() < until, "a trial outlived the run");
        }
    }
    finish(folder.path());
}

/// Resumes a run and sees that nothing is missing.
fn finish(folder: &Path) {
    let done = output(folder, &["run", "--resume", "r", "--json"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let result: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(result["complete"], true);
    for cell in result["experiments"][0]["cells"].as_array().unwrap() {
        assert_eq!(cell["n"], 12, "{cell}");
    }
}

#[test]
fn the_same_seed_gives_the_same_order() {
    let folder = folder();
    let order = |out: &str| -> Vec<(Value, Value)> {
        let run = [
            "run",
            "doors.toml",
            "--rounds",
            "2",
            "--seed",
            "77",
            "--out",
            out,
        ];
        output(folder.path(), &run);
        fs::read_to_string(folder.path().join(out).join("samples.jsonl"))
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .map(|record| (record["at"].clone(), record["again"].clone()))
            .collect()
    };
    assert_eq!(order("a"), order("b"));
}

#[test]
fn a_mistake_is_one_clear_line_and_exit_code_2() {
    let folder = folder();
    let bad = EXPERIMENT.replace("better = \"lower\", work", "beter = \"lower\", work");
    fs::write(folder.path().join("bad.toml"), bad).unwrap();
    fs::create_dir(folder.path().join("empty")).unwrap();
    let cases: &[(&[&str], &str)] = &[
        (&["run", "rdrnd"], "did you mean \"rdrand\"?"),
        (&["run", "no.toml"], "no.toml: cannot be read"),
        (&["run", "bad.toml"], "bad.toml:9"),
        (&["run", "--resume", "empty"], "run.json"),
        (&["report", "nowhere"], "nowhere/run.json"),
        (&["run", "--rounds", "0"], "0"),
        (&["run", "--budget", "5"], "such as \"90 s\""),
        (&["run", "--budget", "5 bananas"], "such as \"90 s\""),
        (&["show", "rdrand/siez"], "did you mean \"rdrand/size\"?"),
        (&["frobnicate"], "frobnicate"),
    ];
    for (arguments, expected) in cases {
        let done = output(folder.path(), arguments);
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{arguments:?}: {said}");
        assert!(
            done.stdout.is_empty(),
            "{arguments:?}: results only on standard output"
        );
    }
    let run = ["run", "doors.toml", "--rounds", "1", "--out", "r"];
    assert_eq!(output(folder.path(), &run).status.code(), Some(0));
    let twice = output(folder.path(), &run);
    assert_eq!(twice.status.code(), Some(2));
    assert!(
        text(&twice.stderr).contains("--resume"),
        "{}",
        text(&twice.stderr)
    );
}

#[test]
fn what_comes_with_the_command_lists_shows_and_diagnoses_itself() {
    let folder = folder();
    let list: Value =
        serde_json::from_slice(&output(folder.path(), &["list", "--json"]).stdout).unwrap();
    for experiment in list.as_array().unwrap() {
        let id = experiment["id"].as_str().unwrap();
        for size in [&["show", id][..], &["show", id, "--full", "--json"]] {
            let shown = output(folder.path(), size);
            assert_eq!(shown.status.code(), Some(0), "{id}");
            assert!(text(&shown.stdout).contains(id));
        }
    }
    let doctor: Value =
        serde_json::from_slice(&output(folder.path(), &["doctor", "--json"]).stdout).unwrap();
    assert_eq!(
        doctor["experiments"].as_array().unwrap().len(),
        list.as_array().unwrap().len()
    );
    let programs = doctor["programs"].as_array().unwrap();
    for battery in ["dieharder", "rngtest", "ent", "RNG_test"] {
        assert!(programs.iter().any(|p| p["name"] == battery), "{battery}");
    }
}

#[test]
fn a_closed_pipe_is_a_quiet_end() {
    let folder = folder();
    let mut child = tare(folder.path(), &["show", "rdrand"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let done = child.wait_with_output().unwrap();
    assert_eq!(text(&done.stderr), "");
    assert_eq!(done.status.code(), Some(0));
}

#[test]
fn a_run_goes_on_and_says_its_result_when_nobody_hears_its_progress() {
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
fn runs_that_begin_in_the_same_second_have_a_directory_each() {
    let folder = folder();
    let runs: Vec<Child> = (0..4)
        .map(|_| {
            tare(folder.path(), &["run", "doors.toml", "--rounds", "1"])
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for run in runs {
        let done = run.wait_with_output().unwrap();
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    }
    let places = fs::read_dir(folder.path().join("tare-runs")).unwrap();
    let complete = places
        .flatten()
        .filter(|place| samples(&place.path()) == 8)
        .count();
    assert_eq!(complete, 4);
}

#[test]
fn a_terminal_that_is_closed_ends_a_run_as_ctrl_c_does_unless_told_otherwise() {
    let folder = folder();
    let mut child = start_and_wait_for_samples(folder.path(), 3);
    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(trials_alive(folder.path()), 0);
    let mut child = Command::new("nohup")
        .arg(env!("CARGO_BIN_EXE_tare"))
        .args(["run", "--resume", "r"])
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let had = samples(&folder.path().join("r"));
    while samples(&folder.path().join("r")) < had + 2 {
        sleep(Duration::from_millis(5));
    }
    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// An experiment of shell commands, one for each value of the axis `way`.
fn commands(folder: &Path, limit: &str, ways: &str) {
    let experiment = format!(
        r#"
[[experiment]]
id     = "shell/ways"
title  = "Ways"
source = "the test"
driver = "command"
fixed  = {{ command = "sh {{way}}", protocol = true, limit = "{limit}" }}
matrix = {{ way = {ways} }}
metric = {{ name = "time", unit = "ms", better = "lower" }}

[[experiment.claim]]
id    = "speed"
text  = "It is fast"
value = {{ of = {{}}, at_most = "2 s" }}
"#
    );
    fs::write(folder.join("ways.toml"), experiment).unwrap();
}

#[test]
fn a_run_that_is_stopped_and_continued_does_not_blame_its_trial() {
    let folder = folder();
    commands(folder.path(), "3 s", "[\"slow\"]");
    let slow = r#"echo '{"type":"version","protocol":1,"program":"sh"}'
        echo '{"type":"start"}'
        touch started
        sleep 0.5
        echo '{"type":"sample","metric":"time","value":1,"unit":"s"}'
        echo '{"type":"end"}'"#;
    fs::write(folder.path().join("slow"), slow).unwrap();
    let child = tare(
        folder.path(),
        &["run", "ways.toml", "--rounds", "1", "--out", "r", "--json"],
    )
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    while !folder.path().join("started").exists() {
        sleep(Duration::from_millis(5));
    }
    kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
    sleep(Duration::from_secs(4));
    kill_process(Pid::from_child(&child), Signal::CONT).unwrap();
    let done = child.wait_with_output().unwrap();
    let result: Value = serde_json::from_slice(&done.stdout).unwrap();
    let cell = &result["experiments"][0]["cells"][0];
    assert_eq!(
        (&cell["n"], &cell["failed"]),
        (&1.into(), &0.into()),
        "{cell}"
    );
}

#[test]
fn nothing_that_a_trial_or_a_file_says_steers_the_terminal() {
    let folder = folder();
    commands(folder.path(), "5 s", "[\"hostile\", \"\\u001b[2J\"]");
    let hostile = r#"echo '{"type":"version","protocol":1,"program":"sh"}'
        echo '{"type":"error","message":"\u001b[2Jgone\ntare: all is well"}'"#;
    fs::write(folder.path().join("hostile"), hostile).unwrap();
    for arguments in [
        &["run", "ways.toml", "--rounds", "1", "--out", "r"][..],
        &["show", "ways.toml"],
        &["report", "r", "--cells"],
        &["run", "\u{1b}[2J"],
    ] {
        let done = output(folder.path(), arguments);
        let said = text(&done.stderr) + &text(&done.stdout);
        assert!(!said.contains('\u{1b}'), "{arguments:?}: {said:?}");
        assert!(!said.contains("\ntare: all is well"), "{said}");
    }
}

#[test]
fn a_page_that_cannot_be_written_does_not_cost_the_result() {
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

#[test]
fn values_that_are_the_same_word_are_one_cell_and_an_id_stands_for_one_experiment() {
    let folder = folder();
    commands(folder.path(), "5 s", "[1, 1.0, \"1\", 2]");
    let shown = output(folder.path(), &["show", "ways.toml"]);
    assert!(
        text(&shown.stdout).contains("axis     way = 1, 2\n"),
        "{}",
        text(&shown.stdout)
    );
    assert!(
        text(&shown.stdout).contains("at most 2000 ms"),
        "{}",
        text(&shown.stdout)
    );
    let first = fs::read_to_string(folder.path().join("ways.toml")).unwrap();
    fs::write(folder.path().join("other.toml"), first.replace("Ways", "W")).unwrap();
    let refused = output(folder.path(), &["run", "ways.toml", "other.toml"]);
    assert!(
        text(&refused.stderr).contains("other.toml: found another experiment with the id"),
        "{}",
        text(&refused.stderr)
    );
}

#[test]
fn manual_pages_cover_every_command() {
    let folder = folder();
    let made = output(folder.path(), &["man", "--out", "man1"]);
    assert_eq!(made.status.code(), Some(0));
    for page in ["tare.1", "tare-run.1", "tare-rng-gen.1", "tare-report.1"] {
        assert!(folder.path().join("man1").join(page).is_file(), "{page}");
    }
    assert!(
        !folder.path().join("man1/tare-trial.1").exists(),
        "an inner command has no page"
    );
}
