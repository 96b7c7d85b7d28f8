//! The driver `load` as `tare run` and `tare trial` run it: servers and generators of this machine.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// The experiments in a short form. Rates and times are judged elsewhere: this machine may be busy.
const EXPERIMENT: &str = r#"
[[experiment]]
id     = "test/http"
title  = "nginx"
source = "the test"
driver = "load"
fixed  = { connections = 8, value = "128 B", warm_up = "50 ms" }
matrix = { generator = ["load", "wrk"] }
metric = { name = "request_rate", unit = "req/s", better = "higher", work = "bytes" }

[[experiment.target]]
id    = "same-work"
text  = "Both fetch the same bytes"
ratio = { of = { generator = "load" }, to = { generator = "wrk" }, between = [0.001, 1000] }

[[experiment]]
id     = "test/resp"
title  = "Redis"
source = "the test"
driver = "load"
fixed  = { server = "redis-server", connections = 8, pipeline = 4, keys = 2000, warm_up = "50 ms" }
matrix = { generator = ["load", "redis-benchmark", "memtier_benchmark"] }
metric = { name = "cpu_generator_time", unit = "µs", better = "lower", work = "bytes" }

[[experiment.target]]
id    = "same-work"
text  = "Both fetch the same bytes"
ratio = { of = { generator = "load" }, to = { generator = "redis-benchmark" }, between = [0.001, 1000] }

[[experiment]]
id     = "test/memcached"
title  = "memcached"
source = "the test"
driver = "load"
fixed  = { server = "memcached", connections = 8, sets = 0.1, keys = 2000, warm_up = "50 ms" }
matrix = { generator = ["load", "memaslap"] }
metric = { name = "cpu_generator_time", unit = "µs", better = "lower", work = "bytes" }

[[experiment.target]]
id    = "same-work"
text  = "Both fetch the same bytes"
ratio = { of = { generator = "load" }, to = { generator = "memaslap" }, between = [0.001, 1000] }

[[experiment]]
id     = "test/memcslap"
title  = "memcslap"
source = "the test"
driver = "load"
fixed  = { server = "memcached", generator = "memcslap", connections = 2, keys = 100, warm_up = "50 ms", duration = "100 ms" }
matrix = { sets = [0.0, 1.0] }
metric = { name = "cpu_generator_time", unit = "µs", better = "lower" }
"#;

/// The programs that Debian 12 has, with their packages.
const PROGRAMS: [(&[&str], &str); 7] = [
    (&["nginx"], "nginx-light"),
    (&["memcached"], "memcached"),
    (&["redis-server"], "redis-server"),
    (&["wrk"], "wrk"),
    (&["redis-benchmark"], "redis-tools"),
    (&["memaslap", "memcaslap"], "libmemcached-tools"),
    (&["memcslap"], "libmemcached-tools"),
];

/// Returns true if all of these are installed; prints a notice if not, and fails under CI.
fn has(programs: &[&str]) -> bool {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin";
    let is_here = |names: &[&str]| {
        let mut folders = std::env::split_paths(&path);
        folders.any(|folder| names.iter().any(|name| folder.join(name).is_file()))
    };
    let needed = PROGRAMS
        .iter()
        .filter(|(names, _)| programs.contains(&names[0]));
    let missing = needed.filter(|(names, _)| !is_here(names));
    let missing: Vec<&str> = missing.map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return true;
    }
    let notice = format!(
        "NOT TESTED load: as root: apt-get install {}",
        missing.join(" ")
    );
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{notice}");
    // Past the capture of the test runner: what is not tested must be seen.
    let _ = writeln!(std::io::stderr(), "{notice}");
    false
}

/// The samples, counters and the error of one trial.
#[derive(Default)]
struct Trial {
    values: BTreeMap<String, f64>,
    counters: BTreeMap<String, u64>,
    error: Option<(String, bool)>,
}

/// Runs a trial, with another path for programs and a folder for its files if one is given.
fn trial(parameters: &str, path: Option<(&str, &Path)>) -> Trial {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tare"));
    command
        .args(["trial", "load", parameters])
        .stdin(Stdio::null());
    if let Some((path, folder)) = path {
        command.env("PATH", path).env("TMPDIR", folder);
    }
    let printed = command.output().unwrap().stdout;
    let mut trial = Trial::default();
    for line in String::from_utf8(printed).unwrap().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        if let (Some(metric), Some(value)) = (line["metric"].as_str(), line["value"].as_f64()) {
            trial.values.insert(metric.into(), value);
        }
        for (name, count) in line["counters"].as_object().into_iter().flatten() {
            trial.counters.insert(name.clone(), count.as_u64().unwrap());
        }
        if let Some(message) = line["message"].as_str() {
            trial.error = Some((message.into(), line["missing"] == true));
        }
    }
    trial
}

/// The servers whose log is in a folder. Redis overwrites its own environment and arguments.
fn left_running(folder: &Path) -> Vec<String> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let logs = all.filter_map(|entry| fs::read_link(entry.path().join("fd/1")).ok());
    let left = logs.filter(|log| log.starts_with(folder));
    left.map(|log| log.display().to_string()).collect()
}

