//! Trials of the driver `farmem`: what they are compared with, and how they come about.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{json, Value};

#[expect(dead_code, reason = "no program is asked here until it answers")]
mod memory_common;

use memory_common::is_too_slow;

/// Runs one round of an experiment with these metrics and axes, and returns the record of each
/// trial.
fn records(metrics: &[(&str, &str)], fixed: &str, matrix: &str) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let metric = |(name, unit): &(&str, &str)| {
        format!("{{ name = \"{name}\", unit = \"{unit}\", better = \"lower\" }}")
    };
    let metrics: Vec<String> = metrics.iter().map(metric).collect();
    let metrics = metrics.join(", ");
    let experiment = format!(
        "[[experiment]]\nid = \"test/trials\"\ntitle = \"Trials\"\nsource = \"the test\"\n\
         driver = \"farmem\"\nfixed = {{ duration = \"1 ms\", {fixed} }}\n\
         matrix = {{ {matrix} }}\n\
         metrics = [{metrics}]\n"
    );
    fs::write(folder.path().join("trials.toml"), experiment).unwrap();
    let attempt = |attempt| memory_common::records(folder.path(), "trials", attempt);
    // A busy machine may hold a trial up for longer than an operation waits, which then fails.
    let is_held_up = |record: &Value| {
        let reason = record["outcome"]["reason"].as_str().unwrap_or_default();
        let failed = record["outcome"]["counters"]["failed"].as_u64();
        is_too_slow(reason)
            || reason.contains("was not done within its limit")
            || failed.is_some_and(|failed| failed > 0)
    };
    let mut runs = (0..5).map(attempt);
    let records = runs.find(|records| !records.iter().any(is_held_up));
    let records = records.expect("a run of five that is not held up");
    for record in &records {
        assert_eq!(record["outcome"]["status"], "done", "{record}");
    }
    records
}

#[test]
fn local_memory_and_the_bare_transport_stand_beside_remote_memory() {
    for transport in ["udp", "shm"] {
        let metrics = [
            ("time", "ns"),
            ("latency_p50", "ns"),
            ("latency_p99", "ns"),
            ("rate", "ops/s"),
            ("throughput", "Gbit/s"),
        ];
        let records = records(
            &[&metrics[..], &[("cpu_node_time", "ns")]].concat(),
            &format!("transport = \"{transport}\", size = \"16 B\""),
            "op = [\"read\", \"write\"], system = [\"farmem\", \"local\", \"raw\"]",
        );
        // One cell runs twice.
        assert_eq!(records.len(), 7);
        for record in records {
            let (values, counters) = (&record["outcome"]["values"], &record["outcome"]["counters"]);
            let system = record["at"]["system"].as_str().unwrap();
            for (metric, _) in metrics {
                assert!(values[metric].as_f64() > Some(0.0), "{metric}: {record}");
            }
            let node_time = values["cpu_node_time"].as_f64();
            assert_eq!(node_time == Some(0.0), system == "local", "{record}");
            assert!(node_time.is_some(), "{record}");
            let [verified, bytes] = ["verified", "bytes"].map(|name| counters[name].as_u64());
            match system {
                "raw" => assert_eq!(verified, Some(0), "{record}"),
                _ => assert!(bytes > Some(0) && verified >= bytes, "{record}"),
            }
            assert_eq!(counters["wrong"], 0, "{record}");
        }
    }
}

#[test]
fn what_many_pages_add_is_held_against_two_cache_misses_in_the_same_trial() {
    let metrics = [
        ("time", "ns"),
        ("near_time", "ns"),
        ("miss_time", "ns"),
        ("over_misses", "ratio"),
        ("explained", "ratio"),
    ];
    // A slow machine takes more turns until a trial has enough operations.
    let attempt = |_| records(&metrics, "order = 10", "misses = [\"on\"]");
    let had_one = |record: &Value| record["outcome"]["counters"]["turns"] == 1;
    let mut runs = (0..5).map(attempt);
    let records = runs.find(|records| records.iter().all(had_one));
    for record in records.expect("a run of five with one turn per trial") {
        let values = &record["outcome"]["values"];
        let value = |name: &str| values[name].as_f64();
        assert!(value("near_time") > Some(0.0), "{record}");
        // The ratio of a trial with one pair of turns is of the difference with its sign. Where
        // noise makes that negative, 0 is shown for it.
        let (time, near) = (value("time").unwrap(), value("near_time").unwrap());
        let missed = time / value("over_misses").unwrap() - near;
        let off = value("miss_time").unwrap() - missed.max(0.0);
        assert!(off.abs() < 1e-9 * near, "{record}");
        let explained = match time > near {
            true => missed / (time - near),
            false => 1.0,
        };
        let off = value("explained").unwrap() - explained;
        assert!(off.abs() < 1e-6 * explained.abs().max(1.0), "{record}");
        assert_eq!(record["outcome"]["counters"]["wrong"], 0, "{record}");
    }
}

