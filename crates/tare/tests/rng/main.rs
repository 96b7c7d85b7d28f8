//! `tare rng` as a stranger meets it: the built program, its output and its exit status.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const METHODS: [&str; 10] = [
    "get_bytes",
    "uint8_array",
    "uint16_array",
    "uint32_array",
    "uint64_array",
    "reseed_delay",
    "reseed_skip",
    "aes_ctr",
    "rdseed",
    "seed",
];
/// The shortest stream from which every built-in test judges.
const FULL: &str = "1Mi";

fn tare(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tare"));
    command.arg("rng").args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    tare(arguments).output().expect("tare runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn assert_exit(output: &Output, code: i32) {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let out: String = out.chars().take(4000).collect();
    assert_eq!(
        output.status.code(),
        Some(code),
        "stdout: {out}\nstderr: {err}"
    );
}

#[test]
fn every_method_writes_exactly_the_bytes_asked_for() {
    for method in METHODS {
        for (size, bytes) in [("0", 0), ("1", 1), ("3705", 3705), ("4Ki", 4096)] {
            for threads in ["1", "3"] {
                let output = run(&["gen", "-n", size, "-m", method, "-t", threads]);
                assert_exit(&output, 0);
                assert_eq!(
                    output.stdout.len(),
                    bytes,
                    "{method}, {size}, {threads} threads"
                );
            }
        }
    }
}

#[test]
fn two_hundred_threads_give_ten_million_bytes() {
    let output = run(&["gen", "-n", "10M", "-t", "200"]);
    assert_exit(&output, 0);
    assert_eq!(output.stdout.len(), 10_000_000);
    // Chunks of different threads differ, and none is left zero.
    let mut words: Vec<&[u8]> = output.stdout.chunks_exact(16).collect();
    words.sort_unstable();
    assert!(words.windows(2).all(|pair| pair[0] != pair[1]));
}

#[test]
fn a_file_is_complete_or_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("random.bin");
    let name = path.to_str().unwrap();
    fs::write(&path, "old").unwrap();
    assert_exit(&run(&["gen", "-n", "1000001", "-t", "2", "-o", name]), 0);
    assert_eq!(fs::metadata(&path).unwrap().len(), 1_000_001);
    assert_eq!(names(folder.path()), ["random.bin"]);
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn an_interrupt_leaves_the_old_file_and_no_new_one() {
    for signal in ["INT", "TERM"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("random.bin");
        fs::write(&path, "old").unwrap();
        let mut child = tare(&["gen", "-n", "1T", "-m", "reseed_skip", "-o"])
            .arg(&path)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let part = folder.path().join("random.bin.part");
        wait_until("the part file grows", || {
            fs::metadata(&part).is_ok_and(|file| file.len() > 0)
        });
        assert_eq!(fs::read(&path).unwrap(), b"old");
        let kill = Command::new("kill")
            .args(["-s", signal, &child.id().to_string()])
            .status();
        assert!(kill.unwrap().success());
        let status = child.wait().unwrap();
        assert_eq!(
            status.code(),
            Some(130),
            "{signal}: {status}, signal {:?}",
            status.signal()
        );
        let mut error = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut error)
            .unwrap();
        assert!(error.contains("interrupted; incomplete after"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(folder.path()), ["random.bin"]);
    }
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let from = Instant::now();
    while !condition() {
        assert!(
            from.elapsed() < Duration::from_secs(30),
            "waited in vain until {what}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_full_disk_is_said_and_is_no_success() {
    let to_name = run(&["gen", "-n", "100k", "-o", "/dev/full"]);
    assert_exit(&to_name, 2);
    assert!(
        text(&to_name.stderr).contains("/dev/full: No space left"),
        "{}",
        text(&to_name.stderr)
    );

    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let to_standard = tare(&["gen", "-n", "100k"]).stdout(full).output().unwrap();
    assert_exit(&to_standard, 2);
    let error = text(&to_standard.stderr);
    assert!(error.contains("standard output: No space left"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn a_reader_who_has_enough_ends_it_quietly() {
    for count in [&["-n", "1G"][..], &[]] {
        let mut child = tare(&[&["gen"], count].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = [0; 100];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_exit(&output, 0);
        assert_eq!(text(&output.stderr), "");
    }
}

#[test]
fn a_named_pipe_whose_reader_leaves_is_no_success() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    assert!(Command::new("mkfifo")
        .arg(&path)
        .status()
        .unwrap()
        .success());
    let child = tare(&["gen", "-n", "10M", "-o"])
        .arg(&path)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 100];
    fs::File::open(&path)
        .unwrap()
        .read_exact(&mut first)
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_exit(&output, 2);
    assert!(
        text(&output.stderr).contains("incomplete after"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn wrong_arguments_are_one_clear_sentence_and_exit_2() {
    let cases: [(&[&str], &str); 14] = [
        (&["gen", "-n", "10X"], "expected bytes such as"),
        (&["gen", "-n", "-5"], "-5"),
        (&["gen", "-n", "5", "-m", "quantum"], "quantum"),
        (&["gen", "-n", "5", "-m", "rand_chacha"], "rand_chacha"),
        (&["gen", "-n", "5", "-t", "0"], "0 is not in 1..=1024"),
        (&["gen", "-o", "never.bin"], "a file needs a length"),
        (
            &["gen", "-n", "5", "-o", "/"],
            "cannot write /: it is a directory",
        ),
        (
            &["gen", "-n", "5", "-o", "/nowhere/file"],
            "cannot write /nowhere/file.part",
        ),
        (&["bench", "-d", "0"], "expected seconds above 0"),
        (&["bench", "-n", "5", "-d", "1"], "cannot be used with"),
        (&["test", "/nowhere/file"], "cannot read /nowhere/file"),
        (&["test", "/"], "cannot read /"),
        (&["test", "--external", "diceharder"], "diceharder"),
        (
            &["test", "--generator", "counter", "-m", "rdseed"],
            "cannot be used with",
        ),
    ];
    for (arguments, sentence) in cases {
        let output = run(arguments);
        assert_exit(&output, 2);
        let error = text(&output.stderr);
        let first = error.lines().next().unwrap_or_default();
        assert!(first.contains(sentence), "{arguments:?}: {error}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn generators_broken_on_purpose_fail() {
    for broken in ["counter", "constant", "biased", "repeating", "zero-blocks"] {
        let output = run(&[
            "test",
            "--generator",
            broken,
            "-n",
            FULL,
            "--external",
            "none",
        ]);
        assert_exit(&output, 1);
        assert!(text(&output.stdout).contains("\nfail: "), "{broken}");
    }
}

#[test]
fn good_methods_pass() {
    for method in [
        "get_bytes",
        "uint16_array",
        "aes_ctr",
        "rdseed",
        "seed",
        "rand_chacha",
    ] {
        let arguments = [
            "test",
            "-m",
            method,
            "-n",
            FULL,
            "--external",
            "none",
            "--json",
        ];
        let output = run(&arguments);
        assert_exit(&output, 0);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["verdict"], "pass");
        assert_eq!(report["bytes"], 1024 * 1024);
        assert_eq!(report["family_alpha"], 1e-6);
        let tests = report["tests"].as_array().unwrap();
        assert!(
            tests.len() > 25 && tests.iter().all(|test| test["p"].is_number()),
            "{method}"
        );
    }
}

#[test]
fn a_file_and_a_pipe_are_tested_like_a_method() {
    let random = run(&["gen", "-n", FULL]).stdout;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("random.bin");
    fs::write(&path, &random).unwrap();
    let of_file = run(&[
        "test",
        path.to_str().unwrap(),
        "--external",
        "none",
        "--json",
    ]);
    assert_exit(&of_file, 0);

    let mut child = tare(&["test", "-", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&random).unwrap();
    let of_pipe = child.wait_with_output().unwrap();
    assert_exit(&of_pipe, 0);
    let parse = |output: &Output| serde_json::from_slice::<Value>(&output.stdout).unwrap();
    assert_eq!(parse(&of_file)["tests"], parse(&of_pipe)["tests"]);
}

#[test]
fn too_few_bytes_are_no_pass() {
    for bytes in ["0", "100", "100k"] {
        let output = run(&["test", "-n", bytes, "--external", "none"]);
        assert_exit(&output, 2);
        assert!(text(&output.stdout).contains("\ntoo-short: "), "{bytes}");
    }
    // But what fails, fails.
    let output = run(&[
        "test",
        "--generator",
        "constant",
        "-n",
        "4Ki",
        "--external",
        "none",
    ]);
    assert_exit(&output, 1);
}

#[test]
fn the_bench_measures_method_and_limit_in_turn() {
    let arguments = [
        "bench", "-d", "0.02", "-r", "3", "-t", "2", "-c", "64", "--json",
    ];
    let output = run(&arguments);
    assert_exit(&output, 0);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let series = report["series"].as_array().unwrap();
    let methods: Vec<_> = series
        .iter()
        .map(|one| one["method"].as_str().unwrap())
        .collect();
    assert_eq!(methods, ["get_bytes", "bare_64"]);
    for one in series {
        let repeats = one["repeats"].as_array().unwrap();
        assert_eq!(repeats.len(), 3);
        for repeat in repeats {
            assert_eq!(
                repeat["bytes"].as_u64().unwrap(),
                512 * repeat["calls"].as_u64().unwrap()
            );
            assert!(repeat["wall_ns"].as_u64().unwrap() >= 20_000_000);
        }
        assert!(one["median"]["throughput"].as_f64().unwrap() > 0.0);
    }
    assert_eq!(report["unit"], "B/s");
    assert!(report["of_bare"].as_f64().unwrap() > 0.0);
}

#[test]
fn the_bench_stops_after_a_number_of_numbers() {
    let arguments = [
        "bench", "-n", "10000", "-r", "1", "-t", "2", "-c", "100", "--json",
    ];
    let output = run(&arguments);
    assert_exit(&output, 0);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["series"][0]["repeats"][0]["bytes"], 80_000);
}

/// The batteries of others, on a good stream and on a bad one.
#[test]
fn installed_batteries_are_driven_and_judged() {
    for (battery, package) in [
        ("ent", "ent"),
        ("rngtest", "rng-tools5"),
        ("dieharder", "dieharder"),
    ] {
        let path = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&path).any(|folder| folder.join(battery).is_file()) {
            let missing = format!("{battery} is not installed: apt-get install {package}");
            assert!(std::env::var("CI").as_deref() != Ok("true"), "{missing}");
            eprintln!("NOT TESTED: {missing}");
            continue;
        }
        for (subject, code, status) in [
            (["-m", "get_bytes"], 0, "pass"),
            (["--generator", "constant"], 1, "fail"),
        ] {
            let common = [
                "test",
                "-n",
                "2Mi",
                "--time",
                "12",
                "--json",
                "--external",
                battery,
            ];
            let output = run(&[&common[..], &subject].concat());
            assert_exit(&output, code);
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            let verdict = &report["external"][0];
            assert_eq!(verdict["battery"], battery);
            assert_eq!(verdict["status"], status, "{verdict}");
            assert!(verdict["bytes"].as_u64().unwrap() > 0, "{verdict}");
        }
    }
}

#[test]
fn a_battery_that_is_not_installed_is_said_with_the_command_that_gets_it() {
    let folder = tempfile::tempdir().unwrap();
    let with_empty_path = |external: &str| {
        let arguments = ["test", "-n", FULL, "--external", external];
        tare(&arguments)
            .env("PATH", folder.path())
            .output()
            .unwrap()
    };
    let all = with_empty_path("all");
    assert_exit(&all, 0);
    for command in [
        "apt-get install dieharder",
        "apt-get install rng-tools5",
        "apt-get install ent",
    ] {
        assert!(text(&all.stdout).contains(command), "{}", text(&all.stdout));
    }
    let named = with_empty_path("ent");
    assert_exit(&named, 2);
    assert!(text(&named.stderr).contains("ent is not installed: apt-get install ent"));
}
