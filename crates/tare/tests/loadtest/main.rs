//! `tare loadtest` as users run it: the built program, its output and its exit status.

mod interfaces;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tare_loadtest::simulate;
use tare_packet::pcap::{Header, Writer};

fn tare(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tare"));
    command.arg("loadtest").args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    tare(arguments).output().expect("tare runs")
}

/// A search on a simulated line, with these arguments too.
fn find_limit_simulated(more: &str) -> Output {
    let arguments = format!("find-limit --simulate=queue=16 -b 1e9 -D 0.1 {more}");
    run(&arguments.split(' ').collect::<Vec<_>>())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn assert_exit(output: &Output, code: i32) {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(
        output.status.code(),
        Some(code),
        "stdout: {out}\nstderr: {err}"
    );
}

/// A capture of frames of these sizes.
fn capture(folder: &Path, name: &str, sizes: &[usize]) -> String {
    let path = folder.join(name);
    let mut writer = Writer::new(File::create(&path).unwrap(), Header::default()).unwrap();
    for &size in sizes {
        writer.write(0, &simulate::frame(size)).unwrap();
    }
    path.to_str().unwrap().to_owned()
}

#[test]
fn the_documents_command_gives_its_answer_on_simulated_lines() {
    let folder = tempfile::tempdir().unwrap();
    let one = capture(folder.path(), "node1-private-in.pcap", &[60]);
    let two = capture(folder.path(), "node2-private-in.pcap", &[60]);
    let csv = folder.path().join("trials.csv");
    let output = run(&[
        "find-limit",
        "--simulate",
        "-b",
        "1e9",
        "-r",
        "0",
        "--csv",
        csv.to_str().unwrap(),
        &one,
        "node1",
        "node2",
        "22:00.0",
        &two,
        "node2",
        "node1",
        "23:00.2",
    ]);
    assert_exit(&output, 0);
    let out = text(&output.stdout);
    assert!(
        out.starts_with(
            "Applying 0.500000 Gbps of load.\n  node1:\n    TX 744048 packets (0.744048 MPPS)"
        ),
        "{out}"
    );
    assert!(out.ends_with("Success.\n0.609\n"), "{out}");
    let loads: Vec<&str> = out
        .lines()
        .filter_map(|line| line.strip_prefix("Applying "))
        .map(|line| &line[..5])
        .collect();
    assert_eq!(
        loads,
        [
            "0.500", "0.750", "0.625", "0.563", "0.594", "0.610", "0.602", "0.606", "0.608",
            "0.609", "0.609"
        ]
    );
    let csv = fs::read_to_string(csv).unwrap();
    assert_eq!(csv.lines().count(), 1 + 2 * loads.len());
    assert!(csv.starts_with("load_gbps,stream,tx_packets,"));
}

#[test]
fn a_newcomer_needs_no_capture_and_no_root() {
    let output = find_limit_simulated("-r 0 --json");
    assert_exit(&output, 0);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let passed = json["limit"]["passed_bits_per_second"].as_u64().unwrap();
    assert!(passed.abs_diff(608_695_652) <= 1_000_000, "{passed}");
    assert_eq!(json["simulated"], true);
    for trial in json["trials"].as_array().unwrap() {
        for stream in trial["streams"].as_array().unwrap() {
            let count = |key: &str| stream[key].as_u64().unwrap();
            assert_eq!(count("tx_packets"), count("rx_packets") + count("lost"));
            assert_eq!(count("duplicates") + count("reordered") + count("late"), 0);
        }
    }
}

#[test]
fn streams_with_different_limits_are_searched_by_bisection() {
    let folder = tempfile::tempdir().unwrap();
    let short = capture(folder.path(), "a60.pcap", &[60]);
    let long = capture(folder.path(), "b128.pcap", &[128]);
    let output = run(&[
        "find-limit",
        "--simulate=queue=16",
        "-b",
        "1e9",
        "-D",
        "0.1",
        "-r",
        "0",
        "--json",
        &short,
        "node1",
        "node2",
        "x",
        &long,
        "node2",
        "node1",
        "y",
    ]);
    assert_exit(&output, 0);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["algorithm"], "bisect", "{}", json["why"]);
    let passed = json["limit"]["passed_bits_per_second"].as_u64().unwrap();
    assert!(passed.abs_diff(608_695_652) <= 1_000_000, "{passed}");
}

#[test]
fn a_simulated_network_with_a_long_delay_has_frames_for_all_that_is_under_way() {
    // At 0.6 Gb/s and 20 ms there are 36,000 packets on the way.
    let arguments = "find-limit --simulate=delay=0.02,queue=16 -b 1e9 -D 0.1 -p 10e6 -r 0 --json";
    let output = run(&arguments.split(' ').collect::<Vec<_>>());
    assert_exit(&output, 0);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let passed = json["limit"]["passed_bits_per_second"].as_u64().unwrap();
    assert_eq!(passed, 600_000_000);
}