#[test]
fn mapped_regions_are_written_as_well_as_read() {
    let (fixed, op) = ("order = 4, regions = 4", "op = [\"read\", \"write\"]");
    for record in records(&[("time", "ns")], fixed, op) {
        let counters = &record["outcome"]["counters"];
        let count = |name: &str| counters[name].as_u64().unwrap();
        assert_eq!((count("wrong"), count("pages")), (0, 16), "{record}");
        // Every byte of what was measured, and that is something.
        assert!(count("operations") > 0, "{record}");
        assert!(count("verified") >= 16 * count("operations"), "{record}");
    }
}

#[test]
fn faults_are_counted_where_links_have_some_and_nowhere_else() {
    let (fixed, loss) = ("outstanding = 16", "loss = [0.0, 0.2]");
    for record in records(&[("losses", "count")], fixed, loss) {
        let (values, counters) = (&record["outcome"]["values"], &record["outcome"]["counters"]);
        let count = |name: &str| counters[name].as_u64().unwrap();
        let is_lossy = record["at"]["loss"].as_f64().unwrap() > 0.0;
        // Of a turn's hundred datagrams and more a tenth is duplicated, and as many delayed.
        for fault in ["lost", "duplicated", "reordered"] {
            assert_eq!(count(fault) > 0, is_lossy, "{fault}: {record}");
        }
        let losses = count("lost") as f64 / count("operations") as f64;
        let off = values["losses"].as_f64().unwrap() - losses;
        assert!(off.abs() < 1e-9, "{record}");
        assert_eq!(count("lossless"), 0, "{record}");
    }
}

#[test]
fn the_pages_of_the_nodes_memory_are_in_the_record_of_a_trial() {
    let transports = "transport = [\"udp\", \"shm\"]";
    for record in records(&[("huge_pages", "ratio")], "order = 12", transports) {
        let memory = &record["notes"]["node.memory"];
        let [bytes, huge] = ["bytes", "huge_bytes"].map(|name| memory[name].as_f64().unwrap());
        // 16 MiB in pages, as much to spare, and the page table.
        assert!(bytes > f64::from(32 << 20) && huge <= bytes, "{record}");
        let part = record["outcome"]["values"]["huge_pages"].as_f64().unwrap();
        assert!((part - huge / bytes).abs() < 1e-9, "{record}");
        let mappings = memory["mappings"].as_array().unwrap();
        let is_small = mappings.iter().all(|part| {
            let pages = part["pages"].as_str().unwrap();
            assert!(pages.contains("pages"), "{record}");
            pages.contains("4 KiB")
        });
        assert!(!is_small || huge == 0.0, "{record}");
    }
}

