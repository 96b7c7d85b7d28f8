//! `tare loadtest` as users run it: the built program, its output and its exit status.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

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
    ]);
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
fn mlrsearch_finds_both_rates_between_bounds() {
    let output = run(&[
        "find-limit",
        "--simulate=queue=16",
        "-b",
        "1e9",
        "-D",
        "0.1",
        "--algorithm",
        "mlr",
        "--width",
        "0.002",
    ]);
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
    for size in sizes {
        // Without overhead, the lines carry the whole rate.
        assert_eq!(size["throughput"]["passed_bits_per_second"], 1_000_000_000);
        assert_eq!(size["throughput"]["failed_bits_per_second"], Value::Null);
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
            "10 is not in 64",
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

/// No veth pair carries a hundred gigabits of short packets from one thread.
#[test]
fn a_load_that_cannot_be_offered_is_an_error_to_programs_too() {
    if !namespaces_or_not_tested() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let one = capture(folder.path(), "one.pcap", &[60]);
    let tare = env!("CARGO_BIN_EXE_tare");
    let output = over_a_cable(&format!(
        "{tare} loadtest find-limit --port packet -b 100e9 -D 0.2 --warm-up 0 --json {one} near0"
    ));
    assert_exit(&output, 1);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let error = json["error"].as_str().unwrap();
    assert!(error.contains("could not be offered"), "{error}");
    assert_eq!(json["trials"].as_array().unwrap().len(), 0);
    assert!(
        text(&output.stderr).contains(error),
        "{}",
        text(&output.stderr)
    );
}

/// Runs a script in a network namespace with a veth pair, which ends with it.
fn over_a_cable(script: &str) -> Output {
    let set_up = "set -e
        sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
        ip link add dev near0 numrxqueues 2 numtxqueues 2 type veth peer name far0 numrxqueues 2 numtxqueues 2
        ip link set near0 up
        ip link set far0 up";
    let output = Command::new("unshare")
        .args(["--net", "sh", "-c", &format!("{set_up}\n{script}")])
        .output();
    output.unwrap()
}

#[test]
fn a_frame_over_the_mtu_is_named_with_its_size_and_what_to_do() {
    if !namespaces_or_not_tested() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let long = capture(folder.path(), "long.pcap", &[60, 2000]);
    let short = capture(folder.path(), "short.pcap", &[60]);
    let tare = env!("CARGO_BIN_EXE_tare");
    for (command, frame, wanted) in [
        (format!("find-limit {long} near0"), "frame 2 has 2000", 1986),
        (
            format!("rfc2544 --sizes 64,9018 -b 1e6 -D 0.01 --latency-trials 0 --burst-trials 1 --burst 0.01 {short} near0"),
            "frame 1 has 9014",
            9000,
        ),
    ] {
        for port in ["packet", "auto"] {
            let output = over_a_cable(&format!("{tare} loadtest {command} --port {port} --warm-up 0"));
            let err = text(&output.stderr);
            assert_exit(&output, 2);
            for part in [
                format!("stream NIC: {frame} bytes (without checksum)"),
                "near0 has an MTU of 1500 and sends 1514 at most".into(),
                format!("ip link set near0 mtu {wanted}"),
            ] {
                assert!(err.contains(&part), "{part}: {err}");
            }
        }
    }
    // At an MTU that holds them they are sent, over AF_XDP too.
    let output = over_a_cable(&format!(
        "ip link set near0 mtu 9000; ip link set far0 mtu 9000
        {tare} loadtest transient -p constant --count 1 -b 1e6 -D 0.2 --warm-up 0 --json {long} a b near0 {short} b a far0"
    ));
    assert_exit(&output, 0);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    for stream in json["trials"][0]["streams"].as_array().unwrap() {
        assert_eq!(stream["lost"], 0, "{json}");
        assert!(stream["rx_packets"].as_u64().unwrap() > 10);
    }
}

#[test]
fn an_interface_without_a_carrier_is_waited_for_and_one_that_is_down_is_not() {
    if !namespaces_or_not_tested() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let one = capture(folder.path(), "one.pcap", &[60]);
    let tare = env!("CARGO_BIN_EXE_tare");
    let load = format!(
        "{tare} loadtest transient -p constant --count 1 -b 1e6 -D 0.2 --warm-up 0 --json {one} a b near0 {one} b a far0"
    );
    // The kernel takes a moment to tell that a carrier is lost.
    let unplugged = "ip link set far0 down
        until ip link show near0 | grep -q NO-CARRIER; do sleep 0.05; done";
    let refused = |script: &str| {
        let began = Instant::now();
        let output = over_a_cable(&format!("{script}\n{load}"));
        assert_exit(&output, 2);
        (text(&output.stderr), began.elapsed())
    };
    let (said, _) = refused("ip link set near0 down");
    assert!(
        said.contains("near0 is down; take it up with `ip link set near0 up`"),
        "{said}"
    );
    let (said, took) = refused(unplugged);
    assert!(said.contains("near0: waiting for its carrier"), "{said}");
    assert!(
        said.contains("near0 is up, but has no carrier after 5 s: "),
        "{said}"
    );
    assert!(took >= Duration::from_secs(5), "{took:?}");
    let output = over_a_cable(&format!(
        "{unplugged}\n(sleep 1; ip link set far0 up) &\n{load}"
    ));
    assert_exit(&output, 0);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    for stream in json["trials"][0]["streams"].as_array().unwrap() {
        assert!(stream["rx_packets"].as_u64().unwrap() > 10, "{json}");
    }
}

#[test]
fn the_kind_of_each_port_is_printed_in_words() {
    if !namespaces_or_not_tested() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let one = capture(folder.path(), "one.pcap", &[60]);
    let tare = env!("CARGO_BIN_EXE_tare");
    for (port, wanted) in [
        ("packet", "packet socket"),
        ("xdp-generic", "AF_XDP generic"),
        ("xdp-native", "AF_XDP native"),
    ] {
        let output = over_a_cable(&format!(
            "{tare} loadtest transient -p constant --count 1 -b 1e6 -D 0.05 --warm-up 0 --port {port} {one} a b near0 {one} b a far0"
        ));
        assert_exit(&output, 0);
        let err = text(&output.stderr);
        for name in ["near0", "far0"] {
            let line = format!("tare: {name}: {wanted}");
            assert!(err.lines().any(|l| l.starts_with(&line)), "{line}: {err}");
        }
        assert!(!err.contains("Xdp"), "{err}");
    }
}

#[test]
fn threads_send_together_and_every_packet_is_accounted_for() {
    if !namespaces_or_not_tested() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let one = capture(folder.path(), "one.pcap", &[60, 590]);
    let tare = env!("CARGO_BIN_EXE_tare");
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = cpus.min(2);
    for port in ["auto", "packet"] {
        let output = over_a_cable(&format!(
            "{tare} loadtest transient -p constant --count 3 -b 5e6 -D 0.5 --warm-up 0.1 --threads {threads} --port {port} --json {one} a b near0 {one} b a far0
            cat /proc/net/dev >&2"
        ));
        assert_exit(&output, 0);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["trials"].as_array().unwrap().len(), 3);
        for trial in json["trials"].as_array().unwrap() {
            let mut known = [0, 0];
            for (n, stream) in trial["streams"].as_array().unwrap().iter().enumerate() {
                let count = |key: &str| stream[key].as_u64().unwrap();
                assert_eq!(count("tx_packets"), count("rx_packets") + count("lost"));
                // Half a second of two frames in turn, but for what was held up.
                let expected = 2 * 2_500_000 / ((60 + 24 + 590 + 24) * 8);
                assert!(count("tx_packets") <= expected + 2);
                assert!(count("tx_packets") >= expected * 99 / 100, "{stream}");
                assert_eq!(count("duplicates") + count("reordered"), 0, "{stream}");
                assert_eq!(stream["latency"]["count"], count("rx_packets"));
                known[1 - n] = count("rx_packets");
            }
            for (n, port) in trial["ports"].as_array().unwrap().iter().enumerate() {
                assert_eq!(port["received"], known[n], "{trial}");
                assert_eq!(port["egress_drop"], 0);
            }
        }
    }
    let too_many = (cpus + 1).to_string();
    let output = run(&["find-limit", "--threads", &too_many, &one, "lo"]);
    assert_exit(&output, 2);
    assert!(text(&output.stderr).contains(&format!("expected 1 to {cpus}")));
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

/// Real interfaces: two cables in a network namespace of the test's own, joined by the kernel's
/// bridge.
#[test]
fn a_search_over_real_interfaces_finds_what_a_bridge_forwards() {
    if !namespaces_or_not_tested() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let one = capture(folder.path(), "one.pcap", &[60, 590]);
    let set_up = "set -e
        sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
        ip link add near0 type veth peer name far0
        ip link add near1 type veth peer name far1
        ip link add name br0 type bridge
        ip link set far0 master br0
        ip link set far1 master br0
        for i in near0 far0 near1 far1 br0; do ip link set $i up; done";
    for port in ["packet", "auto"] {
        let tare = env!("CARGO_BIN_EXE_tare");
        let search = format!(
            "{set_up}
            {tare} loadtest find-limit --port {port} -b 20e6 -p 5e6 -D 0.3 --warm-up 0.2 -r 3 --json {one} node1 node2 near0 {one} node2 node1 near1"
        );
        // The namespace ends with the last process in it. A busy machine may keep the tester from
        // sending in time, which it then says.
        let mut outputs = (0..20).map(|_| {
            let mut command = Command::new("unshare");
            let output = command.args(["--net", "sh", "-c", &search]).output();
            output.unwrap()
        });
        let was_late = |output: &Output| text(&output.stderr).contains("load could not be offered");
        let output = outputs.find(|output| !was_late(output));
        let output = output.expect("an attempt in which the load is offered");
        assert_exit(&output, 0);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        // A software bridge carries 20 Mb/s. A busy machine may lose packets, but must count them.
        assert!(
            json["limit"]["passed_bits_per_second"].as_u64().unwrap() >= 5_000_000,
            "{json}"
        );
        for trial in json["trials"].as_array().unwrap() {
            let streams = trial["streams"].as_array().unwrap();
            assert_eq!(streams.len(), 2);
            for stream in streams {
                let count = |key: &str| stream[key].as_u64().unwrap();
                assert!(count("tx_packets") > 500);
                assert_eq!(count("tx_packets"), count("rx_packets") + count("lost"));
                assert_eq!(count("duplicates"), 0);
                assert_eq!(stream["latency"]["count"], count("rx_packets"));
            }
            for port in trial["ports"].as_array().unwrap() {
                assert_eq!(port["damaged"], 0, "{trial}");
                assert_eq!(port["misdelivered"], 0);
            }
        }
    }
}

/// Returns true if this can be tested here; panics if it cannot under CI.
fn namespaces_or_not_tested() -> bool {
    let can = can_make_namespaces();
    if !can {
        assert!(
            std::env::var_os("CI").is_none(),
            "only root may make network namespaces"
        );
        // Past the capture of the test runner: what is not tested must be seen.
        let _ = writeln!(
            io::stderr(),
            "NOT TESTED: only root may make network namespaces"
        );
    }
    can
}

fn can_make_namespaces() -> bool {
    let tried = Command::new("unshare")
        .args([
            "--net", "ip", "link", "add", "name", "br0", "type", "bridge",
        ])
        .output();
    tried.is_ok_and(|output| output.status.success())
}