/// Runs the experiment, and returns its result and its samples. No server is left running.
fn measured_once(folder: &Path, temporary: &Path, attempt: usize) -> (Value, String) {
    let out = format!("run{attempt}");
    let done = Command::new(env!("CARGO_BIN_EXE_tare"))
        .args(["run", "load.toml", "--rounds", "2", "--json", "--out", &out])
        .current_dir(folder)
        .env("TMPDIR", temporary)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let result = serde_json::from_slice(&done.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&done.stderr)));
    assert_eq!(left_running(temporary), [""; 0]);
    let samples = fs::read_to_string(folder.join(out).join("samples.jsonl")).unwrap();
    (result, samples)
}

#[test]
fn each_generator_measures_its_server_and_equal_work_is_compared() {
    if !has(&PROGRAMS.map(|(names, _)| names[0])) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("load.toml"), EXPERIMENT).unwrap();
    let temporary = tempfile::tempdir().unwrap();
    // On a busy machine memcslap may print that it took no time, and wrk get no response in time.
    let held_up = ["found a time of 0 s", "timeout_errors"];
    let (result, samples) = (0..5)
        .map(|attempt| measured_once(folder.path(), temporary.path(), attempt))
        .find(|(_, samples)| !held_up.iter().any(|words| samples.contains(words)))
        .expect("a run of five in which memcslap takes time and wrk is answered");
    let mut ratios = 0;
    for experiment in result["experiments"].as_array().unwrap() {
        for target in experiment["targets"].as_array().unwrap() {
            // With other bytes per response there would be no ratio. Where a busy machine allows
            // few requests (10 were seen), the share of sets among them varies by chance, and the
            // short response to what redis-benchmark asks for at its start weighs more.
            let id = experiment["id"].as_str().unwrap();
            let is_by_chance = fewest_operations(&samples, id) < 10_000;
            let reason = target["reason"].as_str().unwrap_or_default();
            assert!(
                target["measured"].is_number()
                    || (is_by_chance && reason.starts_with("not the same work")),
                "{target}"
            );
            ratios += 1;
        }
    }
    assert_eq!(ratios, 3);
    let mut seen = BTreeMap::new();
    for line in samples.lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        let outcome = &record["outcome"];
        let cell = format!("{} {}", record["experiment"], record["at"]);
        if cell.contains("memtier") && outcome["status"] == "not-testable" {
            assert!(line.contains("memtier-benchmark"), "the package: {line}");
            continue;
        }
        assert_eq!(outcome["status"], "done", "{line}");
        // How many is the machine's affair: a busy one did 8 in 300 ms. No response is shorter than
        // memcached's "END", with the end of its line.
        let count = |name: &str| outcome["counters"][name].as_u64().unwrap();
        assert!(count("operations") > 0, "{line}");
        assert!(count("bytes") >= 5 * count("operations"), "{line}");
        assert_eq!(outcome["counters"]["miscounted"], 0, "{line}");
        assert_eq!(outcome["counters"]["unanswered"], 0, "{line}");
        *seen.entry(cell).or_insert(0) += 1;
    }
    assert!(seen.len() >= 6, "{seen:?}");
}

/// The fewest requests of a trial of an experiment.
fn fewest_operations(samples: &str, experiment: &str) -> u64 {
    let records = samples.lines().map(serde_json::from_str::<Value>);
    let records = records.map(Result::unwrap);
    let of_it = records.filter(|record| record["experiment"] == experiment);
    let counts = of_it.filter_map(|record| record["outcome"]["counters"]["operations"].as_u64());
    counts.min().unwrap_or(0)
}

#[test]
fn processor_time_per_request_is_given_of_both_sides() {
    if !has(&["redis-server", "redis-benchmark"]) {
        return;
    }
    for generator in ["load", "redis-benchmark"] {
        let parameters = format!(
            r#"{{"server":"redis-server","generator":"{generator}","pipeline":16,"keys":100,"duration":"300 ms"}}"#
        );
        // A busy machine may let the server do nothing in that time.
        let mut tries = (0..20).map(|_| trial(&parameters, None));
        let is_served = |trial: &Trial| trial.error.is_some() || trial.counters["operations"] > 0;
        let trial = tries.find(is_served).expect("a trial with requests");
        assert_eq!(trial.error, None);
        let operations = trial.counters["operations"] as f64;
        for metric in ["cpu_generator_time", "cpu_server_time"] {
            // More than reading a request's bytes takes, however few a busy machine lets a server
            // have, and not more than a processor has in the time that it took.
            let time = trial.values[metric];
            let longest = 1.0 / trial.values["request_rate"] + 0.1 / operations;
            assert!(
                time > 1e-7 && time < longest,
                "{generator} {metric}: {time} s, {operations} requests"
            );
        }
        assert!(trial.values["latency_p50"] <= trial.values["latency_p99"]);
    }
}