/// A role of a trial, which the test plays the lab for.
struct Role {
    child: Child,
    commands: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl Role {
    fn start(name: &str, parameters: &Value) -> Role {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tare"))
            .args(["trial", "farmem", &parameters.to_string(), "--role", name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Role {
            commands: child.stdin.take().unwrap(),
            lines: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    fn tell(&mut self, command: &Value) {
        writeln!(self.commands, "{command}").unwrap();
    }

    /// Reads messages up to one of this type; returns all of them.
    fn until(&mut self, last: &str) -> Vec<Value> {
        let mut messages = Vec::new();
        loop {
            let mut line = String::new();
            let len = self.lines.read_line(&mut line).unwrap();
            assert!(len > 0, "ended before \"{last}\": {messages:?}");
            let message: Value = serde_json::from_str(&line).unwrap();
            let is_last = message["type"] == last;
            messages.push(message);
            let message = messages.last().unwrap();
            if is_last || message["type"] == "error" {
                return messages;
            }
        }
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Plays a trial of the two roles, on however few processors, and calls `started` with the client
/// when it begins; returns what that said.
fn play(parameters: &Value, started: impl FnOnce(&Child)) -> Vec<Value> {
    let mut node = Role::start("node", parameters);
    let mut client = Role::start("client", parameters);
    let ready = |role: &mut Role| {
        let messages = role.until("ready");
        let last = messages.last().unwrap();
        assert_eq!(last["type"], "ready", "{messages:?}");
        last["data"].clone()
    };
    let roles = json!({ "node": ready(&mut node), "client": ready(&mut client) });
    let start = json!({ "type": "start", "roles": roles });
    node.tell(&start);
    client.tell(&start);
    let mut said = client.until("start");
    if said.last().unwrap()["type"] == "error" {
        return said;
    }
    started(&client.child);
    said.extend(client.until("done"));
    if said.last().unwrap()["type"] == "error" {
        return said;
    }
    node.tell(&json!({ "type": "stop" }));
    assert_eq!(node.until("done").last().unwrap()["type"], "done");
    for role in [&mut node, &mut client] {
        role.tell(&json!({ "type": "drain" }));
    }
    said.extend(client.until("end"));
    said
}

/// Returns true if an operation of a trial was given up, as on a busy machine.
fn is_held_up(said: &[Value]) -> bool {
    let reason = said.last().unwrap()["message"].as_str();
    let failed = |message: &Value| message["counters"]["failed"].as_u64() > Some(0);
    is_too_slow(reason.unwrap_or_default()) || said.iter().any(failed)
}

#[test]
fn sessions_over_shared_memory_have_one_ring_or_one_each() {
    for (rings, expected) in [("one", 1), ("each", 6)] {
        let parameters = json!({
            "transport": "shm", "sessions": 6, "rings": rings, "order": 0, "duration": "1 ms",
        });
        let trial = |_| {
            let mut sockets = 0;
            let said = play(&parameters, |client| {
                // A ring has a connection, and over shared memory there is no other socket.
                let files = fs::read_dir(format!("/proc/{}/fd", client.id())).unwrap();
                let targets = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
                let is_socket = |target: &PathBuf| target.to_string_lossy().starts_with("socket:");
                sockets = targets.filter(is_socket).count();
            });
            (said, sockets)
        };
        let found = (0..5).map(trial).find(|(said, _)| !is_held_up(said));
        let (said, sockets) = found.expect("a trial of five that is not held up");
        assert_eq!(sockets, expected, "{rings}");
        let of = |kind: &str| said.iter().find(|message| message["type"] == kind);
        let counters = &of("counters").unwrap_or_else(|| panic!("{said:?}"))["counters"];
        assert_eq!(
            (&counters["sessions"], &counters["wrong"]),
            (&6.into(), &0.into())
        );
    }
}

#[test]
fn threads_of_a_client_have_sessions_of_their_own_and_all_of_them_are_counted() {
    let parameters = json!({
        "threads": 3, "sessions": 2, "order": 2, "size": "16 B", "op": "write", "duration": "1 ms",
    });
    let mut trials = (0..5).map(|_| play(&parameters, |_| ()));
    let said = trials.find(|said| !is_held_up(said));
    let said = said.expect("a trial of five that is not held up");
    let of = |kind: &'static str| said.iter().filter(move |message| message["type"] == kind);
    let counters = of("counters").next();
    let counters = &counters.unwrap_or_else(|| panic!("{said:?}"))["counters"];
    let count = |name: &str| counters[name].as_u64().unwrap();
    // Each session has half of four pages.
    assert_eq!((count("sessions"), count("pages")), (6, 12), "{said:?}");
    assert_eq!(count("wrong"), 0, "{said:?}");
    // Each thread does a group of 16 or more, and each write is read after it.
    assert!(count("operations") >= 3 * 16, "{said:?}");
    assert!(count("verified") >= 16 * count("operations"), "{said:?}");
    let value = |name: &str| {
        let mut samples = of("sample").filter(|sample| sample["metric"] == name);
        samples.next().and_then(|sample| sample["value"].as_f64())
    };
    for metric in ["time", "over_raw", "latency_p50"] {
        assert!(value(metric) > Some(0.0), "{metric}: {said:?}");
    }
}
