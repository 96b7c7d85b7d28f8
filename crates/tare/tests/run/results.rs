//! Verdicts, rounds and files of a run.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::{commands, doors, folder, output, samples, tare, text, verdict, EXPERIMENT};

#[test]
fn a_run_leaves_its_files_and_prints_its_claims() {
    let folder = folder();
    let done = output(
        folder.path(),
        &[
            "run",
            "doors.toml",
            "--rounds",
            "24",
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
        48,
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
    let claims = output(folder.path(), &["export", "r", "--format", "claims-csv"]);
    let claims = text(&claims.stdout);
    for id in ["speed/twice", "faults/jammed", "faults/absent"] {
        let verdict = verdict(&result, &format!("doors/{id}"))["verdict"].clone();
        let line = format!("claim,doors/{id},{},", verdict.as_str().unwrap());
        assert!(claims.lines().any(|l| l.starts_with(&line)), "{claims}");
    }
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
fn a_run_that_cannot_test_anything_here_is_done_and_one_without_a_value_is_not() {
    for (fault, status, said) in [
        ("missing", 0, "nothing is testable here\n"),
        ("crash", 2, "no trial gave a figure\n"),
    ] {
        let folder = folder();
        let experiment = format!(
            "[[experiment]]\n\
             id = \"doors/one\"\n\
             title = \"One\"\n\
             source = \"the test\"\n\
             driver = \"synthetic\"\n\
             fixed = {{ fault = \"{fault}\" }}\n\
             matrix = {{ reading = [1.0, 2.0] }}\n\
             metric = {{ name = \"time\", unit = \"ms\", better = \"lower\" }}\n"
        );
        fs::write(folder.path().join("one.toml"), experiment).unwrap();
        let run = ["run", "one.toml", "--rounds", "2", "--out", "r"];
        let report = ["report", "r", "--strict"];
        for words in [&run[..], &report] {
            let done = output(folder.path(), words);
            let errors = text(&done.stderr);
            assert_eq!(done.status.code(), Some(status), "{fault}: {errors}");
            assert!(errors.contains(said), "{fault}: {errors}");
            // The reason, and what would change it.
            assert_eq!(errors.contains("order fault"), status == 0, "{errors}");
        }
    }
}

/// These are computed in virtual time, so that no machine misses them.
#[test]
fn vita_s_targets_in_virtual_time_are_held() {
    let folder = folder();
    let run = ["run", "vita/events", "vita/ramp", "--quick", "--strict"];
    let done = output(folder.path(), &run);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stdout));
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
    // A run that is complete is not continued.
    let before = samples(&folder.path().join("budget"));
    let done = output(folder.path(), &["run", "--resume", "budget"]);
    assert_eq!(done.status.code(), Some(0));
    assert_eq!(samples(&folder.path().join("budget")), before);
}

#[test]
fn the_tour_runs_the_cells_of_its_claims_and_lists_what_else_there_is() {
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
    let suites: Vec<&String> = suites.iter().collect();
    assert_eq!(suites, ["bifrost", "clio", "gcm", "rdrand", "vita"]);
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

#[test]
fn a_trial_of_the_race_ends_when_an_implementation_that_reads_twice_is_caught() {
    if std::thread::available_parallelism().map_or(1, |n| n.get()) < 2 {
        let notice = "NOT TESTED: a race that is lost, which needs two processors";
        let _ = writeln!(std::io::stderr(), "{notice}");
        return;
    }
    let folder = folder();
    for operation in ["open", "seal"] {
        let parameters = format!(r#"{{"subject":"two_reads","operation":"{operation}"}}"#);
        let done = output(folder.path(), &["trial", "gcm-race", &parameters]);
        let said = text(&done.stdout);
        let line = said.lines().find(|line| line.contains("counters"));
        let message: Value = serde_json::from_str(line.unwrap()).unwrap();
        let counters = &message["counters"];
        assert_eq!(counters["two_reads"], 1, "{said}");
        assert_eq!(counters["wrong"], 1, "{said}");
        assert_eq!(counters["undetected"], 0, "{said}");
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
fn a_run_without_claims_prints_the_figures_of_its_cells() {
    let folder = folder();
    let (two, _) = EXPERIMENT.split_once("[[experiment.claim]]").unwrap();
    fs::write(folder.path().join("two.toml"), two).unwrap();
    let run = |file| {
        let out = format!("{file}-run");
        let done = output(
            folder.path(),
            &["run", file, "--rounds", "1", "--out", &out],
        );
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        text(&done.stdout)
    };
    let said = run("two.toml");
    assert!(said.contains("time in ms, lower is better"), "{said}");
    assert!(said.contains("reading=2"), "{said}");
    assert!(said.ends_with("No claim was judged\n"), "{said}");
    assert!(!run("doors.toml").contains("time in ms"), "a claim says it");
}

#[test]
fn peak_memory_is_known_of_programs_smaller_than_this_one() {
    let folder = folder();
    let experiment = r#"
[[experiment]]
id      = "memory/small"
title   = "Memory"
source  = "the test"
driver  = "command"
fixed   = { command = "sh -c 'head -c {bytes} /dev/zero | tail -c {bytes} > /dev/null'" }
matrix  = { bytes = [6000000, 30000000] }
metrics = [{ name = "peak_memory", unit = "MB", better = "lower" }]
"#;
    fs::write(folder.path().join("small.toml"), experiment).unwrap();
    let run = ["run", "small.toml", "--rounds", "2", "--out", "r", "--json"];
    let done = output(folder.path(), &run);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let result: Value = serde_json::from_slice(&done.stdout).unwrap();
    let peak = |cell: usize| {
        let cell = &result["experiments"][0]["cells"][cell];
        cell["median"]
            .as_f64()
            .unwrap_or_else(|| panic!("{result:#}"))
    };
    // Without optimization `tare` has 3.4 MB to inherit, and with what is added for a child and for
    // the kernel's error, 4.4 MB are the least that is known.
    assert!((6.0..11.0).contains(&peak(0)), "{}", peak(0));
    assert!((30.0..50.0).contains(&peak(1)), "{}", peak(1));
}

/// Returns true if `/tmp` can be made read-only for a test; prints a notice if not, and fails under
/// CI.
fn can_mount() -> bool {
    let tried = Command::new("unshare").args(["--mount", "true"]).output();
    if tried.is_ok_and(|tried| tried.status.success()) {
        return true;
    }
    let notice = "NOT TESTED: a read-only /tmp, which needs root and util-linux";
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{notice}");
    // Past the capture of the test runner: what is not tested must be seen.
    let _ = writeln!(std::io::stderr(), "{notice}");
    false
}

#[test]
fn without_a_folder_for_temporary_files_only_what_needs_one_is_not_testable() {
    if !can_mount() {
        return;
    }
    let folder = folder();
    let experiment = r#"
[[experiment]]
id     = "temporary/guest"
title  = "A guest"
source = "the test"
driver = "cvmnet"
fixed  = { connections = 1, size = "1 KiB", duration = "20 ms" }
matrix = { work = ["send", "https"] }
metric = { name = "throughput", unit = "MB/s", better = "higher" }

[[experiment]]
id     = "temporary/numbers"
title  = "Numbers"
source = "the test"
driver = "rdrand"
fixed  = { method = "rand_chacha", duration = "10 ms" }
matrix = { output = ["none", "file"] }
metric = { name = "throughput", unit = "MB/s", better = "higher" }
"#;
    fs::write(folder.path().join("temporary.toml"), experiment).unwrap();
    // The test's folder, the sources and the program may be below /tmp.
    let script = r#"mount --rbind /tmp /tmp && mount --bind "$PWD" "$PWD" &&
        mount -o remount,bind,ro /tmp && cd "$PWD" && ! touch /tmp/x 2> /dev/null &&
        exec "$TARE" run temporary.toml --rounds 1 --out r --json"#;
    let run = |variable: Option<&Path>| {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c", script])
            .env("TARE", env!("CARGO_BIN_EXE_tare"))
            .env_remove("TMPDIR")
            .current_dir(folder.path());
        if let Some(own) = variable {
            command.env("TMPDIR", own);
        }
        let done = command.output().unwrap();
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        fs::remove_dir_all(folder.path().join("r")).unwrap();
        let result: Value = serde_json::from_slice(&done.stdout).unwrap();
        let cells = result["experiments"].as_array().unwrap().iter();
        let cells = cells.flat_map(|experiment| experiment["cells"].as_array().unwrap());
        cells.cloned().collect::<Vec<_>>()
    };
    let without = run(None);
    let with = run(Some(folder.path()));
    assert_eq!((without.len(), with.len()), (4, 4));
    for (place, (without, with)) in without.iter().zip(&with).enumerate() {
        assert_eq!(with["n"], 1, "{with:#}");
        assert_eq!(without["failed"], 0, "{without:#}");
        let needs_one = place % 2 == 1;
        assert_eq!(without["n"], u8::from(!needs_one), "{without:#}");
        if needs_one {
            let reason = without["reason"].as_str().unwrap();
            assert!(reason.contains("no file can be made in /tmp: "), "{reason}");
            let remedy = "set TMPDIR to a folder that can be written";
            assert!(reason.contains(remedy), "{reason}");
        }
    }
}