#[test]
fn a_stopped_server_is_in_the_percentiles_of_an_open_loop_and_not_of_a_closed_one() {
    if !has(&["nginx"]) {
        return;
    }
    let of = |pace: &str| {
        let parameters = format!(
            r#"{{"connections":4,"pace":"{pace}","share":0.1,"stall":"1 s","duration":"4 s"}}"#
        );
        // On a busy machine the generator may fall behind, says so, and is asked again; so is one
        // whose server stood still for longer than it was stopped, or found too slow for a rate at
        // which percentiles mean something. A generator that stood still itself may measure less.
        let mut tries = (0..15).map(|_| trial(&parameters, None));
        let is_held_up = |trial: &Trial| {
            let of_expected = ["p99_of_expected", "p999_of_expected"];
            let mut of_expected = of_expected
                .iter()
                .filter_map(|name| trial.values.get(*name));
            let is_slow = trial.counters.get("scheduled").is_some_and(|n| *n <= 25);
            let is_short = |ratio: f64| pace == "open" && ratio < 0.9;
            is_slow || of_expected.any(|ratio| *ratio >= 1.2 || is_short(*ratio))
        };
        let found = tries.find(|trial| trial.error.is_none() && !is_held_up(trial));
        found.expect("one trial of fifteen that a busy machine does not hold up")
    };
    let (open, closed) = (of("open"), of("closed"));
    // A quarter of all clients came while it was stopped.
    let ratio = open.values["p99_of_expected"];
    assert!((0.9..1.2).contains(&ratio), "{:?}", open.values);
    assert!(
        (0.9..1.2).contains(&open.values["p999_of_expected"]),
        "{:?}",
        open.values
    );
    assert!(
        closed.values["p99_of_expected"] < 0.5,
        "{:?}",
        closed.values
    );
    assert_eq!(open.counters["unscheduled"], 0);
    assert_eq!(open.counters["unanswered"], 0);
    assert_eq!(open.counters["miscounted"], 0);
}

#[test]
fn a_program_that_is_absent_is_not_testable_with_its_package() {
    let empty = tempfile::tempdir().unwrap();
    let absent = r#"{"generator":"wrk"}"#;
    let experiment = |generator: &str| {
        format!(
            "[[experiment]]\nid = \"test/absent\"\ntitle = \"Absent\"\nsource = \"the test\"\n\
             driver = \"load\"\nmatrix = {{ generator = [\"{generator}\"] }}\n\
             metric = {{ name = \"request_rate\", unit = \"req/s\", better = \"higher\" }}\n"
        )
    };
    fs::write(empty.path().join("absent.toml"), experiment("wrk")).unwrap();
    let printed = Command::new(env!("CARGO_BIN_EXE_tare"))
        .args(["doctor", "absent.toml"])
        .current_dir(empty.path())
        .env("PATH", empty.path())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    // nginx is found where servers are, without PATH.
    assert!(
        printed.contains("apt install wrk") || printed.contains("apt install nginx"),
        "{printed}"
    );
    assert!(trial(absent, Some(("/absent", empty.path())))
        .error
        .is_some());
}

/// A trial of Redis with a script of that name in place of redis-benchmark.
fn redis_trial(script: &str, folder: &Path) -> Trial {
    // Below /tmp perhaps no program may run.
    let programs = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = programs.path().join("redis-benchmark");
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    let mut permissions = fs::metadata(&program).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
    fs::set_permissions(&program, permissions).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", programs.path().display());
    let parameters =
        r#"{"server":"redis-server","generator":"redis-benchmark","keys":10,"duration":"100 ms"}"#;
    trial(parameters, Some((&path, folder)))
}

#[test]
fn a_run_too_short_for_the_clock_of_redis_benchmark_is_repeated_with_more_requests() {
    if !has(&["redis-server"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("requests");
    let rate = |rate: &str| {
        format!(
            r#"printf '"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"\n"GET","%s","0.1","0.1","0.1","0.1","0.1","0.1"\n' {rate}"#
        )
    };
    let (none, some) = (rate("inf"), rate("5000.00"));
    let script = format!(
        "while [ \"$1\" != -n ]; do shift; done; echo $2 >> {log}\n\
         if [ $(wc -l < {log}) -lt 3 ]; then {none}; else {some}; fi",
        log = log.display()
    );
    let done = redis_trial(&script, folder.path());
    assert_eq!(done.error, None);
    assert_eq!(done.values["request_rate"], 5000.0);
    let asked = fs::read_to_string(&log).unwrap();
    let asked: Vec<u64> = asked.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(asked, [asked[0], asked[0] * 10, asked[0] * 100]);
    // A clock that stands still is an error in the end.
    let failed = redis_trial(&none, folder.path());
    let (message, _) = failed.error.expect("an error");
    assert!(message.contains("found \"inf\""), "{message}");
}

#[test]
fn a_server_is_ended_with_a_trial_that_fails() {
    if !has(&["redis-server"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let failed = redis_trial("echo no report", folder.path());
    let (message, missing) = failed.error.expect("an error");
    assert!(
        message.contains("redis-benchmark") || message.contains("no report"),
        "{message}"
    );
    assert!(!missing);
    assert_eq!(left_running(folder.path()), [""; 0]);
}
