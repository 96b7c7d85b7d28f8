//! Experiments with servers in guests, emulated.

use std::sync::LazyLock;

use super::*;

/// Runs experiments, and returns what they print and the records of their trials.
fn run(arguments: &[&str]) -> (String, Vec<serde_json::Value>) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let run = Command::new(TARE)
        .args(["run", "--out"])
        .arg(&out)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (stdout, stderr) = texts(&run);
    assert!(run.status.success(), "{stdout}{stderr}");
    let records = std::fs::read_to_string(out.join("samples.jsonl")).expect(&stdout);
    let records = records.lines().map(serde_json::from_str);
    (stdout, records.collect::<Result<_, _>>().unwrap())
}

/// A quick run of the suite, which boots a guest for each trial: one run for all tests of it.
static QUICK: LazyLock<(String, Vec<serde_json::Value>)> = LazyLock::new(|| {
    // A busy machine may keep a server from running for the 20 s after which wrk gives a request
    // up.
    let is_held_up = |record: &serde_json::Value| {
        let reason = record["outcome"]["reason"].as_str();
        reason.is_some_and(|reason| reason.ends_with(" timeout_errors"))
    };
    let mut runs = (0..3).map(|_| run(&["tdx", "--quick", "--rounds", "1"]));
    let whole = runs.find(|(_, records)| !records.iter().any(is_held_up));
    whole.expect("one run of three in which wrk gives no request up")
});

/// The records of one experiment of [`QUICK`], and what the run printed.
fn quick(experiment: &str) -> (&'static str, Vec<serde_json::Value>) {
    let (stdout, records) = &*QUICK;
    let of = records.iter().filter(|it| it["experiment"] == experiment);
    (stdout, of.cloned().collect())
}

/// The counter of a trial that must have been done.
fn count(record: &serde_json::Value, name: &str) -> u64 {
    let outcome = &record["outcome"];
    assert_eq!(outcome["status"], "done", "{record}");
    let count = outcome["counters"][name].as_u64();
    count.unwrap_or_else(|| panic!("{name}: {record}"))
}

/// Bytes of a response, headers included.
fn response_bytes(record: &serde_json::Value) -> f64 {
    let bytes = &record["outcome"]["values"]["response_bytes"];
    bytes.as_f64().unwrap_or_else(|| panic!("{record}"))
}

fn text<'a>(record: &'a serde_json::Value, axis: &str) -> &'a str {
    let value = record["at"][axis].as_str();
    value.unwrap_or_else(|| panic!("{axis}: {record}"))
}

/// The places of the records, each once.
fn places(records: &[serde_json::Value]) -> Vec<&str> {
    let mut places: Vec<&str> = records.iter().map(|it| text(it, "place")).collect();
    places.sort_unstable();
    places.dedup();
    places
}

/// Checks that what a trial says of its place is right.
fn assert_marked(record: &serde_json::Value) {
    assert_eq!(count(record, "unlike"), 0, "{record}");
    let place = text(record, "place");
    let is_guest = ["plain", "swiotlb"].contains(&place);
    assert_eq!(count(record, "emulated") == 1, is_guest, "{record}");
    assert_eq!(
        count(record, "bouncing") == 1,
        place == "swiotlb",
        "{record}"
    );
    assert_eq!(count(record, "unbounced"), 0, "{record}");
}

#[test]
#[ignore = "needs QEMU, nginx, root and a kernel: cargo xtask interop"]
fn nginx_serves_and_counts_the_same_on_the_host_and_in_guests() {
    let (stdout, records) = quick("tdx/served");
    for record in &records {
        // The document's 615, and nginx's headers.
        let bytes = response_bytes(record);
        assert!((750.0..950.0).contains(&bytes), "{record}");
        assert_eq!(bytes, response_bytes(&records[0]), "{record}");
        let operations = count(record, "operations");
        assert!(
            operations > 0 && count(record, "bytes") == operations * bytes as u64,
            "{record}"
        );
        let wrong = (count(record, "miscounted"), count(record, "unequal"));
        assert_eq!(wrong, (0, 0), "{record}");
        assert_marked(record);
    }
    assert_eq!(
        places(&records),
        ["bridge", "loopback", "plain", "swiotlb"],
        "{stdout}"
    );
}

