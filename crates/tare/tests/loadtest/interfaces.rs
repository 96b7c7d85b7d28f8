//! `tare loadtest` over interfaces: veth pairs in network namespaces of the test's own.

use std::io::{self, Write as _};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{assert_exit, capture, run, text};

/// No veth pair carries a hundred gigabits of short packets from one thread.
#[test]
fn a_load_that_cannot_be_offered_is_an_error_to_programs_too() {
    if !namespaces_or_not_tested() {
        return;
    }
    let folder = folder();
    let one = capture(folder.path(), "one.pcap", &[60]);
    let output = over_a_cable(
        "\"$TARE\" loadtest find-limit --port packet -b 100e9 -D 0.2 --warm-up 0 --json \"$ONE\" near0",
        &[("ONE", &one)],
    );
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

/// A folder with a blank and a letter that is not ASCII in its name, as users have them.
fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("é tare").tempdir().unwrap()
}

/// Runs a script in a network namespace with a veth pair, which ends with it, with these variables
/// and `$TARE`, the program.
fn over_a_cable(script: &str, paths: &[(&str, &String)]) -> Output {
    let set_up = "set -e
        sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
        ip link add dev near0 numrxqueues 2 numtxqueues 2 type veth peer name far0 numrxqueues 2 numtxqueues 2
        ip link set near0 up
        ip link set far0 up";
    in_a_namespace(&format!("{set_up}\n{script}"), paths)
}

/// The same again while a busy machine keeps the tester from sending in time, as it then says.
fn sent_over_a_cable(script: &str, paths: &[(&str, &String)]) -> Output {
    in_time(|| over_a_cable(script, paths))
}

/// Runs a test until it is not the machine that is too slow.
fn in_time(run: impl Fn() -> Output) -> Output {
    let late = ["load could not be offered", "no carrier after 5 s"];
    let was_late = |output: &Output| {
        let said = text(&output.stderr);
        late.iter().any(|words| said.contains(words))
    };
    let mut outputs = (0..20).map(|_| run());
    let output = outputs.find(|output| !was_late(output));
    output.expect("an attempt in which the load is offered")
}

/// Runs a script in a network namespace of its own with the same variables.
fn in_a_namespace(script: &str, paths: &[(&str, &String)]) -> Output {
    let output = Command::new("unshare")
        .args(["--net", "sh", "-c", script])
        .env("TARE", env!("CARGO_BIN_EXE_tare"))
        .envs(paths.iter().copied())
        .output();
    output.unwrap()
}

