//! `tare rng` as users run it: the built program, its output and its exit status.

mod gen;
mod progress;
mod test;

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The shortest stream that every built-in test can judge.
const FULL: &str = "1Mi";

fn tare(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tare"));
    command.arg("rng").args(arguments).stdin(Stdio::null());
    // The caller may have switched RDSEED off; the tests need it.
    command.env_remove("TARE_RDSEED");
    command
}

fn run(arguments: &[&str]) -> Output {
    tare(arguments).output().expect("tare runs")
}

/// `tare rng` with these arguments, run by a shell that changes something before; `$TARE` is the
/// program.
fn by_shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", script])
        .env("TARE", env!("CARGO_BIN_EXE_tare"))
        .stdin(Stdio::null());
    command
}

/// Returns true if this machine has what the method needs, and prints a notice if not.
fn has(method: &str) -> bool {
    let has = match method {
        "rdseed" => std::arch::is_x86_feature_detected!("rdseed"),
        "rand_chacha" => true,
        _ => std::arch::is_x86_feature_detected!("rdrand"),
    };
    if !has {
        eprintln!("NOT TESTED: {method}: the processor lacks the instruction");
    }
    has
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

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let from = Instant::now();
    while !condition() {
        assert!(
            from.elapsed() < Duration::from_secs(120),
            "waited in vain until {what}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn wrong_arguments_are_one_clear_sentence_and_exit_2() {
    let cases: [(&[&str], &str); 16] = [
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
        (&["gen", "--retry-limit", "0"], "--retry-limit"),
        (&["gen", "--retry-time", "1 ms"], "expected seconds above 0"),
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
    assert!(report["cpu_of_bare"].as_f64().unwrap() > 0.0);
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

#[test]
fn without_rdseed_because_it_is_switched_off_doctor_says_so_and_how_to_have_it_back() {
    if !has("rdseed") {
        return;
    }
    let doctor = |value: &str| {
        let mut command = by_shell("exec \"$TARE\" doctor rdrand");
        let output = command.env("TARE_RDSEED", value).output().unwrap();
        assert_exit(&output, 0);
        text(&output.stdout)
    };
    let lacking = |said: &str| said.contains("the processor has no RDSEED");
    let said = doctor("off");
    assert!(!lacking(&said), "{said}");
    let reason = "RDSEED is switched off by TARE_RDSEED in the environment";
    assert!(said.matches(reason).count() > 1, "{said}");
    assert!(said.contains("unset TARE_RDSEED"), "{said}");
    let said = doctor("on");
    assert!(
        !lacking(&said) && !said.contains("unset TARE_RDSEED"),
        "{said}"
    );
}