#[test]
#[ignore = "needs QEMU, nginx, wrk, root and a kernel: cargo xtask interop"]
fn nginx_counts_in_guests_what_wrk_prints() {
    let (stdout, records) = quick("tdx/served-wrk");
    for record in &records {
        assert!(count(record, "operations") > 0, "{record}");
        assert_eq!(count(record, "miscounted"), 0, "{record}");
        // wrk rounds the bytes that it read.
        assert!((750.0..950.0).contains(&response_bytes(record)), "{record}");
        assert_marked(record);
    }
    assert_eq!(places(&records).len(), 4, "{stdout}");
}

#[test]
#[ignore = "needs QEMU, three servers, root and a kernel: cargo xtask interop"]
fn three_servers_serve_and_count_the_same_in_guests_with_tls_and_without() {
    let (stdout, records) = run(&["bifrost/guest-served", "--rounds", "1"]);
    let mut cells = Vec::new();
    for record in &records {
        let server = text(record, "server");
        let found = (
            count(record, "operations"),
            count(record, "miscounted"),
            count(record, "unequal"),
        );
        assert_eq!(found, (100, 0, 0), "{record}");
        // The value, and what the protocol has around it, which is the same everywhere.
        let bytes = response_bytes(record);
        assert!((32_768.0..33_100.0).contains(&bytes), "{record}");
        let other = records.iter().find(|other| text(other, "server") == server);
        assert_eq!(Some(bytes), other.map(response_bytes), "{record}");
        assert_marked(record);
        let tls = record["at"]["tls"].as_bool().unwrap();
        cells.push((text(record, "place"), server, tls));
    }
    cells.sort_unstable();
    cells.dedup();
    assert_eq!(cells.len(), 3 * 3 * 2, "{stdout}");
}

#[test]
#[ignore = "needs three servers, root and a kernel: cargo xtask interop"]
fn writes_and_misses_are_the_same_requests_for_every_place_and_counted_by_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mix.toml");
    let experiment = r#"
[[experiment]]
id = "mix/stores"
title = "Writes and misses"
source = "a test"
driver = "guest"
fixed = { timed = false, tls = true, connections = 3, size = "4 KiB", keys = 50, sets = 0.1, hits = 0.3, requests = 400, vcpus = 2 }
matrix = { server = ["memcached", "redis-server"], place = ["loopback", "bridge", "plain"] }
metrics = [{ name = "response_bytes", unit = "B", better = "lower", work = "bytes" }]
[[experiment.target]]
id = "counted"
text = "counted"
zero = { counter = "miscounted", out_of = "operations" }

[[experiment]]
id = "mix/processes"
title = "An nginx of several processes"
source = "a test"
driver = "guest"
fixed = { timed = false, tls = true, connections = 8, size = "4 KiB", requests = 400, vcpus = 3 }
matrix = { place = ["loopback", "bridge"] }
metrics = [{ name = "response_bytes", unit = "B", better = "lower", work = "bytes" }]
"#;
    std::fs::write(&file, experiment).unwrap();
    let (_, records) = run(&[file.to_str().unwrap(), "--rounds", "1"]);
    let is_store = |record: &serde_json::Value| record["experiment"] == "mix/stores";
    let (records, processes): (Vec<_>, Vec<_>) = records.into_iter().partition(is_store);
    assert!(records.len() >= 6 && processes.len() >= 2);
    for record in &processes {
        let wrong = (count(record, "miscounted"), count(record, "unlike"));
        assert_eq!(
            (count(record, "operations"), wrong),
            (400, (0, 0)),
            "{record}"
        );
    }
    for record in &records {
        let found = (
            count(record, "operations"),
            count(record, "miscounted"),
            count(record, "unequal"),
        );
        assert_eq!(found, (400, 0, 0), "{record}");
        // About 0.27 of the requests are hits of 4 KiB.
        let bytes = response_bytes(record);
        assert!((800.0..1500.0).contains(&bytes), "{record}");
        let same = |other: &&serde_json::Value| text(other, "server") == text(record, "server");
        let other = records.iter().find(same);
        assert_eq!(Some(bytes), other.map(response_bytes), "{record}");
    }
}