#[test]
fn mlrsearch_finds_both_rates_between_bounds() {
    let output = find_limit_simulated("--algorithm mlr --width 0.002");
    assert_exit(&output, 0);
    let out = text(&output.stdout);
    let line = |name: &str| {
        out.lines()
            .find(|line| line.starts_with(name))
            .unwrap_or_else(|| panic!("{out}"))
    };
    for (name, limit) in [("NDR: ", 0.6087), ("PDR: ", 0.6087 / 0.995)] {
        let numbers: Vec<f64> = line(name)
            .split(' ')
            .filter_map(|word| word.parse().ok())
            .collect();
        let [lower, upper, throughput] = numbers[..] else {
            panic!("{out}")
        };
        assert!(
            lower < upper && (lower / limit - 1.0f64).abs() < 0.005,
            "{out}"
        );
        assert!((throughput / 0.6087 - 1.0).abs() < 0.005, "{out}");
    }
    let ndr: f64 = out.lines().last().unwrap().parse().unwrap();
    assert!((ndr / 0.6087 - 1.0).abs() < 0.005);
}

#[test]
fn a_command_can_decide_whether_a_rate_passes() {
    let folder = tempfile::tempdir().unwrap();
    let count = folder.path().join("count");
    let judge = format!(
        "echo x >> {}; test $(wc -l < {}) -le 1",
        count.display(),
        count.display()
    );
    let output = run(&[
        "find-limit",
        "--simulate",
        "-b",
        "1e9",
        "-D",
        "0.001",
        "-p",
        "0.25e9",
        "-r",
        "1",
        "--exec",
        &judge,
    ]);
    // Half passes, three quarters fails twice, and half fails when it is tested again, as does a
    // quarter.
    let out = text(&output.stdout);
    assert_exit(&output, 1);
    let verdicts: Vec<&str> = out
        .lines()
        .filter(|line| line.starts_with("Success") || line.starts_with("Failed"))
        .collect();
    let twice = ["Failed; 0 retries remaining.", "Failed."];
    let expected: Vec<&str> = ["Success."].into_iter().chain(twice.repeat(3)).collect();
    assert_eq!(verdicts, expected, "{out}");
    assert!(out.ends_with("\n0\n"), "{out}");
}

#[test]
fn a_ramp_goes_up_and_down_and_into_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let csv = folder.path().join("ramp.csv");
    let output = run(&[
        "transient",
        "--simulate",
        "-b",
        "1e9",
        "-D",
        "0.01",
        "--bench-file",
        csv.to_str().unwrap(),
    ]);
    assert_exit(&output, 0);
    let csv = fs::read_to_string(csv).unwrap();
    let mut lines = csv.lines();
    let columns = "load_gbps,stream,tx_packets,tx_mpps,tx_bytes,tx_gbps,rx_packets,rx_mpps,rx_bytes,rx_gbps,ingress_drop,lost_packets,lost_percent";
    assert_eq!(lines.next(), Some(columns));
    let loads: Vec<f64> = lines
        .map(|line| line.split(',').next().unwrap().parse().unwrap())
        .collect();
    let up = (1..=10).map(|n| f64::from(n) / 10.0);
    let expected: Vec<f64> = up
        .clone()
        .chain(up.rev())
        .flat_map(|load| [load, load])
        .collect();
    assert_eq!(loads, expected);

    let output = run(&[
        "transient",
        "--simulate",
        "-p",
        "steps",
        "--rates",
        "0.1e9,0.2e9",
        "-D",
        "0.01",
        "--latency",
    ]);
    assert_exit(&output, 0);
    assert_eq!(text(&output.stdout).matches("Latency: p50").count(), 4);
}

#[test]
fn the_benchmarks_of_rfc_2544_are_run_for_each_size() {
    let output = run(&[
        "rfc2544",
        "--simulate=queue=64,overhead=0",
        "-b",
        "1e9",
        "-D",
        "0.02",
        "--sizes",
        "64,1518",
        "--latency-trials",
        "2",
        "--burst",
        "0.01",
        "--burst-trials",
        "1",
        "--json",
    ]);
    assert_exit(&output, 0);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let sizes = json["sizes"].as_array().unwrap();
    assert_eq!(sizes.len(), 2);
    let trials = json["trials"].as_array().unwrap();
    assert_eq!(json["trial_count"], trials.len());
    assert_eq!(trials[0]["frame_bytes"], 64);
    assert_eq!(trials[0]["benchmark"], "throughput");
    assert_eq!(trials[0]["streams"][0]["lost"], 0);
    for size in sizes {
        // Without overhead, the lines carry the whole rate.
        assert_eq!(size["throughput"]["passed_bits_per_second"], 1_000_000_000);
        assert_eq!(size["throughput"]["failed_bits_per_second"], Value::Null);
        assert_eq!(size["frames_without_stamp"], 0);
        assert_eq!(size["frame_loss"][0]["loss_percent"], 0.0);
        assert_eq!(
            size["back_to_back"]["mean_frames"],
            size["back_to_back"]["longest_tried"].as_f64().unwrap()
        );
    }
    let brief = |sizes: &str| {
        let arguments = [
            "rfc2544",
            "--simulate",
            "-b",
            "1e9",
            "-D",
            "0.01",
            "--burst",
            "0.01",
        ];
        run(&[&arguments[..], &["--sizes", sizes]].concat())
    };
    let output = brief("64");
    assert_exit(&output, 0);
    let first = text(&output.stdout);
    assert!(first.contains("packets/s of 1488095 that the medium carries"));
    // What the report prints can be given.
    let printed = first.lines().next().unwrap();
    let output = brief(printed);
    assert_exit(&output, 0);
    assert_eq!(text(&output.stdout), first);
}