#[test]
fn a_frame_over_the_mtu_is_named_with_its_size_and_what_to_do() {
    if !namespaces_or_not_tested() {
        return;
    }
    let folder = folder();
    let long = capture(folder.path(), "long.pcap", &[60, 2000]);
    let short = capture(folder.path(), "short.pcap", &[60]);
    let captures = [("LONG", &long), ("SHORT", &short)];
    for (command, frame, wanted) in [
        ("find-limit \"$LONG\" near0", "frame 2 has 2000", 1986),
        (
            "rfc2544 --sizes 64,9018 -b 1e6 -D 0.01 --latency-trials 0 --burst-trials 1 --burst 0.01 \"$SHORT\" near0",
            "frame 1 has 9014",
            9000,
        ),
    ] {
        for port in ["packet", "auto"] {
            let output = over_a_cable(
                &format!("\"$TARE\" loadtest {command} --port {port} --warm-up 0"),
                &captures,
            );
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
    // At an MTU that holds them they are sent, over AF_XDP too. A busy machine may lose some.
    let attempt = |_| {
        let output = sent_over_a_cable(
            "ip link set near0 mtu 9000; ip link set far0 mtu 9000
            \"$TARE\" loadtest transient -p constant --count 1 -b 1e6 -D 0.2 --warm-up 0 --json \"$LONG\" a b near0 \"$SHORT\" b a far0",
            &captures,
        );
        assert_exit(&output, 0);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        json["trials"][0]["streams"].as_array().unwrap().clone()
    };
    let loses_nothing = |streams: &Vec<Value>| streams.iter().all(|stream| stream["lost"] == 0);
    let streams = (0..20).map(attempt).find(loses_nothing);
    for stream in streams.expect("an attempt without loss") {
        assert!(stream["rx_packets"].as_u64().unwrap() > 10);
    }
}

#[test]
fn rfc_2544_sends_sizes_that_are_longer_than_the_captured_frames() {
    if !namespaces_or_not_tested() {
        return;
    }
    let folder = folder();
    let one = capture(folder.path(), "one.pcap", &[60]);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    // With such frames an AF_XDP port has one of the two queues, and loses what comes on the other.
    for (mtu, size, threads, port) in [(9000, 9018, cpus.min(2), "packet"), (3000, 2500, 1, "auto")]
    {
        let benchmarks = format!(
            "ip link set near0 mtu {mtu}; ip link set far0 mtu {mtu}
            \"$TARE\" loadtest rfc2544 --port {port} --threads {threads} \
                --sizes {size} -b 20e6 -p 20e6 -D 0.1 --warm-up 0 \
                --latency-trials 1 --burst 0.02 --burst-trials 1 --json \"$ONE\" a b near0 \"$ONE\" b a far0"
        );
        // A busy machine may keep the tester from sending in time, or lose what arrives meanwhile.
        let mut outputs = (0..20).map(|_| over_a_cable(&benchmarks, &[("ONE", &one)]));
        let passes = |output: &Output| output.status.code() == Some(0);
        let output = outputs.find(passes).expect("an attempt without loss");
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        let throughput = &json["sizes"][0]["throughput"];
        assert_eq!(throughput["passed_bits_per_second"], 20_000_000, "{json}");
        assert_eq!(json["sizes"][0]["frames_without_stamp"], 0);
    }
}

#[test]
fn an_interface_without_a_carrier_is_waited_for_and_one_that_is_down_is_not() {
    if !namespaces_or_not_tested() {
        return;
    }
    let folder = folder();
    let one = capture(folder.path(), "one.pcap", &[60]);
    let load = "\"$TARE\" loadtest transient -p constant --count 1 -b 1e6 -D 0.2 --warm-up 0 --json \"$ONE\" a b near0 \"$ONE\" b a far0";
    let captures = [("ONE", &one)];
    // The kernel takes a moment to tell that a carrier is lost.
    let unplugged = "ip link set far0 down
        until ip link show near0 | grep -q NO-CARRIER; do sleep 0.05; done";
    let refused = |script: &str| {
        let began = Instant::now();
        let output = over_a_cable(&format!("{script}\n{load}"), &captures);
        assert_exit(&output, 2);
        (text(&output.stderr), began.elapsed())
    };
    let (said, _) = refused("ip link set near0 down");
    assert!(
        said.contains("near0 is down; bring it up with `ip link set near0 up`"),
        "{said}"
    );
    let (said, took) = refused(unplugged);
    assert!(said.contains("near0: waiting for its carrier"), "{said}");
    assert!(
        said.contains("near0 is up, but has no carrier after 5 s: "),
        "{said}"
    );
    assert!(took >= Duration::from_secs(5), "{took:?}");
    let plugged = format!("{unplugged}\n(sleep 1; ip link set far0 up) &\n{load}");
    // A busy machine may plug it in too late.
    let output = sent_over_a_cable(&plugged, &captures);
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
    let folder = folder();
    let one = capture(folder.path(), "one.pcap", &[60]);
    for (port, wanted) in [
        ("packet", "packet socket"),
        ("xdp-generic", "AF_XDP generic"),
        ("xdp-native", "AF_XDP native"),
    ] {
        let output = sent_over_a_cable(
            &format!("\"$TARE\" loadtest transient -p constant --count 1 -b 1e6 -D 0.05 --warm-up 0 --port {port} \"$ONE\" a b near0 \"$ONE\" b a far0"),
            &[("ONE", &one)],
        );
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
    let folder = folder();
    let one = capture(folder.path(), "one.pcap", &[60, 590]);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = cpus.min(2);
    for port in ["auto", "packet"] {
        let output = sent_over_a_cable(
            &format!("\"$TARE\" loadtest transient -p constant --count 3 -b 5e6 -D 0.5 --warm-up 0.1 --threads {threads} --port {port} --json \"$ONE\" a b near0 \"$ONE\" b a far0
            cat /proc/net/dev >&2"),
            &[("ONE", &one)],
        );
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

/// Real interfaces: two cables in a network namespace of the test's own, joined by the kernel's
/// bridge.
#[test]
fn a_search_over_real_interfaces_finds_what_a_bridge_forwards() {
    if !namespaces_or_not_tested() {
        return;
    }
    let folder = folder();
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
        let search = format!(
            "{set_up}
            \"$TARE\" loadtest find-limit --port {port} -b 20e6 -p 5e6 -D 0.3 --warm-up 0.2 -r 3 --json \"$ONE\" node1 node2 near0 \"$ONE\" node2 node1 near1"
        );
        // The namespace ends with the last process in it.
        let output = in_time(|| in_a_namespace(&search, &[("ONE", &one)]));
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
