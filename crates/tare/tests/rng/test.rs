//! `tare rng test`: its input and its verdicts.

use std::fs::{self, File};
use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use super::{assert_exit, by_shell, has, run, tare, text, FULL};

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
    ]
    .into_iter()
    .filter(|method| has(method))
    {
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

    let parse = |output: &Output| serde_json::from_slice::<Value>(&output.stdout).unwrap();
    // Without a name too: standard input is tested then.
    for arguments in [&["test", "-", "--json"][..], &["test", "--json"]] {
        let of_pipe = piped(arguments, &random);
        assert_exit(&of_pipe, 0);
        assert_eq!(parse(&of_pipe)["subject"], "standard input");
        assert_eq!(parse(&of_file)["tests"], parse(&of_pipe)["tests"]);
        assert_eq!(parse(&of_pipe)["bound"], Value::Null);
    }
}

fn piped(arguments: &[&str], bytes: &[u8]) -> Output {
    let mut child = tare(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn zeros_through_a_pipe_fail() {
    let output = piped(&["test"], &vec![0; 1 << 20]);
    assert_exit(&output, 1);
    assert!(text(&output.stdout).starts_with("standard input: 1048576 bytes"));
    // An empty stream does not pass.
    assert_exit(&run(&["test"]), 2);
}

#[test]
fn a_terminal_is_refused_with_what_to_do() {
    for arguments in ["rng test", "rng test -"] {
        // The terminal of its own that script gives a program is its standard input.
        let output = Command::new("script")
            .args(["-qec", &format!("\"$TARE\" {arguments}"), "/dev/null"])
            .env("TARE", env!("CARGO_BIN_EXE_tare"))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = text(&output.stdout);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains("name a FILE, pipe a stream into it, or test a method"),
            "{said}"
        );
    }
}

#[test]
fn an_endless_stream_is_read_up_to_a_reported_bound() {
    let zeros = File::open("/dev/zero").unwrap();
    let output = tare(&["test", "--json"]).stdin(zeros).output().unwrap();
    assert_exit(&output, 1);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["bytes"], 256 << 20);
    assert_eq!(report["bound"], 256 << 20);

    // A bound of the command line needs no remark.
    let output = run(&["test", "/dev/zero", "-n", FULL, "--external", "none"]);
    assert_exit(&output, 1);
    let said = text(&output.stdout);
    assert!(
        said.starts_with("/dev/zero: 1048576 bytes") && !said.contains("no more than"),
        "{said}"
    );
}

#[test]
fn a_named_pipe_is_read_once() {
    let folder = tempfile::tempdir().unwrap();
    let script = "mkfifo pipe; head -c 1048576 /dev/zero > pipe & exec \"$TARE\" rng test pipe";
    let output = by_shell(script)
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_exit(&output, 1);
    assert!(text(&output.stdout).contains("other batteries were not run"));
}

#[test]
fn too_few_bytes_do_not_pass() {
    for bytes in ["0", "100", "100k"] {
        let arguments = [
            "test",
            "-m",
            "rand_chacha",
            "-n",
            bytes,
            "--external",
            "none",
        ];
        let output = run(&arguments);
        assert_exit(&output, 2);
        assert!(text(&output.stdout).contains("\ntoo-short: "), "{bytes}");
    }
    // A stream that fails, fails all the same.
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

/// The other batteries, on a good stream and on a bad one.
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
            (["-m", "rand_chacha"], 0, "pass"),
            (["--generator", "constant"], 1, "fail"),
        ] {
            // Longer on a busy machine, where none of a battery's tests may end within the time.
            let judged = |time| {
                let common = ["test", "-n", "2Mi", "--json", "--external", battery];
                let output = run(&[&common[..], &["--time", time], &subject].concat());
                let report: Value = serde_json::from_slice(&output.stdout).unwrap();
                (output, report["external"][0].clone())
            };
            let is_judged = |verdict: &Value| verdict["status"] != "inconclusive";
            let mut all = ["12", "60", "300"].into_iter().map(judged);
            let found = all.find(|(_, verdict)| is_judged(verdict));
            let (output, verdict) = found.expect("a verdict in time");
            assert_exit(&output, code);
            assert_eq!(verdict["battery"], battery);
            assert_eq!(verdict["status"], status, "{verdict}");
            assert!(verdict["bytes"].as_u64().unwrap() > 0, "{verdict}");
        }
    }
}

#[test]
fn a_battery_that_is_not_installed_is_reported_with_the_command_that_installs_it() {
    let folder = tempfile::tempdir().unwrap();
    let with_empty_path = |external: &str| {
        let arguments = [
            "test",
            "-m",
            "rand_chacha",
            "-n",
            FULL,
            "--external",
            external,
        ];
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
