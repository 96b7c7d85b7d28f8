//! `tare import`: the command, and the runs that it writes.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const LOGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../import/tests/logs");

fn tare(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tare"))
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json(output: &Output) -> Value {
    let shown = text(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {shown}"))
}

#[test]
fn import_prints_figures_with_units_and_lines_and_what_is_wrong() {
    let output = tare(
        Path::new(LOGS),
        &["import", "tdx-host.txt", "tdx-guest.txt"],
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    for expected in [
        "tdx-host.txt:4  wrk  connections=100  duration=30s  threads=4  url=http://127.0.0.1:8080/",
        "7  request_rate                      162588.64  req/s",
        "tdx-guest.txt:6: request_rate 34951.73 req/s: 862 B per response, and 10922 B in the run of tdx-host.txt:6",
    ] {
        assert!(shown.contains(expected), "{expected} not in\n{shown}");
    }
    let output = tare(Path::new(LOGS), &["import", "clio-threads.txt", "--json"]);
    let all = json(&output);
    let record = &all["inputs"][0]["runs"][0]["records"][10];
    assert_eq!(record["figure"], "read_throughput");
    assert_eq!(record["value"], 11_963.518_062);
    assert_eq!(
        (&record["unit"], &record["line"]),
        (&"Mbit/s".into(), &3.into())
    );
    assert_eq!(record["parameters"]["threads"], "4");
    let findings = all["findings"].as_array().unwrap();
    let found = findings.iter().find(|f| f["should_be"] == "6742.54 Mbit/s");
    assert_eq!(found.unwrap()["line"], 3);
}

#[test]
fn import_reads_standard_input_and_refuses_what_it_cannot_read_with_the_line() {
    let import = |bytes: &[u8]| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tare"))
            .args(["import", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(bytes).unwrap();
        child.wait_with_output().unwrap()
    };
    let whole = std::fs::read(format!("{LOGS}/tdx-host.txt")).unwrap();
    let output = import(&whole);
    assert_eq!(output.status.code(), Some(0));
    assert!(
        text(&output.stdout).starts_with("standard input:4  wrk"),
        "{}",
        text(&output.stdout)
    );
    let output = import(&whole[..whole.len() - 40]);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.starts_with("tare: standard input:7: found "), "{said}");
    assert!(
        said.contains("expected its line Transfer/sec: first"),
        "{said}"
    );
    for (arguments, expected) in [
        (&["import", "-", "-"][..], "found - twice"),
        (&["import", "nothing"], "tare: nothing: No such file"),
        (
            &["import", "tdx-host.txt", "--format", "iperf3"],
            "tdx-host.txt:8: found no figures",
        ),
        (&["import", "tdx-host.txt", "--as", "x/y"], "--out"),
        (
            &["import", "tdx-host.txt", "--out", "x", "--as", "x"],
            "an experiment's id",
        ),
        (
            &["import", "tdx-host.txt", "--out", "x", "--at", "x"],
            "expected NAME=VALUE",
        ),
    ] {
        let output = tare(Path::new(LOGS), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let said = text(&output.stderr);
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
}

#[test]
fn an_import_becomes_a_run_that_is_reported_and_compared_and_its_machine_is_imported() {
    let folder = tempfile::tempdir().unwrap();
    let log = |name: &str| format!("{LOGS}/{name}");
    let run = |log: &str, out: &str| {
        let log = format!("{LOGS}/{log}");
        let arguments = ["import", &log, "--out", out, "--at", "path=net"];
        let output = tare(folder.path(), &arguments);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    };
    run("tdx-host.txt", "host");
    run("tdx-guest.txt", "guest");
    run("bifrost-nginx.txt", "nginx");
    let report = json(&tare(folder.path(), &["report", "host", "--json"]));
    assert_eq!(report["machine"]["cpu_model"], "imported");
    assert_eq!(
        report["machine"].get("cpus"),
        None,
        "a number that is missing is missing"
    );
    assert_eq!(
        (&report["size"], &report["complete"]),
        (&"imported".into(), &true.into())
    );
    let warnings = report["warnings"].as_array().unwrap();
    assert!(warnings[0]
        .as_str()
        .unwrap()
        .contains("Tare did not measure them"));
    assert!(warnings
        .iter()
        .any(|w| w.as_str().unwrap().contains("one run only")));
    let cells = report["experiments"][0]["cells"].as_array().unwrap();
    let rate = cells
        .iter()
        .find(|cell| cell["metric"] == "request_rate")
        .unwrap();
    assert_eq!(
        (&rate["median"], &rate["unit"]),
        (&162_588.64.into(), &"req/s".into())
    );
    assert_eq!(rate["at"]["path"], "net");
    assert!((rate["work_per_operation"].as_f64().unwrap() - 10_922.0).abs() < 1.0);
    let page = std::fs::read_to_string(folder.path().join("host/report.html")).unwrap();
    assert!(page.contains("the figures were imported"));
    // Different bytes per response: shown as not comparable, and without a ratio.
    let changes = json(&tare(folder.path(), &["diff", "host", "guest", "--json"]));
    let cells = changes["cells"].as_array().unwrap();
    assert!(!cells.is_empty());
    for cell in cells {
        assert_eq!(cell["ratio"], Value::Null, "{cell}");
        assert!(cell["other_work"].is_array(), "{cell}");
    }
    let shown = text(&tare(folder.path(), &["diff", "host", "guest"]).stdout);
    assert!(
        shown.contains("request_rate: not the same work: 10.92k and 862 per operation"),
        "{shown}"
    );
    let same = text(&tare(folder.path(), &["export", "host", "--format", "csv"]).stdout);
    assert!(
        same.contains("request_rate,req/s,higher,0,162588.64"),
        "{same}"
    );
    // Such a run has no trials to add.
    let output = tare(folder.path(), &["run", "--resume", "host"]);
    assert_eq!(output.status.code(), Some(2));
    let again = tare(
        folder.path(),
        &["import", &log("tdx-host.txt"), "--out", "host"],
    );
    assert_eq!(again.status.code(), Some(2), "a run is not overwritten");
}

#[test]
fn an_imported_figure_lands_on_the_cell_of_a_local_run_and_logs_are_rounds() {
    let folder = tempfile::tempdir().unwrap();
    let whole = std::fs::read_to_string(format!("{LOGS}/vita-software.txt")).unwrap();
    let imix: String = whole
        .lines()
        .take(4)
        .map(|line| format!("{line}\n"))
        .collect();
    for (name, rate) in [("a", "2.096"), ("b", "2.095"), ("c", "2.097")] {
        std::fs::write(folder.path().join(name), imix.replace("2.096", rate)).unwrap();
    }
    let onto = [
        "--as",
        "vita/software",
        "--at",
        "size=IMIX",
        "--metric",
        "packet_rate=cpu_packet_rate",
    ];
    let arguments = [&["import", "a", "b", "c", "--out", "vita"], &onto[..]].concat();
    let output = tare(folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let local = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/runs/all");
    let changes = json(&tare(folder.path(), &["diff", "vita", local, "--json"]));
    let cells = changes["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 1, "{changes}");
    assert_eq!(cells[0]["before"], 2.096, "the median of three rounds");
    assert!(cells[0]["ratio"].as_f64().unwrap() > 1.0);
    let conditions = changes["conditions"].as_array().unwrap();
    assert!(conditions
        .iter()
        .any(|c| c["what"] == "processor" && c["before"] == "imported"));
    // A figure that no log has, and two figures under one name.
    for (metrics, expected) in [
        (
            &["packet_rate=a", "packet_rat=b"][..],
            "--metric: found packet_rat, expected a figure of the logs: ",
        ),
        (
            &["packet_rate=a", "packets=a"],
            "--metric: found packet_rate=a and packets=a, expected each figure and each metric once",
        ),
        (
            &["packet_rate=a", "packet_rate=b"],
            "--metric: found packet_rate=a and packet_rate=b, expected each",
        ),
    ] {
        let named = metrics.iter().flat_map(|metric| ["--metric", metric]);
        let arguments: Vec<&str> = ["import", "a", "--out", "x"].into_iter().chain(named).collect();
        let output = tare(folder.path(), &arguments);
        assert_eq!(output.status.code(), Some(2), "{metrics:?}");
        let said = text(&output.stderr);
        assert!(said.contains(expected), "{metrics:?}: {said}");
        assert!(!folder.path().join("x").exists());
    }
    // Packets of two sizes are no two rounds of one cell.
    let both = format!("{LOGS}/vita-software.txt");
    let arguments = [&["import", &both, "--out", "both"], &onto[..]].concat();
    let output = tare(folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.contains("in one cell, expected the same"), "{said}");
}

#[test]
fn every_log_becomes_a_run_that_can_be_reported() {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(LOGS).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let output = tare(
            folder.path(),
            &["import", path.to_str().unwrap(), "--out", name],
        );
        assert_eq!(
            output.status.code(),
            Some(0),
            "{name}: {}",
            text(&output.stderr)
        );
        let report = json(&tare(folder.path(), &["report", name, "--json"]));
        assert_eq!(report["complete"], true, "{name}");
        for experiment in report["experiments"].as_array().unwrap() {
            for cell in experiment["cells"].as_array().unwrap() {
                assert!(cell["n"].as_u64().unwrap() > 0, "{name}: {cell}");
                assert_eq!(cell["reason"], Value::Null, "{name}: {cell}");
            }
        }
    }
    let report = json(&tare(
        folder.path(),
        &["report", "hyperfine.json", "--json"],
    ));
    let cell = &report["experiments"][0]["cells"][0];
    assert_eq!((&cell["metric"], &cell["n"]), (&"time".into(), &5.into()));
}
