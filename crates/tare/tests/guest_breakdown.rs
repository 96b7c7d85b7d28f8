//! `tare guest breakdown` with real guests, emulated: they need QEMU, nginx, root and a kernel with
//! its modules, which `cargo xtask interop` gets where there is none.

use std::process::{Command, Output, Stdio};

use serde_json::Value as Json;

const TARE: &str = env!("CARGO_BIN_EXE_tare");

fn breakdown(arguments: &[&str]) -> Output {
    Command::new(TARE)
        .args(["guest", "breakdown", "--duration", "400"])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// The functions with probes: the category, the calls that the kernel counted, those in its trace
/// between the marks, and all of them.
fn counts(round: &Json) -> Vec<(String, Option<u64>, [u64; 2])> {
    let sum = |list: &Json| {
        list.as_array()
            .unwrap()
            .iter()
            .map(|it| it.as_u64().unwrap())
            .sum()
    };
    let recording = &round["recording"];
    let probes = recording["probes"].as_array().unwrap().iter();
    let counts = probes.map(|probe| {
        let name = probe["category"].as_str().unwrap().to_owned();
        // The categories are in the order of the functions.
        let order = [
            "swiotlb_find",
            "swiotlb_memcpy",
            "swiotlb_release",
            "netrx",
            "tcp_send",
            "tls",
        ];
        let place = order.iter().position(|it| *it == name).unwrap();
        let cpus = recording["cpus"].as_array().unwrap();
        let entries = ["inside", "spans"].map(|kind| {
            let of_cpus = cpus.iter().map(|cpu| cpu[kind][place].as_u64().unwrap());
            of_cpus.sum()
        });
        let hits = probe["hits"].as_array().map(|_| sum(&probe["hits"]));
        (name, hits, entries)
    });
    counts.collect()
}

#[test]
#[ignore = "needs QEMU, nginx, root and a kernel: cargo xtask interop"]
fn calls_are_counted_twice_alike_and_shares_add_up() {
    let output = breakdown(&["--rounds", "2", "--vcpus", "2", "--json"]);
    let (stdout, stderr) = texts(&output);
    assert!(output.status.success(), "{stderr}");
    let report: Json = serde_json::from_str(&stdout).expect(&stderr);
    let guests = report.as_array().unwrap();
    let places: Vec<&str> = guests
        .iter()
        .map(|it| it["place"].as_str().unwrap())
        .collect();
    assert_eq!(places, ["plain", "swiotlb"]);
    for guest in guests {
        let is_bouncing = guest["place"] == "swiotlb";
        let share = |part: &str| guest["parts"][part]["median"].as_f64();
        assert_eq!(share("swiotlb").unwrap() > 0.0, is_bouncing, "{guest:#}");
        // The server's document goes over plain TCP: the kernel's TLS is not even loaded.
        assert_eq!((share("tls"), &guest["exits"]), (None, &Json::Null));
        let rounds = guest["rounds"].as_array().unwrap();
        assert_eq!(rounds.len(), 2);
        for round in rounds {
            let requests = round["requests"].as_u64().unwrap();
            // As few as that on a busy machine that emulates the guest; they are counted below.
            assert!(requests > 0, "{round:#}");
            let recording = &round["recording"];
            assert_eq!(recording["lost"], 0, "{round:#}");
            assert_eq!(round["miscounted"], 0, "{round:#}");
            for (name, hits, [inside, spans]) in counts(round) {
                let Some(hits) = hits else {
                    assert_eq!((name.as_str(), spans), ("tls", 0));
                    continue;
                };
                // The kernel counts for longer than between the marks, and the trace is longer yet.
                assert!(
                    inside <= hits && hits <= spans,
                    "{name}: {inside} {hits} {spans}"
                );
                let is_called = is_bouncing || !name.starts_with("swiotlb");
                assert_eq!(hits > 0, is_called, "{name}: {hits}");
                // nginx sends a response of this length by one call; so it does those to the
                // questions, before and after, of how many there were.
                if name == "tcp_send" {
                    let probes = recording["probes"].as_array().unwrap();
                    let probe = probes.iter().find(|it| it["category"] == "tcp_send");
                    let missed = probe.unwrap()["missed"].as_u64().unwrap();
                    let all = requests..=requests + 4;
                    assert!(all.contains(&(hits + missed)), "{hits} {missed} {requests}");
                    assert!(inside + missed >= requests, "{inside} {missed} {requests}");
                }
            }
            let cpus = recording["cpus"].as_array().unwrap();
            assert_eq!(cpus.len(), 2);
            assert!(cpus
                .iter()
                .any(|cpu| cpu["cycles"][6].as_u64().unwrap() > 0));
            for cpu in cpus {
                let cycles = cpu["cycles"].as_array().unwrap().iter();
                let cycles: Vec<f64> = cycles.map(|it| it.as_f64().unwrap()).collect();
                let sum: f64 = cycles.iter().sum();
                // It was idle for a while.
                assert!(cycles[8] > 0.0, "{cpu:#}");
                let whole = cpu["whole"].as_f64().unwrap();
                assert!((sum / whole - 1.0).abs() < 0.01 && whole > 4e8, "{cpu:#}");
            }
        }
        // Two rounds: medians are means, and add up as the shares of each round do.
        let parts = ["swiotlb", "packet", "application"].map(|it| share(it).unwrap());
        let sum: f64 = parts.iter().sum();
        assert!((sum - 1.0).abs() < 0.01, "{parts:?}");
        assert!(guest["overhead"]["median"].as_f64().unwrap() > 0.0);
    }
}

#[test]
#[ignore = "needs QEMU, memcached, root and a kernel: cargo xtask interop"]
fn a_store_over_tls_is_broken_down_too() {
    let output = breakdown(&[
        "--server",
        "memcached",
        "--tls",
        "--flavour",
        "swiotlb",
        "--size",
        "32768",
        "--connections",
        "4",
        "--rounds",
        "1",
        "--json",
    ]);
    let (stdout, stderr) = texts(&output);
    assert!(output.status.success(), "{stderr}");
    let report: Json = serde_json::from_str(&stdout).expect(&stderr);
    let guest = &report[0];
    assert_eq!(
        (&guest["server"], &guest["tls"], &guest["size_bytes"]),
        (&"memcached".into(), &true.into(), &32_768.into())
    );
    let round = &guest["rounds"][0];
    let requests = round["requests"].as_u64().unwrap();
    // As few as four on a busy machine that emulates the guest.
    assert!(requests > 0, "{round:#}");
    assert_eq!(
        (&round["miscounted"], &round["recording"]["lost"]),
        (&0.into(), &0.into())
    );
    for (name, hits, _) in counts(round) {
        // The server's TLS is in its own library.
        assert_eq!(hits.is_none(), name == "tls", "{name}: {hits:?}");
        // A value of this size is more than one packet: with each request all of them are called.
        let least = if name == "tls" { 0 } else { requests / 4 };
        assert!(hits.unwrap_or(0) >= least, "{name}: {hits:?} of {requests}");
    }
}

#[test]
#[ignore = "needs QEMU, nginx, root and a kernel: cargo xtask interop"]
fn the_lines_are_the_published_ones_and_a_table_says_what_is_not_measured() {
    let output = breakdown(&["--rounds", "1", "--flavour", "swiotlb", "--lines"]);
    let (stdout, stderr) = texts(&output);
    assert!(output.status.success(), "{stderr}");
    assert!(
        stdout.contains("emulated: counts are right, cycles mean nothing"),
        "{stdout}"
    );
    assert!(
        stdout.contains("# vcpu: not available: the guest is emulated"),
        "{stdout}"
    );
    let number = |line: &str, after: &str| -> u64 {
        let word = line.split_once(after).unwrap().1.split(' ').next().unwrap();
        word.parse().unwrap()
    };
    let total = stdout
        .lines()
        .find(|line| line.starts_with("Total "))
        .unwrap();
    let total = number(total, "Total ");
    let mut sum = 0;
    for line in stdout.lines().filter(|line| line.starts_with("cpu 0 ")) {
        let cycles = number(line, "cycles ");
        assert_eq!(number(line, "percent "), cycles * 100 / total, "{line}");
        sum += cycles;
    }
    assert!(sum.abs_diff(total) * 100 <= total, "{stdout}");
    for name in [
        "netrx",
        "tcp_send",
        "swiotlb_memcpy",
        "swiotlb_find",
        "swiotlb_release",
    ] {
        let line = stdout
            .lines()
            .find(|line| line.contains(&format!("cpu 0 {name} cnt ")));
        assert!(number(line.expect(name), "cnt ") > 0, "{stdout}");
    }
    assert!(!stdout.contains(" tls "), "{stdout}");
    let output = breakdown(&["--rounds", "1", "--flavour", "plain"]);
    let (stdout, stderr) = texts(&output);
    assert!(output.status.success(), "{stderr}");
    for expected in [
        "not measured: exits: the guest is emulated and has no exits",
        "not measured: tls_sw_sendmsg: the guest's kernel has no such function",
        "sum                100.0 % [100.0, 100.0]",
        "lost events: 0",
    ] {
        assert!(stdout.contains(expected), "{expected}: {stdout}");
    }
}

#[test]
fn wrong_arguments_are_one_line_with_what_was_found_and_expected() {
    for (arguments, expected) in [
        (
            ["--flavour", "bridge"],
            "found \"bridge\", expected plain, swiotlb, sev-snp or tdx",
        ),
        (["--rounds", "0"], "0 is not in 1..=1000"),
        (["--size", "0"], "expected \"1 B\" to \"1 MiB\""),
    ] {
        let output = breakdown(&arguments);
        let (stdout, stderr) = texts(&output);
        assert_eq!(
            (stdout.as_str(), output.status.code()),
            ("", Some(2)),
            "{stderr}"
        );
        assert!(stderr.contains(expected), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}