#[test]
#[ignore = "needs QEMU, nginx, root and a kernel: cargo xtask interop"]
fn a_guest_that_ends_under_load_is_named_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ends.toml");
    let experiment = r#"
[[experiment]]
id = "ends/nginx"
title = "A guest that ends"
source = "a test"
driver = "guest"
fixed = { timed = false, connections = 2, duration = "15 s" }
matrix = { place = ["plain"] }
metrics = [{ name = "response_bytes", unit = "B", better = "lower" }]
"#;
    std::fs::write(&file, experiment).unwrap();
    let out = folder.path().join("run");
    // A runner may have left the signal ignored.
    let run = Command::new("env")
        .args(["--default-signal=INT", TARE])
        .args(["run", "--rounds", "1", "--out"])
        .args([&out, &file])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The client's connections are there when the guest serves.
    let until = Instant::now() + Duration::from_secs(300);
    let qemu = loop {
        assert!(Instant::now() < until, "no guest is under load");
        thread::sleep(Duration::from_millis(50));
        let qemu = descendants(run.id()).into_iter().find(|pid| is_qemu(*pid));
        let loaded = qemu.filter(|pid| {
            let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp"));
            // To 10.88.0.2, port 8080, established.
            table.is_ok_and(|table| table.matches("0200580A:1F90 01").count() >= 2)
        });
        if let Some(pid) = loaded {
            break pid;
        }
    };
    let kill = |signal: &str, pid: u32| {
        let killed = Command::new("kill")
            .args([signal, &pid.to_string()])
            .status();
        assert!(killed.unwrap().success());
    };
    kill("-KILL", qemu);
    // The experiment has one cell, which is its own baseline: its second guest is not waited for.
    let until = Instant::now() + Duration::from_secs(300);
    let record = loop {
        let records = std::fs::read_to_string(out.join("samples.jsonl")).unwrap_or_default();
        if let Some((first, _)) = records.split_once('\n') {
            break first.to_owned();
        }
        assert!(Instant::now() < until, "no record of the first trial");
        thread::sleep(Duration::from_millis(50));
    };
    kill("-INT", run.id());
    let output = run.wait_with_output().unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    let reason = record["outcome"]["reason"].as_str().unwrap_or_default();
    assert!(
        reason.contains("server: QEMU") && reason.contains("signal: 9"),
        "{record} {}",
        texts(&output).0
    );
}

/// The processes that a process started, and those that they did.
fn descendants(pid: u32) -> Vec<u32> {
    let own = children(pid);
    let deeper: Vec<u32> = own.iter().flat_map(|child| descendants(*child)).collect();
    [own, deeper].concat()
}

#[test]
#[ignore = "needs QEMU, nginx, wrk, root and a kernel: cargo xtask interop"]
fn a_quick_run_of_the_suite_has_the_cost_table_and_honest_verdicts() {
    let (stdout, records) = &*QUICK;
    assert!(
        stdout.starts_with("What a guest costs nginx here, in requests per second\n"),
        "{stdout}"
    );
    let is_emulated = records.iter().any(|record| {
        let reason = record["outcome"]["reason"].as_str();
        reason.is_some_and(|reason| reason.contains("guests are emulated here"))
    });
    let row = stdout
        .lines()
        .find(|line| line.starts_with("  in a guest  "));
    let row: Vec<&str> = row.expect(stdout).split_whitespace().collect();
    if is_emulated {
        // Only the last column has a figure, and no claim is judged by a time.
        let [.., wrk, _, load, _, emulated] = row[..] else {
            panic!("{stdout}")
        };
        assert_eq!((wrk, load), ("–", "–"), "{stdout}");
        assert!(
            emulated.parse::<f64>().is_ok_and(|rate| rate > 0.0),
            "{stdout}"
        );
        assert!(stdout.contains("Not tested in a guest, in a guest with bounce buffers"));
        assert!(!stdout.contains("not reproduced:"), "{stdout}");
    }
    for record in records {
        assert_ne!(record["outcome"]["status"], "failed", "{record}");
    }
}