#[test]
fn wrong_usage_is_one_line_that_says_what_was_expected() {
    let folder = tempfile::tempdir().unwrap();
    let good = capture(folder.path(), "good.pcap", &[60]);
    let bad = folder.path().join("bad.pcap");
    fs::write(&bad, "no capture").unwrap();
    let bad = bad.to_str().unwrap();
    let cases: &[(&[&str], &str)] = &[
        (
            &["find-limit"],
            "found 0 arguments, expected PCAP TX RX INTERFACE",
        ),
        (&["find-limit", &good, "a", "b"], "found 3 arguments"),
        (
            &["find-limit", "--simulate", &good, "a", "b", "x"],
            "stream a is to be received by b, which is the name of no stream",
        ),
        (
            &[
                "find-limit",
                "--simulate",
                &good,
                "a",
                "a",
                "x",
                &good,
                "a",
                "a",
                "y",
            ],
            "two streams are named a",
        ),
        (
            &["find-limit", "--simulate", bad, "a", "a", "x"],
            "bad.pcap",
        ),
        (
            &["find-limit", "--simulate", "/nowhere.pcap", "a", "a", "x"],
            "/nowhere.pcap: No such file",
        ),
        (&["find-limit", "-b", "fast"], "expected bits per second"),
        (&["find-limit", "-b", "1e6", "-p", "1e9"], "--precision"),
        (
            &["find-limit", "--simulate=loss=2"],
            "loss: found \"2\", expected a share",
        ),
        (
            &[
                "find-limit",
                "--algorithm",
                "mlr",
                "--exec",
                "true",
                "--simulate",
            ],
            "--exec cannot be used",
        ),
        (
            &["find-limit", &good, "no-such-interface"],
            "no interface \"no-such-interface\"",
        ),
        (
            &["find-limit", "--simulate", "--cpu", "1000"],
            "--cpu: found 1000",
        ),
        (
            &["transient", "--simulate", "-b", "1e9", "-s", "1"],
            "--step",
        ),
        (&["transient", "--simulate", "-p", "steps"], "--rates"),
        (
            &["rfc2544", "--simulate", "--sizes", "10"],
            "found \"10\", expected 64 to 9018 bytes",
        ),
        (
            &["find-limit", "--simulate", "--csv", "/nowhere/trials.csv"],
            "/nowhere/trials.csv: No such file",
        ),
    ];
    for (arguments, expected) in cases {
        let output = run(arguments);
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {err}");
        assert!(err.contains(expected), "{arguments:?}: {err}");
        assert_eq!(err.lines().count(), 1, "{arguments:?}: {err}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn trials_that_contradict_each_other_are_searched_with_mlrsearch_and_the_report_says_why() {
    let search = |json: &[&str]| {
        // One of a thousand packets is lost at any rate: none passes, most loads lose little.
        let arguments = ["find-limit", "--simulate=loss=0.001,queue=16", "-b", "1e9"];
        let rest = ["-D", "0.01", "-r", "0", "--width", "0.05"];
        run(&[&arguments[..], &rest[..], json].concat())
    };
    let output = search(&[]);
    assert_exit(&output, 0);
    let out = text(&output.stdout);
    assert!(out.contains("Gbps failed, but a trial at"), "{out}");
    let pdr = out.lines().find(|line| line.starts_with("PDR: ")).unwrap();
    let lower: f64 = pdr.split(' ').nth(3).unwrap().parse().unwrap();
    assert!((0.5..0.65).contains(&lower), "{pdr}");
    let output = search(&["--json"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["algorithm"], "mlr");
    assert!(json["why"].as_str().unwrap().contains("failed, but"));
    assert!(json["goals"][1]["lower_bits_per_second"].as_u64() > Some(500_000_000));
    // Where none contradicts another, bisection it is, with its interval.
    let output = run(&[
        "find-limit",
        "--simulate",
        "-b",
        "1e9",
        "-D",
        "0.05",
        "-r",
        "0",
        "--json",
    ]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["algorithm"], "bisect");
    assert_eq!(json["why"], "no trial contradicts another");
    let limit = |key: &str| json["limit"][key].as_u64().unwrap();
    assert_eq!(
        limit("failed_bits_per_second") - limit("passed_bits_per_second"),
        1_000_000
    );
}
